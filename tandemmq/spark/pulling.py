"""What an executor does on the pull path: some ranges of queues, by our client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from tandemmq.cluster.client import ReceivedMessage, Sql92
from tandemmq.cluster.client.consuming.ranges import MessagesGone, QueueRangeReader
from tandemmq.cluster.client.consuming.subscriptions import Subscription, parse_subscription
from tandemmq.cluster.client.reaching import instance as instances
from tandemmq.spark.batches import BATCH_BYTES, BATCH_ROWS, bytes_of
from tandemmq.spark.cluster import client_config, queue_of
from tandemmq.spark.options import ReadOptions
from tandemmq.spark.planning import QueueRange, lost
from tandemmq.spark.positions import QueueKey

log = logging.getLogger(__name__)


def subscription_of(options: ReadOptions, topic: str) -> Subscription:
    """What is wanted of a topic. Raises MessageRefused."""
    wanted = Sql92(options.sql92) if options.sql92 else options.tags or "*"
    return parse_subscription(topic, wanted, 0)


def pulled(
    options: ReadOptions, pieces: Sequence[QueueRange], *, decoded: bool = True
) -> Iterator[Sequence[ReceivedMessage]]:
    """The wanted messages of some ranges, one after the other, in order.

    decoded  False: as the records that they are, where that is possible
    Raises DataLost, ClientError when the queue's brokers stay away for retryTimeoutMs.
    """
    config = client_config(options.cluster)
    with asyncio.Runner() as runner:
        instance = runner.run(instances.lease(config))
        try:
            for piece in pieces:
                queue = queue_of(piece.queue)
                reader = QueueRangeReader(
                    instance,
                    options.group,
                    queue,
                    piece.start,
                    piece.end,
                    subscription_of(options, queue.topic),
                    options.cluster.retry_timeout_ms,
                    decoded=decoded,
                )
                while found := runner.run(_some(reader, options.fails_on_loss)):
                    yield from found
        finally:
            runner.run(instances.release(instance))


async def _some(reader: QueueRangeReader, fails_on_loss: bool) -> list[Sequence[ReceivedMessage]]:
    """About as many as make a batch; none when the range is read whole."""
    found: list[Sequence[ReceivedMessage]] = []
    rows = size = 0
    while rows < BATCH_ROWS and size < BATCH_BYTES:
        try:
            messages = await reader.read()
        except MessagesGone as problem:
            queue = problem.queue
            key = QueueKey(queue.topic, queue.broker_name, queue.queue_id)
            missing = QueueRange(key, problem.start, problem.end)
            lost(missing, str(problem), None if fails_on_loss else log.warning)
            reader.skip_to(problem.end)
            continue
        if not messages:
            break
        found.append(messages)
        rows += len(messages)
        size += bytes_of(messages)
    await reader.rest()  # the loop stands still while Spark takes the batch
    return found
