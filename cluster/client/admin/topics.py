"""Admin's part about topics: making, changing, deleting, listing, and how full their queues are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.calls import json_body
from tandemmq.cluster.client.admin.cluster import ClusterAdmin
from tandemmq.cluster.client.admin.values import TopicSettings, TopicStats
from tandemmq.cluster.client.errors import BrokerRefused, NoRoute
from tandemmq.cluster.client.message import check_topic
from tandemmq.cluster.client.reaching.routes import TEMPLATE_TOPIC, TopicRoute
from tandemmq.cluster.remoting import RequestCode, ResponseCode


class TopicAdmin(ClusterAdmin):
    """Topics. Where an `address` or `cluster` may be left out, every master is meant."""

    async def create_topic(
        self,
        topic: str,
        queue_count: int = 4,
        *,
        perm: int = 6,
        masters: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic, or change its queues, on every master.

        queue_count  on each broker
        perm         4 read, 2 write, 6 both
        masters      only on these (name -> address); cluster: only on that cluster's masters
        Raises MessageRefused (name), BrokerUnreachable when there is no master, BrokerRefused.

        Example: await admin.create_topic("Orders", queue_count=8)
        """
        settings = TopicSettings(topic, queue_count, queue_count, perm)
        addresses = None if masters is None else list(masters.values())
        await self.put_topic(settings, addresses, cluster=cluster)

    async def put_topic(
        self,
        settings: TopicSettings,
        addresses: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
    ) -> list[str]:
        """Create or change a topic with all its settings; returns the brokers that took it.

        Raises MessageRefused (name), BrokerUnreachable, BrokerRefused naming what is wrong.

        Example:
            await admin.put_topic(TopicSettings("Orders", attributes={"message.type": "FIFO"}))
        """
        check_topic(settings.topic)
        fields = bodies.topic_fields(settings, TEMPLATE_TOPIC)
        targets = await self._targets(addresses, cluster)
        for address in targets:
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        return targets

    async def put_topics(
        self,
        settings: Iterable[TopicSettings],
        addresses: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
    ) -> list[str]:
        """Create or change several topics with one request per broker (5.2 and later).

        RocketMQ's brokers apply nothing when one of the topics is there already, unchanged.

        Example: await admin.put_topics([TopicSettings("A"), TopicSettings("B")])
        """
        wanted = list(settings)
        for each in wanted:
            check_topic(each.topic)
        body = json_body({"topicConfigList": [bodies.tree(each) for each in wanted]})
        targets = await self._targets(addresses, cluster)
        for address in targets:
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
        return targets

    async def set_topic_perm(
        self, topic: str, perm: int, *, address: str | None = None
    ) -> dict[str, tuple[int, int]]:
        """Change who may use a topic; everything else stays: broker address -> (before, after).

        perm  4 read only, 2 write only, 6 both, 0 nobody
        address  only on this broker
        Raises NoRoute, BrokerRefused.

        Example: await admin.set_topic_perm("Orders", 4)
        """
        changed: dict[str, tuple[int, int]] = {}
        brokers = await self._topic_brokers(topic)
        for target in [address] if address is not None else list(brokers.values()):
            known = await self.topic_settings(topic, target)
            if known is None:
                raise NoRoute(topic, f"the broker {target} does not have it")
            await self.put_topic(replace(known, perm=perm, attributes={}), target)
            changed[target] = (known.perm, perm)
        return changed

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages and offsets: on every master, then at the name servers.

        cluster  only there; the name servers keep what other clusters have of it
        Raises MessageRefused (name), BrokerRefused (a system topic), BrokerUnreachable.

        Example: await admin.delete_topic("Orders")
        """
        check_topic(topic)
        for address in await self._targets(None, cluster):
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        fields = {"topic": topic}
        if cluster is not None:
            fields["clusterName"] = cluster
        await self._ask_each(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        await self.delete_order_conf(topic)

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """Every topic that the name server knows, system topics included, sorted.

        Example: mine = [name for name in await admin.topics() if not name.startswith("%")]
        """
        if cluster is None:
            answer = await self._ask_any(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            fields = {"cluster": cluster}
            answer = await self._ask_any(RequestCode.GET_TOPICS_BY_CLUSTER, fields)
        found = bodies.read(answer.body, bodies.TopicList, "the topic list", "the name server")
        return sorted(found.topic_list)

    async def system_topics(self, address: str) -> list[str]:
        """Topics that a broker made for itself, sorted.

        Example: own = await admin.system_topics("127.0.0.1:10911")
        """
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        found = await self._fetch(address, code, {}, bodies.TopicList, "the topic list")
        return sorted(found.topic_list)

    async def topic_settings(self, topic: str, address: str) -> TopicSettings | None:
        """The topic as one broker has it, or None. Raises BrokerUnreachable, BrokerRefused.

        Example: settings = await admin.topic_settings("Orders", "127.0.0.1:10911")
        """
        code = RequestCode.GET_TOPIC_CONFIG
        accepted = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        try:
            answer = await self._ask(address, code, {"topic": topic}, accepted=accepted)
        except BrokerRefused as problem:
            if problem.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return (await self.all_topic_settings(address)).get(topic)  # a 4.x broker
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return bodies.read(answer.body, bodies.TopicConfig, f"topic {topic}", address).value()

    async def all_topic_settings(self, address: str) -> dict[str, TopicSettings]:
        """Topic -> settings of one broker, sorted.

        Example: table = await admin.all_topic_settings("127.0.0.1:10911")
        """
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        found = await self._fetch(address, code, None, bodies.TopicTable, "the topic table")
        return {topic: each.value() for topic, each in found.topic_config_table.items()}

    async def topic_stats(self, topic: str) -> TopicStats:
        """How full each queue is, on every broker of the topic. Raises NoRoute, BrokerRefused.

        Example: print((await admin.topic_stats("Orders")).message_count)
        """
        brokers = await self._topic_brokers(topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        parts = await asyncio.gather(
            *(
                self._fetch(at, code, {"topic": topic}, TopicStats, "the queue table")
                for at in brokers.values()
            )
        )
        queues = {queue: found for part in parts for queue, found in part.queues.items()}
        return TopicStats(dict(sorted(queues.items())), sum(part.put_per_second for part in parts))

    async def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have the topic, sorted. Raises NoRoute.

        Example: names = await admin.topic_clusters("Orders")
        """
        brokers = await self._topic_brokers(topic)
        members = await self.cluster()
        return sorted({members[name].cluster for name in brokers if name in members})

    async def topic_groups(self, topic: str, *, route: TopicRoute | None = None) -> list[str]:
        """Groups that subscribe to the topic now or have consumed it, sorted. Raises NoRoute.

        route  the topic's, where it is known already
        Example: groups = await admin.topic_groups("Orders")
        """
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        found: set[str] = set()
        for address in (await self._topic_brokers(topic, route)).values():
            known = await self._fetch(
                address, code, {"topic": topic}, bodies.GroupList, "the list of groups"
            )
            found.update(known.group_list)
        return sorted(found - {topic})  # 5.3.3 lists the topic itself too
