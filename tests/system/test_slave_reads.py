"""Reading from a slave by real processes: sent there, going on there, and back again."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from inbox import Inbox
from raw_wire import PULL, Wire, json_frame, pull_ext

from tandemmq import Message, Producer, PushConsumer, StartFrom
from tandemmq.chaos.asking import ask, registered, routed
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client import Admin
from tandemmq.storage import PageCache, fastjson

pytestmark = pytest.mark.system

QUERY_MESSAGE, QUERY_OFFSET, COMMIT, VIEW = 12, 14, 15, 33
SEARCH_OFFSET, MAX_OFFSET, MIN_OFFSET = 29, 30, 31
ALL_TOPICS, ALL_PROGRESS = 21, 43
HA_STATUS = 907
FOUND, NOTHING_NEW, RETRY = 0, 19, 20
HOLD_MS = 1_500


class Group:
    """A name server, a master and a slave of one broker name."""

    def __init__(self, root: Path, stack: ExitStack, **settings: object) -> None:
        self.names = stack.enter_context(NameServer(root)).start()
        self.master = stack.enter_context(
            Broker(root / "m", self.names.address, settings=dict(settings))
        ).start()
        slave = {"brokerRole": "SLAVE", "brokerId": 1, **settings}
        self.slave = stack.enter_context(
            Broker(root / "s", self.names.address, settings=slave)
        ).start()

    def produce(self, topic: str, count: int, size: int = 100, first: int = 0) -> None:
        async def send() -> None:
            async with Producer("PG", namesrv=self.names.address) as producer:
                await asyncio.gather(
                    *(
                        producer.send(Message(topic, b"%d " % n + os.urandom(size), keys=f"k{n}"))
                        for n in range(first, first + count)
                    )
                )

        asyncio.run(send())

    def make(self, topic: str, queues: int = 2) -> None:
        async def create() -> None:
            async with Admin(self.names.address) as admin:
                await admin.create_topic(topic, queues)

        asyncio.run(create())
        wait_until(lambda: routed(self.names.address, topic), 10, "route")

    def delete(self, topic: str) -> None:
        async def delete() -> None:
            async with Admin(self.names.address) as admin:
                await admin.delete_topic(topic)

        asyncio.run(delete())

    def wait_replicated(self) -> None:
        def equal() -> bool:
            slaves = json.loads(ask(self.master.address, HA_STATUS)[2])["haConnectionInfo"]
            return [slave["diff"] for slave in slaves] == [0]

        wait_until(equal, 20, "the slave has everything")

    def wait_known(self, topic: str, known: bool = True) -> None:
        wait_until(lambda: (topic in topics(self.slave)) == known, 10, f"{topic} copied: {known}")

    def kill_master(self) -> None:
        self.master.kill()
        wait_until(lambda: not registered(self.names.address, "broker-a"), 10, "master forgotten")


def fields(answer: tuple[int, dict[str, Any], bytes]) -> dict[str, str]:
    found: dict[str, str] = answer[1]["extFields"]
    return found


def pull(
    broker: Broker, topic: str, offset: int, queue_id: int = 0, hold: bool = False
) -> tuple[int, dict[str, str], bytes]:
    """Code, header and body of the answer to a pull."""
    flags = {"sysFlag": "6" if hold else "4", "suspendTimeoutMillis": str(HOLD_MS)}
    answer = ask(broker.address, PULL, pull_ext(topic, offset, queue_id, **flags), timeout_s=10)
    return answer[0], fields(answer), answer[2]


def table(broker: Broker, code: int) -> Any:
    status, _, body = ask(broker.address, code)
    assert status == 0
    return fastjson.loads(body)


def topics(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = table(broker, ALL_TOPICS)["topicConfigTable"]
    return found


def progress(broker: Broker, topic: str, group: str) -> dict[int, int]:
    found = table(broker, ALL_PROGRESS)["offsetTable"].get(f"{topic}@{group}", {})
    return {int(queue_id): int(offset) for queue_id, offset in found.items()}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def test_a_far_reader_is_sent_to_the_slave_and_back_when_it_has_caught_up(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, stack, accessMessageInMemoryMaxRatio=0)
        group.make("T", 1)
        group.produce("T", 200)
        group.wait_replicated()
        group.wait_known("T")
        code, found, body = pull(group.master, "T", 0)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "1")
        code, found, same = pull(group.slave, "T", 0)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "1")
        assert same == body
        code, found, _ = pull(group.slave, "T", 200)
        assert (code, found["suggestWhichBrokerId"]) == (NOTHING_NEW, "0")

        async def consume() -> None:
            inbox = Inbox()
            async with PushConsumer(
                "CG", inbox, namesrv=group.names.address, subscribe={"T": "*"},
                start=StartFrom.FIRST,
            ):  # fmt: skip
                await inbox.count(200)
                assert len(set(inbox.bodies)) == 200

        asyncio.run(consume())


def test_a_reader_of_what_the_kernel_has_dropped_is_sent_to_the_slave(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, stack, mappedFileSizeCommitLog=32 << 20)
        group.make("T", 1)
        group.produce("T", 420, size=256 << 10)  # 105 MiB: the last 64 are never cold
        group.wait_replicated()
        code, found, _ = pull(group.master, "T", 0)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "0")  # just written
        assert group.master.stop() == 0
        log = group.master.store / "commitlog"
        for file in sorted(log.iterdir()):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if PageCache().resident(min(log.iterdir()), 0, 32 << 20) != 0:
            pytest.skip(
                "this kernel or file system keeps what it is told to drop, or does not tell"
            )
        group.master.start()
        group.wait_replicated()
        # 12 MiB in: what counts is the log 32 MiB ahead, and a start reads the beginnings of files,
        # with as much behind them as the disk's read-ahead is (up to 8 MiB)
        code, found, _ = pull(group.master, "T", 48)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "1")
        code, found, _ = pull(group.master, "T", 415)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "0")  # near the end: back


def test_nobody_is_sent_to_a_slave_that_is_not_there(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, stack, accessMessageInMemoryMaxRatio=0)
        group.make("T", 1)
        group.produce("T", 100)
        group.slave.kill()
        wait_until(
            lambda: not json.loads(ask(group.master.address, HA_STATUS)[2])["haConnectionInfo"],
            10, "the slave's connection gone",
        )  # fmt: skip
        code, found, _ = pull(group.master, "T", 0)
        assert (code, found["suggestWhichBrokerId"]) == (FOUND, "0")


def test_a_slave_answers_every_question_of_a_reader_while_its_master_is_dead(group: Group) -> None:
    group.make("T", 1)
    group.produce("T", 50)
    group.wait_replicated()
    group.wait_known("T")
    group.kill_master()
    place = {"topic": "T", "queueId": "0"}
    slave = group.slave.address
    assert fields(ask(slave, MAX_OFFSET, place))["offset"] == "50"
    assert fields(ask(slave, MIN_OFFSET, place))["offset"] == "0"
    assert fields(ask(slave, SEARCH_OFFSET, {**place, "timestamp": "0"}))["offset"] == "0"
    span = {"beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    query = {"topic": "T", "key": "k7", "maxNum": "32", **span}
    code, _, by_key = ask(slave, QUERY_MESSAGE, query)
    assert code == 0
    physical = int.from_bytes(by_key[28:36], "big")
    code, _, by_offset = ask(slave, VIEW, {"offset": str(physical)})
    assert (code, by_offset) == (0, by_key)


def test_idle_and_lost_readers_wait_at_a_slave_whose_master_is_dead(group: Group) -> None:
    group.make("T", 1)
    group.produce("T", 5)
    group.wait_replicated()
    group.wait_known("T")
    group.kill_master()
    began = time.monotonic()
    assert pull(group.slave, "T", 5, hold=True)[0] == NOTHING_NEW
    assert time.monotonic() - began >= HOLD_MS / 1000
    with_one_connection(group.slave)


def with_one_connection(slave: Broker) -> None:
    """A reader ahead of the slave: sent to the master once, then held, and never moved."""
    with Wire(slave.address) as wire:
        for number, expected in enumerate((RETRY, NOTHING_NEW, NOTHING_NEW)):
            began = time.monotonic()
            flags = {"sysFlag": "6", "suspendTimeoutMillis": str(HOLD_MS)}
            answer = wire.request(json_frame(PULL, pull_ext("T", 9, **flags), opaque=number))
            assert answer.code == expected
            assert answer.ext["nextBeginOffset"] == "9"
            assert answer.ext["suggestWhichBrokerId"] == "0"
            held = time.monotonic() - began >= HOLD_MS / 1000
            assert held == (expected == NOTHING_NEW)


def test_consumers_go_on_at_the_slave_and_their_progress_outlives_the_masters_return(
    group: Group,
) -> None:
    group.make("T", 2)
    group.produce("T", 300)
    group.wait_replicated()
    group.wait_known("T")

    async def consume() -> None:
        before, inbox = Inbox(), Inbox()
        # Progress that both know, of the first 300.
        async with PushConsumer(
            "CG", before, namesrv=group.names.address, subscribe={"T": "*"}, start=StartFrom.FIRST
        ) as consumer:
            await before.count(300)
            consumer.suspend()
            await asyncio.to_thread(group.produce, "T", 300, 100, 300)
            await asyncio.to_thread(group.wait_replicated)
            await asyncio.to_thread(group.kill_master)
            consumer.resume()
            await before.until(lambda: len(set(before.bodies)) == 600)
        async with PushConsumer(
            "New", inbox, namesrv=group.names.address, subscribe={"T": "*"}, start=StartFrom.FIRST
        ):
            await inbox.count(600)  # a group that nobody knew begins at the slave

    asyncio.run(consume())
    there = {name: progress(group.slave, "T", name) for name in ("CG", "New")}
    assert all(sum(offsets.values()) == 600 for offsets in there.values())
    group.master.start()
    for name, offsets in there.items():
        wait_until(
            lambda name=name, offsets=offsets: progress(group.master, "T", name) == offsets,
            20, f"the master told of what {name} had done",
        )  # fmt: skip
        assert progress(group.slave, "T", name) == offsets


def test_topics_come_and_go_on_the_slave_as_on_the_master(group: Group) -> None:
    group.make("T", 3)
    group.wait_known("T")
    assert topics(group.slave)["T"] == topics(group.master)["T"]
    group.produce("T", 30)
    group.wait_replicated()
    group.delete("T")
    group.wait_known("T", known=False)
    group.make("T", 3)
    group.produce("T", 9)
    group.wait_replicated()
    group.wait_known("T")
    for queue_id in range(3):
        place = {"topic": "T", "queueId": str(queue_id)}
        ends = {
            fields(ask(broker.address, MAX_OFFSET, place))["offset"]
            for broker in (group.master, group.slave)
        }
        assert len(ends) == 1, (queue_id, ends)


def test_a_topic_made_by_a_send_is_read_from_the_slave_a_moment_later(group: Group) -> None:
    group.produce("MadeBySending", 1)
    began = time.monotonic()
    group.wait_known("MadeBySending")
    assert time.monotonic() - began < 2.5  # by its message, not by the next round of copies


def test_a_closed_slave_refuses_pulls(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, stack, slaveReadEnable="false")
        group.make("T", 1)
        group.produce("T", 1)
        group.wait_known("T")
        status, answer, _ = ask(group.slave.address, PULL, pull_ext("T"))
        assert (status, answer["remark"][:15]) == (2, "[REJECTREQUEST]")


def test_a_slave_that_restarts_alone_serves_what_it_copied(group: Group) -> None:
    group.make("T", 1)
    group.produce("T", 20)
    group.wait_replicated()
    group.wait_known("T")

    async def consume() -> None:
        inbox = Inbox()
        async with PushConsumer(
            "CG", inbox, namesrv=group.names.address, subscribe={"T": "*"}, start=StartFrom.FIRST
        ):
            await inbox.count(20)

    asyncio.run(consume())
    wait_until(lambda: progress(group.slave, "T", "CG") == {0: 20}, 10, "progress copied")
    group.kill_master()
    assert group.slave.stop() == 0
    group.slave.start()
    assert progress(group.slave, "T", "CG") == {0: 20}
    code, found, _ = pull(group.slave, "T", 0)
    assert (code, found["nextBeginOffset"]) == (FOUND, "20")


async def test_a_running_reader_misses_nothing_of_a_masters_restart(group: Group) -> None:
    await asyncio.to_thread(group.make, "T", 1)
    inbox = Inbox()
    async with PushConsumer(
        "CG", inbox, namesrv=group.names.address, subscribe={"T": "*"}, start=StartFrom.FIRST
    ):
        await asyncio.to_thread(group.produce, "T", 10)
        await inbox.count(10)
        await asyncio.to_thread(group.kill_master)
        await asyncio.to_thread(group.master.start)
        await asyncio.to_thread(group.produce, "T", 10, 100, 10)
        await inbox.until(lambda: len(set(inbox.bodies)) == 20)
        assert [message.queue_offset for message in inbox.messages] == list(range(20))


def test_a_slave_copies_from_a_master_that_takes_encrypted_connections_only(tmp_path: Path) -> None:
    encrypted = {"tls.server.mode": "enforcing"}
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path, {"tls.server.mode": "permissive"}))
        names.start()
        members = [
            stack.enter_context(
                Broker(tmp_path / kind, names.address, settings={**encrypted, **role})
            )
            for kind, role in (("m", {}), ("s", {"brokerRole": "SLAVE", "brokerId": 1}))
        ]
        for number, member in enumerate(members):
            member.launch()
            wait_until(
                lambda number=number: registered(names.address, "broker-a", number), 20, "start"
            )  # fmt: skip
        slave = members[1]
        wait_until(lambda: "copying tables from master" in slave.output(), 10, "a master to ask")
        copied = slave.store / "config" / "consumerOffset.json"
        wait_until(copied.exists, 20, "the copy of the progress saved")
        assert "not copied" not in slave.output()
