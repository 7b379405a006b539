"""The tables that slaves and tools copy whole: topics, progress, delay progress, groups."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from cluster.broker.delay import DelaySchedule
from cluster.broker.groups import GroupTable
from cluster.broker.handlers.requests import dumps, refusing
from cluster.broker.members import Peer
from cluster.broker.metasync import STAMP, UNCHANGED
from cluster.broker.offsets import OffsetTable
from cluster.broker.savedfile import SavedFile
from cluster.broker.topics import TopicTable
from cluster.remoting.codes import RequestCode
from cluster.remoting.command import Command
from cluster.remoting.connection import Handler


class TableHandlers:
    """Answers of one body each; masters and slaves give them alike.

    Paging fields are ignored: an answer without a total is taken as complete by every caller. A
    slave of ours names the state of the table that it has, and gets no body when that is still the
    state: it may ask often. Source: RocketMQ's AdminBrokerProcessor.
    """

    def __init__(
        self, topics: TopicTable, groups: GroupTable, offsets: OffsetTable, schedule: DelaySchedule
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._life = secrets.token_hex(4)  # generations are counted from each start anew

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: refusing(self.handle_get_all_topic_config),
            RequestCode.GET_ALL_CONSUMER_OFFSET: refusing(self.handle_get_all_consumer_offset),
            RequestCode.GET_ALL_DELAY_OFFSET: refusing(self.handle_get_all_delay_offset),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: refusing(
                self.handle_get_all_subscriptiongroup_config
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: refusing(
                self.handle_get_all_message_request_mode
            ),
        }

    def handle_get_all_topic_config(self, command: Command, connection: Peer) -> Command:
        return self._answer(command, self._topics.file, self._topic_tree)

    def _topic_tree(self) -> dict[str, Any]:
        return {
            **self._topics.to_json(),
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }

    def handle_get_all_consumer_offset(self, command: Command, connection: Peer) -> Command:
        return self._answer(command, self._offsets.file, self._offsets.shared_json)

    def handle_get_all_delay_offset(self, command: Command, connection: Peer) -> Command:
        return self._answer(command, self._schedule.file, self._schedule.to_json)

    def handle_get_all_subscriptiongroup_config(
        self, command: Command, connection: Peer
    ) -> Command:
        return self._answer(command, self._groups.file, self._groups.to_json)

    def handle_get_all_message_request_mode(self, command: Command, connection: Peer) -> Command:
        """Every group pulls: there is no POP to be switched to."""
        return command.reply(body=dumps({"messageRequestModeMap": {}}))

    def _answer(
        self, command: Command, file: SavedFile, tree: Callable[[], dict[str, Any]]
    ) -> Command:
        known = (command.ext or {}).get(STAMP)
        if known is None:
            return command.reply(body=dumps(tree()))
        stamp = f"{self._life}-{file.generation}"
        if known == stamp:
            return command.reply(ext={STAMP: stamp, UNCHANGED: "true"})
        return command.reply(ext={STAMP: stamp}, body=dumps(tree()))
