"""What a MasterCore is told, and what it has its shell do: events and effects, each a fact or an order.

They are made for every batch of a stream: structs, which are cheaper to make than frozen dataclasses.
"""

from __future__ import annotations

import msgspec

from tandemmq.replication.comparing import Verdict
from tandemmq.replication.registered import KnownReplica

# --- events ---


class Appended(msgspec.Struct, frozen=True):
    """Our own log ends at `end` now, on a record boundary. One event per tick is enough."""

    end: int


class Flushed(msgspec.Struct, frozen=True):
    """Our own log is on the disk up to `end`."""

    end: int


class Trimmed(msgspec.Struct, frozen=True):
    """Retention: our own log starts at `start` now."""

    start: int


class LeaseRenewed(msgspec.Struct, frozen=True):
    """The controller answered a heartbeat that we sent `lease_ms` before until_ms."""

    until_ms: int


class SlaveGreeted(msgspec.Struct, frozen=True):
    """A slave said who it is.

    replica      its id; classic HA knows none: any number that no other slave has
    incarnation  0 where the dialect does not say
    epoch        the highest the slave has heard of, 0 where the dialect does not say
    host         where it connects from, an IP address; "" where nobody looked
    compared     classic HA: its log was held against ours up to here, and is the same; -1: it was not
    """

    connection: int
    replica: int
    incarnation: int = 0
    epoch: int = 0
    learner: bool = False
    from_last_file: bool = False
    host: str = ""
    compared: int = -1


class SlaveReported(msgspec.Struct, frozen=True):
    """What a slave holds.

    flushed  None where the dialect does not say: then `received` is all we know
    epoch    who wrote its last byte; None where the dialect does not say
    sent     highest offset written to this connection so far
    end      where our own log ends, for a core that was not told yet
    """

    connection: int
    received: int
    flushed: int | None
    epoch: int | None
    sent: int
    end: int


class SlaveLost(msgspec.Struct, frozen=True):
    connection: int


class SlaveCompared(msgspec.Struct, frozen=True):
    """What came of a CompareSlave. why: in words, for all but SAME."""

    connection: int
    end: int
    verdict: Verdict
    why: str = ""


class SetLearned(msgspec.Struct, frozen=True):
    """The controller's sync-state-set. Only a higher number than the known one counts."""

    members: frozenset[int]
    number: int


class ReplicasLearned(msgspec.Struct, frozen=True):
    """Who is registered with the controller for this group. Whoever is connected and is not among them goes."""

    replicas: tuple[KnownReplica, ...]


class Resign(msgspec.Struct, frozen=True):
    """Hand over to `successor`: stop taking puts, and resign when it holds everything."""

    successor: int


class DiskStalled(msgspec.Struct, frozen=True):
    """Our disk stands still: who is to take over need not wait for it. Until the next Flushed."""


class Tick(msgspec.Struct, frozen=True):
    """Time passed."""


Event = (
    Appended
    | Flushed
    | Trimmed
    | LeaseRenewed
    | SlaveGreeted
    | SlaveReported
    | SlaveLost
    | SlaveCompared
    | SetLearned
    | ReplicasLearned
    | Resign
    | DiskStalled
    | Tick
)

# --- effects ---


class Confirmed(msgspec.Struct, frozen=True):
    """Consumers may see everything below `offset`."""

    offset: int


class Acknowledge(msgspec.Struct, frozen=True):
    """Answers to puts that end at or below `end` may leave now, and only now: a later look needs a later effect.

    copies   replicas that hold `end`, the master included; durable: on how many disks
    """

    end: int
    epoch: int
    copies: int
    durable: int


class Admit(msgspec.Struct, frozen=True):
    """Greet this slave with our history."""

    connection: int


class StreamFrom(msgspec.Struct, frozen=True):
    """Send the log from `offset` on; with `newest_file` from the start of the newest file instead."""

    connection: int
    offset: int
    newest_file: bool = False


class CompareSlave(msgspec.Struct, frozen=True):
    """Classic HA: hold this slave's log, which it says ends at `end`, against ours. Ends in SlaveCompared."""

    connection: int
    end: int


class Drop(msgspec.Struct, frozen=True):
    """Close this connection; one warning with the reason.

    unregistered  the controller did not name it: it may have registered since, so ask the controller
    """

    connection: int
    reason: str
    unregistered: bool = False


class Propose(msgspec.Struct, frozen=True):
    """Ask the controller to replace the set that has `number`.

    incarnations  (replica, incarnation) of each member as we know it: a restarted one is not the one we vouch for
    reaffirm      the members are the present ones: only the number shall change, which ends older proposals
    """

    members: frozenset[int]
    number: int
    epoch: int
    incarnations: tuple[tuple[int, int], ...]
    reaffirm: bool = False


class SetChanged(msgspec.Struct, frozen=True):
    """The sync-state-set is another one now: an acknowledgement waits for these."""

    before: frozenset[int]
    members: frozenset[int]
    number: int


class Superseded(msgspec.Struct, frozen=True):
    """A slave knows a higher epoch than ours: ask the controller at once."""

    epoch: int


class Resigned(msgspec.Struct, frozen=True):
    """Tell the controller that this epoch acknowledges nothing any more. The successor has everything up to `end`;
    all of it is acknowledged, but for what our own disk has not while it stands still."""

    epoch: int
    end: int
    successor: int


class SwitchAbandoned(msgspec.Struct, frozen=True):
    """The successor did not catch up in time: puts are taken again."""

    reason: str


Effect = (
    Confirmed
    | Acknowledge
    | Admit
    | StreamFrom
    | CompareSlave
    | Drop
    | Propose
    | SetChanged
    | Superseded
    | Resigned
    | SwitchAbandoned
)
