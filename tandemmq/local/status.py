"""What became of a local cluster: its processes, and what name server, controller and brokers say of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tandemmq.cluster.client import Admin, ClientConfig, ClientError, ReplicaSet
from tandemmq.command.output import plain
from tandemmq.command.screen import coloured, table
from tandemmq.local import processes
from tandemmq.local.layout import Layout, LocalProcess

ASK_MS: Final = 1_000  # longer than any of them needs on this machine
_COLOURS: Final = {"running": "green", "died": "red"}


@dataclass(frozen=True, slots=True)
class Condition:
    """What became of one process.

    state       running, frozen (stopped by a signal), stopped (never started, or by us), died
    registered  None: a name server has nowhere to register
    The rest is of replicated groups, None where it is not known now:
    role        master, slave, or waiting for a master
    lag_bytes   what the master's log has and this one lacks
    in_sync     member of the sync-state-set
    """

    name: str
    address: str
    state: str
    pid: int | None
    registered: bool | None
    log: str
    broker_id: int | None = None
    role: str | None = None
    epoch: int | None = None
    end_offset: int | None = None
    confirmed_offset: int | None = None
    lag_bytes: int | None = None
    in_sync: bool | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A look at the whole cluster.

    routed  whether the name server answers
    groups  as the controller has them, by broker name; None: it does not answer
    """

    layout: Layout
    conditions: tuple[Condition, ...]
    routed: bool
    groups: Mapping[str, ReplicaSet] | None

    @property
    def well(self) -> bool:
        """Whether nobody is missing anywhere."""
        return all(map(self.is_well, self.conditions))

    @property
    def led(self) -> bool:
        """Whether the controller knows a master of every replicated group."""
        found = [(self.groups or {}).get(name) for name in self.layout.groups]
        return all(group is not None and group.master_id is not None for group in found)

    def is_well(self, condition: Condition) -> bool:
        """Running and answering; a broker registered, and in a replicated group in sync under a master."""
        if condition.state != "running" or condition.registered is False:
            return False
        if condition.registered is None:
            return self.routed and (self.groups is not None or not self.layout.mode)
        if not self.layout.mode:
            return True
        return condition.in_sync is True and condition.role in ("master", "slave")

    def of(self, name: str) -> Condition:
        return next(each for each in self.conditions if each.name == name)


@asynccontextmanager
async def looking(layout: Layout) -> AsyncIterator[Admin]:
    """An Admin for look(), which may be called as often as one likes."""
    config = ClientConfig(layout.name_server.address, call_timeout_ms=ASK_MS)
    async with Admin(config=config, timeout_ms=ASK_MS) as admin:
        yield admin


async def look(layout: Layout, admin: Admin) -> Status:
    """How everything is now. Whoever does not answer is shown without what it would have said."""
    states = {member.name: processes.state(layout, member) for member in layout.members}
    answering = [member for member in layout.members if states[member.name][0] == "running"]
    known: set[str] | None = None
    groups: Mapping[str, ReplicaSet] | None = None
    runtime: dict[str, dict[str, str]] = {}
    if layout.name_server in answering:
        known = await _registered(admin)
        if layout.mode:
            groups = await _groups(layout, admin)
    if layout.mode:
        brokers = [member for member in answering if member.is_broker]
        answers = await asyncio.gather(*(_runtime(admin, member) for member in brokers))
        runtime = {member.name: found for member, found in zip(brokers, answers, strict=True)}
    conditions = [
        _condition(layout, member, states[member.name], known or set()) for member in layout.members
    ]
    if layout.mode:
        conditions = _with_lag(
            layout,
            [
                _replicated(each, layout, groups or {}, runtime.get(each.name, {}))
                for each in conditions
            ],
        )
    return Status(layout, tuple(conditions), known is not None, groups)


async def _registered(admin: Admin) -> set[str] | None:
    try:
        return {at for ids in (await admin.brokers()).values() for at in ids.values()}
    except ClientError:
        return None


async def _groups(layout: Layout, admin: Admin) -> Mapping[str, ReplicaSet] | None:
    try:
        return await admin.replica_sets(layout.groups, controllers=layout.controller)
    except ClientError:
        return None  # not ready yet, or not any more


async def _runtime(admin: Admin, member: LocalProcess) -> dict[str, str]:
    try:
        return await admin.broker_status(member.address)
    except ClientError:
        return {}


def _condition(
    layout: Layout, member: LocalProcess, state: tuple[str, int | None], known: set[str]
) -> Condition:
    word, pid = state
    registered = member.address in known and pid is not None if member.is_broker else None
    log = str(layout.log_file(member))
    return Condition(member.name, member.address, word, pid, registered, log)


