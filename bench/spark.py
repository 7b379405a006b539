"""`python -m bench.spark`: what a row costs when Spark reads a topic, beside Parquet and beside our client alone.

A broker is filled with messages; then each reader reads all of them in a process of its own: our client, Spark from the
topic (batch, by the logs, as a stream), Spark from Parquet with the same rows, and from a Python source that has made
its rows beforehand: the least that any such source costs. Rows per second of one core: rows by
the CPU time of that process and of all that it started, JVM and Python workers; the broker's is not in it. The JVM's
start is not in it either: each reader runs some times before it is measured, for the JVM compiles what is busy. Nor is
a stream's, which Spark gives a Python of its own once in its life: it is measured behind its first micro-batch. Spark's
settings are its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.quickpython import quick_python
from tandemmq import Admin, Message, Producer
from tandemmq.chaos.servers import Broker, NameServer

TOPIC: Final = "Bench"
QUEUES: Final = 8
CHILD_TIMEOUT_S: Final = 3_600
TARGET_SHARE: Final = 0.6  # of the client's rows per core-second, for batch and stream
MICRO_BATCHES: Final = 5  # of the measured stream
LOOK_S: Final = 0.01
TRIGGER_S: Final = 1.0
WARM_RUNS: Final = 2  # after them a run costs what the next one does
STARTS: Final = 9  # Spark gives a stream's Python 10 s to start, whatever its settings
LATENCY_MESSAGES: Final = 50
READERS: Final = {
    "client": "our client alone",
    "batch": "Spark, batch",
    "stream": "Spark, stream",
    "log": "Spark, batch by the logs",
    "parquet": "Spark, the same rows as Parquet",
    "readymade": "Spark, rows made beforehand",
}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figure:
    """One reader's rows, wall time and CPU time.

    start_cpu_seconds  of a stream, until its first micro-batch is through: not in cpu_seconds, nor its rows in rows
    latency_ms         of a stream: median of a 1 s trigger
    """

    reader: str
    rows: int
    seconds: float
    cpu_seconds: float
    start_cpu_seconds: float | None = None
    latency_ms: float | None = None

    @property
    def per_core_second(self) -> float:
        """Rows per second of CPU time."""
        return self.rows / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class Used:
    """What was used of time and of processors up to a moment, in seconds."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Used:
        return cls(time.perf_counter(), tree_cpu_seconds(os.getpid()))


class Read(NamedTuple):
    """rows: how many were read, since what counts began. counts_from: None: from the beginning."""

    rows: int
    counts_from: Used | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows are."""

    namesrv: str
    store: str
    parquet: str
    rows: int


# --- the measured processes


def tree_cpu_seconds(root: int) -> float:
    """CPU time of a process and of all below it, ended ones included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile: its parent counts it
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        at = pid
        while at not in (root, 0):
            at = parents.get(at, 0)
        if at == root:
            total += ticks[pid]
    return total / _TICKS


def measured(reader: str, read: Callable[[], Read], warm_runs: int) -> Figure:
    """Run it to warm up, and once to measure."""
    for _ in range(warm_runs):
        read()
    began = Used.now()
    found = read()
    end, counts = Used.now(), found.counts_from or began
    start_s = counts.cpu_seconds - began.cpu_seconds if found.counts_from else None
    return Figure(
        reader, found.rows, end.seconds - counts.seconds, end.cpu_seconds - counts.cpu_seconds, start_s
    )  # fmt: skip


def read_by_client(place: Place) -> Read:
    """Every message, one queue after the other, as an executor reads it."""
    from tandemmq.spark.options import read_options
    from tandemmq.spark.pulling import pulled
    from tandemmq.spark.reading import Reading

    options = read_options({"namesrv": place.namesrv, "topics": TOPIC}, streaming=False)
    ranges = Reading(options).batch()
    return Read(sum(len(some) for each in ranges for some in pulled(options, [each])))


def options_of(place: Place) -> dict[str, str]:
    return {"namesrv": place.namesrv, "topics": TOPIC}


