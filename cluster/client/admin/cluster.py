"""Admin's part about servers: what they are doing, their settings, cleaning up, the key-value table."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.calls import REPORT_TIMEOUT_MS, AdminCalls
from tandemmq.cluster.client.admin.values import (
    ClientConnection,
    GroupProgress,
    ReplicaState,
    StatsWindows,
    TimerCounts,
)
from tandemmq.cluster.client.reaching.calls import field, number
from tandemmq.cluster.config import format_properties
from tandemmq.cluster.remoting import RequestCode, ResponseCode

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


class ClusterAdmin(AdminCalls):
    """Brokers and name servers. `address` is "host:port" of one server."""

    # Brokers

    async def broker_status(self, address: str) -> dict[str, str]:
        """What a broker says it is doing, by RocketMQ's keys (putTps, commitLogMaxOffset, ...).

        Raises BrokerUnreachable, CallTimedOut, BrokerRefused.

        Example: status = await admin.broker_status("127.0.0.1:10911")
        """
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._fetch(address, code, None, bodies.KVTable, "the status")).table

    async def timers(self, address: str) -> TimerCounts:
        """How many messages wait for their delivery time on a broker. Raises as broker_status.

        Example: waiting = (await admin.timers("127.0.0.1:10911")).by_topic
        """
        code = RequestCode.GET_TIMER_METRICS
        found = await self._fetch(address, code, None, bodies.TimerMetrics, "the timers")
        return TimerCounts(
            {topic: each.count for topic, each in found.timing_count.items()},
            {
                int(hour_ms): sum(topics.values())
                for hour_ms, topics in found.pending_by_hour.items()
            },
        )

    async def broker_config(self, address: str) -> dict[str, str]:
        """A broker's settings in force, by broker.conf's keys. Raises as broker_status.

        Example: role = (await admin.broker_config("127.0.0.1:10911"))["brokerRole"]
        """
        return bodies.properties((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body)

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker; it writes them to its file.

        Raises BrokerRefused for a key that may not change or a value that cannot be used.

        Example: await admin.update_broker_config(address, {"fileReservedTime": "72"})
        """
        body = format_properties(settings).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, {}, body)

    async def broker_statistic(self, address: str, name: str, key: str) -> StatsWindows | None:
        """One counter of a broker, None while it has counted nothing.

        name, key  e.g. "TOPIC_PUT_NUMS" and a topic, "GROUP_GET_NUMS" and "topic@group"

        Example: puts = await admin.broker_statistic(address, "TOPIC_PUT_NUMS", "Orders")
        """
        ext = {"statsName": name, "statsKey": key}
        accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        answer = await self._ask(
            address, RequestCode.VIEW_BROKER_STATS_DATA, ext, accepted=accepted
        )
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return None  # RocketMQ's way to say that nothing was counted under this key
        return bodies.read(answer.body, StatsWindows, f"statistic {name}", address)

    async def broker_progress(
        self, address: str, *, ordered_only: bool = False
    ) -> dict[str, GroupProgress]:
        """How far each group of one broker is. A broker with many groups may take long: 50 s.

        Example: behind = {group: p.behind for group, p in (await admin.broker_progress(at)).items()}
        """
        found = await self._fetch(
            address,
            RequestCode.GET_BROKER_CONSUME_STATS,
            {"isOrder": "true" if ordered_only else "false"},
            bodies.ConsumeStatsList,
            "the progress list",
            timeout_ms=REPORT_TIMEOUT_MS,
        )
        return found.value()

    async def producers(self, address: str) -> dict[str, tuple[ClientConnection, ...]]:
        """Producer group -> the producers connected to one broker.

        Example: groups = await admin.producers("127.0.0.1:10911")
        """
        code = RequestCode.GET_ALL_PRODUCER_INFO
        found = await self._fetch(address, code, None, bodies.ProducerTable, "the producer list")
        return found.value()

    async def replica_state(self, address: str) -> ReplicaState:
        """How replication stands on a broker: slaves of a master, or a slave's connection upwards.

        Example: lag = [slave.behind_bytes for slave in (await admin.replica_state(at)).slaves]
        """
        code = RequestCode.GET_BROKER_HA_STATUS
        found = await self._fetch(
            address, code, None, bodies.HARuntimeInfo, "the replication state"
        )
        return found.value()

    async def clean_expired_queues(self, address: str) -> None:
        """Delete consume queues whose messages have all expired.

        Example: await admin.clean_expired_queues("127.0.0.1:10911")
        """
        await self._ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(self, address: str) -> None:
        """Delete consume queues of topics that no longer exist.

        Example: await admin.clean_unused_topics("127.0.0.1:10911")
        """
        await self._ask(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired_log(self, address: str) -> None:
        """Delete expired CommitLog files now instead of at the hour of `deleteWhen`.

        Example: await admin.delete_expired_log("127.0.0.1:10911")
        """
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def reset_master_flush_offset(self, address: str, offset: int) -> None:
        """Tell a slave how far its master has flushed (bytes of the log); a master ignores it.

        Example: await admin.reset_master_flush_offset("127.0.0.1:10921", 0)
        """
        code = RequestCode.RESET_MASTER_FLUSH_OFFSET
        await self._ask(address, code, {"masterFlushOffset": str(offset)})

    # Name servers

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Keep producers away from a broker name: name server -> topics changed.

        The name servers forget it when the broker next registers changed topics. For good: set the
        broker's brokerPermission to 4.

        Example: changed = await admin.wipe_write_perm("broker-a")
        """
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answers = await self._ask_each(code, {"brokerName": broker_name})
        return {at: number(answer, "wipeTopicCount", at) for at, answer in answers.items()}

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Undo wipe_write_perm: name server -> topics changed.

        Example: changed = await admin.add_write_perm("broker-a")
        """
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        answers = await self._ask_each(code, {"brokerName": broker_name})
        return {at: number(answer, "addTopicCount", at) for at, answer in answers.items()}

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """name server -> its settings, by namesrv.conf's keys.

        Example: settings = await admin.name_server_config()
        """
        answers = await self._ask_each(RequestCode.GET_NAMESRV_CONFIG)
        return {at: bodies.properties(answer.body) for at, answer in answers.items()}

    async def update_name_server_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of every name server. Raises BrokerRefused for a key that may not change.

        Example: await admin.update_name_server_config({"enableTopicList": "false"})
        """
        body = format_properties(settings).encode()
        await self._ask_each(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body)

    # The key-value table of the name servers

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every name server.

        Example: await admin.put_kv("ORDER_TOPIC_CONFIG", "Orders", "broker-a:4")
        """
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._ask_each(RequestCode.PUT_KV_CONFIG, ext)

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """A value, None when there is none.

        Example: text = await admin.get_kv("ORDER_TOPIC_CONFIG", "Orders")
        """
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        ext = {"namespace": namespace, "key": key}
        answer = await self._ask_any(RequestCode.GET_KV_CONFIG, ext, accepted=accepted)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return field(answer, "value", "name server")

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value on every name server; nothing happens when there is none.

        Example: await admin.delete_kv("ORDER_TOPIC_CONFIG", "Orders")
        """
        await self._ask_each(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """Everything in a namespace, sorted; empty when it does not exist.

        Example: table = await admin.list_kv("ORDER_TOPIC_CONFIG")
        """
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._ask_any(
            RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace}, accepted=accepted
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return bodies.read(answer.body, bodies.KVTable, "the table", "the name server").table

    async def order_conf(self, topic: str) -> str | None:
        """The topic's fixed queues for ordered sends ("broker-a:4;broker-b:4"), or None.

        Example: text = await admin.order_conf("Orders")
        """
        return await self.get_kv(ORDER_NAMESPACE, topic)

    async def put_order_conf(self, topic: str, conf: str) -> None:
        """Fix the queues that producers see of a topic, whichever brokers are there.

        conf  "broker-a:4;broker-b:4"; name servers pass it on with orderMessageEnable=true only
        Raises ValueError when it is not of that form.

        Example: await admin.put_order_conf("Orders", "broker-a:4;broker-b:4")
        """
        for part in conf.split(";"):
            name, _, count = part.partition(":")
            if not name or not count.isdigit():
                raise ValueError(f"an order conf is broker:queues;broker:queues, got {conf!r}")
        await self.put_kv(ORDER_NAMESPACE, topic, conf)

    async def delete_order_conf(self, topic: str) -> None:
        """Forget the topic's fixed queues.

        Example: await admin.delete_order_conf("Orders")
        """
        await self.delete_kv(ORDER_NAMESPACE, topic)
