"""Administration of topics: making, changing, deleting, listing, and how full their queues are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tandemmq.cluster.broker.errors import InvalidParameter
from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.broker.handlers.requests import (
    Refused,
    check_topic,
    dumps,
    map_of_topic,
    read_body,
    refusing,
)
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import CreateTopicHeader, Header
from tandemmq.storage import MessageStore

#: more would make the topic's route unreadable for clients and its queue files fill the disk
QUEUES_MAX: Final = 65_536

_CHOICES: Final = {
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
#: values that other brokers serve: taken without what they stand for, they would promise it
NOT_SERVED: Final = {
    ("queue.type", "BatchCQ"): "queues whose entries are whole batches are not served here",
    (
        "cleanup.policy",
        "COMPACTION",
    ): "topics that keep the last message of each key are not served here",
}
_FIXED_ONCE_MADE: Final = ("queue.type", "cleanup.policy")
_RESERVE_TIME: Final = "reserve.time"
_NEVER_USED: Final = {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}  # a queue


class TopicHeader(Header):
    topic: str


class TopicList(msgspec.Struct):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topicConfigList: list[TopicConfig] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TopicAdminHandlers:
    """Source: RocketMQ's AdminBrokerProcessor."""

    config: BrokerConfig
    store: MessageStore
    release: Release
    topics: TopicTable
    offsets: OffsetTable
    stats: BrokerStats
    deletions: SavedFile
    readers: TableReaders

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: refusing(self.handle_update_and_create_topic),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: refusing(
                self.handle_update_and_create_topic_list
            ),
            RequestCode.DELETE_TOPIC_IN_BROKER: refusing(self.handle_delete_topic_in_broker),
            RequestCode.GET_TOPIC_CONFIG: refusing(self.handle_get_topic_config),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: refusing(
                self.handle_get_system_topic_list_from_broker
            ),
            RequestCode.GET_TOPIC_STATS_INFO: refusing(self.handle_get_topic_stats_info),
        }

    async def handle_update_and_create_topic(self, command: Command, connection: Peer) -> Command:
        header = CreateTopicHeader.of(command)
        wanted = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=self._attributes(header.topic, header.attributes or ""),
        )
        self._check(wanted)
        await self.topics.put(wanted)
        return command.reply(remark=await self.readers.share())

    async def handle_update_and_create_topic_list(
        self, command: Command, connection: Peer
    ) -> Command:
        # RocketMQ applies nothing once one entry equals what it has; here only the equal ones are
        # skipped.
        body = await read_body(TopicList, command)
        wanted = body.topicConfigList or []
        for topic in wanted:
            changes = ",".join(f"{key}={value}" for key, value in topic.attributes.items())
            topic.attributes = self._attributes(topic.topic_name, changes)
            self._check(topic)
        await self.topics.put(*wanted)
        return command.reply(remark=await self.readers.share())

    def _check(self, topic: TopicConfig) -> None:
        check_topic(topic.topic_name)
        if self.config.system_topics_protected and self.topics.is_system(topic.topic_name):
            raise InvalidParameter(f"The topic[{topic.topic_name}] is conflict with system topic.")
        if topic.attributes.get("message.type") == "MIXED":
            raise InvalidParameter("MIXED message type is not supported.")
        for key, count in (
            ("readQueueNums", topic.read_queue_nums),
            ("writeQueueNums", topic.write_queue_nums),
        ):
            if not 0 <= count <= QUEUES_MAX:
                raise InvalidParameter(f"{key} must be from 0 to {QUEUES_MAX}, got {count}")
        if not 0 <= topic.perm <= 7:
            raise InvalidParameter(f"perm must be from 0 to 7, got {topic.perm}")

    def _attributes(self, topic: str, text: str) -> dict[str, str]:
        """The topic's attributes after `+key=value,-key` is applied.

        Bare `key=value` counts as `+`.
        """
        known = self.topics.get(topic)
        found = dict(known.attributes) if known is not None else {}
        for change in filter(None, (part.strip() for part in text.split(","))):
            sign, body = (change[0], change[1:]) if change[0] in "+-" else ("+", change)
            key, _, value = body.partition("=")
            if key not in _CHOICES and key != _RESERVE_TIME:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"unsupported key: {key}")
            if known is not None and key in _FIXED_ONCE_MADE and found.get(key) != value:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"attempt to update an unchangeable attribute. key: {key}",
                )
            if sign == "-":
                if known is None:
                    raise Refused(
                        ResponseCode.SYSTEM_ERROR,
                        f"only add attribute is supported while creating topic. key: {key}",
                    )
                found.pop(key, None)
            elif not _allowed(key, value):
                raise Refused(ResponseCode.SYSTEM_ERROR, f"value is not in range: {key}={value}")
            elif (key, value) in NOT_SERVED and found.get(key) != value:
                why = NOT_SERVED[key, value]
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{key}={value}: {why}")
            else:
                found[key] = value
        return found

    async def handle_delete_topic_in_broker(self, command: Command, connection: Peer) -> Command:
        topic = TopicHeader.of(command).topic
        check_topic(topic)
        if self.config.system_topics_protected and self.topics.is_system(topic):
            raise InvalidParameter(f"The topic[{topic}] is conflict with system topic.")
        if self.topics.following:
            return command.reply(remark=LEFT_TO_MASTER)  # tools tell every member
        # In one step: what is sent from now on belongs to the topic's next life.
        self.topics.forget(topic)
        self.release.settle()
        self.store.delete_topic(topic)
        self.offsets.forget_topic(topic)
        self.stats.forget_topic(topic)
        for file in (self.deletions, self.topics.file, self.offsets.file):
            await file.saved()
        return command.reply(remark=await self.readers.share())

    def handle_get_topic_config(self, command: Command, connection: Peer) -> Command:
        name = TopicHeader.of(command).topic
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return command.reply(body=dumps(topic.to_json()))

    def handle_get_system_topic_list_from_broker(
        self, command: Command, connection: Peer
    ) -> Command:
        found = self.topics.system_topics | {
            name for name in self.topics if self.topics.is_system(name)
        }
        return command.reply(body=dumps({"topicList": sorted(found)}))

    def handle_get_topic_stats_info(self, command: Command, connection: Peer) -> Command:
        name = TopicHeader.of(command).topic
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        known = self.store.queue_ids(name)
        ends = [
            self._queue_ends(name, queue_id) if queue_id in known else _NEVER_USED
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        ]
        table = map_of_topic(name, self.config.name, ends)
        tps = self.stats.put_tps(name)
        return command.reply(body=b'{"offsetTable":%b,"topicPutTps":%b}' % (table, dumps(tps)))

    def _queue_ends(self, topic: str, queue_id: int) -> dict[str, int]:
        lowest = max(self.store.min_offset(topic, queue_id), 0)
        highest = max(self.store.max_offset(topic, queue_id), 0)
        updated_ms = self.store.store_ms(topic, queue_id, highest - 1) if highest else 0
        return {
            "lastUpdateTimestamp": max(updated_ms, 0),
            "maxOffset": highest,
            "minOffset": lowest,
        }


def _allowed(key: str, value: str) -> bool:
    if key == _RESERVE_TIME:
        return value.lstrip("-").isdigit() and int(value) >= -1
    return value in _CHOICES[key]
