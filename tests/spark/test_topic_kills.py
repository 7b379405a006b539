"""A stream into Parquet survives kill -9 of its driver and of a master: every row is there, once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from bench.quickpython import quick_python
from tandemmq import ClientError, Message, Producer
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.servers import python_env

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TOPIC = "Streamed"
DRIVER = Path(__file__).parent / "streaming_driver.py"
PATIENCE_S = 240  # two JVMs and a cluster on a busy machine


@contextmanager
def driver(namesrv: str, directory: Path, written: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver and its JVM, in a process group that is gone afterwards."""
    with written.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), namesrv, TOPIC, str(directory)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                **python_env(),
                "PYSPARK_PYTHON": quick_python(directory),
                "SPARK_LOCAL_DIRS": str(directory / "local"),  # a killed JVM leaves its files
            },
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)
            assert process.stdout is not None
            process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9: the driver, its JVM and all that runs Python for it."""
    with suppress(ProcessLookupError):  # all of it ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def batches(directory: Path) -> int:
    """How many micro-batches the sink has committed."""
    names = (each.name for each in (directory / "sink" / "_spark_metadata").glob("*"))
    return max((int(name.split(".")[0]) + 1 for name in names if name[0].isdigit()), default=0)


async def until(
    condition: Callable[[], object], what: str, process: subprocess.Popen[str], written: Path
) -> None:
    """Wait for it while the driver lives."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        alive = process.poll() is None and time.monotonic() < deadline_s
        assert alive, f"{what}: not in {PATIENCE_S} s, or the driver ended\n{tail(written)}"
        await asyncio.sleep(0.1)


def tail(written: Path) -> str:
    return written.read_text(errors="replace")[-4_000:]


@asynccontextmanager
async def sending(namesrv: str) -> AsyncIterator[list[str]]:
    """Messages one after the other, for as long as the body runs; the ids of those that were acknowledged."""
    acknowledged: list[str] = []

    async def send(producer: Producer) -> None:
        for number in itertools.count():
            try:
                result = await producer.send(Message(TOPIC, b"%d" % number))
            except ClientError:
                continue  # whether it is stored is unknown: sent once, so once in the topic at most
            if result.ok:
                acknowledged.append(result.message_id)
            await asyncio.sleep(0.01)

    async with Producer("PG", namesrv=namesrv, retries=0, timeout_ms=15_000) as producer:
        lane = asyncio.create_task(send(producer))
        try:
            yield acknowledged
        finally:
            lane.cancel()
            await asyncio.gather(lane, return_exceptions=True)


async def kill_master(group: ReplicaGroup) -> None:
    """kill -9; returns when the slave leads."""
    view = await group.view()
    assert view is not None and view.master is not None
    group.replica_at(view.master).signal(signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while (now := await group.view()) is None or now.master in (None, view.master):
        assert time.monotonic() < deadline_s, f"no new master: {now}"
        await asyncio.sleep(0.1)


async def test_every_row_is_in_the_sink_once_though_driver_and_master_are_killed(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        plan = GroupPlan()
        group = await stack.enter_async_context(ReplicaGroup(tmp_path / "group", plan))
        await group.start()
        await group.create_topic(TOPIC, 4)
        namesrv = group.name_server_address
        first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"

        def committed(count: int) -> Callable[[], bool]:
            return lambda: batches(tmp_path) >= count

        async with sending(namesrv) as acknowledged:
            with driver(namesrv, tmp_path, first_log) as first:
                await until(committed(1), "the first driver commits", first, first_log)
                kill(first)
            known = batches(tmp_path)
            second = stack.enter_context(driver(namesrv, tmp_path, second_log))
            await until(committed(known + 1), "the second goes on", second, second_log)
            await kill_master(group)
            known, sent = batches(tmp_path), len(acknowledged)
            await until(lambda: len(acknowledged) > sent + 20, "sends go on", second, second_log)
            await until(committed(known + 1), "it reads the new master", second, second_log)
        (tmp_path / "stop").touch()
        out, _ = await asyncio.to_thread(second.communicate, timeout=PATIENCE_S)
    assert second.returncode == 0, tail(second_log)
    found = json.loads(out.splitlines()[-1])
    sink = Counter((queue, offset) for queue, offset, _ in found["sink"])
    assert sink == Counter((queue, offset) for queue, offset, _ in found["topic"])
    assert max(sink.values()) == 1
    assert set(acknowledged) <= {unique for _, _, unique in found["sink"]}
    assert len(acknowledged) > 50
