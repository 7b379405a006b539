"""A store directory as an audit sees it: its log, its derived files, what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from replication.audit.errors import AuditIncomplete, BadInput
from replication.audit.shelves import Queues
from replication.audit.source import (
    LocalLog,
    LogSource,
    SegmentFile,
    open_log,
    segment_bytes_of,
)
from replication.epochs import EpochHistory, read_epochs
from replication.errors import CorruptEpochFile, CorruptIdentityFile
from replication.identity import Identity, decode_identity
from storage.checkpoint import Checkpoint, load_checkpoint


@dataclass(slots=True)
class Replica:
    """One replica's log and, when its directory can be read here, the files beside it.

    root    None when only the log can be reached (an object store, an executor)
    end     log offset up to which the log holds records; set by ends.find_ends()
    """

    name: str
    log: LogSource
    segment_bytes: int
    segments: list[SegmentFile]
    root: Path | None = None
    queues: Queues | None = None
    checkpoint: Checkpoint | None = None
    epochs: EpochHistory | None = None
    identity: Identity | None = None
    clean: bool = True  # no `abort` file: the broker stopped in order
    end: int = 0

    @property
    def start(self) -> int:
        return self.segments[0].start

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


def open_replica(place: str | Path, name: str, segment_bytes: int = 0) -> Replica:
    """Open a store root, a commitlog directory or a URI of one for reading. Nothing is locked or written.

    segment_bytes  0: taken from the files
    Raises BadInput, AuditIncomplete.
    """
    text = str(place)
    if "://" in text:
        log: LogSource = open_log(text.rstrip("/") if _is_log(text) else f"{text}/commitlog")
        segments = log.segments()
        return Replica(name, log, segment_bytes or segment_bytes_of(segments, text), segments)
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
    replica = Replica(name, log, size, segments, root)
    try:
        _read_small_files(replica, root)
    except OSError as problem:
        raise AuditIncomplete(f"cannot read {problem.filename}: {problem.strerror}") from problem
    return replica


def _is_log(uri: str) -> bool:
    return uri.rstrip("/").endswith("commitlog")


def _read_small_files(replica: Replica, root: Path) -> None:
    replica.queues = Queues(root)
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


def check_kinship(reference: Replica, replica: Replica) -> None:
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
