"""Ports for servers that a campaign starts."""

from __future__ import annotations

import random
import socket
from typing import Final

from chaos.processes import ProcessBroken

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(28_000, 32_000, 10)  # below Linux's ephemeral range, above those of tests
OFFSETS: Final = (-2, 0, 1)  # a broker opens these as well
TRIES: Final = 400


class Ports:
    """Free ports on loopback, each with the two beside it that a broker opens.

    One object gives none out twice; two of them may give out the same.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        """Raises ProcessBroken when none is found."""
        for _ in range(TRIES):
            port = random.SystemRandom().choice(PORTS)  # campaigns seed the other one
            if port not in self._taken and all(_can_bind(port + offset) for offset in OFFSETS):
                self._taken.add(port)
                return port
        raise ProcessBroken("no free port on loopback for a server")


def _can_bind(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
