"""Ports for servers that a campaign or a test starts."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from tandemmq.chaos.processes import ProcessBroken

LOOPBACK: Final = "127.0.0.1"
STEP: Final = 10
BROKER_OFFSETS: Final = (-2, 0, 1)  # fast port, listen port, port of the replication
TRIES: Final = 400


class Ports:
    """Free ports on loopback out of a range, each STEP from the next.

    Whoever takes one opens it only later, so a port that was taken is not given out again before
    many others were; most stay free, for who wants several beside each other. Two objects know
    nothing of each other: there should be one per range.
    """

    def __init__(self, among: range) -> None:
        self._range = among
        self._among = range(among.start + STEP, among.stop, STEP)
        self._taken: deque[int] = deque(maxlen=max(len(self._among) // 4, len(BROKER_OFFSETS)))

    def take(self, offsets: Iterable[int] = BROKER_OFFSETS) -> int:
        """A port of which all `port + offset` can be bound now. Raises ProcessBroken when none is
        found."""
        offsets = tuple(offsets)
        for _ in range(TRIES):
            port = random.SystemRandom().choice(self._among)  # campaigns seed the other one
            wanted = [port + offset for offset in offsets]
            free = all(each in self._range and each not in self._taken for each in wanted)
            if free and _can_bind(wanted):
                self._taken.extend(wanted)
                return port
        raise ProcessBroken("no free port on loopback for a server")


# Below the ephemeral range of Linux (32768): no outgoing connection takes a port first. What runs at the same
# time may be given ranges of its own: two processes that look at once can find the same port free.
PORTS: Final = Ports(range(*map(int, os.environ.get("TANDEM_PORTS", "20000-32000").split("-"))))


def _can_bind(ports: Sequence[int]) -> bool:
    for port in ports:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((LOOPBACK, port))
            except OSError:
                return False
    return True
