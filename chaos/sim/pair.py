"""The two brokers of a classic pair in the simulated world: roles by configuration, logs compared before they count.

Real are the cores of replication (MasterCore without a controller, SlaveCore with `classic`), the gate with its passes
and the search for where two logs part. Modelled is what asks, answers, ships and cuts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from tandemmq.chaos.sim.disk import Disk
from tandemmq.chaos.sim.network import Message, SimulatedLink
from tandemmq.chaos.sim.shipping import Stream
from tandemmq.cluster.broker.standing.parting import _last_same
from tandemmq.replication import masterevents as m
from tandemmq.replication import slave as s
from tandemmq.replication.classicgate import ClassicGate
from tandemmq.replication.comparing import CompareLogs, Finding, LogsCompared, ShowPass, Verdict
from tandemmq.replication.config import Mode
from tandemmq.replication.feed import Feed
from tandemmq.replication.master import NEVER, MasterCore
from tandemmq.replication.slave import NO_CONNECTION, SlaveCore, SlaveState

if TYPE_CHECKING:
    from tandemmq.chaos.sim.classic import ClassicWorld

MASTER: Final = 1
STRETCH_CELLS: Final = 24  # what is compared before the slave's end
ANSWER_US: Final = 150_000
Found = TypeVar("Found")


@dataclass(slots=True)
class Send:
    """A put whose answer waits."""

    end: int
    record: int
    deadline_us: int


class NoFeed:
    """What a gate registers its effects with: here the shell performs them."""

    def register(self, kind: type, perform: Any) -> None:
        return


class Node:
    """One broker of the pair, whose role its settings give. The object outlives the process."""

    make_master: type[MasterCore] = MasterCore
    make_slave: type[SlaveCore] = SlaveCore

    def __init__(self, world: ClassicWorld, host: int) -> None:
        self.world = world
        self.host = host
        self.disk = Disk(sizes=world.sizes)
        self.is_master = host == 1
        self.mode: Mode = world.plan.mode
        self.up = False
        self.powered = True
        self.incarnation = 0
        self.word = False  # cut-to-master
        self.alarmed = ""
        self.seeding = False  # it has not had its master's whole log since its store was emptied
        self.reset()

    def reset(self) -> None:
        """Nothing of a process survives it."""
        self.master: MasterCore | None = None
        self.slave: SlaveCore | None = None
        self.gate: ClassicGate | None = None
        self.links: dict[int, SimulatedLink] = {}
        self.streams: dict[int, Stream] = {}
        self.waiting: deque[Send] = deque()
        self.queue_offsets: dict[int, int] = {}
        self.flushing = False
        self.passport = 0
        self.reported = False
        self.body: list[int] = []
        self._events: deque[Any] = deque()
        self._running = False

    # --- life ---

    @property
    def peer(self) -> Node:
        return self.world.nodes[3 - self.host]

    def now_ms(self) -> int:
        return self.world.now_us // 1000

    def monotonic_ms(self) -> int:
        return self.world.now_us // 1000

    def start(self) -> None:
        """A new process finds what the disk holds, and cuts half a message at its end."""
        self.reset()
        self.up = True
        self.incarnation += 1
        self.alarmed = ""
        disk = self.disk
        if disk.boundary(disk.end) < disk.end:
            disk.truncate(disk.boundary(disk.end))
        if self.is_master:
            self.master = self.make_master(
                MASTER, self.mode, self.world.rules, controlled=False,
                start=disk.start, end=disk.end, flushed=disk.flushed,
            )  # fmt: skip
            self.gate = ClassicGate(cast(Feed, NoFeed()), self, lambda number: None, None)
            for cell in disk.cells:
                if not cell & 7:
                    record = self.world.records[cell >> 3]
                    self.queue_offsets[record.queue] = record.queue_offset + 1
        else:
            self.slave = self.make_slave(
                rules=self.world.rules, start=disk.start, end=disk.end, flushed=disk.flushed, classic=True
            )  # fmt: skip
            self.feed(s.Follow(MASTER, "the master", 0))
        self.world.after(self.world.rng.randrange(1000, 30_000), self.tick, self.incarnation)

    def crash(self, *, power: bool) -> None:
        """kill -9, or with `power` the host goes dark."""
        if not self.up:
            return
        self.world.note("crash", self.host, power)
        self.up = False
        self.world.network.process_died(self, power)
        self.world.unanswered(len(self.waiting))
        self.reset()
        if power:
            self.powered = False
            before, flushed = self.disk.end, self.disk.flushed
            lost = self.disk.cut_power(self.world.rng)
            if lost:
                self.world.mark("power cut lost bytes")
            self.world.judge.power_lost(self, before - lost, before, flushed)

    def tick(self, life: int) -> None:
        if not self.up or life != self.incarnation:
            return
        self.feed(m.Tick())
        if self.up and life == self.incarnation:
            self._expire()
            self._ship(beats=True)
            self._flush_soon()
            self.world.after(self.world.tick_us, self.tick, life)

    # --- the core ---

    def feed(self, event: Any) -> None:
        """One event after the other, each list of effects performed to its end."""
        self._events.append(event)
        if self._running or not self.up:
            return
        self._running = True
        life = self.incarnation
        while self._events and self.up and self.incarnation == life:
            core: Any = self.slave or self.master
            for effect in core.step(self._events.popleft(), self.now_ms()):
                PERFORMS.get(type(effect), Node._nothing)(self, effect)
                if not self.up or self.incarnation != life:
                    return
        self._running = False
        self._ship()

    def _nothing(self, effect: Any) -> None:
        return

    # --- connections ---

    def on_accepted(self, link: SimulatedLink) -> None:
        self.links[link.number] = link
        if self.master is not None:
            self.streams[link.number] = Stream(link, acked=NEVER)

    def on_link_closed(self, link: SimulatedLink) -> None:
        self.links.pop(link.number, None)
        if self.streams.pop(link.number, None) is not None and self.master is not None:
            self.feed(m.SlaveLost(link.number))
        elif self.slave is not None:
            self.feed(s.StreamClosed(link.number, "closed by the peer"))

    def _close(self, number: int) -> None:
        self.streams.pop(number, None)
        link = self.links.pop(number, None)
        if link is not None:
            self.world.network.close(link, link.side_of(self))

    def _say(self, number: int, message: Message) -> None:
        link = self.links.get(number)
        if link is not None:
            self.world.network.send(link, link.side_of(self), message)

    def on_message(self, link: SimulatedLink, message: Message) -> None:
        if link.ends[0] is not self and link.ends[1] is not self:
            return
        kind, number = message[0], link.number
        if kind == "frame" and self.slave is not None:
            _, offset, self.body = message
            self.feed(s.FrameReceived(number, offset, len(self.body)))
        elif kind == "report" and self.master is not None:
            self._reported(number, *message[1:])

    def _reported(self, number: int, passport: int, received: int) -> None:
        """As Sender._take and what follows it."""
        stream = self.streams.get(number)
        assert self.gate is not None
        if stream is None:
            return
        if stream.acked == NEVER:
            compared: int | None = NEVER
            if passport:
                compared = self.gate.take(passport)
            if compared is None:
                self._close(number)  # a pass of another process
                return
            self.feed(m.SlaveGreeted(number, -number, compared=compared))
            stream = self.streams.get(number)
            if stream is None:
                return
        stream.acked = received
        sent = max(stream.cursor, 0)
        self.feed(m.SlaveReported(number, received, None, None, sent, self.disk.end))

    # --- puts ---

    def put(self, message: int) -> None:
        """A producer's send."""
        world = self.world
        if not self.up or self.master is None:
            world.unanswered(1)
            return
        queue = message % world.plan.queues
        queue_offset = self.queue_offsets.get(queue, 0)
        self.queue_offsets[queue] = queue_offset + 1
        record = world.new_record(message, queue, queue_offset, self.disk.end, self.host)
        self.disk.cells.extend(range(record << 3, (record << 3) + world.sizes[record]))
        timeout_us = world.rules.slave_timeout_ms * 1000
        self.waiting.append(Send(self.disk.end, record, world.now_us + timeout_us))
        self.feed(m.Appended(self.disk.end))
        self._flush_soon()

    def _expire(self) -> None:
        """FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE: stored here, and nothing is promised."""
        while self.waiting and self.waiting[0].deadline_us <= self.world.now_us:
            self.waiting.popleft()
            self.world.unanswered(1)

    def _ship(self, *, beats: bool = False) -> None:
        if self.master is None:
            return
        plan, end = self.world.plan, self.master.end
        for number, stream in list(self.streams.items()):
            while (
                0 <= stream.cursor < end
                and stream.cursor - stream.acked < plan.window * plan.frame_cells_max
            ):
                at = stream.cursor
                stream.cursor = min(end, at + self.world.rng.randint(1, plan.frame_cells_max))
                stream.said_us = self.world.now_us
                self._say(number, ("frame", at, self.disk.cells[at : stream.cursor]))
            idle_us = self.world.rules.stream_heartbeat_ms * 1000
            if beats and stream.cursor >= 0 and self.world.now_us - stream.said_us > idle_us:
                stream.said_us = self.world.now_us
                self._say(number, ("frame", stream.cursor, []))

    # --- flushing ---

    def _flush_soon(self) -> None:
        if not self.flushing and self.disk.flushed < self.disk.end and self.up:
            self.flushing = True
            delay = self.world.rng.randint(*self.world.plan.flush_us)
            self.world.after(delay, self._flushed, self.incarnation, self.disk.cuts, self.disk.end)

    def _flushed(self, life: int, cuts: int, end: int) -> None:
        if not self.up or life != self.incarnation:
            return
        self.flushing = False
        if cuts != self.disk.cuts:
            return
        self.disk.flush(end)
        core: Any = self.slave or self.master
        self.feed(m.Flushed(min(end, core.end)))
        self._flush_soon()

    # --- effects of the master ---

    def _acknowledge(self, effect: m.Acknowledge) -> None:
        while self.waiting and self.waiting[0].end <= effect.end:
            self.world.judge.acknowledged(self, self.waiting.popleft().record, effect)

    def _stream_from(self, effect: m.StreamFrom) -> None:
        stream = self.streams.get(effect.connection)
        if stream is not None:
            stream.cursor = effect.offset
            stream.acked = max(stream.acked, effect.offset)

    def _drop(self, effect: m.Drop) -> None:
        self._close(effect.connection)

    def _compare_slave(self, effect: m.CompareSlave) -> None:
        """Who shows no pass cannot ask: nobody of this pair."""
        self.feed(m.SlaveCompared(effect.connection, effect.end, Verdict.UNKNOWN, "shows no pass"))

    def compare_logs(self, end: int, stretch: list[int]) -> Finding:
        """Asked by the slave, as ComparingMaster answers."""
        if self.master is None or self.gate is None:
            return Finding(Verdict.UNKNOWN, "not a master")
        if end > self.disk.end:
            return Finding(Verdict.DIFFERS, "it has what we lost or never had")
        if self.disk.cells[end - len(stretch) : end] != stretch:
            return Finding(Verdict.DIFFERS, "two logs")
        return Finding(Verdict.SAME, passport=self.gate.give(end))

    # --- effects of the slave ---

    def _connect(self, effect: s.Connect) -> None:
        life = self.incarnation

        def opened(link: SimulatedLink | None, refused: bool) -> None:
            if not self.up or life != self.incarnation:
                if link is not None:
                    self.world.network.close(link, 0)
                return
            if link is None or link.ends[0] is not self:
                self.feed(s.StreamClosed(NO_CONNECTION, "no connection"))
                return
            self.links[link.number] = link
            self.passport, self.reported = 0, False
            self.feed(s.Connected(link.number))

        self.world.network.connect("stream", self, self.peer, opened)

    def _close_stream(self, effect: s.CloseStream) -> None:
        self._close(effect.connection)

    def _compare(self, effect: CompareLogs) -> None:
        """As AskingSlave does it: the answer takes its time, or does not come."""
        life, answered = self.incarnation, [False]

        def asked() -> None:
            if self.peer.up and self._reaches(self.peer) and self.up and life == self.incarnation:
                finding = self._compared()
                self.world.after(self.world.network.delay(), finish, finding)

        def finish(finding: Finding) -> None:
            if self.up and life == self.incarnation and not answered[0]:
                answered[0] = True
                self.feed(
                    LogsCompared(
                        effect.connection, self.disk.end, finding.verdict, finding.why, finding.passport
                    )
                )  # fmt: skip

        self.world.after(self.world.network.delay(), asked)
        self.world.after(ANSWER_US, finish, Finding(Verdict.UNKNOWN, "no answer"))

    def _reaches(self, peer: Node) -> bool:
        blocked = self.world.network.blocked
        return (self.host, peer.host) not in blocked and (peer.host, self.host) not in blocked

    def _compared(self) -> Finding:
        found = self._ask(self.disk.end)
        if found.verdict is Verdict.DIFFERS:
            whole = self.disk.boundary(self.disk.end)
            if whole < self.disk.end and self._ask(whole).verdict is Verdict.SAME:
                self.world.mark("half a message cut")
                self.disk.truncate(whole)
                found = self._ask(whole)
        if self.word and found.verdict is Verdict.DIFFERS:
            return self._cut_where_they_part()
        if self.word and found.verdict is Verdict.SAME:
            self.word = False
        return found

    def _ask(self, end: int) -> Finding:
        return self.peer.compare_logs(end, self.disk.cells[max(0, end - STRETCH_CELLS) : end])

    def _cut_where_they_part(self) -> Finding:
        """The operator's word: as parting.cut_where_they_part."""
        disk, sizes = self.disk, self.world.sizes
        ends = [0] + [
            at + sizes[cell >> 3] for at, cell in enumerate(disk.cells)
            if not cell & 7 and at + sizes[cell >> 3] <= disk.end
        ]  # fmt: skip

        async def compare(end: int) -> Finding:
            return self._ask(end)

        at, same, problem = _run(_last_same(ends, compare))
        if problem is not None:
            return problem
        if not same:
            return Finding(Verdict.DIFFERS, "nothing in common with the master")
        self.word = False
        self.world.mark("log cut by the operator's word")
        self.world.judge.given_up(self, ends[at])
        disk.set_aside.append((ends[at], tuple(disk.cells[ends[at] :])))
        disk.truncate(ends[at])
        return self._ask(disk.end)

    def _show_pass(self, effect: ShowPass) -> None:
        self.passport = effect.passport

    def _report(self, effect: s.ReportProgress) -> None:
        """As Receiver reports: with SYNC_FLUSH what the disk has, and first of all where the log ends."""
        received = effect.received
        if self.mode.waits_for_disk:
            if not self.reported and effect.flushed < received:
                return
            received = effect.flushed
        self.reported = True
        passport, self.passport = self.passport, 0
        self._say(effect.connection, ("report", passport, received))

    def _append(self, effect: s.Append) -> None:
        assert effect.offset == self.disk.end, (effect, self.disk.end)
        self.disk.cells.extend(self.body)
        self._flush_soon()

    def _alarm(self, effect: s.Alarm) -> None:
        self.world.note("alarm", self.host, effect.reason)
        assert self.slave is not None
        if self.slave.state is SlaveState.STOPPED:
            self.world.mark("two logs")
            self.world.judge.stopped(self)
            self.alarmed = effect.reason


def _run(coroutine: Coroutine[Any, Any, Found]) -> Found:
    """Of one that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(Found, done.value)
    raise AssertionError("it waits")


PERFORMS: Final[dict[type[msgspec.Struct], Any]] = {
    m.Acknowledge: Node._acknowledge,
    m.StreamFrom: Node._stream_from,
    m.Drop: Node._drop,
    m.CompareSlave: Node._compare_slave,
    s.Connect: Node._connect,
    s.CloseStream: Node._close_stream,
    s.ReportProgress: Node._report,
    s.Append: Node._append,
    s.Alarm: Node._alarm,
    CompareLogs: Node._compare,
    ShowPass: Node._show_pass,
}
