"""What spark.read hands out: every record once, however the log is split, and nothing that is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import storekit
from storekit import LogFiles

from tandemmq.replication.audit.blocks import digest_replica
from tandemmq.replication.audit.stores import open_replica
from tandemmq.storage.record import decode

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return storekit.write_store(tmp_path_factory.mktemp("formats") / "store", 5, 700)


def rows(spark: Any, store: Path | str, **options: object) -> list[Any]:
    reading = spark.read.format("commitlog").option("columns", "physical_offset,size")
    for name, value in options.items():
        reading = reading.option(name, value)
    found: list[Any] = reading.load(str(store)).collect()
    return sorted((row["physical_offset"], row["size"]) for row in found)


def test_splits_of_any_size_give_every_record_once(spark: Any, store: Path) -> None:
    expected = [(place.offset, place.size) for place in storekit.places(store)]
    for partition_bytes in (7_001, 40_000, 65_536, 300_000, 1 << 30):
        assert rows(spark, store, partitionBytes=partition_bytes) == expected, partition_bytes


def test_ranges_and_topics_are_options(spark: Any, store: Path) -> None:
    places = storekit.places(store)
    middle = places[300].offset
    assert rows(spark, store, startOffset=middle) == [(p.offset, p.size) for p in places[300:]]
    assert rows(spark, store, endOffset=middle) == [(p.offset, p.size) for p in places[:300]]
    orders = [(p.offset, p.size) for p in places if p.head.topic == b"Orders"]
    assert rows(spark, store, topics="Orders") == orders


def test_range_without_records_gives_no_rows(spark: Any, store: Path) -> None:
    end = storekit.places(store)[-1].end
    assert rows(spark, store, startOffset=end, endOffset=end) == []


def test_every_column_is_what_the_store_decodes(spark: Any, store: Path) -> None:
    from tandemmq.replication.audit.spark_rows import COLUMNS

    place = storekit.places(store)[123]
    found = (
        spark.read.format("commitlog")
        .option("columns", ",".join(COLUMNS))
        .option("startOffset", place.offset)
        .option("endOffset", place.end)
        .load(str(store))
        .collect()
    )
    record = decode(LogFiles(store).read(place.offset, place.end))
    (row,) = found
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
        record.topic,
        record.queue_id,
        record.queue_offset,
    )
    assert bytes(row["body"]) == record.body
    assert row["properties"] == record.property_map
    assert row["tags"] == record.property_map.get("TAGS")
    assert row["body_crc"] == row["computed_crc"] == record.body_crc
    assert row["store_host"] == "10.0.0.9:10911"
    assert (row["born_ms"], row["store_ms"]) == (record.born_ms, record.store_ms)


def test_unknown_column_is_refused_with_the_ones_there_are(spark: Any, store: Path) -> None:
    with pytest.raises(Exception, match="no such columns: colour; there are physical_offset"):
        spark.read.format("commitlog").option("columns", "colour").load(str(store)).collect()


def test_sql_over_a_log(spark: Any, store: Path) -> None:
    spark.read.format("commitlog").load(str(store)).createOrReplaceTempView("log")
    query = "select topic, count(*) n from log group by topic order by topic"
    counted = {row["topic"]: row["n"] for row in spark.sql(query).collect()}
    expected: dict[str, int] = {}
    for place in storekit.places(store):
        topic = place.head.topic.decode()
        expected[topic] = expected.get(topic, 0) + 1
    assert counted == expected


def test_damage_is_stepped_over(spark: Any, store: Path, tmp_path: Path) -> None:
    copy = storekit.copy(store, tmp_path / "damaged")
    places = storekit.places(store)
    LogFiles(copy).write(places[50].offset, bytes(places[50].size))
    expected = [(p.offset, p.size) for p in places if p is not places[50]]
    assert rows(spark, copy) == expected
    assert rows(spark, copy, partitionBytes=9_000) == expected


def test_log_of_a_file_system_by_uri_reads_alike(spark: Any, store: Path) -> None:
    expected = [(place.offset, place.size) for place in storekit.places(store)]
    assert rows(spark, f"file://{store}") == expected


def test_blocks_are_the_local_digests(spark: Any, store: Path) -> None:
    end = storekit.places(store)[-1].end
    replica = open_replica(store, "x")
    expected = digest_replica(replica, 0, end)
    replica.close()
    found = (
        spark.read.format("commitlog_blocks")
        .option("places", json.dumps({"x": str(store)}))
        .option("partitionBytes", 150_000)
        .load()
        .collect()
    )
    assert sorted((r["segment"], r["block"], r["size"], r["xxh3"]) for r in found) == [
        (block.segment, block.block, block.size, block.xxh3.hex()) for block in expected
    ]


def test_consume_queues_of_rocketmq_are_read_as_recorded(spark: Any, tmp_path: Path) -> None:
    root = storekit.unpack("533-clean", tmp_path)
    lines = (storekit.GOLDEN / "533-clean.jsonl").read_text("utf-8").splitlines()
    expected = {}
    for line in map(json.loads, lines):
        if line["k"] == "queue":
            for entry in line["entries"]:
                expected[line["topic"], line["qid"], entry[0]] = tuple(entry[1:])
    found = spark.read.format("consumequeue").load(str(root)).where("not blank").collect()
    assert {
        (row["topic"], row["queue_id"], row["queue_offset"]): (
            row["physical_offset"],
            row["size"],
            row["tags_code"],
        )
        for row in found
    } == expected
    shutil.rmtree(root)


def test_golden_log_has_the_recorded_messages(spark: Any, tmp_path: Path) -> None:
    root = storekit.unpack("533-ipv6", tmp_path)
    lines = (storekit.GOLDEN / "533-ipv6.jsonl").read_text("utf-8").splitlines()
    recorded = [line for line in map(json.loads, lines) if line["k"] == "record"]
    found = spark.read.format("commitlog").load(str(root)).orderBy("physical_offset").collect()
    assert [(row["physical_offset"], row["topic"], row["body_crc"]) for row in found] == [
        (line["phy"], line["topic"], line["crc"]) for line in recorded
    ]
    assert found[0]["store_host"].startswith("[::1]:")
