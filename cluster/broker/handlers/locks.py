"""Requests of consumers that consume in order: locking queues and giving them back."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from tandemmq.cluster.broker.handlers.requests import (
    Refused,
    check_group,
    dumps,
    parse_body,
    queue_json,
    read_body,
    refusing,
)
from tandemmq.cluster.broker.reading.locks import QueueLocks, QueueName
from tandemmq.cluster.broker.reading.members import ConsumerMembers, Peer
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import VERSION_V3_1_8, RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.errors import ConnectionLost, RemotingError
from tandemmq.cluster.remoting.headers import Int32
from tandemmq.storage import Clock

log = logging.getLogger(__name__)
_silent = once_per(10)

QUEUES_MAX: Final = 20_000  # of one request
ASK_TIMEOUT_MS: Final = 800  # clients wait a second for their locks


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


class QueueState(msgspec.Struct):
    """What a member says of one queue; `locked` also of one that it is about to leave, at work still."""

    locked: bool = False


class MemberState(msgspec.Struct):
    """Of the answer to GET_CONSUMER_RUNNING_INFO; keys are queues as JSON text."""

    mqTable: dict[str, QueueState] | None = None

    def locked(self) -> list[QueueName]:
        """The queues it goes by a lock of. Raises Refused."""
        names = [key for key, state in (self.mqTable or {}).items() if state.locked]
        wanted = [parse_body(QueueOnWire, name.encode()) for name in names[:QUEUES_MAX]]
        return [QueueName(each.topic, each.broker_name, each.queue_id) for each in wanted]


class LockHandlers:
    """Source: RocketMQ's AdminBrokerProcessor, lockBatchMQ and unlockBatchMQ.

    name  of this broker's group: locks of other groups' queues are not ours to keep
    """

    def __init__(
        self,
        locks: QueueLocks,
        consumers: ConsumerMembers,
        standing: Standing,
        name: str,
        clock: Clock,
    ) -> None:
        self._locks = locks
        self._standing = standing
        self._consumers = consumers
        self._name = name
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: refusing(self.handle_lock_batch_mq),
            RequestCode.UNLOCK_BATCH_MQ: refusing(self.handle_unlock_batch_mq),
        }

    async def handle_lock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        check_group(body.consumer_group)
        queues = body.queues()
        # A client whose route is old asks who is no master any more, and that one knows of no lock.
        if self._standing.role is Role.SLAVE or not await self._all_known(body.consumer_group):
            queues = []  # who asks again soon may have them
        granted = self._locks.lock(
            body.consumer_group, body.client_id, queues, self._clock.monotonic_ms()
        )
        listed = [queue_json(*queue) for queue in granted]
        return command.reply(body=dumps({"lockOKMQSet": listed}))

    async def _all_known(self, group: str) -> bool:
        """Ask each member once in a reign what it holds by locks of the reign before; False: one did not say.

        RocketMQ's brokers do not, and after a change of the master two members may consume one queue.
        """
        ids = self._consumers.client_ids(group)
        unasked = self._locks.unasked(group, ids, self._clock.monotonic_ms())
        answers = await asyncio.gather(*(self._ask(group, client_id) for client_id in unasked))
        return all(answers)

    async def _ask(self, group: str, client_id: str) -> bool:
        member = self._consumers.find(group, client_id)
        if member is None or member.version < VERSION_V3_1_8:
            return True
        request = Command(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"},
        )
        try:
            answer = await member.connection.request(request, ASK_TIMEOUT_MS)
            state = await read_body(MemberState, answer)
            held = [queue for queue in state.locked() if queue.broker_name == self._name]
        except ConnectionLost:
            return True  # it is gone
        except (RemotingError, Refused) as problem:
            _silent.warning(
                log,
                "locks of a member not known group=%s client=%s why=%s",
                group,
                client_id,
                problem,
            )
            return False
        self._locks.claimed(group, client_id, held, self._clock.monotonic_ms())
        return True

    async def handle_unlock_batch_mq(self, command: Command, connection: Peer) -> Command:
        body = await read_body(LockBody, command)
        self._locks.unlock(body.consumer_group, body.client_id, body.queues())
        return command.reply()