def _replicated(
    condition: Condition,
    layout: Layout,
    groups: Mapping[str, ReplicaSet],
    runtime: Mapping[str, str],
) -> Condition:
    group = groups.get(layout.member(condition.name).group)
    replicas = () if group is None else tuple(group.replicas.values())
    replica = next((each for each in replicas if each.address == condition.address), None)
    broker_id = None if replica is None else replica.broker_id
    in_sync = None if group is None else replica in group.in_sync
    role = None
    if runtime:
        role = "slave"
        if group is not None and group.master_id in (None, broker_id):
            role = "waiting"
        if runtime.get("brokerRole", "SLAVE") != "SLAVE":
            role = "master"
    return replace(
        condition,
        broker_id=broker_id,
        role=role,
        epoch=_number(runtime, "masterEpoch"),
        end_offset=_number(runtime, "commitLogMaxOffset"),
        confirmed_offset=_number(runtime, "confirmOffset"),
        in_sync=in_sync if condition.registered is not None else None,
    )


def _number(runtime: Mapping[str, str], key: str) -> int | None:
    text = runtime.get(key, "")
    return int(text) if text.isdigit() else None


def _with_lag(layout: Layout, conditions: Sequence[Condition]) -> list[Condition]:
    """How far each is behind its master, both as they said at about the same time."""
    by_name = {each.name: each for each in conditions}
    ends = {
        group: by_name[member.name].end_offset
        for group, members in layout.groups.items()
        for member in members
        if by_name[member.name].role == "master"
    }
    found = []
    for each in conditions:
        end = ends.get(layout.member(each.name).group)
        if each.role == "slave" and end is not None and each.end_offset is not None:
            each = replace(each, lag_bytes=max(0, end - each.end_offset))
        found.append(each)
    return found


# For people and programs


def to_tree(status: Status) -> dict[str, Any]:
    """The whole status as plain values."""
    layout = status.layout
    tree: dict[str, Any] = {
        "directory": str(layout.directory),
        "name_server": layout.name_server.address,
        "members": [
            {**plain(each), "http": layout.http(layout.member(each.name))}
            for each in status.conditions
        ],
    }
    if layout.console:
        tree["console"] = layout.console
    if layout.mode:
        tree |= {"mode": layout.mode, "controller": layout.controller}
        tree["groups"] = plain(status.groups or {})
    return tree


def to_text(status: Status) -> str:
    """A table; of a replicated cluster also who is in sync, group by group."""
    if not status.layout.mode:
        return _masters_table(status)
    lines = [_replicas_table(status), ""]
    lines += [_group_line(status, name) for name in status.layout.groups]
    return "\n".join(lines)


def _masters_table(status: Status) -> str:
    rows = [
        (
            each.name,
            each.address,
            _state(each),
            each.pid or "-",
            {None: "-", True: "yes", False: "no"}[each.registered],
            each.log,
        )
        for each in status.conditions
    ]
    return table(["NAME", "ADDRESS", "STATE", "PID", "REGISTERED", "LOG"], rows)


def _replicas_table(status: Status) -> str:
    head = ["NAME", "ROLE", "EPOCH", "LOG END", "CONFIRMED", "LAG", "IN SYNC", "ADDRESS"]
    rows = [
        (
            each.name,
            _role(each),
            _shown(each.epoch),
            _shown(each.end_offset),
            _shown(each.confirmed_offset),
            _shown(each.lag_bytes),
            _in_sync(each),
            each.address,
            each.pid or "-",
            _state(each),
        )
        for each in status.conditions
    ]
    return table([*head, "PID", "STATE"], rows)


def _role(condition: Condition) -> str:
    if condition.registered is None:
        return "controller"
    return condition.role or "-"


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)


def _in_sync(condition: Condition) -> str:
    if condition.in_sync is None:
        return "-"
    return "yes" if condition.in_sync else coloured("no", "yellow")


def _state(condition: Condition) -> str:
    word = condition.state
    if word == "running" and condition.registered is False:
        return coloured("running, not registered", "yellow")
    return coloured(word, _COLOURS.get(word, "yellow"))


def _group_line(status: Status, name: str) -> str:
    if status.groups is None:
        return f"{name}: {coloured('the controller does not say', 'yellow')}"
    group = status.groups.get(name)
    if group is None:
        return f"{name}: {coloured('the controller does not know it yet', 'yellow')}"
    names = {each.address: each.name for each in status.conditions}
    members = ", ".join(names.get(each.address, each.address) for each in group.in_sync) or "nobody"
    master = names.get(group.master_address, group.master_address) or coloured("no master", "red")
    return f"{name}: {master} leads epoch {group.epoch}; in sync: {members}"
