"""Name servers, controllers and broker groups, put together from what each of them said. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.cluster.client import BrokerMembers, Replica, ReplicaSet, ReplicaState

MASTER, SLAVE, WAITING, SILENT = "master", "slave", "waiting", "silent"
NO_MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One broker process, as far as it answers.

    broker_id   the controller's number of it, without a controller the name server's
    role        master, slave, waiting (under a controller, for a master), silent (it does not answer)
    problem     why it is silent
    in_sync     whether it holds everything acknowledged; None where nobody told
    lag_bytes   what its master's log has and this one lacks, None where not known
    disk_ratio  of the fullest disk it writes to, 0 to 1
    The rest is None where it was not told.
    """

    group: str
    cluster: str
    address: str
    broker_id: int
    role: str
    problem: str = ""
    in_sync: bool | None = None
    registered: bool = True
    epoch: int | None = None
    end_offset: int | None = None
    confirmed_offset: int | None = None
    lag_bytes: int | None = None
    put_per_second: float | None = None
    get_per_second: float | None = None
    disk_ratio: float | None = None
    boot_ms: int | None = None
    version: str = ""
    alarms: tuple[str, ...] = ()
    status: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """broker-a 2: its group and its number."""
        return f"{self.group} {self.broker_id}"


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """One broker name with all its members, registered ones and those that only the controller knows.

    controlled       whether a controller decides who leads it
    epoch, set_epoch  as the controller has them, else None
    """

    name: str
    cluster: str
    members: tuple[Member, ...]
    controlled: bool = False
    epoch: int | None = None
    set_epoch: int | None = None

    @property
    def master(self) -> Member | None:
        """Who leads and answers."""
        return next((each for each in self.members if each.role == MASTER), None)

    @property
    def in_sync(self) -> tuple[Member, ...]:
        return tuple(each for each in self.members if each.in_sync)

    @property
    def successors(self) -> tuple[Member, ...]:
        """Who could lead next without losing a message: living members of the sync-state-set."""
        return tuple(
            each for each in self.in_sync if each.role not in (MASTER, SILENT) and self.controlled
        )


def groups_of(
    registered: Mapping[str, BrokerMembers],
    statuses: Mapping[str, Mapping[str, str] | str],
    sets: Mapping[str, ReplicaSet],
    links: Mapping[str, ReplicaState],
) -> tuple[BrokerGroup, ...]:
    """Everything that is known of brokers, sorted by cluster and name.

    registered  broker name -> members, as the name server has them
    statuses    address -> runtime table, or a sentence why there is none
    sets        broker name -> group, as the controller has it
    links       address of a master without a controller -> what it says of its slaves
    """
    found = []
    for name, known in registered.items():
        at_controller = sets.get(name)
        members = _members(name, known, at_controller, statuses)
        members = _with_lag(_with_links(members, links))
        found.append(
            BrokerGroup(
                name,
                known.cluster,
                tuple(sorted(members, key=lambda each: (each.role != MASTER, each.broker_id))),
                controlled=at_controller is not None,
                epoch=None if at_controller is None else at_controller.epoch,
                set_epoch=None if at_controller is None else at_controller.set_epoch,
            )
        )
    return tuple(found)


def _members(
    name: str,
    known: BrokerMembers,
    controlled: ReplicaSet | None,
    statuses: Mapping[str, Mapping[str, str] | str],
) -> list[Member]:
    replicas: dict[str, Replica] = {}
    if controlled is not None:
        replicas = {each.address: each for each in controlled.replicas.values()}
    addresses = dict.fromkeys([*known.addresses.values(), *replicas])
    numbers = {address: number for number, address in known.addresses.items()}
    found = []
    for address in addresses:
        replica = replicas.get(address)
        number = replica.broker_id if replica is not None else numbers.get(address, NO_MASTER_ID)
        said = statuses.get(address, "not asked yet")
        member = Member(
            name,
            known.cluster,
            address,
            number,
            SILENT,
            registered=address in numbers,
            in_sync=None if controlled is None else replica in controlled.in_sync,
        )
        if isinstance(said, str):
            found.append(replace(member, problem=said))
            continue
        leads = controlled is None or controlled.master_id in (None, number)
        found.append(_told(member, said, leads=leads, waits=controlled is not None))
    return found


def _told(member: Member, said: Mapping[str, str], *, leads: bool, waits: bool) -> Member:
    """The member with what its runtime table says. leads: as far as the controller is concerned."""
    role = MASTER
    word = said.get("brokerRole") or ("SLAVE" if member.broker_id and not waits else "")
    if word == "SLAVE" or (not word and said.get("brokerActive") == "false"):
        role = WAITING if waits and leads else SLAVE
    told = (_first(said, "commitLogDiskRatio"), _first(said, "consumeQueueDiskRatio"))
    disks = [each for each in told if each is not None]
    return replace(
        member,
        role=role,
        epoch=_whole(said, "masterEpoch"),
        end_offset=_whole(said, "commitLogMaxOffset"),
        confirmed_offset=_whole(said, "confirmOffset"),
        put_per_second=_first(said, "putTps"),
        get_per_second=_first(said, "getTransferredTps", "getTransferedTps"),
        disk_ratio=max(disks) if disks else None,
        boot_ms=_whole(said, "bootTimestamp"),
        version=said.get("brokerVersionDesc", ""),
        alarms=tuple(each for each in said.get("alarms", "").split("; ") if each),
        status=said,
    )  # fmt: skip


def _whole(said: Mapping[str, str], key: str) -> int | None:
    text = said.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _first(said: Mapping[str, str], *keys: str) -> float | None:
    """The first number of the first of these entries: a rate's is that of the last ten seconds."""
    for key in keys:
        words = said.get(key, "").split()
        if words:
            try:
                return float(words[0])
            except ValueError:
                return None
    return None


def _with_links(members: list[Member], links: Mapping[str, ReplicaState]) -> list[Member]:
    """Without a controller the master knows who follows; of several slaves on one host it tells hosts only."""
    master = next((each for each in members if each.role == MASTER), None)
    state = None if master is None else links.get(master.address)
    if state is None or master is None:
        return members
    slaves = [each for each in members if each.role == SLAVE]
    following = all(each.in_sync for each in state.slaves) and len(state.slaves) >= len(slaves)
    return [
        replace(each, in_sync=True if each is master else following if slaves else None)
        if each in slaves or each is master
        else each
        for each in members
    ]


def _with_lag(members: list[Member]) -> list[Member]:
    master = next((each for each in members if each.role == MASTER), None)
    if master is None or master.end_offset is None:
        return members
    end = master.end_offset
    return [
        replace(each, lag_bytes=max(0, end - each.end_offset))
        if each.role == SLAVE and each.end_offset is not None
        else each
        for each in members
    ]
