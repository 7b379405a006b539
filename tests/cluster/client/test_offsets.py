"""Offset stores: positions only move forward, files survive and can be read by RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.cluster.client.consuming.offsets import FileOffsets, OffsetTable
from tandemmq.cluster.client.errors import OffsetUnknown
from tandemmq.cluster.client.message import MessageQueue

QUEUE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_table_advances_and_ignores_smaller_offsets_but_can_be_set() -> None:
    table = OffsetTable()
    assert table.get(QUEUE) is None
    table.advance(QUEUE, 5)
    table.advance(QUEUE, 3)
    assert table.get(QUEUE) == 5
    table.set(QUEUE, 3)
    assert table.all() == {QUEUE: 3}
    table.forget(QUEUE)
    assert table.all() == {}


async def test_file_keeps_positions_between_runs(tmp_path: Path) -> None:
    path = tmp_path / "client" / "CG" / "offsets.json"
    store = FileOffsets(path)
    assert await store.read(QUEUE) is None
    assert await store.write({QUEUE: 7}, waiting=True) == []
    assert await store.write({OTHER: 9}, waiting=True) == []
    again = FileOffsets(path)
    assert (await again.read(QUEUE), await again.read(OTHER)) == (7, 9)


async def test_writing_before_reading_does_not_wipe_the_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = FileOffsets(path)
    await store.read(QUEUE)
    await store.write({QUEUE: 7}, waiting=True)
    assert await FileOffsets(path).write({}, waiting=True) == []
    assert await FileOffsets(path).read(QUEUE) == 7


async def test_file_of_the_java_client_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:12}}')
    assert await FileOffsets(path).read(QUEUE) == 12


async def test_file_that_cannot_be_read_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"offsetTable":{')
    with pytest.raises(OffsetUnknown, match=r"offsets\.json"):
        await FileOffsets(path).read(QUEUE)


async def test_directory_that_cannot_be_written_fails_the_queues_and_not_the_consumer(
    tmp_path: Path,
) -> None:
    (tmp_path / "CG").write_text("a file where the directory should be")
    store = FileOffsets(tmp_path / "CG" / "offsets.json")
    store._stored = {}
    assert await store.write({QUEUE: 1}, waiting=True) == [QUEUE]
