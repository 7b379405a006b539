"""A broker of RocketMQ's is replaced under load by a slave of ours that takes over, and goes on with what ours wrote.

Walks through docs/howto/from-rocketmq.md, "Without a long stop"; and RocketMQ opens what tandem restore made.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from audited_group import HttpBroker
from command_line import Done, run
from numbered_load import Load
from replicas import CLUSTER, GROUP_SETTINGS, comparable, compare_logs, make_topics, tables

from tandemmq import PullConsumer
from tandemmq.chaos.asking import registered, registered_at
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

pytestmark = pytest.mark.timeout(300)

VERSION = "5.3.3"
NAME, TOPIC, GROUP = "broker-a", "Migrated", "billing"
TABLES_S = 60


def admin(*words: object) -> Done:
    done = run("admin", *words)
    assert done.code == 0, done
    return done


class Move:
    """What happened, step by step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = NameServer(root)
        self.load = Load(self.names.address, TOPIC, [NAME], GROUP)
        self.java = JavaBroker(
            VERSION, root / "java", self.names.address, name=NAME, cluster=CLUSTER,
            settings={**GROUP_SETTINGS, "brokerRole": "ASYNC_MASTER"},
        )  # fmt: skip
        self.slave = HttpBroker(
            root / "ours", self.names.address, name=NAME, cluster=CLUSTER,
            settings={**GROUP_SETTINGS, "brokerRole": "SLAVE", "brokerId": 1},
        )  # fmt: skip
        self.acknowledged_at: dict[str, set[bytes]] = {}  # before each step's end
        self.bodies_at: dict[str, set[bytes]] = {}
        self.bytes_shared = self.positions = 0

    def tell(self, stack: ExitStack) -> None:
        stack.enter_context(self.names).start()
        stack.enter_context(self.java).start()
        make_topics(self.names.address, self.java, {TOPIC: 4})
        with self.load.running():
            stack.enter_context(self.slave).start()
            self.load.more(200)
            ours = self.take_over(stack)
            self.load.more(200)
            self.back_up(ours)
            self.note("ours")
            java = self.go_back(ours, stack)
            self.load.more(200)
        self.note("back")
        self.positions = positions(java)

    def take_over(self, stack: ExitStack) -> HttpBroker:
        """From the two settings on SEND_OK says that both have the message: the master may stop at any moment."""
        there = ("updateBrokerConfig", "-n", self.names.address, "-b", self.java.address)
        admin(*there, "-k", "brokerRole", "-v", "SYNC_MASTER")
        admin(*there, "-k", "inSyncReplicas", "-v", "2")
        self.load.more(200)
        wait_until(self.tables_followed, TABLES_S, "the tables are there", every_s=0.5)
        assert self.java.stop() in (0, 143)
        acknowledged = set(self.load.acknowledged)
        assert self.slave.stop() == 0
        end = min(store_end(self.java.store), store_end(self.slave.store))
        self.bytes_shared = compare_logs(self.java.store, self.slave.store, end).end
        ours = HttpBroker(
            self.root / "ours", self.names.address, name=NAME, cluster=CLUSTER, store=self.slave.store,
            settings={**GROUP_SETTINGS, "brokerRole": "ASYNC_MASTER"},
        )  # fmt: skip
        stack.enter_context(ours).start()
        self.acknowledged_at["taken over"] = acknowledged
        self.bodies_at["taken over"] = self.read()
        return ours

    def tables_followed(self) -> bool:
        both = [comparable(tables(each), [TOPIC], [GROUP]) for each in (self.java, self.slave)]
        for found in both:
            found["progressed"] = sum(map(len, found.pop("progress").values())) > 0
            found.pop("delays")
        return bool(both[0] == both[1]) and both[0]["progressed"]

    def back_up(self, ours: HttpBroker) -> None:
        self.acknowledged_at["restored"] = set(self.load.acknowledged)
        words = ("--to", self.root / "backup", "--token-file", ours.token_file)
        done = run("backup", "run", ours.url, *words)
        assert done.code == 0, done

    def go_back(self, ours: HttpBroker, stack: ExitStack) -> Broker:
        """RocketMQ on the store that ours wrote."""
        assert ours.stop() == 0
        java = JavaBroker(
            VERSION, self.root / "back", self.names.address, name=NAME, cluster=CLUSTER,
            store=ours.store, settings={**GROUP_SETTINGS, "brokerRole": "ASYNC_MASTER"},
        )  # fmt: skip
        stack.enter_context(java).start()
        wait_until(
            lambda: registered_at(self.names.address, NAME) == java.address, 20, "it is the master"
        )
        return java

    def note(self, step: str) -> None:
        self.acknowledged_at[step] = set(self.load.acknowledged)  # first: more come meanwhile
        self.bodies_at[step] = self.read()

    def read(self) -> set[bytes]:
        return asyncio.run(everything(self.names.address))


