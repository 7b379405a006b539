"""All that is known at one moment: one frozen value that every viewer is shown. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client import GroupProgress, GroupSettings, TimerCounts, TopicSettings
from tandemmq.console.seen.servers import BrokerGroup, Member
from tandemmq.console.seen.story import Entry, Reign
from tandemmq.doctor.findings import Finding

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
#: what RocketMQ's brokers make for themselves
_SYSTEM: Final = frozenset({
    "BenchmarkTest", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "TBW102", "CHECKPOINT_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
})  # fmt: skip
_SYSTEM_GROUPS: Final = frozenset({
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS", "SCHEDULE_CONSUMER",
    "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "DEFAULT_CONSUMER",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic over all brokers that have it.

    kind     normal, retry, dead letters or system
    brokers  how many broker groups have it; queues of all of them together
    perm     bits: 4 read, 2 write; what all of them grant
    """

    name: str
    kind: str
    brokers: int
    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group over all brokers.

    behind     messages not consumed, None: no broker told
    in_flight  handed out, not committed
    topics     in which it has positions
    """

    name: str
    system: bool
    behind: int | None = None
    in_flight: int = 0
    consume_per_second: float = 0.0
    topics: tuple[str, ...] = ()
    settings: GroupSettings | None = None
    dead_letters: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """What the whole cluster took in and gave out, at one moment."""

    at_ms: int
    put_per_second: float
    get_per_second: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known. version grows with every change; taken_ms is wall time, 0 before the first look.

    problem      why the name servers told nothing at the last look; what is shown is older then
    controllers  addresses; leader "" when none is known; controller_problem why nobody told of groups
    topics, groups_ms  when they were asked for, 0 before
    timers       address of a master -> what waits there
    rates        the last ones, oldest first
    story        oldest first; reigns: which master wrote which part of each group's log
    doctor       what `tandem doctor` says of the cluster, the worst first; doctor_ms when, 0 before
    """

    version: int = 0
    taken_ms: int = 0
    problem: str = ""
    name_servers: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    leader: str = ""
    controller_problem: str = ""
    brokers: tuple[BrokerGroup, ...] = ()
    topics: tuple[Topic, ...] = ()
    topics_ms: int = 0
    groups: tuple[Group, ...] = ()
    groups_ms: int = 0
    timers: Mapping[str, TimerCounts] = field(default_factory=dict)
    rates: tuple[Rates, ...] = ()
    story: tuple[Entry, ...] = ()
    reigns: tuple[Reign, ...] = ()
    doctor: tuple[Finding, ...] = ()
    doctor_ms: int = 0

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(member for group in self.brokers for member in group.members)

    def broker(self, name: str) -> BrokerGroup | None:
        return next((each for each in self.brokers if each.name == name), None)

    def topic(self, name: str) -> Topic | None:
        return next((each for each in self.topics if each.name == name), None)

    def group(self, name: str) -> Group | None:
        return next((each for each in self.groups if each.name == name), None)


def kind_of(topic: str, cluster_words: frozenset[str] = frozenset()) -> str:
    """What a topic is for, by its name. cluster_words: names of clusters and brokers, which are topics, too."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    if (
        topic in _SYSTEM
        or topic.startswith("rmq_sys_")
        or topic in cluster_words
        or topic.removesuffix("_REPLY_TOPIC") in cluster_words
    ):
        return "system"
    return "normal"


def topics_of(
    tables: Mapping[str, Mapping[str, TopicSettings]], cluster_words: frozenset[str]
) -> tuple[Topic, ...]:
    """Topics over all brokers, sorted. tables: address of a master -> its topics."""
    merged: dict[str, list[TopicSettings]] = {}
    for table in tables.values():
        for name, settings in table.items():
            merged.setdefault(name, []).append(settings)
    found = []
    for name in sorted(merged):
        parts = merged[name]
        perm = parts[0].perm
        for each in parts[1:]:
            perm &= each.perm
        found.append(
            Topic(
                name,
                kind_of(name, cluster_words),
                len(parts),
                sum(each.read_queue_count for each in parts),
                sum(each.write_queue_count for each in parts),
                perm,
                any(each.order for each in parts),
                parts[0].attributes.get("message.type") or "",
            )
        )
    return tuple(found)


def groups_of(
    settings: Mapping[str, Mapping[str, GroupSettings]],
    progress: Mapping[str, Mapping[str, GroupProgress]],
    topics: frozenset[str],
) -> tuple[Group, ...]:
    """Consumer groups over all brokers, sorted. Both tables: address of a master -> group -> what it says.

    topics  all there are: a group with a dead-letter topic is marked
    """
    known: dict[str, GroupSettings] = {}
    for table in settings.values():
        known.update(table)
    parts: dict[str, list[GroupProgress]] = {}
    for told in progress.values():
        for name, each in told.items():
            parts.setdefault(name, []).append(each)
    found = []
    for name in sorted({*known, *parts}):
        mine = [each for each in parts.get(name, ()) if each.queues]
        found.append(
            Group(
                name,
                name in _SYSTEM_GROUPS,
                sum(each.behind for each in mine) if mine else None,
                sum(each.in_flight for each in mine),
                sum(each.consume_per_second for each in mine),
                tuple(sorted({queue.topic for each in mine for queue in each.queues})),
                known.get(name),
                DLQ_PREFIX + name in topics,
            )
        )
    return tuple(found)
