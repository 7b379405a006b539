"""cluster/broker/watching/measures.py: every metric can be read, and a large page holds nobody up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from brokerkit import Asker, MakeBroker

from tandemmq.cluster.broker.watching.measures import Measures, table_of
from tandemmq.cluster.broker.watching.survey import Lag, Survey
from tandemmq.cluster.metrics import METRICS, SLICE_S, MetricPage, page

QUEUES, GROUPS = 10_000, 1_000
PAGE_S = 0.2  # of a processor


def text_of(asker: Asker) -> str:
    return page(table_of(asker.broker)).decode()


async def test_every_metric_of_the_table_has_a_reader(asker: Asker) -> None:
    of_others = ("tandem_controller_", "tandem_nameserver_", "process_", "tandem_scrape_")
    names = {metric.name for metric in METRICS if not metric.name.startswith(of_others)}
    assert Measures(asker.broker).readers().keys() == names


async def test_a_working_broker_shows_what_it_does(asker: Asker) -> None:
    broker = asker.broker
    broker.topics.create_for_send("T", "TBW102", 1)
    for _ in range(3):
        asker.put("T")
    await asker.heartbeat("G", "T", client_id="c1")
    await asker.ask(34, {"clientID": "p1", "producerDataSet": [{"groupName": "P"}]})
    broker.offsets.commit("G", "T", 0, 1)
    broker.offsets.commit_pull("G", "T", 0, 2)
    broker.stats.pulled("G", "T", 2, 99)
    broker.stats.put(broker.put_sizes.look())
    asker.clock.advance(700)
    text = text_of(asker)
    size = broker.store.end
    base = f'cluster="{broker.config.cluster}"'
    node = 'node_id="broker-a",node_type="broker"'
    for line in (
        f'rocketmq_messages_in_total{{{base},is_system="false",message_type="normal",{node},topic="T"}} 3.0',
        f'rocketmq_throughput_in_total{{{base},is_system="false",message_type="normal",{node},topic="T"}} {size}.0',
        f'message_size_bucket{{{base},is_system="false",message_type="normal",{node},topic="T",le="1024.0"}} 3',
        f'rocketmq_message_size_sum{{{base},is_system="false",message_type="normal",{node},topic="T"}} {size}.0',
        f'rocketmq_messages_out_total{{{base},consumer_group="G",is_system="false",{node},topic="T"}} 2.0',
        f'rocketmq_throughput_out_total{{{base},consumer_group="G",is_system="false",{node},topic="T"}} 99.0',
        f'rocketmq_producer_connections{{{base},language="java",{node},protocol_type="remoting",version="479"}} 1.0',
        f'rocketmq_processor_watermark{{{base},{node},processor="send"}} 0.0',
        f"tandem_appended_messages_total{{{base},{node}}} 3.0",
        f"tandem_stored_messages{{{base},{node}}} 3.0",
        f"tandem_store_writable{{{base},{node}}} 1.0",
        f"tandem_held_pulls{{{base},{node}}} 0.0",
        f"rocketmq_broker_permission{{{base},{node}}} 6.0",
        f'tandem_role{{{base},{node},role="ASYNC_MASTER"}} 1.0',
        f"tandem_log_end_bytes{{{base},{node}}} {float(size)}",
        f"tandem_slaves{{{base},{node}}} 0.0",
    ):
        assert line in text, line
    of_group = f'{base},consumer_group="G",is_retry="false",is_system="false",{node},topic="T"'
    for name, value in {
        "rocketmq_consumer_lag_messages": 2.0,
        "rocketmq_consumer_inflight_messages": 1.0,
        "rocketmq_consumer_ready_messages": 1.0,
        "rocketmq_consumer_lag_latency_milliseconds": 700.0,
        "rocketmq_consumer_queueing_latency_milliseconds": 700.0,
    }.items():
        assert f"{name}{{{of_group}}} {value}" in text, name
    exporter = f'broker="broker-a",{base},group="G",{node},topic="T"'
    assert f"rocketmq_message_accumulation{{{exporter}}} 2.0" in text
    assert f"rocketmq_consumer_offset{{{exporter}}} 1.0" in text


async def test_requests_are_timed_by_what_they_are_and_what_they_got(asker: Asker) -> None:
    await asker.ask(34, {"clientID": "p1", "producerDataSet": [{"groupName": "P"}]})
    await asker.ask(17, topic="T", readQueueNums=1, writeQueueNums=1, perm=6)
    await asker.ask(17, topic="", readQueueNums=1, writeQueueNums=1, perm=6)
    found = {labels[1:3]: each.count for labels, each in asker.broker.latencies.requests()}
    assert found["heart_beat", "success"] == 1
    assert found["update_and_create_topic", "success"] == 1
    assert sum(count for (request, _), count in found.items() if request.endswith("topic")) == 2


async def test_a_group_whose_members_are_gone_still_lags(asker: Asker) -> None:
    broker = asker.broker
    broker.topics.create_for_send("T", "TBW102", 1)
    for _ in range(4):
        asker.put("T")
    broker.offsets.commit("Gone", "T", 0, 1)
    assert 'consumer_group="Gone",is_retry="false",is_system="false"' in text_of(asker)
    (lag,) = _survey(asker)
    assert (lag.group, lag.lag, lag.ready, lag.committed) == ("Gone", 3, 3, 1)


async def test_dead_letters_are_counted_by_their_group(asker: Asker) -> None:
    asker.broker.topics.create_for_retry("%DLQ%G", 1)
    asker.put("%DLQ%G")
    (line,) = [
        line
        for line in text_of(asker).splitlines()
        if line.startswith("rocketmq_send_to_dlq_messages_total{")
    ]
    assert 'consumer_group="G"' in line and line.endswith(" 1.0")


def _processor_s(work: Callable[[], object]) -> float:
    """What a machine that does something else besides does not change."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _survey(asker: Asker) -> list[Lag]:
    survey = Survey(asker.broker)
    for _ in survey.take():
        pass
    return survey.lags


