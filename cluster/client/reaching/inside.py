"""Servers inside this process: addresses at which a client finds one without a socket.

Empty but in tests that use tandemmq.testing.memory, which puts a cluster's addresses here while it is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

from tandemmq.cluster.client.reaching.connections import Wire
from tandemmq.cluster.remoting import Handler


@runtime_checkable
class InsideWire(Wire, Protocol):
    """A wire to such a server."""

    def close(self) -> None:
        """The client hangs up."""


#: opens a wire for a client on the running loop; given what the client answers to requests of the server, by code
Open = Callable[[Mapping[int, Handler]], InsideWire]

SERVERS: Final[dict[str, Open]] = {}
