"""Who is restarted next, and whether the one before is back: decisions without I/O.

A group under a controller: its followers one after the other, each only while all members are in sync; then the master
hands over to one that has been restarted, and follows it; then it is restarted, too. What is left to do is looked at
anew before each step: a failover in between changes the order, not the outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tandemmq.cluster.client import ReplicaSet
from tandemmq.cluster.client.admin.values import MASTER_ID, ReplicaState


@dataclass(frozen=True, slots=True)
class Server:
    """One server to restart. role: broker or nameserver; name: its broker name; broker_id: -1 of a name server."""

    role: str
    name: str
    broker_id: int
    address: str

    def __str__(self) -> str:
        return (
            f"{self.name} {self.broker_id} ({self.address})"
            if self.role == "broker"
            else f"{self.role} {self.address}"
        )


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart this server now, and wait until it is back."""

    server: Server


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let this member lead first."""

    name: str
    to: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing yet, and why."""

    why: str


def next_step(group: ReplicaSet, left: Collection[int]) -> Restart | HandOver | Wait | None:
    """Of a group under a controller. left: broker ids that were not restarted yet. None: all were."""
    if not left:
        return None
    name = group.broker_name
    if group.master_id is None:
        return Wait(f"nobody leads {name}")
    away = [each for each in group.replicas.values() if not each.alive or each not in group.in_sync]
    if away:
        named = ", ".join(f"{each.broker_id} ({each.address})" for each in away)
        return Wait(f"{named} of {name} is not in sync")
    gone = sorted(set(left) - group.replicas.keys())
    if gone:
        return Wait(f"{', '.join(map(str, gone))} is no member of {name} any more")
    followers = sorted(each for each in left if each != group.master_id)
    if followers:
        return Restart(_member(group, followers[0]))
    others = [each.broker_id for each in group.in_sync if each.broker_id != group.master_id]
    if others:
        return HandOver(name, min(others))
    return Restart(
        _member(group, group.master_id)
    )  # alone: while it is away the group takes nothing


def _member(group: ReplicaSet, broker_id: int) -> Server:
    return Server("broker", group.broker_name, broker_id, group.replicas[broker_id].address)


def refusal(group: ReplicaSet, settings: Mapping[str, str]) -> str:
    """Why this group cannot go through it without refusing sends; "" if it can."""
    wanted = settings.get("minInSyncReplicas", "")
    left = len(group.replicas) - 1
    if left and wanted.isdecimal() and left < int(wanted):
        return (
            f"{group.broker_name} has {left + 1} members and minInSyncReplicas={wanted}: it refuses sends while one is "
            "away. "
            "Lower it meanwhile, or add a member"
        )
    return ""


def classic_order(name: str, addresses: Mapping[int, str]) -> list[Server]:
    """Of a group whose roles are fixed: slaves first, the master last."""
    ids = sorted(addresses, key=lambda broker_id: (broker_id == MASTER_ID, broker_id))
    return [Server("broker", name, broker_id, addresses[broker_id]) for broker_id in ids]


def not_back(before: Mapping[str, str], now: Mapping[str, str], *, registered: bool) -> str:
    """Why a broker is not back yet, by what it said of itself before and says now; "" when it is."""
    if not now:
        return "it does not answer"
    if now.get("bootTimestamp") == before.get("bootTimestamp"):
        return "it is the same process as before"
    state = now.get("replicaState")
    if state is not None and state not in ("master", "following"):
        return f"it neither leads nor follows: {state}"
    return "" if registered else "it is not registered at the name server"


def slaves_behind(state: ReplicaState, wanted: int) -> str:
    """Why the slaves of a fixed master are not all with it; "" when they are."""
    with_it = [each for each in state.slaves if each.in_sync]
    return (
        ""
        if len(with_it) >= wanted
        else f"{len(with_it)} of {wanted} slaves have caught up with their master"
    )
