"""Administration of groups: settings, members, and requests relayed to one member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandemmq.cluster.broker.handlers.requests import (
    Refused,
    check_group,
    check_topic,
    dumps,
    read_body,
    refusing,
)
from tandemmq.cluster.broker.reading.members import (
    ConsumerMembers,
    GroupClient,
    Peer,
    ProducerMembers,
)
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.groups import GroupConfig, GroupTable
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.remoting.codes import (
    LANGUAGE_NAMES,
    VERSION_V3_1_8,
    RequestCode,
    ResponseCode,
)
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.errors import ConnectionLost, RequestTimedOut
from tandemmq.cluster.remoting.headers import Header
from tandemmq.storage import MessageStore, parse_offset_message_id

#: how long a client may take to answer a relayed request
RELAY_TIMEOUT_MS: Final = 10_000


class GroupHeader(Header):
    group: str


class DeleteHeader(Header):
    """Header of DELETE_SUBSCRIPTIONGROUP; 4.x says removeOffset."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class ForbiddenHeader(Header):
    """Header of UPDATE_AND_GET_GROUP_FORBIDDEN; readable absent: only ask."""

    group: str
    topic: str
    readable: bool | None = None


class ConsumerGroupHeader(Header):
    consumer_group: str


class ProducerGroupHeader(Header):
    producer_group: str


class SubscriptionHeader(Header):
    group: str
    topic: str = ""


