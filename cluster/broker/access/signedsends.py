"""Signed sends on the short path: who signed each of them is asked first, by the same gate; then the path takes them.

The short path reads no signature. It is shown only the frames at the front of a chunk that passed, and reads of them
what the gate read: a header that says a field twice, or spells it oddly, it leaves to the long way (sendpath.py).
Cost per message beside the path's own: one header decoded, one HMAC, about 20 us.
"""

from __future__ import annotations

from typing import Final

from tandemmq.cluster.access.gate import Gate
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import RESPONSE_FLAG, Command
from tandemmq.cluster.remoting.connection import ChunkHandler, Connection
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import DEFAULT_LIMITS, bytes_needed

#: frames judged before the path sees them; fewer after it left some, or each would be judged again and again
BATCH_MAX: Final = 64

_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})


class SignedSends:
    """A ChunkHandler in front of another.

    vouching   whether what the path is shown right now has passed the gate
    """

    def __init__(self, gate: Gate, path: ChunkHandler) -> None:
        self._gate = gate
        self._path = path
        self._batch = BATCH_MAX
        self.vouching = False

    def process(self, view: memoryview, start: int, end: int, connection: Connection) -> int:
        """As sendpath.SendPath.process, of sends that may pass; where the first other frame starts."""
        while True:
            stop, count = self._passing(view, start, end, connection)
            if stop == start:
                return start
            self.vouching = True
            try:
                taken = self._path(view, start, stop, connection)
            finally:
                self.vouching = False
            if taken < stop:
                self._batch = 1
                return taken
            full = count == self._batch
            self._batch = min(2 * self._batch, BATCH_MAX)
            start = taken
            if not full:
                return start

    def _passing(
        self, view: memoryview, start: int, end: int, connection: Connection
    ) -> tuple[int, int]:
        """Where the first frame starts that is no send or does not pass, and how many stand before it."""
        host = connection.peer[0]
        count = 0
        while count < self._batch and end - start >= 8:
            try:
                size = bytes_needed(view, start, end - start, DEFAULT_LIMITS)
                if start + size > end:
                    break
                command = Command.decode(view[start : start + size])
            except PeerBrokeProtocol:
                break  # dispatch() says so
            if command.code not in _SENDS or command.flag & RESPONSE_FLAG:
                break
            if not self._gate.allows(command, host):
                break  # the long way refuses it, and counts
            start += size
            count += 1
        return start, count
