"""What a controller says of its groups, beside elections: their sets, their modes, its own unclean ways. Core."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tandemmq.replication.controlevents import Announce, Kind
from tandemmq.replication.group import GroupRecord

UNCLEAN_ALLOWED: Final = Announce(
    "",
    Kind.UNCLEAN_ALLOWED,
    0,
    "when nobody in a group's set is left another replica becomes master, "
    "and confirmed messages that only others hold are lost",
)


def differing_modes(record: GroupRecord) -> dict[tuple[int, str], Announce]:
    """(replica, mode) of each that is configured otherwise than its group, and what to say of it."""
    found = {}
    for each, member in sorted(record.members.items()):
        if member.mode not in ("", record.mode):
            text = (
                f"replica {each} is configured {member.mode}, the group's mode is {record.mode} "
                "until no replica asks for it"
            )
            found[each, member.mode] = Announce(record.name, Kind.MODE_DIFFERS, record.epoch, text)
    return found


def cleaned(before: GroupRecord, leaving: Iterable[int], living: Collection[int]) -> Announce:
    """The announcement that a group forgets replicas, all or some; living: those that are there."""
    gone = sorted(leaving)
    whole = "with them the whole group" if set(before.members) <= set(gone) else "the others stay"
    text = f"replicas {gone}, alive of them {sorted(living)}, master {before.master}: {whole}"
    return Announce(before.name, Kind.CLEANED, before.epoch, text)


def set_change(before: GroupRecord, after: GroupRecord, why: str) -> list[Announce]:
    """The announcement of a changed sync-state-set, if it changed.

    ONE_COPY   it was more and is one of several replicas now, or another one: the next fault ends the group's service
    WHOLE      every replica is in it again
    """
    if before.sync_set == after.sync_set:
        return []
    replicas = after.registered
    kind = Kind.SET_CHANGED
    if len(replicas) > 1 and len(after.sync_set) == 1 and before.sync_set:
        kind = Kind.ONE_COPY
    elif len(replicas) > 1 and replicas <= set(after.sync_set):
        kind = Kind.WHOLE
    text = (
        f"set {list(before.sync_set)} -> {list(after.sync_set)}, number {after.set_number}: {why}"
    )
    return [Announce(after.name, kind, after.epoch, text)]
