"""How much of the store is known to be on the disk: RocketMQ's checkpoint, the running mark, and
our queue state.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.storage.config import FlushMode
from tandemmq.storage.directories import fsync_directory
from tandemmq.storage.jsonfile import BAK_SUFFIX, write_atomically

CHECKPOINT_BYTES: Final = 4096
SAFETY_MARGIN_MS: Final = 3_000
FLUSH_MODE_NAME: Final = "flushmode"
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")

_FIELDS = struct.Struct(">qqqqq")


@dataclass(slots=True)
class Checkpoint:
    """Times and offsets below which everything is durable. Each is raised only after the flush it
    speaks of (INV-10).

    physic_ms, logics_ms, index_ms    store times covered by flushed CommitLog, consume queues,
    index files
    Source: RocketMQ's StoreCheckpoint. It raises logics_ms before the flush; ours is a true
    watermark.
    """

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirmed: int = 0

    @property
    def safe_ms(self) -> int:
        """Everything stored up to this time is in the log and in the queues, on disk."""
        return max(0, min(self.physic_ms, self.logics_ms) - SAFETY_MARGIN_MS)

    def lower(self, store_ms: int, log_end: int) -> None:
        """Vouch for nothing stored later, or from log_end on: it is about to be cut off."""
        self.physic_ms = min(self.physic_ms, store_ms)
        self.logics_ms = min(self.logics_ms, store_ms)
        self.index_ms = min(self.index_ms, store_ms)
        self.master_flushed = min(self.master_flushed, log_end)
        self.confirmed = min(self.confirmed, log_end)

    def encode(self) -> bytes:
        packed = _FIELDS.pack(
            self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed, self.confirmed
        )
        return packed.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Anything that cannot be a checkpoint reads as zeros, which means: trust nothing."""
        if len(data) < _FIELDS.size:
            return cls()
        found = cls(*_FIELDS.unpack_from(data))
        if min(found.physic_ms, found.logics_ms, found.index_ms) < 0:
            return cls()
        return found


def load_checkpoint(path: Path) -> Checkpoint:
    """A missing file reads as zeros. Raises OSError."""
    try:
        return Checkpoint.decode(path.read_bytes())
    except FileNotFoundError:
        return Checkpoint()


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Blocking: two fsyncs. Raises OSError."""
    write_atomically(path, checkpoint.encode())


class QueueMark(msgspec.Struct, array_like=True, frozen=True):
    """Where one consume queue stood: its files held [first_offset, max_offset), and the last of these
    entries describes the record that ends at physical_end."""

    first_offset: int
    max_offset: int
    physical_end: int


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """What the derived files held, written by us beside RocketMQ's files (which ignores it) as
    `queuestate`.

    The checkpoint cannot tell which queues there should be; this can, so that one missing queue
    directory is noticed without reading the whole log. Every record below `dispatched` has its
    queue entry and index entries on disk; `last_record` is the position of the last record below
    `dispatched`, or -1.
    """

    version: int = 1
    dispatched: int
    last_record: int
    index_end: int | None = (
        None  # KeyIndex.last_indexed when this was written; None without an index
    )
    queues: dict[str, dict[int, QueueMark]] = {}


def load_queue_state(path: Path) -> QueueState | None:
    """None when there is none that can be trusted: missing, damaged, or of a later version. Raises
    OSError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    checksum, _, text = data.partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        state = msgspec.json.decode(text, type=QueueState)
    except msgspec.DecodeError:
        return None
    return state if state.version == 1 else None


def save_queue_state(path: Path, state: QueueState) -> None:
    """Blocking. Raises OSError."""
    text = msgspec.json.encode(state)
    write_atomically(path, b"%08x\n" % zlib.crc32(text) + text)


def forget_queue_state(path: Path) -> None:
    """Durably: what it says will not be true. Blocking. Raises OSError."""
    path.unlink(missing_ok=True)
    fsync_directory(path.parent)


@dataclass(slots=True)
class RunningMark:
    """The files that say "a broker is running here, or died here": `abort` (RocketMQ's) and
    `bootid` (ours).

    abort     pid as text, its former content kept in abort.bak; removed by a clean stop
    bootid    the same pid and the kernel's boot id. After an unclean stop the same boot id means
    that the page
              cache survived: nothing written was lost. Source: docs/formats.md "Small files".
    flushmode the pid again and "SYNC_FLUSH" or "ASYNC_FLUSH" (ours): how that process ran, whatever
              broker.conf says by now (INV-39)
    received  an empty file (ours): the end of the log came from a master, in pieces, so its last
              record may be there in part. Not synced: after a power cut that is looked for anyway
    """

    root: Path
    boot_id_path: Path = BOOT_ID_PATH
    flush_mode: FlushMode = FlushMode.ASYNC  # of this process
    unclean: bool = field(init=False)
    same_boot: bool = field(init=False)  # only meaningful when unclean
    flushed: bool = field(init=False)  # when unclean: it ran with SYNC_FLUSH, for certain
    received: bool = field(init=False)

    def __post_init__(self) -> None:
        self.received = (self.root / "received").exists()
        abort = _text(self.root / "abort")
        self.unclean = abort is not None
        noted = _text(self.root / "bootid")
        boot_id = self._boot_id()
        # A pid that differs from abort's was noted before another broker (a Java one) ran here.
        self.same_boot = bool(abort and boot_id) and noted == f"{abort} {boot_id}"
        ran = _text(self.root / FLUSH_MODE_NAME)
        self.flushed = bool(abort) and ran == f"{abort} {FlushMode.SYNC.value}"

    def _boot_id(self) -> str:
        return _text(self.boot_id_path) or ""

    def set(self) -> None:
        """Before the first append. bootid and flushmode go first: an abort without them would read
        as another boot, not as ours, and as that of a process that flushed late.
        """
        pid = str(os.getpid())
        abort = self.root / "abort"
        write_atomically(self.root / "bootid", f"{pid} {self._boot_id()}".encode())
        write_atomically(self.root / FLUSH_MODE_NAME, f"{pid} {self.flush_mode.value}".encode())
        write_atomically(
            self.root / ("abort" + BAK_SUFFIX), abort.read_bytes() if abort.exists() else b""
        )
        write_atomically(abort, pid.encode())

    def set_received(self, received: bool) -> None:
        """Before the first piece; and once the log is known to end with a whole record."""
        self.received = received
        if received:
            (self.root / "received").touch()
        else:
            (self.root / "received").unlink(missing_ok=True)

    def forget_boot(self) -> None:
        """After a failed flush the page cache cannot be trusted: the next start must act as after a
        power cut.

        Not synced: after a real one the kernel's boot id is another anyway.
        """
        (self.root / "bootid").unlink(missing_ok=True)

    def clear(self) -> None:
        """At a clean stop, after everything else is on disk."""
        (self.root / "abort").unlink(missing_ok=True)
        (self.root / "bootid").unlink(missing_ok=True)
        (self.root / FLUSH_MODE_NAME).unlink(missing_ok=True)
        fsync_directory(self.root)


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
