# ruff: noqa: E501 - a query is one line, as it is pasted into Prometheus, and a description one sentence or two
"""One broker: its store, its disk, its process."""

from __future__ import annotations

from typing import Final

from grafana.panels import HERE, RATE, Dashboard, Panel, Query, quantile

DASHBOARD: Final = Dashboard(
    "tandem-broker",
    "TandemMQ / Broker",
    "One broker: its store, its disk, its connections, its process.",
    ("cluster", "broker"),
    (
        Panel(
            "Commits, 99 of 100 faster than",
            "Writing what came in together into the log's file. Slow: memory is short, or the disk holds up the page cache.",
            (
                Query(quantile("tandem_commit_seconds", "node_id, instance"), "{{instance}} p99"),
                Query(
                    quantile("tandem_commit_seconds", "node_id, instance", 0.5), "{{instance}} half"
                ),
            ),
            "s",
        ),
        Panel(
            "Flushes, 99 of 100 faster than",
            "Putting the log on the disk. In modes A1 and S1 each send waits for one.",
            (
                Query(quantile("tandem_flush_seconds", "node_id, instance"), "{{instance}} p99"),
                Query(
                    quantile("tandem_flush_seconds", "node_id, instance", 0.5), "{{instance}} half"
                ),
            ),
            "s",
        ),
        Panel(
            "Pulls, 99 of 100 faster than",
            "Finding the messages of a pull that brings some. Slow: consumers read what has left memory.",
            (Query(quantile("tandem_pull_seconds", "node_id, instance"), "{{instance}} p99"),),
            "s",
        ),
        Panel(
            "Messages per commit",
            "How many sends share a write: grows with load, and makes it cheap.",
            (
                Query(
                    f"sum by (instance) (rate(tandem_send_seconds_count{{{HERE}}}{RATE})) / sum by (instance) (rate(tandem_commit_seconds_count{{{HERE}}}{RATE}))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Not yet flushed",
            "Bytes of the log that only memory has.",
            (Query(f"rocketmq_storage_flush_behind_bytes{{{HERE}}}", "{{instance}}"),),
            "bytes",
        ),
        Panel(
            "Not yet in queues",
            "Bytes of the log that dispatch has not reached: consumers do not see them yet.",
            (Query(f"rocketmq_storage_dispatch_behind_bytes{{{HERE}}}", "{{instance}}"),),
            "bytes",
        ),
        Panel(
            "Disk free",
            "Of the file system with the log.",
            (
                Query(f"tandem_disk_free_bytes{{{HERE}}}", "free {{instance}}"),
                Query(f"rocketmq_storage_size_bytes{{{HERE}}}", "log {{instance}}"),
            ),
            "bytes",
        ),
        Panel(
            "Store",
            "1 while it takes writes; what keeps it from that. A slave is fenced: only its master's log goes in.",
            (
                Query(f"tandem_store_writable{{{HERE}}}", "writable {{instance}}"),
                Query(f"tandem_store_problem{{{HERE}}}", "{{problem}} {{instance}}"),
            ),
        ),
        Panel(
            "Flushes put off",
            "No descriptor was to be had. A flush that the disk failed ends the process instead, with exit code 10.",
            (Query(f"tandem_flush_failures_total{{{HERE}}}", "{{instance}}"),),
        ),
        Panel(
            "Kept for",
            "Age of the oldest message: fileReservedTime, or less where the disk is short.",
            (
                Query(
                    f"rocketmq_storage_message_reserve_time_milliseconds{{{HERE}}} / 1000",
                    "{{instance}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Requests",
            "Per second, beside the sends of the short path, by port.",
            (
                Query(
                    f"sum by (instance, port) (rate(tandem_requests_total{{{HERE}}}{RATE}))",
                    "{{instance}} {{port}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Requests by kind, 99 of 100 faster than",
            "By request, in milliseconds, as RocketMQ names them.",
            (
                Query(
                    f"topk(10, {quantile('rocketmq_rpc_latency_milliseconds', 'request_code')})",
                    "{{request_code}}",
                ),
            ),
            "ms",
        ),
        Panel(
            "Waiting",
            "Requests taken and not answered yet: sends held for safety, pulls to be judged by filters, others.",
            (Query(f"rocketmq_processor_watermark{{{HERE}}}", "{{processor}} {{instance}}"),),
        ),
        Panel(
            "Answers in memory",
            "Held until they are safe, and written but not read by clients.",
            (
                Query(f"tandem_waiting_answer_bytes{{{HERE}}}", "held {{instance}}"),
                Query(f"tandem_unread_output_bytes{{{HERE}}}", "unread {{instance}}"),
            ),
            "bytes",
        ),
        Panel(
            "Protocol violations",
            "Broken frames, and clients cut off because they did not read.",
            (
                Query(
                    f"sum by (instance) (tandem_protocol_violations_total{{{HERE}}})",
                    "broken {{instance}}",
                ),
                Query(f"tandem_unread_cut_off_total{{{HERE}}}", "cut off {{instance}}"),
            ),
        ),
        Panel(
            "Memory",
            "Of the process, mapped log files included: the kernel takes those back when it must.",
            (Query(f"process_resident_memory_bytes{{{HERE}}}", "{{instance}}"),),
            "bytes",
        ),
        Panel(
            "Processor",
            "Cores in use. One is the most that serves requests.",
            (Query(f"rate(process_cpu_seconds_total{{{HERE}}}{RATE})", "{{instance}}"),),
        ),
        Panel(
            "Descriptors",
            "Open files and connections, of those that there may be.",
            (Query(f"process_open_fds{{{HERE}}} / process_max_fds{{{HERE}}}", "{{instance}}"),),
            "percentunit",
        ),
        Panel(
            "Name servers",
            "Registered with, of those that are configured.",
            (
                Query(f"tandem_name_servers_registered{{{HERE}}}", "registered {{instance}}"),
                Query(f"tandem_name_servers{{{HERE}}}", "configured {{instance}}"),
            ),
        ),
        Panel(
            "Damage that readers met",
            "Entries of consume queues that pointed at no message and were written anew from the log, and messages that "
            "the log has lost. Either is worth a look at the disk, and at the broker's log.",
            (
                Query(f"tandem_queue_entries_mended_total{{{HERE}}}", "mended {{instance}}"),
                Query(f"tandem_missing_messages_total{{{HERE}}}", "missing {{instance}}"),
            ),
        ),
        Panel(
            "Clock steps",
            "Steps of the wall clock by a second or more since the start. Each of them is worth a look at the machine's clock.",
            (Query(f"tandem_clock_steps_total{{{HERE}}}", "{{instance}}"),),
        ),
        Panel(
            "This page",
            "Processor time of one scrape. Made in slices of a millisecond beside other work.",
            (Query("tandem_scrape_seconds", "{{instance}}"),),
            "s",
        ),
    ),
)
