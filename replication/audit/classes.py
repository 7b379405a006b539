"""What a difference is called, and how bad it is. Pure decisions over what the kernel counted.

Which side is right is decided only by checksums and epochs, never by who is master: a replica can be the
healthy one. Source: docs/audit.md "Classes".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.replication.audit.kernel import FIELD_BIT, FIELDS, Island
from tandemmq.replication.epochs import EpochHistory


class Severity(enum.StrEnum):
    """How much a row matters; decides the exit code."""

    CRITICAL = "critical"
    WARN = "warn"
    INFO = "info"


class DivergenceClass(enum.StrEnum):
    """The names of differences between two replicas."""

    LAG = "LAG"
    AHEAD = "AHEAD"
    MISSING_SEGMENT = "MISSING_SEGMENT"
    SHORT_FILE = "SHORT_FILE"
    HOLE = "HOLE"
    CRC_SLAVE = "CRC_SLAVE"
    CRC_MASTER = "CRC_MASTER"
    CRC_BOTH = "CRC_BOTH"
    CONTENT_DIFF = "CONTENT_DIFF"
    HEADER_DIFF = "HEADER_DIFF"
    TOPIC_DIFF = "TOPIC_DIFF"
    PROPS_DIFF = "PROPS_DIFF"
    FRAMING = "FRAMING"
    GARBAGE = "GARBAGE"
    ORDER = "ORDER"
    FORK = "FORK"
    REWRITTEN = "REWRITTEN"


class Side(enum.StrEnum):
    """Who is damaged, as far as checksums tell."""

    REFERENCE = "reference"
    REPLICA = "replica"
    BOTH = "both"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An island's name."""

    kind: DivergenceClass
    side: Side
    fields: tuple[str, ...] = ()
    detail: str = ""


HOLE_BYTES_MIN: Final = 256  # fewer zeros than that are no hole, but a damaged field
_BODY: Final = FIELD_BIT["body"]
_TOPIC: Final = FIELD_BIT["topic"]
_PROPERTIES: Final = FIELD_BIT["properties"]
_CRC: Final = FIELD_BIT["body_crc"]
_TEXTS: Final = _BODY | _TOPIC | _PROPERTIES | FIELD_BIT["lengths"]


def classify(island: Island, reference_file_end: int, replica_file_end: int, end: int) -> Verdict:
    """Name one island.

    *_file_end  where the file ends on each side, if it ends inside the island's last segment
    end         the end of the compared range
    """
    if island.junk_a or island.junk_b:
        return _unreadable(island, reference_file_end, replica_file_end)
    fields = field_names(island.fields)
    whole = island.at_end and island.end >= end
    if island.records_a >= 2 and same_records(island):
        return Verdict(DivergenceClass.ORDER, Side.UNKNOWN, (), "same records, other places")
    if island.bad_crc_a or island.bad_crc_b:
        return _bad_checksum(island, fields)
    if not island.paired:
        kind = DivergenceClass.FORK if whole else DivergenceClass.REWRITTEN
        return Verdict(kind, Side.UNKNOWN, (), _counts(island))
    return _paired(island, fields, whole)


def same_records(island: Island) -> bool:
    """Whether both sides hold the same records in another order."""
    return island.records_a == island.records_b and island.content_a == island.content_b


def exchanged(islands: Sequence[Island]) -> set[int]:
    """Indexes of islands that hold each other's records: two records far apart changed places."""
    places: dict[tuple[int, int], list[int]] = {}
    for index, island in enumerate(islands):
        if not island.junk_a and not island.junk_b and island.content_a != island.content_b:
            places.setdefault((island.content_a, island.content_b), []).append(index)
    found = set()
    for (a, b), indexes in places.items():
        if (b, a) in places:
            found.update(indexes)
    return found