def spark_reader(reader: str, place: Place, spark: Any) -> Callable[[], Read]:
    """What reads everything with Spark and builds every column."""
    options = options_of(place)
    if reader == "log":
        options |= {"via": "log", "places": json.dumps({"broker-a": place.store})}

    def batch() -> Read:
        source = spark.read.format("tandemmq").options(**options)
        table = spark.read.parquet(place.parquet) if reader == "parquet" else source.load()
        table.write.format("noop").mode("overwrite").save()
        return Read(place.rows)

    def readymade() -> Read:
        from bench.readymade import ReadyMade

        spark.dataSource.register(ReadyMade)
        source = spark.read.format(ReadyMade.name()).options(**options, rows=place.rows)
        source.load().write.format("noop").mode("overwrite").save()
        return Read(place.rows)

    def stream() -> Read:
        per_trigger = -(-place.rows // MICRO_BATCHES)
        settings = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": per_trigger}
        rows = spark.readStream.format("tandemmq").options(**settings)
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as checkpoint:
            writing = rows.load().writeStream.format("noop").trigger(availableNow=True)
            query = started(writing.option("checkpointLocation", checkpoint))
            began, before = Used.now(), query.recentProgress
            query.awaitTermination()
        read = sum(each["numInputRows"] for each in query.recentProgress)
        if read != place.rows:
            raise RuntimeError(f"the stream had {read} rows of {place.rows}")
        return Read(read - sum(each["numInputRows"] for each in before), began)

    return {"stream": stream, "readymade": readymade}.get(reader, batch)


def started(writing: Any) -> Any:
    """A query that is through with its first micro-batch."""
    for chance in range(1, STARTS + 1):
        query = writing.start()
        try:
            while query.lastProgress is None:
                if query.awaitTermination(LOOK_S):  # raises what it ended of
                    break
            return query
        except Exception as problem:
            if chance == STARTS or "failed to connect back" not in str(problem):
                raise
    raise AssertionError("unreachable")


def trigger_latency_ms(place: Place, spark: Any) -> float:
    """The median time from store to sink of single messages under a trigger of 1 s."""
    found: list[float] = []

    def note(rows: Any, number: int) -> None:
        for row in rows.selectExpr("unix_millis(store_time) ms").collect():
            found.append(time.time() * 1_000 - row["ms"])

    rows = spark.readStream.format("tandemmq").options(**options_of(place)).load()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as checkpoint:
        writing = rows.writeStream.foreachBatch(note).trigger(processingTime=f"{TRIGGER_S} seconds")
        query = started(writing.option("checkpointLocation", checkpoint))
        asyncio.run(trickle(place.namesrv))
        query.processAllAvailable()
        query.stop()
    return sorted(found)[len(found) // 2]


async def trickle(namesrv: str) -> None:
    """A message every 0.1 s."""
    async with Producer("bench", namesrv=namesrv) as producer:
        for number in range(LATENCY_MESSAGES):
            await producer.send(Message(TOPIC, b"%d" % number))
            await asyncio.sleep(0.1)


@contextmanager
def session() -> Iterator[Any]:
    """Spark with one slot, as it comes."""
    from pyspark.sql import SparkSession

    from tandemmq.spark import register

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        os.environ["PYSPARK_PYTHON"] = quick_python(Path(directory))
        building = SparkSession.builder.appName("bench.spark").master("local[1]")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": directory,
            "spark.log.level": "ERROR",
        }.items():
            building = building.config(name, value)
        spark = building.getOrCreate()
        register(spark)
        yield spark
        spark.stop()


def child(reader: str, place: Place, latency: bool, warm_runs: int) -> None:
    """Measure in this process and print the figure."""
    if reader == "client":
        print(json.dumps(asdict(measured(reader, lambda: read_by_client(place), 1))))
        return
    with session() as spark:
        found = measured_by_spark(reader, place, spark, warm_runs)
        if reader == "stream" and latency:
            found["latency_ms"] = trigger_latency_ms(place, spark)
        print(json.dumps(found))


def measured_by_spark(reader: str, place: Place, spark: Any, warm_runs: int) -> dict[str, Any]:
    """The figure as JSON's object."""
    if reader == "parquet" and not Path(place.parquet).exists():
        source = spark.read.format("tandemmq").options(**options_of(place))
        source.load().write.parquet(place.parquet)
    return asdict(measured(reader, spark_reader(reader, place, spark), warm_runs))


# --- around them


@contextmanager
def filled(root: Path, rows: int, body_bytes: int) -> Iterator[Place]:
    """A broker with so many messages."""
    names = NameServer(root)
    settings = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 6_000_000}
    broker = Broker(root / "broker", names.address, settings=settings)
    with names, broker:
        names.start()
        broker.start()
        asyncio.run(fill(names.address, rows, body_bytes))
        yield Place(names.address, str(broker.store), str(root / "parquet"), rows)


