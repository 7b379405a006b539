"""`make demo`: a cluster on this machine, messages through our client and the stock Java one, a kill -9."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cluster.client import (
    Admin,
    ClientError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.exits import ExitCode
from tandemmq.screen import coloured

TOPIC: Final = "Demo"
OURS: Final = 2_000  # messages from our client
LARGE: Final = f"ours {OURS - 1}"
JAVA: Final = 200  # and from Java's
WAIT_S: Final = 60.0
REPOSITORY: Final = Path(__file__).resolve().parents[1]
_PORTS: Final = range(21_000, 31_000, 50)  # below the ephemeral range


class DemoFailed(Exception):
    """Something that the demo promises did not happen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every message arrived everywhere."""
    parser = argparse.ArgumentParser(
        prog="python -m tandemmq.demo",
        description="Start a cluster, send, consume, kill a broker, count, stop.",
        epilog="example:\n  python -m tandemmq.demo --no-java",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--no-java", action="store_true", help="leave the stock Java client out")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as directory:
        cluster = _Cluster(Path(directory))
        try:
            cluster.up()
            _say(f"cluster     name server and two masters on {cluster.name_server}")
            _run(cluster, with_java=not arguments.no_java)
            _say(f"stopped     {cluster.down()}")
        except (DemoFailed, ClientError) as problem:
            print(coloured(f"FAILED      {problem}", "red"), flush=True)
            cluster.show_logs()
            return ExitCode.FAILED
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        finally:
            with suppress(DemoFailed):
                cluster.down()
    _say(coloured(f"all there   {time.monotonic() - began:.0f} s", "green"))
    return ExitCode.OK


def _run(cluster: _Cluster, *, with_java: bool) -> None:
    bodies = asyncio.run(_send(cluster.name_server))
    java = _Java(cluster) if with_java else None
    if java is not None and java.missing:
        _say(f"java        left out: {java.missing}")
        java = None
    if java is not None:
        try:
            bodies |= java.send_and_receive(bodies)
        except (AssertionError, subprocess.SubprocessError, OSError) as problem:
            # the harness is test code: what it finds wrong it says with AssertionError
            raise DemoFailed(f"the Java client: {problem}") from problem
    asyncio.run(_receive(cluster.name_server, bodies))
    cluster.kill("broker-a")
    cluster.up()
    asyncio.run(_read_again(cluster.name_server, bodies))


async def _send(name_server: str) -> set[str]:
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queue_count=4)
    async with Producer("demo-producer", namesrv=name_server) as producer:
        began = time.perf_counter()
        results = await asyncio.gather(
            *(producer.send(Message(TOPIC, _body(f"ours {n}"))) for n in range(OURS - 20))
        )
        took_s = time.perf_counter() - began
        batch = [Message(TOPIC, _body(f"ours {n}")) for n in range(OURS - 20, OURS - 1)]
        results.append(await producer.send_batch(batch))
        results.append(await producer.send(Message(TOPIC, _body(LARGE))))
    if not all(result.ok for result in results):
        raise DemoFailed("a send was not acknowledged")
    brokers = sorted({result.queue.broker_name for result in results})
    _say(
        f"sent        {OURS} messages with our client to {' and '.join(brokers)}: "
        f"{(OURS - 20) / took_s:,.0f}/s one by one, a batch, a compressed one of 50 kB"
    )
    return {f"ours {number}" for number in range(OURS)}


def _body(name: str) -> bytes:
    """A message's body is its name; one is long enough to be compressed."""
    return name.ljust(50_000).encode() if name == LARGE else name.encode()


async def _receive(name_server: str, expected: set[str]) -> None:
    received: list[str] = []
    complete = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        received.append(message.body.decode().strip())
        if len(received) >= len(expected):
            complete.set()

    consumer = PushConsumer(
        "demo-consumer",
        handle,
        namesrv=name_server,
        subscribe={TOPIC: "*"},
        start=StartFrom.FIRST,
    )
    async with consumer:
        try:
            async with asyncio.timeout(WAIT_S):
                await complete.wait()
        except TimeoutError:
            pass  # _compare says what is missing
    _compare("our push consumer", received, expected)
    _say(f"received    {len(received)} messages with our push consumer")


