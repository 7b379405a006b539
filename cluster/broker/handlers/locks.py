"""Requests of consumers that consume in order: locking queues and giving them back."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tandemmq.cluster.broker.errors import NotMaster
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
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import Int32
from tandemmq.storage import Clock

log = logging.getLogger(__name__)
_silent = once_per(10)

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
    """Source: RocketMQ's AdminBrokerProcessor, lockBatchMQ and unlockBatchMQ.

    readers  slaves, which must know of a lock before its holder does
    """

    def __init__(
        self, locks: QueueLocks, standing: Standing, readers: TableReaders, clock: Clock
    ) -> None:
        self._locks = locks
        self._standing = standing
        self._readers = readers
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: refusing(self.handle_lock_batch_mq),
            RequestCode.UNLOCK_BATCH_MQ: refusing(self.handle_unlock_batch_mq),
        }

    async def handle_lock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        group, client_id = body.consumer_group, body.client_id
        check_group(group)
        granted: list[QueueName] = []
        if self._gives:  # who is refused asks again soon
            now_ms = self._clock.monotonic_ms()
            granted = self._locks.lock(group, client_id, body.queues(), now_ms)
            if new := self._locks.unkept(group, granted):
                granted = [queue for queue in granted if queue not in new]
                if await self._kept(group):
                    granted += self._locks.kept(group, new)
        listed = [queue_json(*queue) for queue in granted]
        return command.reply(body=dumps({"lockOKMQSet": listed}))

    @property
    def _gives(self) -> bool:
        """Whether this is the master for certain. A client whose route is old asks who is none any more, and one that
        may have been replaced would prolong what its successor gives away."""
        refused = self._standing.refusal()
        replaced = refused is not None and isinstance(refused.why, NotMaster)
        return self._standing.role is not Role.SLAVE and not replaced

    async def _kept(self, group: str) -> bool:
        """Wait until the locks of now outlive this process and, where sends wait for slaves, this broker."""
        try:
            await self._locks.file.saved()
            lacking = await self._readers.share()
        except (OSError, NotMaster) as problem:
            lacking = str(problem)
        if lacking is not None:
            _silent.warning(log, "queue locks not given yet group=%s why=%s", group, lacking)
        return lacking is None

    async def handle_unlock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        self._locks.unlock(body.consumer_group, body.client_id, body.queues())
        return command.reply()
