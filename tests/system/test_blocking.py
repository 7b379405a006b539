"""The client without asyncio, and `python -m tandemmq.bench`, on a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandemmq import (
    ClientError,
    Message,
    MessageRefused,
    NoNameServer,
    PushConsumer,
    ReceivedMessage,
    Sql92,
    StartFrom,
)
from tandemmq.bench.__main__ import main
from tandemmq.blocking import Producer, consume
from tandemmq.chaos.servers import python_env
from tandemmq.testing import TandemCluster

pytestmark = pytest.mark.system

SOON_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[TandemCluster]:
    with TandemCluster() as running:
        yield running


def test_a_script_sends_and_consumes(cluster: TandemCluster) -> None:
    topic = cluster.create_topic("Script", 2)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        sent = producer.send(topic, b"0", tags="created", keys="k")
        assert sent.ok
        assert producer.send(Message(topic, b"1"), ordering_key="k").ok
        results = producer.send_many(Message(topic, b"%d" % n) for n in range(2, 2_500))
    assert len({each.message_id for each in results}) == 2_498
    how = {"namesrv": cluster.namesrv, "start": StartFrom.FIRST}
    found = list(consume("billing", topic, count=2_500, idle_s=SOON_S, **how))
    assert {each.body for each in found} == {b"%d" % n for n in range(2_500)}
    assert {each.body: each.tags for each in found}[b"0"] == "created"
    assert list(consume("billing", topic, idle_s=0.5, **how)) == [], "what was consumed came again"


def test_what_the_loop_was_left_at_comes_again(cluster: TandemCluster) -> None:
    topic = cluster.create_topic("Left", 1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send_many(Message(topic, b"%d" % n) for n in range(5))
    how = {"namesrv": cluster.namesrv, "start": StartFrom.FIRST, "idle_s": SOON_S}
    messages = consume("left", topic, **how)
    for message in messages:
        if message.body == b"2":
            break
    messages.close()
    assert [each.body for each in consume("left", topic, count=3, **how)] == [b"2", b"3", b"4"]


def test_filters_and_wrong_arguments(cluster: TandemCluster) -> None:
    topic = cluster.create_topic("Filtered", 1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        for amount in (5, 50):
            producer.send(
                topic, b"%d" % amount, properties={"amount": str(amount)}, tags=f"t{amount}"
            )
        with pytest.raises(MessageRefused, match="body length is zero"):
            producer.send(topic, b"")
    how = {"namesrv": cluster.namesrv, "start": StartFrom.FIRST, "count": 1, "idle_s": SOON_S}
    assert [e.body for e in consume("sql", {topic: Sql92("amount > 10")}, **how)] == [b"50"]
    assert [e.body for e in consume("tag", {topic: "t5"}, **how)] == [b"5"]
    with pytest.raises(ValueError, match="idle_s must be above 0"):
        consume("x", topic, idle_s=0)
    with pytest.raises(TypeError, match="nonsense"):
        Producer("shop", nonsense=1)
    with pytest.raises(NoNameServer):
        consume("x", topic, namesrv="127.0.0.1:1")


async def test_inside_a_running_loop_as_in_a_notebook(cluster: TandemCluster) -> None:
    topic = cluster.create_topic("Notebook", 1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        assert producer.send(topic, b"17").ok
    how = {"namesrv": cluster.namesrv, "start": StartFrom.FIRST, "count": 1, "idle_s": SOON_S}
    assert [each.body for each in consume("cells", topic, **how)] == [b"17"]
    await asyncio.sleep(0)


def test_many_threads_share_a_producer(cluster: TandemCluster) -> None:
    topic = cluster.create_topic("Threads", 4)
    with Producer("shop", namesrv=cluster.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: producer.send(topic, b"%d" % n), range(100)))
    assert len({each.message_id for each in results}) == 100


def test_a_producer_that_was_closed_starts_anew(cluster: TandemCluster) -> None:
    producer = Producer("shop", namesrv=cluster.namesrv)
    assert producer.send("Anew", b"1").ok
    producer.close()
    producer.close()
    assert producer.send("Anew", b"2").ok
    producer.close()


def test_a_request_waits_for_its_reply(cluster: TandemCluster) -> None:
    topic, ready, done = cluster.create_topic("Prices", 1), threading.Event(), threading.Event()

    async def serve() -> None:
        async def answer(request: ReceivedMessage) -> None:
            await consumer.reply(request, b"9.99")

        async with PushConsumer(
            "prices", answer, namesrv=cluster.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        ) as consumer:
            ready.set()
            await asyncio.to_thread(done.wait, SOON_S)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(SOON_S)
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            reply = producer.request(Message(topic, b"17"), timeout_ms=SOON_S * 1000)
        assert reply.body == b"9.99"
    finally:
        done.set()
        server.join()


def test_ctrl_c_ends_a_script_that_waits(cluster: TandemCluster) -> None:
    script = (
        "from tandemmq.blocking import consume\n"
        "print('waits', flush=True)\n"
        "for message in consume('waits', 'Waits'): pass\n"
    )
    cluster.create_topic("Waits", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **python_env(), "NAMESRV_ADDR": cluster.namesrv},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SOON_S)
        assert process.returncode in (1, -signal.SIGINT, 130)
        assert "KeyboardInterrupt" in said
    finally:
        process.kill()
        process.communicate()


def test_an_error_of_the_cluster_is_the_clients_own(cluster: TandemCluster) -> None:
    with (
        Producer("shop", namesrv="127.0.0.1:1", timeout_ms=300) as producer,
        pytest.raises(ClientError),
    ):
        producer.send("Orders", b"17")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandemmq.bench", *words], capture_output=True, text=True, check=False,
        timeout=90, env={**os.environ, **python_env()},
    )  # fmt: skip


def test_the_bench_measures_a_cluster(cluster: TandemCluster) -> None:
    few = [
        "-n",
        cluster.namesrv,
        "--sizes",
        "100",
        "--in-flight",
        "1,8",
        "--count",
        "200",
        "--seconds",
        "0.5",
    ]
    done = bench(*few, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(each["in_flight"], each["sent"], each["read"]) for each in found["loads"]] == [
        (1, 20, 20), (8, 200, 200),
    ]  # fmt: skip
    way = found["end_to_end"]
    assert (way["count"], way["missing"]) == (100, 0)
    assert 0 < way["latency_ms"]["p50"] <= way["latency_ms"]["max"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--sizes", "0"], 2, "at least 1"),
        (["--sizes", "a"], 2, "no list of numbers"),
        (["--count", "0"], 2, "--count must be above 0"),
        (["-n", "127.0.0.1:1"], 4, "no name server answers"),
    ],
)
def test_the_bench_names_what_is_wrong(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main(words)
    except SystemExit as ending:
        ended = ending.code  # type: ignore[assignment]
    assert (ended, said in capsys.readouterr().err) == (code, True)
