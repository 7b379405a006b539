"""Running brokers read by Spark: tasks and queries go to their HTTP ports themselves."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audited_group import TOKEN, TOPICS, AuditedGroup, audited_group
from raw_wire import producing

pytest.importorskip("pyspark", reason="needs the audit extra")
pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedGroup]:
    """A pair with two segments of messages; tests leave it equal."""
    with audited_group(tmp_path_factory.mktemp("audited")) as made:
        made.fill(1_000)
        made.wait_caught_up()
        yield made


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all: a start takes seconds."""
    from tandemmq.audit import sparkling
    from tandemmq.replication.audit.spark_formats import register

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Spark and py4j warn of is theirs
        made = sparkling.session("local[2]")
        register(made)
        yield made
        made.stop()


def test_pair_under_load_raises_no_alarm(group: AuditedGroup, spark: Any) -> None:
    with producing(group.master.address, "Load") as load:
        done = group.audit("--json", "--engine", "spark")
    assert done.code == 0, done.out + done.err
    summary = json.loads(done.out)
    assert (summary["engine"], summary["verdict"]) == ("spark", "equal")
    assert [row for row in summary["finding_rows"] if row["severity"] != "info"] == []
    assert load.problem is None
    group.wait_caught_up()


def test_running_brokers_are_watched_with_a_stream(
    group: AuditedGroup, spark: Any, tmp_path: Path
) -> None:
    words = ("--once", "--out", tmp_path)
    done = group.audit(*words, action="watch")
    assert done.code == 0, done.out + done.err
    assert "records equal, 0 islands" in done.out
    group.fill(50, seed=9)
    group.wait_caught_up()
    done = group.audit(*words, action="watch")
    assert done.code == 0
    assert "0 islands" in done.out


def test_running_brokers_are_read_with_sql(group: AuditedGroup, spark: Any) -> None:
    """Over HTTP and from the directory: the same rows."""
    end = group.master.json("/healthz")["confirmed"]
    for kind, columns in (
        ("commitlog", ["topic", "queue_id", "queue_offset", "computed_crc"]),
        ("consumequeue", ["topic", "queue_id", "queue_offset", "physical_offset", "size"]),
    ):
        found = []
        for place in (group.master.url, str(group.master.store)):
            reading = spark.read.format(kind).option("endOffset", end).option("token", TOKEN)
            rows = reading.load(place).where("queue_offset >= 0").select(columns).collect()
            found.append(sorted(tuple(row) for row in rows if row["topic"] in TOPICS))
        assert found[0] == found[1]
        assert len(found[0]) >= 1_000
