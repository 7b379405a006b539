"""Topics as tables: read by both paths, written, and refused in words. One broker, one session."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import Any

import pytest
from topickit import Topics, orders, plain

from tandemmq import Message

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 600


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.topic("Orders")
    topics.send(orders(name, COUNT))
    return name


def ids(table: Any) -> list[int]:
    """The numbers in the bodies."""
    return sorted(json.loads(bytes(row["body"]))["id"] for row in table.select("body").collect())


def refused(table: Any, seconds: float = 60) -> str:
    """What the driver raises, and soon."""
    started = time.monotonic()
    with pytest.raises(Exception) as found:
        table().collect()
    assert time.monotonic() - started < seconds
    return str(found.value)


def test_both_paths_give_identical_rows_and_every_message_once(
    topics: Topics, spark: Any, topic: str
) -> None:
    pulled = plain(topics.read(spark, topic).collect())
    assert [row[3] for row in pulled] == [n for q in range(4) for n in range(COUNT // 4)]
    pieces = topics.read(spark, topic, minPartitions=9, columns="body")
    assert ids(pieces) == list(range(COUNT)) and pieces.rdd.getNumPartitions() >= 9
    for via, more in (("http", {}), ("store", {"pieceBytes": 40_000})):
        assert plain(topics.read(spark, topic, via=via, **more).collect()) == pulled, via


def test_columns_say_what_was_sent(topics: Topics, spark: Any, topic: str) -> None:
    sent = topics.send(orders(topic := topics.topic("Columns"), 7))
    rows = {row["unique_id"]: row for row in topics.read(spark, topic).collect()}
    for message, result in zip(orders(topic, 7), sent, strict=True):
        row = rows[result.message_id]
        assert (row["topic"], row["broker"], row["queue_id"], row["queue_offset"]) == (
            *(topic, "broker-a", result.queue.queue_id),
            result.queue_offset,
        )
        assert bytes(row["body"]) == message.body
        assert row["key"] == (" ".join(message.keys) or None)
        assert row["tags"] == message.tags
        assert message.properties.items() <= row["properties"].items()
        assert row["born_time"] <= row["store_time"]
        assert row["epoch"] is None  # no controller counts them


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"tags": "paid || absent"}, lambda n: n % 3 == 1),
        ({"sql92": "amount BETWEEN 100 AND 200"}, lambda n: n % 5 and 100 <= n <= 200),
    ],
)
def test_filters_leave_the_same_rows_on_both_paths(
    topics: Topics, spark: Any, topic: str, how: dict[str, str], wanted: Any
) -> None:
    expected = [number for number in range(COUNT) if wanted(number)]
    for via in ("pull", "store"):
        assert ids(topics.read(spark, topic, via=via, **how)) == expected, via


def test_ranges_are_exact_offsets_names_and_times(topics: Topics, spark: Any) -> None:
    topic = topics.topic("Ranges", queues=2)
    topics.send(orders(topic, 20))
    time.sleep(0.05)
    between_ms = round(time.time() * 1_000)
    time.sleep(0.05)
    topics.send(orders(topic, 10, start=20))
    start = json.dumps({topic: {"broker-a:0": 3, "broker-a:1": -2}})
    end = json.dumps({topic: {"broker-a:0": 5, "broker-a:1": -1}})
    for via in ("pull", "store"):
        exact = topics.read(spark, topic, via=via, startingOffsets=start, endingOffsets=end)
        assert Counter(row["queue_id"] for row in exact.collect()) == {0: 2, 1: 15}
        late = topics.read(spark, topic, via=via, startingTimestamp=between_ms)
        assert ids(late) == list(range(20, 30))
        early = topics.read(spark, topic, via=via, endingTimestamp=between_ms)
        assert ids(early) == list(range(20))


def test_pattern_reads_every_topic_that_matches(topics: Topics, spark: Any) -> None:
    names = [topics.topic("Shop_A"), topics.topic("Shop_B")]
    for name in names:
        topics.send(orders(name, 3))
    options = topics.options("", topicPattern="Shop_.*")
    del options["topics"]
    table = spark.read.format("tandemmq").options(**options).load()
    assert sorted({row["topic"] for row in table.collect()}) == names


def test_spark_s_filters_leave_out_queues(topics: Topics, spark: Any, topic: str) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        table = topics.read(spark, topic, pushdown="true")
        one = table.where("queue_id = 2 and queue_offset between 10 and 19 and key is not null")
        assert one.rdd.getNumPartitions() == 1
        expected = topics.read(spark, topic).where(
            "queue_id = 2 and queue_offset between 10 and 19"
        )
        assert plain(one.collect()) == plain(expected.where("key is not null").collect())
        assert table.where("topic = 'Another'").rdd.getNumPartitions() == 1  # Spark's empty one
    finally:
        spark.conf.unset(setting)


# Writing


def test_rows_arrive_as_they_are_and_their_ids_are_those_of_their_places(
    topics: Topics, spark: Any, topic: str
) -> None:
    copy = topics.topic("Copies")
    table = topics.read(spark, topic, minPartitions=4).where("properties['amount'] is not null")
    sent = table.select("body", "key", "tags", "properties")
    write = sent.write.format("tandemmq").option("namesrv", topics.address).option("topic", copy)
    write.option("reservedProperties", "drop").mode("append").save()
    own = "map_filter(properties, (k, v) -> k in ('amount', 'größe'))"
    columns = ["body", "key", "tags", own]
    expected = [tuple(map(str, row)) for row in table.selectExpr(*columns).collect()]
    copies = topics.read(spark, copy).selectExpr(*columns, "unique_id").collect()
    assert sorted(tuple(map(str, row[:4])) for row in copies) == sorted(expected)
    unique = [row["unique_id"] for row in copies]
    assert len(set(unique)) == len(unique)
    assert len({each[:20] for each in unique}) == 4  # a prefix for each partition
    assert {each[20:28] for each in unique} == {"00000000"}


def test_hash_keys_keep_their_order_and_rows_may_name_queue_delay_and_id(
    topics: Topics, spark: Any
) -> None:
    topic = topics.topic("Keyed")
    rows = spark.range(200).selectExpr("concat('h', id % 7) hash_key", "cast(id as string) body")
    write = {"namesrv": topics.address, "topic": topic}
    rows.coalesce(1).write.format("tandemmq").options(**write).mode("append").save()
    lanes: dict[int, set[int]] = defaultdict(set)
    seen: dict[int, list[int]] = defaultdict(list)
    rows = topics.read(spark, topic).collect()
    for row in sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"])):
        number = int(bytes(row["body"]))
        lanes[number % 7].add(row["queue_id"])
        seen[number % 7].append(number)
    assert all(len(queues) == 1 for queues in lanes.values())
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    exact = spark.sql(
        "select 'x' body, 'broker-a' broker, 3 queue_id, 'OWN-ID' unique_id, timestamp'2020-01-01' deliver_at"
    )
    exact.write.format("tandemmq").options(**write).mode("append").save()
    (found,) = topics.read(spark, topic).where("unique_id = 'OWN-ID'").collect()
    assert (found["queue_id"], bytes(found["body"])) == (3, b"x")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 'x' body, 'a b' tags", "row 0 of partition .* cannot be sent: .*tag"),
        ("select cast(null as string) body, 'k7' key", "key 'k7'. cannot be sent: its body is null"),
        ("select 'x' body, 'broker-z' broker, 0 queue_id", "row 0 of partition .*broker-z"),
        ("select 'x' body, 1 colour", "no such column to send: colour"),
    ],
)  # fmt: skip
def test_row_that_cannot_be_sent_is_named_in_the_driver(
    topics: Topics, spark: Any, topic: str, query: str, said: str
) -> None:
    options = {"namesrv": topics.address, "topic": topic, "retryTimeoutMs": "3000"}
    with pytest.raises(Exception, match=f"(?s){said}"):
        spark.sql(query).write.format("tandemmq").options(**options).mode("append").save()


# Bad input


def test_what_cannot_be_read_is_said_in_the_driver(topics: Topics, spark: Any, topic: str) -> None:
    def says(**more: object) -> str:
        return refused(lambda: topics.read(spark, topic, **more))

    assert "there is no topic Nowhere" in says(topics="Nowhere")
    text = says(colour="red")
    assert "no such option: colour" in text and "\n  maxOffsetsPerTrigger: " in text
    everywhere = {f"broker-a:{number}": 0 for number in range(4)}
    beyond = json.dumps({topic: {**everywhere, "broker-a:2": COUNT}})
    assert "of " + topic + "@broker-a:2 lies beyond its end" in says(startingOffsets=beyond)
    away = says(namesrv="127.0.0.1:1", retryTimeoutMs=500)
    assert "no answer within 500 ms" in away
    assert "SQL92 filter" in says(sql92="amount >")
    nowhere = says(via="log", places='{"broker-a": "/nowhere"}')
    assert "/nowhere is not a directory" in nowhere


def test_body_that_is_no_text_is_named_in_the_driver(topics: Topics, spark: Any) -> None:
    topic = topics.topic("Texts", queues=1)
    topics.send([Message(topic, "grün".encode())])
    assert topics.read(spark, topic, bodyType="text").collect()[0]["body"] == "grün"
    topics.send([Message(topic, b"\xff\xfe")])
    text = refused(lambda: topics.read(spark, topic, bodyType="text"))
    assert f"{topic}@broker-a:0 at queue offset 1 is not UTF-8" in text


def test_executor_whose_broker_went_away_fails_in_time(topics: Topics, spark: Any) -> None:
    """The driver has planned; then nobody answers the tasks."""
    topic = topics.topic("Away", queues=1)
    topics.send(orders(topic, 5))
    table = topics.read(spark, topic, retryTimeoutMs=2_000)
    table.rdd.getNumPartitions()  # planned: Spark keeps the partitions of this table
    topics.broker.pause()
    try:
        assert "no answer to a pull of" in refused(lambda: table)
    finally:
        topics.broker.resume()
