"""Topics of Apache RocketMQ 5.3.3 as Spark's tables and streams: nothing is changed at its servers."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

from bench.quickpython import quick_python
from tandemmq import Admin, Message, Producer
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.java import NEWEST, java_missing

pytest.importorskip("pyspark", reason="needs the spark extra")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    """A stock name server and broker."""
    if reason := java_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("stock")
    with JavaNameServer(NEWEST, directory / "namesrv") as names:
        names.start()
        settings = {"enablePropertyFilter": "true", "mappedFileSizeCommitLog": 16 << 20}
        with JavaBroker(NEWEST, directory, names.address, settings=settings) as started:
            yield started.start()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tandemmq.audit import sparkling
    from tandemmq.spark import register

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", quick_python(tmp_path_factory.mktemp("python")))
        warnings.simplefilter("ignore")  # what Spark and py4j warn of is theirs
        made = sparkling.session("local[2]")
        register(made)
        yield made
        made.stop()


def fill(namesrv: str, topic: str, count: int) -> None:
    async def send() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, 2)
        async with Producer("PG", namesrv=namesrv, timeout_ms=60_000) as producer:
            messages = (
                Message(topic, b"%d" % n, tags="ab"[n % 2], keys=f"k{n}", properties={"n": str(n)})
                for n in range(count)
            )
            async for _ in producer.send_many(messages):
                pass

    asyncio.run(send())


def numbers(table: Any) -> Counter[int]:
    return Counter(int(bytes(row["body"])) for row in table.select("body").collect())


def through(writing: Any) -> Any:
    """The query when it is through. Spark gives its Python 10 s to start: a busy machine gets more chances."""
    for _ in range(4):
        query = writing.start()
        try:
            query.awaitTermination()
            return query
        except Exception as problem:
            if "failed to connect back" not in str(problem):
                raise
    query = writing.start()
    query.awaitTermination()
    return query


def test_topics_of_a_stock_broker_are_tables_and_streams(
    broker: JavaBroker, spark: Any, tmp_path: Path
) -> None:
    namesrv = broker.name_servers
    fill(namesrv, "Orders", 300)
    options = {"namesrv": namesrv, "topics": "Orders"}

    def read(**more: str) -> Any:
        return spark.read.format("tandemmq").options(**{**options, **more}).load()

    everything = Counter(range(300))
    whole = read(minPartitions="5").collect()
    assert Counter(int(bytes(row["body"])) for row in whole) == everything
    assert numbers(read(tags="a")) == Counter(range(0, 300, 2))
    assert numbers(read(sql92="n BETWEEN 10 AND 19")) == Counter(range(10, 20))
    (row,) = (row for row in whole if row["key"] == "k17")
    assert (row["tags"], row["properties"]["n"], row["epoch"]) == ("b", "17", None)
    start = json.dumps({"Orders": {"broker-a:0": 140, "broker-a:1": -1}})
    assert len(read(startingOffsets=start, columns="queue_id").collect()) == 10
    stored = read(via="log", places=json.dumps({"broker-a": str(broker.store)})).collect()
    assert sorted(map(str, stored)) == sorted(
        map(str, whole)
    )  # the same rows, out of a stock store

    stream = spark.readStream.format("tandemmq").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="100", group="lake", commitOffsets="true"
    )  # fmt: skip
    copies = stream.load().select("body", "key", "tags", "unique_id")
    writing = copies.writeStream.format("tandemmq").option("namesrv", namesrv)
    writing = writing.option("topic", "Copies").option("checkpointLocation", str(tmp_path))
    fill(namesrv, "Copies", 1)
    query = through(writing.trigger(availableNow=True))
    copied = spark.read.format("tandemmq").options(**{**options, "topics": "Copies"}).load()
    assert numbers(copied) == everything + Counter([0])
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [
        100
    ] * 3
    shown = run("admin", "consumerProgress", "-g", "lake", "-n", namesrv)
    assert shown.code == 0 and "Diff Total: 0" in shown.out, shown.out + shown.err
