"""`tandem local --mode` and the controller's commands on real processes: kill, freeze, rejoin, hand over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, run

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import python_env
from tandemmq.command.exits import ExitCode
from tandemmq.local.layout import open_layout

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Replicas:
    """A cluster of `tandem local up --mode`."""

    directory: Path

    def tandem(self, *words: object, stdin: bytes = b"") -> Done:
        return run(*words, stdin=stdin)

    def admin(self, *words: object) -> Done:
        return self.tandem("admin", *words, "-n", self.name_server)

    @property
    def name_server(self) -> str:
        return open_layout(self.directory).name_server.address

    def local(self, action: str, *more: object) -> Done:
        return self.tandem("local", action, "--dir", self.directory, *more)

    def ok(self, action: str, *more: object) -> Any:
        """The JSON of a `tandem local` command that must succeed."""
        return _well(self.local(action, *more, "--json"))

    def asked(self, *words: object) -> Any:
        """The JSON of a `tandem admin` command that must succeed."""
        return _well(self.admin(*words, "--json"))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.local("status", "--json").json
        return found

    def members(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.status()["members"]}

    def master(self, group: str) -> str:
        """Its process."""
        (found,) = [
            name for name, each in self.members().items()
            if name.startswith(group) and each["role"] == "master"
        ]  # fmt: skip
        return found

    def send(self, topic: str, count: int) -> list[dict[str, Any]]:
        lines = "\n".join(f"{topic} {number}" for number in range(count))
        done = self.tandem("send", topic, "--json", "-n", self.name_server, stdin=lines.encode())
        assert done.code == 0, done.err
        found = [json.loads(line) for line in done.out.splitlines()]
        assert [each["status"] for each in found] == ["SEND_OK"] * count
        return found

    def everything(self, topic: str) -> list[str]:
        words = ("tail", topic, "--from", "first", "--until-end", "--json")
        done = self.tandem(*words, "-n", self.name_server)
        assert done.code == 0, done.err
        return sorted(json.loads(line)["body"] for line in done.out.splitlines())

    def until_well(self, what: str) -> None:
        wait_until(lambda: self.local("status").code == 0, 30, what)


def _well(done: Done) -> Any:
    assert done.code == 0, done.err + done.out
    return done.json


@pytest.fixture(scope="module", params=["sync", "async"])
def replicas(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    """One running cluster per mode; every test leaves it whole."""
    cluster = Replicas(tmp_path_factory.mktemp("replicas") / "data")
    started = cluster.local("up", "--mode", request.param)
    assert started.code == 0, started.err + started.out
    yield cluster
    stopped = cluster.local("down", "--kill")
    assert stopped.code == 0, stopped.out


@pytest.fixture
def whole(replicas: Replicas) -> Iterator[Replicas]:
    replicas.until_well("the cluster is whole before the test")
    yield replicas
    replicas.until_well("the cluster is whole after the test")


def test_the_first_replica_of_each_group_is_its_first_master(whole: Replicas) -> None:
    members = whole.members()
    assert {name: each["role"] for name, each in members.items()} == {
        "namesrv": None, "broker-a-0": "master", "broker-a-1": "slave", "broker-b-0": "master",
        "broker-b-1": "slave",
    }  # fmt: skip
    assert {each["broker_id"] for each in members.values() if each["role"] == "master"} == {1}
    assert all(each["in_sync"] for name, each in members.items() if name != "namesrv")


def test_idle_slaves_stay_in_sync(whole: Replicas) -> None:
    before = {name: each["set_epoch"] for name, each in whole.status()["groups"].items()}
    time.sleep(4)  # more than twice what a member may stay silent
    after = {name: each["set_epoch"] for name, each in whole.status()["groups"].items()}
    assert after == before


def test_second_up_says_that_all_runs_and_starts_nothing(whole: Replicas) -> None:
    before = {name: each["pid"] for name, each in whole.members().items()}
    again = whole.local("up")
    assert again.code == 0
    assert "runs already" in again.out
    assert "it has replicas, as it was made" in again.out
    assert {name: each["pid"] for name, each in whole.members().items()} == before
    other = "async" if whole.status()["mode"] == "sync" else "sync"
    refused = whole.local("up", "--mode", other)
    assert refused.code == ExitCode.FAILED
    assert "choose another --dir" in refused.err


def test_killed_master_is_replaced_nothing_is_lost_and_it_rejoins_as_a_slave(
    whole: Replicas,
) -> None:
    topic = f"Killed{whole.status()['mode']}"
    whole.asked("updateTopic", "-c", "TandemCluster", "-t", topic, "-r", 4, "-w", 4)
    whole.send(topic, 200)
    victim = whole.master("broker-a")
    wait_until(lambda: _lag(whole, "broker-a") == 0, 10, "the slave has everything")
    epoch = whole.members()[victim]["epoch"]
    assert whole.ok("kill", victim)["result"] == "killed"
    wait_until(lambda: _led_by_another(whole, "broker-a", victim), 10, "the slave leads")
    members = whole.members()
    assert members[victim]["state"] == "died"
    assert members[whole.master("broker-a")]["epoch"] > epoch
    assert whole.local("status").code == ExitCode.NOT_RUNNING
    whole.send(topic, 200)
    back = whole.ok("start", victim)
    assert back["member"]["role"] == "slave"
    assert back["member"]["in_sync"] is True
    assert back["member"]["epoch"] == whole.members()[whole.master("broker-a")]["epoch"]
    assert whole.everything(topic) == sorted(2 * [f"{topic} {number}" for number in range(200)])


def _lag(cluster: Replicas, group: str) -> int | None:
    (lag,) = [
        each["lag_bytes"] for name, each in cluster.members().items()
        if name.startswith(group) and each["role"] == "slave"
    ]  # fmt: skip
    return lag


def _led_by_another(cluster: Replicas, group: str, victim: str) -> bool:
    return any(
        name.startswith(group) and name != victim and each["role"] == "master"
        for name, each in cluster.members().items()
    )


def test_frozen_master_loses_its_group_and_follows_when_it_wakes(whole: Replicas) -> None:
    victim = whole.master("broker-b")
    began = time.monotonic()
    assert whole.ok("kill", victim, "--signal", "STOP")["result"] == "frozen"
    assert whole.members()[victim]["state"] == "frozen"
    wait_until(lambda: _led_by_another(whole, "broker-b", victim), 20, "its lease has run out")
    assert time.monotonic() - began < 15
    assert whole.ok("kill", victim, "--signal", "CONT")["result"] == "goes on"
    wait_until(lambda: whole.members()[victim]["role"] == "slave", 20, "it follows")


def test_name_server_with_controller_may_die_without_a_change_of_masters(whole: Replicas) -> None:
    before = {name: each["epoch"] for name, each in whole.status()["groups"].items()}
    whole.ok("kill", "namesrv")
    died = whole.local("status")
    assert died.code == ExitCode.NOT_RUNNING
    assert "the controller does not say" in died.out
    slave = next(name for name, each in whole.members().items() if each["role"] == "slave")
    refused = whole.local("kill", slave, "--signal", "TERM")
    assert refused.code == 0
    needed = whole.local("start", slave)
    assert needed.code == ExitCode.NOT_RUNNING
    assert "namesrv does not run: start it first" in needed.err
    assert whole.ok("start", "namesrv")["member"]["state"] == "running"
    whole.ok("start", slave)
    assert {name: each["epoch"] for name, each in whole.status()["groups"].items()} == before


def test_process_that_is_stopped_cleanly_is_not_called_dead(whole: Replicas) -> None:
    slave = next(name for name, each in whole.members().items() if each["role"] == "slave")
    assert whole.ok("kill", slave, "--signal", "TERM")["result"] == "stopped"
    assert whole.members()[slave]["state"] == "stopped"
    assert whole.ok("start", slave)["member"]["state"] == "running"


def test_faults_for_nobody_are_refused_in_one_line(whole: Replicas) -> None:
    unknown = whole.local("kill", "broker-a")
    assert unknown.code == ExitCode.FAILED
    assert "broker-a-0" in unknown.err
    running = whole.local("start", "broker-a-0")
    assert running.code == ExitCode.FAILED
    assert "runs already (pid" in running.err
    assert "Traceback" not in unknown.err + running.err


def test_switchover_hands_over_and_says_how_long_it_took(whole: Replicas) -> None:
    before = whole.asked("getSyncStateSet", "-b", "broker-a")[0]
    found = whole.asked("switchover", "-bn", "broker-a")
    assert found["before"]["master_id"] == before["master_id"]
    assert found["after"]["master_id"] != before["master_id"]
    assert found["after"]["epoch"] > before["epoch"]
    assert 0 <= found["elected_ms"] <= found["announced_ms"] < 5_000
    whole.until_well("the former master follows")
    back = whole.admin("switchover", "-bn", "broker-a", "-b", before["master_id"])
    assert back.code == 0, back.err
    assert "handed over to" in back.out


def test_switchover_that_cannot_be_is_refused_before_anything_changes(whole: Replicas) -> None:
    leader = whole.asked("getSyncStateSet", "-b", "broker-b")[0]["master_id"]
    for words, why in (
        (["-bn", "broker-b", "-b", str(leader)], "leads broker-b already"),
        (["-bn", "broker-b", "-b", "9"], "is no member of broker-b"),
        (["-bn", "broker-z"], "knows no group broker-z"),
    ):
        done = whole.admin("switchover", *words)
        assert done.code == ExitCode.FAILED, done.out
        assert why in done.err
        assert "Traceback" not in done.err


def test_controllers_commands_agree_with_the_status(whole: Replicas) -> None:
    status = whole.status()
    for group in whole.asked("getSyncStateSet", "-c", "TandemCluster"):
        shown = status["groups"][group["broker_name"]]
        assert (group["master_id"], group["epoch"]) == (shown["master_id"], shown["epoch"])
        assert len(group["in_sync"]) == 2
    histories = whole.asked("getBrokerEpoch", "-b", "broker-a")
    assert len(histories) == 2
    written = [
        [each for each in one["history"]["epochs"] if each["start_offset"] != each["end_offset"]]
        for one in histories
    ]  # an epoch in which nothing was written is the master's alone
    assert written[0] == written[1]
    (state,) = whole.asked("getControllerMetaData", "-a", status["controller"]).values()
    assert state["leader_address"] == status["controller"]
    (settings,) = whole.asked("getControllerConfig").values()
    assert settings["enableElectUncleanMaster"] == "false"
    states = whole.asked("haStatus", "-c", "TandemCluster")
    assert {state["in_sync_count"] for state in states.values()} == {1}
    assert all(len(state["slaves"]) == 1 for state in states.values())
    tables = whole.admin("getSyncStateSet", "-b", "broker-a").out
    assert "#MasterEpoch" in tables and "InSync" in tables


def test_member_that_is_gone_for_good_can_be_forgotten(whole: Replicas) -> None:
    slave = next(name for name, each in whole.members().items() if each["role"] == "slave")
    group, broker_id = slave.rpartition("-")[0], whole.members()[slave]["broker_id"]
    refused = whole.admin("cleanBrokerMetadata", "-bn", group, "-b", broker_id)
    assert refused.code == ExitCode.FAILED
    assert "2009" in refused.err
    missing = whole.admin("electMaster", "-bn", group, "-b", "9")
    assert missing.code == ExitCode.FAILED
    assert "2010" in missing.err


def test_watch_shows_the_table_again_and_again_until_ctrl_c(whole: Replicas) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "tandemmq", "local", "status", "--dir", str(whole.directory),
         "--watch", "--interval", "0.1", "--json"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **python_env()},
    )  # fmt: skip
    with watching:
        assert watching.stdout is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
    assert all(len(look["members"]) == 5 for look in looks)
