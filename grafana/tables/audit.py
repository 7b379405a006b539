# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""What audits found, and what a fault does."""

from __future__ import annotations

from typing import Final

from grafana.panels import HERE, RATE, Dashboard, Panel, Query

DASHBOARD: Final = Dashboard(
    "tandem-audit",
    "TandemMQ / Audit and chaos",
    "What audits found, and what a fault does: every fault of a chaos run shows in one of these.",
    ("cluster", "broker"),
    (
        Panel(
            "Differences",
            "Of each replica from its reference, by class. Anything above 0: docs/operations.md, alert TandemReplicaDiverged.",
            (Query("tandem_audit_divergences", "{{replica}} {{class}}"),),
            width=12,
        ),
        Panel(
            "Findings",
            "Things in one store that do not fit its own log, by severity.",
            (
                Query(
                    "sum by (replica, check, severity) (tandem_audit_findings) or vector(0)",
                    "{{replica}} {{check}} {{severity}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Last audit that came to its end",
            "By reference. Older than a week: its timer does not run.",
            (Query("time() - tandem_audit_last_success_timestamp_seconds", "{{reference}}"),),
            "s",
        ),
        Panel(
            "Audits",
            "0 equal, 1 divergent, 2 warnings, 3 incomplete.",
            (Query("tandem_audit_exit_code", "{{reference}}"),),
        ),
        Panel(
            "Bytes compared",
            "By the last audit of each reference, and how long it took.",
            (Query("tandem_audit_bytes_compared", "{{reference}}"),),
            "bytes",
        ),
        Panel(
            "Up",
            "1 for each process that answers Prometheus: kills, freezes and partitions show here first.",
            (Query('up{job="tandem"}', "{{instance}}"),),
        ),
        Panel(
            "Roles and epochs",
            "What a failover changes.",
            (
                Query(f"tandem_epoch{{{HERE}}}", "epoch {{instance}}"),
                Query(f'tandem_role{{{HERE},role!="SLAVE"}}', "master {{instance}}"),
            ),
        ),
        Panel(
            "Acknowledgements",
            "Sends answered per second: the hole that a fault makes, and what came after.",
            (
                Query(
                    f"sum by (node_id) (rate(tandem_send_seconds_count{{{HERE}}}{RATE}))",
                    "{{node_id}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Refused and unsafe",
            "Sends refused by reason, and answers that do not say SEND_OK.",
            (
                Query(
                    f'sum by (code) (rate(tandem_refused_requests_total{{{HERE},request=~"SEND_.*"}}{RATE})) or vector(0)',
                    "refused {{code}}",
                ),
                Query(
                    f"sum by (code) (rate(tandem_unsafe_answers_total{{{HERE}}}{RATE})) or vector(0)",
                    "unsafe {{code}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "What a replica lacks",
            "Bytes behind its master; -1 and more when it went another way.",
            (Query(f"tandem_slave_lag_bytes{{{HERE}}}", "{{node_id}} slave {{slave}}"),),
            "bytes",
        ),
        Panel(
            "Set aside, moved, lost",
            "Messages cut off a log, readers moved back, and elections that may have lost something.",
            (
                Query(f"sum(tandem_set_aside_messages{{{HERE}}})", "set aside"),
                Query(f"sum(tandem_readers_moved_total{{{HERE}}})", "readers moved"),
                Query("sum(tandem_controller_lossy_elections_total)", "lossy elections"),
            ),
        ),
        Panel(
            "Store problems",
            "Full disks, failed flushes, queues that cannot be written, by broker.",
            (Query(f"tandem_store_problem{{{HERE}}}", "{{problem}} {{instance}}"),),
        ),
        Panel(
            "Faults of a chaos run",
            "What tandem chaos run --metrics-port is doing to a cluster now, by kind and victim.",
            (Query("tandem_chaos_fault_active or vector(0)", "{{kind}} {{victim}}"),),
        ),
        Panel(
            "Sends of a chaos run",
            "Acknowledged, refused and unknown ones per second, as the run's own clients were told.",
            (
                Query(
                    f"sum by (outcome) (rate(tandem_chaos_sends_total{RATE})) or vector(0)",
                    "{{outcome}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Silence of a chaos run",
            "Seconds since its last acknowledgement, and acknowledged messages that its consumers do not have yet.",
            (
                Query("tandem_chaos_silence_seconds or vector(0)", "silence"),
                Query("tandem_chaos_undelivered_messages or vector(0)", "undelivered"),
            ),
        ),
    ),
)
