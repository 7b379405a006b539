"""Reads the tables that a master answers with: each entry is checked, and a bad one leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.groups import GroupConfig
from tandemmq.cluster.broker.tables.offsets import Queues
from tandemmq.cluster.broker.tables.topics import TopicConfig
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.remoting import bodies
from tandemmq.storage import fastjson

T = TypeVar("T")

QUEUE_ID_MAX: Final = 65_535
QUEUES_MAX: Final = 65_536
LEVEL_MAX: Final = 1_000
OFFSET_MAX: Final = (1 << 63) - 1
QUEUE_END_MAX: Final = OFFSET_MAX // 20 - 1  # the entry before it has a place
NAME_CHARACTERS_MAX: Final = (
    255  # what stock brokers allow some names; ours allow no more than they
)


class TableRefused(Exception):
    """A master answered with an error, or with something that is no table: nothing was changed."""


@dataclass(frozen=True, slots=True)
class Read:
    """One table as the master has it. skipped: why entries were left out, for the log.

    deleted    log offsets by deleted topic, and where the log of that master begins; None: it did not say
    access     users and rules, which come with the groups; None: they are as they were
    locks      queue locks, which do so too
    gone       None, and entries are the whole table; else they are what changed, and these went
    """

    entries: Mapping[Any, Any]
    version: DataVersion
    skipped: list[str]
    forbidden: Mapping[str, Mapping[str, int]] | None = None
    deleted: Mapping[str, int] | None = None
    log_start: int = 0
    gone: Sequence[str] | None = None
    access: Mapping[str, Any] | None = None
    locks: Mapping[str, Any] | None = None


def read_topics(body: bytes | memoryview) -> Read:
    """Topics by name. Raises TableRefused."""
    tree = _tree(body)

    def entry(name: str, found: Any) -> TopicConfig:
        topic = bodies.shaped(TopicConfig, found)
        topic.topic_name = _name(name)
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            _within(count, QUEUES_MAX, "queues")
        _within(topic.perm, 7, "perm")
        return topic

    def below(name: str, found: Any) -> int:
        _name(name)
        return _log_offset(found)

    topics, skipped = _entries(tree.get("topicConfigTable"), entry)
    deleted = None
    log_start = _log_offset(tree.get("logStart", 0))
    if tree.get("deletedTopics") is not None:
        deleted, more = _entries(tree["deletedTopics"], below)
        skipped += more
    return Read(
        topics, _version(tree), skipped, deleted=deleted, log_start=log_start, gone=_gone(tree)
    )


def read_groups(body: bytes | memoryview) -> Read:
    """Groups by name, and what they are forbidden. Raises TableRefused."""
    tree = _tree(body)

    def entry(name: str, found: Any) -> GroupConfig:
        group = bodies.shaped(GroupConfig, found)
        group.group_name = _name(name)
        _within(group.retry_queue_nums, QUEUES_MAX, "retryQueueNums")
        return group

    def bits(name: str, found: Any) -> dict[str, int]:
        return {_name(topic): int(mask) for topic, mask in dict(found).items()}

    groups, skipped = _entries(tree.get("subscriptionGroupTable"), entry)
    forbidden = None
    if tree.get("forbiddenTable") is not None:
        forbidden, more = _entries(tree["forbiddenTable"], bits)
        skipped += more
    access, locks = (_beside(tree, name) for name in ("access", "queueLocks"))
    return Read(
        groups, _version(tree), skipped, forbidden, gone=_gone(tree), access=access, locks=locks
    )


def _beside(tree: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = tree.get(name)
    if found is not None and not isinstance(found, dict):
        raise TableRefused(f"its {name} is no table")
    return found


def read_offsets(body: bytes | memoryview) -> Read:
    """Committed offsets by (group, topic). Raises TableRefused."""
    tree = _tree(body)

    def entry(key: str, found: Any) -> tuple[tuple[str, str], Queues]:
        topic, at, group = key.rpartition("@")
        if not at:
            raise ValueError("it is not topic@group")
        queues = {
            _within(int(queue_id), QUEUE_ID_MAX, "queue"): _within(
                int(offset), OFFSET_MAX, "offset"
            )
            for queue_id, offset in dict(found).items()
        }
        return (_name(group), _name(topic)), queues

    pairs, skipped = _entries(tree.get("offsetTable"), entry)
    return Read(dict(pairs.values()), _version(tree), skipped)


def read_delays(body: bytes | memoryview) -> Read:
    """Queue offsets by delay level. Raises TableRefused."""
    tree = _tree(body)

    def entry(level: str, found: Any) -> tuple[int, int]:
        return _within(int(level), LEVEL_MAX, "level"), _within(int(found), OFFSET_MAX, "offset")

    pairs, skipped = _entries(tree.get("offsetTable"), entry)
    return Read(dict(pairs.values()), _version(tree), skipped)


def read_queue_ends(body: bytes | memoryview) -> dict[int, tuple[int, int]]:
    """Smallest offset and end of a topic's queues, by queue id, without those that end at 0. Raises TableRefused."""
    table = _tree(body).get("offsetTable")
    if not isinstance(table, dict):
        raise TableRefused("its answer holds no table")
    found = {}
    try:
        # A topic may have a thousand queues of which nobody used one.
        used = {queue: ends for queue, ends in table.items() if ends["maxOffset"] != 0}
        queues = fastjson.loads(f"[{','.join(used)}]")  # all at once
        for queue, ends in zip(queues, used.values(), strict=True):
            queue_id = _within(int(queue["queueId"]), QUEUE_ID_MAX, "queue")
            lowest = _within(int(ends["minOffset"]), QUEUE_END_MAX, "smallest offset")
            found[queue_id] = lowest, _within(int(ends["maxOffset"]), QUEUE_END_MAX, "end")
    except (ValueError, TypeError, KeyError) as problem:
        raise TableRefused(f"its queues cannot be read: {problem!r}") from None
    return found


