"""Reads a store without changing it: what is in it, and is it sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.storage import jsonfile
from tandemmq.storage.checkpoint import Checkpoint, load_checkpoint, load_queue_state
from tandemmq.storage.codec import has_queue_entry, queue_tags_code, scan
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.derivation import NOTHING_WRITTEN, check
from tandemmq.storage.dispatch import parse_delay_levels
from tandemmq.storage.errors import CorruptFile, NotAStore
from tandemmq.storage.keyindex import IndexFile
from tandemmq.storage.queuefiles import BLANK_SIZE
from tandemmq.storage.record import DELAY_TOPIC
from tandemmq.storage.tombstones import Tombstones

TEXTS_MAX: Final = 1000
_OTHER_SLOTS: Final = (
    "is not looked into: made with another number of slots (maxHashSlotNum is a setting, no damage)"
)
_OTHER_LEVELS: Final = (
    "messages are due by another messageDelayLevel than is known here (a setting, no damage)"
)
_EXTENDED: Final = (
    "have an address in consumequeue_ext where the code of a tag belongs (enableConsumeQueueExt)"
)
_EXTENDED_MAX: Final = -(1 << 62)  # such an address is -2**63 plus a file position
_DELAY_TOPIC: Final = DELAY_TOPIC.decode()


@dataclass(slots=True)
class QueueReport:
    """One consume queue as its files say, and what the log says of it."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: int


@dataclass(slots=True)
class Report:
    """What inspect_store() found. `problems` is empty for a sound store, `notes` tell oddities that
    recovery mends by itself."""

    path: str
    running_or_crashed: bool = False
    log_files: int = 0
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    log_why: str = ""
    queues: list[QueueReport] = field(default_factory=list)
    index_files: list[tuple[str, int]] = field(default_factory=list)  # name, entries
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    config_files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"store {self.path}"
        state = "running, or not closed cleanly" if self.running_or_crashed else "closed cleanly"
        yield f"state {state}"
        yield (
            f"log files={self.log_files} start={self.log_start} end={self.log_end} "
            f"records={self.records}"
        )
        yield (
            f"checkpoint log_ms={self.checkpoint.physic_ms} queues_ms={self.checkpoint.logics_ms} "
            f"index_ms={self.checkpoint.index_ms}"
        )
        for queue in self.queues:
            yield (
                f"queue {queue.topic}-{queue.queue_id} min={queue.min_offset} "
                f"max={queue.max_offset} files={queue.files}"
            )
        for name, entries in self.index_files:
            yield f"index {name} entries={entries}"
        for name in self.config_files:
            yield f"config {name}"
        for text in self.notes:
            yield f"note {text}"
        for text in self.problems:
            yield f"PROBLEM {text}"
        yield "sound" if self.sound else f"NOT SOUND: {len(self.problems)} problems"


def inspect_store(path: str | Path, config: StorageConfig | None = None) -> Report:
    """Look at a store directory, running or not, without lock and without writing.

    config  sizes of the files; without it they are taken from the files themselves
    While a broker is appending, its newest messages may be reported as missing from the queues.
    Raises NotAStore, OSError.
    """
    root = Path(path)
    config = config or store_config(root)
    report = Report(str(root))
    report.running_or_crashed = (root / "abort").exists()
    _inspect_small_files(root, report)
    log_ = CommitLog(config, read_only=True)
    log_.load()
    try:
        expected = _inspect_log(log_, config, report)
        _inspect_queues(root, config, report, expected)
        _inspect_index(root, config, report)
    finally:
        log_.close()
    return report


def store_config(root: Path) -> StorageConfig:
    """Settings to read a store with: file sizes as its files have them, else defaults. Raises NotAStore."""
    if not (root / "commitlog").is_dir() and not (root / "lock").is_file():
        raise NotAStore(f"{root} holds neither a commitlog directory nor a broker's lock file")
    defaults = StorageConfig(root=str(root))
    return StorageConfig(
        root=str(root),
        segment_bytes=_size_of_first(root, "commitlog/*") or defaults.segment_bytes,
        queue_segment_bytes=_size_of_first(root, "consumequeue/*/*/*")
        or defaults.queue_segment_bytes,
    )


def _size_of_first(root: Path, pattern: str) -> int:
    sizes = (file.stat().st_size for file in sorted(root.glob(pattern)))
    return next((size for size in sizes if size), 0)


def _inspect_small_files(root: Path, report: Report) -> None:
    report.checkpoint = load_checkpoint(root / "checkpoint")
    if (root / "queuestate").exists() and load_queue_state(root / "queuestate") is None:
        report.notes.append("queuestate cannot be read; the next start reads the whole log instead")
    for file in sorted((root / "config").glob("*.json")):
        report.config_files.append(file.name)
        try:
            jsonfile.load(file)
        except CorruptFile as error:
            report.problems.append(f"config file unreadable: {error}")


Entries = dict[tuple[str, int], dict[int, tuple[int, int, int]]]


