"""Whom a listening port lets in, and by which first byte."""

from __future__ import annotations

import pytest
from peerkit import FakeTransport

from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.server import Listen, RemotingServer, _Accepted
from tandemmq.cluster.remoting.tls import TlsMode


def accepted(server: RemotingServer, ip: str = "10.0.0.7") -> tuple[Connection, FakeTransport]:
    connection = _Accepted(server)
    transport = FakeTransport((ip, 1))
    connection.connection_made(transport)
    return connection, transport


async def test_connections_beyond_the_limits_are_refused_and_places_come_free() -> None:
    ended: list[int] = []
    server = RemotingServer(
        Listen(connections_max=3, connections_per_address_max=2),
        {},
        on_close=lambda connection: ended.append(connection.id),
    )
    first, _ = accepted(server)
    accepted(server)
    third, refused = accepted(server)
    assert refused.ended == "aborted" and third.closed
    third.connection_lost(None)
    assert ended == []  # it never was one of ours
    accepted(server, "10.0.0.8")
    _, refused = accepted(server, "10.0.0.9")
    assert refused.ended == "aborted"
    first.connection_lost(None)
    assert ended == [first.id]
    _, welcome = accepted(server)
    assert not welcome.ended
    assert server.stats.connections_refused == 2


def test_limits_are_only_ever_lowered() -> None:
    listen = Listen()
    assert listen.limited(61_440, 4_096) == listen
    small = listen.limited(38, 9)
    assert (small.connections_max, small.connections_per_address_max, small.backlog) == (38, 28, 9)


@pytest.mark.parametrize(
    ("mode", "first", "served"),
    [
        (TlsMode.DISABLED, b"\x16", False),
        (TlsMode.DISABLED, b"\x00", True),
        (
            TlsMode.PERMISSIVE,
            b"\x16",
            False,
        ),  # no certificate was loaded: the server was not started
        (TlsMode.PERMISSIVE, b"\x00", True),
        (TlsMode.ENFORCING, b"\x00", False),
    ],
)
async def test_the_first_byte_decides_by_the_mode(
    mode: TlsMode, first: bytes, served: bool
) -> None:
    connection, transport = accepted(RemotingServer(Listen(tls=mode), {}))
    connection.get_buffer(-1)[:1] = first
    connection.buffer_updated(1)
    assert (transport.ended == "") is served


def test_tls_modes_go_by_two_names_each() -> None:
    assert TlsMode.parse(" Off ") is TlsMode.parse("disabled") is TlsMode.DISABLED
    assert TlsMode.parse("required") is TlsMode.parse("ENFORCING") is TlsMode.ENFORCING
    with pytest.raises(ValueError, match="permissive"):
        TlsMode.parse("maybe")