def read_log_end(body: bytes | memoryview) -> int:
    """Where a master's log ends, out of its runtime table. Raises TableRefused."""
    table = _tree(body).get("table")
    text = table.get("commitLogMaxOffset") if isinstance(table, dict) else None
    if not isinstance(text, str) or not text.isdigit():
        raise TableRefused("it does not say where its log ends")
    return int(text)


def _tree(body: bytes | memoryview) -> dict[str, Any]:
    try:
        tree = fastjson.loads(body)
    except ValueError as problem:
        raise TableRefused(f"its answer cannot be read: {problem}") from None
    if not isinstance(tree, dict):
        raise TableRefused(f"its answer is no object but a {type(tree).__name__}")
    return tree


def _entries(table: Any, read: Callable[[str, Any], T]) -> tuple[dict[str, T], list[str]]:
    """Each entry that is sound, and what is wrong with the others."""
    if not isinstance(table, dict):
        raise TableRefused("its answer holds no table")
    found: dict[str, T] = {}
    skipped = []
    for key, value in table.items():
        try:
            found[key] = read(key, value)
        except (ValueError, TypeError) as problem:
            skipped.append(f"{key[:NAME_CHARACTERS_MAX]!r}: {problem}")
    return found, skipped


def _version(tree: Mapping[str, Any]) -> DataVersion:
    try:
        return bodies.shaped(DataVersion, tree.get("dataVersion") or {})
    except bodies.BodyUnreadable as problem:
        raise TableRefused(f"its data version cannot be read: {problem}") from None


def _gone(tree: Mapping[str, Any]) -> list[str] | None:
    found = tree.get("gone")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise TableRefused("what is gone from it is no list of names")
    return found


def _log_offset(found: Any) -> int:
    if not isinstance(found, int):
        raise TableRefused(f"{found!r} is no log offset")
    return _within(found, OFFSET_MAX, "log offset")


def _name(name: str) -> str:
    """A stock master may have longer names than ours would make, but no other characters."""
    if not names.is_legal(name) or len(name) > NAME_CHARACTERS_MAX:
        raise ValueError("no name of a topic or group")
    return name


def _within(value: int, limit: int, what: str) -> int:
    if not 0 <= value <= limit:
        raise ValueError(f"{what} must be from 0 to {limit}, got {value}")
    return value
