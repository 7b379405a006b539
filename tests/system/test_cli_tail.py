"""`tandem tail` where not everything can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from tandemmq.chaos.servers import Broker, NameServer, python_env
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system


def tailing(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tandemmq", "tail", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=python_env())


def test_a_frozen_broker_hides_nothing_of_the_others(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        one = Broker(tmp_path, server.address, name="broker-a", store=tmp_path / "a")
        two = Broker(tmp_path, server.address, name="broker-b", store=tmp_path / "b")
        with one, two:
            one.start()
            two.start()
            reached = ("-n", server.address)
            made = run(
                "admin", "updateTopic", "-c", "TestCluster", "-t", "T", "-r", 2, "-w", 2, *reached
            )
            assert made.code == 0, made.err
            for name in ("broker-a:0", "broker-b:0", "broker-b:1"):
                assert run("send", "T", f"at {name}", "--queue", name, *reached).code == 0
            command = ("tail", "T", "--from", "first", "--until-end", *reached)
            assert run(*command).code == 0
            os.kill(one.pid, signal.SIGSTOP)
            try:
                partly = run(*command)
                nothing = run(*command, "--queue", "broker-a")
            finally:
                os.kill(one.pid, signal.SIGCONT)
    assert partly.code == ExitCode.UNREACHABLE, partly.err
    assert "at broker-b:0" in partly.out and "at broker-b:1" in partly.out
    assert "warning: not read: broker-a, queues 0, 1: no answer" in partly.err
    assert "group" not in partly.err and "2 messages" in partly.err
    assert (nothing.code != 0, "no answer" in nothing.err) == (True, True)


def test_a_broker_that_freezes_while_it_is_read_does_not_hold_the_end_back(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        with Broker(tmp_path, server.address) as broker:
            broker.start()
            reached = ("-n", server.address)
            lines = b"".join(b"%d\n" % number for number in range(50_000))
            assert run("send", "T", *reached, stdin=lines).code == 0
            with tailing("T", "--from", "first", "--until-end", *reached) as process:
                assert process.stdout is not None
                os.read(process.stdout.fileno(), 1)
                os.kill(broker.pid, signal.SIGSTOP)
                try:
                    _, err = process.communicate(timeout=60)
                finally:
                    os.kill(broker.pid, signal.SIGCONT)
                    process.kill()
    assert process.returncode == ExitCode.UNREACHABLE, err
    assert b"warning: not read: broker-a, queues" in err


def test_a_topic_that_cannot_be_read_or_is_not_there_is_said(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        with Broker(tmp_path, server.address) as broker:
            broker.start()
            reached = ("-n", server.address)
            made = ("admin", "updateTopic", "-b", broker.address, "-r", 0, "-w", 0)
            assert run(*made, "-t", "Closed", *reached).code == 0
            assert run("send", "Orders", "x", *reached).code == 0
            closed = run("tail", "Closed", "--from", "first", "--until-end", *reached)
            assert closed.code == ExitCode.FAILED
            assert "topic Closed has no queue to read" in closed.err
            for mistyped in ("orders", "Ordres"):
                done = run("tail", mistyped, *reached)
                assert done.code == ExitCode.NOT_FOUND, done.err
                assert "did you mean Orders?" in done.err
            assert "did you mean Orders?" in run("send", "orders", "x", *reached).err


def test_messages_are_chosen_by_their_properties_where_brokers_do_that(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        settings = {"enablePropertyFilter": "true"}
        with Broker(tmp_path, server.address, settings=settings) as broker:
            broker.start()
            reached = ("-n", server.address)
            for price in ("5", "50"):
                sent = run("send", "T", f"at {price}", "--property", f"price={price}", *reached)
                assert sent.code == 0, sent.err
            show = ("tail", "T", "--from", "first", "--until-end", "--sql", "price > 10", *reached)
            shown = run(*show)
            change = ("-b", broker.address, "-k", "enablePropertyFilter", "-v", "false")
            off = run("admin", "updateBrokerConfig", *change, *reached)
            assert off.code == 0, off.err
            refused = run(*show)
    assert (shown.code, "at 50" in shown.out, "at 5\n" in shown.out) == (0, True, False)
    assert refused.code == ExitCode.FAILED
    assert "Set enablePropertyFilter=true on the brokers" in refused.err
