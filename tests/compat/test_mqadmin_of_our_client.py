"""The stock mqadmin, old and new, asks our brokers about our clients, and reads the traces they write."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from clients import Clients
from inbox import Inbox, eventually
from test_mqadmin import admin, table, topic_option

from tandemmq import (
    TRACE_TOPIC,
    Admin,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from tandemmq.admin.messages import read_traces

pytestmark = pytest.mark.parametrize(
    "driver", [("4.9.7", "json"), ("5.3.3", "json")], indirect=True, ids="-".join
)


def consuming(
    clients: Clients, topic: str, group: str, listener: object, **more: object
) -> PushConsumer:
    options = {"namesrv": clients.cluster.name_server, "subscribe": {topic: "*"}, **more}
    return PushConsumer(group, listener, start=StartFrom.FIRST, **options)  # type: ignore[arg-type]


async def asking(clients: Clients, command: str, *arguments: str) -> str:
    return await asyncio.to_thread(admin, clients, command, *arguments)


async def until_printed(ask: Callable[[], list[list[str]]], rows: int) -> list[list[str]]:
    """What a command prints once it has so many rows."""
    printed: list[list[str]] = []
    try:
        async with asyncio.timeout(30):
            while len(printed) < rows:
                await asyncio.sleep(0.5)
                printed = await asyncio.to_thread(ask)
    except TimeoutError:
        raise AssertionError(f"less than {rows} rows: {printed}") from None
    return printed


def our_admin(clients: Clients, *arguments: str) -> Any:
    """What `tandem admin` prints as JSON."""
    command = [sys.executable, "-m", "tandemmq", "admin", *arguments, "--json"]
    run = subprocess.run(
        [*command, "-n", clients.cluster.name_server],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(run.stdout)


async def test_mqadmin_reads_the_traces_that_our_client_writes(clients: Clients) -> None:
    topic, group = clients.topic(), clients.fresh("Traced")
    for traces in (TRACE_TOPIC, clients.topic(1)):

        async def once(message: ReceivedMessage) -> ConsumeResult | None:
            return None if message.reconsume_times else ConsumeResult.RECONSUME_LATER

        names = clients.cluster.name_server
        producer = Producer("OurProducers", namesrv=names, trace_topic=traces)
        async with producer, consuming(clients, topic, group, once, trace_topic=traces):
            result = await producer.send(Message(topic, b"1", tags="A", keys="k"))
            batch = await producer.send_batch([Message(topic, b"2"), Message(topic, b"3")])

            def asked(message_id: str, traces: str = traces) -> list[list[str]]:
                printed = clients.driver.mqadmin(
                    "queryMsgTraceById",
                    "-i",
                    message_id,
                    "-t",
                    traces,
                    "-n",
                    clients.cluster.name_server,
                )
                # The trace topic is there with the first trace, its route and index a moment later
                return [] if "Exception" in printed else table(printed)

            wanted = result.message_ids if traces == TRACE_TOPIC else batch.message_ids
            for message_id in wanted:
                rows = await until_printed(lambda asked=asked, of=message_id: asked(of), 3)
                assert sorted((row[0], row[1], row[-1]) for row in rows) == [
                    ("Pub", "OurProducers", "success"),
                    ("Sub", group, "failed"),
                    ("Sub", group, "success"),
                ]


async def test_our_admin_reads_the_traces_that_java_writes(clients: Clients) -> None:
    topic, traces, group = clients.topic(), clients.topic(1), clients.fresh("Traced")
    name = clients.fresh("traced")
    call = clients.driver.call
    await asyncio.to_thread(
        call, "producer.start", name=name, group="JavaTraced", traceTopic=traces
    )
    clients.push(topic, group=group, traceTopic=traces)
    sent = await asyncio.to_thread(
        call, "send.sync", name=name, topic=topic, messages=[{"body": "1", "keys": "k"}]
    )

    def asked() -> list[list[str]]:
        arguments = ["queryMsgTraceById", "-i", sent[0]["msgId"], "-t", traces]
        return [
            [each["type"], each["group"], each["status"]] for each in our_admin(clients, *arguments)
        ]

    assert sorted(await until_printed(asked, 2)) == [
        ["Pub", "JavaTraced", "success"],
        ["Sub", group, "success"],
    ]
    await asyncio.to_thread(call, "producer.stop", name=name)


async def test_mqadmin_reads_on_over_the_ends_of_transactions_that_our_client_writes(
    clients: Clients,
) -> None:
    """Stock mqadmin shows no EndTransaction records, of Java's clients either: it must only not stumble over them."""
    topic, traces = clients.topic(), clients.topic(1)
    names = clients.cluster.name_server

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        Producer("OurTx", namesrv=names, trace_topic=traces, check_transaction=check) as producer,
        producer.transaction(Message(topic, b"1", keys="k")) as committed,
    ):
        pass

    def asked() -> list[list[str]]:
        of = ("queryMsgTraceById", "-i", committed.message_id, "-t", traces, "-n", names)
        printed = clients.driver.mqadmin(*of)
        return [] if "Exception" in printed else table(printed)

    rows = await until_printed(asked, 1)
    assert [(row[0], row[1], row[-1]) for row in rows] == [("Pub", "OurTx", "success")]
    async with Admin(names) as ours:
        found = await ours.messages_by_key(traces, committed.message_id)
    assert [trace["status"] for each in found for trace in read_traces(each, committed.message_id)] == [
        "success", "COMMIT_MESSAGE",
    ]  # fmt: skip


