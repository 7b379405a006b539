"""Where the next byte of the log goes: staged in memory, committed to the segment's file in one
write. The readable form; _record.pyx is the same, compiled.

Written through the file and not through its mapping, because a store to a mapped page that is new
costs a page fault, a zeroed page and a look at the file system's map: most of what a broker under
load did (docs/decisions/0005-staged-pwrite.md).
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from tandemmq.storage.errors import FlushFailed
from tandemmq.storage.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    Bytes,
    Draft,
    checked_size,
    join_properties,
    split_batch,
    topic_bytes,
    write_record,
)

STAGING_BYTES: Final = 512 << 10  # what one received chunk becomes, and still in the L2 cache
DIRECT_BYTES: Final = 32 << 10  # a write of so many costs more than the call
_BLANK: Final = struct.Struct(">ii")  # size, magic


class LogTail:
    """Where the next byte of the log goes. Closed: no room at all.

    What is appended is staged in memory; commit() writes it to the segment's file in one go, and
    only what is committed is part of the log: SegmentRun.end, readers, dispatch and flush go by
    `committed`, nobody but who appends sees the rest.

    segment_start  log offset of the segment; position, committed and limit are relative to it
    position       where the next byte goes; [committed, position) is staged
    last_store_ms  the newest store time given; store times never go back, whatever the clock does
    committed_ms   the same of what is committed
    records        appended one by one or in batches since the start, and record_bytes: their size
    failure        why a commit failed, or "". That is final (INV-8): what reached the file is not known
    """

    __slots__ = (
        "_descriptor",
        "_room",
        "_staging",
        "committed",
        "committed_ms",
        "failure",
        "last_store_ms",
        "limit",
        "position",
        "record_bytes",
        "records",
        "segment_start",
    )

    def __init__(self) -> None:
        self._descriptor = -1
        self._room = STAGING_BYTES
        self._staging = memoryview(b"")  # its start is the byte at `committed`
        self.segment_start = 0
        self.position = 0
        self.committed = 0
        self.limit = 0
        self.last_store_ms = 0
        self.committed_ms = 0
        self.records = self.record_bytes = 0
        self.failure = ""

    @property
    def end(self) -> int:
        """Log offset of the next byte, behind what is staged."""
        return self.segment_start + self.position

    def open(self, descriptor: int, segment_start: int, position: int, limit: int) -> None:
        """Continue at `position` of a file of `limit` bytes. The descriptor, open for writing,
        stays the caller's to close, after close()."""
        if descriptor < 0:
            raise ValueError(f"descriptor {descriptor}")
        if not 0 <= position <= limit:
            raise ValueError(f"position {position} in a segment of {limit} bytes")
        self.close()
        if not self._staging:
            self._staging = memoryview(bytearray(self._room))
        # In this order: a flush on another thread reads `committed` before `segment_start`.
        self.segment_start = segment_start
        self.committed = self.position = position
        self.limit = limit
        self._descriptor = descriptor

    def close(self) -> None:
        """Commit and let go of the descriptor. Until the next open() there is no room; end stays
        what it was. Raises FlushFailed, once; it is closed all the same."""
        try:
            if not self.failure:
                self.commit()
        finally:
            self._descriptor = -1
            self.position = self.limit = self.committed

    def commit(self) -> None:
        """Write what is staged. Raises FlushFailed, from then on always."""
        if self.failure:
            raise FlushFailed(self.failure)
        if self.committed < self.position:
            self._write_out(self._staging[: self.position - self.committed])

    def _write_out(self, staged: memoryview) -> None:
        """Write bytes at `committed`, all of them, and move it."""
        at, done = self.committed, 0
        try:
            while done < len(staged):
                count = os.pwrite(self._descriptor, staged[done:], at + done)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written")
                done += count
        except OSError as error:
            where = self.segment_start + at
            self.failure = f"cannot write the log at {where}: {os.strerror(error.errno or 0)}"
            raise FlushFailed(self.failure) from error
        self.committed = at + done
        self.committed_ms = self.last_store_ms

    def _stage(self, size: int) -> int:
        """Where in the staging buffer the next `size` bytes go; makes room for them."""
        at = self.position - self.committed
        if at + size <= self._room:
            return at
        self.commit()
        if size > self._room:
            self._room = size  # one record or batch larger than the buffer: it stays that large
            self._staging = memoryview(bytearray(size))
        return 0

    def _stamp(self, store_ms: int) -> int:
        return max(store_ms, self.last_store_ms)

    def append(self, draft: Draft, queue_offset: int, store_ms: int) -> int:
        """Stage one record; its log offset, or -1 when record and blank do not fit (nothing
        staged).

        The stored time is max(store_ms, last_store_ms). Raises what encode() raises; then nothing
        is staged either. Raises FlushFailed.
        """
        topic = topic_bytes(draft)
        size = checked_size(draft, len(topic), len(draft.body), len(draft.properties))
        position = self.position
        if self._descriptor < 0 or size + BLANK_BYTES > self.limit - position:
            return -1
        at = position - self.committed
        if at + size > self._room:
            at = self._stage(size)
        offset = self.segment_start + position
        store_ms = max(store_ms, self.last_store_ms)
        write_record(
            self._staging, at, size, topic, draft, draft.flag, draft.body, draft.properties,
            draft.prepared_offset, queue_offset, offset, store_ms,
        )  # fmt: skip
        self.last_store_ms = store_ms
        self.position = position + size
        self.records += 1
        self.record_bytes += size
        return offset

    def append_batch(
        self, envelope: Draft, first_queue_offset: int, store_ms: int
    ) -> list[int] | None:
        """Stage one record per message of the envelope's body, consecutively: their log offsets, or None when the
        whole does not fit.

        A message brings flag, body and properties; everything else, and further properties, come from the envelope.
        Raises what split_batch() raises, then what encode() raises; then nothing counts as staged. Raises FlushFailed.
        """
        items = split_batch(envelope.body)
        topic = topic_bytes(envelope)
        joined = [join_properties(item.properties, envelope.properties) for item in items]
        sizes = [
            checked_size(envelope, len(topic), len(item.body), len(properties))
            for item, properties in zip(items, joined, strict=True)
        ]
        total = sum(sizes)
        if self._descriptor < 0 or total + BLANK_BYTES > self.limit - self.position:
            return None
        at = self._stage(total)
        store_ms = self._stamp(store_ms)
        position = self.position
        offsets = []
        for index, (item, properties, size) in enumerate(zip(items, joined, sizes, strict=True)):
            offset = self.segment_start + position
            write_record(
                self._staging, at, size, topic, envelope, item.flag, item.body, properties,
                0, first_queue_offset + index, offset, store_ms,
            )  # fmt: skip
            offsets.append(offset)
            position += size
            at += size
        self.last_store_ms = store_ms
        self.position = position  # only now: a failure above leaves no half batch behind
        self.records += len(offsets)
        self.record_bytes += total
        return offsets

    def append_raw(self, data: Bytes) -> int:
        """Stage bytes as they are (replicated records, blanks); their log offset, or -1 when they
        do not fit. Many, with nothing staged before them, are committed at once, without a copy;
        so are more than the buffer takes. Raises FlushFailed."""
        position = self.position
        size = len(data)
        if self._descriptor < 0 or size > self.limit - position:
            return -1
        alone = size >= DIRECT_BYTES and self.committed == position
        if size > self._room or alone:
            self.commit()
            with memoryview(data) as whole:
                self._write_out(whole)
            self.position = self.committed
        else:
            at = self._stage(size)
            self._staging[at : at + size] = data
            self.position = position + size
        return self.segment_start + position

    def write_blank(self) -> None:
        """Mark the rest of the segment as unused, and commit; position becomes limit. Raises
        FlushFailed."""
        room = self.limit - self.position
        if self._descriptor >= 0:
            if room >= BLANK_BYTES:
                at = self._stage(BLANK_BYTES)
                _BLANK.pack_into(self._staging, at, room, MAGIC_BLANK)
                self.position += BLANK_BYTES
            self.commit()
        self.committed = self.position = self.limit


class QueueTail:
    """The next queue offset of one (topic, queue)."""

    __slots__ = ("next_offset", "queue_id", "topic")

    def __init__(self, topic: bytes, queue_id: int, next_offset: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
