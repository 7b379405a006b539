"""Slave side of the replication stream: follows a master and appends what it ships. Shell of a core.

Bodies go from the receive buffer to the log as they are; the buffer holds a frame at most, and a slave that cannot
append does not read on. Of the reports that one read earns only the last leaves: it speaks for all. A classic
SlaveCore speaks CLASSIC, a ReplicaCore AUTO_SWITCH, and EXTENDED with a master that takes our offer (frames.py).
Source: docs/formats.md "Replication stream"; RocketMQ's DefaultHAClient and AutoSwitchHAClient.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from tandemmq.replication.classicgate import encode_pass
from tandemmq.replication.comparing import CompareLogs, Finding, LogsCompared, ShowPass, Verdict
from tandemmq.replication.errors import PeerBrokeProtocol
from tandemmq.replication.feed import EffectFailed, Feed
from tandemmq.replication.frames import (
    NONCE_BYTES,
    Buffer,
    Challenge,
    Dialect,
    Greeting,
    Handshake,
    Hello,
    MasterFrame,
    RefusalFrame,
    Transfer,
    Welcome,
    encode_slave_frame,
    history_of,
)
from tandemmq.replication.link import BUFFER_BYTES, Link
from tandemmq.replication.party import Party
from tandemmq.replication.proofs import refuse_welcome, slave_proof
from tandemmq.replication.slave import (
    ANSWER_MS_MAX,
    NO_CONNECTION,
    Append,
    AppendFailed,
    CloseStream,
    Connect,
    Connected,
    Follow,
    FrameReceived,
    Greet,
    MasterGreeted,
    ReportProgress,
    StreamClosed,
    StreamHeard,
    Unfollow,
)
from tandemmq.storage import Clock, SegmentUnavailable, StoreIsFull

__all__ = ["BUFFER_BYTES", "Link", "Receiver", "ReceiverStats", "ReplicaStore", "parse_address"]

log = logging.getLogger(__name__)

PORT_MAX: Final = 65535


class ReplicaStore(Protocol):
    """What of a store a slave needs. storage.MessageStore is one."""

    @property
    def end(self) -> int:
        """Log offset of the next byte."""

    def append_raw(self, data: Buffer, offset: int) -> int:
        """Write bytes that continue the log, and count them; its new end.

        Raises StoreIsFull, SegmentUnavailable; FlushFailed, which is final.
        """


Dial = Callable[[str, int, "Callable[[], Link]"], Awaitable[object]]
"""Open a connection to host and port and attach a Link to it. Raises OSError."""

Compare = Callable[[], Awaitable[Finding]]
"""Hold our log against the master's, whom we are connected to. Raises what is final, nothing else."""


@dataclass(slots=True)
class ReceiverStats:
    """Plain counters since the start, and what went wrong last."""

    connects: int = 0
    received_bytes: int = 0
    appended_bytes: int = 0
    last_read_ms: int = 0  # wall time
    last_write_ms: int = 0  # wall time
    last_problem: str = ""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


async def dial_tcp(host: str, port: int, make: Callable[[], Link]) -> object:
    """In plain text."""
    return await asyncio.get_running_loop().create_connection(make, host, port)


