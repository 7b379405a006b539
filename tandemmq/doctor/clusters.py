"""What of a running cluster looks wrong: from what its servers said to findings, without asking anybody.

Works with RocketMQ's servers: what they do not say is no finding.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client import ReplicaSet
from tandemmq.cluster.client.admin.values import MASTER_ID, ReplicaState
from tandemmq.doctor.findings import Finding, Severity, size_text

BEHIND_BYTES_MAX: Final = (
    256 << 20
)  # RocketMQ's haSlaveFallbehindMax: from here on it waits for that slave no more
DISPATCH_BYTES_MAX: Final = 64 << 20
DISK_NEAR: Final = 0.05  # below diskMaxUsedSpaceRatio, from which on messages go before their time
DISK_REFUSES: Final = 0.90  # RocketMQ's diskSpaceWarningLevelRatio: sends are refused
SKEW_MS_MAX: Final = 2_000  # the answers that tell it are whole seconds
ROLES_THAT_SERVE: Final = ("master", "following")
_DURATION: Final = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")
_PUBLIC: Final = "set brokerIP1 (TANDEM_HOST of the compose files) to an address that clients reach, and open its port"


@dataclass(frozen=True, slots=True)
class NameServerFacts:
    """One name server. brokers: broker name -> id -> address; problem: why it did not answer, "" if it did."""

    address: str
    problem: str = ""
    brokers: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One registered broker, as the machine that asks sees it.

    problem   why it did not answer at its advertised address; "" if it did
    answers   something answered, if only to refuse
    skew_ms   its clock minus ours, None where it does not tell
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    problem: str = ""
    answers: bool = True
    status: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    replicas: ReplicaState | None = None
    skew_ms: int | None = None

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """One controller. leader: whom it takes for the one that leads, "" for nobody."""

    address: str
    problem: str = ""
    leader: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group that has messages to read. members: online now, on any broker."""

    group: str
    behind: int
    members: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that was asked.

    groups     broker groups under a controller; None: there are none, or no controller answers
    unasked    what could not be asked, and why, in words
    """

    name_servers: tuple[NameServerFacts, ...]
    brokers: tuple[BrokerFacts, ...] = ()
    controllers: tuple[ControllerFacts, ...] = ()
    groups: Mapping[str, ReplicaSet] | None = None
    consumers: tuple[GroupFacts, ...] = ()
    unasked: tuple[str, ...] = ()


def remote_now_ms(status: Mapping[str, str]) -> int | None:
    """A broker's wall clock when it answered, to half a second: its start and how long it has run."""
    boot = status.get("bootTimestamp", "")
    parts = _DURATION.search(status.get("runtime", ""))
    if not boot.isdecimal() or parts is None:
        return None
    days, hours, minutes, seconds = map(int, parts.groups())
    return int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + 500


def cluster_findings(facts: ClusterFacts) -> list[Finding]:
    """Everything that looks wrong."""
    found = list(_name_servers(facts))
    if all(each.problem for each in facts.name_servers):
        return found
    found += _registered(facts)
    found += _controllers(facts)
    for name, group in (facts.groups or {}).items():
        found += _group(name, group, facts)
    for broker in facts.brokers:
        found += _address(broker, facts)
        if broker.status:
            found += _broker(broker)
    found += _classic(facts)
    found += _clocks(facts)
    found += _versions(facts)
    found += map(
        _without_members, (each for each in facts.consumers if each.behind and not each.members)
    )
    found += (
        Finding(
            "not-asked",
            Severity.ADVICE,
            "cluster",
            each,
            "ask again when it is quiet, or with an access key that may",
        )
        for each in facts.unasked
    )
    return found


def _name_servers(facts: ClusterFacts) -> Iterator[Finding]:
    silent = [each for each in facts.name_servers if each.problem]
    answering = [each for each in facts.name_servers if not each.problem]
    for each in silent:
        yield Finding(
            "name-server-silent", Severity.WARNING if answering else Severity.CRITICAL, each.address,
            f"it does not answer: {each.problem}",
            "start it, or take it out of namesrvAddr of brokers and clients; "
            + ("the others have all routes meanwhile" if answering else "until one answers no client finds a broker"),
        )  # fmt: skip
    for each in answering[1:]:
        if _plain(each.brokers) != _plain(answering[0].brokers):
            differ = sorted(
                name for name in {*each.brokers, *answering[0].brokers}
                if dict(each.brokers.get(name, {})) != dict(answering[0].brokers.get(name, {}))
            )  # fmt: skip
            yield Finding(
                "name-servers-differ", Severity.WARNING, each.address,
                f"it knows other brokers than {answering[0].address}: {', '.join(differ)} differ",
                "ask again in half a minute; if it stays, name all name servers in namesrvAddr of every broker",
            )  # fmt: skip


