"""Replies of consumers to requests: SEND_REPLY_MESSAGE_V2 to any broker of the request's cluster."""

from __future__ import annotations

import asyncio
from typing import Final

from tandemmq.cluster.client.errors import BrokerRefused, ClientError, SendFailed
from tandemmq.cluster.client.message import Message
from tandemmq.cluster.client.producing.budget import Budget, part_ms
from tandemmq.cluster.client.producing.producer import COMPRESSED_IN_THREAD_BYTES
from tandemmq.cluster.client.producing.selection import QueueRing, worth_retrying
from tandemmq.cluster.client.producing.sending import (
    compressed,
    prepare,
    send_command,
    send_result,
)
from tandemmq.cluster.client.reaching.instance import RETRY_PAUSE_S, ClientInstance
from tandemmq.cluster.remoting import RequestCode

ATTEMPTS: Final = 3  # as many as a send has
COMPRESS_ABOVE_BYTES: Final = 4_096  # as producers do, and how
COMPRESSION_LEVEL: Final = 5


async def send_reply(instance: ClientInstance, group: str, reply: Message, timeout_ms: int) -> None:
    """Have a broker push the reply to whoever waits for it; after a failure another broker, if there is one.

    group  the replier's, as brokers know it
    Raises BrokerRefused when the requester is not there any more, SendFailed, NoRoute, NoNameServer.
    """
    how = (COMPRESS_ABOVE_BYTES, COMPRESSION_LEVEL)
    if len(reply.body) >= COMPRESSED_IN_THREAD_BYTES:
        packed = await asyncio.to_thread(compressed, reply.body, *how)
    else:
        packed = compressed(reply.body, *how)
    now_ms = instance.clock.now_ms()
    what = prepare(reply, instance.ids.next(now_ms), now_ms, *packed)
    budget = Budget(asyncio.get_running_loop().time(), timeout_ms)
    ring = QueueRing(instance.rng)
    tried: list[str] = []
    causes: list[ClientError] = []
    while len(tried) < ATTEMPTS and (not tried or budget.left_ms() > 0):
        queue = ring.pick(await instance.publish_queues(what.topic), tried[-1] if tried else None)
        left_ms = part_ms(budget.left_ms(), ATTEMPTS - len(tried), None)
        tried.append(queue.broker_name)
        command = send_command(what, queue, group)
        command.code = RequestCode.SEND_REPLY_MESSAGE_V2
        try:
            address = await instance.master_address(queue.broker_name, what.topic)
            answer = await instance.connections.request(address, command, left_ms)
            send_result(answer, what.topic, what.unique_id, queue, address)
            return
        except ClientError as problem:
            causes.append(problem)
            if not worth_retrying(problem):
                raise
            if not isinstance(problem, BrokerRefused):
                instance.refresh_soon()
        await asyncio.sleep(RETRY_PAUSE_S)  # a requester that connects again needs as long
    if isinstance(causes[-1], BrokerRefused):
        raise causes[-1]
    raise SendFailed(what.topic, tried, causes, budget.spent_ms()) from causes[-1]