class RelayHeader(Header):
    """Header of GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str = ""
    msg_id: str | None = None


class GroupList(msgspec.Struct):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groupConfigList: list[GroupConfig] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdminHandlers:
    """Source: RocketMQ's AdminBrokerProcessor, SubscriptionGroupManager."""

    config: BrokerConfig
    store: MessageStore
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerMembers
    producers: ProducerMembers
    readers: TableReaders

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: refusing(
                self.handle_update_and_create_subscriptiongroup
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: refusing(
                self.handle_update_and_create_subscriptiongroup_list
            ),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: refusing(
                self.handle_get_subscriptiongroup_config
            ),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: refusing(self.handle_delete_subscriptiongroup),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: refusing(
                self.handle_update_and_get_group_forbidden
            ),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: refusing(
                self.handle_get_consumer_connection_list
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: refusing(
                self.handle_get_producer_connection_list
            ),
            RequestCode.GET_ALL_PRODUCER_INFO: refusing(self.handle_get_all_producer_info),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: refusing(
                self.handle_query_subscription_by_consumer
            ),
            RequestCode.GET_CONSUMER_RUNNING_INFO: refusing(self.handle_get_consumer_running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: refusing(self.handle_consume_message_directly),
        }

    # -- settings ----------------------------------------------------------------------

    async def handle_update_and_create_subscriptiongroup(
        self, command: Command, connection: Peer
    ) -> Command:
        group = await read_body(GroupConfig, command)
        check_group(group.group_name)
        await self.groups.put(group)
        return command.reply(remark=await self.readers.share())

    async def handle_update_and_create_subscriptiongroup_list(
        self, command: Command, connection: Peer
    ) -> Command:
        groups = (await read_body(GroupList, command)).groupConfigList or []
        for group in groups:
            check_group(group.group_name)
        await self.groups.put(*groups)
        return command.reply(remark=await self.readers.share())

    async def handle_get_subscriptiongroup_config(
        self, command: Command, connection: Peer
    ) -> Command:
        name = GroupHeader.of(command).group
        check_group(name)
        group = self.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist",
            )
        await self.groups.file.saved()
        return command.reply(body=dumps(group.to_json()))

    async def handle_delete_subscriptiongroup(self, command: Command, connection: Peer) -> Command:
        header = DeleteHeader.of(command)
        check_group(header.group_name)
        await self.groups.delete(header.group_name)
        if header.clean_offset or header.remove_offset:
            self.offsets.forget_group(header.group_name)
            await self.offsets.file.saved()
        return command.reply(remark=await self.readers.share())

    async def handle_update_and_get_group_forbidden(
        self, command: Command, connection: Peer
    ) -> Command:
        header = ForbiddenHeader.of(command)
        check_group(header.group)
        check_topic(header.topic)
        remark = None
        if header.readable is not None:
            await self.groups.set_readable(header.group, header.topic, header.readable)
            remark = await self.readers.share()
        readable = not self.groups.read_forbidden(header.group, header.topic)
        return command.reply(
            remark=remark,
            body=dumps({"group": header.group, "readable": readable, "topic": header.topic}),
        )

    # -- members -----------------------------------------------------------------------

    def handle_get_consumer_connection_list(self, command: Command, connection: Peer) -> Command:
        name = ConsumerGroupHeader.of(command).consumer_group
        group = self.consumers.group(name)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = {
            "connectionSet": [_connection_json(member) for member in group.connections.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {
                topic: subscription.to_json() for topic, subscription in group.subscriptions.items()
            },
        }
        return command.reply(body=dumps(body))

    def handle_get_producer_connection_list(self, command: Command, connection: Peer) -> Command:
        name = ProducerGroupHeader.of(command).producer_group
        members = self.producers.group(name)
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return command.reply(
            body=dumps({"connectionSet": [_connection_json(member) for member in members]})
        )

    def handle_get_all_producer_info(self, command: Command, connection: Peer) -> Command:
        data = {
            group: [
                {
                    "clientId": member.client_id,
                    "language": _language(member),
                    "lastUpdateTimestamp": member.seen_wall_ms,
                    "remoteIP": f"/{_peer(member)}",
                    "version": member.version,
                }
                for member in members
            ]
            for group, members in self.producers.groups().items()
        }
        return command.reply(body=dumps({"data": data}))

    def handle_query_subscription_by_consumer(self, command: Command, connection: Peer) -> Command:
        header = SubscriptionHeader.of(command)
        body: dict[str, Any] = {"group": header.group, "topic": header.topic}
        group = self.consumers.group(header.group)
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        if subscription is not None:
            body["subscriptionData"] = subscription.to_json()
        return command.reply(body=dumps(body))

    # -- relays ------------------------------------------------------------------------

    async def handle_get_consumer_running_info(self, command: Command, connection: Peer) -> Command:
        header = RelayHeader.of(command)
        return await self._relay(command, header, Command(command.code, command.ext, command.body))

    async def handle_consume_message_directly(self, command: Command, connection: Peer) -> Command:
        header = RelayHeader.of(command)
        try:
            _, physical = parse_offset_message_id(header.msg_id or "")
        except ValueError as problem:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"message id {header.msg_id} cannot be read: {problem}"
            ) from None
        record = self.store.record_at(physical)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}")
        ext = {
            **(command.ext or {}),
            "brokerName": self.config.name,
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        return await self._relay(command, header, Command(command.code, ext, bytes(record)))

    async def _relay(self, command: Command, header: RelayHeader, request: Command) -> Command:
        """Pass a request on to one member and its answer back, code, remark and body unchanged."""
        member = self.consumers.find(header.consumer_group, header.client_id)
        if member is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{header.consumer_group}> <{header.client_id}> not online",
            )
        if member.version < VERSION_V3_1_8:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{header.consumer_group}> Version <{member.version}> too low "
                "to finish",
            )
        try:
            answer = await member.connection.request(request, RELAY_TIMEOUT_MS)
        except RequestTimedOut as problem:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{header.consumer_group}> <{header.client_id}> Timeout: {problem}",
            ) from None
        except ConnectionLost as problem:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(problem)) from None
        return command.reply(answer.code, answer.remark, answer.ext, answer.body)


def _peer(member: GroupClient) -> str:
    host, port = member.connection.peer
    return f"{host}:{port}"


def _language(member: GroupClient) -> str:
    return LANGUAGE_NAMES.get(member.language, "OTHER")


def _connection_json(member: GroupClient) -> dict[str, Any]:
    return {
        "clientAddr": _peer(member),
        "clientId": member.client_id,
        "language": _language(member),
        "version": member.version,
    }
