"""What the options of the format tandemmq mean, and how a wrong one is refused. No Spark."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tandemmq.spark.errors import OptionRefused
from tandemmq.spark.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    read_options,
    time_ms,
    write_options,
)
from tandemmq.spark.positions import (
    EARLIEST,
    LATEST,
    At,
    Positions,
    QueueKey,
    offsets_from,
    offsets_tree,
)
from tandemmq.spark.shapes import COLUMNS, check_sent, read_ddl
from tandemmq.spark.topics import matching

ORDERS = {"topics": "Orders"}


def read(streaming: bool = False, **options: Any) -> Any:
    return read_options({**ORDERS, **{k: str(v) for k, v in options.items()}}, streaming=streaming)


def test_batch_begins_at_the_oldest_message_and_a_stream_at_the_newest() -> None:
    assert read().start == Positions(At(EARLIEST))
    assert read().end == Positions(At(LATEST))
    assert read(streaming=True).start == Positions(At(LATEST))


def test_names_of_options_are_known_in_any_case() -> None:
    found = read(FAILONDATALOSS="False", minpartitions="7")
    assert (found.fails_on_loss, found.partitions_min) == (False, 7)


@pytest.mark.parametrize("known", [READ_OPTIONS, WRITE_OPTIONS])
def test_unknown_option_is_refused_with_all_that_there_are(known: dict[str, str]) -> None:
    with pytest.raises(OptionRefused, match="no such option: colour") as refused:
        if known is READ_OPTIONS:
            read(colour="red")
        else:
            write_options({"colour": "red"})
    for name in known:
        assert re.search(rf"\n  {name}: ", str(refused.value)), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topicPattern": "O.*"}, "topics and topicPattern, not both"),
        ({"tags": "A", "sql92": "a > 1"}, "tags and sql92, not both"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({"startingOffsets": "newest"}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"Orders": {"broker-a": 1}}'}, "a queue is named"),
        ({"startingOffsets": '{"Orders": {"broker-a:0": "1"}}'}, "whole number"),
        ({"startingOffsets": '{"Orders": {"broker-a:0": -3}}'}, "-2 .earliest. or -1 .latest."),
        ({"startingOffsets": "{}"}, "must name queues"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "no time zone"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp cannot be 'yesterday'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: that is for streams"),
        ({"minPartitions": "0"}, "minPartitions cannot be '0'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss cannot be 'no'"),
        ({"bodyType": "json"}, "bodyType cannot be 'json'"),
        ({"columns": "body,colour"}, "no such column: colour; there are topic, broker"),
        ({"accessKey": "a"}, "both accessKey and secretKey"),
        ({"keyFile": "k"}, "keyFile needs certFile"),
        ({"via": "log"}, "via=log needs places"),
        ({"via": "log", "places": "broker-a=/x"}, "places cannot be"),
        ({"places": "{}"}, "that is for via=log"),
        ({"path": "/data"}, "take no path"),
    ],
)
def test_wrong_value_is_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionRefused, match=said):
        read(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"commitOffsets": "true"}, "commitOffsets needs group"),
        ({"pushdown": "true"}, "no filters to streams"),
    ],
)
def test_stream_refuses_what_is_for_batches(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionRefused, match=said):
        read(streaming=True, **options)


def test_something_must_be_read() -> None:
    with pytest.raises(OptionRefused, match="say what to read"):
        read_options({}, streaming=False)
    with pytest.raises(OptionRefused, match="no regular expression"):
        read_options({"topicPattern": "("}, streaming=False)


def test_secrets_are_in_no_text() -> None:
    found = read(
        accessKey="shop", secretKey="hush-hush", via="log", token="t0ken", places='{"b": "/x"}'
    )
    assert found.cluster.secret_key == "hush-hush"
    assert "hush" not in repr(found) and "t0ken" not in repr(found)


def test_times_are_numbers_or_iso_with_a_zone() -> None:
    assert time_ms("1758241815000") == 1758241815000
    assert time_ms("2025-09-19T00:30:15+00:00") == 1758241815000
    assert time_ms("2025-09-19T02:30:15+02:00") == 1758241815000


def test_offsets_are_the_same_text_whatever_their_order() -> None:
    tree = {"B": {"x:1": 2, "x:0": 1}, "A": {"y:10": 3, "y:9": 4}}
    text = json.dumps(offsets_tree(offsets_from(tree)))
    assert text == '{"A": {"y:9": 4, "y:10": 3}, "B": {"x:0": 1, "x:1": 2}}'
    assert offsets_from(json.loads(text)) == offsets_from(tree)
    assert offsets_from({"A": {"a:b:7": 1}}) == {QueueKey("A", "a:b", 7): 1}


def test_schema_is_the_columns_that_were_asked_for() -> None:
    assert read_ddl(["body", "epoch"], text=True) == "body string, epoch bigint"
    assert read_ddl(COLUMNS, text=False).count(",") == len(COLUMNS)  # the map's own comma


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"body": "binary", "colour": "string"}, True, "no such column to send: colour.*\n.*body"),
        ({"key": "string"}, True, "a column body is needed"),
        ({"body": "int"}, True, "body must be binary or string, not int"),
        ({"body": "string"}, False, "where to"),
        ({"body": "string", "queue_id": "int"}, True, "name a queue together"),
    ],
)
def test_table_that_cannot_be_sent_is_refused(
    columns: dict[str, str], topic: bool, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check_sent(columns, has_topic=topic)


def test_pattern_means_whole_names_and_none_of_the_brokers_own() -> None:
    names = ["Orders", "Orders2", "MyOrders", "%RETRY%g", "TBW102", "rmq_sys_x", "C_REPLY_TOPIC"]
    assert matching(names, "Orders.*") == ["Orders", "Orders2"]
    assert matching(names, ".*") == ["MyOrders", "Orders", "Orders2"]
    assert matching(names, "%RETRY%.*") == ["%RETRY%g"]
