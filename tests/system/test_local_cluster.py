"""The `tandem` command with real processes: local cluster, send, tail, inspect, check-config, exit codes."""

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

from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import python_env
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system


def tandem(
    *arguments: object, stdin: str | None = None, python: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, *python, "-m", "tandemmq", *map(str, arguments)],
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **python_env(), **env},
    )


@dataclass(frozen=True)
class LocalCluster:
    """A cluster started by `tandem local up`."""

    directory: Path
    namesrv_port: int
    broker_port: int

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    def run(self, action: str, *more: object) -> subprocess.CompletedProcess[str]:
        return tandem("local", action, "--dir", self.directory, *more)

    def up(self) -> subprocess.CompletedProcess[str]:
        return self.run(
            "up", "--namesrv-port", self.namesrv_port, "--broker-port", self.broker_port
        )

    def members(self) -> dict[str, dict[str, Any]]:
        shown = json.loads(self.run("status", "--json").stdout)
        return {member["name"]: member for member in shown["members"]}

    def send(self, *arguments: object, stdin: str | None = None) -> list[dict[str, Any]]:
        done = tandem("send", *arguments, "-n", self.name_server, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def tail(self, topic: str, *arguments: object) -> list[dict[str, Any]]:
        done = tandem("tail", topic, "-n", self.name_server, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def everything(self, topic: str) -> list[str]:
        return sorted(each["body"] for each in self.tail(topic, "--from", "first", "--until-end"))


def new_cluster(directory: Path) -> LocalCluster:
    # broker-a, broker-b ten above it, the fast port two below each, the one for slaves above
    brokers = (-2, 0, 1, 8, 10, 11)
    return LocalCluster(
        directory / "data", broker_port=PORTS.take(brokers), namesrv_port=PORTS.take((0,))
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One running cluster for the tests that leave it running."""
    cluster = new_cluster(tmp_path_factory.mktemp("local"))
    started = cluster.up()
    assert started.returncode == 0, started.stderr + started.stdout
    yield cluster
    stopped = cluster.run("down", "--kill")
    assert stopped.returncode == 0, stopped.stdout


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster that the test starts, breaks and stops itself."""
    cluster = new_cluster(tmp_path)
    yield cluster
    if (cluster.directory / "cluster.json").exists():
        cluster.run("down", "--kill", "--timeout", "5")


def test_up_starts_three_processes_that_find_each_other(local: LocalCluster) -> None:
    members = local.members()
    assert {name: member["state"] for name, member in members.items()} == {
        "namesrv": "running", "broker-a": "running", "broker-b": "running"
    }  # fmt: skip
    assert members["broker-a"]["registered"] is True
    assert members["broker-b"]["registered"] is True
    assert local.run("status").returncode == 0
    assert "broker-b" in local.run("status").stdout


def test_up_again_changes_nothing(local: LocalCluster) -> None:
    before = local.members()
    again = local.up()
    assert again.returncode == 0
    assert "runs already" in again.stdout
    assert local.members() == before


def test_up_with_other_ports_on_the_same_directory_is_refused(local: LocalCluster) -> None:
    done = local.run("up", "--namesrv-port", 21_111, "--broker-port", 21_121)
    assert done.returncode == ExitCode.FAILED
    assert str(local.broker_port) in done.stderr
    replicated = local.run("up", "--mode", "sync")
    assert replicated.returncode == ExitCode.FAILED
    assert "without replicas" in replicated.stderr


def test_sent_message_comes_out_of_tail_with_tag_and_keys(local: LocalCluster) -> None:
    (sent,) = local.send("Single", "hello", "--tag", "A", "--key", "k1", "--key", "k2")
    assert sent["status"] == "SEND_OK"
    (found,) = local.tail("Single", "--from", "first", "--until-end")
    assert (found["body"], found["tags"], found["keys"]) == ("hello", "A", ["k1", "k2"])
    assert found["message_id"] == sent["message_id"]
    assert found["queue_offset"] == sent["queue_offset"]


def test_each_line_of_stdin_is_a_message_and_both_brokers_get_some(local: LocalCluster) -> None:
    lines = [f"line {number}" for number in range(500)]
    sent = local.send("Lines", stdin="\n".join(lines) + "\n")
    assert len(sent) == 500
    assert {each["broker"] for each in sent} == {"broker-a", "broker-b"}
    assert local.everything("Lines") == sorted(lines)


def test_whole_file_is_one_message(local: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "body.bin"
    path.write_bytes(b"\xff\x00" * 50_000)
    local.send("Files", "--file", path)
    (found,) = local.tail("Files", "--from", "first", "--until-end")
    assert "body_base64" in found


def test_tail_filters_counts_and_starts_in_time(local: LocalCluster) -> None:
    local.send("Tags", "old", "--tag", "A")
    wait_until(lambda: local.everything("Tags") == ["old"], 10, "the old message is readable")
    time.sleep(0.01)
    middle_ms = time.time_ns() // 1_000_000
    local.send("Tags", "new", "--tag", "B")
    local.send("Tags", "newer", "--tag", "C")

    def bodies(*arguments: object) -> set[str]:
        return {each["body"] for each in local.tail("Tags", "--until-end", *arguments)}

    assert bodies("--from", "first", "--tag", "A || C") == {"old", "newer"}
    assert bodies("--from", middle_ms) == {"new", "newer"}
    assert bodies("--from", "1h") == {"old", "new", "newer"}
    assert bodies("--from", "last") == set()
    assert len(local.tail("Tags", "--from", "first", "--count", "2")) == 2


def test_tail_follows_and_ends_quietly_on_ctrl_c(local: LocalCluster) -> None:
    local.send("Follow", "before")
    following = subprocess.Popen(
        [sys.executable, "-m", "tandemmq", "tail", "Follow", "-n", local.name_server, "--json",
         "--from", "first"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **python_env()},
    )  # fmt: skip
    with following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert json.loads(following.stdout.readline())["body"] == "before"
        local.send("Follow", "after")
        assert json.loads(following.stdout.readline())["body"] == "after"
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 0
        assert "Traceback" not in following.stderr.read()


def test_tail_joins_no_group_and_leaves_no_topic_behind(local: LocalCluster) -> None:
    local.send("Quiet", "x")
    local.tail("Quiet", "--from", "first", "--until-end")
    topics = {path.name for path in local.directory.glob("store/*/consumequeue/*")}
    assert "Quiet" in topics
    assert not any(topic.startswith("%RETRY%") for topic in topics)


def test_inspect_says_that_a_running_store_is_sound(local: LocalCluster) -> None:
    local.send("Inspected", stdin="a\nb\nc\n")
    wait_until(lambda: len(local.everything("Inspected")) == 3, 10, "messages are readable")
    records = 0
    for name in ("broker-a", "broker-b"):
        done = tandem("inspect", local.directory / "store" / name, "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["sound"], report["problems"]) == (0, True, [])
        records += report["records"]
    assert records >= 3


def test_inspect_finds_a_flipped_byte(fresh: LocalCluster) -> None:
    assert fresh.up().returncode == 0
    fresh.send("Damage", stdin="one body to flip\n" * 4)
    assert fresh.run("down").returncode == 0
    for log in fresh.directory.glob("store/*/commitlog/*"):
        place = log.read_bytes().find(b"one body")
        if place >= 0:
            with log.open("r+b") as file:
                file.seek(place)
                file.write(b"0")
            broken = log.parent.parent
    done = tandem("inspect", broken)
    assert done.returncode == ExitCode.UNSOUND
    assert "NOT SOUND" in done.stdout


def test_killed_broker_is_seen_started_again_and_has_lost_nothing(fresh: LocalCluster) -> None:
    assert fresh.up().returncode == 0
    lines = [f"m{number}" for number in range(300)]
    fresh.send("Kept", stdin="\n".join(lines))
    victim = fresh.members()["broker-a"]["pid"]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: fresh.members()["broker-a"]["state"] == "died", 5, "the death is seen")
    assert fresh.run("status").returncode == ExitCode.NOT_RUNNING
    assert fresh.up().returncode == 0
    assert fresh.members()["broker-a"]["pid"] != victim
    assert fresh.everything("Kept") == sorted(lines)


def test_single_processes_are_signalled_and_started_again(fresh: LocalCluster) -> None:
    assert fresh.up().returncode == 0
    for what, state in (("STOP", "frozen"), ("CONT", "running"), ("TERM", "stopped")):
        done = fresh.run("kill", "broker-b", "--signal", what)
        assert done.returncode == 0, done.stderr
        assert fresh.members()["broker-b"]["state"] == state
    gone = fresh.run("kill", "broker-b")
    assert gone.returncode == ExitCode.NOT_RUNNING
    assert "broker-b does not run" in gone.stderr
    started = fresh.run("start", "broker-b")
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("broker-b: ready after ")
    assert fresh.members()["broker-b"]["registered"] is True
    again = fresh.run("start", "broker-b")
    assert again.returncode == ExitCode.FAILED
    assert "runs already" in again.stderr


def test_down_stops_everything_within_five_seconds_and_leaves_clean_stores(
    fresh: LocalCluster,
) -> None:
    assert fresh.up().returncode == 0
    fresh.send("Clean", stdin="a\nb\nc\nd\ne\nf\n")
    began = time.monotonic()
    done = fresh.run("down", "--json")
    assert done.returncode == 0
    assert time.monotonic() - began < 7  # 5 s for the servers, the rest for starting Python
    results = json.loads(done.stdout)
    assert set(results) == {"namesrv", "broker-a", "broker-b"}
    assert all(result.startswith("stopped in ") for result in results.values())
    for name in ("broker-a", "broker-b"):
        report = tandem("inspect", fresh.directory / "store" / name)
        assert "closed cleanly" in report.stdout
        assert report.returncode == 0
    assert fresh.run("status").returncode == ExitCode.NOT_RUNNING
    again = fresh.run("down")
    assert again.returncode == 0
    assert "was not running" in again.stdout


def test_sigterm_under_load_ends_a_broker_within_five_seconds(fresh: LocalCluster) -> None:
    assert fresh.up().returncode == 0
    sending = subprocess.Popen(
        [sys.executable, "-m", "tandemmq", "send", "Load", "-n", fresh.name_server],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **python_env()},
    )  # fmt: skip
    with sending:
        assert sending.stdin is not None
        sending.stdin.write(b"a line\n" * 20_000)
        sending.stdin.flush()
        victim = fresh.members()["broker-a"]["pid"]
        began = time.monotonic()
        os.kill(victim, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{victim}").exists(), 5, "the broker has ended")
        assert time.monotonic() - began < 5
        sending.kill()
    report = tandem("inspect", fresh.directory / "store" / "broker-a")
    assert "closed cleanly" in report.stdout
    assert report.returncode == 0, report.stdout


def test_logs_shows_the_end_of_each_log(local: LocalCluster) -> None:
    shown = local.run("logs", "--lines", "5").stdout
    assert shown.count("==>") == 3
    assert "boot success" in local.run("logs", "namesrv", "--lines", "100").stdout
    unknown = local.run("logs", "broker-z")
    assert unknown.returncode == ExitCode.FAILED
    assert "broker-a" in unknown.stderr


@pytest.mark.parametrize("name", [None, "broker-b"], ids=["all", "one"])
def test_logs_follow_what_is_written_and_end_quietly_on_ctrl_c(
    fresh: LocalCluster, tmp_path: Path, name: str | None
) -> None:
    assert fresh.up().returncode == 0
    shown, errors = tmp_path / "shown", tmp_path / "errors"
    command = ["local", "logs", "--dir", str(fresh.directory), "--lines", "1", "-f"]
    with shown.open("wb") as out, errors.open("wb") as err:
        following = subprocess.Popen(
            [sys.executable, "-m", "tandemmq", *command, *([name] if name else [])],
            stdout=out, stderr=err, env={**os.environ, **python_env()},
        )  # fmt: skip
    try:
        headings = 1 if name else 3
        wait_until(lambda: shown.read_text().count("==>") == headings, 20, "the end of each log")
        before = len(shown.read_text())
        assert fresh.run("kill", "broker-b").returncode == 0
        assert fresh.run("start", "broker-b").returncode == 0
        log = fresh.directory / "logs" / "broker-b.log"
        wait_until(lambda: log.read_text().count("boot success") == 2, 10, "its last line")
        with log.open("ab") as half:
            half.write(b"half a ")
        time.sleep(0.5)  # looked at in between
        with log.open("ab") as half:
            half.write("line, \N{SNOWMAN}\n".encode())
        prefix = "" if name else "broker-b  "
        whole = f"\n{prefix}half a line, \N{SNOWMAN}\n"
        wait_until(lambda: whole in shown.read_text(), 10, "what was written last")
        added = shown.read_text()[before:].splitlines()
        assert any("boot success" in line for line in added if line.startswith(prefix))
        written = [f"{prefix}{line}" for line in log.read_text().splitlines()]
        assert added == written[-len(added) :] if name else set(added) > set(written[-5:])
    finally:
        following.send_signal(signal.SIGINT)
        ended = following.wait(10)
    assert (ended, errors.read_text()) == (ExitCode.OK, "")


def test_up_that_is_interrupted_says_how_to_go_on(fresh: LocalCluster) -> None:
    words = [
        "local",
        "up",
        "--dir",
        str(fresh.directory),
        "--namesrv-port",
        str(fresh.namesrv_port),
    ]
    words += ["--broker-port", str(fresh.broker_port)]
    command = [sys.executable, "-m", "tandemmq", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=python_env()) as process:
        wait_until(lambda: list(fresh.directory.rglob("*.pid")), 10, "something was started")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == ExitCode.INTERRUPTED, err
    where = f"--dir {fresh.directory}"
    assert err.decode().count("\n") == 1 and "tandem: interrupted: " in err.decode(), err
    assert (
        f"`tandem local up {where}` starts the others, `tandem local down {where}`" in err.decode()
    )
    assert fresh.up().returncode == 0


def test_taken_port_is_named(local: LocalCluster, tmp_path: Path) -> None:
    done = tandem(
        "local", "up", "--dir", tmp_path / "other",
        "--namesrv-port", local.namesrv_port, "--broker-port", PORTS.take(),
    )  # fmt: skip
    assert done.returncode == ExitCode.PORT_TAKEN
    assert str(local.namesrv_port) in done.stderr
    assert "Traceback" not in done.stderr


def test_broker_on_a_taken_port_ends_with_one_line(local: LocalCluster, tmp_path: Path) -> None:
    done = tandem(
        "broker",
        "--set",
        f"listenPort={local.broker_port}",
        "--set",
        f"storePathRootDir={tmp_path}",
    )
    assert done.returncode == ExitCode.PORT_TAKEN
    assert "Traceback" not in done.stderr


def test_second_broker_on_one_store_is_refused(local: LocalCluster) -> None:
    done = tandem(
        "broker", "--set", f"listenPort={PORTS.take()}",
        "--set", f"storePathRootDir={local.directory / 'store' / 'broker-a'}",
    )  # fmt: skip
    assert done.returncode == ExitCode.STORE_UNUSABLE, done.stderr
    assert "Traceback" not in done.stderr


def test_ports_that_outgoing_connections_may_take_are_refused(tmp_path: Path) -> None:
    done = tandem("local", "up", "--dir", tmp_path / "x", "--namesrv-port", 40_000)
    assert done.returncode == ExitCode.USAGE
    assert "40000" in done.stderr
    assert not (tmp_path / "x" / "cluster.json").exists()


def test_commands_on_a_directory_without_a_cluster_say_how_to_start_one(tmp_path: Path) -> None:
    for action in ("status", "down", "logs"):
        done = tandem("local", action, "--dir", tmp_path)
        assert done.returncode == ExitCode.NOT_RUNNING
        assert "tandem local up" in done.stderr


def test_unreachable_name_server_is_one_line_and_an_exit_code() -> None:
    for command in (["send", "T", "x"], ["tail", "T"]):
        done = tandem(*command, "-n", f"127.0.0.1:{PORTS.take((0,))}")
        assert done.returncode == ExitCode.UNREACHABLE
        assert "no name server answers" in done.stderr
        assert "Traceback" not in done.stderr


def test_unknown_topic_and_bad_arguments_are_one_line_and_an_exit_code(
    local: LocalCluster,
) -> None:
    cases = [
        (["tail", "Nowhere"], ExitCode.NOT_FOUND, "Nowhere"),
        (["tail", "Lines", "--from", "yesterday"], ExitCode.USAGE, "yesterday"),
        (["tail", "Lines", "--tag", "||"], ExitCode.FAILED, "names no tag"),
        (["tail", "Lines", "--sql", "price >"], ExitCode.FAILED, "refused at character 8"),
        (["tail", "Lines", "--count", "0"], ExitCode.USAGE, "at least 1"),
        (["send", "no.dots", "x"], ExitCode.FAILED, "illegal characters"),
        (["send", "T", "--file", "/nonexistent"], ExitCode.FAILED, "/nonexistent"),
    ]
    for arguments, code, part in cases:
        done = tandem(*arguments, "-n", local.name_server)
        assert (done.returncode, part in done.stderr) == (code, True), (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def test_environment_names_the_name_server(local: LocalCluster) -> None:
    assert tandem("send", "Env", "x", NAMESRV_ADDR=local.name_server).returncode == 0


COMMANDS = [
    ["nameserver"], ["broker"], ["send"], ["tail"], ["inspect"], ["check-config"], ["local"],
    ["local", "up"], ["local", "down"], ["local", "status"], ["local", "kill"], ["local", "start"],
    ["local", "logs"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_with_an_example(command: list[str]) -> None:
    done = tandem(*command, "--help")
    assert done.returncode == 0
    assert f"example:\n  tandem {command[0]}" in done.stdout


def test_help_lists_the_exit_codes() -> None:
    shown = tandem("--help").stdout
    assert all(code.name in shown for code in ExitCode)


def test_optimized_python_is_refused() -> None:
    done = tandem("broker", python=("-O",))
    assert done.returncode == ExitCode.OPTIMIZED
    assert "assertions" in done.stderr


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("listenPort=eleven", ["listenPort", "eleven", "whole number"]),
        ("flushDiskType=SOMETIMES", ["flushDiskType", "SOMETIMES", "ASYNC_FLUSH"]),
        ("brokerName=a b", ["brokerName", "a b"]),
    ],
)
def test_bad_value_stops_check_and_start_with_key_value_and_what_is_allowed(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={tmp_path}/store\n{line}\n")
    for command in (["check-config", path], ["broker", "-c", path]):
        done = tandem(*command)
        assert done.returncode == ExitCode.BAD_CONFIG
        assert all(part in done.stderr for part in parts), done.stderr
        assert "Traceback" not in done.stderr
    shown = json.loads(tandem("check-config", path, "--json").stdout)
    assert shown["ok"] is False


def test_unknown_key_warns_and_suggests(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={tmp_path}/store\nlistenPrt=10911\n")
    done = tandem("check-config", path)
    assert done.returncode == 0
    assert "listenPrt" in done.stderr
    assert "listenPort" in done.stderr
    assert json.loads(tandem("check-config", path, "--json").stdout)["warnings"]


def test_namesrv_conf_is_recognised_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=notaport\n")
    done = tandem("check-config", path)
    assert done.returncode == ExitCode.BAD_CONFIG
    assert "notaport" in done.stderr
    path.write_text("listenPort=9876\n")
    assert "nameserver" in tandem("check-config", path).stdout


def test_settings_file_that_is_missing_is_named(tmp_path: Path) -> None:
    done = tandem("broker", "-c", tmp_path / "nope.conf")
    assert done.returncode == ExitCode.BAD_CONFIG
    assert "nope.conf" in done.stderr


def test_setting_without_a_key_is_a_usage_error() -> None:
    done = tandem("broker", "--set", "flushDiskType")
    assert done.returncode == ExitCode.USAGE
    assert "KEY=VALUE" in done.stderr


def test_inspect_of_something_else_says_so(tmp_path: Path) -> None:
    done = tandem("inspect", tmp_path)
    assert done.returncode == ExitCode.STORE_UNUSABLE
    assert "commitlog" in done.stderr
    assert tandem("inspect", tmp_path / "nothing").returncode == ExitCode.STORE_UNUSABLE
