"""Every message in arrival order: the source of truth."""

from __future__ import annotations

import logging
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple

from tandemmq.storage.codec import BLANK_BYTES, LogTail, QueueTail, SysFlag, record_size
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.errors import FlushFailed, MessageTooLarge, SegmentUnavailable
from tandemmq.storage.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Bytes,
    Draft,
    batch_bytes,
    takes_queue_offset,
)
from tandemmq.storage.segment import Segment
from tandemmq.storage.segments import SegmentRun

log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(">ii28xi")  # size, magic, sys flag
_LONG: Final = struct.Struct(">q")


class Placed(NamedTuple):
    """Where one record went."""

    offset: int
    size: int
    queue_offset: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class BatchPlaced(NamedTuple):
    """Where a batch went: its records lie next to each other, their queue offsets count up."""

    offsets: list[int]
    first_queue_offset: int
    end: int


class CommitLog:
    """The log of one store. Everything runs on one thread except what says [thread].

    load() maps the files; truncate(end), by recovery, says where the log ends and opens it for
    appends.
    tail         where the next byte goes; the send path stages through it directly, and then calls
                 commit(). Every other method commits what it appends, and what was staged before
    queue_tails  next queue offset by topic and queue id. Recovery and truncation fill them in from
                 the queues, in place: others keep references to a QueueTail.
    INV-2: a record never spans two files; behind the last record of a file there is a blank, or
    nothing yet.
    """

    def __init__(self, config: StorageConfig, *, read_only: bool = False) -> None:
        self.run = SegmentRun(config.commitlog_path, config.segment_bytes, read_only=read_only)
        self.tail = LogTail()
        self.queue_tails: dict[bytes, dict[int, QueueTail]] = {}
        self._next: Segment | None = None  # made in advance, not yet in the run
        # Held while the next segment is made, so that a full segment never races the thread that
        # makes its successor. Taken by nobody who holds another lock.
        self._making = threading.Lock()

    def load(self) -> None:
        """Map the files. Until truncate() all of them count as written. Raises NotAStore,
        OSError."""
        self.run.load()

    def queue_tail(self, topic: bytes, queue_id: int) -> QueueTail:
        """The one tail of a queue; a new one starts at 0."""
        queues = self.queue_tails.get(topic)
        if queues is None:
            queues = self.queue_tails[topic] = {}
        tail = queues.get(queue_id)
        if tail is None:
            tail = queues[queue_id] = QueueTail(topic, queue_id)
        return tail

    # --- where things are ---

    @property
    def start(self) -> int:
        """Smallest offset; 0 when the log has no file."""
        segments = self.run.segments
        return segments[0].start if segments else 0

    @property
    def end(self) -> int:
        """Where the log ends: the offset behind the last committed byte. Staged bytes do not count,
        so nobody who goes by it can read, dispatch, flush or acknowledge them."""
        segments = self.run.segments  # as run.end, which is a call more, many times per batch
        if not segments:
            return 0
        last = segments[-1]  # once: threads ask too, while the log rolls
        return last.start + last.wrote

    @property
    def staged(self) -> bool:
        """Whether bytes wait for a commit that can come: after one that failed there is none."""
        tail = self.tail
        return tail.committed < tail.position and not tail.failure

    @property
    def failure(self) -> str:
        """Why a commit failed, or "". From then on nothing may be acknowledged."""
        return self.tail.failure

    @property
    def flushed(self) -> int:
        """Everything below this offset is on the disk."""
        return min(self.run.flushed, self.end)

    def read(self, offset: int, size: int) -> memoryview | None:
        """A view of [offset, offset + size); None unless all of it is written and in one file."""
        segment = self.run.find(offset)
        if segment is None or size < 0:
            return None
        position = offset - segment.start
        if position + size > segment.wrote:
            return None
        return segment.view[position : position + size]

    def file_at(self, offset: int) -> tuple[Path, int] | None:
        """The file that covers an offset, and the offset it starts with; None without one."""
        segment = self.run.find(offset)
        return None if segment is None else (segment.path, segment.start)

    def record_at(self, offset: int) -> memoryview | None:
        """A view of the record at an offset; None when there is none: only size and magic are
        checked."""
        segment = self.run.find(offset)
        if segment is None:
            return None
        position = offset - segment.start
        room = segment.wrote - position
        if room < RECORD_BYTES_MIN:
            return None
        size, magic, _ = _HEAD.unpack_from(segment.view, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= room:
            return None
        return segment.view[position : position + size]

    def store_ms_at(self, offset: int) -> int | None:
        """The store time of the record at an offset; None when there is no record."""
        record = self.record_at(offset)
        if record is None:
            return None
        with record:
            _, _, sys_flag = _HEAD.unpack_from(record, 0)
            at = 68 if sys_flag & SysFlag.BORN_V6 else 56
            store_ms: int = _LONG.unpack_from(record, at)[0]
            return store_ms

    # --- appending ---

    def append(self, draft: Draft, queue: QueueTail, store_ms: int) -> Placed:
        """Write one record and advance its queue; prepared and rolled back halves take no queue
        offset.

        The stored time never goes back. Raises MessageIllegal (also too large), StoreIsFull,
        SegmentUnavailable; then neither log nor queue changed. FlushFailed is final.
        """
        counts = takes_queue_offset(draft.sys_flag)
        queue_offset = queue.next_offset if counts else 0
        offset = self.tail.append(draft, queue_offset, store_ms)
        if offset < 0:
            self._roll_for(record_size(draft))
            offset = self.tail.append(draft, queue_offset, store_ms)
            assert offset >= 0, "an empty segment has room"
        if counts:
            queue.next_offset = queue_offset + 1  # INV-5
        self.tail.commit()
        return Placed(offset, self.tail.end - offset, queue_offset)

    def append_batch(self, envelope: Draft, queue: QueueTail, store_ms: int) -> BatchPlaced:
        """Write one record per message of the envelope's body, all in one file, and advance the queue. Raises what
        LogTail.append_batch() and append() raise."""
        first = queue.next_offset
        offsets = self.tail.append_batch(envelope, first, store_ms)
        if offsets is None:
            self._roll_for(batch_bytes(envelope))
            offsets = self.tail.append_batch(envelope, first, store_ms)
            assert offsets is not None, "an empty segment has room"
        queue.next_offset = first + len(offsets)  # INV-5
        self.tail.commit()
        return BatchPlaced(offsets, first, self.tail.end)

    def append_raw(self, data: Bytes, offset: int) -> int:
        """Write replicated bytes, which must continue the log, and return its new end.

        An empty log starts with the file that covers `offset`; one that has its first file, without a byte in it,
        after a power cut or because all was cut off, is no less empty. Bytes beyond a file's end go to the
        next one; blanks arrive as part of the data. Raises ValueError when offset is not the end,
        StoreIsFull, SegmentUnavailable; FlushFailed, which is final.
        """
        if offset and not self.end and self.run.segments:
            with self._making:
                self._discard_next()
                self.run.truncate(-1)
        if not self.run.segments:
            segment = self._take_next(offset - offset % self.run.segment_bytes)
            segment.wrote = offset - segment.start
            self._continue_in(segment)
        tail = self.tail
        if offset != tail.end:
            raise ValueError(f"replicated bytes start at {offset}, the log ends at {tail.end}")
        try:
            while len(data) > (room := tail.limit - tail.position):
                tail.append_raw(data[:room])
                data = data[room:]
                self.roll()
            tail.append_raw(data)
        finally:
            tail.commit()
        return tail.end

    def commit(self) -> None:
        """Make what was staged through `tail` part of the log. Raises FlushFailed, from then on
        always."""
        self.tail.commit()

    def roll(self) -> None:
        """Go on in the next segment; the rest of the present one becomes a blank.

        Raises StoreIsFull, SegmentUnavailable; then nothing changed and smaller records may still
        fit. FlushFailed is final.
        """
        last = self.run.segments[-1] if self.run.segments else None
        segment = self._take_next(last.end if last else 0)
        if last:
            self.tail.write_blank()
            last.detach()
            last.advise(random_access=False)  # from now on only read, mostly in order
        self._continue_in(segment)

    def _roll_for(self, size: int) -> None:
        if size + BLANK_BYTES > self.run.segment_bytes:
            raise MessageTooLarge(
                f"{size} bytes of records, a file of this log takes "
                f"{self.run.segment_bytes - BLANK_BYTES}"
            )
        self.roll()

    def _continue_in(self, segment: Segment) -> None:
        self.run.adopt(segment)
        segment.attach(self.tail)

    # --- the next segment, made before it is needed ---

    def next_segment_needed(self) -> bool:
        """Whether make_next_segment() has something to do: a quarter of the present segment is
        used."""
        return self._next is None and self.tail.position * 4 >= self.tail.limit > 0

    def make_next_segment(self) -> None:
        """Make the file behind the last one. [thread] Raises StoreIsFull, SegmentUnavailable."""
        with self._making:
            if self._next is None and self.run.segments:
                self._next = self._make(self.run.segments[-1].end)

    def _take_next(self, start: int) -> Segment:
        """The segment that starts at an offset: the one made in advance, or one made now."""
        with self._making:
            segment, self._next = self._next, None
            if segment is None:
                return self._make(start)
            assert segment.start == start, (segment, start)
            return segment

    def _make(self, start: int) -> Segment:
        """A segment that can be gone on in without any further call that may fail."""
        segment = self.run.make(start)
        try:
            segment.open_for_appends()
        except SegmentUnavailable:
            segment.unlink()
            segment.close()
            raise
        return segment

    def _discard_next(self) -> None:
        """Hold _making."""
        segment, self._next = self._next, None
        if segment is not None:
            segment.unlink()
            segment.close()

    # --- flushing, cutting, closing ---

    def flush(self, target: int | None = None) -> int:
        """Put the log on the disk up to target, all of it without one; the offset reached. [thread]

        Raises FlushFailed, from then on always; also after a commit failed.
        """
        if self.failure:
            raise FlushFailed(self.failure)
        return self.run.flush(target)

    def truncate(self, offset: int) -> None:
        """cut(), and put what stays on the disk: how much of it an earlier process had flushed is
        not known. Raises StoreIsFull, FlushFailed, OSError."""
        self.cut(offset)
        self.flush()

    def cut(self, offset: int) -> None:
        """Make `offset` the end and open the log for appends there. Raises StoreIsFull,
        FlushFailed, OSError.

        The rest of the last file is zeroed and allocated, later files are deleted. Queue tails are
        the caller's to bring in line.
        """
        self.tail.commit()
        if offset > self.end:
            raise ValueError(f"the log ends at {self.end}, before {offset}")
        with self._making:
            self._discard_next()  # before the files in front of it: a gap would be no store
            self.run.truncate(offset)
        if self.run.segments:
            last = self.run.segments[-1]
            last.detach()
            last.allocate()  # Java leaves files sparse
            last.advise(random_access=True)
            last.attach(self.tail)

    def close(self) -> None:
        """Unmap everything and delete the segment that was made in advance and not used. Commits,
        unless that failed before; does not flush."""
        with self._making:
            self._discard_next()
        self.run.close()
