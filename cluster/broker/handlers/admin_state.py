"""Administration of the broker as a whole: what it is doing, and cleaning up now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.broker.handlers.requests import Refused, check_topic, dumps, refusing
from tandemmq.cluster.broker.jobs import Retention
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.sending.delay import DelaySchedule
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.timers.schedule import TimerSchedule
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.broker.watching.runtime import runtime_table
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.headers import Header
from tandemmq.storage import Clock, MessageStore


class StatsHeader(Header):
    """Header of VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class QueueHeader(Header):
    """Header of QUERY_CONSUME_QUEUE."""

    topic: str
    queue_id: int
    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class StateAdminHandlers:
    """Source: RocketMQ's AdminBrokerProcessor."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    release: Release
    topics: TopicTable
    stats: BrokerStats
    schedule: DelaySchedule
    retention: Retention
    standing: Standing
    timers: TimerSchedule
    transactions: Transactions

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: refusing(self.handle_get_broker_runtime_info),
            RequestCode.VIEW_BROKER_STATS_DATA: refusing(self.handle_view_broker_stats_data),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: refusing(
                self.handle_clean_expired_consumequeue
            ),
            RequestCode.CLEAN_UNUSED_TOPIC: refusing(self.handle_clean_unused_topic),
            RequestCode.DELETE_EXPIRED_COMMITLOG: refusing(self.handle_delete_expired_commitlog),
            RequestCode.GET_BROKER_HA_STATUS: refusing(self.handle_get_broker_ha_status),
            RequestCode.QUERY_CONSUME_QUEUE: refusing(self.handle_query_consume_queue),
        }

    def handle_get_broker_runtime_info(self, command: Command, connection: Peer) -> Command:
        table = runtime_table(
            self.config,
            self.store,
            self.stats,
            self.schedule,
            self.standing,
            self.clock.now_ms(),
            {**self.timers.runtime(), **self.transactions.runtime()},
        )
        return command.reply(body=dumps({"table": table}))

    def handle_view_broker_stats_data(self, command: Command, connection: Peer) -> Command:
        header = StatsHeader.of(command)
        windows = self.stats.windows(header.stats_name, header.stats_key)
        if windows is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        minute, hour, day = windows
        body = {
            "statsDay": day.to_json(),
            "statsHour": hour.to_json(),
            "statsMinute": minute.to_json(),
        }
        return command.reply(body=dumps(body))

    def handle_clean_expired_consumequeue(self, command: Command, connection: Peer) -> Command:
        # What parks messages has its progress elsewhere: behind it, a new queue would be passed over.
        self.store.clean_expired_queues(self.topics.is_system)
        return command.reply()

    def handle_clean_unused_topic(self, command: Command, connection: Peer) -> Command:
        if self.topics.following:
            # a slave knows topics later than their messages
            return command.reply(remark=LEFT_TO_MASTER)
        self.release.settle()
        ours = {names.TIMER_MARKS_TOPIC}  # nobody reads it but brokers, so no table has it
        self.store.clean_unused_topics(set(self.topics) | self.topics.system_topics | ours)
        return command.reply()

    def handle_delete_expired_commitlog(self, command: Command, connection: Peer) -> Command:
        self.retention.clean_now()
        return command.reply()

    def handle_get_broker_ha_status(self, command: Command, connection: Peer) -> Command:
        return command.reply(body=dumps(self.standing.ha_status()))

    def handle_query_consume_queue(self, command: Command, connection: Peer) -> Command:
        header = QueueHeader.of(command)
        check_topic(header.topic)
        queue = self.store.queue(header.topic, header.queue_id)
        if queue is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!"
            )
        if not queue.min_offset <= header.index < queue.max_offset:
            return command.reply(
                remark=f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
            )
        end = min(header.index + max(1, min(header.count, 1000)), queue.max_offset)
        found: list[dict[str, Any]] = []
        for position in range(header.index, end):
            entry = queue.entry(position)
            if entry is None:
                break
            physical, size, tags_code = entry
            found.append(
                {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": tags_code}
            )
        body = {
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": found,
        }
        return command.reply(body=dumps(body))
