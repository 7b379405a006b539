"""Who becomes master: what the controller decides from the evidence. Core.

The durable part is a GroupRecord per broker group. An effect that follows a Persist, in the same list or a later one,
may leave only when that record is durable; then no broker ever acts on a decision that a restart forgets.

A decision has two steps. *Elected*: epoch + 1, the set is the new master alone, but the set it was elected from is kept
beside it (`electing_from`). *Activated*: the first heartbeat of the new master in its epoch; only then is that kept set
dropped and the first lease given. A master that dies in between has acknowledged nothing, so any other member of the
kept set may be elected at once. A stock broker knows neither: it may acknowledge from its election on, and is thought
alive for as long as its heartbeats say.

Source: RocketMQ's ReplicasInfoManager, DefaultElectPolicy, DefaultBrokerHeartbeatManager; what differs and why:
decision 0004.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.replication.announcing import UNCLEAN_ALLOWED, cleaned, differing_modes, set_change
from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.controlevents import (
    AllowUnclean,
    AlterSyncSet,
    Announce,
    Answer,
    AnswerHeartbeat,
    ApplyBrokerId,
    AskToSwitch,
    CleanBrokerData,
    Effect,
    ElectMaster,
    Event,
    Heartbeat,
    Kind,
    NextBrokerId,
    NotifyRole,
    Persist,
    Probe,
    ProbeAnswered,
    RegisterBroker,
    ReplicaInfo,
    SessionClosed,
    SyncStateData,
    Tick,
)
from tandemmq.replication.credence import at_home, refuse_registration
from tandemmq.replication.epochs import EPOCH_MAX
from tandemmq.replication.evidence import WAITING_MODES, GroupEvidence, Judge, Switch
from tandemmq.replication.group import (
    NO_SESSION,
    NOBODY,
    Code,
    GroupRecord,
    GroupView,
    Member,
)

#: those who speak with the core find its whole language here
__all__ = [
    "HANDLERS",
    "NOBODY",
    "NO_SESSION",
    "SWITCH_MS_MAX",
    "AllowUnclean",
    "AlterSyncSet",
    "Announce",
    "Answer",
    "AnswerHeartbeat",
    "ApplyBrokerId",
    "AskToSwitch",
    "CleanBrokerData",
    "Code",
    "ControllerCore",
    "Effect",
    "ElectMaster",
    "Event",
    "GroupRecord",
    "GroupView",
    "Heartbeat",
    "Kind",
    "Member",
    "NextBrokerId",
    "NotifyRole",
    "Persist",
    "Probe",
    "ProbeAnswered",
    "RegisterBroker",
    "ReplicaInfo",
    "SessionClosed",
    "SyncStateData",
    "Tick",
]


SWITCH_MS_MAX: Final = 2000
STRANGERS_MAX: Final = 1000  # groups without a record, of which an epoch was heard


@dataclass(slots=True)
class ControllerCore:
    """Gives out epochs and keeps the sets. INV-29: a new master is a member of the set that holds everything confirmed.

    judge          what may be concluded from what the replicas said; fast is its, too
    start_ms       when this controller started: leases of before may be valid for election_wait_ms from then
    unclean        elect outside the set when nobody inside is left: loses data, loudly
    by_host        who proves nothing must come from the host that it registered
    """

    times: LeaseTimes
    fast: bool = True
    start_ms: int = 0
    unclean: bool = False
    by_host: bool = True
    groups: dict[str, GroupEvidence] = field(default_factory=dict)
    _sessions: dict[int, tuple[str, int]] = field(default_factory=dict)
    judge: Judge = field(init=False)
    _strangers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.judge = Judge(self.times, self.fast)

    def load(self, records: Iterable[GroupRecord]) -> None:
        """Continue from what was persisted."""
        for record in records:
            loaded = frozenset(record.members)
            self.groups[record.name] = GroupEvidence(record, self.start_ms, loaded=loaded)

    def speaks_for(self, session: int) -> bool:
        """Whether a replica registered over this connection, or beat as registered."""
        return session in self._sessions

    def records(self) -> list[GroupRecord]:
        return [group.record for group in self.groups.values()]

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event. Effects leave in order, each after every Persist before it."""
        effects: list[Effect] = []
        getattr(self, HANDLERS[type(event)])(event, now_ms, effects)
        return effects

    def _change(self, group: GroupEvidence, effects: list[Effect], **changes: object) -> None:
        before = group.record
        members = changes.get("members", before.members)
        changes["members"] = self._noted(group, members)  # type: ignore[arg-type]
        changes.setdefault("confirmed", max(before.confirmed, group.confirmed))
        group.noted_ms = group.heard_ms
        group.record = after = msgspec.structs.replace(before, **changes)
        assert after.epoch >= before.epoch and after.set_number >= before.set_number, (
            str(group.story),
            after,
        )
        if after.epoch == before.epoch and before.master != NOBODY:
            assert after.master in (before.master, NOBODY), str(group.story)  # INV-28
        if effects and isinstance(effects[-1], Persist):
            effects.pop()  # of the same group and step: nothing left in between
        effects.append(Persist(after.name, after))

    # --- identity ---

    def _on_next_broker_id(self, event: NextBrokerId, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        next_id = group.record.next_id if group else 1
        effects.append(Answer(event.request, next_id=next_id))

    def _on_apply_broker_id(self, event: ApplyBrokerId, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        if group is None:
            if event.replica != 1:
                remark = f"the first replica of {event.group} gets id 1, not {event.replica}"
                effects.append(Answer(event.request, Code.BROKER_ID_INVALID, remark))
                return
            record = GroupRecord(event.cluster, event.group)
            group = self.groups[event.group] = GroupEvidence(
                record, now_ms - self.times.election_wait_ms
            )
            group.reached = self._strangers.pop(event.group, group.reached)
        record = group.record
        if record.cluster != event.cluster:
            remark = f"{event.group} belongs to cluster {record.cluster}, not {event.cluster}"
            effects.append(Answer(event.request, Code.INVALID_REQUEST, remark))
            return
        taken = record.members.get(event.replica)
        if taken is not None and taken.check_code != event.check_code:
            remark = f"id {event.replica} of {event.group} is taken"
            effects.append(Answer(event.request, Code.BROKER_ID_INVALID, remark))
            return
        if taken is None:
            if event.replica < 1:
                remark = f"id {event.replica}"
                effects.append(Answer(event.request, Code.BROKER_ID_INVALID, remark))
                return
            members = {**record.members, event.replica: Member(check_code=event.check_code)}
            next_id = max(record.next_id, event.replica + 1)
            self._change(group, effects, members=members, next_id=next_id)
        effects.append(Answer(event.request))

    def _on_register_broker(
        self, event: RegisterBroker, now_ms: int, effects: list[Effect]
    ) -> None:
        group = self.groups.get(event.group)
        known = group.record.members.get(event.replica) if group else None
        if group is None or known is None:
            remark = f"replica {event.replica} of {event.group} has not applied for its id"
            self._hear_stranger(group, event)
            effects.append(Answer(event.request, Code.BROKER_NEED_TO_BE_REGISTERED, remark))
            return
        if group.record.cluster != event.cluster:
            remark = f"{event.group} belongs to cluster {group.record.cluster}, not {event.cluster}"
            effects.append(Answer(event.request, Code.INVALID_REQUEST, remark))
            return
        live = self.judge.live_of(group, event.replica)
        restarted = event.incarnation == 0 or event.incarnation != known.incarnation
        doubt = refuse_registration(
            known, live, event, now_ms, self.times,
            alive=self.judge.alive(group, event.replica, now_ms), by_host=self.by_host, since_ms=self.start_ms,
        )  # fmt: skip
        if doubt is not None:
            if of_another_line := self.judge.of_another_line(group.record, event):
                doubt += f": {of_another_line}"
            if known.address:
                self._doubted(group, f"registration of replica {event.replica}", doubt, effects)
            effects.append(Answer(event.request, Code.BROKER_ID_INVALID, doubt))
            return
        short = self.judge.came_back_short(group, event) if restarted else ""
        self._attach(group, event.replica, event.session, now_ms)
        live.epoch, live.end, live.streaming = event.epoch, event.end, False
        live.proven = live.proven and not restarted
        group.hear(event.replica, event.epoch, event.end)
        changed = Member(
            event.address, event.ha_address, known.check_code, event.incarnation, event.mode, known.held,
            bool(event.lineage),
        )  # fmt: skip
        if changed != known:
            members = {**group.record.members, event.replica: changed}
            self._change(group, effects, members=members)
        if restarted:
            self._restarted(group, event.replica, event.suspect or bool(short), now_ms, effects)
            if short:  # said behind it: nothing may part the new process from the end of its reign
                said = Announce(event.group, Kind.CAME_BACK_SHORT, group.record.epoch, short)
                effects.append(said)
        self._settle_mode(group, now_ms, effects)
        self._elect(group, now_ms, effects, f"replica {event.replica} registered")
        if changed != known:
            self._tell_master(group, effects)
        effects.append(Answer(event.request, records=(group.record,)))

    def _doubted(self, group: GroupEvidence, what: str, why: str, effects: list[Effect]) -> None:
        record = group.record
        effects.append(Announce(record.name, Kind.DOUBTED, record.epoch, f"{what}: {why}"))

    def _tell_master(self, group: GroupEvidence, effects: list[Effect]) -> None:
        """Have the master know of a new process before it connects there; with a heartbeat it would
        know only later. INV-44"""
        record = group.record
        live = group.live.get(record.master)
        if live is None or live.session == NO_SESSION:
            return
        if record.members[record.master].incarnation:  # a stock master would not look at it
            view = record.view()
            effects.append(NotifyRole(live.session, record.name, record.master, view))

    def _settle_mode(self, group: GroupEvidence, now_ms: int, effects: list[Effect]) -> None:
        """Take over the mode that the replicas agree on, and say who is configured otherwise, once."""
        before, mode = group.record.mode, self.judge.agreed_mode(group, now_ms)
        if mode != before:
            group.story.add(now_ms, f"mode {before} -> {mode}")
            self._change(group, effects, mode=mode)
        differing = differing_modes(group.record)
        effects += [each for known, each in differing.items() if known not in group.differing]
        group.differing = frozenset(differing)

    def _restarted(
        self, group: GroupEvidence, replica: int, suspect: bool, now_ms: int, effects: list[Effect]
    ) -> None:
        """A new process under a known id. If it was the master, that reign is over: one process writes an epoch."""
        record = group.record
        if record.master == replica:
            group.story.add(now_ms, f"master {replica} restarted: epoch {record.epoch} is over")
            self._change(group, effects, master=NOBODY)
        if not suspect:
            return
        group.story.add(now_ms, f"replica {replica} may have lost what it had reported")
        record = group.record
        suspects = tuple(sorted({*record.suspects, replica}))
        self._change(group, effects, suspects=suspects)
        if self.judge.may_lead(group, now_ms):
            self._drop_suspects(group, effects)

    def _drop_suspects(self, group: GroupEvidence, effects: list[Effect]) -> None:
        """Take suspects out of a serving master's set, which will propose them anew when they have caught up.

        Without a master they stay: who was in the set when all lost power decides what may be elected.
        """
        record = group.record
        trusted = tuple(each for each in record.sync_set if each not in record.suspects)
        if record.master in trusted and len(trusted) < len(record.sync_set):
            self._change(group, effects, sync_set=trusted, set_number=record.set_number + 1)
            self._notify(group, effects)
            effects += set_change(record, group.record, "the others may have lost what they had")

    def _hear_stranger(self, group: GroupEvidence | None, event: RegisterBroker) -> None:
        """Of a broker that is not registered (yet, or any more) nothing is believed but the epoch it knows: some
        controller gave that number to a master, so we never give it again."""
        told, name = (event.epoch, event.end), event.group
        if group is not None:
            group.reached = max(group.reached, told) if not group.record.epoch else group.reached
        elif event.epoch and (name in self._strangers or len(self._strangers) < STRANGERS_MAX):
            self._strangers[name] = max(self._strangers.get(name, told), told)

    # --- life signs ---

    def _attach(self, group: GroupEvidence, replica: int, session: int, now_ms: int) -> None:
        live = self.judge.live_of(group, replica)
        if live.session != session:
            self._sessions.pop(live.session, None)
            live.session = session
            self._sessions[session] = (group.record.name, replica)
        live.heard_ms = now_ms
        live.attached = True
        if replica == group.record.master:
            group.refused = -1

    def _on_heartbeat(self, event: Heartbeat, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        member = group.record.members.get(event.replica) if group else None
        known = member is not None and member.incarnation == event.incarnation
        if known and member is not None and not member.incarnation and self.by_host:
            known = at_home(member, event.host)
        if group is None or member is None or not known:
            effects.append(
                AnswerHeartbeat(
                    event.session,
                    event.group,
                    event.replica,
                    event.number,
                    False,
                    False,
                    GroupView(),
                )
            )
            return
        self._attach(group, event.replica, event.session, now_ms)
        live = group.live[event.replica]
        live.epoch, live.end, live.confirmed = event.epoch, event.end, event.confirmed
        group.hear(event.replica, event.epoch, event.end)
        live.streaming, live.priority, live.timeout_ms = (
            event.streaming,
            event.priority,
            event.timeout_ms,
        )
        live.space = event.space
        lease = False
        record = group.record
        group.heard_ms = now_ms
        # A stock master skips the entry of a reign that begins where an empty one did: its epoch says nothing.
        in_epoch = event.epoch == record.epoch or not member.incarnation
        leading = event.replica == record.master and event.leading and in_epoch
        leading = leading and not group.outdated
        if leading:
            group.led_by = event.replica
            group.reached = max(group.reached, (record.epoch, event.end))
            if event.resigned:
                group.resigned = True
            elif not group.resigned:
                self._activate(group, now_ms, effects)
                self._drop_suspects(group, effects)
                group.lease_ms = now_ms
                lease = True
                self._settle_mode(group, now_ms, effects)
        if member.incarnation:
            self.judge.hear_confirmed(group, event, leading=leading)
        if not lease:
            self._elect(group, now_ms, effects, "heartbeat")
        effects.append(
            AnswerHeartbeat(
                event.session,
                event.group,
                event.replica,
                event.number,
                True,
                lease,
                group.record.view(),
            )
        )
        if self.judge.worth_noting(group, event.replica, now_ms):
            self._change(group, effects)  # last: nobody waits for it

    def _noted(self, group: GroupEvidence, members: dict[int, Member]) -> dict[int, Member]:
        """With what each replica of ours called confirmed last."""
        found = dict(members)
        for replica, member in members.items():
            live = group.live.get(replica)
            if live is not None and live.held != member.held:
                found[replica] = msgspec.structs.replace(member, held=live.held)
        return found

    def _activate(self, group: GroupEvidence, now_ms: int, effects: list[Effect]) -> None:
        record = group.record
        if record.electing_from:
            group.story.add(now_ms, f"master {record.master} is active in epoch {record.epoch}")
            suspects = tuple(each for each in record.suspects if each != record.master)
            self._change(
                group, effects, electing_from=(), reigned=record.master, suspects=suspects,
                reigned_mode=record.members[record.master].mode,
            )  # fmt: skip

    def _on_session_closed(self, event: SessionClosed, now_ms: int, effects: list[Effect]) -> None:
        found = self._sessions.pop(event.session, None)
        if found is None:
            return
        group = self.groups[found[0]]
        live = group.live[found[1]]
        live.session = NO_SESSION
        if found[1] == group.record.master:
            group.story.add(now_ms, f"session of master {found[1]} closed")
            self._probe(group, effects)
        self._elect(group, now_ms, effects, f"session of replica {found[1]} closed")
        if any(self.judge.newer(group, each) for each in group.record.members):
            self._change(group, effects)  # it may come back with less: this is what it had

    def _probe(self, group: GroupEvidence, effects: list[Effect]) -> None:
        master = group.record.members.get(group.record.master)
        if master is None or group.probing or not self.fast:
            return
        group.probing = True
        effects.append(
            Probe(group.record.name, group.record.master, master.incarnation, master.address)
        )

    def _on_probe_answered(self, event: ProbeAnswered, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        group.probing = False
        master = group.record.members.get(group.record.master)
        if event.replica != group.record.master or master is None:
            return
        live = group.live.get(event.replica)
        if live is not None and live.session != NO_SESSION:
            return  # it is back
        if event.refused and event.incarnation == master.incarnation:
            group.refused = event.incarnation
            group.story.add(now_ms, f"address of master {event.replica} refuses connections")
            self._elect(group, now_ms, effects, f"master {event.replica} is gone")

    def _on_tick(self, event: Tick, now_ms: int, effects: list[Effect]) -> None:
        for group in self.groups.values():
            switch = group.switch
            if switch is not None and now_ms >= switch.deadline_ms:
                group.switch = None
                remark = f"replica {switch.successor} did not catch up in {SWITCH_MS_MAX} ms"
                effects.append(Answer(switch.request, Code.ELECT_MASTER_FAILED, remark))
            record = group.record
            if record.master != NOBODY:
                live = group.live.get(record.master)
                if live is None or live.session == NO_SESSION:
                    self._probe(group, effects)
            self._elect(group, now_ms, effects, "tick")

    # --- the set ---

    def _on_alter_sync_set(self, event: AlterSyncSet, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        problem = self.judge.refuse_set(group, event, now_ms)
        if problem is None and group is not None:
            problem = self._refuse_sender(group, event, effects)
        if problem is not None or group is None:
            code, remark = problem or (Code.ALTER_SYNC_STATE_SET_FAILED, "unknown group")
            records = (group.record,) if group else ()
            effects.append(Answer(event.request, code, remark, records=records))
            return
        self._activate(group, now_ms, effects)
        self.judge.hear_joined(group, event)
        record = group.record
        members = tuple(sorted(event.members))
        group.story.add(now_ms, f"set {record.sync_set} -> {members}")
        suspects = tuple(each for each in record.suspects if each not in event.members)
        number = max(record.set_number, event.number) + 1
        self._change(group, effects, sync_set=members, set_number=number, suspects=suspects)
        effects.append(Answer(event.request, records=(group.record,)))
        why = f"asked for by master {event.master}"
        if event.number > record.set_number:
            why += (
                f", which knew number {event.number} already: an older state of ours was restored"
            )
        effects += set_change(record, group.record, why)

    def _refuse_sender(
        self, group: GroupEvidence, event: AlterSyncSet, effects: list[Effect]
    ) -> tuple[Code, str] | None:
        """INV-44: a master's set is for the master to change, and for nobody who knows its number and epoch."""
        master = group.record.members[group.record.master]
        live = group.live.get(group.record.master)
        if master.incarnation:
            theirs = not event.session or (live is not None and live.session == event.session)
        else:
            theirs = not self.by_host or at_home(master, event.host)
        if theirs:
            return None
        remark = f"this is not the connection of master {event.master}"
        self._doubted(group, "change of the set", f"{remark}: {event.host}", effects)
        return Code.INVALID_REQUEST, remark

    # --- elections ---

    def _elect(self, group: GroupEvidence, now_ms: int, effects: list[Effect], why: str) -> bool:
        """Elect whoever should be, if anybody may be. Whether there is a new master."""
        record = group.record
        if self.judge.has_forgotten(group):
            self._wait(group, effects)
            return False
        if record.epoch == 0 or self.judge.master_settled(group, now_ms):
            return False
        lacking = self.judge.lacking(group)
        base = [each for each in record.base if each not in (*record.suspects, *lacking)]
        lossy = False
        if not base:
            base = self.judge.all_suspect(group, now_ms)
            lossy = True
        candidates = [each for each in base if self.judge.alive(group, each, now_ms)]
        if not candidates and self.unclean:
            candidates = [each for each in record.members if self.judge.alive(group, each, now_ms)]
            lossy = True
        wanted = group.switch.successor if group.switch and group.resigned else NOBODY
        if record.electing_from and len(candidates) > 1 and record.master in candidates:
            candidates.remove(record.master)  # it was elected and did not make it
        chosen = wanted if wanted in candidates else self.judge.best(group, candidates)
        if chosen == NOBODY:
            self._wait(group, effects)
            return False
        self._elected(group, chosen, lossy, now_ms, effects, why)
        return True

    def _wait(self, group: GroupEvidence, effects: list[Effect]) -> None:
        text = self.judge.why_nobody(group)
        if text != group.waiting:
            group.waiting = text
            record = group.record
            effects.append(Announce(record.name, Kind.WAITING, record.epoch, text))

    def _elected(
        self,
        group: GroupEvidence,
        chosen: int,
        lossy: bool,
        now_ms: int,
        effects: list[Effect],
        why: str,
    ) -> None:
        record = group.record
        lossy = lossy or chosen in self.judge.lacking(group) or self.judge.has_forgotten(group)
        assert lossy or chosen in record.base, (chosen, record)  # INV-29
        waits = (record.reigned_mode or record.mode) in WAITING_MODES
        epoch = max(record.epoch, self.judge.epoch_in_logs(group)) + 1
        assert epoch <= EPOCH_MAX
        behind = not waits and chosen != record.reigned and record.reigned != NOBODY
        declared = lossy or (behind and self.judge.known_lost(group, chosen))
        before = record.base if not lossy else (chosen,)
        reigned, reigned_mode = record.reigned, record.reigned_mode
        if not record.members[chosen].incarnation:
            # a stock master asks for no lease: it may acknowledge from now on
            before, reigned, reigned_mode = (), chosen, ""
        live = group.live[chosen]
        group.confirmed = max(group.confirmed, record.confirmed)  # INV-37, also after our restart
        if lossy or behind:
            self._forget_confirmed(group, live.end)
        self._change(
            group, effects, master=chosen, epoch=epoch, sync_set=(chosen,), set_number=record.set_number + 1,
            electing_from=before, reigned=reigned, reigned_mode=reigned_mode, confirmed=group.confirmed,
            lossy_epoch=epoch if lossy or behind else record.lossy_epoch,
        )  # fmt: skip
        ends = f"old end {self.judge.old_end(group, record.reigned, live.end)}, new end {live.end}"
        text = f"replica {chosen} follows {record.reigned} in epoch {epoch}, {ends}, from {record.base}: {why}"
        if lossy and (more := self.judge.logs(group, now_ms, beyond=chosen)):
            text += f"; {more}"
        group.story.add(now_ms, text)
        effects.append(
            Announce(record.name, Kind.LOSS_POSSIBLE if declared else Kind.ELECTED, epoch, text)
        )
        group.resigned, group.refused, group.waiting = False, -1, ""
        group.lease_ms = now_ms
        if group.switch is not None:
            code = Code.SUCCESS if chosen == group.switch.successor else Code.ELECT_MASTER_FAILED
            effects.append(Answer(group.switch.request, code, records=(group.record,)))
            group.switch = None
        self._notify(group, effects)
        effects += set_change(record, group.record, f"replica {chosen} was elected")

    @staticmethod
    def _forget_confirmed(group: GroupEvidence, end: int) -> None:
        """After a declared loss: the highest offset that counts as confirmed is the new master's end, and nobody who
        has less than the lost messages is held back for it."""
        group.confirmed = min(group.confirmed, end)
        for live in group.live.values():
            live.held = min(live.held, end)

    def _notify(self, group: GroupEvidence, effects: list[Effect]) -> None:
        view = group.record.view()
        for replica, live in sorted(group.live.items()):
            if live.session != NO_SESSION:
                effects.append(NotifyRole(live.session, group.record.name, replica, view))

    def _on_elect_master(self, event: ElectMaster, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        if group is None or (event.replica > 0 and event.replica not in group.record.members):
            remark = f"replica {event.replica} of {event.group} is not registered"
            effects.append(Answer(event.request, Code.BROKER_NEED_TO_BE_REGISTERED, remark))
            return
        record = group.record
        in_logs = self.judge.epoch_in_logs(group)
        by_hand = event.designated and (event.unclean or self.unclean)
        if in_logs > EPOCH_MAX // 2 or (in_logs > record.epoch and not by_hand):
            remark = f"{self.judge.forgotten(group)}; logs here: {self.judge.logs(group, now_ms)}"
            effects.append(Answer(event.request, Code.ELECT_MASTER_FAILED, remark))
        elif (
            record.epoch == 0
            and event.replica > 0
            and self.judge.alive(group, event.replica, now_ms)
        ):
            self._change(group, effects, sync_set=(event.replica,))
            why = "the group's first master"
            self._elected(group, event.replica, in_logs > 0, now_ms, effects, why)
            effects.append(Answer(event.request, records=(group.record,)))
            effects += set_change(record, group.record, why)
        elif event.designated and (event.replica != record.master or in_logs > record.epoch):
            self._designate(group, event, now_ms, effects)
        elif self.judge.master_settled(group, now_ms):
            effects.append(Answer(event.request, Code.MASTER_STILL_EXIST, records=(record,)))
        elif self._elect(group, now_ms, effects, "asked for"):
            effects.append(Answer(event.request, records=(group.record,)))
        else:
            code = Code.MASTER_NOT_AVAILABLE if event.replica < 0 else Code.ELECT_MASTER_FAILED
            remark = f"nobody of {record.base} can be elected"
            effects.append(Answer(event.request, code, remark, records=(group.record,)))

    def _designate(
        self, group: GroupEvidence, event: ElectMaster, now_ms: int, effects: list[Effect]
    ) -> None:
        """An operator wants this replica: a planned switchover, or the way out of a group without a master."""
        record = group.record
        alive = self.judge.alive(group, event.replica, now_ms)
        distrusted = {*record.suspects, *self.judge.lacking(group)}
        inside = event.replica in record.base and event.replica not in distrusted
        # A stock master cannot be asked to hand over: it is deposed, as RocketMQ does.
        if self.judge.may_lead(group, now_ms) and record.members[record.master].incarnation:
            master = group.live.get(record.master)
            ready = alive and inside and event.replica != record.master
            if not ready or master is None or group.switch is not None:
                remark = f"replica {event.replica} is not alive in the set {record.base}"
                effects.append(Answer(event.request, Code.ELECT_MASTER_FAILED, remark))
                return
            if event.spacious and not group.live[event.replica].space:
                remark = f"replica {event.replica} does not say that its disk has space"
                effects.append(Answer(event.request, Code.ELECT_MASTER_FAILED, remark))
                return
            group.switch = Switch(event.request, event.replica, now_ms + SWITCH_MS_MAX)
            effects.append(
                AskToSwitch(master.session, record.name, record.master, record.epoch, event.replica)
            )
        elif alive and (inside or event.unclean or self.unclean):
            self._elected(
                group, event.replica, not inside, now_ms, effects, "chosen by an operator"
            )
            effects.append(Answer(event.request, records=(group.record,)))
        else:
            remark = f"replica {event.replica} is not alive and trusted in the set {record.base}"
            if logs := self.judge.logs(group, now_ms):
                remark += f"; logs here: {logs}"
            effects.append(Answer(event.request, Code.ELECT_MASTER_FAILED, remark))

    def _on_allow_unclean(self, event: AllowUnclean, now_ms: int, effects: list[Effect]) -> None:
        self.unclean = event.allowed
        if event.allowed:
            effects.append(UNCLEAN_ALLOWED)

    # --- questions ---

    def _on_replica_info(self, event: ReplicaInfo, now_ms: int, effects: list[Effect]) -> None:
        group = self.groups.get(event.group)
        if group is None:
            remark = f"unknown group {event.group}"
            effects.append(Answer(event.request, Code.BROKER_METADATA_NOT_EXIST, remark))
            return
        alive = self.judge.alive_of([group], now_ms)
        effects.append(Answer(event.request, records=(group.record,), alive=alive))

    def _on_sync_state_data(self, event: SyncStateData, now_ms: int, effects: list[Effect]) -> None:
        found = [self.groups[name] for name in event.groups if name in self.groups]
        records = tuple(group.record for group in found)
        effects.append(
            Answer(event.request, records=records, alive=self.judge.alive_of(found, now_ms))
        )

    def _on_clean_broker_data(
        self, event: CleanBrokerData, now_ms: int, effects: list[Effect]
    ) -> None:
        group = self.groups.get(event.group)
        if group is None:
            remark = f"unknown group {event.group}"
            effects.append(Answer(event.request, Code.INVALID_CLEAN_BROKER_METADATA, remark))
            return
        record = group.record
        living = [each for each in event.replicas if self.judge.alive(group, each, now_ms)]
        if not event.living_too and (living or (not event.replicas and record.master != NOBODY)):
            remark = f"alive: {living}" if living else f"replica {record.master} is master"
            effects.append(Answer(event.request, Code.INVALID_CLEAN_BROKER_METADATA, remark))
            return
        leaving = set(event.replicas) or set(record.members)
        living = [each for each in leaving if self.judge.alive(group, each, now_ms)]
        effects.append(cleaned(record, leaving, living))
        staying = {each: member for each, member in record.members.items() if each not in leaving}
        if not staying:
            del self.groups[event.group]
            for live in group.live.values():
                self._sessions.pop(live.session, None)
            effects.append(Persist(record.name, None))
        else:
            master = NOBODY if record.master in leaving else record.master
            self._change(
                group, effects, members=staying, master=master,
                sync_set=tuple(each for each in record.sync_set if each in staying),
                electing_from=tuple(each for each in record.electing_from if each in staying),
                suspects=tuple(each for each in record.suspects if each in staying),
                set_number=record.set_number + 1,
            )  # fmt: skip
            for each in leaving:
                self._sessions.pop(group.forget(each), None)
            gone_by = f"replicas {sorted(leaving)} were cleaned"
            effects += set_change(record, group.record, gone_by)
        effects.append(Answer(event.request))


HANDLERS: Final = {
    NextBrokerId: "_on_next_broker_id",
    ApplyBrokerId: "_on_apply_broker_id",
    RegisterBroker: "_on_register_broker",
    AlterSyncSet: "_on_alter_sync_set",
    ElectMaster: "_on_elect_master",
    ReplicaInfo: "_on_replica_info",
    SyncStateData: "_on_sync_state_data",
    CleanBrokerData: "_on_clean_broker_data",
    Heartbeat: "_on_heartbeat",
    SessionClosed: "_on_session_closed",
    ProbeAnswered: "_on_probe_answered",
    AllowUnclean: "_on_allow_unclean",
    Tick: "_on_tick",
}
