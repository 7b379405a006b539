"""Topics as streams: the same micro-batch is the same rows, limits hold, gaps are told, progress can be seen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from topickit import Topics, orders, plain

from tandemmq import Admin

pytestmark = pytest.mark.filterwarnings("ignore")


class CrashedOnPurpose(Exception):
    """What the driver's function raises."""


def micro_batches(
    table: Any, checkpoint: Path, *, crash_at: int = -1
) -> dict[int, list[tuple[Any, ...]]]:
    """Run a stream with Trigger.AvailableNow; the rows of each micro-batch, one that crashed included."""
    found: dict[int, list[tuple[Any, ...]]] = {}

    def keep(rows: Any, number: int) -> None:
        found[number] = plain(rows.collect())
        if number == crash_at:
            raise CrashedOnPurpose

    try:
        through(table.writeStream.foreachBatch(keep), checkpoint)
    except Exception as problem:
        if crash_at < 0 or "CrashedOnPurpose" not in str(problem):
            raise
    return found


def through(writing: Any, checkpoint: Path) -> None:
    """Run a stream until it has read what there is.

    Spark gives a stream's Python 10 s to start, whatever its settings: a busy machine gets more than one chance.
    """
    writing = writing.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    for chance in range(9):
        try:
            writing.start().awaitTermination()
            return
        except Exception as problem:
            if chance == 8 or "failed to connect back" not in str(problem):
                raise


def test_micro_batch_that_is_run_again_has_the_same_rows_and_all_together_every_message_once(
    topics: Topics, spark: Any, tmp_path: Path
) -> None:
    topic = topics.topic("Stream", queues=2)
    topics.send(orders(topic, 100))
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 30, "minPartitions": 3}
    table = topics.stream(spark, topic, **more)
    before = micro_batches(table, tmp_path, crash_at=1)
    assert [len(rows) for rows in before.values()] == [30, 30]

    async def grow() -> None:
        async with Admin(topics.address) as admin:
            await admin.create_topic(topic, 4)

    asyncio.run(grow())
    topics.send(orders(topic, 60, start=100))
    after = micro_batches(topics.stream(spark, topic, **more), tmp_path)
    assert after[1] == before[1]
    assert max(len(rows) for rows in after.values()) <= 30
    rows = [row for found in ({0: before[0]}, after) for each in found.values() for row in each]
    assert Counter(json.loads(row[7])["id"] for row in rows) == Counter(range(160))
    assert plain(rows) == plain(topics.read(spark, topic).collect())
    assert {row[2] for row in rows} == {0, 1, 2, 3}  # the new queues, from their first message


def test_progress_is_committed_to_a_group_that_tools_see(
    topics: Topics, spark: Any, tmp_path: Path
) -> None:
    topic = topics.topic("Seen", queues=2)
    topics.send(orders(topic, 20))
    group = f"spark-{topic}"
    table = topics.stream(
        spark, topic, startingOffsets="earliest", group=group, commitOffsets="true"
    )
    assert sum(len(rows) for rows in micro_batches(table, tmp_path).values()) == 20
    topics.send(orders(topic, 5, start=20))
    shown = run("admin", "consumerProgress", "-g", group, "-n", topics.address)
    assert shown.code == 0, shown.err
    assert topic in shown.out

    async def behind() -> int:
        async with Admin(topics.address) as admin:
            return (await admin.progress(group)).behind

    assert asyncio.run(behind()) == 5


def test_stream_writes_a_topic_and_a_micro_batch_that_is_sent_again_bears_the_same_ids(
    topics: Topics, spark: Any, tmp_path: Path
) -> None:
    source, sink = topics.topic("From", queues=2), topics.topic("Into", queues=2)
    topics.send(orders(source, 40))

    def flow() -> None:
        table = topics.stream(
            spark, source, startingOffsets="earliest", maxOffsetsPerTrigger=20
        ).select("body", "key", "tags")
        options = {"namesrv": topics.address, "topic": sink}
        through(table.writeStream.format("tandemmq").options(**options), tmp_path)

    flow()
    first = topics.read(spark, sink).collect()
    assert Counter(json.loads(bytes(row["body"]))["id"] for row in first) == Counter(range(40))
    (
        tmp_path / "commits" / "1"
    ).unlink()  # as if the driver died before it could say that it is done
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    flow()
    rows = topics.read(spark, sink).collect()
    assert len(rows) == 60
    assert {row["unique_id"] for row in rows} == {row["unique_id"] for row in first}
    bodies: dict[str, set[bytes]] = {}
    for row in rows:
        bodies.setdefault(row["unique_id"], set()).add(bytes(row["body"]))
    assert all(len(each) == 1 for each in bodies.values())


def test_stream_that_cannot_go_on_fails_with_the_reason(
    topics: Topics, spark: Any, tmp_path: Path
) -> None:
    for number, (more, said) in enumerate(
        [
            ({"topics": "Nowhere"}, "there is no topic Nowhere"),
            ({"endingOffsets": "latest"}, "a stream has no end"),
            ({"namesrv": "127.0.0.1:1", "retryTimeoutMs": 500}, "no answer within 500 ms"),
        ]
    ):
        topic = str(more.get("topics", "Orders"))
        options = {**topics.options(topic), **{name: str(v) for name, v in more.items()}}
        with pytest.raises(Exception, match=said):
            micro_batches(
                spark.readStream.format("tandemmq").options(**options).load(),
                tmp_path / str(number),
            )


def test_gap_by_retention_fails_a_stream_or_is_told(
    topics: Topics, spark: Any, tmp_path: Path
) -> None:
    """The last test here: it takes the old messages of every topic of the broker."""
    topic = topics.topic("Gap", queues=1)
    topics.send(orders(topic, 10))
    micro_batches(topics.stream(spark, topic, startingOffsets="earliest"), tmp_path)
    big = [each for each in orders(topic, 600, start=10) if len(each.body) < 100]
    filler = topics.topic("Filler", queues=1)
    topics.send(big[:50])
    topics.send(each.with_properties({"filler": "x" * 2_000}) for each in orders(filler, 600))
    topics.send(big[50:60])
    topics.expire()
    held = topics.read(spark, topic).count()
    assert 10 <= held < 60
    with pytest.raises(
        Exception, match=rf"(?s)messages of {topic}@broker-a:0 are gone.*failOnDataLoss"
    ):
        micro_batches(topics.stream(spark, topic), tmp_path)
    going_on = micro_batches(topics.stream(spark, topic, failOnDataLoss="false"), tmp_path)
    assert sum(len(rows) for rows in going_on.values()) == held
    with pytest.raises(Exception, match="are gone"):
        start = json.dumps({topic: {"broker-a:0": 0}})
        topics.read(spark, topic, startingOffsets=start).collect()
