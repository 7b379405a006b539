"""Admin's part about single messages: finding, reading, and what became of them."""

from __future__ import annotations

from typing import Final

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.calls import RELAY_TIMEOUT_MS
from tandemmq.cluster.client.admin.groups import GroupAdmin
from tandemmq.cluster.client.admin.values import (
    DirectResult,
    GroupMembers,
    GroupProgress,
    MessageTrack,
    QueueEntries,
    TrackState,
)
from tandemmq.cluster.client.errors import BrokerRefused, BrokerUnreachable, ClientError
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.reaching.calls import number
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.remoting import RequestCode, ResponseCode
from tandemmq.storage import parse_offset_message_id, unpack_host

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # exists on every broker, for tools
FOR_EVER_MS: Final = (1 << 63) - 1
_PULL_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class MessageAdmin(GroupAdmin):
    """Messages by id, by key and by place."""

    async def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage | None:
        """The message that lies where a broker's id says, or None when it is no longer there.

        The id holds the broker's address: it must be reachable from here.
        Raises ValueError when it is not such an id (32 or 56 hexadecimal digits),
        BrokerUnreachable.

        Example: message = await admin.message_by_offset_id(result.offset_message_id)
        """
        packed, physical_offset = parse_offset_message_id(offset_message_id)
        ip, port = unpack_host(packed)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._ask(
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            {"offset": str(physical_offset)},
            accepted=accepted,
        )
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        name = await self._name_of(address)
        return read_records(answer.body, name, 0)[0]

    async def message_by_id(self, message_id: str, topic: str) -> ReceivedMessage | None:
        """A message by either of its ids: the broker's is tried first, then the producer's.

        Raises NoRoute (unknown topic), BrokerUnreachable.

        Example: message = await admin.message_by_id(result.message_id, "Orders")
        """
        found = await self.messages_by_unique_id(topic, message_id)
        if found:
            return found[0]
        try:
            by_place = await self.message_by_offset_id(message_id)
        except (ValueError, BrokerUnreachable):
            # a producer's id has the same length, and decodes to an address where nobody is
            return None
        return by_place if by_place is not None and by_place.topic == topic else None

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = FOR_EVER_MS,
    ) -> list[ReceivedMessage]:
        """Messages of a topic that carry a key, oldest first; none is an empty list.

        count_max  per broker
        begin_ms, end_ms  stored in this time (wall, ms since 1970)
        Raises NoRoute, BrokerUnreachable, BrokerRefused.

        Example: messages = await admin.messages_by_key("Orders", "order-17")
        """
        found = await self._query(topic, key, count_max, begin_ms, end_ms, unique=False)
        return [message for message in found if key in message.keys]

    async def messages_by_unique_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Every copy of the message with a producer's id; several after a retried send.

        Example: copies = await admin.messages_by_unique_id("Orders", result.message_id)
        """
        found = await self._query(topic, message_id, 32, 0, FOR_EVER_MS, unique=True)
        return [message for message in found if message.message_id == message_id]

    async def _query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }
        found: list[ReceivedMessage] = []
        for name, address in (await self._topic_brokers(topic)).items():
            answer = await self._ask(
                address,
                RequestCode.QUERY_MESSAGE,
                fields,
                accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            if answer.code == ResponseCode.SUCCESS and answer.body:
                found += read_records(answer.body, name, 0)
        return sorted(found, key=lambda message: (message.store_ms, message.physical_offset))

    async def message_at(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
        """The message at a place in a queue, or None when nothing is there.

        Example: first = await admin.message_at(queue, await admin.min_offset(queue))
        """
        found = await self.messages_from(queue, queue_offset, count_max=1)
        return next((each for each in found if each.queue_offset == queue_offset), None)

    async def messages_from(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int = 32
    ) -> list[ReceivedMessage]:
        """Messages of a queue from a queue offset on, as many as the broker gives at once.

        An empty list when the offset lies outside the queue or nothing follows. Joins no group.
        Raises NoRoute, BrokerUnreachable, BrokerRefused (16: the topic may not be read).

        Example: batch = await admin.messages_from(queue, 0)
        """
        address = await self._queue_address(queue)
        fields = {
            "consumerGroup": TOOLS_GROUP,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count_max),
            "sysFlag": "4",  # the subscription comes along
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        code = RequestCode.PULL_MESSAGE
        answer = await self._ask(address, code, fields, accepted=_PULL_ANSWERS)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return []
        return read_records(answer.body, queue.broker_name, number(answer, "maxOffset", address))

    async def queue_entries(
        self, queue: MessageQueue, first: int, count: int = 10, *, address: str | None = None
    ) -> QueueEntries:
        """Entries of a consume queue, to see where its messages lie in the CommitLog.

        address  ask this member, e.g. a slave
        Raises BrokerRefused for a queue that is not there.

        Example: entries = (await admin.queue_entries(queue, 0)).entries
        """
        target = address or await self._queue_address(queue)
        fields = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "index": str(first),
            "count": str(count),
        }
        answer = await self._ask(target, RequestCode.QUERY_CONSUME_QUEUE, fields)
        if not answer.body:  # RocketMQ's answer for a place outside the queue
            return QueueEntries(await self.min_offset(queue), await self.max_offset(queue), ())
        found = bodies.read(answer.body, bodies.QueryConsumeQueue, "the queue", target)
        return found.value(first)

    async def track(self, message: ReceivedMessage) -> list[MessageTrack]:
        """What became of a message in each group of its topic.

        Example: late = [each.group for each in await admin.track(m) if each.state is NOT_CONSUMED]
        """
        return [
            await self._track_in(message, group)
            for group in await self.topic_groups(message.queue.topic)
        ]

    async def _track_in(self, message: ReceivedMessage, group: str) -> MessageTrack:
        try:
            members = await self.consumers(group)
            progress = await self.progress(group, message.queue.topic)
        except BrokerRefused as problem:
            offline = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)
            state = TrackState.NOT_ONLINE if problem.code in offline else TrackState.UNKNOWN
            return MessageTrack(group, state, problem.remark)
        except ClientError as problem:
            return MessageTrack(group, TrackState.UNKNOWN, str(problem))
        return MessageTrack(group, track_state(message, members, progress))

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> DirectResult:
        """Hand a message to one member now, whatever its position; its answer, nothing committed.

        Raises BrokerRefused when the member is not online or does not answer in 10 s.

        Example: result = await admin.consume_directly("billing", client_id, message)
        """
        fields = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": message.offset_message_id,
            "topic": message.queue.topic,
        }
        return await self._fetch(
            message.store_host,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            fields,
            DirectResult,
            "the member's answer",
            timeout_ms=RELAY_TIMEOUT_MS,
        )

    async def _name_of(self, address: str) -> str:
        """The broker name at an address; the address itself when the name server does not know."""
        members = await self.cluster()
        names = (each.name for each in members.values() if address in each.addresses.values())
        return next(names, address)


def track_state(
    message: ReceivedMessage, members: GroupMembers, progress: GroupProgress
) -> TrackState:
    """What a group's members and progress say about a message. No I/O."""
    if members.message_model == "BROADCASTING":
        return TrackState.BROADCAST
    if members.consume_type == "CONSUME_ACTIVELY":
        return TrackState.PULLS
    at = progress.queues.get(message.queue)
    if at is None:
        return TrackState.UNKNOWN
    if at.consumer_offset <= message.queue_offset:
        return TrackState.NOT_CONSUMED
    wanted = members.subscriptions.get(message.queue.topic)
    if wanted is not None and wanted.tags and (message.tags or "") not in wanted.tags:
        return TrackState.FILTERED
    return TrackState.CONSUMED
