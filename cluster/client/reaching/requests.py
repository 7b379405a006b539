"""What brokers and tools ask of a client: one handler per request code.

39 tell how a transaction ended, 40 rebalance now, 220 set offsets, 221 tell offsets, 307 tell the state, 309 consume
one message, 326 take the reply to a request.
Source: RocketMQ's ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tandemmq.cluster.client.errors import BrokerAnswerBroken, ClientError
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.producing.replies import AwaitedReplies
from tandemmq.cluster.client.reaching.calls import to_json
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.remoting import Command, Connection, Handler, RequestCode, ResponseCode
from tandemmq.storage import fastjson

if TYPE_CHECKING:
    from tandemmq.cluster.client.reaching.instance import ConsumerRole

log = logging.getLogger(__name__)


class DirectOutcome(enum.Enum):
    """What a listener did with one message that a tool gave it."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    RAISED = "CR_THROW_EXCEPTION"


@dataclass(frozen=True, slots=True)
class DirectResult:
    """The answer to CONSUME_MESSAGE_DIRECTLY."""

    outcome: DirectOutcome
    remark: str
    took_ms: int
    ordered: bool

    def as_json(self) -> bytes:
        """ConsumeMessageDirectlyResult."""
        return msgspec.json.encode(
            {
                "autoCommit": True,
                "consumeResult": self.outcome.value,
                "order": self.ordered,
                "remark": self.remark or None,
                "spentTimeMills": self.took_ms,
            }
        )


#: takes a broker's question how a transaction ended, its half message, and the address where it came from
Checked = Callable[[Command, ReceivedMessage, str], None]


