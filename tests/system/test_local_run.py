"""`tandem local run`: a whole cluster in one foreground command, and what is left when that ends, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemmq import BrokerRefused
from tandemmq.blocking import Producer
from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import python_env
from tandemmq.command.exits import ExitCode
from tandemmq.testing import ClusterFailed, TandemCluster

pytestmark = pytest.mark.system

READY_S = 60
PER_CLUSTER = tuple(range(-2, 42))


class Running:
    """One `tandem local run`."""

    def __init__(self, *words: object) -> None:
        self.port = PORTS.take(PER_CLUSTER)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandemmq", "local", "run",
             "--namesrv-port", str(self.port), "--broker-port", str(self.port + 20), *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **python_env()},
        )  # fmt: skip

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, self.process.communicate(timeout=20)[1]
        told: dict[str, Any] = json.loads(text)
        return told

    def ended(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=READY_S)
        return self.process.returncode, said


@contextmanager
def running(*words: object) -> Iterator[Running]:
    found = Running(*words)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids(ready: dict[str, Any]) -> list[int]:
    return [each["pid"] for each in ready["members"]]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_of_it_and_data_stays(tmp_path: Path, how: signal.Signals) -> None:
    with running("--dir", tmp_path / "c", "--json") as cluster:
        ready = cluster.line()
        assert [each["name"] for each in ready["members"]] == ["namesrv", "broker-a"]
        with Producer("test", namesrv=ready["ready"]) as producer:
            assert producer.send("Orders", b"17").ok
        cluster.process.send_signal(how)
        assert cluster.ended() == (0, "")
        assert not any(map(alive, pids(ready)))
    assert (tmp_path / "c/store/broker-a/commitlog").is_dir()
    assert not (tmp_path / "c/store/broker-a/abort").exists(), "it was not stopped cleanly"


def test_members_stop_by_themselves_when_it_is_killed(tmp_path: Path) -> None:
    with running("--dir", tmp_path / "c", "--json") as cluster:
        ready = cluster.line()
        cluster.process.kill()
        try:
            wait_until(lambda: not any(map(alive, pids(ready))), 30, "the members are gone")
        finally:
            for pid in filter(alive, pids(ready)):
                os.kill(pid, signal.SIGKILL)
    assert not (tmp_path / "c/store/broker-a/abort").exists(), "it was not stopped cleanly"


def test_attached_it_ends_with_its_stdin_and_removes_what_was_temporary() -> None:
    with running("--temporary", "--attached", "--json") as cluster:
        ready = cluster.line()
        assert Path(ready["directory"]).is_dir()
        assert cluster.process.stdin is not None
        cluster.process.stdin.close()
        cluster.process.stdin = None
        cluster.process.wait(READY_S)
        assert not any(map(alive, pids(ready)))
        assert not Path(ready["directory"]).exists()


def test_nobody_left_to_serve_ends_it(tmp_path: Path) -> None:
    with running("--dir", tmp_path / "c", "--json") as cluster:
        ready = cluster.line()
        os.kill(pids(ready)[1], signal.SIGKILL)
        assert cluster.line() == {"died": "broker-a", "code": -9}
        code, said = cluster.ended()
        assert code == ExitCode.NOT_RUNNING
        assert "nothing is left that could serve: broker-a died" in said
        assert not any(map(alive, pids(ready)))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", "local", "run", "--temporary", "--namesrv-port", str(port)],
            capture_output=True, text=True, check=False, timeout=READY_S,
            env={**os.environ, **python_env()},
        )  # fmt: skip
    assert done.returncode in (ExitCode.PORT_TAKEN, ExitCode.USAGE)
    assert str(port) in done.stderr


def test_members_are_killed_and_brought_back_from_a_program() -> None:
    with TandemCluster() as cluster:
        before = cluster.members["broker-a"]
        cluster.kill("broker-a")
        assert not alive(before.pid)
        cluster.restart("broker-a")
        assert cluster.members["broker-a"].pid != before.pid
        assert "store recovered" in cluster.log("broker-a")
        with pytest.raises(
            ClusterFailed, match="no member 'broker-c'; there are namesrv, broker-a"
        ):
            cluster.kill("broker-c")
        with pytest.raises(ClusterFailed, match="replicas=2"):
            cluster.kill_master()


def test_a_wrong_setting_is_told_with_the_end_of_the_log() -> None:
    with (
        pytest.raises(ClusterFailed, match="flushDiskType"),
        TandemCluster(settings={"flushDiskType": "SOMETIMES"}),
    ):
        pass


def test_settings_reach_the_broker() -> None:
    with (
        TandemCluster(settings={"maxMessageSize": "1024"}) as cluster,
        Producer("test", namesrv=cluster.namesrv) as producer,
        pytest.raises(BrokerRefused, match="1024"),
    ):
        producer.send("Orders", b"x" * 2000)
