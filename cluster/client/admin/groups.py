"""Admin's part about consumer groups: settings, members, progress, and sending them elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.calls import RELAY_TIMEOUT_MS, json_body
from tandemmq.cluster.client.admin.topics import TopicAdmin
from tandemmq.cluster.client.admin.values import (
    ClientConnection,
    ConsumeSpan,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    GroupSubscription,
    MemberState,
)
from tandemmq.cluster.client.errors import BrokerRefused, NoRoute
from tandemmq.cluster.client.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, check_group
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.remoting import RequestCode, ResponseCode

NOW = -1  # in a request for a time: the end of the queue


class GroupAdmin(TopicAdmin):
    """Consumer and producer groups."""

    # Settings

    async def put_group(
        self,
        settings: GroupSettings,
        addresses: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
    ) -> list[str]:
        """Create or change a consumer group on every master; returns the brokers that took it.

        Raises MessageRefused (name), BrokerUnreachable, BrokerRefused.

        Example: await admin.put_group(GroupSettings("billing", retry_max_times=3))
        """
        return await self._put_groups([settings], addresses, cluster, one=True)

    async def put_groups(
        self,
        settings: Iterable[GroupSettings],
        addresses: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
    ) -> list[str]:
        """Create or change several groups with one request per broker (5.2 and later).

        Example: await admin.put_groups([GroupSettings("billing"), GroupSettings("report")])
        """
        return await self._put_groups(list(settings), addresses, cluster, one=False)

    async def _put_groups(
        self,
        wanted: list[GroupSettings],
        addresses: str | Iterable[str] | None,
        cluster: str | None,
        *,
        one: bool,
    ) -> list[str]:
        for each in wanted:
            check_group(each.group)
        trees = [bodies.tree(each) for each in wanted]
        if one:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            body = json_body(trees[0])
        else:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
            body = json_body({"groupConfigList": trees})
        targets = await self._targets(addresses, cluster)
        for address in targets:
            await self._ask(address, code, {}, body)
        return targets

    async def delete_group(
        self,
        group: str,
        addresses: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
        offsets_too: bool = False,
    ) -> list[str]:
        """Delete a group's settings, and its retry and dead-letter topics; returns the brokers.

        offsets_too  also what it has committed: a group of that name starts afresh
        Without addresses the topics go at the name servers too.

        Example: await admin.delete_group("billing", offsets_too=True)
        """
        check_group(group)
        flag = "true" if offsets_too else "false"
        # 4.x brokers read removeOffset, 5.x ones cleanOffset
        fields = {"groupName": group, "cleanOffset": flag, "removeOffset": flag}
        targets = await self._targets(addresses, cluster)
        derived = [RETRY_PREFIX + group, DLQ_PREFIX + group]
        for address in targets:
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
            for topic in derived:
                await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        if addresses is None:
            for topic in derived:
                where = {"topic": topic}
                if cluster is not None:
                    where["clusterName"] = cluster
                await self._ask_each(RequestCode.DELETE_TOPIC_IN_NAMESRV, where)
        return targets

    async def group_settings(self, group: str, address: str) -> GroupSettings | None:
        """A group as one broker has it, or None. Asking does not create it.

        Example: settings = await admin.group_settings("billing", "127.0.0.1:10911")
        """
        return (await self.all_group_settings(address)).get(group)

    async def all_group_settings(self, address: str) -> dict[str, GroupSettings]:
        """Group -> settings of one broker, sorted.

        Example: table = await admin.all_group_settings("127.0.0.1:10911")
        """
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        found = await self._fetch(address, code, None, bodies.GroupTable, "the group table")
        return found.subscription_group_table

    async def groups(self) -> list[str]:
        """Consumer groups that have ever had a member, sorted.

        They are known by their retry topics, as for mqadmin.

        Example: for group in await admin.groups(): ...
        """
        topics = await self.topics()
        return [name.removeprefix(RETRY_PREFIX) for name in topics if name.startswith(RETRY_PREFIX)]

    async def group_topics(self, group: str) -> list[str]:
        """Topics in which the group has committed offsets, sorted; its retry topic left out.

        Example: topics = await admin.group_topics("billing")
        """
        found: set[str] = set()
        for address in (await self._group_brokers(group)).values():
            code = RequestCode.QUERY_TOPICS_BY_CONSUMER
            known = await self._fetch(
                address, code, {"group": group}, bodies.TopicList, "the topic list"
            )
            found.update(known.topic_list)
        return sorted(found - {RETRY_PREFIX + group})

    async def set_readable(
        self, group: str, topic: str, readable: bool, *, cluster: str | None = None
    ) -> None:
        """Forbid a group to read a topic, or allow it again, on every master.

        Example: await admin.set_readable("billing", "Orders", False)
        """
        fields = {"group": group, "topic": topic, "readable": "true" if readable else "false"}
        for address in await self._targets(None, cluster):
            await self._ask(address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)

    # Members

    async def consumers(self, group: str, *, address: str | None = None) -> GroupMembers:
        """The group's members that are online, and what they subscribe to.

        address  ask this broker; else the first of the group's brokers that knows a member
        Raises BrokerRefused with code 206 when nobody is online, NoRoute for an unknown group.

        Example: ids = [each.client_id for each in (await admin.consumers("billing")).connections]
        """
        check_group(group)
        targets = [address] if address else list((await self._group_brokers(group)).values())
        refusal: BrokerRefused | None = None
        for target in targets:
            try:
                found = await self._fetch(
                    target,
                    RequestCode.GET_CONSUMER_CONNECTION_LIST,
                    {"consumerGroup": group},
                    bodies.ConsumerConnection,
                    "the member list",
                )
                return found.value()
            except BrokerRefused as problem:
                refusal = problem
        if refusal is None:
            raise NoRoute(RETRY_PREFIX + group, "none of its brokers can be reached")
        raise refusal

    async def connected_producers(self, group: str, topic: str) -> tuple[ClientConnection, ...]:
        """Members of a producer group that are connected to the topic's brokers; one entry each.

        Raises NoRoute; BrokerRefused when no broker knows the group.

        Example: clients = await admin.connected_producers("shop", "Orders")
        """
        found: dict[str, ClientConnection] = {}
        refusal: BrokerRefused | None = None
        for address in (await self._topic_brokers(topic)).values():
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            try:
                known = await self._fetch(
                    address,
                    code,
                    {"producerGroup": group},
                    bodies.ConnectionList,
                    "the producer list",
                )
            except BrokerRefused as problem:
                refusal = problem
                continue
            found.update((each.client_id, each) for each in known.value())
        if not found and refusal is not None:
            raise refusal
        return tuple(found[client] for client in sorted(found))

    async def member_state(
        self, group: str, client_id: str, *, stacks: bool = False, address: str | None = None
    ) -> MemberState:
        """What one consumer tells about itself: its queues, positions, rates, settings.

        stacks  with the stacks of its threads (Java clients)
        Raises BrokerRefused when it is not online or does not answer its broker in 10 s.

        Example: state = await admin.member_state("billing", ids[0])
        """
        fields = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if stacks else "false",
        }
        target = address or await self._broker_of_member(group, client_id)
        found = await self._fetch(
            target,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            fields,
            bodies.ConsumerRunningInfo,
            "the member's state",
            timeout_ms=RELAY_TIMEOUT_MS,
        )
        return found.value()

    async def member_positions(
        self, group: str, topic: str, *, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """client id -> queue -> position, as the members themselves say; of one, or of all.

        Example: positions = await admin.member_positions("billing", "Orders")
        """
        fields = {"topic": topic, "group": group, "clientAddr": client_id}
        found: dict[str, dict[MessageQueue, int]] = {}
        for address in (await self._topic_brokers(topic)).values():
            known = await self._fetch(
                address,
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                fields,
                bodies.ConsumerStatus,
                "the positions",
                timeout_ms=RELAY_TIMEOUT_MS,
            )
            for client, positions in known.consumer_table.items():
                found.setdefault(client, {}).update(positions)
        return found

    async def subscription(self, group: str, topic: str) -> GroupSubscription | None:
        """What the members that are online want of a topic, or None.

        Example: wanted = await admin.subscription("billing", "Orders")
        """
        code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
        for address in (await self._topic_brokers(topic)).values():
            found = await self._fetch(
                address,
                code,
                {"group": group, "topic": topic},
                bodies.SubscriptionAnswer,
                "the subscription",
            )
            if wanted := found.value():
                return wanted
        return None

    # Progress

    async def progress(
        self, group: str, topic: str | None = None, *, address: str | None = None
    ) -> GroupProgress:
        """How far a group is, in every queue of all its topics or of one.

        address  ask this broker only
        Raises NoRoute for an unknown group or topic, BrokerRefused.

        Example: print((await admin.progress("billing")).behind)
        """
        check_group(group)
        if address is not None:
            targets = [address]
        elif topic is not None:
            targets = list((await self._topic_brokers(topic)).values())
        else:
            targets = list((await self._group_brokers(group)).values())
        fields = {"consumerGroup": group}
        if topic is not None:
            fields["topic"] = topic
        parts = await asyncio.gather(
            *(
                self._fetch(
                    at,
                    RequestCode.GET_CONSUME_STATS,
                    fields,
                    bodies.ConsumeStats,
                    "the progress",
                )
                for at in targets
            )
        )
        return bodies.merged_progress(each.value() for each in parts)

    async def consume_spans(self, topic: str, group: str) -> tuple[ConsumeSpan, ...]:
        """Per queue: how old the messages are, and how late the group is. Raises NoRoute.

        Example: late_ms = max(span.delay_ms for span in await admin.consume_spans("Orders", "g"))
        """
        found: list[ConsumeSpan] = []
        for address in (await self._topic_brokers(topic)).values():
            code = RequestCode.QUERY_CONSUME_TIME_SPAN
            fields = {"topic": topic, "group": group}
            found += (
                await self._fetch(address, code, fields, bodies.ConsumeTimeSpans, "the times")
            ).value()
        return tuple(sorted(found, key=lambda span: span.queue))

    # Positions

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed queue offset, None when it has none.

        Example: at = await admin.committed("billing", MessageQueue("Orders", "broker-a", 0))
        """
        address = await self._queue_address(queue)
        fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "false",  # else a broker may answer 0 for "none"
        }
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._ask(address, code, fields, accepted=accepted)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return calls.number(answer, "offset", address)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's committed queue offset. Members that are online overwrite it: use reset().

        Raises BrokerRefused when the broker does not know the group or the queue.

        Example: await admin.commit("billing", queue, 0)
        """
        address = await self._queue_address(queue)
        await calls.commit_offset(
            self._running().connections,
            address,
            group,
            queue,
            offset,
            self._timeout_ms,
            oneway=False,
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the oldest message that is still there. Raises NoRoute, BrokerUnreachable.

        Example: first = await admin.min_offset(queue)
        """
        address = await self._queue_address(queue)
        return await calls.min_offset(self._running().connections, address, queue, self._timeout_ms)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset that the next message will get. Raises as min_offset.

        Example: end = await admin.max_offset(queue)
        """
        address = await self._queue_address(queue)
        return await calls.max_offset(self._running().connections, address, queue, self._timeout_ms)

    async def offset_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Queue offset of the first message stored at or after time_ms (wall, ms since 1970).

        Example: offset = await admin.offset_for_time(queue, 1_758_241_815_000)
        """
        address = await self._queue_address(queue)
        return await calls.offset_for_time(
            self._running().connections, address, queue, time_ms, self._timeout_ms
        )

    async def reset(
        self, group: str, topic: str, time_ms: int | None, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Send a group to a point in time: queue -> the offset it goes on from.

        time_ms  wall, ms since 1970: to the first message stored then or later; 0 the oldest;
                 None: to the end, skipping everything not consumed yet
        force    False (old brokers only): never forwards

        Members that are online go there by themselves. When nobody is online and the broker is an
        old one, the offsets are committed from here.
        Raises NoRoute, BrokerRefused (26: no such group).

        Example: await admin.reset("billing", "Orders", one_hour_ago_ms)
        """
        check_group(group)
        fields = {
            "topic": topic,
            "group": group,
            "timestamp": str(NOW if time_ms is None else time_ms),
            "isForce": "true" if force else "false",
        }
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        found: dict[MessageQueue, int] = {}
        for address in (await self._topic_brokers(topic)).values():
            try:
                known = await self._fetch(
                    address, code, fields, bodies.ResetOffsetBody, "the offsets"
                )
                found.update(known.offset_table)
            except BrokerRefused as problem:
                if problem.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                found.update(await self._reset_offline(group, topic, address, time_ms, force))
        return dict(sorted(found.items()))

    async def _reset_offline(
        self, group: str, topic: str, address: str, time_ms: int | None, force: bool
    ) -> dict[MessageQueue, int]:
        progress = await self.progress(group, topic, address=address)
        found: dict[MessageQueue, int] = {}
        for queue, at in progress.queues.items():
            if time_ms is None:
                offset = at.broker_offset
            else:
                offset = await self.offset_for_time(queue, time_ms)
            if not force:
                offset = min(offset, at.consumer_offset)
            await self.commit(group, queue, offset)
            found[queue] = offset
        return found

    async def reset_queue(
        self,
        group: str,
        queue: MessageQueue,
        *,
        offset: int | None = None,
        time_ms: int | None = None,
    ) -> int:
        """Send a group to one place in one queue; returns the queue offset.

        offset   exactly there; else time_ms as in reset()
        Raises BrokerRefused when the offset lies outside the queue.

        Example: await admin.reset_queue("billing", queue, offset=0)
        """
        address = await self._queue_address(queue)
        fields = {
            "topic": queue.topic,
            "group": group,
            "queueId": str(queue.queue_id),
            "timestamp": str(NOW if time_ms is None else time_ms),
            "isForce": "true",
        }
        if offset is not None:
            fields["offset"] = str(offset)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        found = await self._fetch(address, code, fields, bodies.ResetOffsetBody, "the offsets")
        return found.offset_table.get(queue, offset if offset is not None else 0)

    async def clone_offsets(
        self, source: str, target: str, topic: str, *, offline: bool = False
    ) -> None:
        """Let group `target` start where `source` is, in every queue of a topic.

        offline  also when the source is online and does not subscribe to the topic
        Raises NoRoute, BrokerRefused.

        Example: await admin.clone_offsets("billing", "billing-2", "Orders")
        """
        check_group(source)
        check_group(target)
        fields = {
            "srcGroup": source,
            "destGroup": target,
            "topic": topic,
            "offline": "true" if offline else "false",
        }
        for address in (await self._topic_brokers(topic)).values():
            await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, fields)

    # Where a group is known

    async def _group_brokers(self, group: str) -> Mapping[str, str]:
        """Brokers of the group's retry topic; broadcasting groups have none: then every master."""
        try:
            return await self._topic_brokers(RETRY_PREFIX + group)
        except NoRoute:
            return await self.masters()

    async def _broker_of_member(self, group: str, client_id: str) -> str:
        brokers = await self._group_brokers(group)
        for address in brokers.values():
            try:
                members = await self.consumers(group, address=address)
            except BrokerRefused:
                continue
            if any(each.client_id == client_id for each in members.connections):
                return address
        raise BrokerRefused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"no member {client_id} of group {group} is online",
            ", ".join(brokers.values()),
        )
