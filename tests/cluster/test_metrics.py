"""cluster/metrics.py: one table of metrics, and the page made from it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandemmq.cluster.histogram import LATENCY_BOUNDS_US, Histogram
from tandemmq.cluster.metrics import METRICS, SERIES_MAX, MetricTable, page


def test_names_say_what_they_are() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.help
        assert metric.name.startswith(("rocketmq_", "tandem_", "process_"))
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        if metric.unit and metric.kind == "gauge":
            assert metric.name.endswith("_" + metric.unit)


def test_page_carries_base_labels_on_every_series() -> None:
    table = MetricTable(
        {
            "rocketmq_topic_number": lambda: [((), 3)],
            "rocketmq_messages_in_total": lambda: [(("T", "normal", "false"), 7)],
        },
        {"cluster": "C", "node_id": "broker-a"},
    )
    lines = page(table).decode().splitlines()
    assert 'rocketmq_topic_number{cluster="C",node_id="broker-a"} 3.0' in lines
    assert (
        'rocketmq_messages_in_total{cluster="C",is_system="false",message_type="normal",'
        'node_id="broker-a",topic="T"} 7.0' in lines
    )


def test_the_stock_parser_reads_the_page_back() -> None:
    histogram = next(metric for metric in METRICS if metric.bounds == LATENCY_BOUNDS_US)
    took = Histogram()
    for microseconds in (90, 90, 4_000, 90_000_000):
        took.add(microseconds)
    odd = 'quote " backslash \\ line\nend'
    labels = tuple(odd for _ in histogram.labels)
    table = MetricTable(
        {
            histogram.name: lambda: [(labels, took)],
            "rocketmq_messages_in_total": lambda: [((odd, "normal", "false"), 7)],
        },
        {"cluster": odd},
    )
    families = {each.name: each for each in text_string_to_metric_families(page(table).decode())}
    (sample,) = families["rocketmq_messages_in"].samples
    assert (sample.value, sample.labels["topic"], sample.labels["cluster"]) == (7, odd, odd)
    read = families[histogram.name]
    assert read.type == "histogram"
    buckets = [each for each in read.samples if each.name.endswith("_bucket")]
    assert buckets[-1].labels["le"] == "+Inf" and buckets[-1].value == 4
    assert sorted(each.value for each in buckets) == [each.value for each in buckets]
    assert {each.value for each in read.samples if each.name.endswith("_count")} == {4}
    assert all(each.labels["cluster"] == odd for each in read.samples)


def test_number_of_series_is_bounded() -> None:
    table = MetricTable(
        {"tandem_connections": lambda: (((str(port),), 1) for port in range(SERIES_MAX * 2))}, {}
    )
    series = [line for line in page(table).decode().splitlines() if line.startswith("tandem_")]
    assert len(series) == SERIES_MAX


def test_reader_without_a_row_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        MetricTable({"tandem_unheard_of": lambda: []}, {})
