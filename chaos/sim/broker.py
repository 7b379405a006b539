"""The shell of one broker in the simulated world: performs what the replica core says, on a simulated disk."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.sim.disk import Disk
from chaos.sim.network import Link, Message
from chaos.sim.wire import Codec
from replication import election as e
from replication import masterevents as m
from replication import replica as r
from replication import slave as s
from replication.epochs import EpochHistory
from replication.master import MasterCore
from replication.replica import ReplicaCore, Role
from replication.slave import NO_CONNECTION, SlaveCore

if TYPE_CHECKING:
    from chaos.sim.world import World

READ_CELLS_MAX: Final = 200


@dataclass(slots=True)
class Waiting:
    """A put whose answer waits."""

    end: int
    record: int
    producer: int
    deadline_ms: int


@dataclass(slots=True)
class Stream:
    """The sending half of one slave's connection."""

    link: Link
    cursor: int = -1
    acked: int = 0
    said_us: int = 0
    sent_confirmed: int = -1


class Broker:
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
        self.up = False
        self.powered = True
        self.paused = False
        self.incarnation = 0
        self.drift = drift
        self.clock_us = world.rng.randrange(1_000_000_000)
        self.fuse = 0
        self.slow_us = 0
        self.power_cuts = 0
        self.alarms: list[str] = []
        self._inbox: deque[tuple[Any, ...]] = deque()
        self._performs = {kind: getattr(self, name) for kind, name in PERFORMS.items()}
        self.reset()

    def reset(self) -> None:
        """Nothing of a process survives it."""
        self.core: ReplicaCore | None = None
        self.session: Link | None = None
        self.connecting = False
        self.accepts = False
        self.streams: dict[int, Stream] = {}
        self.links: dict[int, Link] = {}
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
        slave = self.make_slave(
            rules=self.world.plan.rules, history=disk.history, start=disk.start, end=disk.end,
            flushed=disk.flushed, confirmed=disk.confirmed, confirmed_epoch=disk.history.last,
        )  # fmt: skip
        self.core = self.make_replica(
            replica=self.replica, incarnation=self.incarnation, mode=self.world.plan.mode, times=self.world.times,
            rules=self.world.plan.rules, slave=slave, suspect=disk.suspect, make_master=self.make_master,
        )  # fmt: skip
        self.world.after(self.world.rng.randrange(1000, 30_000), self.tick, self.incarnation)

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

    def lose_power(self) -> None:
        end, flushed = self.disk.end, self.disk.flushed
        self.power_cuts += 1
        lost = self.disk.cut_power(self.world.rng)
        self.world.power_lost(self, end - lost, end, flushed)
        if not self.world.plan.mode.waits_for_disk:
            self.disk.suspect = True

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
                    perform(effect)
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
        if self.session is None and not self.connecting:
            self.connecting = True
            world.network.connect("session", self, world.controller, self._session_opened(life))
        self.feed(r.Tick())
        if not self.up or life != self.incarnation:
            return
        self._expire()
        self._heartbeat_streams()
        self._flush_soon()
        interval = int(world.tick_us / (1 + self.drift))
        world.after(interval, self.tick, life)

    # --- connections ---

    def _session_opened(self, life: int) -> Any:
        def opened(link: Link | None, refused: bool) -> None:
            if not self.up or life != self.incarnation:
                if link is not None:
                    self.world.network.close(link, 0)
                return
            if self.paused:
                self._inbox.append((opened, link, refused))
                return
            self.connecting = False
            if link is not None and link.ends[0] is self:
                self.session = link
                self.feed(r.ControllerUp())

        return opened

    def _stream_opened(self, life: int) -> Any:
        def opened(link: Link | None, refused: bool) -> None:
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

    def on_accepted(self, link: Link) -> None:
        self.links[link.number] = link
        if self.world.plan.wire:
            self.codecs[link.number] = Codec(slave_side=False, rng=self.world.rng)

    def on_link_closed(self, link: Link) -> None:
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

    def _say(self, link: Link | None, message: Message) -> None:
        if link is not None:
            self.world.network.send(link, link.side_of(self), message)

    def _say_stream(self, number: int, message: Message) -> None:
        link = self.links.get(number)
        if link is None:
            return
        if self.world.plan.wire:
            for chunk in self.codecs[number].encode(message):
                self._say(link, chunk)
        else:
            self._say(link, message)

    def on_message(self, link: Link, message: Message) -> None:
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

    def _session_message(self, link: Link, message: Message) -> None:
        if link is not self.session:
            return
        kind, content = message
        if kind == "beat":
            self.feed(
                r.HeartbeatAnswered(content.number, content.known, content.lease, content.view)
            )
        elif kind == "registered":
            if content.code is e.Code.SUCCESS:
                self.feed(r.Registered(content.records[0].view()))
            else:
                self.feed(r.RegistrationRefused(content.remark))
        elif kind == "role":
            self.feed(r.RoleNotified(content))
        elif kind == "set":
            for record in content.records:
                self.feed(r.RoleNotified(record.view()))
        elif kind == "switch":
            self.feed(r.SwitchAsked(content.epoch, content.successor))

    def _stream_message(self, link: Link, message: Message) -> None:
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
            _, replica, incarnation, epoch = message
            self.streams[number] = Stream(link)
            self.feed(m.SlaveGreeted(number, replica, incarnation, epoch))
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
        if core.refusal(self.local_ms()) is not None or not self.accepts:
            self.world.answer(producer, message, None, self.replica)
            return
        queue = message % self.world.plan.queues
        queue_offset = self.queue_offsets.get(queue, 0)
        self.queue_offsets[queue] = queue_offset + 1
        record = self.world.new_record(
            message, queue, queue_offset, core.epoch, self.disk.end, self.replica
        )
        size = self.world.sizes[record]
        self.disk.cells.extend(range(record << 3, (record << 3) + size))
        end = self.disk.end
        deadline = self.local_ms() + self.world.plan.rules.slave_timeout_ms
        self.waiting.append(Waiting(end, record, producer, deadline))
        self.feed(m.Appended(end))
        self._flush_soon()
        if self.freezes:
            self.freezes = False
            self.world.pause(self)

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
        core = self.core
        if core is None or core.master is None or not self.streams:
            return
        plan, rng = self.world.plan, self.world.rng
        end = core.master.end
        confirmed = self.visible()
        history = core.master.history
        start = self.disk.start
        for number, stream in self.streams.items():
            if 0 <= stream.cursor < start:
                self.world.mark("stream overtaken by retention")
                del self.streams[number]
                self._close_link(stream.link)
                self.feed(m.SlaveLost(number))  # and on with whoever is left
                return
        for number, stream in self.streams.items():
            while (
                0 <= stream.cursor < end
                and stream.cursor - stream.acked < plan.window * plan.frame_cells_max
            ):
                at = stream.cursor
                entry = history.at(at)
                limit = end if entry is None else history.end_of_reign(entry.number, end)
                stop = min(limit, at + 1 + int(rng.random() * plan.frame_cells_max))
                epoch, start = entry or (0, 0)
                stream.cursor = stop
                self._transfer(number, stream, at, stop, epoch, start, confirmed)
            if stream.sent_confirmed < confirmed and stream.cursor == end and stream.acked == end:
                self._transfer(
                    number, stream, end, end, history.last, history.last_start, confirmed
                )

    def _transfer(
        self,
        number: int,
        stream: Stream,
        at: int,
        stop: int,
        epoch: int,
        start: int,
        confirmed: int,
    ) -> None:
        stream.said_us = self.world.now_us
        stream.sent_confirmed = confirmed
        cells = self.disk.cells[at:stop]
        self._say_stream(number, ("frame", at, cells, epoch, start, confirmed))

    def _heartbeat_streams(self) -> None:
        core = self.core
        if core is None or core.master is None:
            return
        idle_us = self.world.plan.rules.stream_heartbeat_ms * 1000
        history = core.master.history
        for number, stream in list(self.streams.items()):
            if stream.cursor >= 0 and self.world.now_us - stream.said_us > idle_us:
                at = stream.cursor
                self._transfer(
                    number, stream, at, at, history.last, history.last_start, self.visible()
                )

    # --- flushing ---

    def _flush_soon(self) -> None:
        if self.flushing or self.disk.flushed >= self.disk.end or not self.up:
            return
        self.flushing = True
        low, high = self.world.plan.flush_us
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

    def _register(self, effect: r.Register) -> None:
        self._say(
            self.session,
            ("register", self.replica, self.incarnation, effect.suspect, effect.epoch, effect.end),
        )

    def _forget_suspicion(self, effect: r.ForgetSuspicion) -> None:
        self.burn()
        self.disk.suspect = False

    def _ask_for_election(self, effect: r.AskForElection) -> None:
        self._say(self.session, ("elect", self.replica))

    def _send_heartbeat(self, effect: r.SendHeartbeat) -> None:
        self._say(self.session, ("beat", self.replica, self.incarnation, effect))

    def _prepare(self, effect: r.Prepare) -> None:
        self.burn()
        if not self.up:
            return
        disk = self.disk
        end = disk.boundary(disk.end)
        if end < disk.end:
            disk.truncate(end)
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

    def _close_writes(self, effect: r.CloseWrites) -> None:
        self.accepts = False
        self.world.answers_lost(self.waiting)
        self.waiting.clear()
        self.streams_closed()
        self.feed(r.WritesClosed(self.disk.end, self.disk.flushed))

    def streams_closed(self) -> None:
        for stream in self.streams.values():
            self._close_link(stream.link)
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
        self._say_stream(
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
            self._close_link(stream.link)

    def _close_link(self, link: Link) -> None:
        self.links.pop(link.number, None)
        self.codecs.pop(link.number, None)
        self.world.network.close(link, link.side_of(self))

    def _propose(self, effect: m.Propose) -> None:
        self._say(self.session, ("alter", self.replica, effect))

    # --- effects of the slave ---

    def _connect(self, effect: s.Connect) -> None:
        target = self.world.brokers[effect.master]
        self.world.network.connect("stream", self, target, self._stream_opened(self.incarnation))

    def _greet(self, effect: s.Greet) -> None:
        self._say_stream(effect.connection, ("hello", self.replica, self.incarnation, effect.epoch))

    def _close_stream(self, effect: s.CloseStream) -> None:
        link = self.links.get(effect.connection)
        if link is not None:
            self._close_link(link)

    def _set_aside(self, effect: s.SetAside) -> None:
        self.burn()
        if self.up:
            cells = tuple(self.disk.cells[effect.start : effect.end])
            self.disk.set_aside.append((effect.start, cells))

    def _truncate(self, effect: s.Truncate) -> None:
        self.burn()
        if self.up:
            self.disk.truncate(effect.end)
            self.world.truncated(self, effect.end)
            self.burn()

    def _append(self, effect: s.Append) -> None:
        self.burn()
        if not self.up:
            return
        self.world.check_append(self, effect.offset, self.body)
        if not self.disk.end and effect.offset:
            assert self.core is not None
            before = self.world.brokers[self.core.slave.master].disk.log[: effect.offset]
            self.disk.begin(before, self.next_offsets({}, before))
        assert effect.offset == self.disk.end, (effect, self.disk.end)
        self.disk.cells.extend(self.body)
        self._flush_soon()

    def _report_progress(self, effect: s.ReportProgress) -> None:
        self._say_stream(
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
        return self.core is not None and self.core.role is Role.MASTER


PERFORMS: Final[dict[type, str]] = {
    r.Register: "_register",
    r.ForgetSuspicion: "_forget_suspicion",
    r.AskForElection: "_ask_for_election",
    r.SendHeartbeat: "_send_heartbeat",
    r.Prepare: "_prepare",
    r.OpenWrites: "_open_writes",
    r.CloseWrites: "_close_writes",
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
