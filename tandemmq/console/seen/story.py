"""What happened to the broker groups: each change between two looks is one sentence with its time. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import EpochHistory
from tandemmq.console.seen.servers import SILENT, BrokerGroup, Member

ENTRIES_MAX: Final = 500
GOOD, NOTE, BAD = "good", "note", "bad"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, or was found at the first look. tone: good, note or bad."""

    at_ms: int
    group: str
    tone: str
    text: str


@dataclass(frozen=True, slots=True)
class Reign:
    """One master's time: which part of the log was written in an epoch.

    first_ms  when the first message of the epoch was stored, None where nobody can tell (any more)
    end_offset None: it lasts
    """

    group: str
    epoch: int
    start_offset: int
    end_offset: int | None
    first_ms: int | None = None


def happened(
    before: Sequence[BrokerGroup], after: Sequence[BrokerGroup], now_ms: int
) -> list[Entry]:
    """What changed between two looks; nothing at the first one."""
    if not before:
        return []
    found: list[Entry] = []
    known = {each.name: each for each in before}
    for group in after:
        earlier = known.pop(group.name, None)
        if earlier is None:
            found.append(Entry(now_ms, group.name, GOOD, f"{group.name} registered"))
        else:
            found += _changes(earlier, group, now_ms)
    for name in known:
        found.append(
            Entry(now_ms, name, BAD, f"{name} is gone: no member of it is registered any more")
        )
    return found


def _changes(before: BrokerGroup, after: BrokerGroup, now_ms: int) -> list[Entry]:
    name = after.name

    def entry(tone: str, text: str) -> Entry:
        return Entry(now_ms, name, tone, text)

    found: list[Entry] = []
    was, leads = before.master, after.master
    if leads is not None and was is not None and leads.address != was.address:
        text = f"{_at(leads)} leads{_epoch(after)}, in place of {_at(was)}"
        found.append(entry(NOTE, text))
    elif leads is not None and was is None:
        found.append(entry(GOOD, f"{_at(leads)} leads{_epoch(after)}"))
    elif leads is None and was is not None:
        found.append(entry(BAD, f"no master: {_at(was)} led; sends are refused until another does"))
    elif before.epoch is not None and before.epoch < (after.epoch or 0):
        found.append(entry(NOTE, f"epoch {before.epoch} → {after.epoch}, the master stayed"))
    earlier = {each.address: each for each in before.members}
    for member in after.members:
        old = earlier.pop(member.address, None)
        if old is None:
            found.append(entry(GOOD, f"{_at(member)} joined"))
            continue
        if old.role != SILENT and member.role == SILENT:
            found.append(entry(BAD, f"{_at(member)} does not answer: {member.problem}"))
        elif old.role == SILENT and member.role != SILENT:
            found.append(entry(GOOD, f"{_at(member)} answers again, as {member.role}"))
        if old.in_sync and member.in_sync is False:
            found.append(entry(BAD, f"{_at(member)} left the sync-state-set"))
        elif old.in_sync is False and member.in_sync:
            found.append(entry(GOOD, f"{_at(member)} is in sync"))
        for alarm in member.alarms:
            if alarm not in old.alarms:
                found.append(entry(BAD, f"{_at(member)}: {alarm}"))
    for gone in earlier.values():
        found.append(entry(NOTE, f"{_at(gone)} is not a member any more"))
    return found


def _at(member: Member) -> str:
    return f"{member.broker_id} ({member.address})"


def _epoch(group: BrokerGroup) -> str:
    return "" if group.epoch is None else f" in epoch {group.epoch}"


def reigns_of(
    histories: Mapping[str, EpochHistory], firsts: Mapping[tuple[str, int], int]
) -> tuple[Reign, ...]:
    """Who wrote what, the newest epoch first in each group.

    histories  broker name -> its master's history
    firsts     (broker name, epoch) -> when its first message was stored
    """
    return tuple(
        Reign(
            name,
            each.epoch,
            each.start_offset,
            None if each is history.epochs[-1] else each.end_offset,
            firsts.get((name, each.epoch)),
        )
        for name, history in sorted(histories.items())
        for each in reversed(history.epochs)
    )