async def _read_again(name_server: str, expected: set[str]) -> None:
    received: list[str] = []
    async with PullConsumer("demo-reader", namesrv=name_server, auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        for queue in consumer.assignment:
            await consumer.seek(queue, await consumer.min_offset(queue))
        while len(received) < len(expected):
            batch = await consumer.poll(1_000, timeout_ms=5_000)
            if not batch:
                break
            received += [message.body.decode().strip() for message in batch]
    _compare("the restarted cluster", received, expected)
    _say(f"kill -9     broker-a, started again: all {len(received)} messages are still there")


def _compare(reader: str, received: list[str], expected: set[str]) -> None:
    missing = expected - set(received)
    if missing:
        some = ", ".join(sorted(missing)[:5])
        raise DemoFailed(f"{reader} lacks {len(missing)} of {len(expected)} messages: {some} ...")
    if len(received) != len(expected) or set(received) - expected:
        raise DemoFailed(f"{reader} got {len(received)} messages, {len(expected)} were sent")


class _Cluster:
    """`tandem local` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._namesrv_port, self._broker_port = _free_ports()
        self._runs = False

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    def up(self) -> None:
        self._runs = True
        self._tandem(
            "up", "--namesrv-port", str(self._namesrv_port), "--broker-port", str(self._broker_port)
        )

    def down(self) -> str:
        """How each process ended; nothing when it is down already."""
        if not self._runs:
            return ""
        self._runs = False
        return ", ".join(self._tandem("down", "--kill").split("\n")).strip(", ")

    def kill(self, name: str) -> None:
        members = json.loads(self._tandem("status", "--json"))["members"]
        os.kill(next(each["pid"] for each in members if each["name"] == name), signal.SIGKILL)

    def show_logs(self) -> None:
        with suppress(DemoFailed):
            print(self._tandem("logs", "--lines", "15"), file=sys.stderr)

    def _tandem(self, action: str, *more: str) -> str:
        command = [sys.executable, "-m", "tandemmq", "local", action, "--dir"]
        done = subprocess.run(
            [*command, str(self.directory), *more], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DemoFailed(f"tandem local {action}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


class _Java:
    """The stock Java client, through the test suite's harness when this is a checkout with Java and Maven."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._kit: Any = None
        folders = [REPOSITORY / "tests" / "compat", REPOSITORY / "tests" / "system"]
        if not (folders[0] / "javakit.py").exists():
            self.missing: str | None = "no checkout of the repository here"
            return
        sys.path[:0] = map(str, folders)
        self._kit = importlib.import_module("javakit")
        self.missing = self._kit.java_missing()

    def send_and_receive(self, before: set[str]) -> set[str]:
        """Java's producer adds its messages, Java's push consumer gets all; the bodies it added."""
        kit = self._kit
        release = kit.NEWEST
        _say(
            f"java        RocketMQ client {release}, fetched by Maven when it is not there yet ..."
        )
        added = [f"java {number}" for number in range(JAVA)]
        home = self._cluster.directory / "java"
        with kit.Driver(release, "json", self._cluster.name_server, home) as driver:
            driver.call("producer.start", name="p", group="demo-java-producer")
            driver.call(
                "send.sync", name="p", topic=TOPIC, messages=[{"body": body} for body in added]
            )
            driver.call("push.start", name="c", topic=TOPIC, group="demo-java-consumer")
            expected = before | set(added)
            try:
                found = driver.wait_messages("c", len(expected), WAIT_S)
            except AssertionError:
                found = driver.messages("c")  # _compare says what is missing
            # the harness shows small bodies only, but the checksum of every one
            names = {kit.sha_of(_body(name)): name for name in expected}
            received = [names.get(message["sha"], "unknown") for message in found]
            driver.call("push.stop", name="c")
            driver.call("producer.stop", name="p")
        _compare("the Java consumer", received, expected)
        _say(f"java        sent {JAVA} messages, received {len(received)} with its push consumer")
        return set(added)


def _free_ports() -> tuple[int, int]:
    """A name server port and a broker port with room for two brokers and their fast ports."""
    for base in random.sample(_PORTS, len(_PORTS)):
        if all(_is_free(port) for port in (base, base + 18, base + 20, base + 28, base + 30)):
            return base, base + 20
    raise DemoFailed("no free ports between 21000 and 31000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
