"""What a controller has seen of its groups since it started, and what that proves. Core.

Who is alive, who may still lead, whose log is longest, what a master may ask for: all of it answers, nothing here
changes a group or has an effect. election.py decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.replication.config import LeaseTimes, Mode
from tandemmq.replication.controlevents import AlterSyncSet, Heartbeat, RegisterBroker
from tandemmq.replication.group import NO_SESSION, NOBODY, Code, GroupRecord
from tandemmq.replication.story import Story

#: an elected master that lives but does not get ready is passed over
ACTIVATION_MS_MAX: Final = 30_000
#: confirmed offsets that grow are made durable so often, and with every other change of the record
NOTED_MS: Final = 30_000
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
    space: bool = False  # it says that its disk takes messages
    attached: bool = False  # it registered, or beat as registered, since we started
    held: int = 0  # what it last called confirmed in its own log
    proven: bool = False  # this process led, or followed a master that compared logs with it


@dataclass(slots=True)
class Switch:
    """A planned switchover under way."""

    request: int
    successor: int
    deadline_ms: int


@dataclass(slots=True)
class GroupEvidence:
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
    confirmed: int = 0  # the highest that we heard of; the record's is what of it is durable
    heard_ms: int = -(1 << 60)  # the last heartbeat of any replica
    noted_ms: int = -(1 << 60)  # the last one before the record was changed
    loaded: frozenset[int] = (
        frozenset()
    )  # the replicas of the record that this controller began with
    told: int = 0  # the highest epoch that one of those spoke of
    story: Story = field(default_factory=Story)

    @property
    def outdated(self) -> bool:
        """Whether records were lost, by the word of who was in them before: then no master of theirs is believed in.

        Who is new may say any epoch, and would stop a healthy group with it.
        """
        return self.told > self.record.epoch

    def hear(self, replica: int, epoch: int, end: int) -> None:
        """A replica says how far its log reaches, in which epoch."""
        self.reached = max(self.reached, (epoch, end))
        if replica in self.loaded:
            self.told = max(self.told, epoch)

    def forget(self, replica: int) -> int:
        """Take back what this replica said; the session that it had."""
        gone = self.live.pop(replica, None)
        if self.reached[0] > self.record.epoch:  # nobody speaks for that epoch any more, perhaps
            left = ((live.epoch, live.end) for live in self.live.values())
            self.reached = max(left, default=(0, 0))
            self.told = min(self.told, self.reached[0])
        return gone.session if gone is not None else NO_SESSION


@dataclass(slots=True)
class Judge:
    """Says what may be concluded.

    fast   two witnesses of a master's death are enough, without waiting for its lease
    """

    times: LeaseTimes
    fast: bool = True

    # --- the living ---

    def alive(self, group: GroupEvidence, replica: int, now_ms: int) -> bool:
        """Whether we heard of this replica lately, on a connection that is open."""
        live = group.live.get(replica)
        if live is None or not live.attached or live.session == NO_SESSION:
            return False
        return now_ms - live.heard_ms <= max(self.times.election_wait_ms, live.timeout_ms)

    def alive_of(self, groups: Iterable[GroupEvidence], now_ms: int) -> frozenset[tuple[str, int]]:
        return frozenset(
            (group.record.name, each)
            for group in groups
            for each in group.record.members
            if self.alive(group, each, now_ms)
        )

    # --- the master that is ---

    def may_lead(self, group: GroupEvidence, now_ms: int) -> bool:
        """Whether the recorded master may still acknowledge anything. INV-30: nobody is elected while it may."""
        record = group.record
        if record.master == NOBODY or record.electing_from or group.resigned:
            return False
        live = group.live.get(record.master)
        wait_ms = max(self.times.election_wait_ms, live.timeout_ms if live else 0)
        if now_ms - group.lease_ms > wait_ms:
            return False
        return not (self.fast and self._witnessed(group, now_ms))

    def _witnessed(self, group: GroupEvidence, now_ms: int) -> bool:
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

    def master_settled(self, group: GroupEvidence, now_ms: int) -> bool:
        """Whether there is a master and no reason to look for another."""
        record = group.record
        if record.master == NOBODY or group.resigned:
            return False
        if record.electing_from:
            on_its_way = now_ms - group.lease_ms <= ACTIVATION_MS_MAX
            trusted = self._trusted(record, record.master)
            return on_its_way and trusted and self.alive(group, record.master, now_ms)
        return self.may_lead(group, now_ms)

    def refuse_set(
        self, group: GroupEvidence | None, event: AlterSyncSet, now_ms: int
    ) -> tuple[Code, str] | None:
        """Why the master may not change its set; None when it may. The order of checks is RocketMQ's.

        RocketMQ also refuses when a member that stays is not alive; then a dead one could keep another dead one in.
        """
        if group is None:
            return Code.ALTER_SYNC_STATE_SET_FAILED, f"unknown group {event.group}"
        record = group.record
        if group.outdated:
            return Code.FENCED_MASTER_EPOCH, self.forgotten(group)
        now = frozenset(record.sync_set)
        forgotten = event.number > record.set_number
        if event.members == now and not event.reaffirm and not forgotten:
            return Code.ALTER_SYNC_STATE_SET_FAILED, "the set is what it was"
        if event.master != record.master:
            return Code.INVALID_MASTER, f"master is {record.master}, not {event.master}"
        if event.epoch != record.epoch:
            return Code.FENCED_MASTER_EPOCH, f"epoch is {record.epoch}, not {event.epoch}"
        master = record.members.get(record.master)
        stock = master is not None and not master.incarnation
        # Every number comes from here, and was durable before it was told: an older state of ours was restored.
        # What the master acknowledges by is the truth, as long as its epoch lasts.
        if event.number != record.set_number and (stock or not forgotten):
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
            if not member.incarnation:
                continue
            if stock and not incarnations:
                if not self._follows(group, each):
                    return Code.INVALID_REPLICAS, f"replica {each} does not follow the master yet"
            elif incarnations.get(each) != member.incarnation:
                return Code.INVALID_REPLICAS, f"replica {each} is another process by now"
        if event.master not in event.members:
            return Code.ALTER_SYNC_STATE_SET_FAILED, "the master is not in its own set"
        return None

    @staticmethod
    def _follows(group: GroupEvidence, replica: int) -> bool:
        """Whether the process of ours that lives now has what a stock master, which names no process, means.

        By that process's own word: it follows the stream, and its log reaches as far as the master last called
        confirmed. A process that restarted since the master looked has said neither. Our heartbeats are late, so a
        proposal may come too early; a stock master repeats it with each report of its slave.
        """
        live, master = group.live.get(replica), group.live.get(group.record.master)
        confirmed = master.confirmed if master is not None else 0
        return live is not None and live.streaming and live.end >= confirmed

    # --- what the group promises ---

    def agreed_mode(self, group: GroupEvidence, now_ms: int) -> str:
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
        return strictest if all_say and all_here and self.may_lead(group, now_ms) else record.mode

    # --- what the candidates must hold ---

    @staticmethod
    def live_of(group: GroupEvidence, replica: int) -> Live:
        """What we saw of a replica, beginning with what the record says."""
        live = group.live.get(replica)
        if live is None:
            member = group.record.members.get(replica)
            live = group.live[replica] = Live(held=member.held if member else 0)
        return live

    @staticmethod
    def _waits(record: GroupRecord) -> bool:
        """Whether the last master that served waited for its replicas: then the set holds what is confirmed.

        A stock master says nothing of how it acknowledges.
        """
        last = record.members.get(record.reigned)
        if last is not None and not last.incarnation:
            return False
        return (record.reigned_mode or record.mode) in WAITING_MODES

    def _known_confirmed(self, group: GroupEvidence) -> int:
        """How much every member of the set holds, by the highest that anybody called confirmed."""
        return max(group.record.confirmed, group.confirmed) if self._waits(group.record) else 0

    def hear_confirmed(self, group: GroupEvidence, event: Heartbeat, *, leading: bool) -> None:
        """A replica of ours says what it takes for confirmed."""
        record, live = group.record, group.live[event.replica]
        live.held = event.confirmed
        live.proven = live.proven or event.streaming or leading
        inside = event.replica in record.base and event.replica not in record.suspects
        if self._waits(record) and (leading or inside):
            group.confirmed = max(group.confirmed, event.confirmed)

    def hear_joined(self, group: GroupEvidence, event: AlterSyncSet) -> None:
        """Before the set is changed: a master names processes that follow it and have all it called confirmed (INV-25).

        Its word is enough: what a new member would say of itself with its next heartbeat may never arrive, and what is
        confirmed from now on it holds. Not where an older state of ours was restored: then it names whom its set has,
        also one that came back since, with less than we knew how to tell.
        """
        if event.number != group.record.set_number:
            return
        for replica, incarnation in event.incarnations:
            member = group.record.members.get(replica)
            joins = replica in event.members and replica not in group.record.sync_set
            if joins and member is not None and member.incarnation == incarnation != 0:
                self.live_of(group, replica).proven = True

    def worth_noting(self, group: GroupEvidence, replica: int, now_ms: int) -> bool:
        """Whether to make durable what was heard of confirmed offsets; what fell after a declared loss is at once."""
        record, live = group.record, group.live[replica]
        noted = record.members[replica].held
        if live.held < noted:
            return True
        # A replica that holds nothing beats on with 0, and a stock one says none of this.
        first = (live.held and not noted) or (group.confirmed and not record.confirmed)
        return bool(first) or (self.newer(group, replica) and now_ms - group.noted_ms >= NOTED_MS)

    @staticmethod
    def newer(group: GroupEvidence, replica: int) -> bool:
        """Whether more was heard of this replica, or the group, than is durable."""
        live = group.live.get(replica)
        noted = group.record.members[replica].held
        return (live is not None and live.held > noted) or group.confirmed > group.record.confirmed

    def came_back_short(self, group: GroupEvidence, event: RegisterBroker) -> str:
        """Why a new process has not the store that the last one of this replica had; "" when nothing says so.

        INV-37, INV-38. A stock broker says nothing that could be compared.
        """
        record, replica = group.record, event.replica
        if not event.incarnation:
            return ""
        held = self.live_of(group, replica).held
        if replica in record.base:
            held = max(held, self._known_confirmed(group))
        if event.end < held:
            return f"replica {replica} ends at {event.end}, {held} was confirmed in it"
        return self.of_another_line(record, event)

    @staticmethod
    def of_another_line(record: GroupRecord, event: RegisterBroker) -> str:
        """INV-38 Why this store is a copy of the replica's, older or gone its own way; "" when it is the one."""
        known = record.members[event.replica]
        last = known.incarnation
        if not known.traced or not event.lineage or last in (event.incarnation, *event.lineage):
            return ""
        return (
            f"replica {event.replica} has a copy of its store, restored or cloned: "
            "the last process that registered never had this one"  # its number is for nobody to know: INV-44
        )

    def lacking(self, group: GroupEvidence) -> dict[int, int]:
        """Members of the set that cannot be the ones that were: by id, where their logs end, below what is confirmed.

        Asked of processes that neither led nor followed since they came, by no word that we heard: their ends stand
        still, so none of this is only late. The others hold what they reported to their master.
        """
        known, found = self._known_confirmed(group), {}
        for each in group.record.base:
            live = group.live.get(each)
            ours = group.record.members[each].incarnation
            if live is not None and live.attached and ours and not live.proven and live.end < known:
                found[each] = live.end
        return found

    def known_lost(self, group: GroupEvidence, chosen: int) -> bool:
        """Whether the last master called more confirmed than a new one has, where the mode allows that."""
        reigned, live = group.record.reigned, group.live[chosen]
        last = group.live.get(reigned)
        if reigned in (NOBODY, chosen) or last is None or group.resigned or not live.attached:
            return False
        return live.heard_ms >= last.heard_ms and live.end < last.held

    # --- the master that may be ---

    @staticmethod
    def _trusted(record: GroupRecord, replica: int) -> bool:
        return replica not in record.suspects or set(record.base) <= set(record.suspects)

    def all_suspect(self, group: GroupEvidence, now_ms: int) -> list[int]:
        """Every copy may have lost something; the longest log that is left is the best there is: who may be elected.

        Any replica may hold more than the set now does: one that was taken out because its power cut was known first,
        or one that was dead at the time. So where a promise forbids the loss all replicas of the group must be here,
        and a set of one is not enough: then an operator decides. Who only applied for an id holds nothing.
        """
        record = group.record
        needed: Iterable[int] = record.base
        if record.mode in WAITING_MODES:
            if len(record.base) < 2:
                return []
            needed = record.registered
        if not all(self.alive(group, each, now_ms) for each in needed):
            return []
        return sorted(record.registered)

    @staticmethod
    def old_end(group: GroupEvidence, reigned: int, new_end: int) -> str:
        """Where the log of this reign ended, as far as we were told: what is above the new end is lost."""
        epoch, end = group.reached
        known = group.led_by == reigned if reigned != NOBODY else epoch == 0
        if known:
            return str(end)
        return f"unknown, {end} at least" if end > new_end else "unknown"

    def best(self, group: GroupEvidence, candidates: list[int]) -> int:
        """The longest log of the highest epoch, then priority (lower wins), then id."""
        return min(candidates, key=lambda each: self._rank(group, each), default=NOBODY)

    def logs(self, group: GroupEvidence, now_ms: int, beyond: int = NOBODY) -> str:
        """What the replicas that live said of their logs, the furthest first: by it a person elects, or sees what was
        given up. beyond: only those that have more than this one, or a later epoch."""
        record, than = group.record, group.live.get(beyond)
        said = []
        for each in sorted(record.registered, key=lambda each: self._rank(group, each)):
            live = group.live.get(each)
            if live is None or not self.alive(group, each, now_ms):
                continue
            if than is None or (
                each != beyond and (live.epoch > than.epoch or live.end > than.end)
            ):
                said.append(f"{each} ends at {live.end} in epoch {live.epoch}")
        return ", ".join(said)

    @staticmethod
    def _rank(group: GroupEvidence, replica: int) -> tuple[int, int, int, int]:
        live = group.live.get(replica) or Live()
        return -live.epoch, -live.end, live.priority, replica

    @staticmethod
    def epoch_in_logs(group: GroupEvidence) -> int:
        """The highest epoch that a replica has spoken of, also one that says less by now.

        Above the record's: this controller has forgotten reigns. INV-28: no epoch may be given out a second time.
        """
        return max(group.reached[0], max((live.epoch for live in group.live.values()), default=0))

    def has_forgotten(self, group: GroupEvidence) -> bool:
        """Whether records were lost, by anybody's word: what is left of them elects nobody."""
        return self.epoch_in_logs(group) > group.record.epoch

    def why_nobody(self, group: GroupEvidence) -> str:
        """What keeps this group from having a master."""
        record = group.record
        if self.has_forgotten(group):
            return self.forgotten(group)
        if set(record.base) <= set(record.suspects):
            return f"every copy of {record.base} lost power with unflushed data, or came back with less"
        text = f"nobody of {record.base} is alive"
        lacking = self.lacking(group)
        if lacking:
            known = ", ".join(f"{each} ends at {end}" for each, end in sorted(lacking.items()))
            confirmed = self._known_confirmed(group)
            text += f" with the {confirmed} bytes that were confirmed: {known}"
        elif record.suspects:
            text += f" and trusted: {record.suspects} may have lost some of it"
        return text

    def forgotten(self, group: GroupEvidence) -> str:
        return (
            f"the logs have epoch {self.epoch_in_logs(group)}, this controller knows {group.record.epoch}: "
            "its records were lost; restore them, or elect unclean by hand"
        )
