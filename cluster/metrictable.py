"""Every metric there is: one row each. docs/metrics.md is written from it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from tandemmq.cluster.histogram import LATENCY_BOUNDS_US


class Metric(NamedTuple):
    """One metric. `labels` are its own, beside the base labels that all have.

    A counter's name ends in _total, and what has a unit ends in that (before it). Names that begin with rocketmq_ are
    those RocketMQ, or its exporter, publishes, with its units; process_ is what Prometheus' own clients say
    of a process.

    bounds  of a histogram, in the unit of `scale`: how many of what its Histogram holds are one of `unit`
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()
    scale: int = 1

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        if self.bounds:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """bytes, seconds or milliseconds; "" for a count or a share."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in ("bytes", "seconds", "milliseconds") else ""


def _seconds(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    """A histogram of durations."""
    return Metric(name, text, labels, LATENCY_BOUNDS_US, 1_000_000)


#: RocketMQ's buckets of message sizes and of requests' durations
MESSAGE_SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
RPC_BOUNDS_US: Final = tuple(each * 1_000 for each in (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000))

_TOPIC = ("topic", "message_type", "is_system")
_GROUP_TOPIC = ("topic", "consumer_group", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")
_OF_TOPIC = ("broker", "topic")
_OF_GROUP = ("broker", "topic", "group")
_STORE = ("storage_type", "storage_medium")
_REPLICA_GROUP = ("broker",)

METRICS: Final = (
    Metric("rocketmq_broker_permission", "brokerPermission: 4 read, 2 write, 6 both"),
    Metric("rocketmq_topic_number", "topics of this broker, system topics included"),
    Metric("rocketmq_consumer_group_number", "subscription groups of this broker"),
    Metric("rocketmq_messages_in_total", "messages stored", _TOPIC),
    Metric("rocketmq_throughput_in_total", "bytes stored; up to 10 s late", _TOPIC),
    Metric(
        "rocketmq_message_size",
        "bytes of stored messages; up to 10 s late, large bursts by their newest messages",
        _TOPIC,
        MESSAGE_SIZE_BOUNDS,
    ),
    Metric(
        "rocketmq_send_to_dlq_messages_total",
        "messages given up on: put into their group's dead letters",
        _GROUP_TOPIC,
    ),
    Metric("rocketmq_half_messages", "transactions not ended yet", ("topic",)),
    Metric("rocketmq_commit_messages_total", "transactions committed", ("topic",)),
    Metric("rocketmq_rollback_messages_total", "transactions rolled back", ("topic",)),
    Metric("rocketmq_messages_out_total", "messages handed to pulls", _GROUP_TOPIC),
    Metric("rocketmq_throughput_out_total", "bytes handed to pulls", _GROUP_TOPIC),
    Metric(
        "rocketmq_producer_connections",
        "connections that registered as producers",
        ("language", "version", "protocol_type"),
    ),
    Metric(
        "rocketmq_consumer_connections",
        "connections that registered as consumers",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
    ),
    Metric("rocketmq_consumer_lag_messages", "messages not yet committed", _LAG),
    Metric(
        "rocketmq_consumer_lag_latency_milliseconds",
        "how long ago the oldest message was stored that is not yet committed",
        _LAG,
    ),
    Metric("rocketmq_consumer_inflight_messages", "pulled, not yet committed", _LAG),
    Metric("rocketmq_consumer_ready_messages", "messages not yet pulled", _LAG),
    Metric(
        "rocketmq_consumer_queueing_latency_milliseconds",
        "how long ago the oldest message was stored that is not yet pulled",
        _LAG,
    ),
    Metric(
        "rocketmq_processor_watermark",
        "taken and not answered: sends that wait for safety, pulls to be judged by filters, other requests (admin)",
        ("processor",),
    ),
    Metric(
        "rocketmq_rpc_latency_milliseconds",
        "from a request to its answer; pulls that were held count as what they took then",
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        RPC_BOUNDS_US,
        1_000,
    ),
    Metric("rocketmq_storage_size_bytes", "bytes of the log", _STORE),
    Metric("rocketmq_storage_flush_behind_bytes", "bytes not yet flushed", _STORE),
    Metric("rocketmq_storage_dispatch_behind_bytes", "bytes of the log not yet in queues", _STORE),
    Metric(
        "rocketmq_storage_message_reserve_time_milliseconds", "age of the oldest message", _STORE
    ),
    Metric("rocketmq_broker_tps", "messages stored per second, last 10 s", ("broker",)),
    Metric("rocketmq_broker_qps", "messages pulled per second, last 10 s", ("broker",)),
    Metric("rocketmq_producer_tps", "messages per second, last minute", _OF_TOPIC),
    Metric("rocketmq_producer_message_size", "bytes per second, last minute", _OF_TOPIC),
    Metric("rocketmq_producer_offset", "messages ever stored", _OF_TOPIC),
    Metric("rocketmq_consumer_tps", "messages per second, last minute", _OF_GROUP),
    Metric("rocketmq_consumer_message_size", "bytes per second, last minute", _OF_GROUP),
    Metric("rocketmq_consumer_offset", "messages committed", _OF_GROUP),
    Metric("rocketmq_message_accumulation", "messages not yet committed", _OF_GROUP),
    Metric(
        "rocketmq_group_get_latency_by_storetime",
        "milliseconds since the oldest message was stored that is not yet committed",
        _OF_GROUP,
    ),
    _seconds(
        "tandem_send_seconds",
        "from a message's arrival to its answer, by what that promises (A0 to S1); timed once per commit",
        ("mode",),
    ),
    _seconds(
        "tandem_ack_wait_seconds",
        "how long commits' answers were held, by what they waited for: disk or slave",
        ("wait",),
    ),
    _seconds("tandem_commit_seconds", "writing a commit into the log's file"),
    _seconds("tandem_flush_seconds", "putting the log on the disk: fdatasync and its queue"),
    _seconds("tandem_pull_seconds", "finding the messages of a pull that brought some"),
    _seconds(
        "tandem_replication_round_trip_seconds",
        "from shipping bytes of the log to the slave's report that it has them",
        ("slave",),
    ),
    Metric(
        "tandem_flush_failures_total",
        "flushes put off because no descriptor was to be had; one that the disk failed ends the process",
    ),
    Metric("tandem_flushed_bytes", "log offset below which the disk has the log"),
    Metric(
        "tandem_stored_messages",
        "queue entries ever made: a slave's distance to its master in messages",
    ),
    Metric("tandem_disk_size_bytes", "of the file system with the log"),
    Metric("tandem_disk_free_bytes", "of it, what we may still use"),
    Metric(
        "tandem_disk_warning_ratio",
        "share in use from which the store refuses writes (diskSpaceWarningLevelRatio)",
    ),
    Metric("tandem_store_problem", "1 for what keeps the store from taking writes", ("problem",)),
    Metric("tandem_appended_messages_total", "messages written to the log"),
    Metric("tandem_appended_bytes_total", "bytes written to the log"),
    Metric("tandem_store_writable", "1 while the store takes messages"),
    Metric(
        "tandem_unsafe_answers_total",
        "answers for messages that are stored, but perhaps not safe",
        ("code",),
    ),
    Metric("tandem_waiting_answer_bytes", "answers held until the disk has it"),
    Metric(
        "tandem_queue_entries_mended_total",
        "damaged entries of consume queues that were written anew from the log",
    ),
    Metric(
        "tandem_missing_messages_total",
        "entries whose message is not in the log, which readers pass over",
    ),
    Metric("tandem_clock_steps_total", "steps of the wall clock by a second or more"),
    Metric("tandem_unread_output_bytes", "answers that clients have not read"),
    Metric("tandem_unread_cut_off_total", "connections cut off for all unread output"),
    Metric("tandem_held_pulls", "pulls that wait for a message"),
    Metric("tandem_connections", "open connections", ("port",)),
    Metric("tandem_requests_total", "requests beside the short path", ("port",)),
    Metric(
        "tandem_refused_requests_total",
        "heartbeats, pulls, sends and their like that were refused; the log names the clients",
        ("request", "code"),
    ),
    Metric(
        "tandem_access_refused_total",
        "requests that access control refused; the log names the clients",
        ("reason",),
    ),
    Metric("tandem_protocol_violations_total", "broken frames", ("port",)),
    Metric("tandem_name_servers_registered", "name servers that know this broker"),
    Metric("tandem_name_servers", "name servers that are configured"),
    Metric("tandem_role", "1 for what this broker is in its group", ("role",)),
    Metric(
        "tandem_epoch", "epoch in which this broker is master, or that of the master it follows"
    ),
    Metric("tandem_log_end_bytes", "log offset of the next message: its sequence id"),
    Metric("tandem_confirmed_bytes", "log offset below which consumers may read"),
    Metric("tandem_slaves", "slaves connected to this master"),
    Metric("tandem_slaves_in_sync", "of them, those that are near enough"),
    Metric("tandem_slave_lag_bytes", "log that a slave does not have yet", ("slave",)),
    Metric(
        "tandem_slave_lag_seconds",
        "how long ago this log was as long as the slave's is",
        ("slave",),
    ),
    Metric("tandem_stream_up", "1 while this slave receives its master's log"),
    Metric("tandem_stream_connects_total", "streams from masters since the start"),
    Metric(
        "tandem_tables_copied_seconds",
        "since a slave's tables were last compared with its master's, all of them",
    ),
    Metric(
        "tandem_progress_ahead", "queues of groups whose progress here the master does not know yet"
    ),
    Metric("tandem_readers_sent_away_total", "readers this master sent to a slave"),
    Metric("tandem_readers_moved_total", "pulls from beyond what a loss left, moved back"),
    Metric("tandem_readers_lost_total", "pulls for what this slave does not have"),
    Metric("tandem_lease_seconds", "this master's lease, if it is not renewed"),
    Metric("tandem_sync_set_size", "replicas in the set, this master included"),
    Metric("tandem_set_aside_messages", "messages cut off this log, kept in files"),
    Metric("tandem_alarms", "what a person must look at; the runtime table says what"),
    Metric("tandem_controller_leading", "1 while this controller decides"),
    Metric("tandem_controller_store_failing", "1 while nothing can be made durable"),
    Metric("tandem_controller_records_written_total", "decisions made durable"),
    Metric(
        "tandem_controller_unclean_allowed",
        "1 while enableElectUncleanMaster lets an election lose confirmed messages",
    ),
    Metric("tandem_controller_epoch", "epoch of the group", _REPLICA_GROUP),
    Metric("tandem_controller_masters", "1: it has a master that is alive", _REPLICA_GROUP),
    Metric("tandem_controller_replicas", "replicas that are known", _REPLICA_GROUP),
    Metric("tandem_controller_replicas_alive", "replicas heard of", _REPLICA_GROUP),
    Metric(
        "tandem_controller_in_sync_replicas",
        "replicas that hold everything confirmed",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_suspects",
        "replicas that may have lost what they had and have not caught up",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_elections_total",
        "masters elected, lossy elections included",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_lossy_elections_total",
        "elections that may have lost confirmed messages",
        _REPLICA_GROUP,
    ),
    Metric(
        "tandem_controller_failed_elections_total",
        "times that nobody could be elected",
        _REPLICA_GROUP,
    ),
    Metric("tandem_nameserver_brokers", "brokers that are registered, by role", ("role",)),
    Metric("tandem_nameserver_topics", "topics that have a route"),
    Metric("tandem_nameserver_brokers_expired_total", "brokers that were silent for too long"),
    Metric("process_cpu_seconds_total", "processor time, user and system"),
    Metric("process_resident_memory_bytes", "memory, mapped log files included"),
    Metric("process_open_fds", "open file descriptors"),
    Metric("process_max_fds", "how many there may be"),
    Metric("process_start_time_seconds", "when it was started, since the epoch"),
    Metric("tandem_scrape_seconds", "work that the page before this one took"),
)
