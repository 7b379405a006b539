"""What a controller keeps of each broker group, and what brokers learn of it: the durable values of an election.

Source: RocketMQ's BrokerReplicaInfo and SyncStateInfo.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from tandemmq.replication.registered import KnownReplica, host_of

NOBODY: Final = 0
NO_SESSION: Final = 0


class Code(enum.IntEnum):
    """Response codes of the controller requests, RocketMQ's."""

    SUCCESS = 0
    FENCED_MASTER_EPOCH = 2000
    FENCED_SYNC_STATE_SET_EPOCH = 2001
    INVALID_MASTER = 2002
    INVALID_REPLICAS = 2003
    MASTER_NOT_AVAILABLE = 2004
    INVALID_REQUEST = 2005
    BROKER_NOT_ALIVE = 2006
    BROKER_METADATA_NOT_EXIST = 2008
    INVALID_CLEAN_BROKER_METADATA = 2009
    BROKER_NEED_TO_BE_REGISTERED = 2010
    MASTER_STILL_EXIST = 2011
    ELECT_MASTER_FAILED = 2012
    ALTER_SYNC_STATE_SET_FAILED = 2013
    BROKER_ID_INVALID = 2014


# --- the durable value ---


class Member(msgspec.Struct, frozen=True):
    """A replica as it registered. incarnation 0: a stock broker, which has none.

    mode   what it is configured to promise; "" where it did not say, or said so to a release that did not keep it
    held   what it last called confirmed in its own log, as far as that was noted: with less it does not come back
    traced  its process wrote itself into its store (INV-38); an older release, between two of ours too, does not
    """

    address: str = ""
    ha_address: str = ""
    check_code: str = ""
    incarnation: int = 0
    mode: str = ""
    held: int = 0
    traced: bool = False


class GroupRecord(msgspec.Struct, frozen=True):
    """What a controller must never forget about one broker group.

    members        by replica id, registered or only applied for
    master         recorded master, 0 for none
    reigned        the last replica that was given a lease
    sync_set       holds everything confirmed, by the last word of the master
    set_number     grows with every change of sync_set, also within an epoch
    electing_from  while the elected master is not active: who may still be elected instead
    suspects       lost power with unflushed data, or came back with less than they had, and did not catch up
                   since: never elected unasked
    lossy_epoch    the last epoch whose election may have lost confirmed data
    mode           what the group promises: "A0".."S1"; "" for stock brokers. As texts they sort by strictness
    reigned_mode   what `reigned` confirms by; "" for stock brokers. Not the group's while replicas differ
    confirmed      INV-37: every member of the set holds at least this much since a loss was last declared. A lower
                   bound of what was confirmed: noted with other changes, and now and then. 0 where replicas are not
                   waited for
    """

    cluster: str
    name: str
    members: dict[int, Member] = {}
    next_id: int = 1
    master: int = NOBODY
    reigned: int = NOBODY
    epoch: int = 0
    sync_set: tuple[int, ...] = ()
    set_number: int = 0
    electing_from: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    lossy_epoch: int = 0
    mode: str = ""
    reigned_mode: str = ""
    confirmed: int = 0

    @property
    def registered(self) -> frozenset[int]:
        """The replicas that may hold a log: not those that only applied for an id."""
        return frozenset(each for each, member in self.members.items() if member.address)

    @property
    def base(self) -> tuple[int, ...]:
        """Who holds everything confirmed."""
        return self.electing_from or self.sync_set

    def view(self) -> GroupView:
        member = self.members.get(self.master)
        address = member.address if member else ""
        ha_address = member.ha_address if member else ""
        mode = member.mode if member else ""
        return GroupView(
            self.epoch, self.master, address, ha_address, frozenset(self.sync_set), self.set_number, self.lossy_epoch,
            mode,
            self.replicas(),
        )  # fmt: skip

    def replicas(self) -> tuple[KnownReplica, ...]:
        """Whom the master lets in: every registered replica, whether it is alive or not."""
        found = []
        for replica, member in self.members.items():
            if member.address:
                hosts = {host_of(member.address), host_of(member.ha_address)} - {""}
                found.append(KnownReplica(replica, member.incarnation, tuple(sorted(hosts))))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GroupView:
    """What a broker learns of its group. INV-28: per epoch there is one master, for ever.

    mode  in which this master serves: "A0".."S1"; "" for none, a stock one, and where nobody says
    registered   the group's replicas, for its master only; None where nobody said
    """

    epoch: int = 0
    master: int = NOBODY
    address: str = ""
    ha_address: str = ""
    members: frozenset[int] = frozenset()
    number: int = 0
    lossy_epoch: int = 0
    mode: str = ""
    registered: tuple[KnownReplica, ...] | None = None
