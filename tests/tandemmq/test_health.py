"""`tandem health`: which answer of a server, or which silence, is health."""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tandemmq.command import health
from tandemmq.command.exits import CommandFailed, ExitCode

LOOPBACK = "127.0.0.1"


def frame(code: int, body: object = None) -> bytes:
    """An answer with this code and JSON body."""
    head = json.dumps({"code": code, "flag": 1, "opaque": 1, "language": "JAVA"}).encode()
    tail = b"" if body is None else json.dumps(body).encode()
    return struct.pack(">II", 4 + len(head) + len(tail), len(head)) + head + tail


@contextmanager
def answering(*answers: bytes | None) -> Iterator[str]:
    """Who answers each connection with the next of these, at once closing it for b""; None keeps silent."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        kept = []

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                kept.append(connection)
                if answer is not None:
                    connection.recv(4096)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive(), "not asked as often as expected"
        for connection in kept:
            connection.close()


def check(address: str | None) -> ExitCode:
    return health.run_health(argparse.Namespace(address=address))


def refusal(call: Callable[[], object]) -> CommandFailed:
    with pytest.raises(CommandFailed) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("state", ["master", "following"])
def test_a_replica_with_a_role_is_healthy(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(frame(0, {"table": {"brokerRole": "SLAVE", "replicaState": state}})) as address:
        assert check(address) is ExitCode.OK
    assert capsys.readouterr().out == f"{address} answers, {state}\n"


@pytest.mark.parametrize("state", ["joining", "waiting", "preparing", "activating", "settling"])
def test_a_replica_without_a_role_is_not(state: str) -> None:
    with answering(frame(0, {"table": {"replicaState": state}})) as address:
        failed = refusal(lambda: check(address))
    assert (failed.code, state in str(failed)) == (ExitCode.NOT_RUNNING, True)


@pytest.mark.parametrize("code", [3, 16], ids=["not a broker", "knows whom it tells"])
def test_a_server_that_tells_nothing_but_answers_is_healthy(code: int) -> None:
    with answering(frame(code)) as address:
        assert check(address) is ExitCode.OK


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
    failed = refusal(lambda: check(address))
    assert (failed.code, str(failed)) == (ExitCode.UNREACHABLE, f"nobody listens at {address}")


def test_a_server_that_hangs_is_unreachable_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WAIT_S", 0.2)
    with answering(None) as address:
        failed = refusal(lambda: check(address))
    assert (failed.code, "timed out" in str(failed)) == (ExitCode.UNREACHABLE, True)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(0)[:-3], frame(0)], ids=["other", "torn", "no table"]
)  # fmt: skip
def test_an_answer_that_is_none_is_said_to_be_none(answer: bytes) -> None:
    with answering(answer) as address:
        assert refusal(lambda: check(address)).code is ExitCode.UNREACHABLE


def test_who_closes_at_a_plain_byte_is_asked_by_tls() -> None:
    alert = bytes.fromhex(
        "15030300020228"
    )  # fatal, handshake_failure: it speaks TLS, though not with us
    with answering(b"", alert) as address:
        assert check(address) is ExitCode.OK


def test_without_an_address_the_default_ports_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(frame(3)) as address:
        monkeypatch.setattr(health, "PORTS", (1, int(address.rpartition(":")[2])))
        assert check(None) is ExitCode.OK
    failed = refusal(lambda: check(None))
    assert f"{LOOPBACK}:1, " in str(failed)


@pytest.mark.parametrize("address", ["10911", "host:", ":10911", "host:x", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    assert refusal(lambda: check(address)).code is ExitCode.USAGE


def test_a_check_loads_nothing_of_servers_and_clients() -> None:
    program = (
        "import sys, tandemmq.command.cli, tandemmq.command.health; "
        "print([name for name in sys.modules if name.startswith(('tandemmq.cluster', 'msgspec', 'asyncio'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