def _inspect_log(log_: CommitLog, config: StorageConfig, report: Report) -> Entries:
    """Walk every record with its checksum; what each consume queue ought to hold."""
    expected: Entries = {}
    delays = parse_delay_levels(config.delay_levels)
    tombstones = _tombstones(config, report)
    report.log_files = len(log_.run.segments)
    report.log_start = report.log_end = log_.start
    last_ms = 0
    for segment in log_.run.segments:
        found = check(segment.view, 0, segment.size, segment.start, crc_checked=True)
        report.records += found.records
        for head in scan(segment.view, 0, found.position):
            if head.physical_offset < tombstones.of(head.topic):
                continue  # it was deleted
            if has_queue_entry(head.sys_flag):
                code = queue_tags_code(head.topic, head.properties, head.store_ms, delays)
                queue = expected.setdefault(
                    (head.topic.decode(errors="replace"), head.queue_id), {}
                )
                if head.queue_offset == 0:
                    queue.clear()  # the queue was deleted and began anew
                entry = (head.physical_offset, head.size, code)
                if queue.setdefault(head.queue_offset, entry) != entry:
                    _add(report.notes, f"queue offset {head.queue_offset} used twice at {entry[0]}")
        last_ms = found.store_ms or last_ms
        report.log_end = segment.end if found.blank else segment.start + found.position
        if not found.blank:
            report.log_why = found.why
            break
    for segment in log_.run.segments:
        if segment.start > report.log_end and log_.record_at(segment.start) is not None:
            _add(report.problems, f"records behind the log's end {report.log_end}: {segment.path}")
    if report.log_why not in ("", NOTHING_WRITTEN):
        kind = report.notes if report.running_or_crashed else report.problems
        _add(kind, f"log ends at {report.log_end} because of: {report.log_why}")
    if 0 < last_ms < report.checkpoint.physic_ms:
        _add(
            report.problems,
            f"checkpoint vouches for {report.checkpoint.physic_ms}, the log ends with {last_ms}",
        )
    return expected


def _tombstones(config: StorageConfig, report: Report) -> Tombstones:
    tombstones = Tombstones(Path(config.root))
    try:
        tombstones.load()
    except CorruptFile as problem:
        _add(report.problems, str(problem))
    return tombstones


def _inspect_queues(root: Path, config: StorageConfig, report: Report, expected: Entries) -> None:
    queues = ConsumeQueues(config, read_only=True)
    queues.load()
    queues.start_at(report.log_start)
    state = load_queue_state(root / "queuestate")
    # As where RocketMQ's DLedger had the log: ours never ran on it.
    log_elsewhere = not report.log_files and state is None
    all_derived = not any(True for _ in queues)
    try:
        for queue in sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)):
            queue.look()
            row = QueueReport(
                queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.file_count
            )
            report.queues.append(row)
            if queue.max_offset and log_elsewhere:
                _add(
                    report.notes,
                    f"queue {queue.topic}-{queue.queue_id}: all its entries are behind the log's end, there is no log "
                    "here; the start removes them",
                )
            elif queue.max_offset:
                _compare(queue, expected.pop((queue.topic, queue.queue_id), {}), report)
    finally:
        queues.close()
    for (topic, queue_id), wanted in sorted(expected.items()):
        text = f"queue {topic}-{queue_id} is missing or empty, the log has {len(wanted)} of its messages"
        if state is None:
            topics = _topics_in_use(root)
            deleted = bool(topics) and topic not in topics  # without a table nobody knows
        else:
            newest = max(physical for physical, _, _ in wanted.values())
            deleted = queue_id not in state.queues.get(topic, {}) and newest < state.dispatched
        if deleted:
            _add(report.notes, f"{text}; it was deleted")
        elif all_derived:
            _add(report.notes, f"{text}; it will be derived at the start, as all queues")
        else:
            _behind(report, text)


def _topics_in_use(root: Path) -> set[str]:
    try:
        table = jsonfile.load(root / "config" / "topics.json") or {}
    except CorruptFile:
        return set()  # _inspect_small_files() has said so
    return set(table.get("topicConfigTable", {}))


def _behind(report: Report, text: str) -> None:
    """What dispatch had not done yet is no damage unless the store says it was closed cleanly."""
    _add(report.notes if report.running_or_crashed else report.problems, text)


def _compare(queue: ConsumeQueue, wanted: dict[int, tuple[int, int, int]], report: Report) -> None:
    name = f"queue {queue.topic}-{queue.queue_id}"
    other_levels = extended = 0
    for queue_offset in range(queue.min_offset, queue.max_offset):
        entry = queue.entry(queue_offset)
        found = wanted.pop(queue_offset, None)
        if entry is None or entry[1] == BLANK_SIZE:
            _add(report.problems, f"{name}: entry {queue_offset} is blank")
        elif entry[0] + entry[1] > report.log_end:
            _behind(report, f"{name}: entry {queue_offset} points behind the log's end")
        elif entry[0] >= report.log_start and entry != found:
            of_message = found is not None and entry[:2] == found[:2]
            if of_message and queue.topic == _DELAY_TOPIC and entry[2] > 0:
                other_levels += 1
            elif of_message and entry[2] < _EXTENDED_MAX:
                extended += 1
            else:
                _add(
                    report.problems, f"{name}: entry {queue_offset} is {entry}, the log has {found}"
                )
    if extended:
        _add(report.problems, f"{name}: {extended} entries {_EXTENDED}")
    if other_levels:
        _add(report.notes, f"{name}: {_OTHER_LEVELS}")
    if wanted:
        first = min(wanted)
        _behind(report, f"{name}: lacks {len(wanted)} messages of the log, first {first}")


def _inspect_index(root: Path, config: StorageConfig, report: Report) -> None:
    for path in sorted((root / "index").glob("*")):
        if not path.name.isdigit():
            continue
        file = IndexFile.open(path, config.index_slots, read_only=True)
        if file is None:
            _add(report.notes, f"index file {path.name} {_OTHER_SLOTS}, or cut")
            continue
        try:
            header = file.header
            report.index_files.append((path.name, header.next_entry - 1))
            if not file.sound:
                _add(report.notes, f"index file {path.name} {_OTHER_SLOTS}, or damaged")
            elif header.end_physical >= report.log_end > 0:
                _behind(report, f"index file {path.name} points behind the log's end")
        finally:
            file.close()


def _add(texts: list[str], text: str) -> None:
    if len(texts) < TEXTS_MAX:
        texts.append(text)
