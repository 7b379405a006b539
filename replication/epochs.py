"""Which master wrote which range of the log, and where two histories part.

The file epochFileCheckpoint, text, one item a line:

    line   content
    1      number of entries
    2      CRC-32 of the entry lines, each with its line end, masked with 0x7FFFFFFF; 0: do not check
    3...   EPOCH-START_OFFSET, epochs strictly increasing, offsets not decreasing

Source: RocketMQ's EpochFileCache, CheckpointFile. Reading and writing files is the shell's: write_atomically keeps
the previous generation as .bak.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandemmq.replication.errors import CorruptEpochFile

EPOCH_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
NO_OFFSET: Final = -1  # what a stock master with an empty log sends in heartbeats
#: no history of ours has more, so neither a file nor a frame with more is one. Retention keeps most far below; where
#: nothing is ever deleted, this is a failover an hour for more than a year
ENTRIES_MAX: Final = 10_000

_ENTRY: Final = re.compile(r"(\d{1,10})-(\d{1,19})")


class Epoch(NamedTuple):
    """One master's reign: `number` from the controller, the log from `start` on until the next entry's start."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The reigns a log has seen, oldest first. Immutable: a change is a new history, persisted before it is used.

    An entry says that the log up to the entry's end is what its master wrote and had taken over; so who shares an
    entry with us shares all that lies below its end.
    INV-20 epochs strictly increase, starts never decrease, and no entry but the last is empty.
    """

    entries: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            assert before.number < after.number, f"epochs {before} {after}"  # INV-20
            assert before.start < after.start, f"starts {before} {after}"  # INV-20

    @property
    def last(self) -> int:
        """The highest epoch, 0 without any."""
        return self.entries[-1].number if self.entries else 0

    @property
    def last_start(self) -> int:
        return self.entries[-1].start if self.entries else 0

    @property
    def before_last(self) -> int:
        """The reign that wrote the byte before the last one's first; 0 when the log has none there."""
        return self.entries[-2].number if len(self.entries) > 1 else 0

    def begin(self, number: int, start: int) -> EpochHistory:
        """This history with a new reign. An empty reign that starts at the same offset is replaced, not kept.

        Keeping it would give two masters' bytes one (epoch, start), and equal entries must mean equal bytes.
        One entry too many, and the oldest two become one, with the later number and the earlier start: true of the log
        as the later one was, equal to no other entry than one that was made of the same reigns. A replica that parted
        from us in there finds nothing in common but the beginning. Forgetting the oldest outright would move the
        beginning, below which bytes are taken on trust.
        """
        assert number > self.last or not self.entries, f"epoch {number} after {self.last}"
        kept = self.entries
        while kept and kept[-1].start >= start:
            assert kept[-1].start == start, f"epoch {number} starts at {start}, inside {kept[-1]}"
            kept = kept[:-1]
        if len(kept) >= ENTRIES_MAX:
            oldest, following, *later = kept
            kept = (Epoch(following.number, oldest.start), *later)
        return EpochHistory((*kept, Epoch(number, start)))

    def cut(self, end: int) -> EpochHistory:
        """This history for a log that ends at `end`: reigns that begin at or behind it are gone."""
        kept = self.entries
        while kept and kept[-1].start >= end:
            kept = kept[:-1]
        return self if len(kept) == len(self.entries) else EpochHistory(kept)

    def drop_before(self, start: int) -> EpochHistory:
        """This history for a log whose retention removed everything before `start`.

        A reign that ends right at `start` stays: a log may part there, without lacking a byte.
        A dropped reign ended below `start`, so two logs that part in it part where one of them has no bytes left, and
        one of the two must be seeded anew in any case; the suffix that both kept finds every other common point. What
        is first after a drop keeps its true start, which lies below `start` too: where common_end() falls back on equal
        first starts, or a slave without reigns on trust, the point found is one that either log refuses.
        """
        entries = self.entries
        dropped = 0
        while dropped + 1 < len(entries) and entries[dropped + 1].start < start:
            dropped += 1
        return EpochHistory(entries[dropped:]) if dropped else self

    def at(self, offset: int) -> Epoch | None:
        """Whose reign wrote the byte at `offset`; None before the first entry."""
        for entry in reversed(self.entries):
            if entry.start <= offset:
                return entry
        return None

    def end_of_reign(self, number: int, log_end: int) -> int:
        """Exclusive end of an epoch's range in a log that ends at log_end; log_end for the last one."""
        for entry, after in zip(self.entries, self.entries[1:], strict=False):
            if entry.number == number:
                return after.start
        return log_end


