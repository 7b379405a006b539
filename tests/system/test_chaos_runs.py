"""Chaos runs with real processes: short ones that are valid, a loss that is found, faults that show what they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tandemmq.chaos.checking.findings import INVALID, VALID
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.faults.fault import Fault, NoEffect, Unsupported, until
from tandemmq.chaos.faults.links import Late, Link, Narrow, Refused, Reset, Silenced, Sliced
from tandemmq.chaos.faults.namespaces import Namespaces, PacketLoss
from tandemmq.chaos.faults.namespaces import unsupported as no_namespaces
from tandemmq.chaos.faults.processes import Killed, Paused, RestartStorm, Stopped, Stuttering
from tandemmq.chaos.faults.toxiproxy import Toxiproxy, find_server
from tandemmq.chaos.gathering import TOPICS, gather
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.replicalogs import read_log
from tandemmq.chaos.scenarios import command
from tandemmq.chaos.scenarios.reports.report import HTML, JSON
from tandemmq.chaos.scenarios.schedule import Planned, Schedule, Step
from tandemmq.chaos.scenarios.workloads.sending import BULK_MESSAGES
from tandemmq.replication.config import Mode

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

SEED = 20261127
RATE = "250"
STORM_S = 120.0
RESTARTS_MIN = 12  # of two replicas; a quiet machine manages about 70
ECHO = """
import signal, socketserver, sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(line)

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Echo).serve_forever()
"""


def one_step(path: Path, stage: str, *faults: Planned, workloads: Sequence[str] = ()) -> Path:
    """A schedule as a user may write it."""
    Schedule("kill", SEED, "S0", 2, stage, (Step(1.5, faults),), tuple(workloads)).write(path)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kept run: the master is killed, once."""
    root = tmp_path_factory.mktemp("run")
    beside = ("batch", "pull", "broadcast", "admin")
    kill = Planned("kill", "master", 1.0)
    schedule = one_step(root / "plan.json", "plain", kill, workloads=beside)
    found = root / "report"
    arguments = ["--replay", str(schedule), "--report", str(found), "--rate", RATE, "--keep"]
    assert command.main(["run", *arguments]) == 0
    return found


def test_a_run_whose_master_dies_is_valid_and_judged_by_every_checker(report: Path) -> None:
    told = json.loads((report / JSON).read_text())
    assert told["verdict"] == VALID
    assert told["acknowledged"] > 300
    assert all(each["observed"] for each in told["checks"])
    (fault,) = told["faults"]
    assert "is gone" in fault["evidence"]
    assert "takes connections" in fault["healing"]
    assert 0 < fault["silent_ms"] < 20_000
    page = (report / HTML).read_text()
    assert "None was lost" in page
    assert "epoch 2" in page


def test_its_schedule_ends_in_the_same_verdict_in_simulated_time(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["sim", "--seeds", "1", "--replay", str(report)]) == 0
    assert "the same verdict" in capsys.readouterr().out


def test_a_broker_that_forgot_what_it_had_acknowledged_is_caught(
    report: Path, tmp_path: Path
) -> None:
    stores = [report / f"replica-{number}" / "store" for number in range(2)]
    log = read_log(stores[0], TOPICS)
    end = max(each[-1].offset for (topic, _), each in log.queues.items() if topic == "ChaosOrders")
    kept: list[tuple[Path, bytes]] = []
    try:
        for store in stores:
            for path in (store / "commitlog").iterdir():
                start = int(path.name)
                if start <= end < start + path.stat().st_size:
                    content = path.read_bytes()
                    kept.append((path, content))
                    path.write_bytes(content[: end - start] + bytes(len(content) - end + start))
        gather(report / "journal.jsonl", stores, Mode.S0, tmp_path / "history.jsonl")
        judgement = judge_history(tmp_path / "history.jsonl")
    finally:
        for path, content in kept:
            path.write_bytes(content)
    assert len(kept) == 2
    assert judgement.word == INVALID
    assert {"C-1", "C-12"} <= judgement.counts.keys()


def test_a_hundred_thousand_messages_without_a_fault_pass_every_check(tmp_path: Path) -> None:
    found = tmp_path / "report"
    calm = ["run", "calm", "--steps", "1", "--seed", str(SEED), "--workload", "bulk"]
    assert command.main([*calm, "--report", str(found)]) == 0
    told = json.loads((found / JSON).read_text())
    assert told["verdict"] == VALID
    assert told["acknowledged"] > BULK_MESSAGES
    assert told["lost"] == 0


def test_two_minutes_of_restarts_lose_nothing(tmp_path: Path) -> None:
    """Every replica is killed -9 and started, each at a time of its own, every 1 to 4 s."""
    schedule = one_step(tmp_path / "plan.json", "plain", Planned("storm", "replicas", STORM_S))
    found = tmp_path / "report"
    assert (
        command.main(["run", "--replay", str(schedule), "--report", str(found), "--rate", RATE])
        == 0
    )
    told = json.loads((found / JSON).read_text())
    assert told["verdict"] == VALID
    assert told["lost"] == 0
    (fault,) = told["faults"]
    restarts = int(fault["healing"].removesuffix(" restarts").rpartition(" ")[2])
    assert restarts > RESTARTS_MIN


@contextlib.asynccontextmanager
async def echo(directory: Path) -> AsyncIterator[tuple[AsyncProcess, str]]:
    """A server that sends back every line, and its address."""
    port = PORTS.take((0,))
    log = directory / f"echo-{port}.log"
    process = AsyncProcess(f"echo {port}", [sys.executable, "-c", ECHO, LOOPBACK, str(port)], log)
    with process:
        process.launch()
        await Killed(process, f"{LOOPBACK}:{port}").heal()
        yield process, f"{LOOPBACK}:{port}"


