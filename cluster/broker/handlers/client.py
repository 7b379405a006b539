"""Requests about who is connected: heartbeats, leaving, client checks, member lists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from tandemmq.cluster.access.signature import ACCESS_KEY
from tandemmq.cluster.broker.handlers.requests import (
    BODY_BYTES_ON_LOOP_MAX,
    Refused,
    check_group,
    dumps,
    parse_body,
    read_body,
    refusing,
)
from tandemmq.cluster.broker.reading.filters import parse_filter
from tandemmq.cluster.broker.reading.members import (
    CONSUME_ACTIVELY,
    GROUPS_MAX,
    ConsumerMembers,
    GroupClient,
    GroupMembers,
    Heartbeat,
    Peer,
    ProducerMembers,
)
from tandemmq.cluster.broker.reading.subscriptions import Subscription, SubscriptionData
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.groups import GroupConfig, GroupTable
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import ConsumerListHeader, UnregisterClientHeader
from tandemmq.storage import Clock

log = logging.getLogger(__name__)
_skipped = once_per(60)
_unsaved = once_per(60)

CLIENT_ID_CHARACTERS_MAX: Final = 1_024
ENTRIES_MAX: Final = 20_000  # groups and subscriptions of one heartbeat: 0.2 s of work
ENTRIES_AT_ONCE: Final = 200  # of a large heartbeat, before other clients have their turn


ConsumeType = Annotated[str, bodies.enum_of("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")]
MessageModel = Annotated[str, bodies.enum_of("BROADCASTING", "CLUSTERING")]
ConsumeFrom = Annotated[
    str,
    bodies.enum_of(
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
]


class ProducerData(msgspec.Struct, rename="camel"):
    group_name: str = ""


class ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str = ""
    consume_type: ConsumeType = "CONSUME_PASSIVELY"
    message_model: MessageModel = "CLUSTERING"
    consume_from_where: ConsumeFrom = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: bool = False


class HeartbeatData(msgspec.Struct):
    """Body of HEART_BEAT. Source: RocketMQ's HeartbeatData.

    Fingerprints are ignored: heartbeats stay version 1.
    """

    clientID: str = ""
    producerDataSet: list[ProducerData] | None = None
    consumerDataSet: list[ConsumerData] | None = None


class ClientCheck(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None


def check_heartbeat(data: HeartbeatData) -> None:
    """Raise Refused when a heartbeat names more than any client could mean."""
    if len(data.clientID) > CLIENT_ID_CHARACTERS_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"client id of {len(data.clientID)} characters, more than {CLIENT_ID_CHARACTERS_MAX}",
        )
    consumers = data.consumerDataSet or ()
    entries = len(data.producerDataSet or ()) + len(consumers)
    entries += sum(len(consumer.subscription_data_set or ()) for consumer in consumers)
    if entries > ENTRIES_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"heartbeat names {entries} groups and subscriptions, more than {ENTRIES_MAX}",
        )


@dataclass(frozen=True, slots=True, eq=False)
class ClientHandlers:
    """Heartbeats and their like. Source: RocketMQ's ClientManageProcessor, ConsumerManageProcessor."""

    config: BrokerConfig
    clock: Clock
    topics: TopicTable
    groups: GroupTable
    consumers: ConsumerMembers
    producers: ProducerMembers

    def __post_init__(self) -> None:
        if self.config.members_notified and self.config.members_notified_at_once:
            self.consumers.on_change = self.notify_members

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: refusing(self.handle_heart_beat),
            RequestCode.UNREGISTER_CLIENT: refusing(self.handle_unregister_client),
            RequestCode.CHECK_CLIENT_CONFIG: refusing(self.handle_check_client_config),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: refusing(
                self.handle_get_consumer_list_by_group
            ),
        }

    def notify_members(self, group: GroupMembers) -> None:
        """Tell every member that the group changed, so that they share the queues anew."""
        known = self.groups.get(group.name)
        if group.broadcasting or (
            known is not None and not known.notify_consumer_ids_changed_enable
        ):
            return
        for member in group.connections.values():
            member.connection.oneway(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name})
            )

    def handle_heart_beat(self, command: Command, connection: Peer) -> Command | Awaitable[Command]:
        body = command.body or b"{}"
        if len(body) > BODY_BYTES_ON_LOOP_MAX:
            return self._take_large_heartbeat(command, connection, body)
        return self._take_heartbeat(command, connection, parse_body(HeartbeatData, body))

    async def _take_large_heartbeat(
        self, command: Command, connection: Peer, body: bytes | memoryview
    ) -> Command:
        data = await asyncio.to_thread(parse_body, HeartbeatData, body)
        check_heartbeat(data)
        taken = 0
        for consumer in data.consumerDataSet or ():
            self._take_consumer(command, connection, data.clientID, consumer)
            taken += 1 + len(consumer.subscription_data_set or ())
            if taken >= ENTRIES_AT_ONCE:
                taken = 0
                await asyncio.sleep(0)
        answer = self._take_producers(command, connection, data)
        return answer if isinstance(answer, Command) else await answer

    def _take_heartbeat(
        self, command: Command, connection: Peer, data: HeartbeatData
    ) -> Command | Awaitable[Command]:
        # Registered before anything waits: the member's own list request may follow in the same
        # chunk.
        check_heartbeat(data)
        for consumer in data.consumerDataSet or ():
            self._take_consumer(command, connection, data.clientID, consumer)
        return self._take_producers(command, connection, data)

    def _take_producers(
        self, command: Command, connection: Peer, data: HeartbeatData
    ) -> Command | Awaitable[Command]:
        member = self._member(command, connection, data.clientID)
        for producer in data.producerDataSet or ():
            if names.check_group_name(producer.group_name) is not None:
                continue
            if not self.producers.register(producer.group_name, member):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"this connection is in {GROUPS_MAX} producer groups, no more may be joined",
                )
        if self.topics.file.unsaved or self.groups.file.unsaved:
            return self._answer_when_saved(command)
        return command.reply()

    async def _answer_when_saved(self, command: Command) -> Command:
        try:
            await self.topics.file.saved()
            await self.groups.file.saved()
        except OSError as problem:
            # Consumers go on, also when the disk is full: the next heartbeat makes again what a
            # restart forgets, and TableSaving tries again.
            _unsaved.warning(log, "groups of a heartbeat not saved why=%s", problem)
        return command.reply()

    def _take_consumer(
        self, command: Command, connection: Peer, client_id: str, data: ConsumerData
    ) -> None:
        consume_type = data.consume_type
        if self.config.pull_consumers_rejected and consume_type == CONSUME_ACTIVELY:
            return
        group = self.groups.find(data.group_name)
        if group is None:
            _skipped.warning(
                log,
                "heartbeat of an unknown group skipped group=%r client=%r",
                data.group_name,
                client_id,
            )
            return
        subscriptions = [
            Subscription.from_wire(wanted)
            for wanted in data.subscription_data_set or ()
            if names.check_topic_name(wanted.topic) is None
        ]
        self._make_retry_topic(group, subscriptions)
        self.consumers.register(
            group.group_name,
            Heartbeat(
                self._member(command, connection, client_id),
                consume_type,
                data.message_model,
                data.consume_from_where,
                subscriptions,
            ),
        )

    def _make_retry_topic(self, group: GroupConfig, subscriptions: Iterable[Subscription]) -> None:
        # At once, and not with the first failure: consumers ask for its route only every 30 s.
        topic = names.retry_topic(group.group_name)
        if topic in self.topics:
            return
        wanted = (self.topics.get(subscription.topic) for subscription in subscriptions)
        order = any(found is not None and found.order for found in wanted)
        self.topics.create_for_retry(topic, group.retry_queue_nums, order=order, wait=False)

    def _member(self, command: Command, connection: Peer, client_id: str) -> GroupClient:
        return GroupClient(
            connection,
            client_id,
            command.language,
            command.version,
            self.clock.monotonic_ms(),
            self.clock.now_ms(),
            (command.ext or {}).get(ACCESS_KEY, ""),
        )

    def handle_unregister_client(self, command: Command, connection: Peer) -> Command:
        header = UnregisterClientHeader.of(command)
        if header.producer_group:
            self.producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            self.consumers.unregister(header.consumer_group, connection)
        return command.reply()

    def handle_get_consumer_list_by_group(self, command: Command, connection: Peer) -> Command:
        header = ConsumerListHeader.of(command)
        check_group(header.consumer_group)
        ids = self.consumers.client_ids(header.consumer_group)
        if not ids:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        return command.reply(body=dumps({"consumerIdList": ids}))

    async def handle_check_client_config(self, command: Command, connection: Peer) -> Command:
        if command.body is None:
            return command.reply()
        check = await read_body(ClientCheck, command)
        if check.subscription_data is None:
            return command.reply()
        wanted = Subscription.from_wire(check.subscription_data)
        if not wanted.is_tag:
            served = self.config.property_filter_enabled
            parse_filter(wanted.expression_type, wanted.expression, served=served)
        return command.reply()
