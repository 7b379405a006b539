"""The client's side of a connection, and the address that it was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from peerkit import FakeTransport, echo, settled

from tandemmq.cluster.remoting.channel import Channel, split_address
from tandemmq.cluster.remoting.codes import LanguageCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Endpoint, Handler


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "h:-1"]
)
def test_an_address_must_be_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)


def test_an_ipv6_address_may_stand_in_brackets() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("ns.example:9876") == ("ns.example", 9876)


@asynccontextmanager
async def channel_with(
    table: Mapping[int, Handler],
) -> AsyncIterator[tuple[Channel, FakeTransport]]:
    channel = Channel(Endpoint(table), "ns:9876", None)
    transport = FakeTransport()
    channel.connection_made(transport)
    try:
        yield channel, transport
    finally:
        channel.connection_lost(None)


async def test_a_channel_answers_requests_of_the_server_and_keeps_its_own_form() -> None:
    async with channel_with({40: echo}) as (channel, transport):
        await channel.ready()
        assert channel.address == "ns:9876"
        frame = Command(40, {"consumerGroup": "g"}, opaque=3, binary=True).encode()
        channel.get_buffer(-1)[: len(frame)] = frame
        channel.buffer_updated(len(frame))
        channel.oneway(Command(15))
        await settled()
        answer, oneway = transport.commands()
        assert (answer.opaque, answer.binary, answer.ext) == (3, True, {"consumerGroup": "g"})
        assert (oneway.binary, oneway.language) == (False, LanguageCode.PYTHON)
