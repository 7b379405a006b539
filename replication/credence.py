"""Whether a request that says it is a replica's is believed. Core of the controller.

Nobody shows a password to a controller. What a replica of ours has instead is its lineage: the numbers of the processes
that had its store, which each drew for itself and told only the controller. Who shows the number of the last process
that registered has that store. Whoever shows none, a stock replica or one of an older release, is known by the host
that it registered. And nobody is believed to be a replica whose process is there: its connection is open, and it was
heard a moment ago.
"""

from __future__ import annotations

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.controlevents import RegisterBroker
from tandemmq.replication.evidence import Live
from tandemmq.replication.group import NO_SESSION, Member
from tandemmq.replication.registered import host_of, is_local, may_be_of

STOCK_SILENCE_MS = 2_500  # a stock broker beats once a second


def at_home(member: Member, host: str) -> bool:
    """Whether an IP address may be this replica's. "": nobody looked. This machine's own users are believed."""
    if not host or not member.address or is_local(host):
        return True
    return may_be_of(filter(None, map(host_of, (member.address, member.ha_address))), host)


def refuse_registration(
    member: Member,
    live: Live,
    event: RegisterBroker,
    now_ms: int,
    times: LeaseTimes,
    *,
    alive: bool,
    by_host: bool,
    since_ms: int = -(1 << 60),
) -> str | None:
    """Why this registration is not the replica's; None when it may be. INV-44

    alive     the replica is thought to live
    by_host   who proves nothing must come from the host that it registered
    since_ms  when the controller started: before that it heard of nobody

    INV-38: at another address the process may run beside the one that we knew, be it a copy of its store. So that one
    must have been silent for as long as a lease counts, also when its connection broke: it may be connecting again.
    """
    if event.incarnation and event.incarnation == member.incarnation:
        return None  # the same process, on another connection
    who = f"replica {event.replica} of {event.group}"
    proven = bool(member.incarnation) and member.incarnation in event.lineage
    moved = bool(event.incarnation and member.incarnation) and event.address != member.address
    heard_ms = max(live.heard_ms, since_ms) if moved else live.heard_ms
    silence_ms = times.election_wait_ms if member.incarnation else STOCK_SILENCE_MS
    if proven and not moved:
        silence_ms = 2 * times.heartbeat_ms  # it may be ourselves, restarted in no time
    there = now_ms - heard_ms < silence_ms or (alive and bool(event.lineage) and not proven)
    if there and live.session not in (NO_SESSION, event.session):
        return f"another process is {who}"
    if there and moved:
        return f"another process was {who} at {member.address} a moment ago, and may be still"
    if by_host and not proven and not at_home(member, event.host):
        return (
            f"{who} is at {member.address}, not at {event.host}, and shows no number of its last process: clean its "
            "metadata if it moved, or set controllerReplicaHostCheck=false"
        )
    return None
