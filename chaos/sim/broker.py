"""The shell of one broker in the simulated world: performs what the replica core says, on a simulated disk."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tandemmq.chaos.sim.disk import Disk
from tandemmq.chaos.sim.network import Message, SimulatedLink
from tandemmq.chaos.sim.session import Session
from tandemmq.chaos.sim.shipping import Stream, ship, ship_heartbeats
from tandemmq.chaos.sim.wire import Codec
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication import slave as s
from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.master import MasterCore
from tandemmq.replication.replica import ReplicaCore, ReplicaRole
from tandemmq.replication.slave import NO_CONNECTION, SlaveCore

if TYPE_CHECKING:
    from tandemmq.chaos.sim.tables import Tables
    from tandemmq.chaos.sim.world import World


@dataclass(slots=True)
class Waiting:
    """A put whose answer waits."""

    end: int
    record: int
    producer: int
    deadline_ms: int


class DiskFull(Exception):
    """The disk took no more: what follows in the list of effects is left out."""


class Broker(Session):
    """One broker process on one host. The object outlives the process: `up` and `incarnation` say which life it is.

    visible() is what its consumers may read.
    """

    make_slave: type[SlaveCore] = SlaveCore
    make_master: type[MasterCore] = MasterCore
    make_replica: type[ReplicaCore] = ReplicaCore

    def __init__(self, world: World, replica: int, drift: float) -> None:
        self.world = world
        self.host = self.replica = replica
        self.disk = Disk(sizes=world.sizes)
        self.mode = world.configuration.mode(replica)  # in which it runs, or ran
        self.up = False
        self.powered = True
        self.paused = False
        self.incarnation = 0
        self.lineage: tuple[int, ...] = ()
        self.drift = drift
        self.clock_us = world.rng.randrange(1_000_000_000)
        self.fuse = 0
        self.slow_us = 0
        self.full = False
        self.power_cuts = 0
        self.alarms: list[str] = []
        self._inbox: deque[tuple[Any, ...]] = deque()
        self._performs = {kind: getattr(self, name) for kind, name in PERFORMS.items()}
        self.reset()

    def reset(self) -> None:
        """Nothing of a process survives it."""
        self.core: ReplicaCore | None = None
        self.tables: Tables | None = None
        self.session: SimulatedLink | None = None
        self.connecting = False
        self.accepts = False
        self.streams: dict[int, Stream] = {}
        self.links: dict[int, SimulatedLink] = {}
        self.codecs: dict[int, Codec] = {}
        self.waiting: deque[Waiting] = deque()
        self.queue_offsets: dict[int, int] = {}
        self.flushing = False
        self.body: list[int] = []
        self._events: deque[r.Event] = deque()
        self._running = False
        self._inbox.clear()
        self.paused = False
        self.fuse = 0
        self.freezes = False

    # --- life ---

    def start(self) -> None:
        """A new process finds what the disk holds."""
        self.reset()
        self.up = True
        self.incarnation += 1
        disk = self.disk
        before, self.mode = self.mode, self.world.configuration.mode(self.replica)
        if disk.lost_power:
            disk.suspect |= self.suspects(before)
            disk.lost_power = False
        if before is not self.mode:
            disk.flush(disk.end)  # recovery does so before it says how it runs itself
        self.lineage, disk.lineage = disk.lineage, (*disk.lineage, self.incarnation)
        slave = self.make_slave(
            rules=self.rules, history=disk.history, start=disk.start, end=disk.end,
            flushed=disk.flushed, confirmed=disk.confirmed, confirmed_epoch=disk.history.last,
            durable=self.mode.waits_for_disk,
        )  # fmt: skip
        self.core = self.make_replica(
            replica=self.replica, incarnation=self.incarnation, mode=self.mode, times=self.world.times,
            rules=self.rules, slave=slave, suspect=disk.suspect, make_master=self.make_master,
        )  # fmt: skip
        if self.world.delivery is not None:
            self.tables = self.world.delivery.tables_of(self)
            self.tables.load()
        self.world.after(self.world.rng.randrange(1000, 30_000), self.tick, self.incarnation)

    @property
    def rules(self) -> StreamRules:
        rules = self.world.plan.rules
        if self.replica == self.world.plan.learner:
            return msgspec.structs.replace(rules, learner=True)
        return rules

    def crash(self, *, power: bool) -> None:
        """kill -9, or with `power` the host goes dark. Restarting is the world's."""
        if not self.up:
            return
        self.world.note("crash", self.replica, power)
        self.up = False
        self.world.network.process_died(self, power)
        self.world.answers_lost(self.waiting)
        self.reset()
        if power:
            self.powered = False
            self.lose_power()

    def suspects(self, ran: Mode) -> bool:
        """Whether a replica that ran in this mode when its power failed may have lost what was counted on."""
        return not ran.waits_for_disk

    def lose_power(self) -> None:
        end, flushed = self.disk.end, self.disk.flushed
        self.power_cuts += 1
        lost = self.disk.cut_power(self.world.rng)
        self.world.power_lost(self, end - lost, end, flushed)
        self.disk.lost_power = True

    def sync_failed(self) -> None:
        """What was being flushed is clean in the page cache and not on the disk. Never retried: the process stops."""
        self.world.note("sync failed", self.replica)
        self.disk.holes.append((self.disk.flushed, self.disk.end))
        self.world.fail(self, power=False)
        self.lose_power()  # the restart trusts nothing above the durable position

    def boot(self) -> None:
        self.powered = True

    def pause(self, paused: bool) -> None:
        self.paused = paused and self.up
        if not paused:
            inbox, self._inbox = self._inbox, deque()
            for call, *arguments in inbox:
                call(*arguments)

    def later(self, call: Callable[[], None]) -> None:
        """When this process, which is paused, goes on."""
        self._inbox.append((call,))

    def local_ms(self) -> int:
        return int((self.clock_us + self.world.now_us * (1 + self.drift)) / 1000)

    def retain(self, rng: random.Random) -> None:
        """Files at the front of the log have expired. Old as they are, they are flushed and confirmed."""
        if not self.up or self.paused:
            return
        starts = self.disk.file_starts(min(self.visible(), self.disk.flushed))
        if not starts:
            return
        start = rng.choice(starts)
        disk = self.disk
        disk.queues = self.next_offsets(disk.queues, disk.cells[disk.start : start])
        self.world.deleted(self, start)
        disk.drop_before(start)
        self.burn()
        self.feed(m.Trimmed(start))

    # --- the core ---

    def feed(self, event: r.Event) -> None:
        """One event after the other, each list of effects performed to its end."""
        self._events.append(event)
        if self._running or not self.up:
            return
        self._running = True
        events, life = self._events, self.incarnation
        while events and self.up and self.incarnation == life:
            core = self.core
            assert core is not None
            for effect in core.step(events.popleft(), self.local_ms()):
                perform = self._performs.get(type(effect))
                if perform is not None:
                    try:
                        perform(effect)
                    except DiskFull:
                        events.appendleft(s.AppendFailed(self.disk.end, "the disk is full"))
                        break
                    if not self.up or self.incarnation != life:
                        return
        self._running = False
        self.pump()
        self.world.check_broker(self)

    def burn(self) -> None:
        """An armed fuse kills the process between two effects."""
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                power = self.world.rng.random() < 0.5
                self.world.fail(self, power=power)

    def tick(self, life: int) -> None:
        if not self.up or life != self.incarnation:
            return
        if self.paused:
            self._inbox.append((self.tick, life))
            return
        world = self.world
        self.find_controller()
        self.feed(r.Tick())
        if not self.up or life != self.incarnation:
            return
        self._expire()
        if self.tables is not None:
            self.tables.tick()
        ship_heartbeats(self)
        self._flush_soon()
        interval = int(world.tick_us / (1 + self.drift))
        world.after(interval, self.tick, life)

    # --- connections ---

    def _stream_opened(self, life: int) -> Any:
        def opened(link: SimulatedLink | None, refused: bool) -> None:
            if not self.up or life != self.incarnation:
                if link is not None:
                    self.world.network.close(link, 0)
                return
            if self.paused:
                self._inbox.append((opened, link, refused))
                return
            if link is None or link.ends[0] is not self:
                self.feed(s.StreamClosed(NO_CONNECTION, "refused" if refused else "timed out"))
                return
            self.links[link.number] = link
            if self.world.plan.wire:
                self.codecs[link.number] = Codec(slave_side=True, rng=self.world.rng)
            self.feed(s.Connected(link.number))

        return opened

    def on_accepted(self, link: SimulatedLink) -> None:
        self.links[link.number] = link
        if self.world.plan.wire:
            self.codecs[link.number] = Codec(slave_side=False, rng=self.world.rng)

    def on_link_closed(self, link: SimulatedLink) -> None:
        if not self.up:
            return
        if self.paused:
            self._inbox.append((self.on_link_closed, link))
            return
        self.links.pop(link.number, None)
        self.codecs.pop(link.number, None)
        if link is self.session:
            self.session = None
            self.feed(r.ControllerLost())
        elif self.streams.pop(link.number, None) is not None:
            self.feed(m.SlaveLost(link.number))
        elif link.kind == "stream":
            self.feed(s.StreamClosed(link.number, "closed by the peer"))

    def _say(self, link: SimulatedLink | None, message: Message) -> None:
        if link is not None:
            self.world.network.send(link, link.side_of(self), message)

    def say_stream(self, number: int, message: Message) -> None:
        link = self.links.get(number)
        if link is None:
            return
        if self.world.plan.wire:
            for chunk in self.codecs[number].encode(message):
                self._say(link, chunk)
        else:
            self._say(link, message)

    def on_message(self, link: SimulatedLink, message: Message) -> None:
        if not self.up:
            return
        if self.paused:
            self._inbox.append((self.on_message, link, message))
            return
        if link.ends[0] is not self and link.ends[1] is not self:
            return  # closed by ourselves meanwhile
        if link.kind == "stream" and self.world.plan.wire:
            codec = self.codecs.get(link.number)
            for found in codec.decode(message) if codec else ():
                if self.up:
                    self._stream_message(link, found)
        elif link.kind == "stream":
            self._stream_message(link, message)
        else:
            self._session_message(link, message)

    def _stream_message(self, link: SimulatedLink, message: Message) -> None:
        kind = message[0]
        number = link.number
        if kind == "frame":
            _, offset, cells, epoch, epoch_start, confirmed = message
            self.body = cells
            self.feed(s.FrameReceived(number, offset, len(cells), epoch, epoch_start, confirmed))
        elif kind == "report":
            stream = self.streams.get(number)
            if stream is None:
                return
            _, received, flushed, epoch = message
            stream.acked = received
            sent = max(stream.cursor, 0)
            self.feed(m.SlaveReported(number, received, flushed, epoch, sent, self.disk.end))
        elif kind == "hello":
            _, replica, incarnation, epoch, learner = message
            self.streams[number] = Stream(link)
            self.feed(m.SlaveGreeted(number, replica, incarnation, epoch, learner))
        elif kind == "welcome":
            _, epoch, entries, start, end = message
            self.feed(s.MasterGreeted(number, epoch, EpochHistory(entries), start, end))

    # --- puts ---

    def visible(self) -> int:
        return self.core.confirmed if self.core else 0

    def put(self, producer: int, message: int) -> None:
        """A producer's send arrived."""
        if not self.up:
            return
        if self.paused:
            self._inbox.append((self.put, producer, message))
            return
        core = self.core
        assert core is not None
        if core.refusal(self.local_ms()) is not None or not self.accepts or self.full:
            self.world.answer(producer, message, None, self.replica)
            return
        delivery = self.world.delivery
        queue = delivery.queue_of(message) if delivery else message % self.world.plan.queues
        record = self.store(message, queue)
        if delivery:
            delivery.stored(self.world.records[record])
        end = self.disk.end
        deadline = self.local_ms() + self.world.plan.rules.slave_timeout_ms
        self.waiting.append(Waiting(end, record, producer, deadline))
        self.appended()
        if self.freezes:
            self.freezes = False
            self.world.pause(self)

    def store(self, message: int, queue: int) -> int:
        """Append a message of our reign: the record's number."""
        core = self.core
        assert core is not None
        queue_offset = self.queue_offsets.get(queue, 0)
        self.queue_offsets[queue] = queue_offset + 1
        record = self.world.new_record(
            message, queue, queue_offset, core.epoch, self.disk.end, self.replica
        )
        self.disk.cells.extend(range(record << 3, (record << 3) + self.world.sizes[record]))
        return record

    def appended(self) -> None:
        """Our log has grown by whole records."""
        self.feed(m.Appended(self.disk.end))
        self._flush_soon()

    def _expire(self) -> None:
        now_ms = self.local_ms()
        while self.waiting and self.waiting[0].deadline_ms <= now_ms:
            put = self.waiting.popleft()
            self.world.answer(put.producer, -1, None, self.replica)

    def read(self) -> None:
        """A consumer reads what it may see here."""
        if self.up and not self.paused:
            self.world.consumed(self, min(self.visible(), self.disk.end))

    # --- streams ---

    def pump(self) -> None:
        """Send every slave what it may have, as far as its window goes."""
        ship(self)

    # --- flushing ---

    def _flush_soon(self) -> None:
        if self.flushing or self.disk.flushed >= self.disk.end or not self.up:
            return
        self.flushing = True
        low, high = self.world.configuration.flush_us(self.mode)
        delay = self.world.rng.randint(low, high) + int(self.world.rng.random() * self.slow_us)
        self.world.after(delay, self._flushed, self.incarnation, self.disk.cuts, self.disk.end)

    def _flushed(self, life: int, cuts: int, end: int) -> None:
        if not self.up or life != self.incarnation:
            return
        self.flushing = False
        if cuts == self.disk.cuts:  # else it is about bytes that are gone
            self.on_flushed(end)

    def on_flushed(self, end: int) -> None:
        self.disk.flush(end)
        core = self.core
        assert core is not None
        self.disk.confirmed = max(self.disk.confirmed, min(core.confirmed, self.disk.flushed))
        if self.paused:
            self._inbox.append((self._flush_known, self.incarnation, end))
        else:
            self._flush_known(self.incarnation, end)

    def _flush_known(self, life: int, end: int) -> None:
        if self.up and life == self.incarnation:
            known = self.core.master.end if self.core and self.core.master else self.disk.end
            self.feed(m.Flushed(min(end, known)))
            self._flush_soon()

    # --- effects of the replica ---

    def _forget_suspicion(self, effect: r.ForgetSuspicion) -> None:
        self.burn()
        self.disk.suspect = False

    def _prepare(self, effect: r.Prepare) -> None:
        self.world.checks.prepares(self, effect.epoch)
        self.burn()
        if not self.up:
            return
        if self.tables is not None:
            self.tables.prepare()
        disk = self.disk
        end = disk.boundary(disk.end)
        if end < disk.end:
            disk.truncate(end)
            self._cut_tables(end)
        self.recompute_queue_offsets()
        self.feed(r.Prepared(effect.epoch, end, disk.flushed))

    def recompute_queue_offsets(self) -> None:
        """From the whole log, not from what is confirmed: no queue offset is ever given out twice."""
        disk = self.disk
        self.queue_offsets = self.next_offsets(disk.queues, disk.cells[disk.start :])

    def next_offsets(self, known: dict[int, int], cells: list[int]) -> dict[int, int]:
        """The next queue offset of each queue, behind these cells and what was known before them."""
        records, found = self.world.records, dict(known)
        for cell in cells:
            if not cell & 7:
                record = records[cell >> 3]
                found[record.queue] = record.queue_offset + 1
        return found

    def _persist_history(self, effect: s.PersistHistory) -> None:
        self.burn()
        if self.up:
            before, after = self.disk.history.entries, effect.history.entries
            if before and after and before[0].start < after[0].start:
                self.world.mark("history trimmed")
            self.disk.history = effect.history
            self.burn()

    def _open_writes(self, effect: r.OpenWrites) -> None:
        self.accepts = True
        self.world.reign_began(self, effect.epoch)
        core = self.core
        if self.tables is not None and core is not None:
            self.tables.role_changed(serving=True, may_have_lost=core.may_have_lost)

    def _close_writes(self, effect: r.CloseWrites) -> None:
        self.accepts = False
        self._follow_tables()
        self.world.answers_lost(self.waiting)
        self.waiting.clear()
        self.streams_closed()
        self.feed(r.WritesClosed(self.disk.end, self.disk.flushed))

    def _role_changed(self, effect: r.RoleChanged) -> None:
        if effect.role in (ReplicaRole.WAITING, ReplicaRole.FOLLOWING):
            self._follow_tables()

    def _follow_tables(self) -> None:
        if self.tables is not None:
            self.tables.role_changed(serving=False)

    def _cut_tables(self, end: int) -> None:
        if self.tables is not None:
            self.tables.cut(end)

    def streams_closed(self) -> None:
        for stream in self.streams.values():
            self.close_link(stream.link)
        self.streams.clear()

    # --- effects of the master ---

    def _confirmed(self, effect: m.Confirmed) -> None:
        self.world.confirmed(self, min(self.visible(), self.disk.end))

    def _acknowledge(self, effect: m.Acknowledge) -> None:
        waiting = self.waiting
        while waiting and waiting[0].end <= effect.end:
            put = waiting.popleft()
            self.world.acknowledged(self, put.record, effect)
            self.world.answer(put.producer, -1, put.record, self.replica)

    def _admit(self, effect: m.Admit) -> None:
        core = self.core
        assert core is not None and core.master is not None
        master = core.master
        self.say_stream(
            effect.connection,
            ("welcome", master.epoch, master.history.entries, master.start, master.end),
        )

    def _stream_from(self, effect: m.StreamFrom) -> None:
        stream = self.streams.get(effect.connection)
        if stream is not None:
            stream.cursor = effect.offset
            stream.acked = max(stream.acked, effect.offset)  # nothing is under way

    def _drop(self, effect: m.Drop) -> None:
        stream = self.streams.pop(effect.connection, None)
        if stream is not None:
            self.close_link(stream.link)

    def close_link(self, link: SimulatedLink) -> None:
        self.links.pop(link.number, None)
        self.codecs.pop(link.number, None)
        self.world.network.close(link, link.side_of(self))

    def _propose(self, effect: m.Propose) -> None:
        self.world.proposed(self, effect)
        self._say(self.session, ("alter", self.replica, effect))

    # --- effects of the slave ---

    def _connect(self, effect: s.Connect) -> None:
        target = self.world.reach(effect.address)
        self.world.network.connect("stream", self, target, self._stream_opened(self.incarnation))

    def _greet(self, effect: s.Greet) -> None:
        learner = self.rules.learner
        hello = ("hello", self.replica, self.incarnation, effect.epoch, learner)
        self.say_stream(effect.connection, hello)

    def _close_stream(self, effect: s.CloseStream) -> None:
        link = self.links.get(effect.connection)
        if link is not None:
            self.close_link(link)

    def _set_aside(self, effect: s.SetAside) -> None:
        self.burn()
        if self.up:
            cells = tuple(self.disk.cells[effect.start : effect.end])
            self.disk.set_aside.append((effect.start, cells))

    def _truncate(self, effect: s.Truncate) -> None:
        self.burn()
        if self.up:
            self.disk.truncate(effect.end)
            self._cut_tables(effect.end)
            self.world.truncated(self, effect.end)
            self.burn()

    def _append(self, effect: s.Append) -> None:
        self.burn()
        if not self.up:
            return
        if self.full:
            self.world.mark("append failed")
            raise DiskFull
        body = self.body if effect.size else []
        if body:
            self.world.check_append(self, effect.offset, body)
        if not self.disk.end and effect.offset:
            assert self.core is not None
            before = self.world.brokers[self.core.slave.master].disk.log[: effect.offset]
            self.disk.begin(before, self.next_offsets({}, before))
        assert effect.offset == self.disk.end, (effect, self.disk.end)
        self.disk.cells.extend(body)
        self._flush_soon()

    def _report_progress(self, effect: s.ReportProgress) -> None:
        self.say_stream(
            effect.connection, ("report", effect.received, effect.flushed, effect.epoch)
        )

    def _alarm(self, effect: s.Alarm) -> None:
        self.alarms.append(effect.reason)
        self.world.alarmed(self, effect.reason)

    @property
    def stopped_by_retention(self) -> bool:
        """Whether a person must seed us anew."""
        core = self.core
        return core is not None and core.slave.stopped_why.endswith("must be seeded anew")

    @property
    def reigning(self) -> bool:
        return self.core is not None and self.core.role is ReplicaRole.MASTER


PERFORMS: Final[dict[type, str]] = {
    r.Register: "_register",
    r.ForgetSuspicion: "_forget_suspicion",
    r.AskForElection: "_ask_for_election",
    r.SendHeartbeat: "_send_heartbeat",
    r.Prepare: "_prepare",
    r.OpenWrites: "_open_writes",
    r.CloseWrites: "_close_writes",
    r.RoleChanged: "_role_changed",
    m.Confirmed: "_confirmed",
    m.Acknowledge: "_acknowledge",
    m.Admit: "_admit",
    m.StreamFrom: "_stream_from",
    m.Drop: "_drop",
    m.Propose: "_propose",
    s.PersistHistory: "_persist_history",
    s.Connect: "_connect",
    s.Greet: "_greet",
    s.CloseStream: "_close_stream",
    s.SetAside: "_set_aside",
    s.Truncate: "_truncate",
    s.Append: "_append",
    s.ReportProgress: "_report_progress",
    s.Alarm: "_alarm",
}
