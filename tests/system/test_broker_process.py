"""The broker as a process: what it says at start, what it refuses, and how it ends."""

from __future__ import annotations

import random
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from raw_wire import (
    PULL,
    Wire,
    bodies,
    count_lines,
    json_frame,
    lone_broker,
    producing,
    pull_ext,
    send_one,
)

from tandemmq.chaos.asking import answers, ask, registered
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess, wait_until
from tandemmq.chaos.servers import Broker, NameServer, python_command, python_env

pytestmark = pytest.mark.system

PORT_TAKEN, STORE_UNUSABLE, BAD_CONFIG, OPTIMIZED = 8, 9, 3, 71
STOP_S = 5
GET_CLUSTER = 106


def ended(process: ServerProcess, timeout_s: float = 10) -> int:
    """The exit code of a process that was started to be refused."""
    process.launch()
    wait_until(lambda: not process.alive, timeout_s, f"{process.name} refuses to start")
    assert process.code is not None
    return process.code


def test_it_says_boot_success_and_stops_under_load_within_five_seconds(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        broker.start()
        line = f"The broker[broker-a, {broker.address}] boot success. serializeType=JSON"
        wait_until(lambda: line in broker.output().splitlines(), 5, "it says so once it serves")
        send_one(broker.address, "Held")
        held = [Wire(broker.address) for _ in range(20)]
        for wire in held:  # at the end of the queue: they wait for 20 s
            wire.send(json_frame(PULL, pull_ext("Held", 1, sysFlag="6")))
        with producing(broker.address, "A", pause_s=0) as a, producing(broker.address, "B") as b:
            time.sleep(0.3)
            began = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - began < STOP_S
        assert [wire.read().code for wire in held] == [19] * len(held), "each is answered"
        assert all(wire.ended() for wire in held)
        for wire in held:
            wire.close()
        assert not (broker.store / "abort").exists()
        assert not answers(broker.address)
        assert "Traceback" not in broker.output()
        broker.start()
        for load in (a, b):
            kept = bodies(broker.address, load.topic)
            assert load.acknowledged.items() <= kept.items()
        assert broker.stop() == 0


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler for it by now; before, SIGTERM kills as any process."""
    (caught,) = re.findall(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_stop_during_the_start_is_a_clean_one(tmp_path: Path) -> None:
    """As soon as it answers, or even has a store open, SIGTERM loses no order."""
    with lone_broker(tmp_path) as broker:
        for delay_s in (0, 0.01, 0.03):
            broker.launch()
            wait_until(lambda: catches_sigterm(broker.pid), 10, "the store is open")
            assert (broker.store / "abort").exists()
            time.sleep(delay_s)
            assert broker.stop() == 0
            assert not (broker.store / "abort").exists()


def test_a_stop_is_heard_while_a_name_server_is_silent(tmp_path: Path) -> None:
    with (
        socket.create_server((LOOPBACK, 0)) as silent,
        Broker(tmp_path, f"{LOOPBACK}:{silent.getsockname()[1]}") as broker,
    ):
        broker.launch()
        silent.settimeout(10)
        with silent.accept()[0]:  # it asks who else has its name, and gets no answer
            assert broker.stop() == 0
        assert "stop requested before anybody was served" in broker.output()
        assert "boot success" not in broker.output()
        assert not (broker.store / "abort").exists()


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    plain = lone_broker(tmp_path / "plain")
    flag = ServerProcess(
        "-O", [sys.executable, "-O", *plain.command[1:]], tmp_path / "o.log", plain.env
    )
    variable = lone_broker(tmp_path / "variable", env={"PYTHONOPTIMIZE": "1"})
    for process in (flag, variable):
        with process:
            assert ended(process) == OPTIMIZED
            assert "assertions" in process.output()
    assert not (plain.store / "lock").exists()


@pytest.mark.parametrize("offset", [0, -2])
def test_a_port_in_use_stops_the_start_and_leaves_the_store_clean(
    tmp_path: Path, offset: int
) -> None:
    port = PORTS.take()
    with (
        socket.create_server((LOOPBACK, port + offset)),
        lone_broker(tmp_path, port=port) as broker,
    ):
        assert ended(broker) == PORT_TAKEN
        assert str(port + offset) in broker.output()
        assert "Traceback" not in broker.output()
    with broker:
        broker.start()
        assert broker.stop() == 0


def test_a_store_is_opened_by_one_broker_only(tmp_path: Path) -> None:
    with (
        lone_broker(tmp_path / "1") as first,
        lone_broker(tmp_path / "2", store=first.store) as second,
    ):
        first.start()
        assert send_one(first.address, "T").code == 0
        marks = [first.store / name for name in ("abort", "abort.bak", "bootid")]
        before = [mark.read_bytes() for mark in marks]
        assert ended(second) == STORE_UNUSABLE
        assert "in use by another broker" in second.output()
        assert [mark.read_bytes() for mark in marks] == before, "they are the first one's"
        assert send_one(first.address, "T").ext["queueOffset"] == "1"
        first.kill()  # the lock goes with its process
        second.start()
        assert len(bodies(second.address, "T")) == 2


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("listenPort", "ten", "a whole number"),
        ("mappedFileSizeCommitLog", "-1", "above 0"),
        ("flushDiskType", "SOMETIMES", "ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerName", "../../x", "letters, digits"),
        ("authorizationEnabled", "true", "authenticationEnabled"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(
    tmp_path: Path, key: str, value: str, allowed: str
) -> None:
    with lone_broker(tmp_path, {key: value}) as broker:
        assert ended(broker) == BAD_CONFIG
        last = broker.output().splitlines()[-1]
        assert key in last and value in last and allowed in last, last
    assert list(broker.store.iterdir()) == []


def test_an_unknown_setting_is_only_warned_of(tmp_path: Path) -> None:
    with lone_broker(tmp_path, {"flushDiskTyp": "SYNC_FLUSH"}) as broker:
        broker.start()
        assert "key=flushDiskTyp did_you_mean=flushDiskType" in broker.output()


def test_files_that_are_no_settings_are_refused(tmp_path: Path) -> None:
    missing = python_command("broker", "-c", str(tmp_path / "none.conf"))
    (tmp_path / "bad.conf").write_text("brokerName=\\u12")
    escaped = python_command("broker", "-c", str(tmp_path / "bad.conf"))
    for number, command in enumerate((missing, escaped)):
        with ServerProcess("broker", command, tmp_path / f"{number}.log", python_env()) as process:
            assert ended(process) in (1, BAD_CONFIG)
            assert "Traceback" not in process.output()
            assert "tandem: " in process.output()


def test_ten_kills_in_a_row_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(17)
    acknowledged: dict[int, bytes] = {}
    with lone_broker(tmp_path, {"flushDiskType": "ASYNC_FLUSH"}) as broker:
        for round_number in range(10):
            broker.launch()
            if round_number % 3 == 2:
                time.sleep(rng.uniform(0.1, 0.35))  # in the start: imports, recovery, listening
                broker.kill()
                continue
            broker.wait_ready(broker.ready, broker.READY_S)
            with producing(broker.address, "T", pause_s=0, body=b"%d" % round_number * 300) as load:
                time.sleep(rng.uniform(0.05, 0.25))
                broker.kill()
            assert not load.refused
            assert not acknowledged.keys() & load.acknowledged.keys(), "a queue offset twice"
            acknowledged |= load.acknowledged
        broker.start()
        found = bodies(broker.address, "T")
        assert acknowledged.items() <= found.items()
        assert sorted(found) == list(range(len(found))), "no hole"
        assert len(found) <= len(acknowledged) + 10, "at most one unanswered send per kill"
        assert broker.stop() == 0


def test_brokers_serve_without_their_name_server_and_register_when_it_returns(
    tmp_path: Path,
) -> None:
    with (
        NameServer(tmp_path).start() as name_server,
        Broker(
            tmp_path, name_server.address, settings={"registerNameServerPeriod": 10_000}
        ).start() as broker,
    ):
        for _ in range(3):  # a restart storm
            name_server.kill()
            assert send_one(broker.address, "T").code == 0
            name_server.start()
        wait_until(lambda: registered(name_server.address, "broker-a"), 15, "registered again")
        assert len(bodies(broker.address, "T")) + len(bodies(broker.address, "T", 1)) == 3
        name_server.kill()
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < STOP_S


def test_second_broker_of_one_name_does_not_start_and_disturbs_nobody(tmp_path: Path) -> None:
    with (
        NameServer(tmp_path).start() as name_server,
        Broker(tmp_path / "1", name_server.address).start() as first,
        Broker(tmp_path / "2", name_server.address) as second,
    ):
        second.launch()
        wait_until(lambda: not second.alive, 20, "the second gives up")
        assert second.code not in (0, None)
        shown = ask(name_server.address, GET_CLUSTER)[2].decode()
        assert first.address in shown and second.address not in shown
        assert answers(first.address) and first.alive
        for process in (first, second, name_server):
            assert count_lines(process, "Traceback") == 0
