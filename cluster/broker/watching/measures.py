"""Where the metrics of a broker come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import Role, split_labels
from tandemmq.cluster.broker.standing.hastatus import Following, SlaveLag
from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.transactions.halves import Outcome
from tandemmq.cluster.broker.watching.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from tandemmq.cluster.broker.watching.survey import Lag, Survey
from tandemmq.cluster.histogram import Histogram
from tandemmq.cluster.metrics import MetricTable, Reader, exposition
from tandemmq.cluster.remoting.codes import LANGUAGE_NAMES

_STORE: Final = ("local", "disk")
_CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}

Series = Iterator[tuple[tuple[str, ...], float]]


class Measures:
    """Reads a running broker; nothing here is counted twice or kept."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._survey = Survey(broker)

    def prepare(self) -> Iterator[None]:
        """Before the readers are asked: the look at queues and groups that many of them share."""
        return self._survey.take()

    def readers(self) -> Mapping[str, Reader]:
        broker = self._broker
        store, held, acks = broker.store, broker.pulls.held, broker.acks
        links = broker.registration.links
        return {
            "rocketmq_broker_permission": lambda: [((), broker.config.permission)],
            "rocketmq_topic_number": lambda: [((), len(broker.topics))],
            "rocketmq_consumer_group_number": lambda: [((), len(broker.groups))],
            "rocketmq_messages_in_total": self._messages_in,
            "rocketmq_throughput_in_total": self._bytes_in,
            "rocketmq_message_size": self._sizes,
            "rocketmq_send_to_dlq_messages_total": self._given_up,
            "rocketmq_half_messages": lambda: [
                ((topic,), count)
                for topic, count in list(broker.transactions.halves.counts.items())
            ],
            "rocketmq_commit_messages_total": lambda: self._ended(Outcome.COMMITTED),
            "rocketmq_rollback_messages_total": lambda: self._ended(Outcome.ROLLED_BACK),
            "rocketmq_messages_out_total": lambda: self._out(GROUP_GET_NUMS),
            "rocketmq_throughput_out_total": lambda: self._out(GROUP_GET_SIZE),
            "rocketmq_producer_connections": self._producers,
            "rocketmq_consumer_connections": self._consumers,
            "rocketmq_consumer_lag_messages": lambda: self._lags(lambda each: each.lag),
            "rocketmq_consumer_lag_latency_milliseconds": lambda: self._lags(
                lambda each: each.lag_ms
            ),
            "rocketmq_consumer_inflight_messages": lambda: self._lags(
                lambda each: each.lag - each.ready
            ),
            "rocketmq_consumer_ready_messages": lambda: self._lags(lambda each: each.ready),
            "rocketmq_consumer_queueing_latency_milliseconds": lambda: self._lags(
                lambda each: each.ready_ms
            ),
            "rocketmq_processor_watermark": self._unanswered,
            "rocketmq_rpc_latency_milliseconds": broker.latencies.requests,
            "rocketmq_storage_size_bytes": lambda: [(_STORE, store.end - store.start)],
            "rocketmq_storage_flush_behind_bytes": lambda: [(_STORE, store.end - store.flushed)],
            "rocketmq_storage_dispatch_behind_bytes": lambda: [
                (_STORE, store.dispatch_backlog_bytes)
            ],
            "rocketmq_storage_message_reserve_time_milliseconds": self._reserve_time,
            **self._exporters(),
            **self._latencies(),
            **self._disk(),
            "tandem_stored_messages": lambda: [((), self._survey.stored)],
            "tandem_appended_messages_total": lambda: [((), store.stats.appended_messages)],
            "tandem_appended_bytes_total": lambda: [((), store.stats.appended_bytes)],
            "tandem_store_writable": lambda: [((), float(store.flags.writable))],
            "tandem_unsafe_answers_total": lambda: [
                ((code.name,), count) for code, count in acks.unsafe.items()
            ],
            "tandem_waiting_answer_bytes": lambda: [((), acks.held_bytes)],
            "tandem_queue_entries_mended_total": lambda: [((), store.mending.mended)],
            "tandem_missing_messages_total": lambda: [((), store.mending.missing)],
            "tandem_clock_steps_total": lambda: [((), broker.schedule.time.steps)],
            "tandem_unread_output_bytes": lambda: [((), self._broker.output_budget.unread)],
            "tandem_unread_cut_off_total": lambda: [((), self._broker.output_budget.cut)],
            "tandem_held_pulls": lambda: [((), held.count)],
            "tandem_connections": self._connections,
            "tandem_requests_total": self._requests,
            "tandem_refused_requests_total": lambda: [
                (found, count) for found, count in list(broker.refusals.counts.items())
            ],
            "tandem_access_refused_total": self._turned_away,
            "tandem_protocol_violations_total": self._violations,
            "tandem_name_servers_registered": lambda: [
                ((), sum(link.registered for link in links))
            ],
            "tandem_name_servers": lambda: [((), len(links))],
            **self._replication(),
        }

    def _turned_away(self) -> Series:
        keeper = self._broker.guarding.keeper
        if keeper is not None:
            yield from (((reason,), count) for reason, count in keeper.gate.turned.items())

    def _replication(self) -> Mapping[str, Reader]:
        standing, store = self._broker.standing, self._broker.store
        return {
            "tandem_role": lambda: [((standing.role.value,), 1)],
            "tandem_epoch": lambda: [((), standing.epoch)],
            "tandem_log_end_bytes": lambda: [((), store.end)],
            "tandem_confirmed_bytes": lambda: [((), store.confirmed)],
            "tandem_slaves": lambda: [((), len(standing.slaves()))],
            "tandem_slaves_in_sync": lambda: [
                ((), sum(each.in_sync for each in standing.slaves()))
            ],
            "tandem_slave_lag_bytes": lambda: self._slaves(lambda each: each.behind_bytes),
            "tandem_slave_lag_seconds": lambda: self._slaves(lambda each: each.behind_ms / 1000),
            "tandem_stream_up": lambda: self._stream(lambda found: found.streaming),
            "tandem_stream_connects_total": lambda: self._stream(lambda found: found.connects),
            "tandem_tables_copied_seconds": self._tables_copied,
            "tandem_progress_ahead": lambda: [((), len(self._broker.offsets.ahead))],
            "tandem_readers_sent_away_total": lambda: [((), self._broker.slave_reads.sent_away)],
            "tandem_readers_moved_total": lambda: [((), self._broker.cuts.moved)],
            "tandem_readers_lost_total": lambda: [((), self._broker.slave_reads.lost)],
            "tandem_lease_seconds": lambda: self._replica(lambda found: found.lease_ms / 1000),
            "tandem_sync_set_size": lambda: self._replica(lambda found: found.set_size),
            "tandem_set_aside_messages": lambda: self._replica(
                lambda found: found.set_aside_records
            ),
            "tandem_alarms": lambda: [((), len(standing.alarms_now()))],
        }

    def _tables_copied(self) -> Series:
        copied_ms = self._broker.table_sync.synced_ms
        if copied_ms and self._broker.standing.role is Role.SLAVE:
            yield (), max(0.0, (self._broker.clock.now_ms() - copied_ms) / 1000)

    def _replica(self, value: Callable[[ControlledReplica], float]) -> Series:
        """Of a broker with a controller."""
        standing = self._broker.standing
        if isinstance(standing, ControlledReplica):
            yield (), float(value(standing))

    def _slaves(self, value: Callable[[SlaveLag], float]) -> Series:
        """By id, or by host where a slave does not say one: its port is another each time."""
        seen: Counter[str] = Counter()
        standing = self._broker.standing
        absent = standing.absent() if isinstance(standing, ControlledReplica) else []
        for each in (*standing.slaves(), *absent):
            name = str(each.replica) if each.replica else each.peer.rpartition(":")[0]
            seen[name] += 1
            yield (name if seen[name] == 1 else f"{name}#{seen[name]}",), value(each)

    def _stream(self, value: Callable[[Following], float]) -> Series:
        following = self._broker.standing.following
        if following is not None:
            yield (), float(value(following))

    def _system(self, topic: str) -> str:
        return str(self._broker.topics.is_system(topic)).lower()

    def _messages_in(self) -> Series:
        for topic, count in self._survey.puts.items():
            yield (topic, "normal", self._system(topic)), count

    def _bytes_in(self) -> Series:
        for topic, count in self._broker.stats.values(TOPIC_PUT_SIZE):
            yield (topic, "normal", self._system(topic)), count

    def _sizes(self) -> Iterator[tuple[tuple[str, ...], Histogram]]:
        for topic, histogram in list(self._broker.put_sizes.sizes.items()):
            yield (topic, "normal", self._system(topic)), histogram

    def _given_up(self) -> Series:
        for topic, count in self._survey.puts.items():
            if topic.startswith(names.DLQ_PREFIX):
                yield (topic, topic.removeprefix(names.DLQ_PREFIX), "false"), count

    def _ended(self, wanted: Outcome) -> Series:
        for (topic, outcome), count in list(self._broker.transactions.ended.items()):
            if outcome is wanted:
                yield (topic,), count

    def _out(self, name: str) -> Series:
        for key, value in self._broker.stats.values(name):
            topic, _, group = key.rpartition("@")
            yield (topic, group, self._system(topic)), value

    def _producers(self) -> Series:
        found: Counter[tuple[str, str, str]] = Counter()
        members = {
            member.connection.id: member
            for group in self._broker.producers.groups().values()
            for member in group
        }
        for member in members.values():
            found[_language(member.language), str(member.version), "remoting"] += 1
        yield from found.items()

    def _consumers(self) -> Series:
        found: Counter[tuple[str, ...]] = Counter()
        for group in list(self._broker.consumers):
            mode = _CONSUME_MODES.get(group.consume_type, "pop")
            system = str(group.name.startswith(names.SYSTEM_GROUP_PREFIX)).lower()
            for member in group.connections.values():
                language, version = _language(member.language), str(member.version)
                found[group.name, language, version, mode, "remoting", system] += 1
        yield from found.items()

    def _lags(self, value: Callable[[Lag], float]) -> Series:
        for each in self._survey.lags:
            retry = str(each.is_retry).lower()
            yield (each.group, each.topic, retry, self._system(each.topic)), value(each)

    def _exporters(self) -> Mapping[str, Reader]:
        """What RocketMQ's exporter says of a cluster, by its labels."""
        stats, name = self._broker.stats, self._broker.config.name

        def of_topics(counter: str) -> Series:
            for topic, rate in stats.values_per_second(counter):
                yield (name, topic), rate

        def of_groups(counter: str) -> Series:
            for key, rate in stats.values_per_second(counter):
                topic, _, group = key.rpartition("@")
                yield (name, topic, group), rate

        def of_lags(value: Callable[[Lag], float]) -> Series:
            for each in self._survey.lags:
                yield (name, each.topic, each.group), value(each)

        return {
            "rocketmq_broker_tps": lambda: [((name,), stats.rates_now()[0])],
            "rocketmq_broker_qps": lambda: [((name,), stats.rates_now()[1])],
            "rocketmq_producer_tps": lambda: of_topics(TOPIC_PUT_NUMS),
            "rocketmq_producer_message_size": lambda: of_topics(TOPIC_PUT_SIZE),
            "rocketmq_producer_offset": lambda: [
                ((name, topic), count) for topic, count in self._survey.puts.items()
            ],
            "rocketmq_consumer_tps": lambda: of_groups(GROUP_GET_NUMS),
            "rocketmq_consumer_message_size": lambda: of_groups(GROUP_GET_SIZE),
            "rocketmq_consumer_offset": lambda: of_lags(lambda each: each.committed),
            "rocketmq_message_accumulation": lambda: of_lags(lambda each: each.lag),
            "rocketmq_group_get_latency_by_storetime": lambda: of_lags(lambda each: each.lag_ms),
        }

    def _latencies(self) -> Mapping[str, Reader]:
        found = self._broker.latencies
        return {
            "tandem_send_seconds": lambda: [((found.mode.value,), found.send)],
            "tandem_ack_wait_seconds": found.waits,
            "tandem_commit_seconds": lambda: [((), found.commit)],
            "tandem_flush_seconds": lambda: [((), found.flush)],
            "tandem_pull_seconds": lambda: [((), found.pull)],
            "tandem_replication_round_trip_seconds": lambda: [
                ((slave,), histogram) for slave, histogram in list(found.round_trips.items())
            ],
            "tandem_flush_failures_total": lambda: [((), self._broker.log_flush.put_off)],
        }

    def _disk(self) -> Mapping[str, Reader]:
        store = self._broker.store
        return {
            "tandem_flushed_bytes": lambda: [((), store.flushed)],
            "tandem_disk_size_bytes": lambda: [((), store.disk_space()[0])],
            "tandem_disk_free_bytes": lambda: [((), store.disk_space()[1])],
            "tandem_disk_warning_ratio": lambda: [((), store.config.disk_percent_warning / 100)],
            "tandem_store_problem": lambda: [
                ((each.name.lower(),), 1) for each in store.flags.problems if each.name
            ],
        }

    def _unanswered(self) -> Series:
        broker = self._broker
        yield ("send",), broker.acks.held_commits
        yield ("pull",), broker.pulls.held.unjudged
        yield ("admin",), sum(len(server.endpoint.tasks) for server in broker.listening)

    def _reserve_time(self) -> Series:
        oldest_ms = self._broker.store.earliest_store_ms()
        now_ms = self._broker.clock.now_ms()
        yield _STORE, 0 if oldest_ms < 0 else max(now_ms - oldest_ms, 0)

    def _connections(self) -> Series:
        for server in self._broker.listening:
            yield (str(server.listen.port),), len(server.connections)

    def _requests(self) -> Series:
        for server in self._broker.listening:
            yield (str(server.listen.port),), server.stats.requests

    def _violations(self) -> Series:
        for server in self._broker.listening:
            yield (str(server.listen.port),), server.stats.protocol_violations


def _language(number: int) -> str:
    return LANGUAGE_NAMES.get(number, "OTHER").lower()


def table_of(broker: Broker) -> MetricTable:
    """The broker's metrics, under the labels that all of them have."""
    config = broker.config
    base = {
        "cluster": config.cluster,
        "node_type": "broker",
        "node_id": config.name,
        **split_labels(config.metrics_labels),
    }
    measures = Measures(broker)
    return MetricTable(measures.readers(), base, measures.prepare)


@asynccontextmanager
async def exposing(broker: Broker) -> AsyncIterator[None]:
    """Serve the broker's metrics while the body runs."""
    config, table = broker.config, table_of(broker)
    async with exposition(table, config.metrics_host or "127.0.0.1", config.metrics_port):
        yield
