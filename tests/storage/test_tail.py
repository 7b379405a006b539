"""Where the next byte goes: what is staged, what is committed, and a commit that fails."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.storage.errors import BatchMalformed, FlushFailed, MessageIllegal, PropertiesTooLarge
from tandemmq.storage.record import (
    BatchItem,
    Draft,
    encode_properties,
    join_batch,
    pack_host,
    record_size,
)
from tandemmq.storage.tail import DIRECT_BYTES, STAGING_BYTES

MakeFile = Callable[[int], Any]

BATCH = bytes.fromhex(
    "00000034 00000000 00000000 00000007 00000002 6131"
    "001c 4b455953016b3102 5741495401747275650254414753015461674102"
    "0000002d 00000000 00000000 00000000 00000003 623232"
    "0014 5741495401747275650254414753015461674202"
)
BLANK_MAGIC = bytes.fromhex("cbd43194")


def example_draft(body: bytes = b"Hello") -> Draft:
    return Draft(
        "TopicTest", 0, body,
        encode_properties({"KEYS": "k1", "TAGS": "TagA", "UNIQ_KEY": "0A" + "1".rjust(30, "0")}),
        born_ms=1_700_000_000_000, born_host=pack_host("10.0.0.1", 40000),
        store_host=pack_host("192.168.1.10", 10911),
    )  # fmt: skip


SIZE = record_size(example_draft())


def open_tail(codec: Any, file: Any, segment_start: int = 0, position: int = 0) -> Any:
    tail = codec.LogTail()
    tail.open(file.descriptor, segment_start, position, file.size)
    return tail


# --- what goes where ---


def test_tail_writes_what_encode_says_and_keeps_eight_bytes_free(
    codec: Any, memory_file: MakeFile
) -> None:
    draft = example_draft()
    file = memory_file(2 * SIZE + 7)
    assert codec.LogTail().append(draft, 0, 0) == -1, "closed"
    tail = open_tail(codec, file, 1000)
    assert tail.append(draft, 4, 77) == 1000
    assert tail.end == 1000 + SIZE
    assert tail.append(draft, 5, 77) == -1, "a blank would not fit behind it"
    tail.commit()
    assert file.contents() == codec.encode(draft, 4, 1000, 77) + bytes(SIZE + 7)
    tail.write_blank()
    assert tail.position == tail.committed == tail.limit == file.size
    assert file.contents()[SIZE : SIZE + 8] == (SIZE + 7).to_bytes(4, "big") + BLANK_MAGIC
    tail.close()
    assert tail.end == 1000 + file.size
    assert tail.append_raw(b"x") == -1, "closed"


def test_record_that_leaves_exactly_eight_bytes_fits(codec: Any, memory_file: MakeFile) -> None:
    tail = open_tail(codec, memory_file(SIZE + 8))
    assert tail.append(example_draft(), 0, 0) == 0


def test_store_time_never_goes_back(codec: Any, memory_file: MakeFile) -> None:
    file = memory_file(1024)
    tail = open_tail(codec, file)
    tail.append(example_draft(), 0, 50)
    second = tail.append(example_draft(), 1, 40)
    tail.commit()
    assert codec.decode(file.contents(), second).store_ms == tail.last_store_ms == 50


def test_failed_append_changes_nothing(codec: Any, memory_file: MakeFile) -> None:
    tail = open_tail(codec, memory_file(1024))
    draft = example_draft()
    draft.flag = 1 << 40
    with pytest.raises(MessageIllegal):
        tail.append(draft, 0, 99)
    with pytest.raises(MessageIllegal):
        tail.append_batch(replace(example_draft(BATCH), reconsume_times=1 << 40), 0, 99)
    with pytest.raises(BatchMalformed):
        tail.append_batch(example_draft(BATCH[:-1]), 0, 99)
    assert (tail.position, tail.last_store_ms) == (0, 0)


def test_batch_records_share_the_envelope_and_its_properties(
    codec: Any, memory_file: MakeFile
) -> None:
    file = memory_file(4096)
    tail = open_tail(codec, file, 0, 10)
    envelope = Draft("T", 3, BATCH, b"CLUSTER\x01c\x02", 9, 2, 5, prepared_offset=6)
    offsets = tail.append_batch(envelope, 100, 1234)
    tail.commit()
    records = [codec.decode(file.contents(), offset) for offset in offsets]
    assert offsets == [10, 10 + records[0].size]
    assert [record.flag for record in records] == [7, 0]
    assert [record.body for record in records] == [b"a1", b"b22"]
    assert [record.queue_offset for record in records] == [100, 101]
    assert [record.physical_offset for record in records] == offsets
    for record in records:
        assert (record.queue_id, record.sys_flag, record.born_ms) == (3, 2, 5)
        assert (record.prepared_offset, record.store_ms) == (0, 1234)
        assert record.properties.endswith(b"\x02CLUSTER\x01c\x02")
    assert tail.position == 10 + sum(record.size for record in records)


def test_batch_goes_in_whole_or_not_at_all(codec: Any, memory_file: MakeFile) -> None:
    items = codec.split_batch(BATCH)
    envelope = Draft("T", 0, BATCH, b"")
    size = sum(record_size(Draft("T", 0, bytes(item.body), item.properties)) for item in items)
    tail = open_tail(codec, memory_file(size + 7))
    assert tail.append_batch(envelope, 0, 0) is None
    assert tail.position == 0
    tail = open_tail(codec, memory_file(size + 8))
    assert len(tail.append_batch(envelope, 0, 0) or []) == 2


def test_batch_properties_count_together_against_the_limit(
    codec: Any, memory_file: MakeFile
) -> None:
    tail = open_tail(codec, memory_file(200_000))
    body = join_batch([BatchItem(0, memoryview(b"b"), b"p" * 20_000)])
    assert tail.append_batch(Draft("T", 0, body, b"q" * 12_766), 0, 0) is not None
    with pytest.raises(PropertiesTooLarge, match="32768"):
        tail.append_batch(Draft("T", 0, body, b"q" * 12_767), 0, 0)


def test_raw_bytes_may_fill_a_segment_to_its_end(codec: Any, memory_file: MakeFile) -> None:
    file = memory_file(16)
    tail = open_tail(codec, file, 32, 4)
    assert tail.append_raw(b"x" * 13) == -1
    assert tail.append_raw(memoryview(b"x" * 12)) == 36
    assert tail.append_raw(b"") == 48
    tail.commit()
    assert file.contents() == bytes(4) + b"x" * 12


def test_tail_opens_only_descriptors_and_positions_inside(
    codec: Any, memory_file: MakeFile
) -> None:
    tail = codec.LogTail()
    with pytest.raises(ValueError, match="descriptor -1"):
        tail.open(-1, 0, 0, 8)
    with pytest.raises(ValueError, match="position 9"):
        tail.open(memory_file(8).descriptor, 0, 9, 8)


def test_queue_tail_counts(codec: Any) -> None:
    tail = codec.QueueTail(b"T", 3)
    tail.next_offset += 1
    assert (tail.topic, tail.queue_id, tail.next_offset) == (b"T", 3, 1)
    assert codec.QueueTail(b"T", 3, 1 << 40).next_offset == 1 << 40


# --- staged and committed ---


def test_file_changes_only_at_a_commit(codec: Any, memory_file: MakeFile) -> None:
    file = memory_file(1024)
    tail = open_tail(codec, file, 5000)
    tail.append(example_draft(), 0, 77)
    tail.append_raw(b"raw")
    assert not any(file.contents())
    assert (tail.position, tail.committed, tail.end) == (SIZE + 3, 0, 5000 + SIZE + 3)
    assert (tail.last_store_ms, tail.committed_ms) == (77, 0)
    tail.commit()
    assert file.contents()[: SIZE + 3] == codec.encode(example_draft(), 0, 5000, 77) + b"raw"
    assert (tail.committed, tail.committed_ms) == (SIZE + 3, 77)
    tail.commit()
    assert tail.committed == SIZE + 3, "nothing staged, nothing done"


def test_closing_and_opening_again_commit(codec: Any, memory_file: MakeFile) -> None:
    first, second = memory_file(100), memory_file(100)
    tail = open_tail(codec, first)
    tail.append_raw(b"one")
    tail.open(second.descriptor, 100, 5, 100)
    tail.append_raw(b"two")
    tail.close()
    assert first.contents()[:4] == b"one\0"
    assert second.contents()[:9] == b"\0\0\0\0\0two\0"


def test_full_buffer_is_committed_by_itself(codec: Any, memory_file: MakeFile) -> None:
    file = memory_file(4 * STAGING_BYTES)
    tail = open_tail(codec, file)
    body = bytes(STAGING_BYTES // 2)
    first = record_size(example_draft(body))
    tail.append(example_draft(body), 0, 1)
    assert tail.committed == 0
    tail.append(example_draft(body), 1, 1)
    assert (tail.position, tail.committed) == (2 * first, first)
    tail.commit()
    assert codec.decode(file.contents(), first).queue_offset == 1


def test_record_and_batch_larger_than_the_buffer_go_through(
    codec: Any, memory_file: MakeFile
) -> None:
    file = memory_file(20 * STAGING_BYTES)
    tail = open_tail(codec, file)
    body = os.urandom(STAGING_BYTES + 1)
    tail.append(example_draft(), 0, 1)
    at = tail.append(example_draft(body), 1, 1)
    items = [BatchItem(7, memoryview(body), b"p\x011"), BatchItem(8, memoryview(body), b"p\x012")]
    offsets = tail.append_batch(example_draft(join_batch(items)), 2, 1)
    assert tail.committed == at + record_size(example_draft(body))
    tail.append(example_draft(), 4, 1)
    tail.commit()
    written = file.contents()
    assert codec.decode(written, at).body == body
    assert [codec.decode(written, offset).flag for offset in offsets] == [7, 8]
    end = offsets[1] + codec.decode(written, offsets[1]).size
    assert codec.decode(written, end).queue_offset == 4
    assert [head.position for head in codec.scan(written, 0, end + SIZE)] == [
        0, at, *offsets, end,
    ]  # fmt: skip


def test_raw_bytes_beyond_the_buffer_follow_what_was_staged(
    codec: Any, memory_file: MakeFile
) -> None:
    file = memory_file(4 * STAGING_BYTES)
    tail = open_tail(codec, file)
    data = os.urandom(STAGING_BYTES + 1)
    tail.append_raw(b"staged")
    assert tail.append_raw(memoryview(data)) == 6
    assert tail.committed == tail.position == 6 + len(data)
    tail.append_raw(data[:10])
    tail.append_raw(data[10 : STAGING_BYTES - 10])
    assert tail.committed == 6 + len(data), "this much fits"
    tail.commit()
    assert file.contents()[: tail.position] == b"staged" + data + data[: STAGING_BYTES - 10]


def test_many_raw_bytes_with_nothing_before_them_are_written_without_a_copy(
    codec: Any, memory_file: MakeFile
) -> None:
    file = memory_file(4 * STAGING_BYTES)
    tail = open_tail(codec, file)
    data = os.urandom(DIRECT_BYTES)
    tail.append_raw(data[1:])
    assert tail.committed == 0
    tail.append_raw(data)
    assert tail.committed == 0, "it follows what is staged"
    tail.commit()
    tail.append_raw(data)
    assert tail.committed == tail.position == 3 * DIRECT_BYTES - 1
    assert file.contents()[: tail.position] == data[1:] + data + data


# --- a commit that fails ---


def assert_final(tail: Any, committed: int, code: int) -> None:
    assert os.strerror(code) in tail.failure
    assert tail.committed == committed
    for _ in range(2):
        with pytest.raises(FlushFailed, match=os.strerror(code)):
            tail.commit()
    tail.close()
    assert tail.position == tail.committed == committed


def test_full_disk_at_a_commit_is_final(codec: Any) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    tail = codec.LogTail()
    tail.open(descriptor, 3000, 10, 1000)
    tail.append_raw(b"abc")
    with pytest.raises(FlushFailed, match="cannot write the log at 3010: No space left") as raised:
        tail.commit()
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert_final(tail, 10, errno.ENOSPC)
    os.close(descriptor)


def test_closed_descriptor_at_a_commit_is_final(codec: Any, memory_file: MakeFile) -> None:
    tail = codec.LogTail()
    descriptor = os.dup(memory_file(100).descriptor)
    tail.open(descriptor, 0, 0, 100)
    tail.append_raw(b"abc")
    os.close(descriptor)
    with pytest.raises(FlushFailed):
        tail.close()
    assert_final(tail, 0, errno.EBADF)


@pytest.mark.parametrize("size", [STAGING_BYTES, 2 * STAGING_BYTES], ids=["staged", "straight"])
def test_short_write_is_gone_on_with_until_it_fails(
    codec: Any, memory_file: MakeFile, size: int
) -> None:
    file = memory_file(4 * STAGING_BYTES)
    tail = open_tail(codec, file)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # writes up to there, then EFBIG
    try:
        with pytest.raises(FlushFailed):
            tail.append_raw(b"x" * size)
            tail.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.contents().rstrip(b"\0") == b"x" * 10_000
    assert_final(tail, 0, errno.EFBIG)


def test_full_buffer_that_cannot_be_written_stops_the_append(codec: Any) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    tail = codec.LogTail()
    tail.open(descriptor, 0, 0, 4 * STAGING_BYTES)
    body = bytes(STAGING_BYTES // 2)
    tail.append(example_draft(body), 0, 1)
    with pytest.raises(FlushFailed):
        tail.append(example_draft(body), 1, 1)
    assert_final(tail, 0, errno.ENOSPC)
    os.close(descriptor)
