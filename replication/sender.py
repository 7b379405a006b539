"""Master side of the replication stream: takes slaves in and ships them the log. Shell of a core.

Which dialect is spoken follows from the core: CLASSIC for a classic MasterCore; for a ReplicaCore AUTO_SWITCH, and
EXTENDED with a slave that offers it (frames.py). Slaves that do not belong here are refused with one log line.
Source: docs/formats.md "Replication stream"; RocketMQ's DefaultHAService, DefaultHAConnection, AutoSwitchHAConnection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Final

from msgspec.structs import replace

from tandemmq.replication.classicgate import ClassicGate, Examine
from tandemmq.replication.config import Mode
from tandemmq.replication.door import Door
from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.errors import PeerBrokeProtocol
from tandemmq.replication.feed import Feed
from tandemmq.replication.frames import (
    NONCE_BYTES,
    Challenge,
    Dialect,
    Greeting,
    Handshake,
    Hello,
    MasterFrame,
    RefusalFrame,
    Report,
    SlaveFrame,
    Welcome,
    read_classic_reports,
)
from tandemmq.replication.master import NEVER, MasterCore
from tandemmq.replication.masterevents import (
    Admit,
    Appended,
    CompareSlave,
    Confirmed,
    Drop,
    SlaveGreeted,
    SlaveLost,
    SlaveReported,
    StreamFrom,
    Trimmed,
)
from tandemmq.replication.party import Party
from tandemmq.replication.proofs import master_proof, refuse_hello
from tandemmq.replication.readahead import Ahead, read_ahead
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.stream import LogGone, Shipped, SourceLog, Stream
from tandemmq.replication.tlswire import Encrypted, TlsWire
from tandemmq.replication.wire import CONNECTIONS_MAX, SocketWire, Wire, open_listener
from tandemmq.storage import Clock

__all__ = ["CONNECTIONS_MAX", "Sender", "SlaveStatus", "SourceLog", "Wire", "open_listener"]

log = logging.getLogger(__name__)

NAMELESS_MS: Final = (
    1000  # so long a connection may not say who it is while others wait for its place
)
TICK_MS: Final = 500  # granularity of heartbeats and housekeeping
ACCEPTED_MAX: Final = 16  # per wake-up
CONFIRMED_PAUSE_MS: Final = 5  # a confirmed offset that no frame carried by then goes alone
EVERYBODY: Final = Door()
NOTHING: Final = Shipped(0, 0, EpochHistory(), 1, 1)  # of no log: only what was begun is written


@dataclass(slots=True)
class SlaveStatus:
    """One connected slave, for operators: request GET_BROKER_HA_STATUS.

    counted  what it reports counts as a copy
    """

    peer: str
    acked: int  # NEVER before its first report
    next_offset: int  # NEVER before its first report
    bytes_per_second: int
    replica: int = 0  # 0 in classic HA, which does not say
    dialect: Dialect = Dialect.CLASSIC
    counted: bool = True


class Sender:
    """Feeds a core what its slaves say, and slaves the log as the core decides.

    feed           of a classic MasterCore, or of a ReplicaCore: then slaves are served while it
                   is master
    segment_bytes  size of the log's files
    party          who we are, for a ReplicaCore
    examine        how a classic slave that shows no pass is compared; None: it cannot be

    wake() after each append, or ship_now() where answers wait for slaves' memory; run() serves. What
    is final comes out of the feed's run().
    """

    def __init__(
        self,
        feed: Feed,
        source: SourceLog,
        clock: Clock,
        *,
        segment_bytes: int,
        party: Party | None = None,
        examine: Examine | None = None,
    ) -> None:
        self._feed = feed
        self._source = source
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._party = party
        core = feed.core
        assert isinstance(core, MasterCore | ReplicaCore)
        assert (party is not None) == isinstance(core, ReplicaCore), "only a replica is a party"
        self._rules = core.rules
        self._dialect = Dialect.CLASSIC if party is None else Dialect.AUTO_SWITCH
        self._streams: dict[int, Stream] = {}
        self._last_number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._accepting = False
        self._woken = False
        self._telling = False
        self._gathering = False
        self._door = EVERYBODY
        self._tls: Encrypted | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._fetches: set[asyncio.Task[None]] = set()
        feed.register(Admit, self._admit)
        feed.register(StreamFrom, self._begin)
        feed.register(Drop, self._drop)
        self.refused: list[Callable[[str, str], None]] = []  # peer, why: who is dropped by the core
        #: told who (replica, or host where it says none), and how many us from a shipment to the report of it
        self.round_trip: Callable[[str, int], None] = lambda slave, took_us: None
        self.gate: ClassicGate | None = None
        if party is None:
            feed.ignore(Confirmed)  # no classic frame says it
            self.gate = ClassicGate(feed, clock, self.peer_of, examine)
        else:
            feed.ignore(CompareSlave)  # epochs tell where logs part
            feed.register(Confirmed, self._confirmed)
        feed.failed.append(lambda: self.close("the broker stops"))

    # --- what others ask and say ---

    def status(self) -> list[SlaveStatus]:
        """Every connection, oldest first."""
        master = self._feed.master
        return [
            SlaveStatus(
                each.peer, each.acked, each.next_offset, each.bytes_per_second, each.replica,
                each.dialect, master is not None and master.counts(each.number),
            )
            for each in self._streams.values()
        ]  # fmt: skip

    def peer_of(self, number: int) -> str | None:
        """host:port of a connection; None when it is gone."""
        stream = self._streams.get(number)
        return None if stream is None else stream.peer

    def wake(self) -> None:
        """The log has grown: ship it once the present callback of the loop is through."""
        if not (self._woken or self._gathering) and self._loop is not None:
            self._woken = True
            self._loop.call_soon(self._feed.guarded, self._wake_up)

    def _wake_up(self) -> None:
        if self._woken:  # else somebody was faster
            self.pump()

    def ship_now(self) -> None:
        """The log has grown and answers wait for slaves: ship or gather it in this very callback."""
        self._feed.guarded(self.pump)

    def close(self, why: str) -> None:
        """Drop every slave."""
        for number in list(self._streams):
            self._lost(number, why, logging.INFO)

    # --- connections ---

    def attach(self, wire: Wire, peer: str) -> int:
        """Take a connection in; the number that readable() and writable() go by.

        Nothing is sent, and no slave counts, before its first report.
        """
        self._last_number += 1
        number = self._last_number
        stream = Stream(number, wire, peer, self._clock.monotonic_ms(), self._dialect)
        if self._loop is None:
            stream.hot_bytes = sys.maxsize  # nobody could wait for a thread
        self._streams[number] = stream
        log.info("slave connected peer=%s connection=%d", peer, number)
        return number

    def readable(self, number: int) -> None:
        """Take in what a slave sent."""
        stream = self._streams.get(number)
        if stream is None:
            return
        try:
            data = stream.wire.receive()
        except OSError as error:
            self._lost(number, str(error), logging.INFO)
            return
        if not data:
            if data is not None:
                self._lost(number, "closed by the slave", logging.INFO)
            return
        stream.heard_ms = self._clock.monotonic_ms()
        try:
            self._take(stream, stream.left + data if stream.left else data)
        except PeerBrokeProtocol as problem:
            self._lost(number, str(problem), logging.WARNING)

    def writable(self, number: int) -> None:
        """Go on where a slave's socket was full."""
        stream = self._streams.get(number)
        if stream is not None:
            self._ship(stream)

    def _take(self, stream: Stream, data: bytes) -> None:
        if stream.dialect is Dialect.CLASSIC:
            if not stream.greeted and self.gate is not None:
                data = self.gate.take_pass(stream, data)
            reports, at = read_classic_reports(data)
            stream.left = data[at:]
            if reports:
                self._reported(stream, reports)
            return
        view, at = memoryview(data), 0
        while at < len(data):
            frames, at = stream.reader.read(view, at, len(data))
            if not frames:
                break
            self._frames(stream, frames)
            if stream.number not in self._streams:
                return
        stream.left = data[at:]

    def _frames(self, stream: Stream, frames: list[SlaveFrame]) -> None:
        reports: list[Report] = []
        for frame in frames:
            if isinstance(frame, Report):
                reports.append(frame)
            elif isinstance(frame, Handshake):
                self._shake(stream, frame)
            else:
                self._hello(stream, frame)
            if stream.number not in self._streams:
                return
        if reports:
            self._reported(stream, reports)

    # --- who connects ---

    def _shake(self, stream: Stream, frame: Handshake) -> None:
        """AUTO_SWITCH: a slave says its id, and whether it speaks our extension."""
        party = self._party
        assert party is not None
        if stream.greeted:
            if frame.replica != stream.replica:
                raise PeerBrokeProtocol(f"replica {stream.replica} is now {frame.replica}")
            if stream.admitted and stream.acked == NEVER and stream.unfinished is None:
                self._greet(stream)  # a stock slave asks again until it is answered
            return
        stream.replica = frame.replica
        if frame.offers_extension and party.extended:
            stream.challenge = Challenge(secrets.token_bytes(NONCE_BYTES))
            stream.reader.dialect = Dialect.EXTENDED
            self._say(stream, stream.challenge)
        elif party.secret:
            self._lost(stream.number, "offers no proof of the group's secret", logging.WARNING)
        else:
            stream.greeted = True
            master = self._feed.master
            if master is not None and master.mode.waits_for_disk:
                log.warning(
                    "what replica=%d receives counts as on its disk: it speaks RocketMQ's dialect, "
                    "which does not say",
                    frame.replica,
                )
            self._feed.feed(
                SlaveGreeted(
                    stream.number,
                    frame.replica,
                    0,
                    0,
                    frame.learner,
                    frame.from_last_file,
                    stream.host,
                )
            )

    def _hello(self, stream: Stream, frame: Hello) -> None:
        """EXTENDED: a slave proves who it is."""
        party = self._party
        assert party is not None and stream.challenge is not None
        if stream.greeted:
            raise PeerBrokeProtocol("a second hello")
        problem = refuse_hello(
            frame, stream.challenge, cluster=party.cluster, group=party.group, secret=party.secret
        )
        if problem is None and frame.replica != stream.replica:
            problem = f"shook hands as replica {stream.replica}, says it is {frame.replica}"
        if problem is not None:
            self._refuse(stream, problem)
            return
        stream.hello = frame
        stream.greeted = True
        self._feed.feed(
            SlaveGreeted(
                stream.number, frame.replica, frame.incarnation, frame.epoch, frame.learner,
                frame.from_last_file, stream.host,
            )
        )  # fmt: skip

    def _admit(self, effect: Admit) -> None:
        stream = self._streams.get(effect.connection)
        if stream is not None and stream.dialect is not Dialect.CLASSIC:
            stream.admitted = True
            self._greet(stream)

    def _greet(self, stream: Stream) -> None:
        master = self._feed.master
        if master is None or self._party is None:
            return
        history = master.history
        if stream.hello is None:
            self._say(stream, Greeting(master.end, history.last or NEVER, history.entries))
            return
        welcome = Welcome(master.epoch, master.start, master.end, master.confirmed, history)
        proof = master_proof(self._party.secret, stream.hello, welcome)
        self._say(stream, replace(welcome, proof=proof))

    def _say(self, stream: Stream, frame: MasterFrame) -> None:
        stream.say(frame)
        self._ship(stream)

    # --- what slaves report ---

    def _reported(self, stream: Stream, reports: list[Report]) -> None:
        """The last of several reports speaks for all, unless one claims more: then each must be plausible."""
        if len(reports) > 1 and max([each.received for each in reports]) == reports[-1].received:
            reports = reports[-1:]
        sent = stream.sent
        stream.acked = reports[-1].received
        if NEVER < stream.probe_end <= stream.acked:
            stream.probe_end = NEVER
            who = str(stream.replica) if stream.replica else stream.host
            self.round_trip(who, (perf_counter_ns() - stream.probe_ns) // 1_000)
        # what was gathered goes first: the slave works while we answer
        problem = self._write(stream)
        if len(self._streams) > 1:
            self.pump(but=stream)
        end, master = self._source.end, self._feed.master
        if stream.next_offset == NEVER and master is not None:
            self._note_log(master, end)  # where it starts says whether the slave can be served
        if not stream.greeted:
            self._greet_classic(stream)
        extended = stream.reader.dialect is Dialect.EXTENDED
        for report in reports:
            self._feed.feed(
                SlaveReported(
                    stream.number,
                    report.received,
                    report.flushed if extended else None,
                    report.epoch if extended else None,
                    sent,
                    end,
                )
            )
            if stream.number not in self._streams:
                return  # refused
        if problem is not None:
            self._lost(stream.number, *problem)

    def _greet_classic(self, stream: Stream) -> None:
        """Classic slaves have no id: they get a number that no replica has, another per connection."""
        if stream.dialect is not Dialect.CLASSIC:
            raise PeerBrokeProtocol("a report before the handshake")
        stream.greeted = True
        self._feed.feed(SlaveGreeted(stream.number, -stream.number, compared=stream.compared))

    def _begin(self, effect: StreamFrom) -> None:
        stream = self._streams.get(effect.connection)
        master = self._feed.master
        if stream is None or master is None:
            return
        offset = effect.offset
        if effect.newest_file:
            offset = max(master.end - master.end % self._segment_bytes, self._source.start)
        stream.begin(offset, self._clock.monotonic_ms())
        log.info("slave follows peer=%s from=%d end=%d", stream.peer, offset, master.end)
        self._ship(stream)

    def _drop(self, effect: Drop) -> None:
        stream = self._streams.get(effect.connection)
        if stream is not None:
            self._tell_refusal(stream, effect.reason)
            self._close(effect.connection, effect.reason, logging.WARNING)
            for call in self.refused:
                call(stream.peer, effect.reason)

    def _refuse(self, stream: Stream, reason: str) -> None:
        self._tell_refusal(stream, reason)
        self._lost(stream.number, reason, logging.WARNING)

    def _tell_refusal(self, stream: Stream, reason: str) -> None:
        """So that the slave's log names the reason too. Not inside a frame that was begun."""
        if stream.dialect is Dialect.EXTENDED and stream.unfinished is None:
            stream.say(RefusalFrame(reason))
            try:
                stream.ship(self._source, NOTHING)
            except OSError:
                return  # it is being closed anyway

    def _lost(self, number: int, why: str, level: int) -> None:
        if self._close(number, why, level):
            self._feed.feed(SlaveLost(number))

    def _close(self, number: int, why: str, level: int) -> bool:
        stream = self._streams.pop(number, None)
        if stream is None:
            return False
        master = self._feed.master
        if self.gate is not None and master is not None and master.counts(number):
            self.gate.note_left(stream.peer, stream.acked, stream.sent)
        stream.close()
        log.log(
            level, "slave dropped peer=%s replica=%d connection=%d acked=%d sent=%d why=%s",
            stream.peer, stream.replica, number, stream.acked, stream.sent, why,
        )  # fmt: skip
        return True

    # --- the log ---

    def _note_log(self, master: MasterCore, end: int) -> None:
        """Tell the core how far our log reaches: no slave may hold more than it knows of."""
        if end > master.end:
            self._feed.feed(Appended(end))
        start = self._source.start
        if start > master.start:
            self._feed.feed(Trimmed(start))

    def _shipped(self, master: MasterCore) -> Shipped:
        return Shipped(
            self._source.end, master.confirmed, master.history, self._segment_bytes,
            self._rules.batch_bytes,
        )  # fmt: skip

    def pump(self, but: Stream | None = None) -> None:
        """Ship what the log has to every slave whose socket is not full: one write each.

        It is shipped before the core hears of it: so not even an asynchronous master that is killed
        takes what it acknowledges with it, as long as its slaves keep up. Where answers wait for
        slaves anyway, what was appended since the last shipment goes when that one is reported: a
        group commit, of the size that the slave's own speed makes it.
        """
        self._woken = False
        master = self._feed.master
        if master is None:
            return
        may_gather = self._loop is not None and master.mode is Mode.S0
        end, report_due = self._source.end, False
        for stream in list(self._streams.values()):
            if stream is but or not stream.behind(end):
                continue
            report_due = may_gather
            if may_gather and stream.gathers(end):
                self._gather(end)
            else:
                self._ship(stream)
        if master.controlled or not report_due:  # else that report says it, too
            self._note_log(master, end)

    def _gather(self, end: int) -> None:
        """Ship soon, though the slave has not reported the shipment before: as soon as a turn of the loop passes in
        which nothing is appended. Who is waiting for that slave should wait for one round trip, not for two."""
        if not self._gathering:
            assert self._loop is not None
            self._gathering = True
            self._loop.call_soon(self._feed.guarded, self._ship_gathered, end)

    def _ship_gathered(self, end: int) -> None:
        """Ship what was gathered, unless the log has grown since _gather() looked, or is about to: more senders were
        served in the same turn of the loop. Then one more turn is waited for, and all of it goes in one shipment."""
        self._gathering = False
        if self._loop is None:
            return
        if self._source.end > end or self._source.staged:
            self._gather(self._source.end)
            return
        for stream in list(self._streams.values()):
            if stream.behind(end):
                self._ship(stream)

    def _ship(self, stream: Stream) -> None:
        problem = self._write(stream)
        if problem is not None:
            self._lost(stream.number, *problem)

    def _write(self, stream: Stream) -> tuple[str, int] | None:
        """One write; why the stream ends with it, and how loud to say so. When more is to be done the
        loop calls again as soon as there is room."""
        master = self._feed.master
        shipped = self._shipped(master) if master is not None else NOTHING
        try:
            if stream.behind(shipped.end) and stream.ship(self._source, shipped):
                stream.wrote_ms = self._clock.monotonic_ms()
                if stream.probe_end == NEVER:
                    stream.probe_end, stream.probe_ns = stream.sent, perf_counter_ns()
            if not stream.behind(shipped.end):
                stream.wire.wait_writable(False)
                return None
            frames = stream.next_ahead(self._source, shipped)
        except LogGone as problem:
            return str(problem), logging.ERROR
        except OSError as error:
            return str(error), logging.INFO
        if frames:
            self._read_ahead(stream, frames)
        stream.wire.wait_writable(stream.waits_for_room(shipped.end))
        return None

    def _read_ahead(self, stream: Stream, frames: list[Ahead]) -> None:
        """Have a thread read what a lagging slave needs next."""
        assert self._loop is not None
        stream.reading = True
        task = self._loop.create_task(self._fetch(stream, frames), name="read ahead")
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, stream: Stream, frames: list[Ahead]) -> None:
        loop = asyncio.get_running_loop()
        try:
            checked = stream.dialect is Dialect.EXTENDED and not stream.compressed
            ready = await loop.run_in_executor(self._reader, read_ahead, frames, checked)
        except OSError as error:
            self._feed.guarded(
                self._lost, stream.number, f"cannot read the log: {error}", logging.ERROR
            )
            return
        except Exception as error:
            self._feed.fail(error)
            return
        stream.reading = False
        stream.ready.extend(ready)
        if stream.number in self._streams:
            self._feed.guarded(self._ship, stream)

    # --- time ---

    def tick(self) -> None:
        """Heartbeats, and an end to connections that are silent. Call it every TICK_MS."""
        now_ms = self._clock.monotonic_ms()
        rules = self._rules
        for stream in list(self._streams.values()):
            stream.note_rate(now_ms)
            if now_ms - stream.heard_ms >= rules.stream_silence_ms:
                why = f"silent for {rules.stream_silence_ms} ms"
                self._lost(stream.number, why, logging.WARNING)
            elif now_ms - stream.wrote_ms >= rules.stream_heartbeat_ms:
                self._heartbeat(stream)

    def _heartbeat(self, stream: Stream) -> None:
        master = self._feed.master
        if master is not None and stream.next_offset != NEVER and not stream.behind(master.end):
            self._say(stream, stream.heartbeat(self._shipped(master)))

    def _confirmed(self, effect: Confirmed) -> None:
        if not self._telling and self._loop is not None:
            self._telling = True
            self._loop.call_later(
                CONFIRMED_PAUSE_MS / 1000, self._feed.guarded, self.tell_confirmed
            )

    def tell_confirmed(self) -> None:
        """Let slaves know the confirmed offset that no frame has carried yet."""
        self._telling = False
        master = self._feed.master
        if master is None:
            return
        for stream in list(self._streams.values()):
            if stream.dialect is not Dialect.CLASSIC and stream.said_confirmed < master.confirmed:
                self._heartbeat(stream)

    # --- serving ---

    async def run(
        self, listener: socket.socket, door: Door = EVERYBODY, tls: Encrypted | None = None
    ) -> None:
        """Serve until cancelled, on a socket of open_listener(), which stays the caller's to close.

        door   from where slaves may connect; tls: what to encrypt with, None without
        """
        assert tls is not None or not door.encrypted
        self._door, self._tls = door, tls
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        # Of its own: whoever waits for a flush must not wait behind a cold disk's reads.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read ahead")
        self._accept_again()
        try:
            while True:
                await asyncio.sleep(TICK_MS / 1000)
                self._accept_again()
                self._feed.guarded(self.tick)
        finally:
            if self._accepting:
                self._loop.remove_reader(listener)
                self._accepting = False
            self._loop = None
            self.close("the broker stops serving slaves")
            if self.gate is not None:
                await self.gate.close()
            self._reader.shutdown(wait=False, cancel_futures=True)
            if self._fetches:
                await asyncio.wait(self._fetches)

    def _accept_again(self) -> None:
        if not self._accepting and self._loop is not None and self._listener is not None:
            self._accepting = True
            self._loop.add_reader(self._listener, self._feed.guarded, self._accept)

    def _accept(self) -> None:
        assert self._loop is not None and self._listener is not None
        for _ in range(ACCEPTED_MAX):
            try:
                connected, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # out of descriptors, mostly: not again before the next tick, or the loop would spin
                log.warning("cannot accept a slave why=%s", error)
                self._loop.remove_reader(self._listener)
                self._accepting = False
                return
            peer = f"{address[0]}:{address[1]}"
            if (why := self._door.refuse(address[0])) is not None:
                log.warning("slave refused peer=%s why=%s", peer, why)
                connected.close()
                continue
            if not self._has_room():
                log.warning("slave refused peer=%s why=%d are connected", peer, CONNECTIONS_MAX)
                connected.close()
                continue
            wire = self._wire_of(connected, address[0])
            number = self.attach(wire, peer)
            wire.watch(
                partial(self._feed.guarded, self.readable, number),
                partial(self._feed.guarded, self.writable, number),
            )

    def _has_room(self) -> bool:
        """For one more connection: the oldest that never said who it is goes, or strangers would keep
        replicas out by saying nothing. INV-44"""
        if len(self._streams) < CONNECTIONS_MAX:
            return True
        now_ms = self._clock.monotonic_ms()
        for stream in self._streams.values():
            if not stream.greeted and now_ms - stream.wrote_ms >= NAMELESS_MS:
                why = f"did not say who it is, and others wait: {CONNECTIONS_MAX} are connected"
                self._lost(stream.number, why, logging.WARNING)
                return True
        return False

    def _wire_of(self, connected: socket.socket, host: str) -> SocketWire | TlsWire:
        assert self._loop is not None
        wire = SocketWire(connected, self._loop)
        if self._tls is None:
            return wire
        return TlsWire(wire, self._tls, plain_too=self._door.takes_plain(host))
