"""Timed messages between both sides: stock clients on ours, ours on stock, and a store that goes there and back."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clients import AGAINST, make_broker, make_name_server

from tandemmq import BrokerRefused, Message, Producer
from tandemmq.chaos.asking import registered, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.java import NEWEST, VERSIONS, Driver, DriverError, body_of

TIMERS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
EARLY_MS = 0 if AGAINST == "ours" else 1_000
TOPIC = "Timed"


class Stock:
    """One stock producer and reader; brokers of the same name come and go."""

    def __init__(self, driver: Driver, namesrv: str, name: str = "timed") -> None:
        self.driver, self.namesrv, self.name = driver, namesrv, name
        self.serial = 0

    def renew(self, broker: Broker) -> None:
        """New clients, which know no connection of before."""
        self.serial += 1
        self.call("producer.start", group="TimedProducers")
        self.call("pull.start", group="TimedReaders")
        self.call("pull.create_topic", topic=TOPIC, queues=1, address=broker.address)
        wait_until(lambda: routed(self.namesrv, TOPIC), 10, "the route")

    def call(self, op: str, **fields: Any) -> Any:
        name = f"{self.name}-{self.serial}"
        return self.driver.call(op, name=name, namesrv=self.namesrv, **fields)

    def send(self, body: str, **timer: object) -> dict[str, Any]:
        (answer,) = self.call("send.sync", topic=TOPIC, messages=[{"body": body, **timer}])
        return dict(answer)

    def stored(self) -> list[tuple[str, int]]:
        """(body, store time) of everything that was delivered."""
        found = self.call("pull.drain", topic=TOPIC, broker="broker-a", queueId=0)
        return [(body_of(each).decode(), each["storeMs"]) for each in found]


@pytest.fixture
def names(tmp_path: Path) -> Iterator[NameServer]:
    with make_name_server(tmp_path / "names") as running:
        yield running.start()


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_stock_client_times_and_recalls(
    newest_driver: Driver, names: NameServer, tmp_path: Path
) -> None:
    with make_broker(tmp_path, names.address, settings=TIMERS) as broker:
        broker.start()
        client = Stock(newest_driver, names.address)
        client.renew(broker)
        due = {"sec": now_ms() + 2_000, "ms": now_ms() + 1_700, "at": now_ms() + 2_345, "over": 0}
        client.send("sec", setDelayTimeSec=2)
        client.send("ms", setDelayTimeMs=1_700)
        sent = client.send("at", setDeliverTimeMs=due["at"])
        assert sent["recallHandle"]
        client.send("over", setDeliverTimeMs=now_ms() - 10)
        recalled = client.send("never", setDelayTimeSec=3)
        msg_id = client.call("send.recall", topic=TOPIC, handle=recalled["recallHandle"])
        assert msg_id == recalled["msgId"]
        with pytest.raises(DriverError) as refused:
            client.send("too far", setDelayTimeSec=3 * 86_400 + 60)
        assert "the delay time should not be bigger than the max delay 259200000ms" in str(
            refused.value
        )
        with pytest.raises(DriverError):
            client.call("send.recall", topic=TOPIC, handle="nothing")
        time.sleep(5)
        stored = dict(client.stored())
        assert stored.keys() == due.keys()
        for body, store_ms in stored.items():
            assert store_ms >= due[body] - EARLY_MS, body
        with pytest.raises(DriverError):
            client.call("send.recall", topic=TOPIC, handle=sent["recallHandle"])


def test_a_stock_client_deletes_by_property_and_hears_when_a_crowded_second_has_room(
    newest_driver: Driver, names: NameServer, tmp_path: Path
) -> None:
    settings = {**TIMERS, "timerCongestNumEachSlot": "3"}
    with make_broker(tmp_path, names.address, settings=settings) as broker:
        broker.start()
        client = Stock(newest_driver, names.address)
        client.renew(broker)
        due_ms = now_ms() // 1000 * 1000 + 4_500
        kept, unwanted = (client.send(body, setDeliverTimeMs=due_ms) for body in ("kept", "gone"))
        assert kept["status"] == "SEND_OK"
        deletes = {"TIMER_DEL_UNIQKEY": f"{TOPIC}+{unwanted['msgId']}"}
        client.send("deletes", setDeliverTimeMs=due_ms, ownProperties=deletes)
        over = client.send("no timer", setDelayTimeMs=0)
        assert over["status"] == "SEND_OK"
        with pytest.raises(DriverError) as refused:
            client.send("too late to delete", setDeliverTimeMs=now_ms() - 1, ownProperties=deletes)
        assert "if set del msg" in str(refused.value)
        crowded_ms = now_ms() // 1000 * 1000 + 60_500
        with pytest.raises(DriverError) as refused:
            for number in range(40):
                client.send(f"crowded {number}", setDeliverTimeMs=crowded_ms)
        assert "timer message is under flow control" in str(refused.value)
        if AGAINST == "ours":
            said = re.search(r"the first moment after it with room is (\d+)", str(refused.value))
            assert said is not None
            free_ms = int(said[1])
            assert crowded_ms < free_ms <= crowded_ms + 1_000
            client.send("in time", setDeliverTimeMs=free_ms)
        wait_until(lambda: "kept" in dict(client.stored()), 15, "what was kept")
        time.sleep(1.5)
        assert {body for body, _ in client.stored()} == {"kept", "no timer"}


async def test_our_client_times_and_recalls_at_a_stock_broker(
    newest_driver: Driver, names: NameServer, tmp_path: Path
) -> None:
    with JavaBroker(NEWEST, tmp_path, names.address, settings=TIMERS) as broker:
        await asyncio.to_thread(broker.start)
        reader = Stock(newest_driver, names.address)
        await asyncio.to_thread(reader.renew, broker)
        async with Producer("Ours", namesrv=names.address) as producer:
            at = datetime.now(UTC) + timedelta(seconds=2)
            await producer.send(Message(TOPIC, b"at", deliver_at=at))
            await producer.send(Message(TOPIC, b"in", delay_s=1.5))
            never = await producer.send(Message(TOPIC, b"never", delay_s=4))
            assert await producer.recall(never) == never.message_id
            with pytest.raises(BrokerRefused):
                await producer.send(Message(TOPIC, b"too far", delay_s=4 * 86_400))
        await asyncio.sleep(6)
        assert {body for body, _ in await asyncio.to_thread(reader.stored)} == {"at", "in"}


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_pending_timers_go_from_rocketmq_to_ours_and_back(
    ending: str, newest_driver: Driver, names: NameServer, tmp_path: Path
) -> None:
    """Each side delivers what falls due in its time and during the change; nothing is early or lost, and nothing comes
    again where the other one stopped in good order, nor of us where it did not."""
    store = tmp_path / "store"
    client = Stock(newest_driver, names.address, ending)
    due: dict[str, int] = {}
    with JavaBroker(NEWEST, tmp_path, names.address, store=store, settings=TIMERS) as theirs:
        theirs.start()
        client.renew(theirs)
        for number in range(60):
            due[f"{number}"] = now_ms() + 2_000 + number * 500
            client.send(f"{number}", setDeliverTimeMs=due[f"{number}"])
        recalled = client.send("never", setDeliverTimeMs=now_ms() + 15_000)
        client.call("send.recall", topic=TOPIC, handle=recalled["recallHandle"])
        due["later"] = now_ms() + 2 * 3_600_000
        client.send("later", setDeliverTimeMs=due["later"])
        wait_until(lambda: len(client.stored()) >= 4, 20, "the first delivered")
        theirs.stop() if ending == "stopped" else theirs.kill()
    wait_until(lambda: not registered(names.address, "broker-a"), 20, "broker forgotten")
    with Broker(tmp_path, names.address, store=store, settings=TIMERS) as ours:
        ours.start()
        client.renew(ours)
        before = len(client.stored())
        more = now_ms() + 1_000
        for number in range(60, 70):
            due[f"{number}"] = more + number * 200
            client.send(f"{number}", setDeliverTimeMs=due[f"{number}"])
        wait_until(lambda: len(client.stored()) >= before + 6, 20, "ours delivers")
        by_ours = Counter(body for body, _ in client.stored())
        assert set(by_ours.values()) == {1}, by_ours
        if ending == "stopped":
            assert ours.stop() == 0
        else:
            ours.kill()
    wait_until(lambda: not registered(names.address, "broker-a"), 20, "broker forgotten")
    with JavaBroker(NEWEST, tmp_path, names.address, store=store, settings=TIMERS) as theirs:
        theirs.start()
        client.renew(theirs)
        expected = due.keys() - {"later"}
        wait_until(lambda: {body for body, _ in client.stored()} >= expected, 60, "all delivered")
        stored = client.stored()
    assert {body for body, _ in stored} == expected
    for body, store_ms in stored:
        assert store_ms >= due[body] - 1, body
    repeated = {body: n for body, n in Counter(body for body, _ in stored).items() if n > 1}
    # RocketMQ begins the second that was under way again
    assert not repeated if ending == "stopped" else set(repeated.values()) <= {2}


LEVELS = "1s 6s 20s 40s " + "1h " * 14
LEVEL_MS = {1: 1_000, 2: 6_000, 3: 20_000, 4: 40_000}


@pytest.mark.parametrize("version", VERSIONS)
def test_pending_levels_go_from_rocketmq_to_ours_and_back(
    version: str, newest_driver: Driver, names: NameServer, tmp_path: Path
) -> None:
    """The same for the 18 levels, of both releases."""
    store, settings = tmp_path / "store", {"messageDelayLevel": LEVELS}
    client = Stock(newest_driver, names.address, f"levels{version[0]}")
    due: dict[str, int] = {}

    def send(side: str, *levels: int) -> None:
        for level in levels:
            for number in range(5):
                body = f"{side} {level} {number}"
                due[body] = now_ms() + LEVEL_MS[level]
                assert client.send(body, delay=level)["status"] == "SEND_OK"

    def gone() -> None:
        wait_until(lambda: not registered(names.address, "broker-a"), 20, "broker forgotten")

    def java() -> JavaBroker:
        return JavaBroker(version, tmp_path, names.address, store=store, settings=settings)

    with java() as theirs:
        theirs.start()
        client.renew(theirs)
        send("theirs", 4, 3, 2, 1)
        wait_until(lambda: len(client.stored()) >= 5, 20, "the first level delivered")
        theirs.stop()
    gone()
    with Broker(tmp_path, names.address, store=store, settings=settings) as ours:
        ours.start()
        client.renew(ours)
        send("ours", 4, 3, 1)
        wait_until(lambda: len(client.stored()) >= 15, 20, "ours delivers its own and theirs")
        assert ours.stop() == 0
    gone()
    with java() as theirs:
        theirs.start()
        client.renew(theirs)
        wait_until(lambda: {body for body, _ in client.stored()} >= due.keys(), 70, "all delivered")
        stored = client.stored()
    assert Counter(body for body, _ in stored) == Counter(due.keys())
    for body, store_ms in stored:
        assert store_ms >= due[body] - 1, body