@pytest.mark.parametrize("kind", [Killed, Paused, Stopped, Stuttering])
async def test_a_fault_of_a_process_shows_and_ends(kind: type[Killed], tmp_path: Path) -> None:
    async with echo(tmp_path) as (process, address):
        async with kind(process, address) as fault:
            assert fault.story.evidence
        assert fault.story.effective
        assert process.alive


async def test_a_process_that_is_dead_already_cannot_be_killed(tmp_path: Path) -> None:
    async with echo(tmp_path) as (process, address):
        await process.kill()
        with pytest.raises(NoEffect):
            async with Killed(process, address):
                pytest.fail("it was dead")
        assert process.alive, "healing starts it"


async def test_a_restart_storm_restarts_and_leaves_all_running(tmp_path: Path) -> None:
    async with echo(tmp_path) as one, echo(tmp_path) as two:
        storm = RestartStorm([one, two], random.Random(1), (0.05, 0.2))
        async with storm:
            await asyncio.sleep(0.5)
        assert storm.restarts > 1
        assert one[0].alive and two[0].alive


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[Link]:
    """A proxied echo server that somebody talks to all the time, both ways."""
    try:
        find_server()
    except Unsupported as missing:
        pytest.skip(str(missing))
    async with echo(tmp_path) as (_, address), Toxiproxy(tmp_path) as toxiproxy:
        made = Link(toxiproxy, "echo", f"127.0.0.2:{address.rpartition(':')[2]}", address)
        await made.create()
        talking = asyncio.create_task(talk(made.listen))
        meter = made.meter()

        async def used() -> bool:
            return (await meter.look()).down_out > 0

        await until(used, 20.0, AssertionError("nothing passes the link"))
        yield made
        talking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await talking


async def talk(address: str) -> None:
    """4 kB every 10 ms, and what comes back is read; again after every loss of the connection."""
    host, _, port = address.rpartition(":")
    while True:
        writer = None
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            reading = asyncio.create_task(reader.read(1))
            while not reading.done() or reading.result():
                writer.write(b"x" * 4000 + b"\n")
                if reading.done():
                    await reader.read(1 << 20)
                    reading = asyncio.create_task(reader.read(1))
                await asyncio.sleep(0.01)
        except OSError:
            await asyncio.sleep(0.05)
        finally:
            if writer is not None:
                writer.close()


@pytest.mark.parametrize(
    "name", ["partition", "up", "down", "latency", "bandwidth", "slicing", "reset", "refuse"]
)
async def test_a_fault_of_a_link_shows_in_the_bytes_that_pass_and_ends(
    name: str, link: Link
) -> None:
    faults: dict[str, Fault] = {
        "partition": Silenced([link]),
        "up": Silenced([link], "up"),
        "down": Silenced([link], "down"),
        "latency": Late([link], 300, 50),
        "bandwidth": Narrow([link], 50),
        "slicing": Sliced([link], 100),
        "reset": Reset([link]),
        "refuse": Refused([link]),
    }
    fault = faults[name]
    async with fault:
        assert fault.story.evidence
    assert fault.story.effective, fault.story
    assert await link.toxiproxy.toxics(link.name) == []


@pytest.fixture(scope="module")
def spaces() -> Iterator[Namespaces]:
    if missing := no_namespaces():
        pytest.skip(missing)
    with Namespaces(["a", "b", "c"]) as made:
        made.ports = dict.fromkeys(made.nodes, 7000)
        yield made


async def test_packets_between_namespaces_are_dropped_one_way_and_come_again(
    spaces: Namespaces, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for node in spaces.nodes:
            command_line = [sys.executable, "-c", ECHO, spaces.address(node), "7000"]
            process = AsyncProcess(node, command_line, tmp_path / f"{node}.log")
            process.prefix = spaces.prefix(node)
            stack.enter_context(process)
            process.launch()
            await Killed(process, f"{spaces.address(node)}:7000").heal()
        assert await spaces.connects("a", "b")
        async with PacketLoss(spaces, {("a", "b")}, "one-way") as fault:
            assert "packets were dropped" in fault.story.evidence
            assert not await spaces.connects("a", "b")
            assert await spaces.connects("a", "c")
        assert fault.story.effective
        with pytest.raises(NoEffect):
            async with PacketLoss(spaces, set(), "ring"):
                pytest.fail("it cuts nothing")


async def test_a_cluster_that_runs_already_is_broken_by_its_handles_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = ReplicaGroup(tmp_path / "cluster", GroupPlan())
    pause = Planned("pause", "master", 4.0)
    plan = one_step(tmp_path / "plan.json", "plain", pause, workloads=("batch", "broadcast"))
    arguments = [
        "run", "--replay", str(plan), "--target", group.name_server_address, "--rate", RATE, "--json",
        "--report", str(tmp_path / "report"),
    ]  # fmt: skip
    async with group:
        await group.start()
        for replica in group.replicas:
            arguments += ["--handle", f"{replica.address}=pid:{replica.pid}"]
        code = await asyncio.to_thread(command.main, arguments)
        assert all(each.alive and not each.paused for each in group.processes)
    told = json.loads(capsys.readouterr().out)
    assert (code, told["verdict"], told["doubts"], told["findings"]) == (0, VALID, [], [])
    assert told["acknowledged"] > 200
    assert "SIGSTOP" in told["faults"][0]["says"]