def _unreadable(island: Island, reference_end: int, replica_end: int) -> Verdict:
    if island.junk_a and island.junk_b:
        side = Side.BOTH
    else:
        side = Side.REFERENCE if island.junk_a else Side.REPLICA
    detail = _counts(island)
    ends = (reference_end, replica_end)
    short = [end for end in ends if island.start <= end < island.end]
    if short:
        side = Side.REFERENCE if reference_end < replica_end else Side.REPLICA
        return Verdict(DivergenceClass.SHORT_FILE, side, (), f"the file ends at {min(short)}")
    zeroed = island.zeroed_b if side is not Side.REFERENCE else island.zeroed_a
    if island.differing >= HOLE_BYTES_MIN and zeroed * 10 >= island.differing * 9:
        return Verdict(DivergenceClass.HOLE, side, (), f"{zeroed} bytes are zero; {detail}")
    sound = island.records_a if side is not Side.REFERENCE else island.records_b
    there = island.records_b if side is not Side.REFERENCE else island.records_a
    kind = DivergenceClass.FRAMING if sound - there <= 1 else DivergenceClass.GARBAGE
    return Verdict(kind, side, (), detail)


def _bad_checksum(island: Island, fields: tuple[str, ...]) -> Verdict:
    span = f"{island.differing} bytes differ in {island.diff_start}..{island.diff_end}"
    zeroed = max(island.zeroed_a, island.zeroed_b)
    if zeroed * 10 >= island.differing * 9:
        span += f", {zeroed} of them zero"
    if island.bad_crc_a and island.bad_crc_b:
        return Verdict(DivergenceClass.CRC_BOTH, Side.BOTH, fields, span)
    if island.bad_crc_a:
        return Verdict(DivergenceClass.CRC_MASTER, Side.REFERENCE, fields, span)
    return Verdict(DivergenceClass.CRC_SLAVE, Side.REPLICA, fields, span)


def _paired(island: Island, fields: tuple[str, ...], whole: bool) -> Verdict:
    detail = f"{island.differing} bytes differ in {island.diff_start}..{island.diff_end}"
    header = island.fields & ~_TEXTS & ~_CRC
    body = island.fields & _BODY
    if header and (body or (whole and island.records_a > 1)):
        kind = DivergenceClass.FORK if whole else DivergenceClass.REWRITTEN
    elif body or island.fields & _CRC:
        kind = DivergenceClass.CONTENT_DIFF
    elif header or island.fields & FIELD_BIT["lengths"]:
        kind = DivergenceClass.HEADER_DIFF
    elif island.fields & _TOPIC:
        kind = DivergenceClass.TOPIC_DIFF
    else:
        kind = DivergenceClass.PROPS_DIFF
    return Verdict(kind, Side.UNKNOWN, fields, detail)


def _counts(island: Island) -> str:
    texts = [f"records {island.records_a} : {island.records_b}"]
    if island.junk_a or island.junk_b:
        texts.append(f"unreadable bytes {island.junk_a} : {island.junk_b}")
    if island.misplaced_a or island.misplaced_b:
        texts.append(f"misplaced records {island.misplaced_a} : {island.misplaced_b}")
    return ", ".join(texts)


def field_names(mask: int) -> tuple[str, ...]:
    """The names of Island.fields' bits."""
    return tuple(name for bit, name in enumerate(FIELDS) if mask >> bit & 1)


def severity_of(kind: DivergenceClass, lag_bytes: int = 0, lag_warn_bytes: int = 0) -> Severity:
    """Everything but lag is critical; lag is a warning from a threshold on."""
    if kind is not DivergenceClass.LAG:
        return Severity.CRITICAL
    return Severity.WARN if lag_bytes >= lag_warn_bytes else Severity.INFO


def fork_detail(mine: EpochHistory | None, theirs: EpochHistory | None) -> str:
    """What the epoch lists say of where two histories part."""
    if mine is None or theirs is None or not mine.entries or not theirs.entries:
        return "no epochs are known"
    known = {entry.number: entry.start for entry in theirs.entries}
    for entry in reversed(mine.entries):
        if known.get(entry.number) == entry.start:
            return f"last common epoch {entry.number} from offset {entry.start}"
    return "the epoch lists have nothing in common"
