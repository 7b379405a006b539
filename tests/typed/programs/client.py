"""A user's program: the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tandemmq import (
    Admin,
    ClientError,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendResult,
    Sql92,
    StartFrom,
    Subscription,
    TransactionState,
)


async def handle(message: ReceivedMessage) -> ConsumeResult | RetryLater | None:
    if message.reconsume_times > 3:
        return RetryLater(-1)
    return None if message.body else ConsumeResult.RECONSUME_LATER


def handle_many(messages: Sequence[ReceivedMessage]) -> int:
    return len([each for each in messages if each.tags == "created"])


async def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT if message.keys else TransactionState.UNKNOWN


async def main() -> None:
    async with Producer("shop", namesrv="127.0.0.1:9876", check_transaction=check) as producer:
        result: SendResult = await producer.send(
            Message("Orders", b"17", tags="created", keys=["a"])
        )
        offset: int = result.queue_offset
        print(offset, [str(queue) for queue in await producer.queues("Orders")])
        async for each in producer.send_many(Message("Orders", b"%d" % n) for n in range(3)):
            print(each.message_id.lower())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(producer.send(Message("Orders", b"18"), ordering_key="a"))
        print(task.result().ok)
        try:
            reply = await producer.request(Message("Prices", b"17"))
            print(reply.body.decode())
        except ClientError as problem:
            print(problem.advice)
        async with producer.transaction(Message("Orders", b"19")) as transaction:
            print(transaction.message_id)
    async with PushConsumer("billing", handle, subscribe={"Orders": Sql92("a > 1")}) as consumer:
        await consumer.wait()
    async with PushConsumer("report", on_batch=handle_many, subscribe={"Orders": "a || b"}):
        await asyncio.sleep(1)
    async with PullConsumer("pull", subscribe={"Orders": "*"}, start=StartFrom.FIRST) as puller:
        async for message in puller:
            print(message.queue.queue_id + message.queue_offset)
    async with Subscription("one", subscribe={"Orders": "*"}) as orders:
        async for delivery in orders:
            delivery.ack()
    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", 8)
        masters: dict[str, str] = await admin.masters()
        print(masters)


asyncio.run(main())
