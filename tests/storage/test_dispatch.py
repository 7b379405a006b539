"""Dispatch on a slave: its log grows by bytes of a stream, which end wherever a frame ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import Draft, MessageStore, StorageConfig, encode_properties, open_store

SEGMENT_BYTES = 4096
IN_FIRST_FILE = 15  # more than the index takes in one file


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return 1_000


OpenStore = Callable[[str], MessageStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenStore]:
    with ExitStack() as stack:

        def make(name: str) -> MessageStore:
            config = StorageConfig(
                root=str(tmp_path / name), segment_bytes=SEGMENT_BYTES, index_slots=50,
                index_entries=10,
            )  # fmt: skip
            return stack.enter_context(open_store(config, Clock()))

        yield make


def written_by_a_master(store: MessageStore) -> tuple[bytes, int]:
    """A log that goes on in a second file, and where the blank begins that fills its first."""
    blank_start = count = 0
    while store.end < SEGMENT_BYTES:
        blank_start = store.end
        properties = encode_properties({"KEYS": f"k{count}"})
        store.put(Draft("T", 0, b"x" * 80, properties))
        count += 1
    assert count > IN_FIRST_FILE
    data = bytearray()
    for segment in store.log.run.segments:
        data += segment.view[: segment.wrote]
    return bytes(data), blank_start


def dispatched(store: MessageStore) -> None:
    while store.dispatch():
        pass


def fail_for_lack_of_space(*arguments: Any, **keywords: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("blank_bytes", [8, 9, 30])
def test_index_that_lags_catches_up_although_the_blank_of_a_file_came_in_part(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch, blank_bytes: int
) -> None:
    data, blank_start = written_by_a_master(opened("master"))
    arrived = blank_start + blank_bytes
    assert arrived < SEGMENT_BYTES
    slave = opened("slave")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(
            "tandemmq.storage.keyindex.IndexFile.create", staticmethod(fail_for_lack_of_space)
        )
        slave.append_raw(data[:arrived], 0)
        dispatched(slave)
    queued = slave.max_offset("T", 0)
    assert queued > IN_FIRST_FILE
    assert slave.dispatcher.index_position < blank_start
    assert slave.dispatcher.position > slave.end, "the rest of the file is known to be blank"

    dispatched(slave)
    assert slave.dispatcher.index_position == slave.dispatcher.position
    assert slave.flags.writable
    slave.append_raw(data[arrived:], arrived)
    dispatched(slave)
    assert slave.max_offset("T", 0) == queued + 1
    for number in range(queued + 1):
        assert len(slave.query("T", f"k{number}", 10, 0, 1 << 62).records) == 1, number
