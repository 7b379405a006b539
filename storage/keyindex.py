"""Index files: where in the log the messages of a key are, by hash and time."""

from __future__ import annotations

import array
import logging
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tandemmq.storage.clock import Clock
from tandemmq.storage.config import PAGE_BYTES, StorageConfig
from tandemmq.storage.derivation import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    SLOT_BYTES,
    IndexEnd,
    key_hash,
)
from tandemmq.storage.derive import put_keys
from tandemmq.storage.directories import fsync_directory
from tandemmq.storage.errors import FlushFailed, StorageError

log = logging.getLogger(__name__)

LOOK_ENTRIES: Final = 1 << 16  # looked through at a time

NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS
ALLOCATE_BYTES: Final = 4 << 20


class IndexUnavailable(StorageError):
    """An index file cannot be made or grow. The queues go on without it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.errno = code


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_ms: int
    end_ms: int
    begin_physical: int
    end_physical: int
    slot_count: int
    next_entry: int  # 1 when empty


def _numbers(view: memoryview) -> array.array[int]:
    """Its big-endian numbers of 32 bits; a negative one is none that a list has."""
    found = array.array("I")
    found.frombytes(view)
    if sys.byteorder == "little":
        found.byteswap()
    return found


class IndexFile:
    """One index file, mapped. Slots and entries may be of any number; the file's length tells the
    entries.

    Made sparse: slots are allocated at once, entries piecewise ahead of the writer, because an idle
    broker should
    not take 420 MB of disk, and a full disk must not kill the process.
    """

    def __init__(self, path: Path, slots: int, mapping: mmap.mmap) -> None:
        self.path = path
        self.slots = slots
        self.entries_at = INDEX_HEADER_BYTES + SLOT_BYTES * slots
        self.entries_max = (len(mapping) - self.entries_at) // INDEX_ENTRY_BYTES
        self.flushed_count = -1  # entries on the disk; -1: nothing is known
        self.view = memoryview(mapping)
        self._mapping = mapping
        mapping.madvise(mmap.MADV_RANDOM)

    @staticmethod
    def create(path: Path, slots: int, entries: int, previous: IndexHeader | None) -> IndexFile:
        """Raises OSError, and leaves no file then."""
        size = INDEX_HEADER_BYTES + SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, INDEX_HEADER_BYTES + SLOT_BYTES * slots)
            mapping = mmap.mmap(descriptor, size)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        file = IndexFile(path, slots, mapping)
        if previous is not None:
            INDEX_HEADER.pack_into(
                file.view, 0, previous.end_ms, previous.end_ms,
                previous.end_physical, previous.end_physical, 0, 1,
            )  # fmt: skip
        else:
            INDEX_HEADER.pack_into(file.view, 0, 0, 0, 0, 0, 0, 1)
        return file

    @staticmethod
    def open(path: Path, slots: int, read_only: bool = False) -> IndexFile | None:
        """None for a file too short to be an index file with these slots. Raises OSError."""
        descriptor = os.open(path, os.O_RDONLY if read_only else os.O_RDWR)
        try:
            size = os.fstat(descriptor).st_size
            if size < INDEX_HEADER_BYTES + SLOT_BYTES * slots + INDEX_ENTRY_BYTES:
                return None
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_DEFAULT
            return IndexFile(path, slots, mmap.mmap(descriptor, size, access=access))
        finally:
            os.close(descriptor)

    @property
    def header(self) -> IndexHeader:
        header = IndexHeader(*INDEX_HEADER.unpack_from(self.view, 0))
        return header._replace(next_entry=max(1, header.next_entry))

    @property
    def sound(self) -> bool:
        """Whether the header can be true, and the newest entry is found under its hash.

        The latter fails for files made with another number of slots, which their length does not
        tell.
        """
        header = self.header
        newest = header.next_entry - 1
        return (
            header.next_entry <= self.entries_max
            and 0 <= header.slot_count < header.next_entry
            and 0 <= header.begin_physical <= header.end_physical
            and 0 <= header.begin_ms <= header.end_ms
            and (newest == 0 or self._slot(self._entry(newest)[0]) >= newest)
        )

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """(hash, physical offset, seconds, older entry)"""
        entry: tuple[int, int, int, int] = INDEX_ENTRY.unpack_from(
            self.view, self.entries_at + INDEX_ENTRY_BYTES * number
        )
        return entry

    def _slot_at(self, hashed: int) -> int:
        return INDEX_HEADER_BYTES + SLOT_BYTES * (hashed % self.slots)

    def _slot(self, hashed: int) -> int:
        at = self._slot_at(hashed)
        return int.from_bytes(self.view[at : at + SLOT_BYTES], "big", signed=True)

    def undo_unsealed(self) -> None:
        """Take back entries behind the last one that the header counts: their writer was killed.

        Each left its slot pointing at itself; newest first, the slots get their older entries back.
        """
        first = number = self.header.next_entry
        while number < self.entries_max and any(self._entry(number)):
            number += 1
        for unsealed in range(number - 1, first - 1, -1):
            hashed, _, _, older = self._entry(unsealed)
            if hashed >= 0 and self._slot(hashed) == unsealed and older < unsealed:
                at = self._slot_at(hashed)
                self.view[at : at + SLOT_BYTES] = max(0, older).to_bytes(SLOT_BYTES, "big")

    def unknown(self, store_ms: int) -> bool:
        """Whether it is not known to be on the disk, where messages stored up to store_ms are indexed there."""
        header = self.header
        return header.end_ms > store_ms or header.next_entry == 1

    @property
    def torn(self) -> bool:
        """Whether the disk has it in part: parts of the same age may have come there, or not, in any order.

        Each entry is led to once, by its slot or by the next one of that slot; who is led to by nobody, or leads
        to what the header does not count, is found by no key.
        """
        count = self.header.next_entry
        led_to = bytearray(count)
        try:
            for number in _numbers(self.view[INDEX_HEADER_BYTES : self.entries_at]):
                led_to[number] = 1
            for first in range(1, count, LOOK_ENTRIES):
                start = self.entries_at + INDEX_ENTRY_BYTES * first
                stop = self.entries_at + INDEX_ENTRY_BYTES * min(first + LOOK_ENTRIES, count)
                found = _numbers(self.view[start:stop])
                if 0 in found[::5]:  # the hashes: empty entries, or one in 2^31
                    return True
                for number in found[4::5]:  # the older entry of the same slot
                    led_to[number] = 1
        except IndexError:
            return True
        return led_to.count(1, 1) < count - 1

    def allocate(self, count: int) -> int:
        """Reserve disk space behind entry `count`; returns the entry number up to which there is
        space now.

        Raises OSError.
        """
        start = self.entries_at + INDEX_ENTRY_BYTES * count
        stop = min(start + ALLOCATE_BYTES, len(self.view))
        start -= start % PAGE_BYTES
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, start, stop - start)
        finally:
            os.close(descriptor)
        return min((stop - self.entries_at) // INDEX_ENTRY_BYTES, self.entries_max)

    def find(
        self, hashed: int, begin_ms: int, end_ms: int, found: list[int], count_max: int
    ) -> None:
        """Append the physical offsets of a hash, newest first, until there are count_max.

        Source: RocketMQ's IndexFile.selectPhyOffset.
        """
        header = self.header
        number, newer = self._slot(hashed), header.next_entry
        while 0 < number < newer and len(found) < count_max:
            entry_hash, physical, seconds, older = self._entry(number)
            stored_ms = header.begin_ms + seconds * 1000
            if seconds < 0 or stored_ms < begin_ms:
                return
            if entry_hash == hashed and stored_ms <= end_ms:
                found.append(physical)
            newer, number = (
                number,
                older,
            )  # a chain leads to older entries only; anything else is damage

    def sync(self) -> None:
        """[thread] Raises FlushFailed; a file that was deleted meanwhile needs no sync."""
        count = self.header.next_entry
        if count == self.flushed_count:
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            if self.flushed_count < 0:
                fsync_directory(self.path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FlushFailed(f"cannot flush {self.path}: {error}") from error
        self.flushed_count = count

    def close(self) -> None:
        self.view.release()
        self._mapping.close()


class KeyIndex:
    """The index files of one store, oldest first; the last one grows.

    end     what the inner loop of dispatch writes through. end.end_physical is the last record that
            was indexed: records below it are in the index, that one perhaps with not all its keys.
    Source: docs/formats.md "Index file", RocketMQ's IndexService.
    """

    def __init__(self, config: StorageConfig, clock: Clock) -> None:
        self.directory = Path(config.root) / "index"
        self.end = IndexEnd(config.index_slots)
        self._clock = clock
        self._slots = config.index_slots
        self._entries = config.index_entries
        self._files: list[IndexFile] = []
        self._deleted = False  # a file went, and its name may come back

    @property
    def headers(self) -> list[tuple[str, IndexHeader]]:
        """(file name, header) of each file."""
        return [(file.path.name, file.header) for file in self._files]

    @property
    def last_indexed(self) -> int:
        """Log offset of the last record with an entry; -1 when there is none."""
        return self.end.end_physical if self._files else -1

    # --- writing ---

    def put(
        self,
        topic: bytes,
        unique_key: bytes | None,
        keys: bytes | None,
        physical_offset: int,
        store_ms: int,
    ) -> None:
        """Index one record under its unique key and each of its space-separated keys. Raises
        IndexUnavailable.
        """
        if physical_offset < self.end.end_physical:
            return
        parts = [unique_key or b"", *(keys or b"").split(b" ")]
        put_keys(self, [key_hash(topic, key) for key in parts if key], physical_offset, store_ms)
        self.end.seal()

    def make_room(self) -> None:
        """Give `end` room for at least one entry: more disk space, or the next file. Raises
        IndexUnavailable.
        """
        try:
            self._make_room()
        except OSError as error:
            raise IndexUnavailable(f"{self.directory}: {error}", error.errno or 0) from error

    def _make_room(self) -> None:
        file = self._files[-1] if self._files else None
        count = self.end.count if file is not None else 0
        if file is None or count >= file.entries_max:
            previous = file.header if file is not None else None
            self.end.close()
            file = IndexFile.create(self._free_name(), self._slots, self._entries, previous)
            self._files.append(file)
            count = 1
        self.end.open(file.view, file.allocate(count))

    def _free_name(self) -> Path:
        """The present local time; counted on from the last file's name when that is not earlier."""
        now_ms = self._clock.now_ms()
        name = (
            time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        )
        if self._files and name <= (last := self._files[-1].path.name):
            name = (
                f"{int(last) + 1:0{NAME_DIGITS}d}"  # the clock went back, or the hour is repeated
            )
        return self.directory / name

    # --- reading ---

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], int, int]:
        """(physical offsets newest first, newest file's end time, newest file's end offset).

        Matches are by hash: other keys may be among them. Times are whole seconds, rounded down.
        """
        found: list[int] = []
        if not self._files:
            return found, 0, 0
        newest = self._files[-1].header
        hashed = key_hash(topic.encode("utf-8", "replace"), key.encode("utf-8", "replace"))
        for file in reversed(self._files):
            header = file.header
            if header.begin_ms <= end_ms and begin_ms <= header.end_ms:
                file.find(hashed, begin_ms, end_ms, found, count_max)
            if header.begin_ms < begin_ms or len(found) >= count_max:
                break
        return found, newest.end_ms, newest.end_physical

    # --- flushing, recovery, retention ---

    def flush(self) -> int:
        """Put everything on the disk; the store time up to which that holds. [thread] Raises
        FlushFailed.
        """
        files = list(self._files)
        reached_ms = files[-1].header.end_ms if files else 0
        for file in files:
            file.sync()
        self.sync_deletions()
        return reached_ms

    def distrust(self) -> None:
        """Files may be gone that another process deleted and the disk still has."""
        self._deleted = self.directory.is_dir()

    def sync_deletions(self) -> None:
        """Let no deleted file come back: it would count as the index of other records. [thread] Raises
        FlushFailed."""
        if self._deleted:
            self._deleted = False
            try:
                fsync_directory(self.directory)
            except OSError as error:
                raise FlushFailed(f"cannot flush {self.directory}: {error}") from error

    def load(self) -> None:
        """Map the files. A damaged one and all newer ones are deleted, to be rebuilt from the log.
        Raises OSError.
        """
        if not self.directory.is_dir():
            return
        damaged = False
        for path in sorted(self.directory.iterdir()):
            if not (path.name.isascii() and path.name.isdigit() and path.is_file()):
                log.warning("not an index file path=%s", path)
                continue
            file = None if damaged else IndexFile.open(path, self._slots)
            if file is not None and file.sound:
                self._files.append(file)
                continue
            damaged = True
            log.warning("index file will be rebuilt path=%s", path)
            if file is not None:
                file.close()
            path.unlink()
            self._deleted = True
        if self._files:
            self._files[-1].undo_unsealed()
        self._continue()

    def drop_newer(self, store_ms: int) -> None:
        """After a power cut: delete files that index messages stored after store_ms, or none, as if they ended at 0;
        and one of which something later came to the disk in part. Raises OSError.
        """
        self.end.close()
        while self._files and self._files[-1].unknown(store_ms):
            self._delete(self._files.pop())
        if self._files and self._files[-1].torn:
            log.warning("index file will be rebuilt path=%s", self._files[-1].path)
            self._delete(self._files.pop())
        self._continue()

    def keep_until(self, physical_offset: int) -> None:
        """Delete files that index records at or behind physical_offset; they are rebuilt from the
        log. Raises OSError.
        """
        self.end.close()
        while self._files and self._files[-1].header.end_physical >= physical_offset:
            file = self._files.pop()
            self._delete(file)
        self._continue()

    def _continue(self) -> None:
        self.end.close()
        if self._files:
            self.end.open(self._files[-1].view, 0)
        else:
            self.end = IndexEnd(self._slots)

    def _delete(self, file: IndexFile) -> None:
        file.close()
        file.path.unlink(missing_ok=True)
        self._deleted = True

    def drop_before(self, log_start: int) -> list[Path]:
        """Delete files that only index deleted records, never the newest file. Raises OSError."""
        dropped = []
        while len(self._files) > 1 and self._files[0].header.end_physical < log_start:
            file = self._files.pop(0)
            self._delete(file)
            dropped.append(file.path)
        return dropped

    def close(self) -> None:
        self.end.close()
        for file in self._files:
            file.close()
        self._files.clear()

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._files)
