"""Ctrl-C and SIGTERM while a command has its hands full."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer, python_env
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

SOON_S = 8  # what is under way is sent, nothing more is read; a loaded machine takes 4


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a name server with one broker."""
    directory = tmp_path_factory.mktemp("interrupts")
    with NameServer(directory) as server:
        server.start()
        with Broker(directory, server.address) as broker:
            broker.start()
            yield server.address


def stored(name_server: str, topic: str) -> int:
    done = run("admin", "topicStatus", "-t", topic, "--json", "-n", name_server)
    assert done.code == 0, done.err
    return sum(each["max_offset"] - each["min_offset"] for each in done.json["queues"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_send_of_endless_input_ends_at_the_first_signal(
    name_server: str, end: signal.Signals
) -> None:
    topic = f"Endless{end.name}"
    yes = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "tandemmq", "send", topic, "-n", name_server]
    try:
        with subprocess.Popen(
            command, stdin=yes.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=python_env(),
        ) as process:  # fmt: skip
            try:
                assert yes.stdout is not None
                yes.stdout.close()
                wait_until(lambda: run("admin", "topicStatus", "-t", topic, "-n", name_server).code == 0,
                           20, "it sends")  # fmt: skip
                time.sleep(0.5)
                process.send_signal(end)
                began_s = time.monotonic()
                _, err = process.communicate(timeout=SOON_S)
                print(f"ended {time.monotonic() - began_s:.2f} s after the signal: {err!r}")
            finally:
                process.kill()
    finally:
        yes.kill()
        yes.wait()
    assert process.returncode == ExitCode.INTERRUPTED
    said = re.search(rb"^(\d+) messages sent$", err, re.MULTILINE)
    assert said is not None and b"Traceback" not in err, err
    wait_until(lambda: stored(name_server, topic) == int(said[1]), 10, "what it said is there")


def test_a_second_ctrl_c_gives_up_what_waits_and_names_it(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        with Broker(tmp_path, server.address) as broker:
            broker.start()
            assert run("send", "T", "x", "-n", server.address).code == 0
            ours, theirs = pty.openpty()
            command = [sys.executable, "-m", "tandemmq", "send", "T", "-n", server.address]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE,
                env=python_env(),
            ) as process:  # fmt: skip
                os.close(theirs)
                assert process.stdin is not None and process.stderr is not None
                process.stdin.write(b"first\n")
                process.stdin.flush()
                assert os.read(ours, 100).startswith(b"SEND_OK")
                os.kill(broker.pid, signal.SIGSTOP)
                process.stdin.write(b"one\ntwo\nthree\n")
                process.stdin.flush()
                time.sleep(0.5)
                for _ in range(2):
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.2)
                open_still, process.stdin = process.stdin, None
                _, err = process.communicate(
                    timeout=10
                )  # it says goodbye to a broker that is silent
                open_still.close()
                os.close(ours)
            os.kill(broker.pid, signal.SIGCONT)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert b"1 messages sent; not sent, or their fate unknown: 3 more" in err
    assert b"Traceback" not in err and b"Exception" not in err
