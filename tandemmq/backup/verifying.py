"""Read a backup as a restore would, and say what is not as it was written."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.backup.errors import BackupDamaged
from tandemmq.backup.manifest import Manifest, Piece
from tandemmq.backup.places import Place
from tandemmq.backup.progress import Report
from tandemmq.backup.shelf import Shelf, path_of, read_checked, read_table
from tandemmq.storage import CorruptRecord, scan


@dataclass(slots=True)
class Verified:
    """What was read, and what was wrong with it."""

    group: str
    chains: int = 0
    increments: int = 0
    read_bytes: int = 0
    records: int = 0  # 0 where they were not looked at
    problems: list[str] = field(default_factory=list)
    leftover: list[str] = field(default_factory=list)


def bytes_of(shelf: Shelf) -> int:
    """How much verify() will read."""
    return sum(each.end - each.start for chain in shelf.chains.values() for each in chain)


def verify(place: Place, shelf: Shelf, *, records: bool, report: Report) -> Verified:
    """Every file of every chain against its checksum.

    records  also each record: its length, its place, the checksum of its body
    Raises OSError where the place cannot be read.
    """
    found = Verified(shelf.group, problems=list(shelf.damaged.values()), leftover=shelf.leftover)
    for chain in shelf.chains.values():
        found.chains += 1
        for manifest in chain:
            found.increments += 1
            _verify_increment(place, manifest, records, report, found)
    return found


def _verify_increment(
    place: Place, manifest: Manifest, records: bool, report: Report, found: Verified
) -> None:
    for piece in manifest.pieces:
        walk = _Records(manifest, piece) if records else None
        path = path_of(manifest, piece.file)
        try:
            for data in read_checked(place, path, piece.end - piece.start, piece.sha256):
                found.read_bytes += len(data)
                report(len(data))
                if walk is not None:
                    walk.take(data)
            if walk is not None:
                walk.end()
        except BackupDamaged as problem:
            found.problems.append(str(problem))
        if walk is not None:
            found.records += walk.count
    for table in manifest.tables:
        try:
            found.read_bytes += len(read_table(place, manifest, table))
        except BackupDamaged as problem:
            found.problems.append(str(problem))


class _Records:
    """Walks the records of one piece as its bytes come."""

    def __init__(self, manifest: Manifest, piece: Piece) -> None:
        self.count = 0
        self._where = path_of(manifest, piece.file)
        self._at = piece.start
        self._left = bytearray()
        self._blank = False

    def take(self, data: bytes) -> None:
        """Raises BackupDamaged for a record that is whole and wrong."""
        if self._blank:
            return  # what fills a segment up means nothing
        self._left += data
        done = 0
        view = bytes(self._left)
        try:
            for head in scan(view, 0, len(view), crc_checked=True):
                if head.blank:
                    self._blank = True
                    break
                if head.physical_offset != self._at + head.position:
                    raise BackupDamaged(
                        f"{self._where}: the record at {self._at + head.position} says it stands"
                        f" at {head.physical_offset}"
                    )
                self.count += 1
                done = head.position + head.size
        except CorruptRecord as problem:
            raise BackupDamaged(
                f"{self._where}: the record at {self._at} or behind it is damaged, as it was at its broker: {problem}"
            ) from problem
        self._at += done
        del self._left[:done]

    def end(self) -> None:
        """Raises BackupDamaged where the piece does not end with a record."""
        if self._left and not self._blank:
            raise BackupDamaged(f"{self._where}: no record at {self._at}")
