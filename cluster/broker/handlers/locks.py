"""Requests of consumers that consume in order: locking queues and giving them back."""

from __future__ import annotations

from typing import Final

import msgspec

from tandemmq.cluster.broker.handlers.requests import (
    Refused,
    check_group,
    dumps,
    queue_json,
    read_body,
    refusing,
)
from tandemmq.cluster.broker.reading.locks import QueueLocks, QueueName
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import Int32
from tandemmq.storage import Clock

QUEUES_MAX: Final = 20_000  # of one request


class QueueOnWire(msgspec.Struct, rename="camel"):
    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0


class LockBody(msgspec.Struct, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[QueueOnWire] | None = None

    def queues(self) -> list[QueueName]:
        """The queues it names; those with impossible names are nobody's. Raises Refused."""
        wanted = self.mq_set or ()
        if len(wanted) > QUEUES_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(wanted)} queues in one request, more than {QUEUES_MAX}",
            )
        return [
            QueueName(queue.topic, queue.broker_name, queue.queue_id)
            for queue in wanted
            if names.check_topic_name(queue.topic) is None
            and names.check_topic_name(queue.broker_name) is None
        ]


class LockHandlers:
    """Source: RocketMQ's AdminBrokerProcessor, lockBatchMQ and unlockBatchMQ."""

    def __init__(self, locks: QueueLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: refusing(self.handle_lock_batch_mq),
            RequestCode.UNLOCK_BATCH_MQ: refusing(self.handle_unlock_batch_mq),
        }

    async def handle_lock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        check_group(body.consumer_group)
        granted = self._locks.lock(
            body.consumer_group, body.client_id, body.queues(), self._clock.monotonic_ms()
        )
        queues = [queue_json(*queue) for queue in granted]
        return command.reply(body=dumps({"lockOKMQSet": queues}))

    async def handle_unlock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        self._locks.unlock(body.consumer_group, body.client_id, body.queues())
        return command.reply()
