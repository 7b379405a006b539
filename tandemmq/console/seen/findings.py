"""What looks wrong in a snapshot, the worst first, each with what to do about it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tandemmq.console import words
from tandemmq.console.seen.servers import MASTER, SILENT, WAITING, BrokerGroup
from tandemmq.console.seen.snapshot import Snapshot

BAD, LOOK = "bad", "look"
DISK_LOOK: Final = 0.75  # where RocketMQ begins to delete
DISK_BAD: Final = 0.85
LAG_LOOK_BYTES: Final = 64 << 20
BEHIND_LOOK: Final = 10_000
FRESH_MS: Final = 15_000  # an older look says that nobody answers any more


@dataclass(frozen=True, slots=True)
class Finding:
    """severity: bad (data or service is at risk now), look (somebody should). place: path of the page about it."""

    severity: str
    what: str
    do: str
    place: str = ""


def findings(seen: Snapshot, now_ms: int) -> tuple[Finding, ...]:
    """Everything that looks wrong; nothing is a good sign only when the snapshot is fresh."""
    found = list(_all(seen, now_ms))
    return tuple(sorted(found, key=lambda each: each.severity != BAD))


def _all(seen: Snapshot, now_ms: int) -> Iterator[Finding]:
    if seen.problem:
        since = f" since {words.clock(seen.taken_ms)}" if seen.taken_ms else ""
        yield Finding(
            BAD,
            f"No name server answers{since}: {seen.problem}",
            "Start one: clients keep the routes they have, and find nothing new.",
        )
    elif seen.taken_ms and now_ms - seen.taken_ms > FRESH_MS:
        yield Finding(
            LOOK,
            f"The last look at the cluster is {words.span(now_ms - seen.taken_ms)} old",
            "Brokers may be slow to answer: look at the machines.",
        )
    if seen.controller_problem and any(group.controlled for group in seen.brokers):
        yield Finding(
            BAD,
            f"No controller answers: {seen.controller_problem}",
            "Start it: masters go on, but nobody would replace one that dies.",
        )
    if seen.taken_ms and not seen.brokers and not seen.problem:
        yield Finding(
            LOOK,
            "No broker is registered",
            "Start one with this name server as its namesrvAddr; it registers within seconds.",
        )
    for group in seen.brokers:
        yield from _of_brokers(group)
    yield from _of_consumers(seen)


def _of_brokers(group: BrokerGroup) -> Iterator[Finding]:
    place = f"/console/brokers/{group.name}"
    if group.master is None:
        waits = any(each.role == WAITING for each in group.members)
        yield Finding(
            BAD,
            f"{group.name} has no master: sends to it fail",
            "An election is under way or has no candidate in sync: start the member that led last."
            if group.controlled or waits
            else "Start its master, brokerId 0.",
            place,
        )
    for member in group.members:
        if member.role == SILENT:
            yield Finding(
                LOOK if group.master is not None else BAD,
                f"{member.name} at {member.address} does not answer: {member.problem}",
                "Start it, or look whether its advertised address can be reached from here.",
                place,
            )
        elif member.in_sync is False and member.role != MASTER:
            lag = "" if member.lag_bytes is None else f", {words.size(member.lag_bytes)} behind"
            yield Finding(
                LOOK,
                f"{member.name} is not in the sync-state-set{lag}",
                "It catches up by itself; if the lag does not shrink, look at its disk and network.",
                place,
            )
        if (member.lag_bytes or 0) > LAG_LOOK_BYTES and member.in_sync is not False:
            yield Finding(
                LOOK,
                f"{member.name} is {words.size(member.lag_bytes)} behind its master",
                "Look at its disk and network.",
                place,
            )
        if member.disk_ratio is not None and member.disk_ratio > DISK_LOOK:
            bad = member.disk_ratio > DISK_BAD
            yield Finding(
                BAD if bad else LOOK,
                f"{member.name}: its disk is {words.percent(member.disk_ratio)} full",
                "Old files go early from 75 % on, sends are refused from 90 % on: add room, or shorten "
                "fileReservedTime.",
                place,
            )
        for alarm in member.alarms:
            yield Finding(BAD, f"{member.name}: {alarm}", "Its log says more.", place)
    if len(group.members) > 1 and len(group.in_sync) == 1 and group.master is not None:
        yield Finding(
            BAD,
            f"{group.name}: only its master holds what is acknowledged now",
            "The loss of that disk would lose messages: bring another member back first.",
            place,
        )


def _of_consumers(seen: Snapshot) -> Iterator[Finding]:
    for each in seen.groups:
        if not each.system and (each.behind or 0) >= BEHIND_LOOK:
            yield Finding(
                LOOK,
                f"{each.name} is {each.behind:,} messages behind",
                "See whether it has members, and what they say.",
                f"/console/groups/{each.name}",
            )
