"""One channel per address: shared, dialed once, dropped when silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from timekit import run

from tandemmq.cluster.client.errors import BrokerUnreachable, CallTimedOut
from tandemmq.cluster.client.reaching.connections import Connections, Wire
from tandemmq.cluster.remoting import Command, ConnectFailed, ConnectionLost, RequestTimedOut


class StubWire:
    """Answers, or does what `fate` says."""

    def __init__(self, fate: Exception | None = None) -> None:
        self.closed = False
        self.fate = fate
        self.oneways: list[int] = []

    async def request(self, command: Command, timeout_ms: int) -> Command:
        if isinstance(self.fate, RequestTimedOut):
            await asyncio.sleep(timeout_ms / 1000)
        if self.fate is not None:
            raise self.fate
        return command.reply()

    def oneway(self, command: Command) -> None:
        self.oneways.append(command.code)


class Dialer:
    """Hands out wires in the order given; a wire may be an error instead."""

    def __init__(self, *wires: StubWire | Exception, takes_s: float = 0.0) -> None:
        self.wires = list(wires)
        self.takes_s = takes_s
        self.dialed: list[str] = []
        self.hung_up: list[Wire] = []

    async def dial(self, address: str) -> Wire:
        self.dialed.append(address)
        await asyncio.sleep(self.takes_s)
        wire = self.wires.pop(0)
        if isinstance(wire, Exception):
            raise wire
        return wire

    async def hang_up(self, wires: Sequence[Wire], why: str) -> None:
        self.hung_up += wires


def over(dialer: Dialer) -> Connections:
    return Connections(dialer.dial, dialer.hang_up)


def test_requests_at_once_share_one_dial() -> None:
    dialer = Dialer(StubWire(), takes_s=1.0)

    async def main() -> None:
        connections = over(dialer)
        await asyncio.gather(*(connections.request("a:1", Command(1), 3_000) for _ in range(5)))
        assert connections.connected() == ["a:1"]

    run(main())
    assert dialer.dialed == ["a:1"]


def test_closed_channel_is_replaced() -> None:
    first, second = StubWire(), StubWire()
    dialer = Dialer(first, second)

    async def main() -> None:
        connections = over(dialer)
        await connections.request("a:1", Command(1), 3_000)
        first.closed = True
        assert connections.connected() == []
        await connections.request("a:1", Command(1), 3_000)

    run(main())
    assert dialer.dialed == ["a:1", "a:1"]


def test_failed_dial_is_told_to_everybody_who_waits_and_tried_again_later() -> None:
    dialer = Dialer(ConnectFailed("a:1", "refused"), StubWire(), takes_s=1.0)

    async def main() -> None:
        connections = over(dialer)
        calls = [connections.request("a:1", Command(1), 3_000) for _ in range(2)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, BrokerUnreachable) for result in results)
        await connections.request("a:1", Command(1), 3_000)

    run(main())


def test_caller_that_gives_up_does_not_fail_the_others() -> None:
    dialer = Dialer(StubWire(), takes_s=2.0)

    async def main() -> None:
        connections = over(dialer)
        hasty = asyncio.create_task(connections.request("a:1", Command(1), 500))
        patient = asyncio.create_task(connections.request("a:1", Command(1), 3_000))
        with pytest.raises(CallTimedOut, match="no connection to a:1 within 500 ms"):
            await hasty
        assert (await patient).code == 0

    run(main())


def test_peer_silent_for_a_whole_time_out_is_dropped() -> None:
    silent = StubWire(RequestTimedOut("a:1", 1, 100))
    dialer = Dialer(silent, StubWire())

    async def main() -> None:
        connections = over(dialer)
        with pytest.raises(CallTimedOut):
            await connections.request("a:1", Command(1), 100)
        assert dialer.hung_up == [silent]
        await connections.request("a:1", Command(1), 100)

    run(main())


def test_peer_that_answered_others_meanwhile_is_kept() -> None:
    wire = StubWire()
    dialer = Dialer(wire)

    async def main() -> None:
        connections = over(dialer)
        await connections.request("a:1", Command(1), 100)
        wire.fate = RequestTimedOut("a:1", 1, 1_000)
        slow = asyncio.create_task(connections.request("a:1", Command(1), 1_000))
        await asyncio.sleep(0.5)
        wire.fate = None
        await connections.request("a:1", Command(1), 100)
        wire.fate = RequestTimedOut("a:1", 1, 1_000)
        with pytest.raises(CallTimedOut):
            await slow
        assert dialer.hung_up == []

    run(main())


def test_connection_lost_is_an_unreachable_broker() -> None:
    async def main() -> None:
        connections = over(Dialer(StubWire(ConnectionLost("a:1", "reset"))))
        with pytest.raises(BrokerUnreachable, match="lost while waiting for an answer"):
            await connections.request("a:1", Command(1), 100)

    run(main())


def test_oneway_uses_the_same_channel() -> None:
    wire = StubWire()
    dialer = Dialer(wire)

    async def main() -> None:
        connections = over(dialer)
        await connections.oneway("a:1", Command(15), 100)
        await connections.request("a:1", Command(1), 100)

    run(main())
    assert wire.oneways == [15]
    assert dialer.dialed == ["a:1"]


def test_closing_hangs_up_and_stops_dialing() -> None:
    wire = StubWire()
    dialer = Dialer(wire, StubWire(), takes_s=1.0)

    async def main() -> None:
        connections = over(dialer)
        await connections.request("a:1", Command(1), 3_000)
        late = asyncio.create_task(connections.request("b:1", Command(1), 3_000))
        await asyncio.sleep(0.1)
        await connections.close()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert connections.connected() == []

    run(main())
    assert dialer.hung_up == [wire]


@pytest.mark.parametrize("ended_by_us", [False, True])
def test_a_connection_in_the_place_of_another_is_known_whoever_ended_that(
    ended_by_us: bool,
) -> None:
    """A broker that stops leaves the routes first, and then it is us who hang up."""
    first = StubWire()
    dialer = Dialer(first, StubWire(), StubWire())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connections = over(dialer)
        await connections.request("a:1", Command(1), 1_000)
        await connections.request("b:1", Command(1), 1_000)
        assert not connections.again_since("a:1", 0)
        if ended_by_us:
            await connections.drop("a:1", "no route mentions it any more")
        first.closed = True
        await asyncio.sleep(10)
        await connections.request("a:1", Command(1), 1_000)
        assert connections.again_since("a:1", loop.time())
        assert not connections.again_since("a:1", loop.time() + 0.1)
        assert not connections.again_since("b:1", 0)

    run(main())
