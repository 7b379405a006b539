"""The Spark engine says what the local one says; streams go on where they stopped."""

from __future__ import annotations

import json
import random
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import auditkit
import pytest
import storekit
from storekit import LogFiles

from tandemmq.audit import sparkling
from tandemmq.command.cli import main
from tandemmq.replication.audit.plan import Options, Outcome, audit
from tandemmq.storage import StorageConfig, open_store

pytestmark = pytest.mark.filterwarnings("ignore")

FAULTS = 20  # 15 bits, zeros, garbage, a file that is gone, an entry of a queue, another history


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A master, and a slave with FAULTS and another end."""
    directory = tmp_path_factory.mktemp("pair")
    master = storekit.write_store(directory / "master", 61, 1500)
    slave = storekit.write_store(directory / "slave", 61, 1400, fork_at=1200, fork_seed=8)
    places, log = storekit.places(master), LogFiles(slave)
    rng = random.Random(2)
    for number in range(20, 470, 30):
        log.flip(places[number].body[0])
    log.write(places[500].offset + 20, bytes(3000))
    log.write(places[700].offset + 20, rng.randbytes(3000))
    log.path(places[900].offset).unlink()
    entry = next((slave / "consumequeue" / "Orders").glob("*/*"))
    with entry.open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))
    return master, slave


def told(outcome: Outcome) -> tuple[Any, ...]:
    """What an outcome says, without names and times of the run."""
    skipped = {"run_id"}
    return tuple(
        sorted(
            tuple((k, v) for k, v in asdict(row).items() if k not in skipped)
            for row in rows  # type: ignore[attr-defined]
        )
        for rows in (outcome.divergences, outcome.findings, outcome.blocks)
    )


def spark_outcome(spark: Any, master: Path, slave: Path, **options: object) -> Outcome:
    places = {"master": str(master), "slave": str(slave)}
    engine = sparkling.spark_engine("local[2]", "c1", places)
    return audit(places, engine, Options(index_slots=storekit.INDEX_SLOTS, **options))  # type: ignore[arg-type]


def test_both_engines_say_the_same(spark: Any, pair: tuple[Path, Path]) -> None:
    local = storekit.run(*pair)
    there = spark_outcome(spark, *pair)
    assert told(there) == told(local)
    assert there.exit_code == local.exit_code == 1
    assert there.run.records_checked == local.run.records_checked
    assert there.run.bytes_compared == local.run.bytes_compared
    broken_queues = [row for row in local.findings if row.check == "cq_missing"]
    assert len(local.divergences) + len(broken_queues) >= FAULTS
    kinds = {row.kind for row in local.divergences}
    assert {"CRC_SLAVE", "HOLE", "GARBAGE", "MISSING_SEGMENT", "FORK"} <= kinds


def test_blocks_that_are_too_many_for_the_driver_are_compared_by_spark(
    spark: Any, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = __import__("tandemmq.replication.audit.spark_job", fromlist=["x"])
    monkeypatch.setattr(job, "COLLECTED_BLOCKS_MAX", 0)
    places = {"master": str(pair[0]), "slave": str(pair[1])}
    engine = sparkling.spark_engine("local[2]", "c1", places, out=tmp_path)
    there = audit(places, engine, Options(index_slots=storekit.INDEX_SLOTS))
    local = storekit.run(*pair)
    assert told(there)[:2] == told(local)[:2]
    assert there.run.blocks_differing == local.run.blocks_differing
    kept = spark.read.parquet(str(tmp_path / "block_digest-slave.parquet"))
    assert kept.count() == len(local.blocks)


def test_equal_stores_are_equal(spark: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    outcome = spark_outcome(spark, pair[0], storekit.copy(pair[0], tmp_path / "copy"))
    assert outcome.divergences == []
    assert outcome.exit_code == 0


def test_command_runs_on_spark_and_leaves_tables(
    spark: Any, pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "run", *map(str, pair), "--engine", "spark", "--json"]
    code = main([*words, "--out", str(tmp_path), "--index-slots", str(storekit.INDEX_SLOTS)])
    summary = json.loads(capsys.readouterr().out)
    assert code == summary["exit_code"] == 1
    assert summary["engine"] == "spark"
    (directory,) = tmp_path.iterdir()
    divergences = spark.read.parquet(str(directory / "divergence.parquet"))
    assert divergences.where("class = 'FORK'").count() == 1


def grow(root: Path, seed: int, count: int) -> Callable[[int], None]:
    """Put messages into a store; more of the same on every call."""
    config = StorageConfig(
        root=str(root), segment_bytes=65_536, queue_segment_bytes=2000, index_enabled=False
    )
    rng = random.Random(seed)
    clock = storekit.TestClock()

    def more(number: int) -> None:
        with open_store(config, clock) as store:
            for _ in range(number):
                store.put(auditkit.draft(rng))

    more(count)
    return more


def test_stream_of_a_growing_log_gives_each_record_once_over_restarts(
    spark: Any, tmp_path: Path
) -> None:
    more = grow(tmp_path / "store", 3, 150)
    seen: list[int] = []

    def run_once() -> None:
        stream = (
            spark.readStream.format("commitlog")
            .option("columns", "physical_offset")
            .option("partitionBytes", 30_000)
            .load(str(tmp_path / "store"))
        )

        def batch(frame: Any, number: int) -> None:
            seen.extend(row["physical_offset"] for row in frame.collect())

        query = (
            stream.writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    run_once()
    assert sorted(seen) == [place.offset for place in storekit.places(tmp_path / "store")]
    first = len(seen)
    more(120)
    run_once()
    assert len(seen) == first + 120
    assert sorted(seen) == [place.offset for place in storekit.places(tmp_path / "store")]


def test_watch_tells_what_became_different_since_the_last_time(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [grow(tmp_path / name, 4, 120) for name in ("master", "slave")]
    words = ["audit", "watch", *(str(tmp_path / name) for name in ("master", "slave"))]
    words += ["--once", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "120 records equal, 0 islands" in capsys.readouterr().out
    for grown in more:
        grown(80)
    places = storekit.places(tmp_path / "master")
    LogFiles(tmp_path / "slave").flip(places[150].body[0])
    assert main(words) == 1
    text = capsys.readouterr().out
    assert f"CRC_SLAVE {places[150].offset}-{places[150].end}" in text
    assert "79 records equal, 1 islands" in text


def test_watch_tells_what_retention_took_before_it_came(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [grow(tmp_path / name, 4, 60) for name in ("master", "slave")]
    words = ["audit", "watch", *(str(tmp_path / name) for name in ("master", "slave"))]
    words += ["--once", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    reached = storekit.places(tmp_path / "master")[-1].end
    for grown in more:
        grown(250)
    log = LogFiles(tmp_path / "slave")
    for start in log.starts[:2]:
        log.path(start).unlink()
    capsys.readouterr()
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"{reached}-{log.starts[2]} was not compared: retention took it first" in text
    assert ", 0 islands" in text


def test_stream_goes_back_to_where_a_failover_cut_the_log(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader that Spark would ask, asked here: a log that is shorter than it was."""
    formats = __import__("tandemmq.replication.audit.spark_formats", fromlist=["x"])
    for name in ("master", "slave"):
        grow(tmp_path / name, 4, 200)
    options = {
        name: str(tmp_path / store)
        for name, store in (("reference", "master"), ("replica", "slave"))
    }
    places = storekit.places(tmp_path / "master")
    ends = iter([places[150].offset, places[120].offset, places[180].offset])
    reader = formats._DiffStream(options)
    monkeypatch.setattr(reader, "_common_end", lambda start, most: next(ends))
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset({"off": 0}, limit)
    assert reader.latestOffset(first, limit) == first
    last = reader.latestOffset(first, limit)
    (cut, *ranges) = [piece.value for piece in reader.partitions(first, last)]
    assert cut == {"note": "cut", "start": places[120].offset, "end": places[150].offset}
    assert ranges[0]["ranges"][0][1] == places[120].offset
    assert ranges[-1]["ranges"][0][2] == places[180].offset
    assert [p.value.get("note") for p in reader.partitions(last, last)] == []


@pytest.mark.parametrize(
    ("version", "sentence"),
    [('openjdk version "11.0.2"', "needs Java 17 or later"), ("nonsense", "tells no version")],
)
def test_java_that_spark_cannot_use_is_one_sentence_and_64(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    sentence: str,
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n", encoding="utf-8")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["audit", "run", *map(str, pair), "--engine", "spark"]) == 64
    assert sentence in capsys.readouterr().err


def test_no_java_at_all_is_one_sentence_and_64(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["audit", "run", *map(str, pair), "--engine", "spark"]) == 64
    said = capsys.readouterr().err
    assert said == "tandem audit: Spark needs Java 17 or later, and no java was found\n"
