"""cluster/broker/registration.py: what name servers are told, and when."""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
import random
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokerkit import TwoClocks

from tandemmq.cluster.broker.registration import (
    RETRY_MS_MAX,
    NameServerLink,
    Registration,
    registration,
    single_registrations,
)
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.standing import RoleChanges
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.errors import ConnectFailed, RequestTimedOut
from tandemmq.cluster.remoting.server import Listen, RemotingServer
from tandemmq.storage import fastjson

WIRE = Path(__file__).parents[2] / "golden" / "wire"


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "storePathRootDir": str(tmp_path),
            "brokerName": "wire-a",
            "brokerClusterName": "WireCluster",
            "brokerIP1": "10.9.9.1",
            "listenPort": "29911",
        },
        environment={},
    )


@pytest.fixture
def topics(config: BrokerConfig, tmp_path: Path, clock: TwoClocks) -> TopicTable:
    table = TopicTable(config, tmp_path / "topics.json", clock)
    table.load()
    return table


def recorded(code: int) -> tuple[dict[str, str], Any]:
    with lzma.open(WIRE / "b53-c53-json.jsonl.xz", "rt") as lines:
        frames = (line for line in map(json.loads, lines) if line.get("k") == "frame")
        frame = next(line for line in frames if line["code"] == code and "req" not in line)
    data = base64.b64decode(frame["b"])
    body = data[len(data) - frame["bodyLen"] :] if frame["bodyLen"] else b"null"
    return frame["ext"], fastjson.loads(body)


async def test_registration_of_one_topic_is_as_recorded(
    config: BrokerConfig, topics: TopicTable
) -> None:
    ext, body = recorded(103)
    await topics.put(TopicConfig("WireT", 2, 2))
    command = registration(config, topics, ["WireT", "NoSuchTopic"], 0)
    assert command.ext is not None and command.body is not None
    ours = fastjson.loads(command.body)
    assert ours["topicConfigSerializeWrapper"].pop("dataVersion") == topics.version.to_json()
    body["topicConfigSerializeWrapper"].pop("dataVersion")
    for both in (ours, body):
        both["topicConfigSerializeWrapper"].pop("mappingDataVersion")
    assert ours == body
    crc = str(zlib.crc32(command.body) & 0x7FFFFFFF)
    assert command.ext == {**ext, "bodyCrc32": crc}


def test_full_registration_has_every_topic_and_masks_permissions(
    config: BrokerConfig, topics: TopicTable
) -> None:
    drained = BrokerConfig.from_properties(
        {**config.to_properties(), "brokerPermission": "4"}, environment={}
    )
    body = fastjson.loads(registration(drained, topics, None, 0).body or b"")
    table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert table.keys() == set(topics)
    assert table["BenchmarkTest"]["perm"] == 4
    kept = topics.get("BenchmarkTest")
    assert kept is not None and kept.perm == 6


class NameServer:
    """A name server that answers what it is told, and lets a test wait for registrations."""

    def __init__(self) -> None:
        self.answer: Callable[[], Command] = lambda: Command(0)
        self.heard: asyncio.Queue[set[str]] = asyncio.Queue()
        self.codes: list[int] = []

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.codes.append(command.code)
        answer = self.answer()
        if command.code == 217:
            await self.heard.put({str((command.ext or {})["topic"])})
        if command.code == 103:
            body = fastjson.loads(command.body or b"")
            await self.heard.put(set(body["topicConfigSerializeWrapper"]["topicConfigTable"]))
        return answer

    async def next(self) -> set[str]:
        async with asyncio.timeout(5):
            return await self.heard.get()


class OfBroker(ClassicMaster):
    """A standing that remembers what name servers told it."""

    def __init__(self, config: BrokerConfig) -> None:
        self.changes = RoleChanges()
        self.broker_id = config.broker_id
        self.heard_of: list[tuple[str | None, str | None]] = []

    def heard(self, master_address: str | None, ha_address: str | None) -> None:
        self.heard_of.append((master_address, ha_address))


