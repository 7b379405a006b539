"""Every metric there is, in one table, and the page that Prometheus reads them from."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tandemmq.cluster.httplog import http_logger

log = logging.getLogger(__name__)

#: rows of one metric that are shown; a page of a broker with a million topics helps nobody
SERIES_MAX: Final = 5_000

Reading = Iterable[tuple[tuple[str, ...], float]]
Reader = Callable[[], Reading]


class Metric(NamedTuple):
    """One metric. `labels` are its own, beside the base labels that all have.

    A counter's name ends in _total. Names that begin with rocketmq_ are those RocketMQ
    publishes, with its units.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()


_TOPIC = ("topic", "message_type", "is_system")
_GROUP_TOPIC = ("topic", "consumer_group", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")
_STORE = ("storage_type", "storage_medium")
_REPLICA_GROUP = ("broker",)

METRICS: Final = (
    Metric("rocketmq_broker_permission", "gauge", "", "brokerPermission: 4 read, 2 write, 6 both"),
    Metric("rocketmq_topic_number", "gauge", "", "topics of this broker, system topics included"),
    Metric("rocketmq_consumer_group_number", "gauge", "", "subscription groups of this broker"),
    Metric("rocketmq_messages_in_total", "counter", "", "messages stored", _TOPIC),
    Metric("rocketmq_half_messages", "gauge", "", "transactions not ended yet", ("topic",)),
    Metric("rocketmq_commit_messages_total", "counter", "", "transactions committed", ("topic",)),
    Metric(
        "rocketmq_rollback_messages_total", "counter", "", "transactions rolled back", ("topic",)
    ),
    Metric("rocketmq_messages_out_total", "counter", "", "messages handed to pulls", _GROUP_TOPIC),
    Metric("rocketmq_throughput_out_total", "counter", "", "bytes handed to pulls", _GROUP_TOPIC),
    Metric(
        "rocketmq_producer_connections",
        "gauge",
        "",
        "connections that registered as producers",
        ("language", "version", "protocol_type"),
    ),
    Metric(
        "rocketmq_consumer_connections",
        "gauge",
        "",
        "connections that registered as consumers",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
    ),
    Metric("rocketmq_consumer_lag_messages", "gauge", "", "messages not yet committed", _LAG),
    Metric("rocketmq_consumer_inflight_messages", "gauge", "", "pulled, not yet committed", _LAG),
    Metric("rocketmq_consumer_ready_messages", "gauge", "", "messages not yet pulled", _LAG),
    Metric("rocketmq_storage_size_bytes", "gauge", "bytes", "bytes of the log", _STORE),
    Metric(
        "rocketmq_storage_flush_behind_bytes", "gauge", "bytes", "bytes not yet flushed", _STORE
    ),
    Metric(
        "rocketmq_storage_dispatch_behind_bytes",
        "gauge",
        "bytes",
        "bytes of the log not yet in queues",
        _STORE,
    ),
    Metric(
        "rocketmq_storage_message_reserve_time_milliseconds",
        "gauge",
        "milliseconds",
        "age of the oldest message",
        _STORE,
    ),
    Metric("tandem_appended_messages_total", "counter", "", "messages written to the log"),
    Metric("tandem_appended_bytes_total", "counter", "bytes", "bytes written to the log"),
    Metric("tandem_store_writable", "gauge", "", "1 while the store takes messages"),
    Metric(
        "tandem_unsafe_answers_total",
        "counter",
        "",
        "answers for messages that are stored, but perhaps not safe",
        ("code",),
    ),
    Metric("tandem_waiting_answer_bytes", "gauge", "bytes", "answers held until the disk has it"),
    Metric(
        "tandem_clock_steps_total", "counter", "", "steps of the wall clock by a second or more"
    ),
    Metric("tandem_unread_output_bytes", "gauge", "bytes", "answers that clients have not read"),
    Metric(
        "tandem_unread_cut_off_total", "counter", "", "connections cut off for all unread output"
    ),
    Metric("tandem_held_pulls", "gauge", "", "pulls that wait for a message"),
    Metric("tandem_connections", "gauge", "", "open connections", ("port",)),
    Metric("tandem_requests_total", "counter", "", "requests beside the short path", ("port",)),
    Metric(
        "tandem_refused_requests_total",
        "counter",
        "",
        "heartbeats, pulls, sends and their like that were refused; the log names the clients",
        ("request", "code"),
    ),
    Metric(
        "tandem_access_refused_total",
        "counter",
        "",
        "requests that access control refused; the log names the clients",
        ("reason",),
    ),
    Metric("tandem_protocol_violations_total", "counter", "", "broken frames", ("port",)),
    Metric("tandem_name_servers_registered", "gauge", "", "name servers that know this broker"),
    Metric("tandem_name_servers", "gauge", "", "name servers that are configured"),
    Metric("tandem_role", "gauge", "", "1 for what this broker is in its group", ("role",)),
    Metric(
        "tandem_epoch",
        "gauge",
        "",
        "epoch in which this broker is master, or that of the master it follows",
    ),
    Metric(
        "tandem_log_end_bytes", "gauge", "bytes", "log offset of the next message: its sequence id"
    ),
    Metric("tandem_confirmed_bytes", "gauge", "bytes", "log offset below which consumers may read"),
    Metric("tandem_slaves", "gauge", "", "slaves connected to this master"),
    Metric("tandem_slaves_in_sync", "gauge", "", "of them, those that are near enough"),
    Metric(
        "tandem_slave_lag_bytes", "gauge", "bytes", "log that a slave does not have yet", ("slave",)
    ),
    Metric(
        "tandem_slave_lag_seconds",
        "gauge",
        "seconds",
        "how long ago this log was as long as the slave's is",
        ("slave",),
    ),
    Metric("tandem_stream_up", "gauge", "", "1 while this slave receives its master's log"),
    Metric("tandem_stream_connects_total", "counter", "", "streams from masters since the start"),
    Metric(
        "tandem_tables_copied_seconds",
        "gauge",
        "seconds",
        "since a slave's tables were last compared with its master's, all of them",
    ),
    Metric(
        "tandem_progress_ahead",
        "gauge",
        "",
        "queues of groups whose progress here the master does not know yet",
    ),
    Metric("tandem_readers_sent_away_total", "counter", "", "readers this master sent to a slave"),
    Metric(
        "tandem_readers_moved_total",
        "counter",
        "",
        "pulls from beyond what a loss left, moved back",
    ),
    Metric("tandem_readers_lost_total", "counter", "", "pulls for what this slave does not have"),
    Metric("tandem_lease_seconds", "gauge", "seconds", "this master's lease, if it is not renewed"),
    Metric("tandem_sync_set_size", "gauge", "", "replicas in the set, this master included"),
    Metric("tandem_set_aside_messages", "gauge", "", "messages cut off this log, kept in files"),
    Metric("tandem_alarms", "gauge", "", "what a person must look at; the runtime table says what"),
    Metric("tandem_controller_leading", "gauge", "", "1 while this controller decides"),
    Metric("tandem_controller_store_failing", "gauge", "", "1 while nothing can be made durable"),
    Metric("tandem_controller_records_written_total", "counter", "", "decisions made durable"),
    Metric(
        "tandem_controller_unclean_allowed",
        "gauge",
        "",
        "1 while enableElectUncleanMaster lets an election lose confirmed messages",
    ),
    Metric("tandem_controller_epoch", "gauge", "", "epoch of the group", _REPLICA_GROUP),
    Metric("tandem_controller_masters", "gauge", "", "1: it has a serving master", _REPLICA_GROUP),
    Metric("tandem_controller_replicas", "gauge", "", "replicas that are known", _REPLICA_GROUP),
    Metric("tandem_controller_replicas_alive", "gauge", "", "replicas heard of", _REPLICA_GROUP),
    Metric(
        "tandem_controller_in_sync_replicas",
        "gauge",
        "",
        "replicas that hold everything confirmed",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_suspects",
        "gauge",
        "",
        "replicas that may have lost what they had and have not caught up",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_elections_total",
        "counter",
        "",
        "masters elected, lossy elections included",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_lossy_elections_total",
        "counter",
        "",
        "elections that may have lost confirmed messages",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_failed_elections_total",
        "counter",
        "",
        "times that nobody could be elected",
        _REPLICA_GROUP,
    ),
)


class MetricTable(Collector):
    """Reads every metric when somebody looks.

    readers   one for each metric it has: a name that METRICS lacks is our bug
    base      labels that every series carries
    """

    def __init__(self, readers: Mapping[str, Reader], base: Mapping[str, str]) -> None:
        known = {metric.name: metric for metric in METRICS}
        assert readers.keys() <= known.keys(), readers.keys() - known.keys()
        self._readers = [(known[name], reader) for name, reader in readers.items()]
        self._base = dict(base)

    def collect(self) -> Iterable[Family]:
        for metric, reader in self._readers:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            found = family(metric.name, metric.help, labels=[*self._base, *metric.labels])
            for count, (labels, value) in enumerate(reader()):
                if count >= SERIES_MAX:
                    break
                found.add_metric([*self._base.values(), *labels], value)
            yield found


def page(table: MetricTable) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(table)
    return generate_latest(registry)


@asynccontextmanager
async def exposition(table: MetricTable, host: str, port: int) -> AsyncIterator[None]:
    """Serve the page at any path of http://host:port while the body runs."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=page(table), headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application(client_max_size=1024)
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, logger=http_logger("metrics"))
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        log.info("metrics served address=%s:%d", host, port)
        yield
    finally:
        await runner.cleanup()
