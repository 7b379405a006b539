"""What RocketMQ left in a store that nobody here goes on with: looked for before a broker serves it.

Where messages or positions would be missing, or wait for ever, the start is refused with what to do about it; an
operator who knows names it in startDespite. What is only not done any more is a warning. `tandem inspect` and `tandem
check-config` say the same. Source: RocketMQ 5.3.3, its store, TimerMessageStore and TransactionalMessageServiceImpl.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tandemmq.cluster.broker.settings.config import BrokerConfig, Role, packed_host
from tandemmq.cluster.broker.tables import names
from tandemmq.storage import (
    CommitLog,
    ConsumeQueues,
    CorruptFile,
    CorruptRecord,
    MessageStore,
    Record,
    StorageConfig,
    StorageError,
    decode,
    decode_properties,
    jsonfile,
    scan,
    unpack_host,
)

log = logging.getLogger(__name__)

MOVING: Final = "docs/howto/from-rocketmq.md"
TIMER_TOPIC: Final = names.TIMER_TOPIC
_WAITING_TOPICS: Final = (TIMER_TOPIC, names.HALF_TOPIC, names.OP_TOPIC)
TIMERS: Final = "timers"  # the word of startDespite
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
NAMED_MAX: Final = 5  # topics in one line

_BATCHES_BACK: Final = (
    "RocketMQ refuses to start on queues that were made here of a topic of queue.type=BatchCQ: before the way back "
    "remove the directory consumequeue, which it derives from the log anew"
)

_TIMER_CHECKPOINT: Final = struct.Struct(
    ">4q"
)  # read until ms, log flushed, queue offset, master's


class LeftOpen(StorageError):
    """RocketMQ left something in the store that would be lost or wait for ever here; the text says what to do."""


class Found(NamedTuple):
    """One thing that RocketMQ left in a store."""

    text: str  # what it is, and what becomes of it
    mend: str = ""  # what to do first; empty: nothing is lost, it is a warning
    word: str = ""  # with which startDespite gives it up; empty: it cannot be

    @property
    def refusal(self) -> str:
        """The sentence that stops a start."""
        give_up = f", or give that up with startDespite={self.word}" if self.word else ""
        return f"{self.text}. First {self.mend}{give_up}"


# -- saying it ------------------------------------------------------------------------------


def check_files(config: BrokerConfig) -> None:
    """What can be told without reading a message. Raises LeftOpen, CorruptFile."""
    _settle(in_files(Path(config.storage.root)), config)


def check_before_opening(config: BrokerConfig) -> None:
    """Refuse a store while nothing has been written into it, so that whoever goes on with it finds it as it was.

    Messages that cannot be read, or are in no queue yet, are recovery's: check_messages() looks at what it makes of
    them. Raises LeftOpen, CorruptFile.
    """
    check_files(config)
    queues = Path(config.storage.root) / "consumequeue"
    moved_away = not queues.is_dir() or not any(queues.iterdir())
    if not moved_away and not any((queues / topic).is_dir() for topic in _WAITING_TOPICS):
        return
    try:
        found = _look_at_messages(config.storage, timers=not config.timer_wheel_enabled)
    except (StorageError, OSError) as problem:
        log.warning("what waits in the store is told after its recovery why=%s", problem)
        return
    _refuse([each for each in found if not _is_let_be(each, config)])


def check_messages(config: BrokerConfig, store: MessageStore) -> None:
    """Of a store that is open and recovered. Raises LeftOpen, CorruptFile."""
    timers = (
        not config.timer_wheel_enabled
    )  # else they are gone on with, and nobody reads each of them here
    _settle(in_messages(Path(config.storage.root), store.log, store.queues, timers=timers), config)
    if text := other_address(config, store):
        log.warning("%s", text)


def other_address(config: BrokerConfig, store: MessageStore) -> str:
    """What no longer works where the newest message was stored under another address than ours; empty where not.

    Between replicas addresses differ by nature. Raises OSError.
    """
    if config.controller_mode or config.role is Role.SLAVE:
        return ""
    newest = max(store.queues, key=lambda queue: queue.physical_end, default=None)
    entry = newest.entry(newest.max_offset - 1) if newest is not None else None
    view = store.stored_at(entry[0]) if entry is not None else None
    if view is None:
        return ""
    with view:
        host = decode(view, crc_checked=False).store_host
    if host == packed_host(config):
        return ""
    ip, port = unpack_host(host)
    return (
        f"messages here were stored under {ip}:{port} and this broker is registered as {config.address}: mqadmin shows "
        "those that were consumed as NOT_CONSUME_YET, and finds none by the message id that holds the address. "
        f"brokerIP1={ip} with listenPort={port} keeps both, also where this machine listens on other addresses"
    )


def _settle(found: Iterable[Found], config: BrokerConfig) -> None:
    """A warning for what is let be."""
    refused = []
    for each in found:
        if _is_let_be(each, config):
            log.warning("found in the store: %s", each.text)
        else:
            refused.append(each)
    _refuse(refused)


def _is_let_be(found: Found, config: BrokerConfig) -> bool:
    """A slave starts with everything: its master is the one to finish it."""
    follows = config.controller_mode or config.role is Role.SLAVE
    return not found.mend or bool(found.word and (follows or found.word in config.despite))


def _refuse(found: list[Found]) -> None:
    if found:
        raise LeftOpen("left by RocketMQ: " + "; ".join(each.refusal for each in found))


def check_store(config: BrokerConfig) -> None:
    """Of a store that is not open: both of the above, nothing is written. Raises StorageError, OSError."""
    check_files(config)
    _settle(_look_at_messages(config.storage, timers=not config.timer_wheel_enabled), config)


def look(config: StorageConfig) -> list[Found]:
    """Everything that RocketMQ left in a store, served or not; reads only. Raises StorageError, OSError."""
    found = _look_at_messages(config, timers=True)
    served = [each._replace(mend="") if each.word == TIMERS else each for each in found]
    return [*in_files(Path(config.root)), *served]


def _look_at_messages(config: StorageConfig, *, timers: bool) -> list[Found]:
    root = Path(config.root)
    log_ = CommitLog(config, read_only=True)
    queues = ConsumeQueues(config, read_only=True)
    try:
        log_.load()
        queues.load()
        if not any(True for _ in queues):  # moved away: the start derives them
            return list(in_messages(root, log_, _derived(log_), timers=timers))
        queues.start_at(log_.start)
        for queue in queues:
            if queue.topic in _WAITING_TOPICS or _tiered(root):
                queue.look()
        return list(in_messages(root, log_, queues, timers=timers))
    finally:
        queues.close()
        log_.close()


class WaitingQueue(Protocol):
    """A queue of timers or transactions: what in_messages() asks of one."""

    @property
    def queue_id(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    def entry(self, queue_offset: int, /) -> tuple[int, int, int] | None: ...


class WaitingQueues(Protocol):
    """All of them."""

    def get(self, topic: str, queue_id: int, /) -> WaitingQueue | None: ...
    def of_topic(self, topic: str, /) -> Sequence[WaitingQueue]: ...


@dataclass(slots=True)
class _DerivedQueue:
    """A queue as the log has it: (log offset, size, tags code) by queue offset."""

    queue_id: int
    entries: dict[int, tuple[int, int, int]] = field(default_factory=dict, repr=False)

    @property
    def min_offset(self) -> int:
        return min(self.entries)

    @property
    def max_offset(self) -> int:
        return max(self.entries) + 1

    def entry(self, queue_offset: int, /) -> tuple[int, int, int] | None:
        return self.entries.get(queue_offset)


@dataclass(slots=True)
class _DerivedQueues:
    by_topic: dict[str, dict[int, _DerivedQueue]] = field(default_factory=dict)

    def get(self, topic: str, queue_id: int, /) -> WaitingQueue | None:
        return self.by_topic.get(topic, {}).get(queue_id)

    def of_topic(self, topic: str, /) -> Sequence[WaitingQueue]:
        return list(self.by_topic.get(topic, {}).values())


def _derived(log_: CommitLog) -> _DerivedQueues:
    """Reads every record of the log."""
    found = _DerivedQueues()
    for segment in log_.run.segments:
        for head in scan(segment.view, 0, segment.size):
            topic = head.topic.decode("utf-8", "replace")
            if head.blank or topic not in _WAITING_TOPICS:
                continue
            queues = found.by_topic.setdefault(topic, {})
            queue = queues.setdefault(head.queue_id, _DerivedQueue(head.queue_id))
            queue.entries[head.queue_offset] = (head.physical_offset, head.size, head.tags_code)
    return found


# -- files ----------------------------------------------------------------------------------


def in_files(root: Path) -> Iterator[Found]:
    """What can be told without reading a message. Raises CorruptFile, OSError."""
    config = root / "config"
    tables = [
        name
        for name in ("topics", "subscriptionGroups", "consumerOffsets")
        if _rocksdb(config / name)
    ]
    if tables:
        yield Found(
            f"{', '.join(tables)} are in RocksDB below {config}, which is not read here",
            f"write them as JSON with RocketMQ's tool and move the directories away: {MOVING}, RocksDB",
        )
    if _rocksdb(config / "rdb"):
        yield Found(
            f"topics, groups and positions are in RocksDB of configManagerVersion=v2 at {config / 'rdb'}, which "
            "is not read here",
            f"have a slave of ours take them from the running broker: {MOVING}, RocksDB",
        )
    if _rocksdb(root / "consumequeue"):
        yield Found(
            f"{root / 'consumequeue'} holds queues in RocksDB: queues are derived from the log instead"
        )
    if ledgers := sorted(each.name for each in root.glob("dledger-*") if each.is_dir()):
        yield Found(
            f"{', '.join(ledgers)} in {root} is a log of enableDLegerCommitLog, which is not read here",
            "let consumers finish it at RocketMQ while producers use a new broker, then start without the directory: "
            f"{MOVING}, DLedger",
        )
    if extended := _entries(root / "consumequeue_ext"):
        yield Found(
            f"queues were written with enableConsumeQueueExt ({_named(extended)}): consumers that choose by tag would "
            "miss messages",
            f"remove {root / 'consumequeue'} and {root / 'consumequeue_ext'}: queues are derived from the log anew",
        )
    if mapping := _table(config / "topicQueueMapping.json", "topicQueueMappingInfoMap"):
        yield Found(
            f"static topics ({_named(mapping)}): which broker has which of their queues, at which offsets, is not "
            "known here, and clients look for them under other names",
            "have them consumed and deleted at RocketMQ",
            "staticTopics",
        )
    topics = _table(config / "topics.json", "topicConfigTable")
    compacted = _entries(root / "compaction" / "compactionLog")
    # RocketMQ leaves them there when a topic is deleted. Without any table nobody knows what was.
    deleted = [topic for topic in compacted if topics and topic not in topics]
    if deleted:
        yield Found(
            f"{root / 'compaction' / 'compactionLog'} has files of topics that were deleted ({_named(deleted)}): "
            "nobody reads them, they can be removed"
        )
    if compacted := [topic for topic in compacted if topic not in deleted]:
        yield Found(
            f"compacted topics ({_named(compacted)}): what RocketMQ kept of them beside the log is not read here, and "
            "messages go with fileReservedTime, also the last of a key",
            f"copy them to topics of another kind and delete them ({MOVING}, What stops a start)",
            "compaction",
        )
    if batches := _entries(root / "batchconsumequeue"):
        yield Found(
            f"topics of queue.type=BatchCQ ({_named(batches)}): their queues count batches, here they count messages, "
            f"so positions in them mean others; {_BATCHES_BACK}",
            "have them consumed and deleted at RocketMQ",
            "batchQueues",
        )
    if light := _table(config / "lmqConsumerOffset.json", "lmqOffsetTable"):
        yield Found(
            f"light queues with positions ({_named(light)}): they are not served here",
            "keep their consumers at RocketMQ",
            "lightQueues",
        )
    if _tiered(root):
        yield Found("a tiered store was in use: what is only there cannot be read here")
    yield from _kinds_of_topics(topics, {*compacted, *batches})


_KINDS: Final = {"cleanup.policy": "COMPACTION", "queue.type": "BatchCQ"}


def _kinds_of_topics(topics: dict[str, Any], told: set[str]) -> Iterator[Found]:
    """Topics whose attributes ask for what is not done here, and of which nothing is stored in that way."""
    without: list[str] = []
    back = ""
    for topic, config in topics.items():
        attributes = (config or {}).get("attributes") or {}
        found = [f"{key}={value}" for key, value in _KINDS.items() if attributes.get(key) == value]
        if found and topic not in told:
            without.append(f"{topic} ({', '.join(found)})")
            if attributes.get("queue.type") == _KINDS["queue.type"]:
                back = f"; {_BATCHES_BACK}"
    if without:
        yield Found(f"kept as ordinary topics here: {_named(without)}{back}")


def _tiered(root: Path) -> bool:
    return (root / "config" / "tieredStoreMetadata.json").exists()


def _rocksdb(directory: Path) -> bool:
    return (directory / "CURRENT").is_file()


def _entries(directory: Path) -> list[str]:
    """Names of the directories in this one that hold anything."""
    if not directory.is_dir():
        return []
    return sorted(
        each.name for each in directory.iterdir() if each.is_dir() and any(each.iterdir())
    )


def _table(path: Path, member: str) -> dict[str, Any]:
    found = (jsonfile.load(path) or {}).get(member)
    return found if isinstance(found, dict) else {}


def _named(topics: Iterable[str]) -> str:
    listed = list(topics)
    more = len(listed) - NAMED_MAX
    return ", ".join(listed[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# -- messages -------------------------------------------------------------------------------


def in_messages(
    root: Path, log_: CommitLog, queues: WaitingQueues, *, timers: bool = True
) -> Iterator[Found]:
    """Timers, unless they are left out, and transactions that wait, and readers of a tiered store. Reads every record
    of the former's topics.

    Raises CorruptFile, OSError.
    """
    waiting = waiting_timers(root, log_, queues.get(TIMER_TOPIC, 0)) if timers else []
    if waiting:
        first = _instant(min(due_ms for _, due_ms in waiting))
        yield Found(
            f"messages that wait for their delivery time ({_counted(topic for topic, _ in waiting)}; the first is due "
            f"{first}): they are delivered with timerWheelEnable=true only",
            "set it, or let RocketMQ deliver them",
            TIMERS,
        )
    if halves := list(waiting_halves(root, log_, queues)):
        yield Found(
            f"half messages that wait for commit or rollback ({_counted(halves)}): their producers are asked here"
        )
    if _tiered(root) and (behind := list(readers_of_tiered(root, queues))):
        yield Found(
            f"groups that still need messages which only the tiered store has ({_named(behind)}): here they go on "
            "where the local log begins"
        )


def _counted(topics: Iterable[str]) -> str:
    return _named(f"{topic}: {count}" for topic, count in Counter(topics).most_common())


def _instant(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


def waiting_timers(
    root: Path, log_: CommitLog, queue: WaitingQueue | None
) -> list[tuple[str, int]]:
    """(topic, due ms since 1970) of each message that the timer wheel has not delivered, nor deleted, yet.

    A message that waits long is put again and again: it is told by its unique key.
    """
    if queue is None:
        return []
    delivered_ms, read_to = _timer_checkpoint(root / "config" / "timercheck")
    waiting: dict[object, tuple[str, int]] = {}
    deleted = set()
    for queue_offset, record in _records(log_, queue, queue.min_offset):
        properties = decode_properties(record.properties)
        key = properties.get("UNIQ_KEY") or queue_offset
        if "TIMER_DEL_UNIQKEY" in properties:
            deleted.add(properties["TIMER_DEL_UNIQKEY"].rpartition("+")[2])
            continue
        due = properties.get("TIMER_OUT_MS", "")
        due_ms = int(due) if due.isascii() and due.isdigit() else 0
        if due_ms > delivered_ms or queue_offset >= read_to:
            waiting[key] = properties.get("REAL_TOPIC", "?"), due_ms
    return [each for key, each in waiting.items() if key not in deleted]


def _timer_checkpoint(path: Path) -> tuple[int, int]:
    """Until when (ms) timers were delivered, and to which queue offset they are on the wheel; 0, 0 without a file."""
    try:
        data = path.read_bytes()[: _TIMER_CHECKPOINT.size]
    except FileNotFoundError:
        return 0, 0
    if len(data) < _TIMER_CHECKPOINT.size:
        return 0, 0
    delivered_ms, _, read_to, _ = _TIMER_CHECKPOINT.unpack(data)
    return delivered_ms, read_to


def waiting_halves(root: Path, log_: CommitLog, queues: WaitingQueues) -> Iterator[str]:
    """The topic of each half message that was neither committed nor rolled back.

    Behind the progress of RocketMQ's own group, and in no operation message. One that was asked for was put again.
    """
    offsets = _table(root / "config" / "consumerOffset.json", "offsetTable")
    for queue in queues.of_topic(names.HALF_TOPIC):
        settled: set[int] = set()
        operations = queues.get(names.OP_TOPIC, queue.queue_id)
        if operations is not None:
            begin = _progress(offsets, names.OP_TOPIC, queue.queue_id)
            for _, record in _records(log_, operations, begin):
                parts = record.body.decode("ascii", "replace").split(",")
                settled.update(int(part) for part in parts if part.strip().isdigit())
        begin = _progress(offsets, names.HALF_TOPIC, queue.queue_id)
        for queue_offset, record in _records(log_, queue, begin):
            if queue_offset not in settled:
                yield decode_properties(record.properties).get("REAL_TOPIC", "?")


def readers_of_tiered(root: Path, queues: WaitingQueues) -> Iterator[str]:
    """The groups of a tiered store that still need what only it has, each with the topic and how many messages."""
    for key, progress in _table(root / "config" / "consumerOffset.json", "offsetTable").items():
        topic, _, group = key.partition("@")
        behind = 0
        for queue_id, offset in (progress if isinstance(progress, dict) else {}).items():
            queue = queues.get(topic, int(queue_id))
            if queue is not None:
                behind += max(0, queue.min_offset - offset)
        if behind:
            yield f"{group} of {topic}: {behind}"


def _progress(offsets: dict[str, Any], topic: str, queue_id: int) -> int:
    """Where RocketMQ's transactions have come to in one of their queues."""
    queues = offsets.get(f"{topic}@{TRANSACTION_GROUP}")
    for key, offset in (queues if isinstance(queues, dict) else {}).items():
        if str(key) == str(queue_id) and isinstance(offset, int):
            return offset
    return 0


def _records(log_: CommitLog, queue: WaitingQueue, begin: int) -> Iterator[tuple[int, Record]]:
    """(queue offset, record) of what the queue has from here on; records that the log no longer has are passed over."""
    for queue_offset in range(max(begin, queue.min_offset), queue.max_offset):
        entry = queue.entry(queue_offset)
        view = log_.record_at(entry[0]) if entry is not None else None
        if view is None:
            continue
        with view:
            try:
                record = decode(view, crc_checked=False)
            except CorruptRecord as problem:
                raise CorruptFile(f"{queue!r} at {queue_offset}: {problem}") from problem
        yield queue_offset, record
