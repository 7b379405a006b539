"""Requests about positions in queues: a group's progress, ends of queues, positions by time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.broker.errors import InvalidParameter
from tandemmq.cluster.broker.handlers.requests import Refused, check_group, check_topic, refusing
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.tables.cuts import Cuts
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import (
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from tandemmq.storage import MessageStore

MEMORY_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, eq=False)
class OffsetHandlers:
    """Source: RocketMQ's ConsumerManageProcessor, AdminBrokerProcessor."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    cuts: Cuts
    hot_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.hot_bytes = MEMORY_BYTES * self.store.config.hot_memory_percent // 100

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: refusing(self.handle_query_consumer_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: refusing(self.handle_update_consumer_offset),
            RequestCode.GET_MAX_OFFSET: refusing(self.handle_get_max_offset),
            RequestCode.GET_MIN_OFFSET: refusing(self.handle_get_min_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: refusing(
                self.handle_search_offset_by_timestamp
            ),
            RequestCode.GET_EARLIEST_MSG_STORETIME: refusing(
                self.handle_get_earliest_msg_storetime
            ),
        }

    def handle_query_consumer_offset(self, command: Command, connection: Peer) -> Command:
        header = QueryConsumerOffsetHeader.of(command)
        check_group(header.consumer_group)
        check_topic(header.topic)
        offset = self.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise Refused(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            if not self._starts_hot(header.topic, header.queue_id):
                raise Refused(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return command.reply(ext={"offset": str(offset)})

    def _starts_hot(self, topic: str, queue_id: int) -> bool:
        """Whether the queue's very first message is there and recent.

        A new group then starts with it, even when it asked for the end: what was sent between the
        making of a topic and its first consumer would be lost otherwise. Surprises everyone, kept
        for that reason.
        """
        queue = self.store.queue(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        entry = queue.entry(0)
        return entry is not None and self.store.end - entry[0] <= self.hot_bytes

    def handle_update_consumer_offset(self, command: Command, connection: Peer) -> Command:
        header = UpdateConsumerOffsetHeader.of(command)
        check_group(header.consumer_group)
        check_topic(header.topic)
        # A slave may tell of a group that began there, while this master was away.
        known = self.groups.find if header.only_forward else self.groups.get
        if known(header.consumer_group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.consumer_group} not exist!",
            )
        topic = self.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        if header.queue_id is None:
            raise InvalidParameter("QueueId is null")
        if header.commit_offset is None:
            raise InvalidParameter("Offset is null")
        if not 0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
        if (
            self.offsets.pending_reset(header.consumer_group, header.topic, header.queue_id)
            is not None
        ):
            return command.reply(remark="Offset has been previously reset")
        place = header.consumer_group, header.topic, header.queue_id
        if self.cuts.concerns(header.topic) and self.cuts.beyond(
            *place, header.commit_offset, connection, kept=bool(header.only_forward)
        ):
            return command.reply(remark="Offset is of before a loss, the reader is moved")
        if not header.only_forward or self.offsets.committed(*place) < header.commit_offset:
            self.offsets.commit(*place, header.commit_offset)
        return command.reply()

    def handle_get_max_offset(self, command: Command, connection: Peer) -> Command:
        header = self._queue(command)
        offset = self.store.max_offset(header.topic, header.queue_id)
        if self.cuts.concerns(header.topic):
            self.cuts.told(header.topic, header.queue_id, offset, connection)
        return command.reply(ext={"offset": str(offset)})

    def handle_get_min_offset(self, command: Command, connection: Peer) -> Command:
        header = self._queue(command)
        return command.reply(
            ext={"offset": str(self.store.min_offset(header.topic, header.queue_id))}
        )

    def handle_search_offset_by_timestamp(self, command: Command, connection: Peer) -> Command:
        header = SearchOffsetHeader.of(command)
        check_topic(header.topic)
        upper = header.boundary_type.upper() == "UPPER"
        offset = self.store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, upper=upper
        )
        if self.cuts.concerns(header.topic):
            self.cuts.told(header.topic, header.queue_id, offset, connection)
        return command.reply(ext={"offset": str(offset)})

    def handle_get_earliest_msg_storetime(self, command: Command, connection: Peer) -> Command:
        header = self._queue(command)
        stored_ms = self.store.earliest_store_ms(header.topic, header.queue_id)
        return command.reply(ext={"timestamp": str(stored_ms)})

    def _queue(self, command: Command) -> QueueHeader:
        header = QueueHeader.of(command)
        check_topic(header.topic)
        return header
