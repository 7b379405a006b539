"""Who of a classic master's slaves is let in: those whose log was held against ours (INV-36). Shell of a core.

ours    asks over remoting before its first report, and shows on the stream the pass that it was given: a negative
        number in front of that report, for this process alone
stock   cannot; the master asks it, over remoting as well, for the record at its end
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.errors import PeerBrokeProtocol
from tandemmq.replication.feed import Feed
from tandemmq.replication.master import NEVER
from tandemmq.replication.masterevents import CompareSlave, SlaveCompared
from tandemmq.replication.stream import Stream
from tandemmq.storage import Clock

PASS_MS: Final = 30_000  # from the comparison to the first report, which may wait for a flush
PASSES_MAX: Final = 64
LEFT_MAX: Final = 64  # hosts
_LONG: Final = struct.Struct(">q")

#: a slave's host and where its log ends -> what came of comparing it. Raises nothing
Examine = Callable[[str, int], Awaitable[Finding]]


def encode_pass(number: int) -> bytes:
    """What a slave sends in front of its first report."""
    assert number > 0
    return _LONG.pack(-number)


def read_pass(data: bytes) -> int | None:
    """The pass at the start of what a slave said first; None when it begins with a report."""
    if len(data) < _LONG.size or not data[0] & 0x80:
        return None
    return -int(_LONG.unpack_from(data)[0])


class ClassicGate:
    """Passes that were given out, comparisons under way, and how far slaves had come that left.

    peer     of a connection: "host:port"; None when it is gone
    examine  how a slave without a pass is compared; None: nobody can be asked
    """

    def __init__(
        self,
        feed: Feed,
        clock: Clock,
        peer: Callable[[int], str | None],
        examine: Examine | None,
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._peer = peer
        self._examine = examine
        self._passes: dict[int, tuple[int, int]] = {}  # number -> (log offset, good until)
        self._left: dict[str, tuple[int, int]] = {}  # host -> (reported, sent)
        self._tasks: set[asyncio.Task[None]] = set()
        feed.register(CompareSlave, self._compare)

    # --- our slaves ---

    def give(self, end: int) -> int:
        """A pass for a slave whose log ends at `end` and was compared."""
        now_ms = self._clock.monotonic_ms()
        self._passes = {
            number: (at, until_ms)
            for number, (at, until_ms) in self._passes.items()
            if until_ms > now_ms
        }
        while len(self._passes) >= PASSES_MAX:
            del self._passes[next(iter(self._passes))]
        number = 1 + secrets.randbits(62)
        self._passes[number] = (end, now_ms + PASS_MS)
        return number

    def take(self, number: int) -> int | None:
        """Up to where the log of who shows a pass was compared; None when it is none of ours. It is used up."""
        end, until_ms = self._passes.pop(number, (None, 0))
        return end if until_ms > self._clock.monotonic_ms() else None

    def take_pass(self, stream: Stream, data: bytes) -> bytes:
        """What follows the pass at the start of what a slave says first, if it shows one. Raises PeerBrokeProtocol."""
        number = read_pass(data)
        if number is None or stream.compared != NEVER:
            return data
        compared = self.take(number)
        if compared is None:
            raise PeerBrokeProtocol("shows a pass that this process did not give, or gave long ago")
        stream.compared = compared
        return data[_LONG.size :]

    # --- stock slaves ---

    def note_left(self, peer: str, acked: int, sent: int) -> None:
        """A slave that was counted is gone: what it holds beyond what it reported came from us."""
        host = peer.rpartition(":")[0]
        self._left.pop(host, None)
        if len(self._left) >= LEFT_MAX:
            del self._left[next(iter(self._left))]
        self._left[host] = (acked, sent)

    def sent_to(self, host: str, end: int) -> bool:
        """Whether this process sent a slave there, one that was counted, the bytes right below `end`."""
        acked, sent = self._left.get(host, (0, -1))
        return acked <= end <= sent

    def _compare(self, effect: CompareSlave) -> None:
        peer = self._peer(effect.connection)
        if peer is None:
            return
        if self._examine is None:
            self._feed_later(effect, Finding(Verdict.UNKNOWN, "nobody here can ask it"))
            return
        host = peer.rpartition(":")[0]
        task = asyncio.get_running_loop().create_task(
            self._wait(effect, self._examine(host, effect.end)), name="compare a slave's log"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(self, effect: CompareSlave, finding: Awaitable[Finding]) -> None:
        try:
            self._feed_later(effect, await finding)
        except Exception as error:
            self._feed.fail(error)

    def _feed_later(self, effect: CompareSlave, finding: Finding) -> None:
        self._feed.feed(SlaveCompared(effect.connection, effect.end, finding.verdict, finding.why))

    async def close(self) -> None:
        """Let go of comparisons under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