def _plain(brokers: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    return {name: dict(ids) for name, ids in brokers.items()}


def _registered(facts: ClusterFacts) -> Iterator[Finding]:
    names = {each.name for each in facts.brokers}
    if not names:
        yield Finding(
            "no-broker", Severity.CRITICAL, "cluster", "no broker is registered at the name server",
            "start one with namesrvAddr set to it; its log says whether it registered",
        )  # fmt: skip
    for name in sorted(names):
        if not any(each.is_master for each in facts.brokers if each.name == name):
            yield Finding(
                "no-master", Severity.CRITICAL, name, "nobody leads it: it takes no message",
                "start its master. Under a controller: getSyncStateSet says who could lead, electMaster makes one lead",
            )  # fmt: skip


def _controllers(facts: ClusterFacts) -> Iterator[Finding]:
    answering = [each for each in facts.controllers if not each.problem]
    for each in facts.controllers:
        if each.problem:
            yield Finding(
                "controller-silent", Severity.WARNING if answering else Severity.CRITICAL, each.address,
                f"it does not answer: {each.problem}",
                "start it" + ("" if answering else "; until then no slave can take over from a master that dies"),
            )  # fmt: skip
    if answering and not any(each.leader for each in answering):
        yield Finding(
            "controllers-leaderless", Severity.CRITICAL, answering[0].address, "none leads: no slave can take over",
            "start the others, or etcd if their records are there (docs/howto/controller.md)",
        )  # fmt: skip


def _group(name: str, group: ReplicaSet, facts: ClusterFacts) -> Iterator[Finding]:
    """One group under a controller."""
    total, copies = len(group.replicas), len(group.in_sync)
    for each in group.replicas.values():
        if not each.alive:
            yield Finding(
                "replica-missing", Severity.WARNING, name,
                f"member {each.broker_id} ({each.address}) is away: {copies} of {total} have what is acknowledged",
                "start it: it catches up by itself. If it will not come back: "
                f"tandem admin cleanBrokerMetadata -bn {name} -b {each.broker_id}",
            )  # fmt: skip
        elif each not in group.in_sync:
            yield Finding(
                "replica-behind", Severity.WARNING, name,
                f"member {each.broker_id} ({each.address}) runs and is not in sync: it cannot take over",
                "it catches up by itself; if it does not, its log says why, and tandem admin haStatus how far it is",
            )  # fmt: skip
    wanted = max(
        (
            _number(each.settings.get("minInSyncReplicas", "")) or 0
            for each in facts.brokers
            if each.name == name
        ),
        default=0,
    )
    if copies < wanted:
        yield Finding(
            "set-too-small", Severity.CRITICAL, name,
            f"{copies} of {total} members are in sync and minInSyncReplicas is {wanted}: sends are refused",
            "bring the others back, or lower minInSyncReplicas and accept fewer copies",
        )  # fmt: skip
    if total == 1:
        yield Finding(
            "one-member", Severity.ADVICE, name, "it has one member: nobody can take over, and there is no second copy",
            "start another broker with its brokerName and enableControllerMode=true",
        )  # fmt: skip


def _address(broker: BrokerFacts, facts: ClusterFacts) -> Iterator[Finding]:
    where = f"{broker.name} ({broker.broker_id})"
    if broker.problem and not broker.answers:
        yield Finding(
            "broker-unreachable", Severity.CRITICAL, where,
            f"it tells clients {broker.address}, where nobody answers from here: {broker.problem}",
            f"if it does not run: start it, or wait two minutes until it is forgotten. If it runs: {_PUBLIC}",
        )  # fmt: skip
    elif broker.problem:
        yield Finding(
            "broker-refuses", Severity.ADVICE, where, f"{broker.address} answers, and tells nothing: {broker.problem}",
            "give this command an access key that may ask (--credentials)",
        )  # fmt: skip
    known_as = [each.address for each in facts.name_servers if not each.problem]
    if _is_loopback(broker.address) and not all(map(_is_loopback, known_as)):
        yield Finding(
            "broker-loopback", Severity.WARNING, where,
            f"it tells clients {broker.address}, which is each client's own machine",
            _PUBLIC,
        )  # fmt: skip


def _broker(broker: BrokerFacts) -> Iterator[Finding]:
    """What one broker says of itself."""
    where, status = f"{broker.name} ({broker.broker_id})", broker.status
    disk = max(_ratio(status.get(f"{kind}DiskRatio", "")) for kind in ("commitLog", "consumeQueue"))
    mark = _ratio(broker.settings.get("diskMaxUsedSpaceRatio", "")) or 75.0
    mark = mark / 100 if mark > 1 else mark
    if disk >= DISK_REFUSES:
        yield Finding(
            "broker-disk", Severity.CRITICAL, where, f"its disk is {disk:.0%} full: from 90 % on sends are refused",
            "make room or add space; lower fileReservedTime, then tandem admin deleteExpiredCommitLog",
        )  # fmt: skip
    elif disk >= mark - DISK_NEAR:
        early = disk >= mark
        yield Finding(
            "broker-disk", Severity.WARNING, where,
            f"its disk is {disk:.0%} full; from {mark:.0%} on (diskMaxUsedSpaceRatio) the oldest messages are deleted "
            + ("before their time: it does so now" if early else "before their time"),
            "add space, or lower fileReservedTime to what is really needed",
        )  # fmt: skip
    for reason in filter(None, (each.strip() for each in status.get("alarms", "").split("; "))):
        yield Finding(
            "broker-alarm",
            Severity.WARNING,
            where,
            reason,
            "its log and docs/operations.md say what to do",
        )
    state = status.get("replicaState")
    if state is not None and state not in ROLES_THAT_SERVE:
        yield Finding(
            "broker-without-role", Severity.WARNING, where, f"it neither leads nor follows: {state}",
            "wait a few seconds; if it stays, its log says for what it waits, most often for its controller",
        )  # fmt: skip
    backlog = _number(status.get("dispatchBehindBytes", "")) or 0
    if backlog > DISPATCH_BYTES_MAX:
        yield Finding(
            "dispatch-behind", Severity.WARNING, where,
            f"{size_text(backlog)} of messages are stored and not in their queues yet: consumers do not see them",
            "its disk or processor is busy; after a crash it is over by itself",
        )  # fmt: skip
    permission = _number(broker.settings.get("brokerPermission", ""))
    if broker.is_master and permission is not None and not permission & 2:
        yield Finding(
            "broker-read-only", Severity.WARNING, where, f"it takes no messages (brokerPermission={permission})",
            f"if that is over: tandem admin updateBrokerConfig -b {broker.address} -k brokerPermission -v 6",
        )  # fmt: skip


def _classic(facts: ClusterFacts) -> Iterator[Finding]:
    """Masters whose role is fixed, and their slaves."""
    for broker in facts.brokers:
        if (
            not broker.is_master
            or broker.settings.get("enableControllerMode") == "true"
            or broker.problem
        ):
            continue
        slaves = [each for each in facts.brokers if each.name == broker.name and not each.is_master]
        if broker.settings.get("brokerRole") == "SYNC_MASTER" and not slaves:
            yield Finding(
                "replica-missing", Severity.WARNING, broker.name,
                "it is a SYNC_MASTER and no slave of it is registered: sends end with SLAVE_NOT_AVAILABLE",
                "start its slave, or make it an ASYNC_MASTER if one copy is what is wanted",
            )  # fmt: skip
        for slave in broker.replicas.slaves if broker.replicas is not None else ():
            if slave.behind_bytes > BEHIND_BYTES_MAX:
                yield Finding(
                    "replica-behind", Severity.WARNING, broker.name,
                    f"its slave {slave.address} lacks {size_text(slave.behind_bytes)}",
                    "look at the network between them and at the slave's disk: it lags more than its master waits for",
                )  # fmt: skip
        if slaves and broker.replicas is not None and not broker.replicas.slaves:
            yield Finding(
                "replica-missing", Severity.WARNING, broker.name, "its slave is not connected to it: nothing is copied",
                "the slave must reach the master's haListenPort at brokerIP2",
            )  # fmt: skip


def _clocks(facts: ClusterFacts) -> Iterator[Finding]:
    told = {
        f"{each.name} ({each.broker_id})": each.skew_ms
        for each in facts.brokers
        if each.skew_ms is not None
    }
    if not told:
        return
    if len(told) > 1 and min(map(abs, told.values())) > SKEW_MS_MAX:
        first, last = min(told.values()), max(told.values())
        if last - first <= SKEW_MS_MAX:  # they agree with each other
            yield Finding(
                "clock-skew", Severity.WARNING, "this machine",
                f"its clock differs from that of every broker by {abs(first) / 1000:.1f} s",
                "look at chrony or timesyncd here first",
            )  # fmt: skip
            return
    for where, skew_ms in told.items():
        if abs(skew_ms) > SKEW_MS_MAX:
            word = "ahead" if skew_ms > 0 else "behind"
            yield Finding(
                "clock-skew", Severity.WARNING, where,
                f"its clock is {abs(skew_ms) / 1000:.1f} s {word} of this machine's",
                "run chrony or systemd-timesyncd: delayed messages, retention and searches by time go by the clock",
            )  # fmt: skip


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for each in facts.brokers:
        if version := each.status.get("brokerVersionDesc"):
            versions.setdefault(version, []).append(f"{each.name} ({each.broker_id})")
    if len(versions) > 1:
        told = "; ".join(
            f"{version}: {', '.join(names)}" for version, names in sorted(versions.items())
        )
        yield Finding(
            "versions-differ", Severity.ADVICE, "cluster", f"brokers of several versions: {told}",
            "finish the upgrade: slaves first, then a switchover, then the former masters (tandem rolling-restart)",
        )  # fmt: skip


def _without_members(group: GroupFacts) -> Finding:
    return Finding(
        "group-without-members", Severity.WARNING, group.group,
        f"{group.behind:,} messages wait for it and no member is online",
        "start its consumers; if the group is not needed any more: "
        f"tandem admin deleteSubGroup -c CLUSTER -g {group.group}",
    )  # fmt: skip


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdecimal() else None


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
