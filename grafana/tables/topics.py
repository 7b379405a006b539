# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""What comes in, what goes out, and who is behind."""

from __future__ import annotations

from typing import Final

from grafana.panels import HERE, OF_GROUP, OF_TOPIC, RATE, Dashboard, Panel, Query

DASHBOARD: Final = Dashboard(
    "tandem-topics",
    "TandemMQ / Topic and group",
    "What comes in, what goes out, and who is behind.",
    ("cluster", "broker", "topic", "group"),
    (
        Panel(
            "Messages in",
            "Per second, by topic.",
            (
                Query(
                    f"topk(20, sum by (topic) (rate(rocketmq_messages_in_total{{{OF_TOPIC}}}{RATE})))",
                    "{{topic}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Bytes in",
            "Per second, by topic. Counted every 10 s.",
            (
                Query(
                    f"topk(20, sum by (topic) (rate(rocketmq_throughput_in_total{{{OF_TOPIC}}}[1m])))",
                    "{{topic}}",
                ),
            ),
            "Bps",
        ),
        Panel(
            "Message sizes",
            "Half of a topic's messages, and 99 of 100, are smaller than this, with their headers.",
            (
                Query(
                    f"histogram_quantile(0.5, sum by (topic, le) (rate(rocketmq_message_size_bucket{{{OF_TOPIC}}}[1m])))",
                    "{{topic}} half",
                ),
                Query(
                    f"histogram_quantile(0.99, sum by (topic, le) (rate(rocketmq_message_size_bucket{{{OF_TOPIC}}}[1m])))",
                    "{{topic}} p99",
                ),
            ),
            "bytes",
        ),
        Panel(
            "Messages out",
            "Per second, by group. Reads from slaves are counted there, and in here.",
            (
                Query(
                    f"topk(20, sum by (consumer_group, topic) (rate(rocketmq_messages_out_total{{{OF_GROUP}}}{RATE})))",
                    "{{consumer_group}} {{topic}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Bytes out",
            "Per second, by group.",
            (
                Query(
                    f"topk(20, sum by (consumer_group, topic) (rate(rocketmq_throughput_out_total{{{OF_GROUP}}}{RATE})))",
                    "{{consumer_group}} {{topic}}",
                ),
            ),
            "Bps",
        ),
        Panel(
            "Lag",
            "Messages that a group has not committed, its retries beside them.",
            (
                Query(
                    f"topk(20, sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{OF_GROUP}}}))",
                    "{{consumer_group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Lag in time",
            "How long ago the oldest of them was stored.",
            (
                Query(
                    f"topk(20, max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds{{{OF_GROUP}}})) / 1000",
                    "{{consumer_group}} {{topic}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Pulled and not committed",
            "In the hands of members. As large as the lag: they have the messages and do not finish.",
            (
                Query(
                    f"topk(20, sum by (consumer_group, topic) (rocketmq_consumer_inflight_messages{{{OF_GROUP}}}))",
                    "{{consumer_group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Not yet pulled",
            "Waiting in the queues. Grows although there are members: they do not ask, or their limits hold them back.",
            (
                Query(
                    f"topk(20, sum by (consumer_group, topic) (rocketmq_consumer_ready_messages{{{OF_GROUP}}}))",
                    "{{consumer_group}} {{topic}}",
                ),
                Query(
                    f"max by (consumer_group, topic) (rocketmq_consumer_queueing_latency_milliseconds{{{OF_GROUP}}}) / 1000",
                    "{{consumer_group}} {{topic}} oldest, s",
                ),
            ),
        ),
        Panel(
            "Dead letters",
            "Messages that a group gave up on, ever. docs/howto/dead-letters.md says how to send them again.",
            (
                Query(
                    f'sum by (consumer_group) (rocketmq_send_to_dlq_messages_total{{{HERE},consumer_group=~"$group"}}) or vector(0)',
                    "{{consumer_group}}",
                ),
            ),
        ),
        Panel(
            "Transactions",
            "Half messages without an end, and what became of the others.",
            (
                Query(
                    f"sum by (topic) (rocketmq_half_messages{{{OF_TOPIC}}}) or vector(0)",
                    "open {{topic}}",
                ),
                Query(
                    f"sum by (topic) (rate(rocketmq_commit_messages_total{{{OF_TOPIC}}}{RATE})) or vector(0)",
                    "committed per s {{topic}}",
                ),
                Query(
                    f"sum by (topic) (rate(rocketmq_rollback_messages_total{{{OF_TOPIC}}}{RATE})) or vector(0)",
                    "rolled back per s {{topic}}",
                ),
            ),
        ),
        Panel(
            "Topics and groups",
            "How many there are, system ones included.",
            (
                Query(f"max by (node_id) (rocketmq_topic_number{{{HERE}}})", "topics {{node_id}}"),
                Query(
                    f"max by (node_id) (rocketmq_consumer_group_number{{{HERE}}})",
                    "groups {{node_id}}",
                ),
                Query("tandem_nameserver_topics", "routes {{node_id}}"),
            ),
        ),
    ),
)
