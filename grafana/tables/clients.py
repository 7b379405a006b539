# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""Who is connected, and what clients are refused."""

from __future__ import annotations

from typing import Final

from grafana.panels import HERE, RATE, Dashboard, Panel, Query, quantile

DASHBOARD: Final = Dashboard(
    "tandem-clients",
    "TandemMQ / Clients",
    "Who is connected, what clients are refused, and what they wait for.",
    ("cluster", "broker", "group"),
    (
        Panel(
            "Connections",
            "Open connections, by port.",
            (
                Query(
                    f"sum by (instance, port) (tandem_connections{{{HERE}}})",
                    "{{instance}} {{port}}",
                ),
            ),
        ),
        Panel(
            "Producers",
            "Connections that registered as producers, by language and version of their client.",
            (
                Query(
                    f"sum by (language, version) (rocketmq_producer_connections{{{HERE}}})",
                    "{{language}} {{version}}",
                ),
            ),
        ),
        Panel(
            "Members of groups",
            "Connections that registered as consumers.",
            (
                Query(
                    f'sum by (consumer_group, consume_mode, language) (rocketmq_consumer_connections{{{HERE},consumer_group=~"$group"}})',
                    "{{consumer_group}} {{consume_mode}} {{language}}",
                ),
            ),
        ),
        Panel(
            "Held pulls",
            "Consumers that wait for a message: many is normal. 0 with members: they do not ask.",
            (Query(f"tandem_held_pulls{{{HERE}}}", "{{instance}}"),),
        ),
        Panel(
            "Refused",
            "Per second, by request and reason. The broker's log names the clients.",
            (
                Query(
                    f"sum by (request, code) (rate(tandem_refused_requests_total{{{HERE}}}{RATE})) or vector(0)",
                    "{{request}} {{code}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Refused by access control",
            "Per second, by reason.",
            (
                Query(
                    f"sum by (reason) (rate(tandem_access_refused_total{{{HERE}}}{RATE})) or vector(0)",
                    "{{reason}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Sends, by what they promise",
            "Half, and 99 of 100, are answered faster than this.",
            (
                Query(quantile("tandem_send_seconds", "mode", 0.5), "{{mode}} half"),
                Query(quantile("tandem_send_seconds", "mode"), "{{mode}} p99"),
            ),
            "s",
        ),
        Panel(
            "Readers sent to slaves",
            "Pulls that a master answered with: ask a slave next. And pulls that a slave could not serve.",
            (
                Query(
                    f"sum by (node_id) (rate(tandem_readers_sent_away_total{{{HERE}}}{RATE}))",
                    "sent away {{node_id}}",
                ),
                Query(
                    f"sum by (node_id) (rate(tandem_readers_lost_total{{{HERE}}}{RATE}))",
                    "not there {{node_id}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Readers moved back",
            "Pulls from beyond what a loss left. More than 0: look at the broker's log, `reader moved`.",
            (Query(f"tandem_readers_moved_total{{{HERE}}}", "{{node_id}} {{instance}}"),),
        ),
        Panel(
            "Rates as RocketMQ's exporter has them",
            "Messages per second in and out, over the last 10 s.",
            (
                Query(
                    'rocketmq_broker_tps{cluster=~"$cluster",broker=~"$broker"}',
                    "in {{broker}} {{instance}}",
                ),
                Query(
                    'rocketmq_broker_qps{cluster=~"$cluster",broker=~"$broker"}',
                    "out {{broker}} {{instance}}",
                ),
            ),
            "cps",
            width=16,
        ),
    ),
)