def requests_table(
    consumers: Callable[[], Mapping[str, ConsumerRole]],
    replies: AwaitedReplies,
    checks: Callable[[], Mapping[str, Checked]],
) -> dict[int, Handler]:
    """Request code -> handler. consumers: those of the instance, by group. checks: its producers that answer for
    transactions, by group."""
    asked = Requests(consumers, replies, checks)
    return {
        int(RequestCode.CHECK_TRANSACTION_STATE): asked.handle_check_transaction_state,
        int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED): asked.handle_notify_consumer_ids_changed,
        int(RequestCode.RESET_CONSUMER_CLIENT_OFFSET): asked.handle_reset_consumer_client_offset,
        int(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        ): asked.handle_get_consumer_status_from_client,
        int(RequestCode.GET_CONSUMER_RUNNING_INFO): asked.handle_get_consumer_running_info,
        int(RequestCode.CONSUME_MESSAGE_DIRECTLY): asked.handle_consume_message_directly,
        int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT): asked.handle_push_reply_message_to_client,
    }


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The handlers. A oneway request gets no answer, whatever happens."""

    consumers: Callable[[], Mapping[str, ConsumerRole]]
    replies: AwaitedReplies
    checks: Callable[[], Mapping[str, Checked]]

    def handle_check_transaction_state(self, request: Command, connection: Connection) -> None:
        """Ask the application. Oneway: the answer is a request of its own, and what is wrong only the log says."""
        address = connection.address
        try:
            messages = read_records(request.body or b"", (request.ext or {}).get("bname", ""), 0)
        except BrokerAnswerBroken as problem:
            log.warning("transaction check does not decode address=%s why=%s", address, problem)
            return
        group = messages[0].properties.get("PGROUP", "") if len(messages) == 1 else ""
        checked = self.checks().get(group)
        if checked is None:
            log.warning("transaction check for a group that is not here group=%r", group)
            return
        checked(request, messages[0], address)

    def handle_notify_consumer_ids_changed(self, request: Command, connection: Connection) -> None:
        """Members came or went: every consumer here rebalances, whatever group the header names."""
        for consumer in list(self.consumers().values()):
            consumer.wake()

    def handle_reset_consumer_client_offset(self, request: Command, connection: Connection) -> None:
        """Go on from the positions in the body. Oneway."""
        ext = request.ext or {}
        consumer = self.consumers().get(ext.get("group", ""))
        if consumer is None:
            log.warning("offset reset for a group that is not here group=%s", ext.get("group"))
            return
        try:
            positions = parse_positions(request.body or b"")
        except (ValueError, KeyError, TypeError) as problem:
            log.warning("offset reset does not parse peer=%s why=%r", connection.address, problem)
            return
        topic = ext.get("topic")
        wanted = {queue: at for queue, at in positions.items() if not topic or queue.topic == topic}
        log.info("offsets reset group=%s topic=%s queues=%d", consumer.group, topic, len(wanted))
        consumer.reset_offsets(wanted)

    def handle_get_consumer_status_from_client(
        self, request: Command, connection: Connection
    ) -> Command:
        """Commit positions of the queues held here."""
        ext = request.ext or {}
        consumer = self.consumers().get(ext.get("group", ""))
        positions = {} if consumer is None else consumer.positions(ext.get("topic", ""))
        body = b'{"consumerTable":{},"messageQueueTable":%b}' % queue_map(
            {queue: b"%d" % offset for queue, offset in positions.items()}
        )
        return request.reply(body=body)

    def handle_get_consumer_running_info(self, request: Command, connection: Connection) -> Command:
        """ConsumerRunningInfo: settings, subscriptions, queues and their caches."""
        ext = request.ext or {}
        consumer = self.consumers().get(ext.get("consumerGroup", ""))
        if consumer is None:
            return _no_such_group(request, ext.get("consumerGroup"))
        return request.reply(
            body=consumer.running_state(threads=ext.get("jstackEnable", "").lower() == "true")
        )

    async def _consume(self, request: Command, consumer: ConsumerRole) -> Command:
        ext = request.ext or {}
        try:
            messages = read_records(request.body or b"", ext.get("brokerName", ""), 0)
        except BrokerAnswerBroken as problem:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(problem))
        if len(messages) != 1:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, f"one message is needed, got {len(messages)}"
            )
        try:
            result = await consumer.consume_directly(messages[0])
        except ClientError as problem:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(problem))
        return request.reply(body=result.as_json())

    def handle_consume_message_directly(
        self, request: Command, connection: Connection
    ) -> Command | asyncio.Future[Command] | Any:
        """Run the listener on the message in the body."""
        ext = request.ext or {}
        consumer = self.consumers().get(ext.get("consumerGroup", ""))
        if consumer is None:
            return _no_such_group(request, ext.get("consumerGroup"))
        return self._consume(request, consumer)

    def handle_push_reply_message_to_client(
        self, request: Command, connection: Connection
    ) -> Command:
        """Give a reply to the request that waits for it."""
        try:
            self.replies.take(request)
        except ValueError as problem:
            log.warning("reply cannot be read peer=%s why=%s", connection.address, problem)
            return request.reply(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        return request.reply()


def _no_such_group(request: Command, group: str | None) -> Command:
    return request.reply(
        ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
    )


def parse_positions(body: bytes | memoryview) -> dict[MessageQueue, int]:
    """ResetOffsetBody in either form: objects as keys, or a list of entries with `offset`.

    Raises ValueError, KeyError, TypeError when it is neither.
    """
    table = fastjson.loads(bytes(body)).get("offsetTable") or {}
    if isinstance(table, list):
        return {_queue(entry): int(entry["offset"]) for entry in table}
    return {
        _queue(fastjson.loads(key) if isinstance(key, str) else key): int(offset)
        for key, offset in table.items()
    }


def _queue(tree: Any) -> MessageQueue:
    return MessageQueue(str(tree["topic"]), str(tree["brokerName"]), int(tree["queueId"]))


def queue_map(values: Mapping[MessageQueue, bytes]) -> bytes:
    """{queue: value} with objects as keys, as the Java side reads it. values: JSON already."""
    parts = [b"%b:%b" % (to_json(queue), value) for queue, value in sorted(values.items())]
    return b"{%b}" % b",".join(parts)
