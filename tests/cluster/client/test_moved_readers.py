"""Readers whose broker does not take their position: what they have cached, and where they go on. Time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster
from timekit import run

from tandemmq.cluster.client import PullConsumer, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting.codes import ResponseCode


class Moves:
    """Answers a pull of T from one offset with another offset, once; `began` when it does.

    ready  not before this
    """

    def __init__(self, at: int, to: int, word: str | None, *, lowest: int = 0) -> None:
        self.began = asyncio.Event()
        self.ready: Callable[[], bool] = lambda: True
        self.at = at
        self._fields = {
            "nextBeginOffset": str(to), "minOffset": str(lowest), "maxOffset": "5",
            "suggestWhichBrokerId": "0",
        }  # fmt: skip
        self._word = word

    def __call__(self, command: Command) -> Command | None:
        fields = command.ext or {}
        asked = fields.get("topic") == "T" and fields.get("queueOffset") == str(self.at)
        if not asked or self.began.is_set() or not self.ready():
            return None
        self.began.set()
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, self._word, ext=self._fields)


def numbered(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the broker's side of it
            await asyncio.sleep(0.01)


async def consume(
    broker: FakeBroker, moves: Moves, done_at: int, *, orderly: bool, pull_count: int = 32
) -> list[bytes]:
    """What a listener is given whose first message takes longer than the move, until its group has committed so far."""
    given: list[bytes] = []
    if moves.at == 5:  # a pull that waits: until the listener is at work
        moves.ready = lambda: bool(given)
    broker.trouble = moves

    async def handle(message: ReceivedMessage) -> None:
        given.append(message.body)
        await moves.began.wait()
        await asyncio.sleep(0.1)  # the move arrives

    async with PushConsumer(
        "CG", handle, namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST,
        orderly=orderly, concurrency=1, pull_count=pull_count,
    ):  # fmt: skip
        await until(lambda: broker.offsets.get(("CG", "T", 0)) == done_at)
        await asyncio.sleep(10)
    return given


@pytest.mark.parametrize("orderly", [False, True])
def test_a_reset_to_where_a_reader_stands_drops_what_it_has(
    cluster: FakeCluster, orderly: bool
) -> None:
    """An operator skips what is waiting: this reader has pulled all of it, and its pull waits at the end."""
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, numbered(range(5)))
        given = await consume(broker, Moves(5, 5, "OFFSET_RESET"), 5, orderly=orderly)
        assert given == [b"0"]  # the listener had it

    run(main())


@pytest.mark.parametrize("orderly", [False, True])
def test_what_is_cached_of_deleted_messages_is_consumed(
    cluster: FakeCluster, orderly: bool
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, numbered(range(5)))
        moves = Moves(2, 4, "OFFSET_TOO_SMALL", lowest=4)
        given = await consume(broker, moves, 5, orderly=orderly, pull_count=2)
        assert given == [b"0", b"1", b"4"]

    run(main())


def test_a_poller_gets_what_is_cached_of_deleted_messages(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, numbered(range(5)))
        broker.trouble = moves = Moves(2, 4, "OFFSET_TOO_SMALL", lowest=4)
        got: list[bytes] = []
        async with PullConsumer(
            "CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST, pull_count=2
        ) as consumer:
            await moves.began.wait()
            await asyncio.sleep(0.1)
            while len(got) < 3:
                got += [each.body for each in await consumer.poll()]
        assert got == [b"0", b"1", b"4"]
        assert broker.offsets["CG", "T", 0] == 5

    run(main())


@pytest.mark.parametrize(
    ("word", "lowest"), [("OFFSET_OVERFLOW_BADLY", 0), ("OFFSET_OVERFLOW_BADLY", 6), (None, 0)]
)
def test_an_ordered_reader_that_is_moved_back_goes_on_in_order_with_what_it_has_not_consumed(
    cluster: FakeCluster, word: str | None, lowest: int
) -> None:
    """Its broker knows of more than it has consumed. The message that its listener has comes again."""
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, numbered(range(5)))
        given = await consume(broker, Moves(5, 3, word, lowest=lowest), 5, orderly=True)
        assert given == [b"0", *numbered(range(5))]

    run(main())
