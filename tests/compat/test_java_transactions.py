"""Stock transactional producers work unchanged, and a store with half messages goes from one broker to the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clients import Clients, make_broker, make_name_server, texts

from tandemmq import Message, Producer, ReceivedMessage, TransactionState
from tandemmq.chaos.asking import registered, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.java import VERSIONS, Driver

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


def message(body: str, local: str, check: str = UNKNOWN) -> dict[str, Any]:
    return {"body": body, "keys": body, "tags": "X", "properties": {"local": local, "check": check}}


def test_what_a_producer_commits_arrives_once_and_what_it_rolls_back_never(
    clients: Clients,
) -> None:
    topic, group = clients.topic(), clients.fresh("TxGroup")
    driver, producer = clients.driver, clients.fresh("tx")
    consumer = clients.push(topic)
    driver.call("tx.start", name=producer, group=group)
    sent = driver.call(
        "tx.send", name=producer, topic=topic, messages=[
            message("committed", COMMIT),
            message("rolled back", ROLLBACK),
            message("committed when asked", UNKNOWN, COMMIT),
            message("rolled back when asked", UNKNOWN, ROLLBACK),
        ],
    )  # fmt: skip
    assert {each["status"] for each in sent} == {"SEND_OK"}
    assert [each["state"] for each in sent] == [COMMIT, ROLLBACK, UNKNOWN, UNKNOWN]
    got = driver.wait_messages(consumer, 2)
    assert sorted(texts(got)) == ["committed", "committed when asked"]
    asked = driver.wait_messages(producer, 2)
    assert sorted(texts(asked)) == ["committed when asked", "rolled back when asked"]
    for each in (*got, *asked):
        answer = next(one for one in sent if one["msgId"] == each["properties"]["UNIQ_KEY"])
        assert each["topic"] == topic and each["queueId"] == answer["queueId"]
        assert (each["tags"], each["keys"]) == ("X", texts([each])[0])
    driver.call("tx.send", name=producer, topic=topic, messages=[message("left", UNKNOWN)])
    driver.call("tx.stop", name=producer)
    another = clients.fresh("tx")
    driver.call("tx.start", name=another, group=group, check=COMMIT)
    hello = [message("hello", COMMIT)]  # 5.3.3 says nothing to a broker before it sends
    driver.call("tx.send", name=another, topic=topic, messages=hello)
    assert texts(driver.wait_messages(another, 1)) == ["left"]
    assert len(driver.wait_messages(consumer, 4)) == 4
    time.sleep(1.2)  # two more rounds
    assert len(driver.messages(consumer)) == 4
    assert len(driver.messages(producer)) == 2 + texts(driver.messages(producer)).count("left")
    driver.call("tx.stop", name=another)


async def test_producers_of_other_processes_answer_for_each_other(clients: Clients) -> None:
    """What ours left a stock one is asked about, and the other way round."""
    topic, groups, names = (
        clients.topic(),
        [clients.fresh("Mixed") for _ in range(2)],
        clients.cluster.name_server,
    )
    asked: list[ReceivedMessage] = []

    async def not_known(received: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def known(received: ReceivedMessage) -> TransactionState:
        asked.append(received)
        return TransactionState.COMMIT

    def call(op: str, **fields: Any) -> Any:
        return clients.driver.call(op, **fields)

    consumer = await asyncio.to_thread(clients.push, topic)
    half = Message(topic, b"ours", tags="X", keys="k")
    async with (
        Producer(groups[0], namesrv=names, check_transaction=not_known) as ours,
        ours.transaction(half) as left,
    ):
        left.unknown()
    theirs = clients.fresh("tx")
    await asyncio.to_thread(call, "tx.start", name=theirs, group=groups[0], check=COMMIT)
    hello = [message("hello", COMMIT)]
    await asyncio.to_thread(call, "tx.send", name=theirs, topic=topic, messages=hello)
    (question,) = await asyncio.to_thread(clients.driver.wait_messages, theirs, 1)
    assert texts([question]) == ["ours"] and question["properties"]["UNIQ_KEY"] == left.message_id
    await asyncio.to_thread(call, "tx.stop", name=theirs)

    theirs = clients.fresh("tx")
    await asyncio.to_thread(call, "tx.start", name=theirs, group=groups[1])
    unknown = [message("theirs", UNKNOWN)]
    (sent,) = await asyncio.to_thread(call, "tx.send", name=theirs, topic=topic, messages=unknown)
    await asyncio.to_thread(call, "tx.stop", name=theirs)
    async with Producer(groups[1], namesrv=names, check_transaction=known) as ours:
        await ours.send(Message(topic, b"hello again"))
        await asyncio.to_thread(clients.driver.wait_messages, consumer, 4)
    assert {each.message_id for each in asked} == {sent["msgId"]}
    assert (asked[0].body, asked[0].topic, asked[0].tags) == (b"theirs", topic, "X")
    got = await asyncio.to_thread(clients.driver.messages, consumer)
    assert sorted(texts(got)) == ["hello", "hello again", "ours", "theirs"]


SETTINGS = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionOpBatchInterval": 300,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_half_messages_go_from_us_to_a_stock_broker_and_back(
    version: str, newest_driver: Driver, tmp_path: Path
) -> None:
    driver, store, group, topic = (
        newest_driver,
        tmp_path / "store",
        f"TxMoved{version[0]}",
        "TxMoved",
    )
    with make_name_server(tmp_path) as names:
        where = {"namesrv": names.start().address}

        def send(name: str, messages: Sequence[dict[str, Any]]) -> None:
            driver.call("tx.send", name=name, topic=topic, messages=list(messages))

        def is_asked(name: str, check: str, wanted: set[str]) -> None:
            """A fresh producer is asked about these. A stock broker may ask about others, too: it forgets ends."""
            wait_until(lambda: routed(names.address, topic), 20, "route")
            driver.call("tx.start", name=name, group=group, check=check, **where)
            send(name, [message(f"hello of {name}", COMMIT)])  # it connects when it sends
            wait_until(lambda: wanted <= set(texts(driver.messages(name))), 30, f"{name} is asked")

        def stored(name: str) -> list[str]:
            driver.call("pull.start", name=name, group=f"R{name}", **where)
            found = [
                each
                for queue in driver.call("pull.queues", name=name, topic=topic, **where)
                for each in driver.call(
                    "pull.drain",
                    name=name,
                    topic=topic,
                    broker="broker-a",
                    queueId=queue["queueId"],
                )
            ]
            return sorted(texts(found))

        def gone() -> None:
            wait_until(lambda: not registered(names.address, "broker-a"), 10, "broker forgotten")

        prefix = f"v{version.replace('.', '')}"
        with make_broker(tmp_path / "ours", names.address, store=store, settings=SETTINGS) as ours:
            ours.start()
            driver.call("pull.start", name=f"{prefix}-c", group="C", **where)
            driver.call("pull.create_topic", name=f"{prefix}-c", topic=topic, queues=2,
                        address=ours.address)  # fmt: skip
            wait_until(lambda: routed(names.address, topic), 10, "route")
            driver.call("tx.start", name=f"{prefix}-1", group=group, check=UNKNOWN, **where)
            send(f"{prefix}-1", [message(f"a{n}", COMMIT) for n in range(3)])
            send(
                f"{prefix}-1",
                [message("b", ROLLBACK), message("c", UNKNOWN), message("d", UNKNOWN)],
            )
            driver.wait_messages(f"{prefix}-1", 3)  # some of them a second time
            assert set(texts(driver.messages(f"{prefix}-1"))) == {"c", "d"}
            ours.stop()
        driver.call("tx.stop", name=f"{prefix}-1")
        gone()

        with JavaBroker(
            version, tmp_path / "theirs", names.address, store=store, settings=SETTINGS
        ) as theirs:
            theirs.start()
            is_asked(f"{prefix}-2", UNKNOWN, {"c", "d"})
            send(f"{prefix}-2", [message("e", COMMIT), message("f", UNKNOWN)])
            wait_until(
                lambda: "e" in stored(f"{prefix}-r{time.monotonic_ns()}"), 10, "e is there"
            )  # fmt: skip
            theirs.kill()  # what it noted of these ends is in its memory
        driver.call("tx.stop", name=f"{prefix}-2")
        gone()

        with make_broker(tmp_path / "again", names.address, store=store, settings=SETTINGS) as ours:
            ours.start()
            is_asked(f"{prefix}-3", COMMIT, {"c", "d", "f"})
            expected = sorted(
                ["a0", "a1", "a2", "c", "d", "e", "f"]
                + [f"hello of {prefix}-{n}" for n in (2, 3)]
            )  # fmt: skip
            wait_until(
                lambda: len(stored(f"{prefix}-r{time.monotonic_ns()}")) >= len(expected), 20,
                "everything committed",
            )  # fmt: skip
            time.sleep(1.5)  # one more round
            assert stored(f"{prefix}-s") == expected
            assert sorted(texts(driver.messages(f"{prefix}-3"))) == ["c", "d", "f"]
            driver.call("tx.stop", name=f"{prefix}-3")
            assert ours.stop() == 0
