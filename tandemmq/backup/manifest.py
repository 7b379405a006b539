"""What one increment of a backup says of itself, as a file: a line with a checksum, then one line of JSON.

    {"format":1,"sha256":"..."}        SHA-256 of the second line, without its line end
    {"number":1,"chain":...}           a Manifest

`previous` holds the SHA-256 of the line of the increment before, so a chain from which one was taken out, or in which
one was exchanged, does not fit together.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from tandemmq.backup.errors import BackupDamaged
from tandemmq.replication.epochs import Epoch, EpochHistory

FORMAT: Final = 1
TAIL_BYTES: Final = 64 << 10
_NAME: Final = re.compile(r"(?!\.\.?$)[^/\x00-\x1f\x7f]{1,255}").fullmatch


class Piece(msgspec.Struct, frozen=True, rename="camel"):
    """log[start, end), out of one segment, in a file of its own.

    first_store_ms  store time of its first record; 0 where it begins with what fills a segment up
    """

    start: int
    end: int
    file: str
    sha256: str
    first_store_ms: int = 0


class SavedTable(msgspec.Struct, frozen=True):
    """A file of the store's config directory, e.g. topics.json."""

    name: str
    file: str
    size: int
    sha256: str


class Tail(msgspec.Struct, frozen=True):
    """SHA-256 of the last bytes of the log that are in the backup.

    A record says where it stands and when it was stored, so two logs that agree in their last records are one log.
    """

    start: int
    end: int
    sha256: str


class Layout(msgspec.Struct, frozen=True, rename="camel"):
    """File sizes of the store, and what its delay levels mean. 0: not known."""

    segment_bytes: int
    queue_file_bytes: int = 0
    index_slots: int = 0
    index_entries: int = 0
    delay_levels: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One increment: log[start, end), and the tables as they were beside it.

    chain      name of the chain it belongs to, a directory below that of the group
    previous   SHA-256 of the manifest before; "" of the first
    directory  where its files lie, beside this manifest
    epochs     which master wrote which range; empty in classic replication
    began_ms   when the copy began, by the clock of the machine that made it
    """

    number: int
    chain: str
    previous: str
    directory: str
    cluster: str
    group: str
    broker_id: int
    role: str
    source: str
    version: str
    began_ms: int
    ended_ms: int
    start: int
    end: int
    layout: Layout
    epochs: tuple[tuple[int, int], ...] = ()
    pieces: tuple[Piece, ...] = ()
    tables: tuple[SavedTable, ...] = ()
    tail: Tail | None = None

    @property
    def history(self) -> EpochHistory:
        return EpochHistory(tuple(Epoch(number, start) for number, start in self.epochs))

    def table(self, name: str) -> SavedTable | None:
        return next((each for each in self.tables if each.name == name), None)


class _Seal(msgspec.Struct):
    format: int
    sha256: str


def encode(manifest: Manifest) -> bytes:
    """The file's content."""
    line = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Seal(FORMAT, digest(line))) + b"\n" + line + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """The manifest in a file's content. Raises BackupDamaged."""
    seal_line, _, rest = data.partition(b"\n")
    line = rest.removesuffix(b"\n")
    try:
        seal = msgspec.json.decode(seal_line, type=_Seal)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BackupDamaged(f"{where} is damaged: {problem}") from problem
    if seal.format != FORMAT:
        raise BackupDamaged(
            f"{where} has format {seal.format}, this release reads {FORMAT}: use the release that wrote it"
        )
    if seal.sha256 != digest(line):
        raise BackupDamaged(f"{where} is damaged: its checksum is wrong")
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BackupDamaged(f"{where} is damaged: {problem}") from problem
    if wrong := _wrong(manifest):
        raise BackupDamaged(f"{where} is no manifest of ours: {wrong}")
    return manifest


def _wrong(manifest: Manifest) -> str:
    """What no backup of ours says. A checksum is no signature: a name that leads out of its place, or a line of
    settings in a name, is in a file that somebody else made."""
    names = [manifest.group, manifest.cluster, manifest.chain, manifest.directory]
    names += [each.file for each in manifest.pieces]
    names += [each.file for each in manifest.tables]
    for name in names:
        if not _NAME(name):
            return f"{name!r} is no name"
    layout = manifest.layout
    sizes = layout.segment_bytes, layout.queue_file_bytes, layout.index_slots, layout.index_entries
    if min(sizes) < 0 or not layout.segment_bytes or not layout.delay_levels.isprintable():
        return f"no store has the layout {layout}"
    for piece in manifest.pieces:
        segment = piece.start // layout.segment_bytes
        if not 0 <= piece.start < piece.end <= (segment + 1) * layout.segment_bytes:
            return f"[{piece.start}, {piece.end}) is in no single segment"
    return ""


def seal_of(manifest: Manifest) -> str:
    """What the next increment says of this one."""
    return digest(msgspec.json.encode(manifest))


def digest(data: bytes | bytearray | memoryview) -> str:
    """SHA-256, in hex digits."""
    return hashlib.sha256(data).hexdigest()
