"""Programs of the how-tos, run as they are printed, against a broker and a name server."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from inbox import eventually

from tandemmq import Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.chaos.servers import REPOSITORY, Broker, NameServer, python_env

pytestmark = pytest.mark.system

HOWTOS = REPOSITORY / "docs" / "howto"
USUAL = "127.0.0.1:9876"
TO_ALL = "again = Message.again(letter, same_id=True)"
TO_THE_GROUP = 'again = Message.again(letter, "%RETRY%billing", same_id=True)'


def program(document: str, name: str) -> str:
    """The block of a how-to whose first line is `# name`."""
    text = (HOWTOS / document).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", text, re.M | re.S)
    return str(block)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    server = NameServer(tmp_path).start()
    broker = Broker(
        tmp_path / "broker-a",
        server.address,
        name="broker-a",
        settings={"mappedFileSizeCommitLog": 16 << 20},
    ).start()
    yield server.address
    assert broker.terminate(10) == 0
    assert server.terminate(10) == 0


async def python(*arguments: str) -> str:
    """What a Python process with these arguments prints."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **python_env()},
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def consumer(
    namesrv: str, group: str, handler: Callable[[ReceivedMessage], Awaitable[None]]
) -> PushConsumer:
    """One that gives a message up at its first failure."""
    return PushConsumer(
        group,
        handler,
        namesrv=namesrv,
        subscribe={"Orders": "*"},
        start=StartFrom.FIRST,
        reconsume_times_max=0,
    )


@pytest.mark.parametrize("line", [TO_ALL, TO_THE_GROUP])
async def test_dead_letters_are_sent_again_once_under_their_ids(namesrv: str, line: str) -> None:
    broken = True
    failed: set[str] = set()
    billed: list[tuple[str, bytes, str]] = []
    shipped: list[tuple[str, bytes, str]] = []

    async def bill(message: ReceivedMessage) -> None:
        if broken:
            failed.add(message.message_id)
            raise RuntimeError("no bills today")
        billed.append((message.topic, message.body, message.message_id))

    async def ship(message: ReceivedMessage) -> None:
        shipped.append((message.topic, message.body, message.message_id))

    wanted = []
    async with Producer("shop", namesrv=namesrv) as producer:
        for body in (b"0", b"1", b"2", b"3", b"4"):
            message = Message("Orders", body, properties={"customer": "c17"})
            result = await producer.send(message, ordering_key="c17")
            wanted.append(("Orders", body, result.message_id))

    async with consumer(namesrv, "shipping", ship):
        async with consumer(namesrv, "billing", bill):
            await eventually(
                lambda: len(shipped) == len(failed) == 5, "shipped five, failed to bill five"
            )
        broken = False
        assert line in (HOWTOS / "dead-letters.md").read_text(encoding="utf-8")
        text = program("dead-letters.md", "redrive.py").replace(USUAL, namesrv)
        assert await python("-c", text.replace(TO_ALL, line)) == "5 sent again\n"
        shipments = wanted * 2 if line == TO_ALL else wanted
        async with consumer(namesrv, "billing", bill):
            await eventually(
                lambda: len(billed) == 5 and len(shipped) == len(shipments),
                "billed, and shipped as well",
            )
        assert await python("-c", text) == "0 sent again\n"
    assert sorted(billed) == wanted
    assert sorted(shipped) == sorted(shipments)


async def test_what_the_database_has_is_sent(namesrv: str, tmp_path: Path) -> None:
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    text = program("transactions.md", "orders.py").replace(USUAL, namesrv)
    text = text.replace("orders.db", str(tmp_path / "orders.db"))
    assert await python("-c", text) == "committed\n"
    async with consumer(namesrv, "billing", handle):
        await eventually(lambda: got == [b"order 17"], "the committed message")


async def test_messages_of_one_key_lie_behind_each_other_in_one_queue(namesrv: str) -> None:
    text = program("ordering.md", "in_order.py").replace(USUAL, namesrv)
    places = (await python("-c", text)).splitlines()
    queues, offsets = zip(*(line.split() for line in places), strict=True)
    assert offsets == ("0", "1", "2")
    assert len(set(queues)) == 1
