"""The Spark engine: an audit's passes as Spark jobs. Nobody imports this module but tandemmq, when asked to.

No record goes through Spark: level 1 sends 40 bytes per MiB, level 2 a row per island, level 3 a report
per task. The passes are plain tasks (spark_tasks.py), not queries: a query of a Python data source
starts three more kinds of Python helpers and the SQL engine before it reads a byte, 8 of 13 processor
seconds of an audit that begins cold. Only logs whose digests are too many for the driver go that way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession, functions

from tandemmq.replication.audit import spark_tasks
from tandemmq.replication.audit.blocks import BLOCK_BYTES, Block, Range, differing_ranges
from tandemmq.replication.audit.classes import classify
from tandemmq.replication.audit.errors import AuditIncomplete
from tandemmq.replication.audit.islands import Compared, join_islands
from tandemmq.replication.audit.kernel import Island
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.plan import Level1, Options
from tandemmq.replication.audit.rangecheck import Interval, RangeReport, Shelf
from tandemmq.replication.audit.spark_formats import island_of, register
from tandemmq.replication.audit.stores import ReplicaStore

#: up to so many digests (a quarter of a TiB of log) the driver compares them itself
COLLECTED_BLOCKS_MAX = 500_000
PARTITION_BYTES_MIN = 128 << 20
PARTITION_BYTES_MAX = 4 << 30
DIFF_BYTES_MIN = 16 << 20

Answer = TypeVar("Answer", bound=msgspec.Struct)


class SparkEngine:
    """Runs an audit's passes on Spark."""

    name = "spark"

    def __init__(
        self,
        context: Callable[[], tuple[Any, bool]],
        places: dict[str, str],
        access: Access | None = None,
        blocks_out: Path | None = None,
    ) -> None:
        """
        context     the SparkContext, and whether it ends with us; asked once, when the first pass
                    begins: bad input needs no JVM
        places      name -> directory or URI as the executors see it
        blocks_out  where digests are kept if they are too many for the driver
        """
        self._context = context
        self._places = places
        self._access = access or Access()
        self._blocks_out = blocks_out
        self._ours = False

    @cached_property
    def _spark(self) -> Any:
        spark, self._ours = self._context()
        return spark

    def close(self) -> None:
        """Stop what was started for this engine: executors that are left behind complain aloud."""
        if self._ours:
            self._spark.stop()

    @property
    def _slots(self) -> int:
        slots: int = self._spark.defaultParallelism
        return slots

    def _share_bytes(self, total: int) -> int:
        """Large tasks: each costs 40 ms whatever it does."""
        return min(PARTITION_BYTES_MAX, max(PARTITION_BYTES_MIN, total // (2 * self._slots)))

    def _run(
        self,
        task: Callable[[Iterable[bytes]], Iterator[bytes]],
        shares: Sequence[msgspec.Struct],
        kind: type[Answer],
    ) -> list[Answer]:
        """One task per share. Raises AuditIncomplete."""
        encoded = [msgspec.msgpack.encode(share) for share in shares]
        try:
            found = self._spark.parallelize(encoded, len(encoded)).mapPartitions(task).collect()
        except Py4JJavaError as problem:
            raise AuditIncomplete(f"Spark failed: {_reason(problem)}") from problem
        answers = [msgspec.msgpack.decode(answer, type=kind) for answer in found]
        for answer in answers:
            problem_text: str = getattr(answer, "problem", "")
            if problem_text:
                raise AuditIncomplete(problem_text)
        return answers

    def compare(
        self, reference: ReplicaStore, replica: ReplicaStore, start: int, end: int
    ) -> Level1:
        total = 2 * max(0, end - start)
        if total == 0:
            return Level1([])
        if total // BLOCK_BYTES > COLLECTED_BLOCKS_MAX:
            return self._compare_there(reference, replica, start, end, total)
        shares = [
            spark_tasks.DigestShare(
                {part.replica: self._places[part.replica] for part in parts},
                self._access,
                reference.segment_bytes,
                parts,
            )
            for parts in _packed((reference, replica), start, end, self._share_bytes(total))
        ]
        digests: dict[str, list[Block]] = {reference.name: [], replica.name: []}
        for answer in self._run(spark_tasks.digest, shares, spark_tasks.DigestAnswer):
            for name, blocks in answer.blocks.items():
                digests[name] += blocks
        mine, theirs = (sorted(digests[side.name]) for side in (reference, replica))
        return Level1(
            differing_ranges(mine, theirs, start, end, reference.segment_bytes),
            sum(block.size for block in mine) + sum(block.size for block in theirs),
            len(theirs),
            {reference.name: mine, replica.name: theirs},
        )

    def _compare_there(
        self, reference: ReplicaStore, replica: ReplicaStore, start: int, end: int, total: int
    ) -> Level1:
        """Digests are compared by Spark; the driver gets only those that differ."""
        names = (reference.name, replica.name)
        session = SparkSession(self._spark)
        register(session)
        blocks = (
            session.read.format("commitlog_blocks")
            .option("places", json.dumps({name: self._places[name] for name in names}))
            .option("startOffset", start)
            .option("endOffset", end)
            .option("segmentBytes", reference.segment_bytes)
            .option("partitionBytes", self._share_bytes(total))
            .option("token", self._access.token)
            .option("ca", self._access.ca)
            .load()
        )
        try:
            return self._compared_there(session, blocks, reference, replica, start, end)
        except Py4JJavaError as problem:
            raise AuditIncomplete(f"Spark failed: {_reason(problem)}") from problem

    def _compared_there(
        self,
        session: Any,
        blocks: Any,
        reference: ReplicaStore,
        replica: ReplicaStore,
        start: int,
        end: int,
    ) -> Level1:
        if self._blocks_out is not None:
            kept = str(self._blocks_out / f"block_digest-{replica.name}.parquet")
            blocks.write.parquet(kept)
            blocks = session.read.parquet(kept)
        mine = functions.col("replica") == reference.name
        sides = blocks.groupBy("segment", "block").agg(
            functions.max(functions.when(mine, functions.col("xxh3"))).alias("mine"),
            functions.max(functions.when(~mine, functions.col("xxh3"))).alias("theirs"),
            functions.max(functions.when(mine, functions.col("size"))).alias("my_size"),
            functions.max(functions.when(~mine, functions.col("size"))).alias("their_size"),
        )
        counted = sides.withColumn(
            "same",
            functions.col("mine").eqNullSafe(functions.col("theirs"))
            & functions.col("my_size").eqNullSafe(functions.col("their_size")),
        )
        # one job: totals in one row, and the blocks that differ in a list
        row = counted.agg(
            functions.count("theirs").alias("blocks"),
            functions.sum(
                functions.coalesce("my_size", functions.lit(0))
                + functions.coalesce("their_size", functions.lit(0))
            ).alias("bytes"),
            functions.collect_list(
                functions.when(
                    ~functions.col("same"),
                    functions.struct("segment", "block", "mine", "theirs", "my_size", "their_size"),
                )
            ).alias("differing"),
        ).first()
        left = [_block(d, d["mine"], d["my_size"]) for d in row["differing"] if d["mine"]]
        right = [_block(d, d["theirs"], d["their_size"]) for d in row["differing"] if d["theirs"]]
        ranges = differing_ranges(left, right, start, end, reference.segment_bytes)
        return Level1(ranges, row["bytes"] or 0, row["blocks"])

    def islands(
        self,
        reference: ReplicaStore,
        replica: ReplicaStore,
        ranges: Sequence[Range],
        end: int,
        compared: Compared,
    ) -> list[Island]:
        if not ranges:
            return []
        total = sum(piece.end - piece.start for piece in ranges)
        size = max(DIFF_BYTES_MIN, total // (2 * self._slots))
        shares = [
            spark_tasks.DiffShare(
                self._places[reference.name],
                self._places[replica.name],
                self._access,
                reference.segment_bytes,
                pieces,
                end,
            )
            for pieces in _gathered(ranges, size)
        ]
        islands: list[Island] = []
        for answer in self._run(spark_tasks.diff, shares, spark_tasks.DiffAnswer):
            islands += answer.islands
            compared.records += answer.equal_records
            compared.padding_bytes += answer.padding_bytes
        return join_islands(islands, reference.segment_bytes)

    def checks(
        self,
        reference: ReplicaStore,
        shelves: Sequence[Shelf],
        islands: Sequence[Interval],
        start: int,
        options: Options,
    ) -> list[RangeReport]:
        size = reference.segment_bytes
        step = max(size, self._share_bytes(reference.end - start) // size * size)
        shares = []
        while start < reference.end:
            stop = min(reference.end, start - start % size + step)
            shares.append(
                spark_tasks.CheckShare(
                    {shelf.replica.name: self._places[shelf.replica.name] for shelf in shelves},
                    self._access,
                    size,
                    {shelf.replica.name: shelf.replica.end for shelf in shelves},
                    {shelf.replica.name: shelf.masks for shelf in shelves},
                    list(islands),
                    start,
                    stop,
                    options.index_slots,
                    options.delay_levels,
                )
            )
            start = stop
        if not shares:
            return []
        answers = self._run(spark_tasks.check, shares, spark_tasks.CheckAnswer)
        return [answer.report for answer in answers if answer.report is not None]


def _packed(
    replicas: Sequence[ReplicaStore], start: int, end: int, share_bytes: int
) -> Iterator[list[spark_tasks.Part]]:
    """The segments of each replica in [start, end), as many together as make a share."""
    for replica in replicas:
        parts: list[spark_tasks.Part] = []
        used = 0
        for file in replica.segments:
            first, stop = max(start, file.start), min(end, file.start + replica.segment_bytes)
            if first >= stop:
                continue
            if parts and used + stop - first > share_bytes:
                yield parts
                parts, used = [], 0
            parts.append(spark_tasks.Part(replica.name, first, stop))
            used += stop - first
        if parts:
            yield parts


def _gathered(ranges: Sequence[Range], share_bytes: int) -> list[list[Range]]:
    gathered: list[list[Range]] = []
    used = 0
    for piece in ranges:
        if not gathered or used + piece.end - piece.start > share_bytes:
            gathered.append([])
            used = 0
        gathered[-1].append(piece)
        used += piece.end - piece.start
    return gathered


def _reason(problem: Py4JJavaError) -> str:
    """What went wrong, out of Java's account of it: the last line of a Python traceback, or the first."""
    lines = [line.strip() for line in str(problem.java_exception).splitlines() if line.strip()]
    python = [
        line for line in lines if not line.startswith(("at ", "File ", "...", "Driver stack"))
    ]
    named = [
        line
        for line in python
        if ": " in line and line.split(":")[0].endswith(("Error", "Exception"))
    ]
    return (named or python or ["unknown"])[-1][:500]


def _block(row: Any, digest: str, size: int) -> Block:
    return Block(row["segment"], row["block"], size, bytes.fromhex(digest))


_NOTES = {
    "skipped": "was not compared: retention took it first",
    "cut": "was cut off by a failover and written anew: compared again",
}


def watch(
    spark: Any,
    reference: str,
    replica: str,
    access: Access,
    out: Path,
    every_seconds: float,
    once: bool,
    told: Callable[[str], None],
) -> Any:
    """Start a query that compares what two growing logs gain; it writes islands to out/islands.

    Progress is kept in out/checkpoint: started again, it goes on where it was. `told` gets one line per
    batch. once: what is there now, then the query ends. Returns Spark's StreamingQuery.
    """
    register(spark)
    stream = (
        spark.readStream.format("commitlog_diff")
        .option("reference", reference)
        .option("replica", replica)
        .option("token", access.token)
        .option("ca", access.ca)
        .load()
    )

    def batch(frame: Any, number: int) -> None:
        rows = frame.collect()
        equal = sum(row["equal_records"] for row in rows if row["kind"] == "total")
        for row in rows:
            if row["kind"] in _NOTES:
                told(f"{row['start']}-{row['end']} {_NOTES[row['kind']]}")
        islands = [island_of(row) for row in rows if row["kind"] == "island"]
        for island in islands:
            verdict = classify(island, island.end, island.end, -1)
            told(f"{verdict.kind} {island.start}-{island.end} {verdict.detail}")
        told(f"batch {number}: {equal} records equal, {len(islands)} islands")
        if islands:
            kept = spark.createDataFrame([row for row in rows if row["kind"] == "island"])
            kept.write.mode("append").parquet(str(out / "islands"))

    writer = stream.writeStream.foreachBatch(batch).option(
        "checkpointLocation", str(out / "checkpoint")
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_seconds} seconds").start()
