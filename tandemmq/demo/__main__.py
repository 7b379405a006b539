"""`make demo`: a replicated cluster under steady traffic, a master killed, and every message counted."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tandemmq.cluster.client import Admin, ClientError, ReplicaSet
from tandemmq.command.exits import ExitCode
from tandemmq.command.screen import coloured
from tandemmq.demo.traffic import (
    TOPIC,
    WAIT_S,
    Count,
    DemoFailed,
    Traffic,
    body_of,
    count,
    read_log,
)
from tandemmq.java import NEWEST, Driver, JavaFailed, java_missing, sha_of
from tandemmq.local import processes
from tandemmq.local.layout import Layout, LocalProcess, open_layout
from tandemmq.local.status import look, looking

RATE: Final = 400  # messages a second
CALM_S: Final = 2.0  # of traffic between two events
JAVA: Final = 200  # messages from Java's client
LOOK_S: Final = 0.005
LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every acknowledged message arrived everywhere and the replicas are equal."""
    parser = argparse.ArgumentParser(
        prog="python -m tandemmq.demo",
        description="Start a replicated cluster, send and consume, kill a master, let it come back, "
        "hand over, count every message, compare the replicas.",
        epilog="example:\n  python -m tandemmq.demo --no-java",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--no-java", action="store_true", help="leave the stock Java client out")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as directory:
        cluster = _Cluster(Path(directory))
        # what the clients say while their master is away is part of it, and not of the screen
        logging.basicConfig(filename=cluster.client_log, level=logging.INFO, format=LOG_FORMAT)
        try:
            _run(cluster, with_java=not arguments.no_java)
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
    seconds = cluster.up()
    layout = cluster.layout
    _say(
        f"cluster     2 groups of a master and a slave, sync dual-write, up in {seconds:.1f} s: "
        f"name server {cluster.name_server}"
    )
    traffic = asyncio.run(_story(cluster))
    others: set[str] = set()
    no_java = java_missing() if with_java else None
    if no_java:
        _say(f"java        left out: {no_java}")
    elif with_java:
        stored = asyncio.run(read_log(cluster.name_server))
        try:
            others = _send_and_receive_by_java(cluster, set(stored))
        except (JavaFailed, OSError) as problem:
            raise DemoFailed(f"the Java client: {problem}") from problem
    stored = asyncio.run(read_log(cluster.name_server))
    if missing := others - stored.keys():
        raise DemoFailed(f"the log lacks {len(missing)} messages that Java's producer sent")
    _say_count(count(traffic, stored, others))
    asyncio.run(_replicated(layout))
    _say(f"stopped     {cluster.down()}")
    for group, members in layout.groups.items():
        _say(f"audit       {group}: {cluster.audit(members)}")


def _say_count(found: Count) -> None:
    text = (
        f"counted     {found.sent:,} sent, {found.acknowledged:,} acknowledged: every one delivered"
    )
    notes = []
    if found.unknown:
        notes.append(
            f"{found.unknown} sends failed, of which {found.unknown_stored} are stored all the same"
        )
    notes.append(f"{found.stored_twice} stored twice (sent again when no answer came)")
    notes.append(f"{found.repeats} delivered twice")
    _say(f"{text}; {', '.join(notes)}")


# What happens to the cluster while messages flow


async def _story(cluster: _Cluster) -> Traffic:
    layout = cluster.layout
    group = next(iter(layout.groups))
    config = cluster.name_server
    async with Admin(config) as admin:
        await admin.create_topic(TOPIC, queue_count=4)
        async with Traffic(config, RATE) as traffic:
            await asyncio.sleep(CALM_S)
            _say(
                f"traffic     {RATE} messages a second from our producer to {len(layout.groups)} "
                "groups, read by our push consumer"
            )
            victim = await _kill_master(layout, admin, traffic, group)
            await asyncio.sleep(CALM_S)
            started = await asyncio.to_thread(cluster.start, victim)
            _say(
                f"rejoin      {victim.name} started again: {started['member']['role']} in epoch "
                f"{started['member']['epoch']}, in sync after {started['seconds']:.2f} s"
            )
            await asyncio.sleep(CALM_S)
            await _hand_back(layout, admin, traffic, group)
            await asyncio.sleep(CALM_S)
            await traffic.drain()
    return traffic


async def _kill_master(layout: Layout, admin: Admin, traffic: Traffic, group: str) -> LocalProcess:
    """kill -9 a group's master; returns when the group takes messages again."""
    before = await _group(layout, admin, group)
    victim = _member_at(layout, before.master_address)
    loop = asyncio.get_running_loop()
    killed_s = loop.time()
    await asyncio.to_thread(processes.send_signal, layout, victim, signal.SIGKILL)
    _say(f"kill -9     {victim.name}, the master of {group} in epoch {before.epoch}")
    after = await _next_master(layout, admin, before)
    elected_s = loop.time() - killed_s
    heir = _member_at(layout, after.master_address)
    first = await traffic.first_from(after.master_address, killed_s)
    writable_s = (first.ended_s or loop.time()) - killed_s
    await asyncio.sleep(1.0)  # sends that waited for the dead master have come back by now
    _say(
        f"takeover    {heir.name} leads epoch {after.epoch} after {elected_s:.2f} s and acknowledges "
        f"after {writable_s:.2f} s; {_waits(traffic, killed_s)}"
    )
    return victim


async def _hand_back(layout: Layout, admin: Admin, traffic: Traffic, group: str) -> None:
    """A planned switchover to the other replica."""
    began_s = asyncio.get_running_loop().time()
    found = await admin.switchover(group, controllers=layout.controller)
    if found.announced_ms is None:
        raise DemoFailed(f"the name server does not send clients to the new master of {group}")
    await traffic.first_from(found.after.master_address, began_s)
    heir = _member_at(layout, found.after.master_address)
    _say(
        f"switchover  {group} handed over to {heir.name} in {found.elected_ms / 1000:.2f} s, epoch "
        f"{found.after.epoch}; {_waits(traffic, began_s)}"
    )


def _waits(traffic: Traffic, since_s: float) -> str:
    """How it was for the producer."""
    sends = traffic.since(since_s)
    ended = [each for each in sends if each.ended_s is not None]
    failed = sum(not each.acknowledged for each in ended)
    slowest_s = max((each.took_s for each in ended), default=0.0)
    again = sum(len(each.addresses) > 1 for each in ended)
    return (
        f"of {len(ended)} sends since {failed} failed, {again} were tried again, the slowest took "
        f"{slowest_s:.2f} s"
    )


async def _group(layout: Layout, admin: Admin, group: str) -> ReplicaSet:
    return (await admin.replica_sets(group, controllers=layout.controller))[group]


async def _next_master(layout: Layout, admin: Admin, before: ReplicaSet) -> ReplicaSet:
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await _group(layout, admin, before.broker_name)
                if found.epoch > before.epoch and found.master_id not in (None, before.master_id):
                    return found
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise DemoFailed(f"no new master of {before.broker_name} within {WAIT_S:g} s") from None


def _member_at(layout: Layout, address: str) -> LocalProcess:
    return next(each for each in layout.brokers if each.address == address)


async def _replicated(layout: Layout) -> None:
    """Wait until no slave lacks anything: then the stopped stores must be equal."""
    try:
        async with asyncio.timeout(WAIT_S), looking(layout) as admin:
            while True:
                status = await look(layout, admin)
                lags = [each.lag_bytes for each in status.conditions if each.role == "slave"]
                if status.well and lags == [0] * len(layout.groups):
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise DemoFailed(f"the slaves did not catch up within {WAIT_S:g} s") from None


# The cluster


class _Cluster:
    """`tandem local` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.client_log = directory / "clients.log"
        self.name_server = ""
        self._runs = False

    @property
    def layout(self) -> Layout:
        return open_layout(self.directory)

    def up(self) -> float:
        """Start it; how many seconds that took."""
        self._runs = True
        found = json.loads(self._tandem("local", "up", "--mode", "sync", "--json"))
        self.name_server = found["name_server"]
        return float(found["seconds"])

    def start(self, member: LocalProcess) -> dict[str, Any]:
        """Start one process again; when it takes part, what it is."""
        found: dict[str, Any] = json.loads(self._tandem("local", "start", member.name, "--json"))
        return found

    def down(self) -> str:
        """How each process ended; nothing when it is down already."""
        if not self._runs:
            return ""
        self._runs = False
        return ", ".join(self._tandem("local", "down", "--kill").split("\n")).strip(", ")

    def audit(self, members: Sequence[LocalProcess]) -> str:
        """Compare the stopped stores of a group. Raises DemoFailed unless they are equal."""
        stores = [str(self.layout.store(member)) for member in members]
        return _output("audit", "run", *stores).strip().splitlines()[-1]

    def show_logs(self) -> None:
        with suppress(DemoFailed):
            print(self._tandem("local", "logs", "--lines", "15"), file=sys.stderr)
            ending = processes.last_lines(self.client_log, 15)
            print(f"==> {self.client_log} <==\n{''.join(ending)}", file=sys.stderr)

    def _tandem(self, *words: str) -> str:
        return _output(*words, "--dir", str(self.directory))


def _output(*words: str) -> str:
    """What `tandem` prints. Raises DemoFailed when it fails."""
    command = [sys.executable, "-m", "tandemmq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise DemoFailed(f"tandem {' '.join(words[:2])} ended with {done.returncode}: {said}")
    return done.stdout


def _send_and_receive_by_java(cluster: _Cluster, before: set[str]) -> set[str]:
    """Java's producer adds its messages, Java's push consumer gets all; the names of its own."""
    _say(f"java        RocketMQ client {NEWEST}, fetched by Maven when it is not there yet ...")
    added = [f"java {number}" for number in range(JAVA)]
    expected = before | set(added)
    home = cluster.directory / "java"
    with Driver(NEWEST, "json", cluster.name_server, home) as driver:
        driver.call("producer.start", name="p", group="demo-java-producer")
        driver.call("send.sync", name="p", topic=TOPIC, messages=[{"body": body} for body in added])
        driver.call("push.start", name="c", topic=TOPIC, group="demo-java-consumer")
        # the driver shows small bodies only, but the checksum of every one
        names = {sha_of(body_of(name)): name for name in expected}

        def received() -> set[str]:
            return {names.get(message["sha"], "unknown") for message in driver.messages("c")}

        def all_there() -> bool:
            # what was sent again is stored twice: as many deliveries as names are not every name yet
            return len(driver.messages("c")) >= len(expected) and received() >= expected

        with suppress(JavaFailed):  # what is missing is said below
            driver.wait_for(all_there, 2 * WAIT_S, "every message at Java's consumer")
        found = received()
        driver.call("push.stop", name="c")
        driver.call("producer.stop", name="p")
    if found != expected:
        raise DemoFailed(
            f"the Java consumer lacks {len(expected - found)} of {len(expected)} messages, "
            f"and has {len(found - expected)} that nobody sent"
        )
    _say(f"java        sent {JAVA} messages, received all {len(found):,} with its push consumer")
    return set(added)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
