"""Requests of consumers that consume in order: locking queues and giving them back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
class LockHandlers:
    """Source: RocketMQ's AdminBrokerProcessor, lockBatchMQ and unlockBatchMQ.

    readers  slaves, which must know of a lock before its holder does
    """

    locks: QueueLocks
    standing: Standing
    readers: TableReaders
    clock: Clock

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
            now_ms = self.clock.monotonic_ms()
            granted = self.locks.lock(group, client_id, body.queues(), now_ms)
            if new := self.locks.unkept(group, granted):
                granted = [queue for queue in granted if queue not in new]
                if await self._kept(group):
                    granted += self.locks.kept(group, new)
        listed = [queue_json(*queue) for queue in granted]
        return command.reply(body=dumps({"lockOKMQSet": listed}))

    @property
    def _gives(self) -> bool:
        """Whether this is the master for certain. A client whose route is old asks who is none any more, and one that
        may have been replaced would prolong what its successor gives away."""
        refused = self.standing.refusal()
        replaced = refused is not None and isinstance(refused.why, NotMaster)
        return self.standing.role is not Role.SLAVE and not replaced

    async def _kept(self, group: str) -> bool:
        """Wait until the locks of now outlive this process and, where sends wait for slaves, this broker."""
        try:
            await self.locks.file.saved()
            lacking = await self.readers.share()
        except (OSError, NotMaster) as problem:
            lacking = str(problem)
        if lacking is not None:
            _silent.warning(log, "queue locks not given yet group=%s why=%s", group, lacking)
        return lacking is None

    async def handle_unlock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        self.locks.unlock(body.consumer_group, body.client_id, body.queues())
        return command.reply()
