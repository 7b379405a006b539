"""CONSUMER_SEND_MSG_BACK (36): what a group could not consume is tried again, or laid to rest.

Source: RocketMQ's AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.broker.errors import NoMessageThere, NoSuchGroup, NotPermitted
from tandemmq.cluster.broker.replies import FAQ, REFUSALS, no_such_topic, refusal
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.sending.delay import DelayLevels
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.groups import GroupConfig, GroupTable
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import VERSION_V3_4_9, RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import SendBackHeader
from tandemmq.storage import (
    Draft,
    FlushFailed,
    MessageStore,
    Record,
    StorageError,
    decode,
    encode_properties,
    offset_message_id,
)

FIRST_RETRY_LEVEL: Final = 3  # the first retry waits 10 s, each further one a level longer
DLQ_QUEUES: Final = 1


@dataclass(slots=True, eq=False)
class SendBackHandler:
    """Stores a copy for the group's retry topic, delayed, or for its dead letter topic."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    release: Release
    standing: Standing
    stats: BrokerStats
    store_host: bytes
    rng: random.Random
    levels: DelayLevels = field(init=False)

    def __post_init__(self) -> None:
        self.levels = DelayLevels(self.config.storage.delay_levels)

    def table(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.handle_consumer_send_msg_back}

    def handle_consumer_send_msg_back(
        self, request: Command, connection: Connection
    ) -> Command | None:
        """Answered with a code alone; a client that gets no 0 sends the message itself."""
        try:
            header = SendBackHeader.of(request)
            refused = self.standing.refusal()
            if refused is not None:
                raise refused.why
            group = self.groups.find(header.group)
            if group is None:
                raise NoSuchGroup(f"subscription group not exist, {header.group} {FAQ}")
            if not self.config.permission & names.PERM_WRITE:
                raise NotPermitted(
                    f"the broker[{self.config.advertised_host}] sending message is forbidden"
                )
            if group.retry_queue_nums <= 0:
                return request.reply()
            topic = self._retry_topic(group)
            # Confirmed or not: a consumer has it, of a slave perhaps that told us only now.
            view = self.store.stored_at(header.offset)
            if view is None:
                raise NoMessageThere(f"look message by offset failed, {header.offset}")
            record = decode(view)
            draft = self._again(request, header, group, topic, record)
        except REFUSALS as error:
            return refusal(request, error)
        try:
            placed = self.release.put(draft)
        except FlushFailed:
            return None  # what the log has of it is not known; the process ends now
        except StorageError as error:  # whatever it is, RocketMQ says SYSTEM_ERROR here
            return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        # a second one comes from the retry topic: counted is the topic it was sent to
        sent_to = record.property_map.get(messages.RETRY_TOPIC, record.topic)
        self.stats.sent_back(header.group, sent_to)
        answer = request.reply()
        if self.standing.holds_answers and not request.oneway:
            # RocketMQ answers at once. The consumer commits its progress on this answer, so we wait
            # for the disk.
            self.release.hold(placed.end, connection, answer)
            return None
        return answer

    def _retry_topic(self, group: GroupConfig) -> TopicConfig:
        name = names.retry_topic(group.group_name)
        topic = self.topics.create_for_retry(name, group.retry_queue_nums)
        if topic is None:
            raise no_such_topic(name)
        if not topic.writable:
            raise NotPermitted(f"the topic[{name}] sending message is forbidden")
        return topic

    def _again(
        self,
        request: Command,
        header: SendBackHeader,
        group: GroupConfig,
        topic: TopicConfig,
        record: Record,
    ) -> Draft:
        """The copy that is stored: one try more, and its first id and topic kept over all tries."""
        tries_max = group.retry_max_times
        if request.version >= VERSION_V3_4_9 and header.max_reconsume_times is not None:
            tries_max = header.max_reconsume_times
        dead = record.reconsume_times >= tries_max or header.delay_level < 0
        level = 0
        if not dead:
            level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        properties = record.property_map
        properties.setdefault(messages.RETRY_TOPIC, record.topic)
        properties.setdefault(
            messages.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset)
        )
        properties[messages.WAIT] = "false"
        properties[messages.DELAY] = str(level)
        draft = messages.again(record)
        draft.topic, draft.queue_id = topic.topic_name, self.rng.randrange(group.retry_queue_nums)
        draft.properties, draft.store_host = encode_properties(properties), self.store_host
        draft.reconsume_times += 1
        if dead:
            name = names.dlq_topic(group.group_name)
            if self.topics.create_for_retry(name, DLQ_QUEUES) is None:
                raise no_such_topic(name)
            draft.topic, draft.queue_id = name, 0
        elif level > 0:
            self.levels.park(draft, level)
        return draft
