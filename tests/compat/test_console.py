"""`tandem console` in front of Apache RocketMQ: what its brokers tell is shown, what they do not tell is a dash."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tandemmq import Message, Producer, PullConsumer, StartFrom
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import Process, wait_until
from tandemmq.chaos.servers import python_env
from tandemmq.java import VERSIONS

pytestmark = pytest.mark.timeout(300)

SENT = 12


@pytest.fixture(scope="module", params=VERSIONS)
def stock(
    request: pytest.FixtureRequest, java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaBroker]:
    """A stock name server and broker with some messages."""
    directory = tmp_path_factory.mktemp("console")
    with JavaNameServer(request.param, directory) as names:
        names.start()
        with JavaBroker(request.param, directory, names.address) as broker:
            broker.start()
            asyncio.run(fill(broker.name_servers))
            yield broker


async def fill(namesrv: str) -> None:
    async with Producer("shop", namesrv=namesrv) as producer:
        for number in range(SENT):
            body = f'{{"order": {number}}}'.encode()
            await producer.send(Message("Orders", body, keys=[f"order-{number}"], tags="created"))
        await producer.send(Message("Orders", b"in half an hour", delay_level=16))
    async with PullConsumer(
        "billing", namesrv=namesrv, start=StartFrom.FIRST, auto_commit=False
    ) as consumer:
        await consumer.assign(await consumer.queues("Orders"))
        got = 0
        while got < SENT:
            batch = await consumer.poll(timeout_ms=5_000)
            got += len(batch)
            for each in batch:
                await consumer.commit({each.queue: each.queue_offset + 1})


@pytest.fixture(scope="module")
def address(stock: JavaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a console in front of it."""
    directory: Path = tmp_path_factory.mktemp("page")
    port = PORTS.take((0,))
    command = [
        sys.executable,
        "-m",
        "tandemmq",
        "console",
        "-n",
        stock.name_servers,
        "--port",
        str(port),
    ]
    process = Process("console", command, directory / "log", python_env())
    process.launch()
    try:
        wait_until(lambda: "console at" in process.said(), 60, process.tail())
        yield f"http://127.0.0.1:{port}/console"
    finally:
        process.abandon()


def page(address: str, path: str) -> str:
    """What a page shows, without its elements."""
    with urlopen(f"{address}/{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return " ".join(re.sub(r"<[^>]*>", " ", text.partition("<main")[2]).split())


def until(address: str, path: str, *told: str) -> str:
    """The page as soon as it tells all of this: it fills in while it is looked at."""
    wait_until(
        lambda: all(each in page(address, path) for each in told),
        90,
        f"{path} tells {told}",
        every_s=0.5,
    )
    return page(address, path)


def test_its_brokers_topics_and_groups_are_shown(address: str) -> None:
    shown = until(address, "", "1 of 1", "master")
    assert (
        "none: a master that dies is not replaced" in shown
        and "No name server answers" not in shown
    )
    assert re.search(r"master – – [\d.]+ KiB", shown), shown  # nobody there counts epochs or sets
    until(address, "topics", f"Orders {SENT} ")
    assert "billing" in until(address, "groups", "billing")
    until(address, "groups/billing", "Orders", "Nobody is online")


def test_its_messages_are_found_and_delayed_ones_shown(address: str) -> None:
    assert "1 message " in page(address, "messages?topic=Orders&by=key&text=order-7")
    newest = page(address, "messages?topic=Orders&by=newest")
    assert f"{SENT} messages " in newest and "order-11" in newest
    assert "order-3" in page(address, "messages?topic=Orders&by=time&from=1h")
    until(address, "timed", "level 16", "in half an hour")


def test_its_groups_cannot_be_handed_over(address: str) -> None:
    name = re.search(r"(\S+) 0 master", until(address, "", "master"))
    assert name is not None
    assert "there is no controller" in page(address, f"brokers/{name[1]}/handover")