class Receiver:
    """Feeds a core what its master sends, and the store as the core decides.

    feed   of a SlaveCore with `classic`, made with the store's end, or of a ReplicaCore
    party  who we are, for a ReplicaCore
    durable  in CLASSIC, which knows one position, report what our disk has: then a master that waits
           for us waits for the disk. The first report says where our log ends, so it waits too
    compare  in CLASSIC, how our log is held against the master's; None: it cannot be

    follow() says whom to follow in classic HA, a ReplicaCore knows by itself. run() connects; what
    is final comes out of the feed's run().
    """

    def __init__(
        self,
        feed: Feed,
        store: ReplicaStore,
        clock: Clock,
        *,
        party: Party | None = None,
        durable: bool = False,
        dial: Dial = dial_tcp,
        compare: Compare | None = None,
    ) -> None:
        slave = feed.slave
        assert slave is not None
        assert slave.classic == (party is None), "classic HA has no party, all else has one"
        self.stats = ReceiverStats()
        self._feed = feed
        self._rules = slave.rules
        self._store = store
        self._clock = clock
        self._party = party
        self._durable = durable
        self._dial = dial
        self._compare = compare
        self._comparisons: set[asyncio.Task[None]] = set()
        self._comparing = asyncio.Lock()
        self._links: dict[int, Link] = {}  # one; two while the core refuses the later of them
        self._last_number = NO_CONNECTION
        self._connecting: asyncio.Task[None] | None = None
        self._body: Buffer = b""  # of the frame the core is deciding about
        self._taken: Link | None = None  # whose first frame the core is deciding about
        self._held: list[Link] = []  # with frames that wait until the feed is free
        self._reading = False
        self._report: ReportProgress | None = None
        feed.register(Connect, self._connect)
        feed.register(Greet, self._greet)
        feed.register(CompareLogs, self._compare_logs)
        feed.register(ShowPass, self._show_pass)
        feed.register(CloseStream, self._close_stream)
        feed.register(Append, self._append)
        feed.register(ReportProgress, self._note_report)
        feed.failed.append(self._close_all)
        feed.resumed.append(self._resume)

    # --- whom to follow ---

    def follow(self, address: str) -> None:
        """Follow the master at "host:port" from now on; the one it follows already changes nothing.

        Call it on the loop. Raises ValueError for what is no address.
        """
        parse_address(address)
        self._feed.feed(Follow(0, address, 0))

    def unfollow(self, why: str) -> None:
        """Leave the master: our role changes, or nobody knows where it is."""
        self._feed.feed(Unfollow(why))

    async def run(self) -> None:
        """Serve until cancelled; leaving closes the connection."""
        try:
            await asyncio.Event().wait()
        finally:
            self._close_all()
            for task in (self._connecting, *self._comparisons):
                if task is not None:
                    task.cancel()
                    await asyncio.wait({task})

    def _close_all(self) -> None:
        for number in list(self._links):
            self._close(number, "the broker stops")

    # --- events ---

    def link_up(self, link: Link) -> None:
        """A connect succeeded."""
        self._links[link.number] = link
        self.stats.connects += 1
        log.info("connected to master connection=%d end=%d", link.number, self._store.end)
        self._feed.feed(Connected(link.number))
        self._feed.hurry()

    def link_down(self, link: Link, why: str) -> None:
        """The connection ended, by whomever."""
        if self._links.pop(link.number, None) is not None:  # else it was we who closed it
            log.warning(
                "lost master connection=%d end=%d why=%s", link.number, self._store.end, why
            )
            self.stats.last_problem = why
        link.closed = True
        self._feed.feed(StreamClosed(link.number, why))
        self._feed.hurry()

    def received(self, link: Link, count: int) -> None:
        """Bytes came in: take what is whole."""
        stats = self.stats
        stats.received_bytes += count
        stats.last_read_ms = now_ms = self._clock.now_ms()
        self._feed.guarded(self._go_on, link, now_ms)

    def _go_on(self, link: Link, now_ms: int) -> None:
        """Feed the frames that are there, one after the other; while the feed is busy, hold.

        A master may wait for the report: it leaves as soon as the last frame is taken.
        """
        feed = self._feed
        self._reading = True
        try:
            if not link.frames:
                link.read()
                if not link.frames:
                    feed.feed(StreamHeard(link.number))  # a large frame takes its time
            while link.frames and not link.closed:
                if not feed.busy:
                    self._taken = link
                    frame = link.frames[0]
                    if isinstance(frame, Transfer):
                        self._body = frame.body
                        feed.feed(
                            FrameReceived(
                                link.number, frame.offset, len(frame.body), frame.epoch,
                                frame.epoch_start, frame.confirmed,
                            )
                        )  # fmt: skip
                    else:
                        self._shake_hands(link, frame)
                if feed.busy:
                    self._hold(link)
                    return
                self._done(link)
            if self._report is not None:
                self._send_report(now_ms)
            if link.closed:
                link.frames.clear()
                return
            link.make_room()
            if link.held:
                link.hold(False)
        except PeerBrokeProtocol as problem:
            if not feed.busy:
                self._taken = None
            self._broke(link, str(problem))
            if self._taken is not link:
                link.frames.clear()
        finally:
            self._reading = False
            if self._report is not None:
                self._send_report(now_ms)

    def _hold(self, link: Link) -> None:
        """Read no more of it until the effect under way is done: its frames are needed as they are."""
        link.hold(True)
        if link not in self._held:
            self._held.append(link)

    def _resume(self) -> None:
        """An effect that took its time is done, and so is what it held up."""
        if self._taken is not None:
            self._done(self._taken)
        held, self._held = self._held, []
        for link in held:
            if link.closed:
                link.frames.clear()
            else:
                self._go_on(link, self._clock.now_ms())

    def _done(self, link: Link) -> None:
        self._taken, self._body = None, b""
        del link.frames[0]

    def _broke(self, link: Link, why: str) -> None:
        self._close(link.number, why)
        self._feed.feed(StreamClosed(link.number, why))

    def _shake_hands(self, link: Link, frame: MasterFrame) -> None:
        if isinstance(frame, Greeting):
            self._greeted(link, frame)
        elif isinstance(frame, Challenge):
            self._challenged(link, frame)
        elif isinstance(frame, Welcome):
            self._welcomed(link, frame)
        else:
            assert isinstance(frame, RefusalFrame)
            self._broke(link, f"refused by the master: {frame.reason}")

    # --- the handshake ---

    def _greet(self, effect: Greet) -> None:
        link, party = self._links.get(effect.connection), self._party
        if link is None:
            return
        assert party is not None
        frame = Handshake(
            party.replica, self._rules.from_last_file, self._rules.learner, party.extended
        )
        link.say(encode_slave_frame(frame, Dialect.AUTO_SWITCH))

    def _challenged(self, link: Link, frame: Challenge) -> None:
        """Our offer is taken: say more about us, and prove it."""
        party = self._party
        if link.challenge is not None or party is None:
            raise PeerBrokeProtocol("a second challenge")
        link.challenge = frame
        hello = Hello(
            party.cluster, party.group, party.replica, party.incarnation, self._epoch,
            self._rules.from_last_file, self._rules.learner, party.compressed,
            secrets.token_bytes(NONCE_BYTES),
        )  # fmt: skip
        link.hello = replace(hello, proof=slave_proof(party.secret, frame, hello))
        link.say(encode_slave_frame(link.hello, Dialect.EXTENDED))

    @property
    def _epoch(self) -> int:
        slave = self._feed.slave
        assert slave is not None
        return slave.epoch

    def _welcomed(self, link: Link, frame: Welcome) -> None:
        if link.hello is None or link.greeted or self._party is None:
            raise PeerBrokeProtocol("a welcome nobody asked for")
        problem = refuse_welcome(frame, link.hello, secret=self._party.secret)
        if problem is not None:
            self._broke(link, f"master has the {problem}")
            return
        link.greeted = True
        self._feed.feed(
            MasterGreeted(link.number, frame.epoch, frame.history, frame.start, frame.end)
        )

    def _greeted(self, link: Link, frame: Greeting) -> None:
        """A stock master, which proves nothing and says no start.

        Its last epoch may lack the reign that has just begun; SlaveCore knows when to believe that.
        """
        if link.greeted or self._party is None:
            raise PeerBrokeProtocol("a greeting nobody asked for")
        if self._party.secret:
            self._broke(link, "master offers no proof of the group's secret")
            return
        link.greeted = True
        history = history_of(frame.entries)
        epoch = max(frame.last_epoch, 0)
        self._feed.feed(MasterGreeted(link.number, epoch, history, 0, frame.end, stock=True))

    # --- one log or two ---

    def _compare_logs(self, effect: CompareLogs) -> None:
        task = asyncio.get_running_loop().create_task(
            self._compared(effect.connection), name="compare logs"
        )
        self._comparisons.add(task)
        task.add_done_callback(self._comparisons.discard)

    async def _compared(self, number: int) -> None:
        """One at a time, each to its end: it may be cutting our log, for longer than the master waits."""
        try:
            async with self._comparing:
                if number not in self._links:
                    return  # lost while the one before went on
                if self._compare is None:
                    finding = Finding(Verdict.UNKNOWN, "nobody here can ask the master")
                else:
                    finding = await self._compare()
        except Exception as error:
            self._feed.fail(error)
            return
        self._feed.feed(
            LogsCompared(
                number, self._store.end, finding.verdict, finding.why, finding.passport
            )
        )  # fmt: skip
        self._feed.hurry()

    def _show_pass(self, effect: ShowPass) -> None:
        link = self._links.get(effect.connection)
        if link is not None:
            link.say(encode_pass(effect.passport))

    # --- effects ---

    def _append(self, effect: Append) -> None:
        assert len(self._body) == effect.size
        try:
            self._store.append_raw(self._body, effect.offset)
        except (StoreIsFull, SegmentUnavailable) as error:
            raise EffectFailed(AppendFailed(self._store.end, str(error))) from error
        self.stats.appended_bytes += effect.size

    def _note_report(self, effect: ReportProgress) -> None:
        self._report = effect
        if not self._reading:  # else the read may earn more, and the last speaks for all
            self._send_report(self._clock.now_ms())

    def _send_report(self, now_ms: int) -> None:
        report, self._report = self._report, None
        assert report is not None
        link = self._links.get(report.connection)
        if link is None:
            return
        received = report.received
        if self._durable and link.dialect is Dialect.CLASSIC:
            if not link.reported and report.flushed < received:
                return
            link.reported = True
            received = report.flushed
        link.report(received, report.flushed, report.epoch)
        self.stats.last_write_ms = now_ms

    def _close_stream(self, effect: CloseStream) -> None:
        self._close(effect.connection, effect.reason)

    def _close(self, number: int, why: str) -> None:
        link = self._links.pop(number, None)
        if link is None:
            return
        log.warning("left master connection=%d end=%d why=%s", number, self._store.end, why)
        self.stats.last_problem = why
        link.close()
        self._feed.hurry()

    # --- connecting ---

    def _connect(self, effect: Connect) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = asyncio.get_running_loop().create_task(
            self._open(effect.address), name="connect to master"
        )

    async def _open(self, address: str) -> None:
        def make() -> Link:
            self._last_number += 1
            dialect = Dialect.CLASSIC if self._party is None else Dialect.AUTO_SWITCH
            offers = self._party is not None and self._party.extended
            return Link(self, self._last_number, dialect, offers=offers)

        try:
            host, port = parse_address(address)
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                await self._dial(host, port, make)
        except (OSError, TimeoutError, ValueError) as error:
            why = f"cannot connect to {address}: {error or 'no answer'}"
            if why != self.stats.last_problem:
                log.warning("no master why=%s", why)
            self.stats.last_problem = why
            self._feed.feed(StreamClosed(NO_CONNECTION, why))
