"""Rows as messages and messages as rows. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tandemmq import Message, MessageQueue, ReceivedMessage
from tandemmq.spark.errors import BodyNotText, RowRefused
from tandemmq.spark.outgoing import RowIds, RowReader

pytest.importorskip("pyarrow", reason="needs the spark extra")

from tandemmq.spark.batches import BATCH_ROWS, Batches
from tandemmq.spark.shapes import COLUMNS

ROWS = RowReader("Orders", False, RowIds("job", 3), 3)


def received(number: int, body: bytes = b"x", **properties: str) -> ReceivedMessage:
    queue = MessageQueue("Orders", "broker-a", 2)
    return ReceivedMessage(
        "Orders", body, queue, number, f"ID{number}", "", properties, 0, 1_000 + number, 2_000, "", "", 100 * number,
        0, 0,
    )  # fmt: skip


def test_ids_are_those_of_every_attempt_and_of_no_other_task() -> None:
    assert RowIds("job", 3)[17] == RowIds("job", 3)[17]
    tasks = [RowIds("job", 3), RowIds("job", 4), RowIds("another", 3)]
    rows = [0, 1, 65_535, 65_536, 1 << 40]
    ids = [task[row] for task in tasks for row in rows]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 32 and each == each.upper() for each in ids)


def test_row_is_the_message_that_it_says() -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    row = {
        "body": "grün",
        "key": "k1 k2",
        "tags": "paid",
        "properties": [("n", "1")],
        "deliver_at": at,
    }
    message, queue, hash_key = ROWS.read(row, 5)
    assert message == Message(
        "Orders", "grün".encode(), tags="paid", keys=["k1", "k2"], properties={"n": "1"}, deliver_at=at,
        unique_id=RowIds("job", 3)[5],
    )  # fmt: skip
    assert (queue, hash_key) == (None, None)


def test_row_may_name_topic_queue_key_delay_and_id() -> None:
    found = ROWS.read(
        {"body": b"x", "topic": "Other", "broker": "b", "queue_id": 3, "unique_id": "OWN"}, 0
    )
    assert found.queue == MessageQueue("Other", "b", 3) == found.lane
    assert found.message.unique_id == "OWN"
    assert ROWS.read({"body": b"x", "hash_key": "h"}, 0).lane == "h"
    assert ROWS.read({"body": b"x", "delay_ms": 1_500}, 0).message.properties == {
        "TIMER_DELAY_MS": "1500"
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None}, "its body is null"),
        ({"body": b""}, "body"),
        ({"body": b"x", "topic": "a.b"}, "illegal characters"),
        ({"body": b"x", "properties": {"TAGS": "t"}}, "TAGS"),
        ({"body": b"x", "broker": "b", "queue_id": None}, "no queue_id"),
        ({"body": b"x", "broker": "b", "queue_id": 1, "hash_key": "h"}, "both hash_key and a queue"),
        ({"body": b"x", "tags": "a||b"}, "tag"),
    ],
)  # fmt: skip
def test_row_that_cannot_be_sent_is_named_with_the_reason(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RowRefused, match=rf"(?s)row 9 of partition 3 .*key 'k9'.*{said}"):
        ROWS.read({"key": "k9", **row}, 9)


def test_reserved_properties_are_dropped_where_that_is_asked_for() -> None:
    reader = RowReader("Orders", True, RowIds("job", 0), 0)
    row = {"body": b"x", "properties": {"UNIQ_KEY": "1", "own": "2"}}
    assert reader.read(row, 0).message.properties == {"own": "2"}


def test_batch_has_every_column_of_every_message() -> None:
    messages = [received(1, KEYS="a b", TAGS="t", n="1"), received(2)]
    batch = Batches(tuple(COLUMNS), text=False).make(messages, [(0, 7), (150, 8)])
    assert batch.schema.names == list(COLUMNS)
    first, second = batch.to_pylist()
    assert first == {
        "topic": "Orders", "broker": "broker-a", "queue_id": 2, "queue_offset": 1, "key": "a b", "tags": "t",
        "properties": [("KEYS", "a b"), ("TAGS", "t"), ("n", "1")], "body": b"x",
        "born_time": datetime.fromtimestamp(1.001, UTC), "store_time": datetime.fromtimestamp(2, UTC),
        "unique_id": "ID1", "epoch": 7,
    }  # fmt: skip
    assert (second["key"], second["tags"], second["properties"], second["epoch"]) == (
        None,
        None,
        [],
        8,
    )


def test_epoch_is_null_where_nobody_counts_them() -> None:
    batches = Batches(("epoch",), text=False)
    assert batches.make([received(1)]).to_pylist() == [{"epoch": None}]
    assert batches.make([received(1)], [(500, 3)]).to_pylist() == [{"epoch": None}]


def test_body_that_is_no_text_is_named() -> None:
    batches = Batches(("body",), text=True)
    assert batches.make([received(1, "ü".encode())]).to_pylist() == [{"body": "ü"}]
    with pytest.raises(BodyNotText, match=r"Orders@broker-a:2 at queue offset 8 is not UTF-8"):
        batches.make([received(7), received(8, b"\xff")])


def test_messages_are_gathered_into_batches() -> None:
    few = [[received(number)] for number in range(BATCH_ROWS + 3)]
    sizes = [batch.num_rows for batch in Batches(("topic",), text=False).of(iter(few))]
    assert sizes == [BATCH_ROWS, 3]
    large = [[received(number, bytes(5 << 20))] for number in range(3)]
    assert [batch.num_rows for batch in Batches(("topic",), text=False).of(iter(large))] == [2, 1]
