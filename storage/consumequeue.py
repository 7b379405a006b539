"""Consume queues: for each (topic, queue id) the places of its messages in the log, by queue
offset.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from storage.checkpoint import QueueMark
from storage.config import QUEUE_ENTRY_BYTES, StorageConfig
from storage.derivation import QUEUE_ENTRY, QueueEnd
from storage.errors import CorruptFile, FlushFailed, NotAStore
from storage.queuefiles import FileCache, QueueFile
from storage.segment import fsync_directory
from storage.segments import NAME_DIGITS, segment_name

log = logging.getLogger(__name__)

MAX_LONG: Final = (1 << 63) - 1
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = QUEUE_ENTRY.pack(0, BLANK_SIZE, 0)
GAP_ENTRIES_MAX: Final = 300_000
TOPIC_BYTES_MAX: Final = 255  # a directory name

Entry = tuple[int, int, int]  # physical offset, record size, tags code


class ConsumeQueue:
    """The entries of one queue. INV: entry q describes the record whose queue offset is q.

    Entries before the first message that ever had one, or that the log lost, are blank (offset 0,
    size 2**31-1).
    Reading needs no file to exist: an unknown queue is an empty one.
    Source: storage spec "Consume queues". Unlike RocketMQ an entry is never written at another
    queue offset's place.
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
        self._new_names = False  # directory entries that are not on the disk yet

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
        last = self.entry(mark.max_offset - 1)
        return (
            last is not None
            and last[0] + last[1] == mark.physical_end
            and self.first_offset <= mark.first_offset
        )

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
        entry: Entry = QUEUE_ENTRY.unpack_from(self._cache.view(self._files[index]), position)
        return entry

    def chunk(self, queue_offset: int, count_max: int) -> memoryview:
        """A copy of the entries from queue_offset on, at most count_max and not beyond that file's
        end.

        Empty outside [first entry in the files, max_offset). Raises OSError.
        """
        at = queue_offset * QUEUE_ENTRY_BYTES
        if not self._files or at < self._files[0].start or queue_offset >= self.end.next_offset:
            return memoryview(b"")
        file = self._files[(at - self._files[0].start) // self._file_bytes]
        count = min(count_max, self.end.next_offset - queue_offset)
        stop = min(at + count * QUEUE_ENTRY_BYTES, file.end)
        return memoryview(bytes(self._cache.view(file)[at - file.start : stop - file.start]))

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
        Source: storage spec "Other reads".
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
            if queue_offset > 0:
                # Two records with one queue offset: RocketMQ gave it away again after losing the
                # entry of the first.
                log.warning(
                    "queue offset used twice topic=%s queue=%d offset=%d physical=%d",
                    self.topic, self.queue_id, queue_offset, physical_offset,
                )  # fmt: skip
                return False
            self._restart(physical_offset)
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
        self.end.physical_end = -1
        self.end.next_offset = self.flushed = 0
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

    def skip_to(self, queue_offset: int) -> None:
        """Let the next entry be this one at least; what is between was lost. Raises OSError."""
        if queue_offset - self.end.next_offset > GAP_ENTRIES_MAX:
            self.reset()
        if queue_offset > self.end.next_offset:
            self._fill_gap(queue_offset)

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
        file = QueueFile(self.directory / segment_name(start), start, self._file_bytes)
        file.create()
        self._files.append(file)
        self._new_names = True
        return file

    def _stop_writing(self) -> None:
        self.end.close()
        if self._files:
            self._files[-1].writer = None

    # --- flushing ---

    def flush(self, pages_min: int = 0) -> bool:
        """Put entries on the disk when at least pages_min pages are dirty, all with 0. [thread]

        True when everything written before the call is on the disk now. Raises FlushFailed: final.
        """
        cuts = self._cuts
        reached = self.end.next_offset
        flushed = self.flushed
        if reached == flushed and not self._new_names:
            return True
        dirty_pages = (reached * QUEUE_ENTRY_BYTES >> 12) - (flushed * QUEUE_ENTRY_BYTES >> 12)
        if dirty_pages < pages_min:
            return False
        try:
            if self._new_names:
                self._new_names = False
                self._sync_names()
            for file in list(self._files):
                start, stop = flushed * QUEUE_ENTRY_BYTES, reached * QUEUE_ENTRY_BYTES
                if file.end > start and file.start < stop:
                    file.sync()
        except OSError as error:
            raise FlushFailed(f"cannot flush {self.directory}: {error}") from error
        if cuts != self._cuts:
            return False  # truncated meanwhile: what was flushed is not what is there
        self.flushed = reached
        return True

    def _sync_names(self) -> None:
        try:
            for directory in (self.directory, self.directory.parent, self.directory.parent.parent):
                fsync_directory(directory)
        except FileNotFoundError:
            log.debug("queue deleted before it was flushed topic=%s", self.topic)

    # --- recovery, truncation, retention ---

    def load(self, names: list[str]) -> None:
        """Take over the files of the directory, given by name. Raises NotAStore for a file of
        another size, OSError.

        Files that do not join the newest ones are of no use and left alone.
        """
        starts = sorted(int(name) for name in names if name.isdigit() and len(name) == NAME_DIGITS)
        for index, start in enumerate(starts):
            path = self.directory / segment_name(start)
            size = path.stat().st_size
            if size == 0 and index == len(starts) - 1:
                path.unlink()  # a crash while it was made
                break
            if size != self._file_bytes or start % self._file_bytes:
                raise NotAStore(f"{path} has {size} bytes, queue files have {self._file_bytes}")
            if self._files and self._files[-1].end != start:
                log.warning("queue file out of line path=%s", self._files[-1].path)
                self._files.clear()
            self._files.append(QueueFile(path, start, size))

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
        for index in range(len(self._files) - 1, -1, -1):
            file = self._files[index]
            count = self._count_valid(file, MAX_LONG)
            if count or index == 0:
                self.end.next_offset = file.start // QUEUE_ENTRY_BYTES + count
                self.end.physical_end = self._last_physical_end(file, count)
                return

    def truncate(self, log_end: int) -> None:
        """Remove every entry whose record does not lie below log_end, and zero the rest of the
        file. Raises OSError.
        """
        self._stop_writing()
        count = 0
        for index in range(len(self._files) - 1, -1, -1):
            file = self._files[index]
            count = self._count_valid(file, log_end)
            if count or index == 0:
                self._remove_files(index + 1)
                break
        if not self._files:
            self._set_end(0, -1)
            self.flushed = 0
            return
        file = self._files[-1]
        if file.mapping is not None:
            self._cache.unmap(file)
        first = file.start // QUEUE_ENTRY_BYTES
        cleared = file.zero_tail(count * QUEUE_ENTRY_BYTES)
        self._set_end(first + count, self._last_physical_end(file, count))
        # Zeros that are not on the disk must be flushed like entries: step back by one.
        self.flushed = max(first, first + count - 1) if cleared else first + count
        self._min_known = False

    def _count_valid(self, file: QueueFile, log_end: int) -> int:
        low, high = 0, self._file_bytes // QUEUE_ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = QUEUE_ENTRY.unpack(
                file.read(middle * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
            )
            if physical >= 0 and size > 0 and (physical + size <= log_end or size == BLANK_SIZE):
                low = middle + 1
            else:
                high = middle
        return low

    def _last_physical_end(self, file: QueueFile, count: int) -> int:
        """End of the last record that is not blank."""
        for index in range(count - 1, -1, -1):
            physical, size, _ = QUEUE_ENTRY.unpack(
                file.read(index * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
            )
            if size != BLANK_SIZE:
                return int(physical + size)
        return -1

    def _set_end(self, next_offset: int, physical_end: int) -> None:
        self._stop_writing()
        self._cuts += 1
        self.end.next_offset = next_offset
        self.end.physical_end = physical_end

    def drop_last(self) -> None:
        """Recovery found that the last entry is not what the log says. Raises OSError."""
        assert self._files
        file = self._files[-1]
        count = self.end.next_offset - 1 - file.start // QUEUE_ENTRY_BYTES
        if count < 0:
            self._remove_files(len(self._files) - 1)
            if not self._files:
                self.reset()
                return
            file = self._files[-1]
            count = self._file_bytes // QUEUE_ENTRY_BYTES - 1
        if file.mapping is not None:
            self._cache.unmap(file)
        file.zero_tail(count * QUEUE_ENTRY_BYTES)
        first = file.start // QUEUE_ENTRY_BYTES
        self._set_end(first + count, self._last_physical_end(file, count))
        self.flushed = min(self.flushed, max(first, first + count - 1))
        self._min_known = False

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
        low = self._skip_blanks(self._files[0].start // QUEUE_ENTRY_BYTES)
        if self._min_offset > low and self._min_offset <= high:
            low = self._min_offset  # the log's start only grows
        while low < high:
            middle = (low + high) // 2
            probe = middle
            entry = self.entry(probe)
            while entry is not None and entry[1] == BLANK_SIZE and probe > low:
                probe -= 1  # a gap: what lies before it decides
                entry = self.entry(probe)
            assert entry is not None
            if entry[1] == BLANK_SIZE or entry[0] < log_start:
                low = middle + 1
            else:
                high = probe
        self._min_offset = low

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
            physical, _, _ = QUEUE_ENTRY.unpack(
                file.read(self._file_bytes - QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
            )
            if physical >= log_start:
                break
            self._cache.unmap(file)
            self._files.pop(0)
            file.path.unlink()
            dropped.append(file.path)
        return dropped

    def expired(self, log_start: int) -> bool:
        """Whether it has entries, and none whose record is still there. Raises OSError."""
        last = self.entry(self.end.next_offset - 1)
        return last is not None and last[0] < log_start

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
            file.path.unlink(missing_ok=True)


def _directories(parent: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    with os.scandir(parent) as entries:
        return [entry for entry in entries if entry.is_dir()]


class ConsumeQueues:
    """All consume queues of a store. Files appear with the first entry of a queue, not before.

    ends        for the inner loop of dispatch: QueueEnd by topic bytes and queue id
    incomplete  a set only while recovery reads the log: queues that lack entries before what the
    log offers them
    log_start   below it the log has been deleted
    """

    def __init__(self, config: StorageConfig, *, read_only: bool = False) -> None:
        self.directory = Path(config.root) / "consumequeue"
        self.file_bytes = config.queue_segment_bytes
        self.cache = FileCache(read_only=read_only)
        self.ends: dict[bytes, dict[int, QueueEnd]] = {}
        self.log_start = 0
        self.incomplete: set[ConsumeQueue] | None = None
        self.torn: set[ConsumeQueue] = set()
        #: (queue, queue offset, entry) -> does the log have that record there? Given by the store.
        self.log_agrees: Callable[[ConsumeQueue, int, Entry], bool] = lambda *_: True
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in list(self._queues.values()):
            yield from list(queues.values())

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def topics(self) -> list[str]:
        return list(self._queues)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._queues.get(topic, {}).values())

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new and without files when it is not known. Raises ValueError for a name that
        is no directory.
        """
        queue = self.get(topic, queue_id)
        if queue is None:
            name = topic.encode()
            if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or queue_id < 0:
                raise ValueError(f"no queue can be called {topic!r}, {queue_id}")
            if len(name) > TOPIC_BYTES_MAX:
                raise ValueError(f"topic of {len(name)} bytes, directories take {TOPIC_BYTES_MAX}")
            queue = ConsumeQueue(self, topic, queue_id)
            self._queues.setdefault(topic, {})[queue_id] = queue
            self.ends.setdefault(name, {})[queue_id] = queue.end
        return queue

    def find_end(self, topic: bytes, queue_id: int) -> QueueEnd | None:
        """For dispatch: the end of a queue, made when needed; None when the log names an impossible
        one.
        """
        try:
            return self.make(topic.decode("utf-8"), queue_id).end
        except ValueError as error:  # UnicodeDecodeError is one
            log.warning("record without queue why=%s", error)
            return None

    def load(self) -> None:
        """Find the queues on disk without opening their files. Raises NotAStore, OSError."""
        if not self.directory.is_dir():
            return
        for topic in _directories(self.directory):
            for queue in _directories(topic):
                if queue.name.isascii() and queue.name.isdigit():
                    with os.scandir(queue) as files:
                        names = [file.name for file in files]
                    if names:
                        self.make(topic.name, int(queue.name)).load(names)

    def compare(self, queue: ConsumeQueue, entry: Entry, queue_offset: int) -> None:
        """While recovering: does the queue hold what the log says? If not it is torn."""
        if self.incomplete is None or queue in self.torn:
            return
        held = queue.entry(queue_offset)
        if held == entry:
            return
        if held is None or held[0] <= entry[0] or not self.log_agrees(queue, queue_offset, held):
            log.warning(
                "queue entry differs from the log topic=%s queue=%d offset=%d",
                queue.topic, queue.queue_id, queue_offset,
            )  # fmt: skip
            self.torn.add(queue)

    def truncate(self, log_end: int) -> None:
        """Remove every entry whose record does not lie below log_end. Raises OSError."""
        for queue in self:
            if queue.physical_end > log_end:
                queue.truncate(log_end)

    def start_at(self, log_start: int) -> None:
        """The log begins here now."""
        if log_start != self.log_start:
            self.log_start = log_start
            for queue in self:
                queue.log_start_moved()

    def drop_before(self, log_start: int) -> list[Path]:
        """Delete files that only describe deleted records. Raises OSError."""
        return [path for queue in self for path in queue.drop_before(log_start)]

    def flush(self, pages_min: int = 0) -> bool:
        """True when every entry written before the call is on the disk. [thread] Raises
        FlushFailed.
        """
        complete = True
        for queue in self:
            complete = queue.flush(pages_min) and complete
        return complete

    def marks(self) -> dict[str, dict[int, QueueMark]]:
        """Where every queue with entries stands."""
        return {
            topic: {
                queue_id: QueueMark(queue.first_offset, queue.max_offset, queue.physical_end)
                for queue_id, queue in list(queues.items())
                if queue.max_offset
            }
            for topic, queues in list(self._queues.items())
        }

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Raises OSError."""
        queue = self.get(topic, queue_id)
        if queue is None:
            return
        queue.destroy()
        del self._queues[topic][queue_id]
        del self.ends[topic.encode()][queue_id]
        if not self._queues[topic]:
            del self._queues[topic]
            del self.ends[topic.encode()]
            directory = self.directory / topic
            if directory.exists() and not any(directory.iterdir()):
                directory.rmdir()

    def delete_topic(self, topic: str) -> None:
        """Raises OSError."""
        for queue in self.of_topic(topic):
            self.delete_queue(topic, queue.queue_id)

    def close(self) -> None:
        self.cache.close()
