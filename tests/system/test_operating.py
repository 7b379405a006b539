"""`tandem doctor` and rolling restarts with real processes under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, run

from tandemmq import ClientError, Message, Producer, PushConsumer, StartFrom
from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.cluster.client import Admin
from tandemmq.command.exits import ExitCode
from tandemmq.local import processes
from tandemmq.local.layout import Layout, open_layout

pytestmark = pytest.mark.system

BACK_S = 60
TOPIC = "Restarted"
READ_ONLY = "ReadOnly"
LANES = 4
FIVE_PORTS = [at + step for step in (0, 10, 20, 30) for at in (-2, 0, 1, 2)]


@dataclass(frozen=True)
class Running:
    """A cluster of `tandem local up`."""

    directory: Path

    @property
    def layout(self) -> Layout:
        return open_layout(self.directory)

    @property
    def name_server(self) -> str:
        return self.layout.name_server.address

    def local(self, action: str, *more: object) -> Done:
        return run("local", action, "--dir", self.directory, *more)

    def doctor(self, *more: object) -> Done:
        return run("doctor", "--cluster-only", "-n", self.name_server, "--json", *more)

    def finds(self, check: str, where: str) -> bool:
        """Whether the doctor finds this now."""
        found = self.doctor().json["findings"]
        return any((each["check"], each["where"]) == (check, where) for each in found)

    def pids(self) -> dict[str, int | None]:
        return {each.name: processes.running_pid(self.layout, each) for each in self.layout.members}

    def masters(self) -> dict[str, str]:
        async def ask() -> dict[str, str]:
            async with Admin(namesrv=self.name_server) as admin:
                return await admin.masters()

        return asyncio.run(ask())


@contextlib.contextmanager
def up(directory: Path, *options: str) -> Iterator[Running]:
    cluster = Running(directory)
    started = cluster.local(
        "up", *options,
        "--namesrv-port", PORTS.take((0, 2)), "--broker-port", PORTS.take(FIVE_PORTS),
    )  # fmt: skip
    assert started.code == 0, started.err + started.out
    try:
        yield cluster
    finally:
        cluster.local("down", "--kill")
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two groups of a master and a slave; every test leaves them whole."""
    with up(tmp_path_factory.mktemp("operating") / "data", "--mode", "sync") as cluster:
        yield cluster


@dataclass
class Sends:
    acknowledged: list[bytes] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def sending(name_server: str) -> AsyncIterator[Sends]:
    """Lanes that send while the body runs; a send that does not end with SEND_OK has failed."""
    sends = Sends()
    numbers = iter(range(10_000_000))

    async def lane(producer: Producer) -> None:
        while True:
            body = b"%d" % next(numbers)
            try:
                result = await producer.send(Message(TOPIC, body))
            except ClientError as problem:
                sends.failed.append(str(problem))
            else:
                if result.status.name == "SEND_OK":
                    sends.acknowledged.append(body)
                else:
                    sends.failed.append(result.status.name)
            await asyncio.sleep(0.005)

    async with Producer("restarted", namesrv=name_server) as producer:
        tasks = [asyncio.create_task(lane(producer)) for _ in range(LANES)]
        try:
            yield sends
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _restarted(name_server: str, *command: str) -> tuple[Sends, dict[str, Any]]:
    """What became of sends while this command ran, and what it printed."""
    async with sending(name_server) as sends:
        await asyncio.sleep(0.5)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tandemmq", *command,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode() + out.decode()
        await asyncio.sleep(0.5)
    return sends, json.loads(out)


async def _everything(name_server: str, count: int) -> list[bytes]:
    got: list[bytes] = []
    whole = asyncio.Event()

    async def handle(message: Any) -> None:
        got.append(message.body)
        if len(set(got)) >= count:
            whole.set()

    async with PushConsumer(
        "reads", handle, namesrv=name_server, subscribe={TOPIC: "*"}, start=StartFrom.FIRST
    ):
        await asyncio.wait_for(whole.wait(), BACK_S)
    return got


