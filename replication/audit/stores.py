"""A store directory as an audit sees it: its log, its derived files, what it says of itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.files import LocalFiles, StoreFiles
from tandemmq.replication.audit.kernel import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tandemmq.replication.audit.live import (
    Access,
    BrokerPort,
    LiveFiles,
    LiveLog,
    LiveStore,
    is_live,
    list_store,
)
from tandemmq.replication.audit.shelves import WINDOW_ENTRIES, IndexEntries, Queues, read_index
from tandemmq.replication.audit.source import (
    LocalLog,
    LogSource,
    SegmentFile,
    open_log,
    segment_bytes_of,
)
from tandemmq.replication.epochs import EpochHistory, read_epochs
from tandemmq.replication.errors import CorruptEpochFile, CorruptIdentityFile
from tandemmq.replication.identity import Identity, decode_identity
from tandemmq.storage import QUEUE_ENTRY_BYTES, Checkpoint, SysFlag, load_checkpoint

_WINDOWS_BYTES_MAX: Final = 256 << 20  # of all queues of a broker that are followed at once
_WINDOW_ENTRIES_MAX: Final = 52_428  # 1 MiB
_HEAD: Final = struct.Struct(">4xI28xI")  # magic, sys flag
_LONG: Final = struct.Struct(">q")


@dataclass(slots=True)
class ReplicaStore:
    """One replica's log and, when they can be read, the files beside it.

    root    None when the store is no directory of this machine
    live    what a running broker said when it was opened; None for files
    end     log offset up to which the log is compared: of files where records end, set by
            ends.find_ends(); of a running broker what it has confirmed
    head    where the log ends, what is not confirmed included
    """

    name: str
    log: LogSource
    segment_bytes: int
    segments: list[SegmentFile]
    root: Path | None = None
    files: StoreFiles | None = None
    live: LiveStore | None = None
    checkpoint: Checkpoint | None = None
    epochs: EpochHistory | None = None
    identity: Identity | None = None
    clean: bool = True  # no `abort` file: the broker stopped in order
    end: int = 0
    head: int = 0
    _queues: Queues | None = None

    @property
    def queues(self) -> Queues | None:
        """None where only the log can be reached. Listed when first asked for; raises OSError,
        AuditIncomplete."""
        if self._queues is None and self.files is not None:
            self._queues = Queues(self.files)
            if self.live is not None:  # a request each: as few as memory allows
                count = max(1, len(self._queues.by_name))
                room = _WINDOWS_BYTES_MAX // (QUEUE_ENTRY_BYTES * count)
                self._queues.window_entries = max(WINDOW_ENTRIES, min(room, _WINDOW_ENTRIES_MAX))
        return self._queues

    def index(
        self, slots: int, start: int = 0, end: int = 1 << 62, *, chained: bool = True
    ) -> IndexEntries | None:
        """Its index entries for places in [start, end), as read_index() has them; None where there are
        no files to read. Raises OSError, AuditIncomplete."""
        if self.files is None:
            return None
        growing = self.live is not None
        if isinstance(self.files, LiveFiles):
            slots = self.files.index_slots()
        sealed = self.clean or growing
        return read_index(
            self.files, slots, start, end, chained=chained, growing=growing,
            store_ms_at=self._store_ms_at if sealed else None,
        )  # fmt: skip

    def _store_ms_at(self, offset: int) -> int | None:
        """The store time of the record at a log offset; None when there is none. Raises AuditIncomplete."""
        segment = self.segment_at(offset)
        if segment is None or not self.start <= offset <= self.end - RECORD_BYTES_MIN:
            return None
        head = bytearray(RECORD_BYTES_MIN)
        if self.log.read_into(segment.start, offset, memoryview(head)) < len(head):
            return None
        magic, sys_flag = _HEAD.unpack_from(head)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return None
        (store_ms,) = _LONG.unpack_from(head, 68 if sys_flag & SysFlag.BORN_V6 else 56)
        return int(store_ms)

    def note_position(self) -> None:
        """Take anew how far a running broker's log goes. Raises AuditIncomplete, BadInput."""
        if self.live is not None:
            self.live = list_store(self.live.port)
            self.segments = self.live.files
            self.log = LiveLog(self.live.port, self.segments)
            self.epochs = self.live.epochs
            self.end, self.head = self.live.standing.confirmed, self.live.standing.end

    def why_void(self) -> str:
        """What happened to a running broker since it was opened that makes what was read mean nothing;
        "" for nothing. Raises AuditIncomplete, BadInput."""
        if self.live is None:
            return ""
        now = list_store(self.live.port)
        before, after = self.live.standing, now.standing
        if after.epoch != before.epoch:
            return f"{self.name} went from epoch {before.epoch} to {after.epoch} meanwhile"
        if now.epochs.entries != self.live.epochs.entries:
            return f"{self.name} changed its epochs meanwhile"
        if after.role != before.role:
            return f"{self.name} became {after.role} meanwhile"
        if after.end < self.end:
            return f"{self.name} cut its log to {after.end} meanwhile"
        return ""

    def start_now(self) -> int:
        """Where the log of a running broker begins by now: retention goes on. Raises AuditIncomplete."""
        if self.live is None:
            return self.start
        return self.live.port.standing().start

    @property
    def start(self) -> int:
        return self.segments[0].start if self.segments else self.end

    def present(self, offset: int) -> bool:
        """Whether a file holds the byte at a log offset."""
        segment = self.segment_at(offset)
        return segment is not None and offset < segment.end

    def segment_at(self, offset: int) -> SegmentFile | None:
        """The file of the segment that an offset lies in."""
        start = offset - offset % self.segment_bytes
        return next((segment for segment in self.segments if segment.start == start), None)

    def close(self) -> None:
        self.log.close()
        if self.live is not None:
            self.live.port.close()


