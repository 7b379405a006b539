"""What a controller has seen of its groups since it started, and what that proves. Core.

Who is alive, who may still lead, whose log is longest, what a master may ask for: all of it answers, nothing here
changes a group or has an effect. election.py decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from replication.config import LeaseTimes, Mode
from replication.controlevents import AlterSyncSet
from replication.group import NO_SESSION, NOBODY, Code, GroupRecord
from replication.story import Story

#: an elected master that lives but does not get ready is passed over
ACTIVATION_MS_MAX: Final = 30_000
WAITING_MODES: Final = frozenset(mode.value for mode in Mode if mode.waits_for_slaves)


@dataclass(slots=True)
class Live:
    """What the controller saw of one replica since it started."""

    session: int = NO_SESSION
    heard_ms: int = -(1 << 60)
    epoch: int = 0
    end: int = 0
    confirmed: int = 0
    streaming: bool = False
    priority: int = (1 << 31) - 1
    timeout_ms: int = 0
    attached: bool = False  # it registered, or beat as registered, since we started


@dataclass(slots=True)
class Switch:
    """A planned switchover under way."""

    request: int
    successor: int
    deadline_ms: int


@dataclass(slots=True)
class Group:
    """One broker group: the durable record and what is known since the start."""

    record: GroupRecord
    lease_ms: int  # when the present master's lease was last granted, or may have been
    live: dict[int, Live] = field(default_factory=dict)
    refused: int = -1  # incarnation of the master whose address refused a connect
    probing: bool = False
    resigned: bool = False
    switch: Switch | None = None
    waiting: str = ""
    reached: tuple[int, int] = (0, 0)  # epoch and end of the furthest log that anybody spoke of
    led_by: int = NOBODY  # the last master that we heard of while it led
    differing: frozenset[tuple[int, str]] = frozenset()  # (replica, mode) said already
    story: Story = field(default_factory=Story)


@dataclass(slots=True)
class Judge:
    """Says what may be concluded.

    fast   two witnesses of a master's death are enough, without waiting for its lease
    """

    times: LeaseTimes
    fast: bool = True

    # --- the living ---

    def alive(self, group: Group, replica: int, now_ms: int) -> bool:
        """Whether we heard of this replica lately, on a connection that is open."""
        live = group.live.get(replica)
        if live is None or not live.attached or live.session == NO_SESSION:
            return False
        return now_ms - live.heard_ms <= max(self.times.election_wait_ms, live.timeout_ms)

    def _alive_of(self, groups: Iterable[Group], now_ms: int) -> frozenset[tuple[str, int]]:
        return frozenset(
            (group.record.name, each)
            for group in groups
            for each in group.record.members
            if self.alive(group, each, now_ms)
        )

    # --- the master that is ---

    def _may_lead(self, group: Group, now_ms: int) -> bool:
        """Whether the recorded master may still acknowledge anything. INV-30: nobody is elected while it may."""
        record = group.record
        if record.master == NOBODY or record.electing_from or group.resigned:
            return False
        live = group.live.get(record.master)
        wait_ms = max(self.times.election_wait_ms, live.timeout_ms if live else 0)
        if now_ms - group.lease_ms > wait_ms:
            return False
        return not (self.fast and self._witnessed(group, now_ms))

    def _witnessed(self, group: Group, now_ms: int) -> bool:
        """Two witnesses of a dead process: its address refuses us, and a member of the set lost its stream."""
        record = group.record
        if group.refused != record.members[record.master].incarnation:
            return False
        for each in record.base:
            live = group.live.get(each)
            if each == record.master or live is None or live.streaming:
                continue
            if self.alive(group, each, now_ms):
                return True
        return False

    def _master_settled(self, group: Group, now_ms: int) -> bool:
        """Whether there is a master and no reason to look for another."""
        record = group.record
        if record.master == NOBODY or group.resigned:
            return False
        if record.electing_from:
            on_its_way = now_ms - group.lease_ms <= ACTIVATION_MS_MAX
            trusted = self._trusted(record, record.master)
            return on_its_way and trusted and self.alive(group, record.master, now_ms)
        return self._may_lead(group, now_ms)

    def _refuse_set(
        self, group: Group | None, event: AlterSyncSet, now_ms: int
    ) -> tuple[Code, str] | None:
        """Why the master may not change its set; None when it may. The order of checks is RocketMQ's.

        RocketMQ also refuses when a member that stays is not alive; then a dead one could keep another dead one in.
        """
        if group is None:
            return Code.ALTER_SYNC_STATE_SET_FAILED, f"unknown group {event.group}"
        record = group.record
        now = frozenset(record.sync_set)
        if event.members == now and not event.reaffirm:
            return Code.ALTER_SYNC_STATE_SET_FAILED, "the set is what it was"
        if event.master != record.master:
            return Code.INVALID_MASTER, f"master is {record.master}, not {event.master}"
        if event.epoch != record.epoch:
            return Code.FENCED_MASTER_EPOCH, f"epoch is {record.epoch}, not {event.epoch}"
        if event.number != record.set_number:
            remark = f"set number is {record.set_number}, not {event.number}"
            return Code.FENCED_SYNC_STATE_SET_EPOCH, remark
        incarnations = dict(event.incarnations)
        for each in sorted(event.members):
            member = record.members.get(each)
            if member is None:
                return Code.INVALID_REPLICAS, f"replica {each} is unknown"
            if each in now or each == record.master:
                continue
            if not self.alive(group, each, now_ms):
                return Code.BROKER_NOT_ALIVE, f"replica {each} is not alive"
            if member.incarnation and incarnations.get(each) != member.incarnation:
                return Code.INVALID_REPLICAS, f"replica {each} is another process by now"
        if event.master not in event.members:
            return Code.ALTER_SYNC_STATE_SET_FAILED, "the master is not in its own set"
        return None

    # --- what the group promises ---

    def _agreed_mode(self, group: Group, now_ms: int) -> str:
        """The strictest mode that a replica says, and no less than the present one while somebody may rely on that.

        A promise ends when every replica is here and says less, under a master that serves: before that, what was
        confirmed under the stricter mode may still have to be inherited. Stock brokers do not say.
        """
        record = group.record
        said = [member.mode for member in record.members.values() if member.incarnation]
        strictest = max(said, default="")
        if strictest >= record.mode:
            return strictest
        all_say = bool(said) and all(said)
        all_here = all(self.alive(group, each, now_ms) for each in record.registered)
        return strictest if all_say and all_here and self._may_lead(group, now_ms) else record.mode

    # --- the master that may be ---

    @staticmethod
    def _trusted(record: GroupRecord, replica: int) -> bool:
        return replica not in record.suspects or set(record.base) <= set(record.suspects)

    def _all_suspect(self, group: Group, now_ms: int) -> list[int]:
        """Every copy lost power. The longest log of all that are left is the best there is: who may be elected.

        Any replica may hold more than the set now does: one that was taken out because its power cut was known first,
        or one that was dead at the time. So where a promise forbids the loss all replicas of the group must be here,
        and a set of one is not enough: then an operator decides.
        """
        record = group.record
        needed: Iterable[int] = record.base
        if record.mode in WAITING_MODES:
            if len(record.base) < 2:
                return []
            needed = record.members
        if not all(self.alive(group, each, now_ms) for each in needed):
            return []
        return sorted(record.members)

    @staticmethod
    def _old_end(group: Group, reigned: int, new_end: int) -> str:
        """Where the log of this reign ended, as far as we were told: what is above the new end is lost."""
        epoch, end = group.reached
        known = group.led_by == reigned if reigned != NOBODY else epoch == 0
        if known:
            return str(end)
        return f"unknown, {end} at least" if end > new_end else "unknown"

    def _best(self, group: Group, candidates: list[int]) -> int:
        """The longest log of the highest epoch, then priority (lower wins), then id."""

        def rank(replica: int) -> tuple[int, int, int, int]:
            live = group.live[replica]
            return -live.epoch, -live.end, live.priority, replica

        return min(candidates, key=rank, default=NOBODY)

    @staticmethod
    def _epoch_in_logs(group: Group) -> int:
        """The highest epoch that a replica has spoken of. Above the record's: this controller has forgotten reigns."""
        return max((live.epoch for live in group.live.values()), default=0)

    def _forgotten(self, group: Group) -> str:
        return (
            f"the logs have epoch {self._epoch_in_logs(group)}, this controller knows {group.record.epoch}: "
            "its records were lost; restore them, or elect unclean by hand"
        )