def store_end(store: Path) -> int:
    done = run("inspect", store, "--json")
    return int(done.json["log_end"])


def positions(broker: Broker) -> int:
    """How many messages the group has consumed."""
    table = tables(broker)["progress"]["offsetTable"]
    return sum(int(at) for at in table.get(f"{TOPIC}@{GROUP}", {}).values())


async def everything(name_server: str) -> set[bytes]:
    """The body of every message that the topic has now; others come meanwhile."""
    found: set[bytes] = set()
    async with PullConsumer("migrated", namesrv=name_server) as consumer:
        queues = await consumer.queues(TOPIC)
        begin = {queue: await consumer.min_offset(queue) for queue in queues}
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        left = {queue for queue in queues if begin[queue] < ends[queue]}
        await consumer.assign(queues, positions=begin)
        while left:
            messages = await consumer.poll(100, timeout_ms=10_000)
            assert messages, left
            found.update(each.body for each in messages)
            left -= {each.queue for each in messages if each.queue_offset + 1 >= ends[each.queue]}
    return found


@pytest.fixture(scope="module")
def move(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    with ExitStack() as stack:
        told = Move(tmp_path_factory.mktemp("move"))
        told.tell(stack)
        yield told


def test_a_slave_of_ours_takes_over_from_a_master_of_rocketmq_under_load(move: Move) -> None:
    acknowledged = move.acknowledged_at["taken over"]
    assert len(acknowledged) > 300
    assert acknowledged <= move.bodies_at["taken over"]
    assert move.bytes_shared > 0


def test_no_acknowledged_message_is_lost_on_the_way_and_back(move: Move) -> None:
    for step in ("ours", "back"):
        assert move.acknowledged_at[step] <= move.bodies_at[step], step
    assert len(move.acknowledged_at["back"]) > len(move.acknowledged_at["taken over"]) + 200


def test_consumers_went_on_over_both_changes(move: Move) -> None:
    bodies = move.load.inbox.bodies
    assert move.acknowledged_at["ours"] <= set(bodies)
    assert len(bodies) < 1.2 * len(set(bodies)), "most of it came once"
    assert move.positions > 300


def test_rocketmq_opens_a_store_that_was_restored(move: Move, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run("restore", move.root / "backup", "--into", store, "--json")
    assert done.code == 0, done
    with NameServer(tmp_path) as names:
        names.start()
        broker = JavaBroker(
            VERSION, tmp_path, names.address, name=NAME, cluster=CLUSTER, store=store,
            settings={**GROUP_SETTINGS, "brokerRole": "ASYNC_MASTER"},
        )  # fmt: skip
        with broker:
            broker.start()
            wait_until(lambda: registered(names.address, NAME), 20, "registered")
            found = asyncio.run(everything(names.address))
            assert move.acknowledged_at["restored"] <= found
            assert positions(broker) > 300
            assert broker.stop() in (0, 143)
    shutil.rmtree(store)
