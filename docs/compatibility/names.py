"""What everybody asks a name server, and brokers tell it."""

from __future__ import annotations

import zlib

import msgspec

from docs.compatibility.asker import Asker
from docs.compatibility.messages import TOPIC, UNKNOWN
from docs.compatibility.servers import BROKER, CLUSTER
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting import RequestCode as R

_OTHER = "127.0.0.1:1"  # of a broker that only says that it is there
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}


async def everything(asker: Asker) -> None:
    at = asker.side.name_server
    named = {"topic": TOPIC}
    await asker.until(lambda a: a.code == 0, R.GET_ROUTEINFO_BY_TOPIC, named, at=at)

    async def ask(
        code: R, ext: dict[str, object] | None = None, body: object = None, case: str = ""
    ) -> Command:
        return await asker.ask(code, ext, body, case=case, at=at)

    await ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, "acceptStandardJsonOnly": True})
    await ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": UNKNOWN}, case="of an unknown topic")
    await ask(R.GET_BROKER_CLUSTER_INFO)
    await ask(R.GET_BROKER_MEMBER_GROUP, {"clusterName": CLUSTER, "brokerName": BROKER})
    await ask(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    await ask(R.GET_TOPICS_BY_CLUSTER, {"cluster": CLUSTER})
    await ask(R.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    await ask(R.GET_UNIT_TOPIC_LIST)
    await ask(R.GET_HAS_UNIT_SUB_TOPIC_LIST)
    await ask(R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    pair = {"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC}
    await ask(R.PUT_KV_CONFIG, {**pair, "value": f"{BROKER}:2"})
    await ask(R.GET_KV_CONFIG, {**pair})
    await ask(R.GET_KV_CONFIG, {**pair, "key": UNKNOWN}, case="of an unknown key")
    await ask(R.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
    await ask(R.GET_KVLIST_BY_NAMESPACE, {"namespace": UNKNOWN}, case="of an unknown namespace")
    await ask(R.DELETE_KV_CONFIG, {**pair})
    await _brokers(asker)
    await ask(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": BROKER})
    await ask(R.ADD_WRITE_PERM_OF_BROKER, {"brokerName": BROKER})
    queue = {"brokerName": BROKER, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}  # fmt: skip
    await ask(R.REGISTER_TOPIC_IN_NAMESRV, {"topic": "Told"}, {"queueDatas": [queue], "brokerDatas": []})  # fmt: skip
    await ask(R.DELETE_TOPIC_IN_NAMESRV, {"topic": "Told"})
    await ask(R.GET_NAMESRV_CONFIG)
    await ask(R.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=true")
    await ask(R.UPDATE_NAMESRV_CONFIG, {}, b"kvConfigPath=/x", case="of a path")


async def _brokers(asker: Asker) -> None:
    at = asker.side.name_server
    told = {"brokerName": "broker-z", "brokerAddr": _OTHER, "clusterName": CLUSTER, "brokerId": 0}
    topics: dict[str, object] = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {}}
        for name in ("OfZ", "OfZToo")
    }  # fmt: skip
    body = msgspec.json.encode(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {"dataVersion": _VERSION, "topicConfigTable": topics},
        }
    )
    registered = {
        **told, "haServerAddr": "127.0.0.1:2", "compressed": False, "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
    }  # fmt: skip
    await asker.ask(R.REGISTER_BROKER, registered, body, at=at)
    await asker.ask(
        R.REGISTER_BROKER, {**registered, "bodyCrc32": 7}, body, at=at, case="with a wrong checksum"
    )
    await asker.ask(R.QUERY_DATA_VERSION, told, _VERSION, at=at)
    await asker.ask(R.BROKER_HEARTBEAT, told, at=at)
    await asker.ask(R.UNREGISTER_BROKER, told, at=at)
