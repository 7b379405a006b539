"""What one Spark task does: the kernel over its share of the logs. No Spark in here: executors import it.

A share and its answer are bytes (MessagePack), so nothing is pickled but the name of a function. What
goes wrong is an answer, too: an exception would reach the driver buried in Java's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from tandemmq.replication.audit.blocks import Block, Range, digest_segment
from tandemmq.replication.audit.errors import AuditError
from tandemmq.replication.audit.islands import Compared, find_islands
from tandemmq.replication.audit.kernel import Island
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.rangecheck import Interval, RangeReport, Shelf, check_range
from tandemmq.replication.audit.stores import ReplicaStore, open_replica

Share = TypeVar("Share")


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A piece of one segment of one replica, as log offsets."""

    replica: str
    start: int
    end: int


class DigestShare(msgspec.Struct):
    """Level 1: blocks to digest."""

    places: dict[str, str]
    access: Access
    segment_bytes: int
    parts: list[Part]


class DigestAnswer(msgspec.Struct):
    """The digests of a share, by replica."""

    blocks: dict[str, list[Block]] = {}
    problem: str = ""


class DiffShare(msgspec.Struct):
    """Level 2: differing ranges to compare record by record."""

    reference: str
    replica: str
    access: Access
    segment_bytes: int
    ranges: list[Range]
    end: int


class DiffAnswer(msgspec.Struct):
    """The islands of a share."""

    islands: list[Island] = []
    equal_records: int = 0
    padding_bytes: int = 0
    problem: str = ""


class CheckShare(msgspec.Struct):
    """Level 3: a range of the reference's log, against every replica's derived files."""

    places: dict[str, str]  # the reference first
    access: Access
    segment_bytes: int
    ends: dict[str, int]
    masks: dict[str, list[Interval]]
    islands: list[Interval]
    start: int
    end: int
    index_slots: int
    delay_levels: str


class CheckAnswer(msgspec.Struct):
    """What the pass over a share's range found."""

    report: RangeReport | None = None
    problem: str = ""


def digest(shares: Iterable[bytes]) -> Iterator[bytes]:
    """DigestShares to DigestAnswers."""
    for share in shares:
        yield _answered(_digest, msgspec.msgpack.decode(share, type=DigestShare), DigestAnswer)


def diff(shares: Iterable[bytes]) -> Iterator[bytes]:
    """DiffShares to DiffAnswers."""
    for share in shares:
        yield _answered(_diff, msgspec.msgpack.decode(share, type=DiffShare), DiffAnswer)


def check(shares: Iterable[bytes]) -> Iterator[bytes]:
    """CheckShares to CheckAnswers."""
    for share in shares:
        yield _answered(_check, msgspec.msgpack.decode(share, type=CheckShare), CheckAnswer)


def _answered(
    act: Callable[[Share], msgspec.Struct], share: Share, kind: Callable[..., msgspec.Struct]
) -> bytes:
    answer: msgspec.Struct
    try:
        answer = act(share)
    except (AuditError, OSError) as problem:
        answer = kind(problem=str(problem))
    return msgspec.msgpack.encode(answer)


def _digest(share: DigestShare) -> DigestAnswer:
    answer = DigestAnswer()
    opened: dict[str, ReplicaStore] = {}
    try:
        for part in share.parts:
            if part.replica not in opened:
                opened[part.replica] = open_replica(
                    share.places[part.replica], part.replica, share.segment_bytes, share.access
                )
            log = opened[part.replica].log
            segment = part.start - part.start % share.segment_bytes
            found = answer.blocks.setdefault(part.replica, [])
            found.extend(digest_segment(log, segment, part.start, part.end))
    finally:
        for replica in opened.values():
            replica.close()
    return answer


def _diff(share: DiffShare) -> DiffAnswer:
    compared = Compared()
    reference = open_replica(share.reference, "reference", share.segment_bytes, share.access)
    try:
        replica = open_replica(share.replica, "replica", share.segment_bytes, share.access)
        try:
            islands = find_islands(reference, replica, share.ranges, share.end, compared)
        finally:
            replica.close()
    finally:
        reference.close()
    return DiffAnswer(islands, compared.records, compared.padding_bytes)


def _check(share: CheckShare) -> CheckAnswer:
    opened: list[ReplicaStore] = []
    try:
        for name, place in share.places.items():
            replica = open_replica(place, name, share.segment_bytes, share.access)
            replica.end = share.ends[name]
            opened.append(replica)
        shelves = [
            Shelf(
                replica,
                share.masks.get(replica.name, []),
                replica.index(share.index_slots, share.start, share.end, chained=False),
            )
            for replica in opened
        ]
        report = check_range(
            opened[0], shelves, share.islands, share.start, share.end, share.delay_levels
        )
    finally:
        for replica in opened:
            replica.close()
    return CheckAnswer(report)
