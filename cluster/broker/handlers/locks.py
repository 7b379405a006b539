"""Requests of consumers that consume in order: locking queues and giving them back."""

from __future__ import annotations

import msgspec

from cluster.broker.handlers.requests import check_group, dumps, parse_body, queue_json, refusing
from cluster.broker.locks import QueueLocks, QueueName
from cluster.broker.members import Peer
from cluster.remoting.codes import RequestCode
from cluster.remoting.command import Command
from cluster.remoting.connection import Handler
from storage import Clock


class QueueOnWire(msgspec.Struct, rename="camel"):
    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


class LockBody(msgspec.Struct, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[QueueOnWire] | None = None

    def queues(self) -> list[QueueName]:
        return [
            QueueName(queue.topic, queue.broker_name, queue.queue_id) for queue in self.mq_set or ()
        ]


class LockHandlers:
    """Source: spec "Rebalance locks for ordered consumption"."""

    def __init__(self, locks: QueueLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: refusing(self.handle_lock_batch_mq),
            RequestCode.UNLOCK_BATCH_MQ: refusing(self.handle_unlock_batch_mq),
        }

    def handle_lock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = parse_body(LockBody, command.body or b"{}")
        check_group(body.consumer_group)
        granted = self._locks.lock(
            body.consumer_group, body.client_id, body.queues(), self._clock.monotonic_ms()
        )
        queues = [queue_json(*queue) for queue in granted]
        return command.reply(body=dumps({"lockOKMQSet": queues}))

    def handle_unlock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = parse_body(LockBody, command.body or b"{}")
        self._locks.unlock(body.consumer_group, body.client_id, body.queues())
        return command.reply()
