"""Administration of progress: who consumed how far, and sending a group somewhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandemmq.cluster.broker.handlers.requests import (
    Refused,
    check_group,
    check_topic,
    dumps,
    map_by_queue,
    parse_body,
    queue_json,
    refusing,
)
from tandemmq.cluster.broker.reading.members import ConsumerMembers, Peer
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import LanguageCode, RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.errors import RemotingError
from tandemmq.cluster.remoting.headers import Header, Int64
from tandemmq.storage import Clock, MessageStore

#: a client must be this new to be sent elsewhere or asked where it is
VERSION_MIN: Final = 28  # V3_0_7_SNAPSHOT
CLIENT_STATUS_TIMEOUT_MS: Final = 5_000

Entry = tuple[dict[str, Any], Any]


class ConsumeStatsHeader(Header):
    """Header of GET_CONSUME_STATS; topicList: names joined with `;`."""

    consumer_group: str
    topic: str = ""
    topic_list: str | None = None


class BrokerStatsHeader(Header):
    is_order: bool = False


class TopicGroupHeader(Header):
    topic: str
    group: str


class TopicHeader(Header):
    topic: str


class GroupHeader(Header):
    group: str


class ResetHeader(Header):
    """Header of INVOKE_BROKER_TO_RESET_OFFSET."""

    topic: str
    group: str
    timestamp: int = -1
    is_force: bool = False
    queue_id: int = -1
    offset: int = -1


class StatusHeader(Header):
    """Header of INVOKE_BROKER_TO_GET_CONSUMER_STATUS; clientAddr is a client id, blank: all."""

    topic: str
    group: str
    client_addr: str = ""


class StatusBody(msgspec.Struct):
    """What a client answers to GET_CONSUMER_STATUS_FROM_CLIENT; keys are queues as JSON text."""

    messageQueueTable: dict[str, Int64] | None = None


class CloneHeader(Header):
    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class CorrectionHeader(Header):
    topic: str
    compare_group: str
    filter_groups: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OffsetAdminHandlers:
    """Source: RocketMQ's AdminBrokerProcessor, ConsumerOffsetManager.

    sent_elsewhere  called with group, topic and queue ids once a group is to go on somewhere else
    """

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerMembers
    stats: BrokerStats
    sent_elsewhere: Callable[[str, str, Iterable[int]], None]

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: refusing(self.handle_get_consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: refusing(self.handle_get_broker_consume_stats),
            RequestCode.QUERY_CONSUME_TIME_SPAN: refusing(self.handle_query_consume_time_span),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: refusing(
                self.handle_query_topic_consume_by_who
            ),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: refusing(self.handle_query_topics_by_consumer),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: refusing(
                self.handle_invoke_broker_to_reset_offset
            ),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: refusing(
                self.handle_invoke_broker_to_get_consumer_status
            ),
            RequestCode.CLONE_GROUP_OFFSET: refusing(self.handle_clone_group_offset),
            RequestCode.QUERY_CORRECTION_OFFSET: refusing(self.handle_query_correction_offset),
        }

    # -- how far -----------------------------------------------------------------------

    def handle_get_consume_stats(self, command: Command, connection: Peer) -> Command:
        header = ConsumeStatsHeader.of(command)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name]
        wanted = listed or (
            [header.topic] if header.topic.strip() else self.offsets.topics_of(group)
        )
        entries: list[Entry] = []
        tps = 0.0
        for name in wanted:
            topic = self.topics.get(name)
            if topic is None or (not listed and self._not_subscribed(group, name)):
                continue
            entries += self._progress(group, topic, topic.read_queue_nums)
            tps += self.stats.get_tps(name, group)
        return command.reply(body=_consume_stats(entries, tps))

    def _not_subscribed(self, group: str, topic: str) -> bool:
        members = self.consumers.group(group)
        return (
            members is not None
            and bool(members.subscriptions)
            and topic not in members.subscriptions
        )

    def _progress(self, group: str, topic: TopicConfig, queue_count: int) -> list[Entry]:
        entries: list[Entry] = []
        for queue_id in range(queue_count):
            name = topic.topic_name
            consumed = max(self.offsets.query(group, name, queue_id), 0)
            last_ms = self.store.store_ms(name, queue_id, consumed - 1) if consumed else 0
            entries.append(
                (
                    queue_json(name, self.config.name, queue_id),
                    {
                        "brokerOffset": max(self.store.max_offset(name, queue_id), 0),
                        "consumerOffset": consumed,
                        "lastTimestamp": max(last_ms, 0),
                        "pullOffset": max(self.offsets.pulled(group, name, queue_id), consumed),
                    },
                )
            )
        return entries

    def handle_get_broker_consume_stats(self, command: Command, connection: Peer) -> Command:
        ordered_only = BrokerStatsHeader.of(command).is_order
        total = inflight = 0
        groups: list[bytes] = []
        for group in self.groups:
            stats: list[bytes] = []
            for name in self.offsets.topics_of(group):
                topic = self.topics.get(name)
                if (
                    topic is None
                    or (ordered_only and not topic.order)
                    or self._not_subscribed(group, name)
                ):
                    continue
                entries = self._progress(group, topic, topic.write_queue_nums)
                stats.append(_consume_stats(entries, self.stats.get_tps(name, group)))
                total += sum(
                    found["brokerOffset"] - found["consumerOffset"] for _, found in entries
                )
                inflight += sum(
                    found["pullOffset"] - found["consumerOffset"] for _, found in entries
                )
            groups.append(b"{%b:[%b]}" % (dumps(group), b",".join(stats)))
        return command.reply(
            body=b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
            % (dumps(self.config.address), b",".join(groups), total, inflight)
        )

    def handle_query_consume_time_span(self, command: Command, connection: Peer) -> Command:
        header = TopicGroupHeader.of(command)
        topic = self._topic(header.topic)
        spans = []
        for queue_id in range(topic.write_queue_nums):
            oldest_ms = self.store.earliest_store_ms(header.topic, queue_id)
            end = self.store.max_offset(header.topic, queue_id)
            newest_ms = self.store.store_ms(header.topic, queue_id, end - 1)
            consumed = self.offsets.query(header.group, header.topic, queue_id)
            consumed_ms = (
                self.store.store_ms(header.topic, queue_id, consumed - 1)
                if consumed > 0
                else oldest_ms
            )
            delay_ms = 0
            if consumed < end:
                next_ms = self.store.store_ms(header.topic, queue_id, max(consumed, 0))
                delay_ms = max(self.clock.now_ms() - next_ms, 0) if next_ms > 0 else 0
            span: dict[str, Any] = {
                "consumeTimeStamp": consumed_ms,
                "delayTime": delay_ms,
                "maxTimeStamp": newest_ms,
                "messageQueue": queue_json(header.topic, self.config.name, queue_id),
                "minTimeStamp": oldest_ms,
            }
            for key in ("consumeTimeStamp", "maxTimeStamp", "minTimeStamp"):
                span[key + "Str"] = _time_text(span[key])
            spans.append(span)
        return command.reply(body=dumps({"consumeTimeSpanSet": spans}))

    def handle_query_topic_consume_by_who(self, command: Command, connection: Peer) -> Command:
        topic = TopicHeader.of(command).topic
        groups = dict.fromkeys((*self.consumers.subscribers(topic), *self.offsets.groups_of(topic)))
        return command.reply(body=dumps({"groupList": list(groups)}))

    def handle_query_topics_by_consumer(self, command: Command, connection: Peer) -> Command:
        group = GroupHeader.of(command).group
        body = {"brokerAddr": self.config.address, "topicList": self.offsets.topics_of(group)}
        return command.reply(body=dumps(body))

    def handle_query_correction_offset(self, command: Command, connection: Peer) -> Command:
        header = CorrectionHeader.of(command)
        filtered = {name.strip() for name in header.filter_groups.split(",")}
        compared = self.offsets.queues(header.compare_group, header.topic)
        lowest: dict[int, int] = {}
        for group in self.offsets.groups_of(header.topic):
            if group in filtered:
                continue
            for queue_id, offset in self.offsets.queues(group, header.topic).items():
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        corrected = {
            str(queue_id): offset if offset <= compared.get(queue_id, offset) else (1 << 63) - 1
            for queue_id, offset in lowest.items()
        }
        return command.reply(body=dumps({"correctionOffsets": corrected}))

    # -- sending a group elsewhere -----------------------------------------------------

    async def handle_invoke_broker_to_reset_offset(
        self, command: Command, connection: Peer
    ) -> Command:
        header = ResetHeader.of(command)
        check_topic(header.topic)
        check_group(header.group)
        topic = self._topic(header.topic)
        if not self.config.server_side_reset:
            return self._reset_by_clients(command, header, topic)
        if self.groups.get(header.group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} not exist!"
            )
        if not topic.read_queue_nums:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic {header.topic} has no queue to read")
        if header.queue_id >= topic.read_queue_nums:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"topic {header.topic} has no queue {header.queue_id}"
            )
        queues = range(topic.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        targets = {queue_id: self._target(header, queue_id) for queue_id in queues}
        self._send_elsewhere(header.group, header.topic, targets)
        await self.offsets.file.saved()
        return command.reply(body=self._offset_table(header.topic, targets))

    def _send_elsewhere(self, group: str, topic: str, targets: Mapping[int, int]) -> None:
        """Members are told by their next pull; one that waits here is answered for it."""
        for queue_id, offset in targets.items():
            self.offsets.assign_reset(group, topic, queue_id, offset)
        self.sent_elsewhere(group, topic, targets)

    def _target(self, header: ResetHeader, queue_id: int) -> int:
        lowest = self.store.min_offset(header.topic, queue_id)
        end = self.store.max_offset(header.topic, queue_id)
        if header.queue_id >= 0 and header.offset >= 0:
            if not lowest <= header.offset <= end + 1:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{lowest}-{end}]",
                )
            return header.offset
        if header.timestamp < 0:
            return end
        return self.store.offset_by_time(header.topic, queue_id, header.timestamp)

    def _reset_by_clients(
        self, command: Command, header: ResetHeader, topic: TopicConfig
    ) -> Command:
        """The way of 4.x: members are told where to go on, and go there themselves."""
        targets: dict[int, int] = {}
        for queue_id in range(topic.write_queue_nums):
            committed = self.offsets.committed(header.group, header.topic, queue_id)
            if committed < 0:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            if header.timestamp < 0:
                by_time = self.store.max_offset(header.topic, queue_id)
            else:
                by_time = self.store.offset_by_time(header.topic, queue_id, header.timestamp)
            targets[queue_id] = by_time if header.is_force or by_time < committed else committed
        members = self.consumers.group(header.group)
        if members is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        for member in members.connections.values():
            if member.version < VERSION_MIN:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={member.version}",
                )
        body = self._offset_table(header.topic, targets)
        pushed = body
        if command.language == LanguageCode.CPP:
            pushed = self._offset_list(header.topic, targets)
        for member in members.connections.values():
            member.connection.oneway(
                Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(command.ext or {}), pushed)
            )
        return command.reply(body=body)

    def _offset_table(self, topic: str, offsets: dict[int, int]) -> bytes:
        entries = (
            (queue_json(topic, self.config.name, queue_id), at) for queue_id, at in offsets.items()
        )
        return b'{"offsetTable":%b}' % map_by_queue(entries)

    def _offset_list(self, topic: str, offsets: dict[int, int]) -> bytes:
        entries = [
            {"brokerName": self.config.name, "offset": at, "queueId": queue_id, "topic": topic}
            for queue_id, at in offsets.items()
        ]
        return dumps({"offsetTable": entries})

    async def handle_invoke_broker_to_get_consumer_status(
        self, command: Command, connection: Peer
    ) -> Command:
        header = StatusHeader.of(command)
        members = self.consumers.group(header.group)
        if members is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        found: list[bytes] = []
        for member in list(members.connections.values()):
            if header.client_addr.strip() and member.client_id != header.client_addr:
                continue
            if member.version < VERSION_MIN:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={member.version}",
                )
            request = Command(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                {"topic": header.topic, "group": header.group},
            )
            try:
                answer = await member.connection.request(request, CLIENT_STATUS_TIMEOUT_MS)
                status = parse_body(StatusBody, answer.body or b"{}")
            except (RemotingError, Refused):
                continue  # a member that fails is left out: the others' answers still help
            offsets = b",".join(
                b"%b:%d" % (queue.encode(), offset)
                for queue, offset in (status.messageQueueTable or {}).items()
            )
            found.append(b"%b:{%b}" % (dumps(member.client_id), offsets))
        return command.reply(
            body=b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(found)
        )

    async def handle_clone_group_offset(self, command: Command, connection: Peer) -> Command:
        header = CloneHeader.of(command)
        check_group(header.src_group)
        check_group(header.dest_group)
        # A blank topic means all of them; RocketMQ then clones nothing, which nobody can have
        # wanted.
        wanted: Iterable[str] = (
            [header.topic] if header.topic.strip() else self.offsets.topics_of(header.src_group)
        )
        # RocketMQ leaves members alone that consume meanwhile, and their next commit undoes the clone.
        running = self.config.server_side_reset and bool(
            self.consumers.client_ids(header.dest_group)
        )
        for name in wanted:
            if name in self.topics and (
                header.offline or not self._not_subscribed(header.src_group, name)
            ):
                self.offsets.clone(header.src_group, header.dest_group, name)
                if running:
                    source = self.offsets.queues(header.src_group, name)
                    self._send_elsewhere(header.dest_group, name, source)
        await self.offsets.file.saved()
        return command.reply()

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {name} not exist")
        return topic


def _consume_stats(entries: list[Entry], tps: float) -> bytes:
    return b'{"consumeTps":%b,"offsetTable":%b}' % (dumps(tps), map_by_queue(entries))


def _time_text(stamp_ms: int) -> str:
    if stamp_ms < 0:
        return ""
    return (
        time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(stamp_ms // 1000))
        + f":{stamp_ms % 1000:03d}"
    )
