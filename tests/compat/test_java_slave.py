"""Ours and stock brokers in one group: the same log, the same tables, and consumers that go on.

Four groups at once, because a stock 5.x slave copies tables only a minute after its start. In each
of them 100,000 messages of many kinds are sent while the slave is killed and stopped; then the
master is killed for good.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from inbox import Inbox
from replicas import (
    OURS,
    Compared,
    Filling,
    comparable,
    compare_logs,
    log_end,
    make_member,
    make_topics,
    send_back_to_long_topic,
    tables,
    wait_equal,
)

from tandemmq import PushConsumer, StartFrom
from tandemmq.chaos.asking import registered
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.java import Driver

pytestmark = pytest.mark.timeout(600)  # the groups' whole story is told before the first test

COUNT = 100_000
READ = 3_000  # of them go to the topic that is consumed
LATE = 400  # sent while consumers pause: they are read from the slave
QUEUES = 4
CONSUMED_S = 90
TABLES_S = 110  # a stock 5.x slave copies tables a minute after its start, then once a minute
PAIRS = ((OURS, "5.3.3"), (OURS, "4.9.7"), ("5.3.3", OURS), ("4.9.7", OURS))
NAMES = [f"{slave}-under-{master}" for master, slave in PAIRS]


class Loop:
    """An event loop in a thread of its own, for our clients."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="our clients")
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float = CONSUMED_S) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Group:
    """A master and a slave, and what became of them."""

    def __init__(
        self, place: Path, name_server: str, name: str, kinds: tuple[str, str], driver: Driver,
        ours: Loop,
    ) -> None:  # fmt: skip
        self.name = f"g{name.replace('.', '')}"
        self.name_server = name_server
        self.driver = driver
        self.ours = ours
        self.problem: BaseException | None = None
        self.master_kind, self.slave_kind = kinds
        directory = place / name
        self.master = make_member(kinds[0], directory, name_server, self.name, 0)
        self.slave = make_member(kinds[1], directory, name_server, self.name, 1)
        self.plain, self.read = f"Plain-{self.name}", f"Read-{self.name}"
        self.java_group, self.our_group = f"Java-{self.name}", f"Ours-{self.name}"
        self.late_group = f"Late-{self.name}"
        self.compared: Compared | None = None
        self.tables: tuple[Any, Any] | None = None
        self.expected: set[tuple[int, int]] = (
            set()
        )  # queue id and offset of every message of `read`
        self.committed: dict[int, int] = {}  # of the late group
        self.before_kill = (0, 0)  # delivered to each running consumer
        self.returned: dict[str, int] = {}  # progress of each group at the master that came back
        self.inbox: Inbox
        self.consumer: PushConsumer

    # --- phases ---

    def phase(self, work: Callable[[], None]) -> None:
        """One phase; none follows on one that failed."""
        if self.problem is None:
            try:
                work()
            except BaseException as problem:
                self.problem = problem

    def start(self) -> None:
        self.master.start()
        make_topics(self.name_server, self.master, {self.plain: QUEUES, self.read: QUEUES})
        self.slave.start()

    def fill(self) -> None:
        marks = {COUNT // 4: self.kill_slave, COUNT // 2: self.restart_slave}
        if self.master_kind.startswith("5."):
            marks[1_000] = lambda: send_back_to_long_topic(self.master, "L" * 200, 30)
        plain = Filling(self.name_server, [self.plain], COUNT - READ, seed=1, at=marks)
        plain.run()
        Filling(self.name_server, [self.read], READ, seed=2, delayed=False).run()

    def kill_slave(self) -> None:
        self.slave.kill()
        self.slave.start()

    def restart_slave(self) -> None:
        self.slave.stop()
        self.slave.start()

    def consume(self) -> None:
        """Three groups: two are all up to date, one committed half of each queue and is away."""
        self.driver.call(
            "push.start", name=self.java_group, group=self.java_group, topic=self.read,
            namesrv=self.name_server,
        )  # fmt: skip
        self.ours.call(self._start_our_consumer())
        late = self.late_group
        self.driver.call("pull.start", name=late, group=late, namesrv=self.name_server)
        for queue_id in range(QUEUES):
            end = self.queue("pull.offsets", queue_id)["max"]
            self.queue("pull.pull", queue_id, offset=0)  # a stock broker knows who pulled
            self.queue("pull.commit", queue_id, offset=end // 2)
            self.committed[queue_id] = end // 2
        self.driver.wait_messages(self.java_group, READ, CONSUMED_S)
        self.ours.call(self.inbox.until(lambda: len(self.inbox.messages) >= READ))

    async def _start_our_consumer(self) -> None:
        self.inbox = Inbox()
        self.consumer = PushConsumer(
            self.our_group, self.inbox, namesrv=self.name_server, subscribe={self.read: "*"},
            start=StartFrom.FIRST,
        )  # fmt: skip
        await self.consumer.start()

    def queue(self, op: str, queue_id: int, **fields: Any) -> Any:
        return self.driver.call(
            op, name=self.late_group, topic=self.read, broker=self.name, queueId=queue_id,
            namesrv=self.name_server, **fields,
        )  # fmt: skip

    def pause_and_send(self) -> None:
        self.driver.call("push.suspend", name=self.java_group)
        self.consumer.suspend()
        Filling(self.name_server, [self.read], LATE, seed=3, delayed=False).run()
        for queue_id in range(QUEUES):
            end = self.queue("pull.offsets", queue_id)["max"]
            self.expected |= {(queue_id, offset) for offset in range(end)}
        assert len(self.expected) == READ + LATE

    def settle(self) -> None:
        """Until the slave has every byte and every table of the master."""
        topics = [self.plain, self.read]
        groups = [self.java_group, self.our_group, self.late_group]

        def equal() -> bool:
            both = tuple(comparable(tables(b), topics, groups) for b in (self.master, self.slave))
            self.tables = both[0], both[1]
            return both[0] == both[1]

        wait_until(equal, TABLES_S, f"tables of {self.name} equal", every_s=1)
        end = wait_equal(self.master, self.slave)
        self.compared = compare_logs(self.master.store, self.slave.store, end)

    def kill_master(self) -> None:
        assert log_end(self.master) == log_end(self.slave)
        self.before_kill = self.delivered()
        self.master.kill()
        self.driver.call("push.resume", name=self.java_group)
        self.ours.call(self._resume())
        name = f"{self.late_group}-push"
        wait_until(lambda: not registered(self.name_server, self.name), 10, "master forgotten")
        self.driver.call("pull.stop", name=self.late_group)  # a member like any other
        self.driver.call(
            "push.start", name=name, group=self.late_group, topic=self.read,
            namesrv=self.name_server,
        )  # fmt: skip

    async def _resume(self) -> None:
        self.consumer.resume()

    def read_on(self) -> None:
        """Until all three consumers have everything, from the slave."""

        def went_on() -> bool:
            return self.went_on() == self.due()

        try:
            wait_until(went_on, CONSUMED_S, f"consumers of {self.name} went on", every_s=0.5)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.went_on()} of {self.due()}") from None

    def went_on(self) -> tuple[int, int, int]:
        """How many messages the two running consumers and the late one were given."""
        return (*self.delivered(), len(self.places(f"{self.late_group}-push")))

    def due(self) -> tuple[int, int, int]:
        total = len(self.expected)
        return total, total, total - sum(self.committed.values())

    def return_master(self) -> None:
        """The master comes back with what it knew; nobody consumes any more. Ours tells it the rest."""
        if self.slave_kind != OURS:
            return  # a stock slave takes the master's older positions over instead
        self.driver.call("push.stop", name=self.java_group)
        self.driver.call("push.stop", name=f"{self.late_group}-push")
        self.ours.call(self.consumer.stop())
        self.master.start()
        wait_until(
            lambda: self.progress(self.master) == self.progress(self.slave),
            CONSUMED_S, f"{self.name}'s master told", every_s=0.5,
        )  # fmt: skip
        self.returned = self.progress(self.master)

    def progress(self, broker: Broker) -> dict[str, int]:
        """How many messages of the topic each of the groups has behind it."""
        table = tables(broker)["progress"]["offsetTable"]
        return {
            group: sum(table.get(f"{self.read}@{group}", {}).values())
            for group in (self.java_group, self.our_group, self.late_group)
        }

    # --- what arrived ---

    def delivered(self) -> tuple[int, int]:
        return len(self.places(self.java_group)), len(self.our_places())

    def places(self, consumer: str) -> set[tuple[int, int]]:
        found = self.driver.messages(consumer)
        return {(m["queueId"], m["queueOffset"]) for m in found if m["topic"] == self.read}

    def our_places(self) -> set[tuple[int, int]]:
        return {(m.queue.queue_id, m.queue_offset) for m in list(self.inbox.messages)}

    def close(self) -> None:
        if hasattr(self, "consumer"):
            self.ours.call(self.consumer.stop())
        for broker in (self.master, self.slave):
            broker.abandon()


@pytest.fixture(scope="module")
def groups(
    java: None, newest_driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Group]]:
    """Every group after its master was killed and its consumers went on."""
    place = tmp_path_factory.mktemp("groups")
    ours = Loop()
    began = time.monotonic()
    with NameServer(place) as name_server:
        name_server.start()
        made = {
            name: Group(place, name_server.address, name, kinds, newest_driver, ours)
            for name, kinds in zip(NAMES, PAIRS, strict=True)
        }
        try:
            with ThreadPoolExecutor(len(made)) as pool:
                for phase in (
                    Group.start, Group.fill, Group.consume, Group.pause_and_send, Group.settle,
                    Group.kill_master, Group.read_on, Group.return_master,
                ):  # fmt: skip
                    list(pool.map(lambda g, phase=phase: g.phase(lambda: phase(g)), made.values()))
                    print(f"{time.monotonic() - began:.1f} s {phase.__name__}")
            yield made
        finally:
            for group in made.values():
                group.close()
            ours.close()