def test_nothing_is_found_in_a_cluster_that_is_well(replicated: Running) -> None:
    wait_until(lambda: replicated.doctor().json["findings"] == [], BACK_S, "nothing is found")
    assert replicated.doctor().code == ExitCode.OK
    shown = run("doctor", "--cluster-only", "-n", replicated.name_server)
    assert "nothing looks wrong" in shown.out


def test_a_rolling_restart_restarts_all_in_order_and_loses_no_send(replicated: Running) -> None:
    before, masters = replicated.pids(), replicated.masters()
    command = (
        "local",
        "rolling-restart",
        "--dir",
        str(replicated.directory),
        "--name-server",
        "--json",
    )
    sends, told = asyncio.run(_restarted(replicated.name_server, *command))
    assert sends.failed == []
    assert len(sends.acknowledged) > 100
    after = replicated.pids()
    assert not {pid for pid in after.values() if pid in before.values()}, "all are new"
    assert replicated.masters().keys() == masters.keys()
    assert all(replicated.masters()[name] != at for name, at in masters.items()), "handed over"
    words = [each["what"].split()[0] + each["what"].split()[1] for each in told["steps"]]
    assert words[0] == "nameserver"
    assert len(told["steps"]) == 1 + 2 * 3
    got = asyncio.run(_everything(replicated.name_server, len(sends.acknowledged)))
    assert set(sends.acknowledged) - set(got) == set()


def test_a_command_may_restart_one_group_for_us(replicated: Running, tmp_path: Path) -> None:
    """As systemctl, docker or kubectl would: here each restart is written down, and done by `tandem local`."""
    names = {each.address: each.name for each in replicated.layout.members}
    script = tmp_path / "restart.py"
    script.write_text(
        "import subprocess, sys\n"
        f"name, tandem = {names}[sys.argv[1]], [sys.executable, '-m', 'tandemmq', 'local']\n"
        f"where = ['--dir', {str(replicated.directory)!r}]\n"
        f"open({str(tmp_path / 'order')!r}, 'a').write(name + '\\n')\n"
        "subprocess.run([*tandem, 'kill', name, '--signal', 'TERM', *where], check=True)\n"
        "subprocess.run([*tandem, 'start', name, *where], check=True)\n"
    )
    before = replicated.pids()
    command = (
        "rolling-restart", "--with", f"{sys.executable} {script} {{address}}", "-b", "broker-b", "--json",
        "-n", replicated.name_server,
    )  # fmt: skip
    sends, _ = asyncio.run(_restarted(replicated.name_server, *command))
    assert sends.failed == []
    assert sorted((tmp_path / "order").read_text().split()) == ["broker-b-0", "broker-b-1"]
    changed = {name for name, pid in replicated.pids().items() if pid != before[name]}
    assert changed == {"broker-b-0", "broker-b-1"}


def test_a_broker_hands_over_before_it_is_stopped_and_a_slave_has_nothing_to_hand_over(
    replicated: Running,
) -> None:
    master = replicated.masters()["broker-a"]
    done = run("hand-over", master)
    assert done.code == 0, done.err
    assert "handed over to" in done.out
    assert replicated.masters()["broker-a"] != master
    again = run("hand-over", master)
    assert (again.code, again.out) == (0, f"{master}: it does not lead\n")


def test_a_restart_that_does_not_bring_it_back_stops_and_says_who_and_why(
    replicated: Running,
) -> None:
    before = replicated.pids()
    done = run(
        "rolling-restart", "--with", "true", "--timeout", "2", "-b", "broker-a", "-n", replicated.name_server
    )  # fmt: skip
    assert done.code == ExitCode.NOT_RUNNING
    assert "broker-a" in done.err and "it is the same process as before" in done.err
    assert replicated.pids() == before
    done = run("rolling-restart", "--with", "true", "-b", "broker-x", "-n", replicated.name_server)
    assert (done.code, "no broker named broker-x" in done.err) == (ExitCode.NOT_FOUND, True)


