"""Request-reply between stock clients and ours, over our brokers, with replies through either of two brokers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_go_client import go_program  # noqa: F401 - a fixture

from tandemmq import Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.chaos.asking import routed
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client import Admin
from tandemmq.java import VERSIONS, Driver, text_of

COUNT = 8
LONG_MS = 20_000
# RocketMQ 5.3.3's synchronous request gives up when its send is answered, unless the reply was faster.
GIVES_UP_EARLY = "OK, but wait reply message timeout"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two masters, one name server: its address. Requests go to one broker, replies through any."""
    directory = tmp_path_factory.mktemp("request-reply")
    with NameServer(directory / "namesrv").start() as names:
        brokers = [
            Broker(directory / name, names.address, name=name).start()
            for name in ("broker-a", "broker-b")
        ]
        yield names.address
        for broker in brokers:
            broker.abandon()


@pytest.fixture(scope="module", params=VERSIONS)
def java_driver(
    request: pytest.FixtureRequest, java: None, pair: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    home = tmp_path_factory.mktemp(f"driver-{request.param}")
    with Driver(request.param, "json", pair, home) as driver:
        driver.call("producer.start", name="producer", group="JavaProducers")
        yield driver


async def topic_on_a(namesrv: str, word: str, *, on_b: bool = False) -> str:
    """A topic that only one of the brokers has, or both."""
    async with Admin(namesrv) as admin:
        masters = await admin.masters()
        wanted = {"broker-a", "broker-b"} if on_b else {"broker-a"}
        await admin.create_topic(word, 2, masters={name: masters[name] for name in wanted})
    await asyncio.to_thread(wait_until, lambda: routed(namesrv, word), 10, f"route of {word}")
    return word


def ours(namesrv: str, topic: str) -> PushConsumer:
    """Our replier: bodies in capitals."""

    async def answer(message: ReceivedMessage) -> None:
        await consumer.reply(message, message.body.upper(), properties={"own": "värde"})

    consumer = PushConsumer(
        f"G{topic}", answer, namesrv=namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    )
    return consumer


async def test_our_replier_answers_our_requests_through_either_broker(pair: str) -> None:
    topic = await topic_on_a(pair, "OursOurs")
    async with ours(pair, topic), Producer("PG", namesrv=pair) as producer:
        replies = await asyncio.gather(
            *(
                producer.request(Message(topic, b"r%d " % n + b"x" * 9_000), timeout_ms=LONG_MS)
                for n in range(40)
            )
        )
    assert [each.body for each in replies] == [b"R%d " % n + b"X" * 9_000 for n in range(40)]
    assert {each.properties["own"] for each in replies} == {"värde"}
    assert len({each.store_host for each in replies}) == 2  # both brokers passed some on


async def test_java_requests_are_answered_by_our_consumer(java_driver: Driver, pair: str) -> None:
    topic = await topic_on_a(pair, f"JavaOurs{java_driver.version.replace('.', '')}")
    requests = [{"body": f"r{n}"} for n in range(COUNT)]

    async def ask(how: str) -> list[dict[str, Any]]:
        given = {"name": "producer", "topic": topic, "messages": requests, "timeoutMs": LONG_MS}
        answers: list[dict[str, Any]] = await asyncio.to_thread(java_driver.call, how, **given)
        return answers

    async with ours(pair, topic):
        called_back = await ask("request.async")
        assert [text_of(each) for each in called_back] == [f"R{n}" for n in range(COUNT)]
        assert {each["properties"]["own"] for each in called_back} == {"värde"}
        for number, each in enumerate(await ask("request.sync")):
            if "error" in each and java_driver.version.startswith("5."):
                assert GIVES_UP_EARLY in each["error"]
            else:
                assert text_of(each) == f"R{number}", each


async def test_java_consumers_answer_our_requests(java_driver: Driver, pair: str) -> None:
    topic = await topic_on_a(pair, f"OursJava{java_driver.version.replace('.', '')}")
    started = {"name": topic, "topic": topic, "group": f"G{topic}", "replier": "producer"}
    await asyncio.to_thread(java_driver.call, "push.start", **started)
    async with Producer("PG", namesrv=pair) as producer:
        replies = await asyncio.gather(
            *(producer.request(Message(topic, b"r%d" % n), timeout_ms=30_000) for n in range(COUNT))
        )
    await asyncio.to_thread(java_driver.call, "push.stop", name=topic)
    assert [each.body for each in replies] == [b"R%d" % n for n in range(COUNT)]


async def test_java_consumers_answer_java_requests(java_driver: Driver, pair: str) -> None:
    topic = await topic_on_a(pair, f"JavaJava{java_driver.version.replace('.', '')}")
    started = {"name": topic, "topic": topic, "group": f"G{topic}", "replier": "producer"}
    await asyncio.to_thread(java_driver.call, "push.start", **started)
    given = {
        "name": "producer",
        "topic": topic,
        "messages": [{"body": f"r{n}"} for n in range(COUNT)],
    }
    answers = await asyncio.to_thread(java_driver.call, "request.async", **given, timeoutMs=30_000)
    await asyncio.to_thread(java_driver.call, "push.stop", name=topic)
    assert [text_of(each) for each in answers] == [f"R{n}" for n in range(COUNT)]


async def test_go_asks_our_consumer_and_answers_our_producer(
    go_program: Path,  # noqa: F811
    pair: str,
) -> None:
    def go(do: str, topic: str) -> list[str]:
        return [
            str(go_program), "-do", do, "-namesrv", pair, "-topic", topic, "-group", f"{do}{topic}",
            "-count", str(COUNT), "-wait", "30s",
        ]  # fmt: skip

    # The Go client knows only the brokers of its own topics.
    topic = await topic_on_a(pair, "GoOurs", on_b=True)
    async with ours(pair, topic):
        asked = await asyncio.to_thread(
            subprocess.run, go("request", topic), capture_output=True, text=True, timeout=90
        )
    assert asked.returncode == 0, asked.stderr[-3000:]
    lines = [json.loads(line) for line in asked.stdout.splitlines() if line.startswith("{")]
    expected = [f"{kind.upper()} {n}" for kind in ("async", "sync") for n in range(COUNT)]
    assert sorted(line["body"] for line in lines) == expected
    assert {line["own"] for line in lines} == {"värde"}

    topic = await topic_on_a(pair, "OursGo")
    replier = asyncio.create_task(
        asyncio.to_thread(
            subprocess.run, go("reply", topic), capture_output=True, text=True, timeout=90
        )
    )
    async with Producer("PG", namesrv=pair) as producer:
        replies = await asyncio.gather(
            *(producer.request(Message(topic, b"r%d" % n), timeout_ms=30_000) for n in range(COUNT))
        )
    answered = await replier
    assert answered.returncode == 0, answered.stderr[-3000:]
    assert [each.body for each in replies] == [b"R%d" % n for n in range(COUNT)]
