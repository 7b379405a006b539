"""The Spark engine: an audit's passes as Spark jobs. Nobody imports this module but tandemmq, when asked to.

No record goes through Spark: level 1 sends a row per MiB, level 2 a row per island, level 3 a report per
task. The driver collects only blocks that differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import functions

from replication.audit.blocks import BLOCK_BYTES, Block, Range, differing_ranges
from replication.audit.classes import classify
from replication.audit.islands import Compared, join_islands
from replication.audit.kernel import Island
from replication.audit.plan import Level1, Options
from replication.audit.rangecheck import Interval, RangeReport, Shelf
from replication.audit.spark_formats import CheckPlan, island_of, register
from replication.audit.stores import Replica

#: up to so many digests (a quarter of a TiB of log) the driver compares them itself: without a shuffle
#: the first audit of a session is over seconds earlier
COLLECTED_BLOCKS_MAX = 500_000
PARTITION_BYTES_MIN = 128 << 20
PARTITION_BYTES_MAX = 4 << 30


class SparkEngine:
    """Runs an audit's passes on a Spark session."""

    name = "spark"

    def __init__(
        self,
        session: Callable[[], Any],
        places: dict[str, str],
        blocks_out: Path | None = None,
    ) -> None:
        """session is asked once, when the first pass begins: bad input needs no JVM.

        places      name -> directory or URI as the executors see it
        blocks_out  where digests are kept that are too many for the driver
        """
        self._session = session
        self._places = places
        self._blocks_out = blocks_out

    @cached_property
    def _spark(self) -> Any:
        spark = self._session()
        register(spark)
        return spark

    @property
    def _slots(self) -> int:
        slots: int = self._spark.sparkContext.defaultParallelism
        return slots

    def _partition_bytes(self, total: int) -> int:
        """Large tasks: each costs 40 ms whatever it does."""
        return min(PARTITION_BYTES_MAX, max(PARTITION_BYTES_MIN, total // (2 * self._slots)))

    def compare(self, reference: Replica, replica: Replica, start: int, end: int) -> Level1:
        names = (reference.name, replica.name)
        total = 2 * max(0, end - start)
        if total == 0:
            return Level1([])
        blocks = (
            self._spark.read.format("commitlog_blocks")
            .option("places", json.dumps({name: self._places[name] for name in names}))
            .option("startOffset", start)
            .option("endOffset", end)
            .option("segmentBytes", reference.segment_bytes)
            .option("partitionBytes", self._partition_bytes(total))
            .load()
        )
        if total // BLOCK_BYTES <= COLLECTED_BLOCKS_MAX and self._blocks_out is None:
            return _compared_here(blocks, reference, replica, start, end)
        if self._blocks_out is not None:
            kept = str(self._blocks_out / f"block_digest-{replica.name}.parquet")
            blocks.write.parquet(kept)
            blocks = self._spark.read.parquet(kept)
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
        reference: Replica,
        replica: Replica,
        ranges: Sequence[Range],
        end: int,
        compared: Compared,
    ) -> list[Island]:
        if not ranges:
            return []
        found = (
            self._spark.read.format("commitlog_diff")
            .option("reference", self._places[reference.name])
            .option("replica", self._places[replica.name])
            .option("ranges", json.dumps([list(piece) for piece in ranges]))
            .option("endOffset", end)
            .option("segmentBytes", reference.segment_bytes)
            .option("tasks", 2 * self._slots)
            .load()
            .collect()
        )
        for row in found:
            if row["kind"] == "total":
                compared.records += row["equal_records"]
                compared.padding_bytes += row["padding_bytes"]
        islands = [island_of(row) for row in found if row["kind"] == "island"]
        return join_islands(islands, reference.segment_bytes)

    def checks(
        self,
        reference: Replica,
        shelves: Sequence[Shelf],
        islands: Sequence[Interval],
        start: int,
        options: Options,
    ) -> list[RangeReport]:
        plan = CheckPlan(
            {shelf.replica.name: self._places[shelf.replica.name] for shelf in shelves},
            {shelf.replica.name: shelf.replica.end for shelf in shelves},
            {shelf.replica.name: shelf.masks for shelf in shelves},
            list(islands),
            start,
            reference.segment_bytes,
            options.index_slots,
            options.delay_levels,
            self._partition_bytes(reference.end - start),
        )
        found = (
            self._spark.read.format("commitlog_checks")
            .option("plan", msgspec.json.encode(plan).decode())
            .load()
            .collect()
        )
        return [msgspec.msgpack.decode(row["report"], type=RangeReport) for row in found]


def _compared_here(
    blocks: Any, reference: Replica, replica: Replica, start: int, end: int
) -> Level1:
    digests: dict[str, list[Block]] = {reference.name: [], replica.name: []}
    table = blocks.toArrow()
    columns = [table.column(name).to_pylist() for name in ("replica", "segment", "block", "size")]
    for name, segment, block, size, digest in zip(
        *columns, table.column("xxh3").to_pylist(), strict=True
    ):
        digests[name].append(Block(segment, block, size, bytes.fromhex(digest)))
    mine, theirs = (sorted(digests[side.name]) for side in (reference, replica))
    return Level1(
        differing_ranges(mine, theirs, start, end, reference.segment_bytes),
        sum(block.size for block in mine) + sum(block.size for block in theirs),
        len(theirs),
        {reference.name: mine, replica.name: theirs},
    )


def _block(row: Any, digest: str, size: int) -> Block:
    return Block(row["segment"], row["block"], size, bytes.fromhex(digest))


def watch(
    spark: Any,
    reference: str,
    replica: str,
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
        .load()
    )

    def batch(frame: Any, number: int) -> None:
        rows = frame.collect()
        equal = sum(row["equal_records"] for row in rows if row["kind"] == "total")
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
