"""SEND_REPLY_MESSAGE (324, 325): the reply to a request, carried to the client that waits for it.

The requester is known here by its heartbeats as a producer; whichever broker a replier chooses passes
the reply on. Source: RocketMQ's ReplyMessageProcessor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
from collections.abc import Awaitable
from typing import Final

from tandemmq.cluster.broker.errors import BrokerBusy, RequestMalformed
from tandemmq.cluster.broker.handlers.send import SendHandler, encoded
from tandemmq.cluster.broker.reading.members import Peer, ProducerMembers
from tandemmq.cluster.broker.replies import REFUSALS, refusal
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.errors import RemotingError
from tandemmq.cluster.remoting.headers import SendHeader
from tandemmq.storage import Clock, get_property, join_properties, unpack_host

log = logging.getLogger(__name__)
_not_pushed = once_per(10)
_not_stored = once_per(10)

PUSH_TIMEOUT_MS: Final = 10_000  # how long the requester may take, as RocketMQ waits
PUSHES_MAX: Final = 10_000  # under way at once, as many as RocketMQ queues up
STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class ReplyHandler:
    """Pushes replies to requesters; with storeReplyMessageEnable each is stored in its topic, too.

    sends       checks a reply as it does a message, and stores it
    store_host  the address clients know us by, packed
    """

    def __init__(
        self,
        config: BrokerConfig,
        sends: SendHandler,
        producers: ProducerMembers,
        standing: Standing,
        *,
        store_host: bytes,
        clock: Clock,
    ) -> None:
        self._config = config
        self._sends = sends
        self._producers = producers
        self._standing = standing
        self._store_host = "{}:{}".format(*unpack_host(store_host))
        self._clock = clock
        self._pushes = 0

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.handle_send_reply_message,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle_send_reply_message_v2,
        }

    async def handle_send_reply_message(
        self, request: Command, connection: Connection
    ) -> Command | None:
        """Push the reply, then store it; the answer says whether the requester has it."""
        refused = self._standing.refusal()
        waits = refused is not None and refused.wait_ms != 0
        if refused is not None and waits:
            await asyncio.wait((self._standing.changes.settled(refused.wait_ms),))
        try:
            header = SendHeader.of(request)
            if request.body is None:
                raise RequestMalformed("the reply has no body")
        except REFUSALS as error:
            return refusal(request, error)
        try:
            self._sends.checked_topic(header, connection, paused=waits)
            if self._pushes >= PUSHES_MAX:
                raise BrokerBusy(f"{self._pushes} replies wait for their requesters here")
        except RequestMalformed as error:
            return refusal(request, error)
        except REFUSALS as error:
            return refusal(request, error, self._sends.marks)
        failure = await self._push(request, header, connection)
        if self._config.replies_stored:
            kept = self._store(request, connection, answered=failure is None)
            stored = await kept if inspect.isawaitable(kept) else kept
            if stored is not None and stored.code not in STORED:
                _not_stored.warning(log, "reply not stored why=%s", stored.remark)
            elif failure is None:
                return stored
        if failure is not None:
            _not_pushed.warning(log, "reply not pushed why=%s", failure)
            return request.reply(ResponseCode.SYSTEM_ERROR, failure, dict(self._sends.marks))
        placed = {"msgId": "0", "queueId": str(max(header.queue_id, 0)), "queueOffset": "0"}
        return request.reply(ext={**placed, **self._sends.marks})

    handle_send_reply_message_v2 = handle_send_reply_message

    def _store(
        self, request: Command, connection: Connection, *, answered: bool
    ) -> Command | Awaitable[Command | None] | None:
        """answered: storing answers the replier; else it must not, as the answer is a failure."""
        if not answered:
            request = dataclasses.replace(request, flag=request.flag | ONEWAY_FLAG)
        return self._sends.handle_send_message(request, connection)

    async def _push(
        self, request: Command, header: SendHeader, connection: Connection
    ) -> str | None:
        """Hand the reply to its requester; None when it was taken, else why not."""
        properties = encoded(header.properties)
        wanted = get_property(properties, b"REPLY_TO_CLIENT")
        if wanted is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        client_id = wanted.decode("utf-8", "replace")
        requester = self._producers.by_client_id(client_id)
        if requester is None or requester.closed:
            return f"push reply message fail, channel of <{client_id}> not found."
        self._pushes += 1
        try:
            pushed = self._pushed(request, header, properties, connection)
            answer = await requester.request(pushed, PUSH_TIMEOUT_MS)
        except RemotingError as problem:
            return f"push reply message to {client_id} fail: {problem}"
        finally:
            self._pushes -= 1
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: {answer.remark}"
        return None

    def _pushed(
        self, request: Command, header: SendHeader, properties: bytes, replier: Peer
    ) -> Command:
        """PUSH_REPLY_MESSAGE_TO_CLIENT. Source: RocketMQ's ReplyMessageRequestHeader."""
        now_ms = self._clock.now_ms()
        mark = messages.property_bytes(messages.PUSH_REPLY_TIME, str(now_ms))
        host, port = replier.peer
        ext = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queue_nums),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp),
            "flag": str(header.flag),
            "properties": join_properties(properties, mark).decode("utf-8", "replace"),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": str(header.unit_mode).lower(),
            "bornHost": f"{host}:{port}",
            "storeHost": self._store_host,
            "storeTimestamp": str(now_ms),
        }
        return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, request.body)