def common_end(mine: EpochHistory, my_end: int, theirs: EpochHistory, their_end: int) -> int | None:
    """Where two logs part: everything below is equal in both. None: they share nothing that we know of.

    Walks my reigns from the last one back to one that the other side knows with the same start, and takes the
    shorter end of it. Comparing lengths instead is wrong: two logs of equal length can differ
    (tests/replication/scripts/equal_length_divergence.txt).
    """
    known = {entry.number: entry.start for entry in theirs.entries}
    for entry in reversed(mine.entries):
        if known.get(entry.number) == entry.start:
            return min(
                mine.end_of_reign(entry.number, my_end),
                theirs.end_of_reign(entry.number, their_end),
            )
    # No reign in common, but both began to keep count at the same offset: there, at the latest, they part. It happens
    # when the first master lost all it had written and began again.
    if mine.entries and theirs.entries and mine.entries[0].start == theirs.entries[0].start:
        return mine.entries[0].start
    return None


def encode_epochs(history: EpochHistory) -> bytes:
    """The file's content."""
    lines = "".join(f"{entry.number}-{entry.start}\n" for entry in history.entries).encode()
    crc = zlib.crc32(lines) & 0x7FFFFFFF
    return b"%d\n%d\n" % (len(history.entries), crc) + lines


def decode_epochs(content: bytes) -> EpochHistory:
    """The history in a file's content, with either line end. Raises CorruptEpochFile."""
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as problem:
        raise CorruptEpochFile("not text") from problem
    lines = text.splitlines(keepends=True)
    if len(lines) < 2 or not all(line.strip().isdigit() for line in lines[:2]):
        raise CorruptEpochFile("no entry count and checksum")
    count, crc = int(lines[0][:20]), int(lines[1][:20])
    body = [line for line in lines[2:] if line.strip()]
    if count != len(body) or count > ENTRIES_MAX:
        raise CorruptEpochFile(f"{len(body)} entries, the first line says {count}")
    if crc and crc != zlib.crc32("".join(body).encode()) & 0x7FFFFFFF:
        raise CorruptEpochFile("wrong checksum")
    entries: list[Epoch] = []
    for line in body:
        found = _ENTRY.fullmatch(line.strip())
        if found is None:
            raise CorruptEpochFile(f"not EPOCH-OFFSET: {line.strip()[:40]!r}")
        entry = Epoch(int(found[1]), int(found[2]))
        if entry.number > EPOCH_MAX or entry.start > OFFSET_MAX:
            raise CorruptEpochFile(f"out of range: {line.strip()}")
        if entries and entry.number <= entries[-1].number:
            raise CorruptEpochFile(f"epoch {entry.number} after {entries[-1].number}")
        if entries and entry.start < entries[-1].start:
            raise CorruptEpochFile(f"offset {entry.start} after {entries[-1].start}")
        if entries and entry.start == entries[-1].start:
            entries.pop()  # RocketMQ may have kept an empty reign
        entries.append(entry)
    return EpochHistory(tuple(entries))


def read_epochs(content: bytes | None, previous: bytes | None) -> EpochHistory:
    """The history out of the file's content and that of its .bak; None for a file that is not there.

    An empty or damaged file gives way to the previous generation. Raises CorruptEpochFile when there is content
    and none of it can be read: that is no fresh replica.
    """
    problem: CorruptEpochFile | None = None
    for generation in (content, previous):
        if generation:
            try:
                return decode_epochs(generation)
            except CorruptEpochFile as damaged:
                problem = problem or damaged
    if problem is not None:
        raise problem
    return EpochHistory()