@pytest.fixture(params=NAMES)
def group(request: pytest.FixtureRequest, groups: dict[str, Group]) -> Group:
    found = groups[request.param]
    if found.problem is not None:
        raise AssertionError(f"{request.param} did not come so far") from found.problem
    return found


def test_the_logs_are_byte_identical_though_the_slave_was_killed_and_stopped(group: Group) -> None:
    assert group.compared is not None
    assert group.compared.start == 0  # all of it, not only the newest file
    assert group.compared.records > COUNT + LATE
    assert group.compared.end > 0


def test_topics_progress_delays_and_groups_are_the_masters(group: Group) -> None:
    assert group.tables is not None
    master, slave = group.tables
    assert slave == master
    late = master["progress"][f"{group.read}@{group.late_group}"]
    assert late == group.committed
    assert all(master["topics"].values())
    assert all(master["groups"].values())
    assert master["delays"]


def test_running_consumers_go_on_at_the_slave_when_the_master_is_killed(group: Group) -> None:
    assert all(count < len(group.expected) for count in group.before_kill)
    assert group.places(group.java_group) == group.expected
    assert group.our_places() == group.expected


def test_a_consumer_that_starts_at_the_slave_begins_where_its_group_had_come(group: Group) -> None:
    found = group.places(f"{group.late_group}-push")
    assert found == {(q, at) for q, at in group.expected if at >= group.committed[q]}


@pytest.mark.parametrize(
    "group",
    [name for name, (_, slave) in zip(NAMES, PAIRS, strict=True) if slave == OURS],
    indirect=True,
)  # a stock slave forgets it: RocketMQ's rule
def test_what_was_consumed_at_our_slave_is_not_repeated_when_a_stock_master_returns(
    group: Group,
) -> None:
    assert group.returned == dict.fromkeys(
        (group.java_group, group.our_group, group.late_group), len(group.expected)
    )
