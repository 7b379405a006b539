"""Where a topic is served, as a name server says, and what makes a topic: fields of requests, asked over one pool."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.chaos.requests import answer_of
from tandemmq.cluster.remoting import ChannelPool, Command, RequestCode
from tandemmq.storage import fastjson


async def brokers_of(
    pool: ChannelPool, name_server: str, topic: str, timeout_ms: int
) -> Mapping[str, dict[int, str]]:
    """Broker group -> broker id -> address, groups in the order of their names; empty without answer or route."""
    ask = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    answer = await answer_of(pool, name_server, ask, timeout_ms)
    if answer is None or not answer.body:
        return {}
    brokers = fastjson.loads(bytes(answer.body)).get("brokerDatas") or ()
    found = {
        str(each["brokerName"]): {
            int(number): str(at) for number, at in each["brokerAddrs"].items()
        }
        for each in brokers
    }
    return dict(sorted(found.items()))


def topic_fields(topic: str, queues: int | str) -> dict[str, str]:
    """The fields of UPDATE_AND_CREATE_TOPIC for a plain topic that is read and written."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