class Linked:
    """A running link to a name server."""

    def __init__(self, config: BrokerConfig, topics: TopicTable) -> None:
        self.server = NameServer()
        self.standing = OfBroker(config)
        self.ordered: list[str] = []
        self.link = NameServerLink(
            "ns:9876",
            config,
            topics,
            self.standing,
            self.server,
            random.Random(1),
            self.ordered.extend,
            lambda: self.standing.heard(*self.link.master),
        )
        topics.on_change = lambda changed: self.link.topics_changed(
            topic.topic_name for topic in changed
        )

    async def __aenter__(self) -> Linked:
        self._task = asyncio.create_task(self.link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_start_registers_everything_and_a_new_topic_only_itself(
    config: BrokerConfig, topics: TopicTable
) -> None:
    async with Linked(config, topics) as linked:
        assert await linked.server.next() == set(topics)
        topics.create_for_send("Fresh", "TBW102", 4)
        assert await linked.server.next() == {"Fresh"}
        assert linked.link.registered


async def test_a_new_topic_is_registered_by_a_request_of_its_own_where_that_is_set(
    config: BrokerConfig, topics: TopicTable
) -> None:
    single = msgspec.structs.replace(config, single_topics_registered=True)
    async with Linked(single, topics) as linked:
        assert await linked.server.next() == set(topics)
        topics.create_for_send("Fresh", "TBW102", 4)
        assert await linked.server.next() == {"Fresh"}
        assert linked.server.codes == [103, 217]
    (command,) = single_registrations(single, topics, ["Fresh", "gone"])
    assert fastjson.loads(command.body or b"") == {
        "queueDatas": [
            {
                "brokerName": config.name, "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4,
            }
        ]
    }  # fmt: skip


async def test_who_waits_for_an_announcement_goes_on_when_the_name_server_knows(
    config: BrokerConfig, topics: TopicTable
) -> None:
    async with Linked(config, topics) as linked:
        await linked.server.next()
        async with asyncio.timeout(5):
            await linked.link.tried.wait()
            topics.create_for_send("Fresh", "TBW102", 4)
            waiting = asyncio.create_task(linked.link.told())
            assert await linked.server.next() == {"Fresh"}
            await waiting
            await linked.link.told()  # nothing new: nothing is sent
        assert linked.server.heard.empty()


async def test_nobody_waits_for_a_name_server_that_is_away(
    config: BrokerConfig, topics: TopicTable
) -> None:
    linked = Linked(config, topics)
    topics.create_for_send("Fresh", "TBW102", 4)
    await linked.link.told()


async def test_lost_connection_registers_everything_again_at_once(
    config: BrokerConfig, topics: TopicTable
) -> None:
    async with Linked(config, topics) as linked:
        await linked.server.next()
        async with asyncio.timeout(5):
            await linked.link.tried.wait()
        linked.link.lost()
        assert await linked.server.next() == set(topics)


async def test_refused_part_is_followed_by_everything(
    config: BrokerConfig, topics: TopicTable
) -> None:
    # A name server that just restarted refuses one topic of a broker it does not know.
    async with Linked(config, topics) as linked:
        await linked.server.next()
        answers = iter([Command(1, remark="register broker failed")])
        linked.server.answer = lambda: next(answers, Command(0))
        topics.create_for_send("Fresh", "TBW102", 4)
        assert await linked.server.next() == {"Fresh"}
        assert await linked.server.next() == set(topics)


async def test_dead_name_server_is_tried_again(config: BrokerConfig, topics: TopicTable) -> None:
    failures = [ConnectFailed("ns:9876", "refused")]

    def answer() -> Command:
        if failures:
            raise failures.pop()
        return Command(0)

    linked = Linked(config, topics)
    linked.server.answer = answer
    async with linked:
        async with asyncio.timeout(5):
            await linked.link.tried.wait()
        assert not linked.link.registered
        assert await linked.server.next() == set(topics)


async def test_a_new_master_is_told_at_once_to_a_name_server_that_was_away(
    config: BrokerConfig, topics: TopicTable
) -> None:
    tries: asyncio.Queue[None] = asyncio.Queue()

    def away() -> Command:
        tries.put_nowait(None)
        raise ConnectFailed("ns:9876", "refused")

    linked = Linked(config, topics)
    linked.link._rng = Longest()
    linked.link._failures = 20  # it was away for long
    linked.server.answer = away
    async with linked, asyncio.timeout(RETRY_MS_MAX / 1000):
        await tries.get()
        linked.link.topics_changed(["T"])
        await asyncio.sleep(0.1)
        assert tries.empty(), "a topic waits for the next try"
        linked.link.role_changed()
        await tries.get()
        linked.server.answer = lambda: Command(0)
        linked.link.role_changed()
        assert await linked.server.heard.get() == set(topics)


class Longest(random.Random):
    """Always the longest pause."""

    def randint(self, a: int, b: int) -> int:
        assert b <= RETRY_MS_MAX
        return b


async def test_ordered_topics_of_the_answer_are_handed_on(
    config: BrokerConfig, topics: TopicTable
) -> None:
    linked = Linked(config, topics)
    linked.server.answer = lambda: Command(0, body=b'{"table":{"TopicX":"broker-a:4"}}')
    async with linked:
        await linked.server.next()
        async with asyncio.timeout(5):
            await linked.link.tried.wait()
    assert linked.ordered == ["TopicX"]


async def test_goodbye_is_as_recorded_and_survives_a_dead_name_server(
    config: BrokerConfig, topics: TopicTable
) -> None:
    linked = Linked(config, topics)
    ext, _ = recorded(104)
    seen: list[Command] = []

    class Listening(NameServer):
        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            seen.append(command)
            raise ConnectFailed(address, "gone")

    linked.link._requests = Listening()
    await linked.link.unregister()
    assert [(command.code, command.ext) for command in seen] == [(104, ext)]


async def test_goodbye_goes_to_those_who_know_us_and_only_when_wanted(
    config: BrokerConfig, topics: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = msgspec.structs.replace(config, namesrv="n1:1;n2:1")
    told: list[str] = []

    async def unregister(link: NameServerLink) -> None:
        told.append(link.address)

    monkeypatch.setattr(NameServerLink, "unregister", unregister)
    found = Registration(named, topics, OfBroker(named), random.Random(1))
    found.links[1].registered = True
    assert found.reached() == ["n2:1"]
    await found.close(goodbye=False)
    assert told == []
    await found.close()
    assert told == ["n2:1"]


async def test_slave_hears_where_its_master_is_and_that_there_is_none(
    config: BrokerConfig, topics: TopicTable
) -> None:
    slave = BrokerConfig.from_properties(
        {**config.to_properties(), "brokerRole": "SLAVE", "brokerId": "1"}, environment={}
    )
    linked = Linked(slave, topics)
    linked.server.answer = lambda: Command(
        0, {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    )
    async with linked:
        await linked.server.next()
        linked.server.answer = lambda: Command(0)
        linked.link.all_changed()
        await linked.server.next()
        linked.link.all_changed()
        await linked.server.next()
    linked.standing.heard_of = linked.standing.heard_of[:2]
    assert linked.standing.heard_of == [("10.0.0.1:10911", "10.0.0.1:10912"), (None, None)]


async def test_slave_believes_the_first_name_server_that_knows_its_master(
    config: BrokerConfig, topics: TopicTable
) -> None:
    slave = BrokerConfig.from_properties(
        {
            **config.to_properties(),
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "namesrvAddr": "10.0.0.8:9876;10.0.0.9:9876",
        },
        environment={},
    )
    standing = OfBroker(slave)
    registration = Registration(slave, topics, standing, random.Random(1))
    first, second = registration.links
    second.master = ("b:1", "b:2")
    second._on_master()
    first.master = ("a:1", "a:2")
    first._on_master()
    first.master = (None, None)  # it was restarted
    first._on_master()
    second.master = (None, None)
    second._on_master()
    assert standing.heard_of == [("b:1", "b:2"), ("a:1", "a:2"), ("b:1", "b:2"), (None, None)]


def test_master_is_told_nothing_of_masters(config: BrokerConfig, topics: TopicTable) -> None:
    settings = {**config.to_properties(), "namesrvAddr": "10.0.0.8:9876"}
    master = BrokerConfig.from_properties(settings, environment={})
    standing = OfBroker(master)
    (link,) = Registration(master, topics, standing, random.Random(1)).links
    link.master = ("10.0.0.1:10911", None)
    link._on_master()
    assert standing.heard_of == []


class Swallowing:
    """A name server with sockets. What comes in on a connection that is `deaf` is never answered, as behind a cut."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[int] = (
            asyncio.Queue()
        )  # ids of connections, in the order of their requests
        self.deaf: set[int] = set()
        self.all_deaf = False

    async def answer(self, command: Command, connection: Connection) -> Command:
        self.asked.put_nowait(connection.id)
        if self.all_deaf or connection.id in self.deaf:
            await asyncio.get_running_loop().create_future()
        return command.reply()

    async def next(self) -> int:
        async with asyncio.timeout(10):
            return await self.asked.get()


@pytest.fixture
async def swallowing(
    config: BrokerConfig, topics: TopicTable
) -> AsyncIterator[tuple[Swallowing, RemotingServer, Registration]]:
    """With a broker that registers with it."""
    names = Swallowing()
    server = RemotingServer(Listen(port=0), {RequestCode.REGISTER_BROKER: names.answer})
    await server.start()
    settings = {
        **config.to_properties(), "namesrvAddr": f"127.0.0.1:{server.port}", "registerBrokerTimeoutMills": "3000",
    }  # fmt: skip
    changed = BrokerConfig.from_properties(settings, environment={})
    registration = Registration(changed, topics, OfBroker(changed), random.Random(1))
    running = asyncio.create_task(registration.run())
    try:
        yield names, server, registration
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await registration.close(goodbye=False)
        await server.close(drain_ms=0)


async def test_a_dead_connection_keeps_nobody_from_hearing_of_a_new_master(
    swallowing: tuple[Swallowing, RemotingServer, Registration],
) -> None:
    names, server, registration = swallowing
    first = await names.next()
    names.deaf.add(first)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    registration.role_changed()
    assert await names.next() == first
    second = await names.next()
    assert second != first
    assert loop.time() - began_s < 3, "not when the first is given up"
    assert await names.next() == second, "a name server may have taken the first's end for ours"
    for _ in range(1_000):
        if registration.reached() and list(server.connections) == [second]:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the first connection stays, or the link does not know that it is registered")


async def test_a_slow_name_server_is_asked_twice_and_no_more(
    swallowing: tuple[Swallowing, RemotingServer, Registration],
) -> None:
    names, _, registration = swallowing
    first = await names.next()
    names.all_deaf = True
    registration.role_changed()
    assert await names.next() == first
    second = await names.next()
    await asyncio.sleep(1.5)
    assert names.asked.empty()
    names.all_deaf = False
    assert await names.next() == second, "its time was over, and it was tried again"


async def test_what_fails_on_both_connections_fails(
    swallowing: tuple[Swallowing, RemotingServer, Registration],
) -> None:
    names, server, registration = swallowing
    await names.next()
    names.all_deaf = True
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(RequestTimedOut):
        await registration.request(address, Command(RequestCode.REGISTER_BROKER, {}), 1_200)