def test_a_missing_replica_and_a_group_that_nobody_reads_are_found(replicated: Running) -> None:
    async def abandon() -> None:
        got = asyncio.Event()

        async def handle(_: Any) -> None:
            got.set()

        async with sending(replicated.name_server):
            await asyncio.sleep(0.5)
        async with PushConsumer(
            "abandoned", handle, namesrv=replicated.name_server, subscribe={TOPIC: "*"}, start=StartFrom.FIRST
        ):  # fmt: skip
            await asyncio.wait_for(got.wait(), BACK_S)
        async with sending(replicated.name_server):
            await asyncio.sleep(1)  # whatever is sent: nobody reads it any more

    asyncio.run(abandon())
    abandoned = ("group-without-members", "abandoned")
    wait_until(lambda: replicated.finds(*abandoned), BACK_S, "that nobody reads is found")
    slave = next(
        each.name for each in replicated.layout.brokers
        if each.group == "broker-a" and each.address not in replicated.masters().values()
    )  # fmt: skip
    assert replicated.local("kill", slave).code == 0
    try:
        wait_until(lambda: replicated.finds("replica-missing", "broker-a"), BACK_S, "it is missed")
        shown = replicated.doctor()
        assert shown.code == ExitCode.LOOKS_WRONG
        refused = run(
            "rolling-restart", "--with", "false", "--timeout", "1", "-b", "broker-a", "-n", replicated.name_server
        )  # fmt: skip
        assert (refused.code, "is not in sync" in refused.err) == (ExitCode.NOT_RUNNING, True)
        stopped = replicated.local("rolling-restart")
        assert (stopped.code, slave in stopped.err) == (ExitCode.NOT_RUNNING, True)
    finally:
        assert replicated.local("start", slave).code == 0
    wait_until(lambda: not replicated.finds("replica-missing", "broker-a"), BACK_S, "it is back")


def test_nobody_at_a_named_address_is_critical_and_nobody_at_the_usual_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"127.0.0.1:{PORTS.take((0,))}"
    shown = run("doctor", "--cluster-only", "--json", "-n", nowhere)
    assert (shown.code, shown.json["worst"]) == (ExitCode.AT_RISK, "critical")
    monkeypatch.setenv("NAMESRV_ADDR", nowhere)
    shown = run("doctor", "--json", "--data", tmp_path)
    assert shown.code in (ExitCode.OK, ExitCode.LOOKS_WRONG), "what this machine is like is its own"
    assert shown.json["asked"] == ["this machine", str(tmp_path)]
    assert run("doctor", "--host-only", "--cluster-only").code == ExitCode.USAGE


def test_masters_without_slaves_are_restarted_while_others_take_their_messages(
    tmp_path: Path,
) -> None:
    with up(tmp_path / "data") as cluster:
        before = cluster.pids()
        at = "-n", cluster.name_server
        run("admin", "updateTopic", "-c", "TandemCluster", "-t", READ_ONLY, "-p", "4", *at)
        # a topic that first sends make is on those brokers only that they knew of
        run("admin", "updateTopic", "-c", "TandemCluster", "-t", TOPIC, *at)
        route = "admin", "topicRoute", "-t", TOPIC, "--json", *at
        wait_until(
            lambda: (found := run(*route)).code == 0 and len(found.json["queueDatas"]) == 2,
            BACK_S,
            "both brokers have the topic",
        )
        command = (
            "local",
            "rolling-restart",
            "--dir",
            str(cluster.directory),
            "--drain",
            "2",
            "--json",
        )
        sends, told = asyncio.run(_restarted(cluster.name_server, *command))
        assert sends.failed == []
        assert [each["what"] for each in told["steps"]][::2] == [
            f"{name}: producers are kept away" for name in ("broker-a", "broker-b")
        ]
        changed = {name for name, pid in cluster.pids().items() if pid != before[name]}
        assert changed == {"broker-a", "broker-b"}
        got = asyncio.run(_everything(cluster.name_server, len(sends.acknowledged)))
        assert set(sends.acknowledged) - set(got) == set()
        for topic, perm in ((TOPIC, 6), (READ_ONLY, 4)):
            queues = run("admin", "topicRoute", "-t", topic, "--json", *at).json["queueDatas"]
            assert [each["perm"] for each in queues] == [perm, perm], topic