def open_replica(
    place: str | Path, name: str, segment_bytes: int = 0, access: Access | None = None
) -> ReplicaStore:
    """Open a store for reading: its root, its commitlog directory, a URI of one, or the HTTP port of the
    broker that runs on it (http://HOST:PORT). Nothing is locked or written.

    segment_bytes  0: taken from the files
    access         what running brokers are read with
    Raises BadInput, AuditIncomplete.
    """
    text = str(place)
    if is_live(text):
        return _open_live(text, name, access or Access())
    if "://" in text:
        log: LogSource = open_log(text.rstrip("/") if _is_log(text) else f"{text}/commitlog")
        segments = log.segments()
        return ReplicaStore(name, log, segment_bytes or segment_bytes_of(segments, text), segments)
    root = Path(text)
    if not root.is_dir():
        raise BadInput(f"{root} is not a directory")
    directory = root if root.name == "commitlog" else root / "commitlog"
    if not directory.is_dir():
        raise BadInput(f"{root} is not a store: it holds no commitlog directory")
    if root.name == "commitlog":
        root = root.parent
    log = LocalLog(directory)
    segments = log.segments()
    size = segment_bytes or segment_bytes_of(segments, str(directory))
    replica = ReplicaStore(name, log, size, segments, root, LocalFiles(root))
    try:
        _read_small_files(replica, root)
    except OSError as problem:
        raise AuditIncomplete(f"cannot read {problem.filename}: {problem.strerror}") from problem
    return replica


def _open_live(url: str, name: str, access: Access) -> ReplicaStore:
    port = BrokerPort(url, access)
    try:
        live = list_store(port)
    except BaseException:
        port.close()
        raise
    standing = live.standing
    return ReplicaStore(
        name,
        LiveLog(port, live.files),
        live.segment_bytes,
        live.files,
        files=LiveFiles(port),
        live=live,
        epochs=live.epochs,
        identity=Identity(standing.cluster, standing.group, standing.broker_id),
        clean=False,
        end=standing.confirmed,
        head=standing.end,
    )


def _is_log(uri: str) -> bool:
    return uri.rstrip("/").endswith("commitlog")


def _read_small_files(replica: ReplicaStore, root: Path) -> None:
    replica.checkpoint = load_checkpoint(root / "checkpoint")
    replica.clean = not (root / "abort").exists()
    try:
        replica.epochs = read_epochs(
            _content(root / "epochFileCheckpoint"), _content(root / "epochFileCheckpoint.bak")
        )
    except CorruptEpochFile as problem:
        raise BadInput(f"{root}/epochFileCheckpoint: {problem}") from problem
    content = _content(root / "brokerIdentity")
    if content:
        try:
            replica.identity = decode_identity(content)
        except CorruptIdentityFile as problem:
            raise BadInput(f"{root}/brokerIdentity: {problem}") from problem


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def check_kinship(reference: ReplicaStore, replica: ReplicaStore) -> None:
    """Raise BadInput when the two cannot be replicas of one broker."""
    if reference.segment_bytes != replica.segment_bytes:
        raise BadInput(
            f"not replicas of one broker: segments of {reference.name} have"
            f" {reference.segment_bytes} bytes, those of {replica.name} {replica.segment_bytes}"
        )
    mine, theirs = reference.identity, replica.identity
    if mine and theirs and (mine.cluster, mine.group) != (theirs.cluster, theirs.group):
        raise BadInput(
            f"not replicas of one broker: {reference.name} is {mine.cluster}#{mine.group},"
            f" {replica.name} is {theirs.cluster}#{theirs.group}"
        )