async def test_topics_that_come_and_go_while_a_page_is_made_do_no_harm(asker: Asker) -> None:
    broker = asker.broker
    for number in range(50):
        broker.topics.create_for_send(f"T{number}", "TBW102", 1)
        asker.put(f"T{number}")
        broker.offsets.commit(f"G{number}", f"T{number}", 0, 0)
    for count, _ in enumerate(table_of(broker).parts()):
        broker.topics.create_for_send(f"New{count}", "TBW102", 1)
        asker.put(f"New{count}")
        broker.offsets.commit(f"New{count}", f"New{count}", 0, 0)
        broker.stats.pulled(f"New{count}", f"New{count}", 1, 1)
        await asker.heartbeat(f"New{count}", f"New{count}", client_id="c")
        if count == 20:
            broker.consumers.connection_closed(asker.connection)  # type: ignore[arg-type]
    assert count > 20


async def test_a_page_of_10_000_queues_and_1_000_groups_costs_little_and_holds_nobody_up(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Under 200 ms of work, in slices; asked every moment it is not made anew each time."""
    asker = make_broker(mappedFileSizeCommitLog="67108864", mappedFileSizeConsumeQueue="2000")
    broker = asker.broker
    for topic in range(GROUPS):
        name = f"Topic{topic}"
        broker.topics.create_for_send(name, "TBW102", QUEUES // GROUPS)
        for queue in range(QUEUES // GROUPS):
            asker.put(name, queue)
            broker.offsets.commit(f"Group{topic}", name, queue, 0)
        broker.stats.pulled(f"Group{topic}", name, 1, 100)
    assert len(list(broker.store.queues)) == QUEUES
    made = MetricPage([table_of(broker)])
    longest_s, beats = 0.0, 0
    making = asyncio.create_task(made.text())
    began = time.perf_counter()
    while not making.done():
        await asyncio.sleep(0)
        longest_s, began = max(longest_s, time.perf_counter() - began), time.perf_counter()
        beats += 1
    text = (await making).decode()
    assert text.count("rocketmq_consumer_lag_messages{") == GROUPS
    print(f"{made.cost_s * 1000:.0f} ms of work, {len(text) >> 10} KiB, {beats} turns, "
          f"longest {longest_s * 1000:.1f} ms")  # fmt: skip
    worked_s = min(_processor_s(lambda: text_of(asker)) for _ in range(3))
    print(f"{worked_s * 1000:.0f} ms of a processor")
    assert worked_s < PAGE_S, f"{worked_s:.3f} s"
    assert beats >= made.cost_s / SLICE_S / 8, "others had their turn"
    again = time.perf_counter()
    assert await made.text() is await made.text()
    assert time.perf_counter() - again < made.cost_s / 2, "kept for a while"
