# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""Who leads, who holds what, and what acknowledgements wait for."""

from __future__ import annotations

from typing import Final

from grafana.panels import HERE, Dashboard, Panel, Query, quantile

DASHBOARD: Final = Dashboard(
    "tandem-replication",
    "TandemMQ / Replication and failover",
    "Who leads, who holds what, and what acknowledgements wait for.",
    ("cluster", "broker"),
    (
        Panel(
            "Roles",
            "What each replica is. A change is a failover or a switchover: the controller's log says why.",
            (Query(f"tandem_role{{{HERE}}}", "{{node_id}} {{instance}} {{role}}"),),
            width=12,
        ),
        Panel(
            "Epochs",
            "Each new master has the next number. A step without a planned switch is a failover.",
            (
                Query(f"tandem_epoch{{{HERE}}}", "{{node_id}} {{instance}}"),
                Query('tandem_controller_epoch{broker=~"$broker"}', "controller {{broker}}"),
            ),
            width=12,
        ),
        Panel(
            "Replicas in sync",
            "How many replicas hold everything acknowledged, by the controller's word and by the master's. One of several: one copy.",
            (
                Query(
                    'tandem_controller_in_sync_replicas{broker=~"$broker"}', "controller {{broker}}"
                ),
                Query(f"tandem_sync_set_size{{{HERE}}} > 0", "master {{node_id}}"),
            ),
        ),
        Panel(
            "Replicas alive",
            "Replicas that the controller hears of, of those that are registered.",
            (
                Query('tandem_controller_replicas_alive{broker=~"$broker"}', "alive {{broker}}"),
                Query('tandem_controller_replicas{broker=~"$broker"}', "registered {{broker}}"),
            ),
        ),
        Panel(
            "Slaves behind, in time",
            "How long ago the master's log was as long as the slave's is. In async modes that much is lost with the master.",
            (Query(f"tandem_slave_lag_seconds{{{HERE}}}", "{{node_id}} slave {{slave}}"),),
            "s",
        ),
        Panel(
            "Slaves behind, in bytes",
            "Log that a slave does not have yet.",
            (Query(f"tandem_slave_lag_bytes{{{HERE}}}", "{{node_id}} slave {{slave}}"),),
            "bytes",
        ),
        Panel(
            "Slaves behind, in messages",
            "Queue entries that a slave has not made yet.",
            (
                Query(
                    'tandem:slave_lag_messages{cluster=~"$cluster",node_id=~"$broker"}',
                    "{{node_id}} {{instance}}",
                ),
            ),
        ),
        Panel(
            "Positions of the log",
            "Where the log ends, up to where the disk has it, and below which consumers may read. The distances are what acknowledgements wait for.",
            (
                Query(f"tandem_log_end_bytes{{{HERE}}}", "end {{instance}}"),
                Query(f"tandem_flushed_bytes{{{HERE}}}", "flushed {{instance}}"),
                Query(f"tandem_confirmed_bytes{{{HERE}}}", "confirmed {{instance}}"),
            ),
            "bytes",
        ),
        Panel(
            "Waiting for slave or disk, 99 of 100 shorter than",
            "How long the answers of a commit were held, by what for.",
            (Query(quantile("tandem_ack_wait_seconds", "node_id, wait"), "{{node_id}} {{wait}}"),),
            "s",
        ),
        Panel(
            "Round trip to slaves, 99 of 100 shorter than",
            "From shipping a piece of the log to the slave's report that it has it.",
            (
                Query(
                    quantile("tandem_replication_round_trip_seconds", "node_id, slave"),
                    "{{node_id}} slave {{slave}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Leases",
            "How long each master may go on if its controller is not heard of again. Near 0: the controller is gone, or has too little processor time.",
            (Query(f"tandem_lease_seconds{{{HERE}}} > 0", "{{node_id}} {{instance}}"),),
            "s",
        ),
        Panel(
            "Elections",
            "Masters elected, by group; lossy ones may have lost acknowledged messages, failed ones found nobody.",
            (
                Query('tandem_controller_elections_total{broker=~"$broker"}', "elected {{broker}}"),
                Query(
                    'tandem_controller_lossy_elections_total{broker=~"$broker"}', "lossy {{broker}}"
                ),
                Query(
                    'tandem_controller_failed_elections_total{broker=~"$broker"}',
                    "failed {{broker}}",
                ),
            ),
        ),
        Panel(
            "Streams",
            "1 while a slave receives its master's log; the number of streams it has begun grows with each reconnect.",
            (
                Query(f"tandem_stream_up{{{HERE}}}", "up {{instance}}"),
                Query(f"tandem_stream_connects_total{{{HERE}}}", "begun {{instance}}"),
            ),
        ),
        Panel(
            "Set aside",
            "Messages that were cut off a replica's log, for only it had them, and kept in files. Any growth is for a person to look at.",
            (Query(f"tandem_set_aside_messages{{{HERE}}}", "{{node_id}} {{instance}}"),),
        ),
        Panel(
            "Controllers",
            "1 for the one that decides; whether its store takes decisions; whether unclean elections are allowed.",
            (
                Query("tandem_controller_leading", "leading {{node_id}}"),
                Query("tandem_controller_store_failing", "store failing {{node_id}}"),
                Query("tandem_controller_unclean_allowed", "unclean allowed {{node_id}}"),
            ),
        ),
        Panel(
            "Suspects",
            "Replicas that may have lost what they had and have not caught up; they are not elected.",
            (Query('tandem_controller_suspects{broker=~"$broker"}', "{{broker}}"),),
        ),
    ),
)
