"""One consume queue: the places of its messages in the log, by queue offset."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.storage.checkpoint import QueueMark
from tandemmq.storage.config import QUEUE_ENTRY_BYTES
from tandemmq.storage.derivation import QUEUE_ENTRY, QueueEnd
from tandemmq.storage.errors import CorruptFile, FlushFailed, NotAStore
from tandemmq.storage.queuefiles import BLANK_ENTRY, BLANK_SIZE, QueueFile
from tandemmq.storage.record import RECORD_BYTES_MIN
from tandemmq.storage.segments import NAME_DIGITS, segment_name

if TYPE_CHECKING:
    from tandemmq.storage.consumequeues import ConsumeQueues

log = logging.getLogger(__name__)

MAX_LONG: Final = (1 << 63) - 1
GAP_ENTRIES_MAX: Final = 300_000

Entry = tuple[int, int, int]  # physical offset, record size, tags code


def names_record(entry: Entry) -> bool:
    """Whether an entry may describe a record, wherever that is. One that does not, and is not blank, is damaged: zeros,
    say, of a page that never came to the disk."""
    return entry[0] >= 0 and RECORD_BYTES_MIN <= entry[1] < BLANK_SIZE


def names_deleted(entry: Entry, log_start: int) -> bool:
    """Whether an entry says that its record was deleted with its file."""
    return names_record(entry) and entry[0] < log_start


def _is_gone(entry: Entry, log_start: int) -> bool:
    """Whether an entry says that its record was deleted, or never there."""
    return entry[1] == BLANK_SIZE or names_deleted(entry, log_start)


class ConsumeQueue:
    """The entries of one queue. INV-4: entry q describes the record whose queue offset is q.

    Entries before the first message that ever had one, or that the log lost, are blank (offset 0,
    size 2**31-1).
    Reading needs no file to exist: an unknown queue is an empty one.
    Source: docs/formats.md "ConsumeQueue entry", RocketMQ's ConsumeQueue. Unlike there an entry is
    never written at another queue offset's place.
    """

    def __init__(self, queues: ConsumeQueues, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = queues.directory / topic / str(queue_id)
        self.end = QueueEnd(topic, queue_id, self)
        self.flushed = 0  # entries on the disk
        self._queues = queues
        self._cache = queues.cache
        self._file_bytes = queues.file_bytes
        self._files: list[QueueFile] = []
        self._min_offset = 0
        self._min_known = False  # it costs reading a file, and most queues are never asked
        self._cuts = 0  # how often entries were taken away
        self._cleared = False  # zeros in their place that are not on the disk yet
        self._new_names = False  # that files appeared or went is not on the disk yet

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic}-{self.queue_id}, next={self.end.next_offset})"

    # --- reading ---

    @property
    def max_offset(self) -> int:
        """Queue offset of the next entry."""
        return self.end.next_offset

    @property
    def physical_end(self) -> int:
        """End in the log of the last indexed record; -1 when there is none."""
        return self.end.physical_end

    @property
    def min_offset(self) -> int:
        """The first entry that is not blank and whose record is still in the log; max_offset when
        there is none.
        """
        if not self._min_known:
            self.correct_min_offset(self._queues.log_start)
        return self._min_offset

    @property
    def first_offset(self) -> int:
        """The first entry that the files hold, blank or not."""
        return self._files[0].start // QUEUE_ENTRY_BYTES if self._files else 0

    def agrees_with(self, mark: QueueMark) -> bool:
        """Whether it holds what it held when the mark was taken. Raises OSError."""
        if mark.physical_end == -1 and self.first_offset == self.max_offset == mark.max_offset:
            return True  # it begins here, and has no entry yet
        last = self.entry(mark.max_offset - 1)
        if last is None or self.first_offset > mark.first_offset:
            return False
        return last[1] == BLANK_SIZE or last[0] + last[1] == mark.physical_end

    @property
    def file_count(self) -> int:
        return len(self._files)

    def entry(self, queue_offset: int) -> Entry | None:
        """None outside what the files hold. Raises OSError."""
        if not self._files or queue_offset >= self.end.next_offset:
            return None
        at = queue_offset * QUEUE_ENTRY_BYTES - self._files[0].start
        if at < 0:
            return None
        index, position = divmod(at, self._file_bytes)
        file = self._files[index]
        if file.view is None and not file.used:
            # A first look does not pay for a mapping: starting asks each of ten thousand queues once.
            file.used = True
            entry: Entry = QUEUE_ENTRY.unpack(file.read(position, QUEUE_ENTRY_BYTES))
        else:
            entry = QUEUE_ENTRY.unpack_from(self._cache.view(file), position)
        return entry

    def window(self, queue_offset: int, count_max: int) -> tuple[memoryview, int, int]:
        """(file, start, stop): file[start:stop] are the entries from queue_offset on, at most count_max and not
        beyond that file's end.

        Nothing of it may be kept: the file may be unmapped when another queue is read. Empty outside
        [first entry in the files, max_offset). Raises OSError.
        """
        at = queue_offset * QUEUE_ENTRY_BYTES
        count = self.end.next_offset - queue_offset
        files = self._files
        if not files or count <= 0 or at < files[0].start:
            return memoryview(b""), 0, 0
        file = files[(at - files[0].start) // self._file_bytes]
        at -= file.start
        if count > count_max:
            count = count_max
        stop = at + count * QUEUE_ENTRY_BYTES
        return self._cache.view(file), at, stop if stop < file.size else file.size

    def chunk(self, queue_offset: int, count_max: int) -> memoryview:
        """A copy of the entries that window() tells of. Raises OSError."""
        view, start, stop = self.window(queue_offset, count_max)
        return memoryview(bytes(view[start:stop]))

    def record_sizes(self, queue_offset: int, count_max: int) -> list[int]:
        """Bytes of the records that chunk() would give the entries of, without blank ones. Raises OSError."""
        entries = QUEUE_ENTRY.iter_unpack(self.chunk(queue_offset, count_max))
        return [size for _, size, _ in entries if size != BLANK_SIZE]

    def next_file_offset(self, queue_offset: int) -> int:
        """The queue offset at which the file behind the one with queue_offset starts."""
        entries = self._file_bytes // QUEUE_ENTRY_BYTES
        return queue_offset + entries - queue_offset % entries

    def offset_by_time(
        self, store_ms_at: Callable[[int], int | None], store_ms: int, upper: bool = False
    ) -> int:
        """Lower: the first queue offset stored at or after store_ms, else max_offset. Upper: the
        last one stored at
        or before it, else min_offset.

        store_ms_at tells the store time of the record at a physical offset, None when it is gone.
        Source: RocketMQ's ConsumeQueue.getOffsetInQueueByTime.
        """
        low, high = self.min_offset, self.max_offset
        first = low
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            found = None if entry is None else store_ms_at(entry[0])
            if found is None or found < store_ms or (upper and found == store_ms):
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1) if upper else low

    # --- writing ---

    def put(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Write one entry at its queue offset. False when the queue has it already.

        Raises OSError (ENOSPC among them), CorruptFile for an offset that cannot follow; nothing is
        written then.
        """
        end = self.end
        if physical_offset + size <= end.physical_end:
            self._queues.compare(self, (physical_offset, size, tags_code), queue_offset)
            return False
        if queue_offset < end.next_offset:
            if queue_offset == 0:
                self._restart(physical_offset)
            elif self.describes_nothing:  # what it was told to begin behind has come after all
                if self._queues.incomplete is not None:
                    self._queues.incomplete.add(self)  # or its files came back with a power cut
                    return False
                self.reset()
                self._fill_gap(queue_offset)
            else:
                # Two records with one queue offset: RocketMQ gave it away again after losing the
                # entry of the first.
                log.warning(
                    "queue offset used twice topic=%s queue=%d offset=%d physical=%d",
                    self.topic, self.queue_id, queue_offset, physical_offset,
                )  # fmt: skip
                return False
        elif queue_offset > end.next_offset:
            if self._queues.incomplete is not None:
                self._queues.incomplete.add(self)
                return False
            self._fill_gap(queue_offset)
        if not end.append(physical_offset, size, tags_code):
            self._make_room()
            appended = end.append(physical_offset, size, tags_code)
            assert appended, self
        return True

    def rewrite(self, queue_offset: int, entry: Entry) -> None:
        """Put right an entry that is there. Raises OSError."""
        index, position = divmod(
            queue_offset * QUEUE_ENTRY_BYTES - self._files[0].start, self._file_bytes
        )
        file = self._files[index]
        file.back(position)
        QUEUE_ENTRY.pack_into(self._cache.view(file), position, *entry)
        self._cuts += 1  # a flush that runs may have passed it
        self._cleared = True  # it lies below what is flushed
        self._min_known = False

    def _restart(self, physical_offset: int) -> None:
        """A message with queue offset 0 behind others: the queue had been deleted when it was
        written.
        """
        log.info(
            "queue begins anew topic=%s queue=%d physical=%d dropped=%d",
            self.topic, self.queue_id, physical_offset, self.end.next_offset,
        )  # fmt: skip
        self.reset()

    def reset(self) -> None:
        """Back to no entries at all, and no files. Raises OSError."""
        self._remove_files(0)
        if self.directory.exists():
            for stray in self.directory.iterdir():  # files that load() found out of line
                stray.unlink()
        self._set_end(0, -1)
        self.flushed = 0
        self._min_known = False

    def _fill_gap(self, queue_offset: int) -> None:
        """Blank entries up to queue_offset: what the log lost must not shift what it has."""
        first = self.end.next_offset
        if not self._files:
            first = queue_offset - queue_offset % (self._file_bytes // QUEUE_ENTRY_BYTES)
            self.end.next_offset = self.flushed = first
        elif queue_offset - first > GAP_ENTRIES_MAX:
            raise CorruptFile(
                f"{self.directory}: the log continues with queue offset {queue_offset}, "
                f"the queue with {first}"
            )
        else:
            log.warning(
                "queue entries missing topic=%s queue=%d from=%d to=%d",
                self.topic, self.queue_id, first, queue_offset,
            )  # fmt: skip
        while (missing := queue_offset - self.end.next_offset) > 0:
            file = self._make_room()
            count = min(missing, (self.end.limit - self.end.position) // QUEUE_ENTRY_BYTES)
            stop = self.end.position + count * QUEUE_ENTRY_BYTES
            self._cache.view(file)[self.end.position : stop] = BLANK_ENTRY * count
            self.end.position = stop
            self.end.next_offset += count
        self._min_known = False

    def refill_blanks(self) -> None:
        """Of a queue that has nothing but blank entries: after a power cut any of them may be missing. Raises OSError,
        CorruptFile."""
        first = self._files[0].start // QUEUE_ENTRY_BYTES if self._files else 0
        begins = self.end.next_offset
        if self._files and self.end.physical_end == -1 and begins > first:
            self._remove_files(1)
            self._set_end(first, -1)
            self.flushed = first
            self._fill_gap(begins)

    def skip_to(self, queue_offset: int) -> None:
        """Let the next entry be this one at least; what is between was lost. Raises OSError."""
        if queue_offset - self.end.next_offset > GAP_ENTRIES_MAX:
            self.reset()
        if queue_offset > self.end.next_offset:
            self._fill_gap(queue_offset)
        if queue_offset and not self._files:
            self._make_room()  # at the start of a file: its name says where the queue stands

    @property
    def describes_nothing(self) -> bool:
        """Whether no entry is left, or was ever made, of a record that is in the log. Raises OSError."""
        return self.end.physical_end == -1 and self.min_offset == self.end.next_offset

    def begin_at(self, queue_offset: int) -> None:
        """Of a queue that describes nothing: let the next entry be this one at least. Raises OSError; then it has
        none at all."""
        try:
            self.skip_to(queue_offset)
        except OSError:
            self.reset()
            raise

    def _make_room(self) -> QueueFile:
        """Map and allocate where the next entry goes; the file it goes to."""
        at = self.end.next_offset * QUEUE_ENTRY_BYTES
        self._stop_writing()
        if self._files and at < self._files[-1].end:
            file = self._files[-1]
        else:
            file = self._new_file(at - at % self._file_bytes)
        limit = file.allocate(at - file.start, at - file.start)
        self.end.open(self._cache.view(file), at - file.start, limit)
        file.writer = self.end
        return file

    def _new_file(self, start: int) -> QueueFile:
        if not self._files:
            self.directory.mkdir(parents=True, exist_ok=True)
        file = QueueFile(self._name_of_file(start), start, self._file_bytes)
        file.create()
        self._files.append(file)
        self._new_names = True
        return file

    def _name_of_file(self, start: int) -> str:
        return f"{self.directory}/{segment_name(start)}"

    def _stop_writing(self) -> None:
        self.end.close()
        if self._files:
            self._files[-1].writer = None

    # --- flushing ---

    def flush(self, pages_min: int = 0) -> bool:
        """Put entries on the disk when at least pages_min pages are dirty, all with 0. [thread]

        True when everything written before the call is on the disk now. Names are not: take_new_names() is for who
        states what the queues hold, and only that relies on them. Raises FlushFailed: final.
        """
        cuts = self._cuts
        reached = self.end.next_offset
        flushed, cleared = self.flushed, self._cleared
        if reached == flushed and not cleared:
            return True
        dirty_pages = (reached * QUEUE_ENTRY_BYTES >> 12) - (flushed * QUEUE_ENTRY_BYTES >> 12)
        if dirty_pages < pages_min:
            return False
        try:
            for file in list(self._files):
                start, stop = flushed * QUEUE_ENTRY_BYTES, reached * QUEUE_ENTRY_BYTES
                if (file.end > start and file.start < stop) or cleared:
                    file.sync()
        except OSError as error:
            raise FlushFailed(f"cannot flush {self.directory}: {error}") from error
        if cuts != self._cuts:
            return False  # truncated meanwhile: what was flushed is not what is there
        self.flushed, self._cleared = reached, False
        return True

    def distrust(self) -> None:
        """What is here was another process's, which may not have put all of it on the disk: flush() does."""
        self._cleared = True
        self._new_names = self.directory.is_dir()

    def take_new_names(self) -> list[Path]:
        """Directories of which the disk may have other names; the caller syncs them."""
        if not self._new_names:
            return []
        self._new_names = False
        return [self.directory, self.directory.parent, self.directory.parent.parent]

    # --- recovery, truncation, retention ---

    def load(self, names: list[str]) -> None:
        """Take over the files of the directory, given by name. Raises NotAStore for a file of
        another size, OSError.

        Files that do not join the newest ones are of no use and left alone.
        """
        starts = sorted(int(name) for name in names if name.isdigit() and len(name) == NAME_DIGITS)
        for index, start in enumerate(starts):
            name = self._name_of_file(start)
            size = os.stat(name).st_size
            if size == 0:  # a crash while it was made: nothing vouches for it, nor for those behind
                for unfinished in reversed(starts[index:]):
                    os.unlink(self._name_of_file(unfinished))
                break
            if size != self._file_bytes or start % self._file_bytes:
                raise NotAStore(f"{name} has {size} bytes, queue files have {self._file_bytes}")
            if self._files and self._files[-1].end != start:
                log.warning("queue file out of line path=%s", self._files[-1].name)
                self._files.clear()
            self._files.append(QueueFile(name, start, size))

    def recover(self, log_end: int, mark: QueueMark | None = None) -> None:
        """Find the last entry whose record lies below log_end; remove everything behind it. Raises
        OSError.

        mark    where the queue stood at a clean stop: when the file agrees, nothing is searched
        The search is binary: entries below log_end must be known to be whole, and none may be
        stale.
        """
        self._min_known = False
        if mark is not None and mark.physical_end <= log_end and self._stands_at(mark):
            self._set_end(mark.max_offset, mark.physical_end)
            self.flushed = mark.max_offset
            return
        self.flushed = self._files[-1].end // QUEUE_ENTRY_BYTES if self._files else 0
        self.truncate(log_end)

    def _stands_at(self, mark: QueueMark) -> bool:
        at = mark.max_offset * QUEUE_ENTRY_BYTES
        if not self._files or not self._files[-1].start < at <= self._files[-1].end:
            return False
        file = self._files[-1]
        data = file.read(at - file.start - QUEUE_ENTRY_BYTES, 2 * QUEUE_ENTRY_BYTES)
        physical, size, _ = QUEUE_ENTRY.unpack_from(data, 0)
        return physical + size == mark.physical_end and not any(data[QUEUE_ENTRY_BYTES:])

    def look(self) -> None:
        """Find the end without changing anything, for inspection. Raises OSError."""
        self._find_end(MAX_LONG)

    def _find_end(self, log_end: int) -> int:
        """Set the end behind the last entry whose record lies below log_end; that entry's file."""
        count, physical_end, index = 0, -1, 0
        for index in range(len(self._files) - 1, -1, -1):
            count, physical_end = self._files[index].measure(log_end)
            if count:
                break
        first = self._files[index].start // QUEUE_ENTRY_BYTES if self._files else 0
        self._set_end(first + count, physical_end)
        return index

    def truncate(self, log_end: int) -> None:
        """Remove every entry whose record does not lie below log_end, and zero the rest of the
        file. Raises OSError.
        """
        self._stop_writing()
        if self._files:
            self._remove_files(self._find_end(log_end) + 1)
            self._zero_behind_end()
        else:
            self._set_end(0, -1)
            self.flushed = 0

    def _zero_behind_end(self) -> None:
        file = self._files[-1]
        if file.mapping is not None:
            self._cache.unmap(file)
        next_offset = self.end.next_offset
        cleared = file.zero_tail(next_offset * QUEUE_ENTRY_BYTES - file.start)
        # Zeros that are not on the disk must be flushed like entries: step back by one. Where none
        # is left there is nothing to step back to (INV-40).
        self.flushed = min(self.flushed, max(0, next_offset - 1) if cleared else next_offset)
        self._cleared |= cleared
        self._min_known = False

    def _set_end(self, next_offset: int, physical_end: int) -> None:
        self._stop_writing()
        self._cuts += 1
        self._min_offset = 0  # no longer a bound for the next search
        self.end.next_offset = next_offset
        self.end.physical_end = physical_end

    def drop_last(self) -> None:
        """Recovery found that the last entry is not what the log says. Raises OSError."""
        next_offset = self.end.next_offset - 1
        if next_offset * QUEUE_ENTRY_BYTES == self._files[-1].start and len(self._files) > 1:
            self._remove_files(len(self._files) - 1)
        previous = self.entry(next_offset - 1)
        known = previous is not None and previous[1] != BLANK_SIZE
        self._set_end(next_offset, previous[0] + previous[1] if previous and known else -1)
        self._zero_behind_end()

    def correct_min_offset(self, log_start: int) -> None:
        """Find the first entry that is not blank and whose record is not below log_start. Raises
        OSError.

        Blank entries come first; RocketMQ takes them for entries of the record at 0 and then skips
        live messages.
        """
        self._min_known = True
        high = self.end.next_offset
        if not self._files or high == 0:
            self._min_offset = high
            return
        low = self._files[0].start // QUEUE_ENTRY_BYTES
        first = self.entry(low)
        if first is not None and not _is_gone(first, log_start):
            self._min_offset = low
            return
        low = self._skip_blanks(low)
        if self._min_offset > low and self._min_offset <= high:
            low = self._min_offset  # the log's start only grows
        while low < high:
            middle = (low + high) // 2
            probe = middle
            entry = self.entry(probe)
            while entry is not None and not names_record(entry) and probe > low:
                probe -= 1  # a gap, or damaged: what lies before it decides
                entry = self.entry(probe)
            assert entry is not None
            if _is_gone(entry, log_start) and not self._is_misled(probe, low, log_start):
                # Of damaged ones between it and the middle nobody knows: a reader looks for their records.
                low = (probe if names_record(entry) else middle) + 1
            else:
                high = probe
        self._min_offset = low

    def _is_misled(self, queue_offset: int, low: int, log_start: int) -> bool:
        """Whether an entry that names a deleted record is damaged: the one before it, of older ones, names one that is
        there."""
        entry, before = self.entry(queue_offset), self.entry(queue_offset - 1)
        if queue_offset <= low or entry is None or before is None or entry[1] == BLANK_SIZE:
            return False
        return names_record(before) and before[0] >= log_start

    def _skip_blanks(self, queue_offset: int) -> int:
        run = BLANK_ENTRY * 1024
        while data := self.chunk(queue_offset, 1024):
            if data != run[: len(data)]:
                for index in range(0, len(data), QUEUE_ENTRY_BYTES):
                    if data[index : index + QUEUE_ENTRY_BYTES] != BLANK_ENTRY:
                        return queue_offset + index // QUEUE_ENTRY_BYTES
            queue_offset += len(data) // QUEUE_ENTRY_BYTES
        return queue_offset

    def log_start_moved(self) -> None:
        """The log's oldest files were deleted: min_offset is looked up when next asked for."""
        self._min_known = False

    def drop_before(self, log_start: int) -> list[Path]:
        """Delete files whose last entry's record lies below log_start, never the last file. Raises
        OSError.
        """
        dropped = []
        while len(self._files) > 1:
            file = self._files[0]
            last = QUEUE_ENTRY.iter_unpack(
                file.read(max(0, file.size - 2 * QUEUE_ENTRY_BYTES), 2 * QUEUE_ENTRY_BYTES)
            )
            if any(physical >= log_start for physical, _, _ in last):
                break  # one of the two may be damaged
            self._cache.unmap(file)
            self._files.pop(0)
            os.unlink(file.name)
            dropped.append(Path(file.name))
        return dropped

    def expired(self, log_start: int) -> bool:
        """Whether it has entries, and none whose record is still there. Raises OSError."""
        last = self.entry(self.end.next_offset - 1)
        return last is not None and last[0] < log_start and self.physical_end <= log_start

    def destroy(self) -> None:
        """Delete the files and their directory. Raises OSError."""
        self.reset()
        if self.directory.exists():
            self.directory.rmdir()

    def _remove_files(self, first: int) -> None:
        self._stop_writing()
        while len(self._files) > first:
            file = self._files[-1]
            self._cache.unmap(file)
            self._files.pop()
            self._new_names = True  # INV-40: were the file to come back, its entries would count
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)
