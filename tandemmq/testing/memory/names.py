"""What the name server of a memory cluster answers, and its broker about topics."""

from __future__ import annotations

import json
from typing import Any

from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode
from tandemmq.cluster.remoting.headers import CreateTopicHeader, RouteHeader
from tandemmq.testing.memory.log import TEMPLATE
from tandemmq.testing.memory.server import BROKER, CLUSTER, State
from tandemmq.testing.memory.wires import Handle, MemoryWire


class Names:
    """Routes. address: the broker's."""

    def __init__(self, state: State, address: str) -> None:
        self._state = state
        self._address = address

    def table(self) -> dict[int, Handle]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.handle_get_routeinfo_by_topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.handle_get_broker_cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.handle_get_all_topic_list,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.handle_delete_topic,
            RequestCode.DELETE_KV_CONFIG: self.handle_delete_topic,  # there is no such table
        }

    def _broker(self) -> dict[str, Any]:
        return {"cluster": CLUSTER, "brokerName": BROKER, "brokerAddrs": {"0": self._address}}

    def handle_get_routeinfo_by_topic(self, request: Command, wire: MemoryWire) -> Command:
        """Where a topic is."""
        name = RouteHeader.of(request).topic
        topic = self._state.log.topics.get(name)
        if topic is None:
            remark = f"No topic route info in name server for the topic: {name}"
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        counts = {
            "brokerName": BROKER,
            "readQueueNums": topic.queue_count,
            "writeQueueNums": topic.queue_count,
            "perm": topic.perm,
            "topicSysFlag": 0,
        }
        route = {"queueDatas": [counts], "brokerDatas": [self._broker()], "filterServerTable": {}}
        return request.reply(body=json.dumps(route).encode())

    def handle_get_broker_cluster_info(self, request: Command, wire: MemoryWire) -> Command:
        """The one broker."""
        told = {
            "brokerAddrTable": {BROKER: self._broker()},
            "clusterAddrTable": {CLUSTER: [BROKER]},
        }
        return request.reply(body=json.dumps(told).encode())

    def handle_get_all_topic_list(self, request: Command, wire: MemoryWire) -> Command:
        """Every topic's name."""
        return request.reply(body=json.dumps({"topicList": list(self._state.log.topics)}).encode())

    def handle_delete_topic(self, request: Command, wire: MemoryWire) -> Command:
        """The broker has done it: both know one table."""
        return request.reply()


class Topics:
    """The broker's requests about topics."""

    def __init__(self, state: State) -> None:
        self._state = state

    def table(self) -> dict[int, Handle]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.handle_update_and_create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.handle_delete_topic_in_broker,
        }

    def handle_update_and_create_topic(self, request: Command, wire: MemoryWire) -> Command:
        """Make a topic, or change it."""
        header = CreateTopicHeader.of(request)
        topic = self._state.log.topic(header.topic)
        topic.queue_count, topic.perm = header.write_queue_nums, header.perm
        return request.reply()

    def handle_delete_topic_in_broker(self, request: Command, wire: MemoryWire) -> Command:
        """Forget a topic with its messages, and what groups have read of it."""
        name, log = RouteHeader.of(request).topic, self._state.log
        if name == TEMPLATE:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"{name} is the broker's own topic")
        log.topics.pop(name, None)
        for place in [each for each in log.queues if each[0] == name]:
            del log.queues[place]
        offsets = self._state.members.offsets
        for group_place in [each for each in offsets if each[1] == name]:
            del offsets[group_place]
        return request.reply()