async def fill(namesrv: str, rows: int, body_bytes: int) -> None:
    body = os.urandom(body_bytes)
    async with Admin(namesrv) as admin:
        await admin.create_topic(TOPIC, QUEUES)
    async with Producer("bench", namesrv=namesrv, compress_above_bytes=1 << 30) as producer:
        messages = (Message(TOPIC, body, keys=f"k{number}", tags="t") for number in range(rows))
        async for _ in producer.send_many(messages):
            pass


def run_child(reader: str, place: Place, latency: bool, warm_runs: int) -> Figure:
    words = [sys.executable, "-m", "bench.spark", "--child", reader, "--place"]
    more = ["--warm-runs", str(warm_runs), *(["--latency"] if latency else [])]
    done = subprocess.run(
        [*words, json.dumps(asdict(place)), *more],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    return Figure(**json.loads(done.stdout.splitlines()[-1]))


def as_text(figures: list[Figure], body_bytes: int) -> str:
    """The table for people."""
    client = next((each for each in figures if each.reader == "client"), None)
    lines = [f"{body_bytes} byte bodies, {figures[0].rows} rows, rows per second of one core"]
    for each in figures:
        share = f"{each.per_core_second / client.per_core_second:7.0%}" if client else ""
        start = f"  start: {each.start_cpu_seconds:.1f} s" if each.start_cpu_seconds else ""
        late = f"  1 s trigger: {each.latency_ms:.0f} ms" if each.latency_ms is not None else ""
        lines.append(
            f"{READERS[each.reader]:<34}{each.per_core_second:>10,.0f}{share}{start}{late}"
        )
    return "\n".join(lines)


def missed(figures: list[Figure]) -> list[str]:
    """What lies below the target."""
    by_name = {each.reader: each.per_core_second for each in figures}
    if "client" not in by_name:
        return []
    least = TARGET_SHARE * by_name["client"]
    return [name for name in ("batch", "stream") if by_name.get(name, least) < least]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Rows per second of one core: Spark from a topic, from Parquet, and our client alone.",
        epilog="example: python -m bench.spark --rows 200000 --latency",
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="messages (default %(default)s)"
    )
    parser.add_argument("--body-bytes", type=int, default=1_024, help="default %(default)s")
    parser.add_argument(
        "--readers", default=",".join(READERS), metavar="LIST", help="of %(default)s"
    )
    parser.add_argument("--latency", action="store_true", help="also of a 1 s trigger, 5 s longer")
    parser.add_argument(
        "--warm-runs", type=int, default=WARM_RUNS, help="before the measured one, %(default)s"
    )
    parser.add_argument("--data", type=Path, help="where the store lives meanwhile; default /tmp")
    parser.add_argument("--json", action="store_true", help="the figures for machines")
    parser.add_argument(
        "--require", action="store_true", help="exit with 3 below 60 %% of the client"
    )
    parser.add_argument("--child", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := set(given.readers.split(",")) - set(READERS):
        parser.error(f"--readers: {', '.join(sorted(unknown))} is none of {', '.join(READERS)}")
    if given.rows < 1 or given.body_bytes < 1:
        parser.error("--rows and --body-bytes must be at least 1")
    return given


def main(arguments: list[str]) -> int:
    """Measure and report; the exit code."""
    given = parse(arguments)
    if given.child:
        child(given.child, Place(**json.loads(given.place)), given.latency, given.warm_runs)
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers end, too
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=given.data) as root,
        filled(Path(root), given.rows, given.body_bytes) as place,
    ):
        figures = [
            run_child(name, place, given.latency and name == "stream", given.warm_runs)
            for name in given.readers.split(",")
        ]
    rows = [{**asdict(each), "per_core_second": each.per_core_second} for each in figures]
    print(json.dumps(rows, indent=1) if given.json else as_text(figures, given.body_bytes))
    below = missed(figures)
    if below and given.require:
        print(f"below {TARGET_SHARE:.0%} of the client: {', '.join(below)}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
