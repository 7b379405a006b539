"""Reads the files of replicas after a run: the messages of a log, its reigns, and whether two logs are one.

Standard scanning of storage, no broker: what the processes said while they ran plays no part.
"""

from __future__ import annotations

import mmap
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.chaos.checking.lines import Queue
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.promises import Cut, Stored
from tandemmq.replication.epochs import read_epochs
from tandemmq.storage import CorruptRecord, decode, get_property, scan

BLOCK_BYTES: Final = 1 << 20
UNIQUE_ID: Final = b"UNIQ_KEY"
_CUT_NAME: Final = re.compile(r"epoch-(\d+)-from-(\d+)-to-(\d+)-(\d+)-records\.log")


@dataclass(slots=True)
class ReplicaLog:
    """What one replica's files hold. end: first offset that is no record; problems: what did not parse."""

    start: int = 0
    end: int = 0
    records: int = 0
    queues: dict[Queue, list[Stored]] = field(default_factory=dict)
    reigns: tuple[tuple[int, int], ...] = ()
    problems: list[str] = field(default_factory=list)

    def count(self, topics: Collection[str]) -> int:
        """Messages of these topics."""
        return sum(len(each) for queue, each in self.queues.items() if queue[0] in topics)

    def ids(self, topics: Collection[str] | None = None) -> frozenset[str]:
        """Unique ids of the messages of these topics, or of all that were read."""
        return frozenset(
            message.unique_id
            for queue, messages in self.queues.items()
            if topics is None or queue[0] in topics
            for message in messages
        )


def segments(store: Path) -> list[tuple[int, Path]]:
    """(first offset, file) of the log's files, in order."""
    return sorted((int(path.name), path) for path in (store / "commitlog").glob("[0-9]*"))


def read_log(store: Path, topics: frozenset[str]) -> ReplicaLog:
    """Every message of `topics` in a closed store, checksums verified, in the order of the log."""
    log = ReplicaLog(reigns=read_reigns(store))
    files = segments(store)
    if not files:
        log.problems.append(f"no log in {store}")
        return log
    log.start = log.end = files[0][0]
    for start, path in files:
        if start != log.end:
            break  # the file made in advance, or what a cut left behind
        if path.stat().st_size and not _read_segment(start, path, topics, log):
            break
    return log


def _read_segment(start: int, path: Path, topics: frozenset[str], log: ReplicaLog) -> bool:
    """Add one file's messages; whether the log goes on in the next file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        data = memoryview(view)
        try:
            for head in scan(data, 0, len(data), crc_checked=True):
                if head.blank:
                    log.end = start + len(data)
                    return True
                log.end = start + head.position + head.size
                log.records += 1
                if head.physical_offset != start + head.position:
                    log.problems.append(
                        f"record at {start + head.position} says {head.physical_offset}"
                    )
                topic = head.topic.decode()
                if topic in topics:
                    _add(log, topic, data, start, head.position)
        except CorruptRecord as damage:
            log.problems.append(f"corrupt record in {path}: {damage}")
        finally:
            data.release()
    return False


def _add(log: ReplicaLog, topic: str, data: memoryview, start: int, position: int) -> None:
    record = decode(data, position)
    unique_id = get_property(bytes(record.properties), UNIQUE_ID) or b""
    log.queues.setdefault((topic, record.queue_id), []).append(
        Stored(
            record.queue_offset,
            unique_id.decode(),
            start + position,
            record.size,
            body_hash(bytes(record.body)),
        )
    )


def read_reigns(store: Path) -> tuple[tuple[int, int], ...]:
    """(epoch, first offset) of the epoch file. Raises CorruptEpochFile."""
    path = store / "epochFileCheckpoint"
    contents = [
        each.read_bytes() if each.exists() else None for each in (path, Path(f"{path}.bak"))
    ]
    return tuple((each.number, each.start) for each in read_epochs(*contents).entries)


def blocks(store: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of [start, end), cut at multiples of BLOCK_BYTES; missing bytes come short."""
    files = [(first, first + path.stat().st_size, path) for first, path in segments(store)]
    offset = start
    while offset < end:
        until = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES)
        yield offset, b"".join(_read(files, offset, until))
        offset = until


def _read(files: Sequence[tuple[int, int, Path]], start: int, end: int) -> Iterator[bytes]:
    """Bytes [start, end) of files of which we know (first offset, offset behind the last, path)."""
    for at in range(bisect_right(files, start, key=lambda each: each[1]), len(files)):
        first, after, path = files[at]
        if first >= end:
            return
        low, high = max(start, first), min(end, after)
        if low < high:
            with path.open("rb") as file:
                file.seek(low - first)
                yield file.read(high - low)


def read_cuts(store: Path, topics: frozenset[str]) -> list[Cut]:
    """What a replica set aside before it cut its log. Source: storage/setaside.py."""
    files = segments(store)
    segment_bytes = files[0][1].stat().st_size if files else 0
    cuts = []
    for path in sorted((store / "setaside").glob("*.log")):
        named = _CUT_NAME.fullmatch(path.name)
        if named is None:
            raise ValueError(f"{path} has no name of a file set aside")
        epoch, start, end, records = map(int, named.groups())
        found, unique_ids = _messages_aside(path.read_bytes(), start, segment_bytes, topics)
        cuts.append(Cut(start, end, records, found, unique_ids, epoch))
    return cuts


def _messages_aside(
    content: bytes, start: int, segment_bytes: int, topics: frozenset[str]
) -> tuple[int, frozenset[str]]:
    """(records, unique ids of the topics' messages) in bytes that lay at `start` of a log."""
    records, unique_ids = 0, set()
    at = start
    while at < start + len(content):
        until = min(start + len(content), (at // segment_bytes + 1) * segment_bytes)
        piece = memoryview(content)[at - start : until - start]
        for head in scan(piece, 0, len(piece)):
            if not head.blank:
                records += 1
                unique_id = get_property(head.properties, UNIQUE_ID)
                if unique_id and head.topic.decode() in topics:
                    unique_ids.add(unique_id.decode())
        at = until
    return records, frozenset(unique_ids)
