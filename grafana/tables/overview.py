# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""Is data at risk, and is anyone waiting?"""

from __future__ import annotations

from typing import Final

from grafana.panels import RATE, Dashboard, Panel, Query, quantile, stat

DASHBOARD: Final = Dashboard(
    "tandem-overview",
    "TandemMQ / Overview",
    "Is data at risk, and is anyone waiting?",
    ("cluster",),
    (
        stat(
            "Groups with one copy",
            "Groups that acknowledge with a single replica in sync although they have several. More than 0: a disk that goes now takes messages along. Look at Replication.",
            "count(tandem_controller_in_sync_replicas < 2 and tandem_controller_replicas > 1) or vector(0)",
        ),
        stat(
            "Groups without a master",
            "Nothing can be sent to them. Look at Replication, and at the controller's log.",
            "count(tandem_controller_masters == 0) or vector(0)",
        ),
        stat(
            "Processes down",
            "Name servers, controllers and brokers that do not answer Prometheus.",
            'count(up{job="tandem"} == 0) or vector(0)',
        ),
        stat(
            "Stores that refuse writes",
            "Brokers whose disk is full or failed. A slave's fence is no problem and not counted.",
            'count(count by (instance) (tandem_store_problem{cluster=~"$cluster",problem!="fenced"})) or vector(0)',
        ),
        stat(
            "Replicas that differ",
            "What the last audits found. 0 also where none has run: look at Audit and chaos.",
            "sum(tandem_audit_divergences) or vector(0)",
        ),
        stat(
            "A person is wanted",
            "Alarms that brokers raise themselves; their logs say why behind `a person must act`.",
            'sum(tandem_alarms{cluster=~"$cluster"}) or vector(0)',
        ),
        Panel(
            "Alerts",
            "What fires right now, by severity. Each alert names its paragraph in docs/operations.md.",
            (
                Query(
                    'ALERTS{alertstate="firing",alertname=~"Tandem.*"} or label_replace(vector(0), "alertname", "none", "", "")',
                    "{{alertname}} {{broker}} {{node_id}} {{instance}}",
                ),
            ),
            kind="table",
            width=12,
        ),
        Panel(
            "Oldest message that waits for a group",
            "How long ago the oldest message was stored that a group has not committed. It grows while members are gone or do not keep up.",
            (
                Query(
                    'topk(10, max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds{cluster=~"$cluster"}) / 1000)',
                    "{{consumer_group}} {{topic}}",
                ),
            ),
            "s",
            width=12,
        ),
        Panel(
            "Messages in",
            "Messages stored per second, by group of brokers. Flat at 0 with producers running: look at refused sends.",
            (
                Query(
                    'sum by (node_id) (rate(rocketmq_messages_in_total{cluster=~"$cluster"}'
                    + RATE
                    + "))",
                    "{{node_id}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Messages out",
            "Messages handed to consumers per second.",
            (
                Query(
                    'sum by (node_id) (rate(rocketmq_messages_out_total{cluster=~"$cluster"}'
                    + RATE
                    + "))",
                    "{{node_id}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Sends, 99 of 100 faster than",
            "From a message's arrival to its answer, by what the answer promises: A0 waits for nothing, A1 for the disk, S0 for slaves, S1 for both.",
            (
                Query(
                    quantile("tandem_send_seconds", "node_id, mode", labels='cluster=~"$cluster"'),
                    "{{node_id}} {{mode}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Sends refused",
            "By reason. Producers try elsewhere, or fail. The broker's log names the clients: `request refused`.",
            (
                Query(
                    'sum by (node_id, code) (rate(tandem_refused_requests_total{cluster=~"$cluster",request=~"SEND_.*"}'
                    + RATE
                    + '))  or label_replace(vector(0), "code", "none", "", "")',
                    "{{node_id}} {{code}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Answers that do not say SEND_OK",
            "Stored, but not known to be safe: the disk or the slaves were late.",
            (
                Query(
                    'sum by (node_id, code) (rate(tandem_unsafe_answers_total{cluster=~"$cluster"}'
                    + RATE
                    + ')) or label_replace(vector(0), "code", "none", "", "")',
                    "{{node_id}} {{code}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Disks in use",
            "Share of the log's file system. From the warning ratio on (90 % unless set) a store refuses writes.",
            (
                Query(
                    '1 - tandem_disk_free_bytes{cluster=~"$cluster"} / tandem_disk_size_bytes{cluster=~"$cluster"}',
                    "{{node_id}} {{instance}}",
                ),
            ),
            "percentunit",
        ),
    ),
)