async def test_our_admin_reads_how_javas_transactions_ended(clients: Clients) -> None:
    topic, traces, name = clients.topic(), clients.topic(1), clients.fresh("tx")
    call = clients.driver.call
    await asyncio.to_thread(call, "tx.start", name=name, group="JavaTx", traceTopic=traces)
    message = {"body": "1", "properties": {"local": "UNKNOW", "check": "ROLLBACK_MESSAGE"}}
    sent = await asyncio.to_thread(call, "tx.send", name=name, topic=topic, messages=[message])
    message_id = sent[0]["msgId"]

    def asked() -> list[list[str]]:
        arguments = ["queryMsgTraceById", "-i", message_id, "-t", traces]
        return [
            [each["type"], each["group"], each["status"]] for each in our_admin(clients, *arguments)
        ]

    assert sorted(await until_printed(asked, 3)) == [
        ["End", "JavaTx", "ROLLBACK_MESSAGE, asked"],
        ["End", "JavaTx", "UNKNOW"],
        ["Pub", "JavaTx", "success"],
    ]
    await asyncio.to_thread(call, "tx.stop", name=name)


async def test_our_consumer_says_what_it_is_and_takes_a_message_directly(clients: Clients) -> None:
    topic, group, inbox = clients.topic(2), clients.fresh("Asked"), Inbox()
    async with Producer("PG", namesrv=clients.cluster.name_server) as producer:
        placed = [await producer.send(Message(topic, b"%d" % n)) for n in range(4)]
    async with consuming(clients, topic, group, inbox):
        await inbox.count(4)
        (client_id, *_) = next(
            row
            for row in table(await asking(clients, "consumerConnection", "-g", group))
            if "@" in row[0]
        )
        listed = await asking(clients, "consumerStatus", "-g", group)
        assert client_id in listed and "Rebalance OK" in listed
        state = await asking(clients, "consumerStatus", "-g", group, "-i", client_id)
        assert "PROP_CONSUME_TYPE" in state and "CONSUME_PASSIVELY" in state
        rows = [row for row in table(state) if row[:2] == [topic, "broker-a"]]
        assert (
            len({tuple(row[1:3]) for row in rows if len(row) > 5}) == 2
        )  # both queues and their caches
        # 221: RocketMQ has this command and does not list it
        status = ["getConsumerStatus", "-g", group, "-t", topic, "-i", client_id]
        held = [row for row in table(await asking(clients, *status)) if row[:1] == [client_id]]
        assert sorted(row[1:3] for row in held) == [["broker-a", "0"], ["broker-a", "1"]]
        assert sum(int(row[3]) for row in held) == 4
        stacks = await asking(clients, "consumerStatus", "-g", group, "-i", client_id, "-s")
        assert "consume " + group in stacks

        direct = [
            "queryMsgById", "-i", placed[0].offset_message_id, "-g", group, "-d", client_id,
            *topic_option(clients, topic),
        ]  # fmt: skip
        said = await asking(clients, *direct)
        assert "CR_SUCCESS" in said
        await inbox.count(5)
        assert inbox.messages[-1].message_id == placed[0].message_id


async def test_our_consumer_goes_on_where_mqadmin_resets_it(clients: Clients) -> None:
    """By its broker's word, and as told by the broker itself (useServerSideResetOffset=false)."""
    topic, group, inbox = clients.topic(2), clients.fresh("Reset"), Inbox()
    at = ["-b", clients.cluster.broker.address, "-k", "useServerSideResetOffset"]
    async with Producer("PG", namesrv=clients.cluster.name_server) as producer:
        for n in range(6):
            await producer.send(Message(topic, b"%d" % n))
    async with consuming(clients, topic, group, inbox) as consumer:
        await inbox.count(6)
        for count, by_broker in ((12, "true"), (18, "false")):
            await eventually(lambda: len(consumer.assignment) >= 2, "the queues")
            if by_broker == "false":
                await asyncio.sleep(6)  # its positions are committed: members are told only then
                await asking(clients, "updateBrokerConfig", *at, "-v", "false")
            try:
                printed = await asking(
                    clients, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0"
                )
                assert len([row for row in table(printed) if row[:1] == ["broker-a"]]) == 2
                await inbox.count(count)
            finally:
                if by_broker == "false":
                    await asking(clients, "updateBrokerConfig", *at, "-v", "true")
    assert sorted(inbox.bodies) == sorted(b"%d" % n for n in range(6) for _ in range(3))


async def test_a_clone_of_our_groups_progress_begins_where_it_is(clients: Clients) -> None:
    topic, source, target = clients.topic(2), clients.fresh("Source"), clients.fresh("Target")
    inbox, later = Inbox(), Inbox()
    async with Producer("PG", namesrv=clients.cluster.name_server) as producer:
        for n in range(4):
            await producer.send(Message(topic, b"%d" % n))
        async with consuming(clients, topic, source, inbox):
            await inbox.count(4)
        await asking(clients, "updateSubGroup", "-g", target, "-b", clients.cluster.broker.address)
        await asking(
            clients, "cloneGroupOffset", "-s", source, "-d", target, "-t", topic, "-o", "true"
        )
        await producer.send(Message(topic, b"after"))
        async with consuming(clients, topic, target, later):
            await later.count(1)
            await asyncio.sleep(0.5)
            assert later.bodies == [b"after"]
            async with Admin(clients.cluster.name_server) as ours:  # asks the broker to do it
                await ours.reset(source, topic, 0)
                await ours.clone_offsets(source, target, topic)
            await later.count(6)
    assert later.bodies == sorted([b"after"] * 2 + [b"%d" % n for n in range(4)])
