"""`tandem health`: does a server here answer, and has a broker of a group a role? For health checks.

They ask each server every few seconds, so this loads nothing of the client, which takes longer to import than all the
rest: one frame (docs/formats.md "Frame"), written and read with the standard library.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
from typing import Any, Final

from tandemmq.command.exits import CommandFailed, ExitCode

PORTS: Final = (10911, 9876, 9878)  # broker, name server, controller: RocketMQ's defaults
WAIT_S: Final = 3.0  # for all of one check
ANSWER_BYTES_MAX: Final = 1 << 20
SERVES: Final = ("master", "following")  # the others lead nobody and follow nobody, yet or any more
_RUNTIME: Final = 28  # GET_BROKER_RUNTIME_INFO: what is no broker says that it does not know it
_SIZES: Final = struct.Struct(">II")


def run_health(arguments: argparse.Namespace) -> ExitCode:
    """OK when it serves.

    Raises CommandFailed: UNREACHABLE when nobody answers, NOT_RUNNING for a broker without a role.
    """
    if arguments.address is not None:
        places = [_place(arguments.address)]
    else:  # a server told its own address listens there alone: a container's host name is its address
        places = [(host, port) for host in ("127.0.0.1", socket.gethostname()) for port in PORTS]
    problem: OSError | None = None
    for host, port in places:
        try:
            table = ask(host, port)
        except ConnectionRefusedError as refused:
            problem = refused
            continue
        except (OSError, ValueError) as failure:
            raise CommandFailed(
                f"{host}:{port} gives no answer: {failure}", ExitCode.UNREACHABLE
            ) from failure
        print(verdict(f"{host}:{port}", table))
        return ExitCode.OK
    named = ", ".join(dict.fromkeys(f"{host}:{port}" for host, port in places))
    raise CommandFailed(f"nobody listens at {named}", ExitCode.UNREACHABLE) from problem


def _place(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CommandFailed(f"address {address!r} is not host:port", ExitCode.USAGE)
    return host.removeprefix("[").removesuffix("]"), int(port)


def verdict(address: str, table: dict[str, str]) -> str:
    """One line for who looks at the health of a container. Raises CommandFailed."""
    state = table.get("replicaState")
    if state is not None and state not in SERVES:
        raise CommandFailed(
            f"{address} answers, and neither leads nor follows: {state}", ExitCode.NOT_RUNNING
        )
    role = state or table.get("brokerRole", "")
    return f"{address} answers{f', {role}' if role else ''}"


def ask(host: str, port: int) -> dict[str, str]:
    """What a broker says of itself; {} of any other server, and of one that tells only whom it knows.

    Raises OSError, ValueError.
    """
    with socket.create_connection((host, port), WAIT_S) as plain:
        answer = _exchange(plain)
    if answer is None:
        answer = _asked_by_tls(host, port)
    return answer


def _asked_by_tls(host: str, port: int) -> dict[str, str]:
    """The same of a server that takes nothing but TLS. One that asks for a certificate answers, too."""
    import ssl  # seldom needed, and slow to load

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = (
        ssl.CERT_NONE
    )  # nothing is told to it, and nothing that it says is believed
    try:
        with (
            socket.create_connection((host, port), WAIT_S) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            return _exchange(encrypted) or {}
    except ssl.SSLError as problem:
        if problem.reason and "ALERT" in problem.reason:
            return {}
        raise


def _exchange(sock: socket.socket) -> dict[str, str] | None:
    """Ask over this connection; None when it was closed instead of an answer."""
    head = {"code": _RUNTIME, "flag": 0, "language": "PYTHON", "opaque": 1, "version": 0}
    header = json.dumps({**head, "extFields": {}}).encode()
    try:
        sock.sendall(_SIZES.pack(4 + len(header), len(header)) + header)
        sizes = _received(sock, _SIZES.size)
        if sizes is None:
            return None
        size, header_size = _SIZES.unpack(sizes)
        header_size &= 0xFFFFFF
        if not header_size + 4 <= size <= ANSWER_BYTES_MAX:
            raise ValueError("the answer is none of RocketMQ's protocol")
        frame = _received(sock, size - 4)
    except ConnectionResetError:
        return None
    if frame is None:
        raise ValueError("the answer ends in its middle")
    told: dict[str, Any] = json.loads(frame[:header_size])
    if told.get("code") != 0:
        return {}
    table: dict[str, str] = json.loads(frame[header_size:])["table"]
    return table


def _received(sock: socket.socket, count: int) -> bytes | None:
    """So many bytes; None when the peer closed before."""
    found = bytearray()
    while len(found) < count:
        more = sock.recv(count - len(found))
        if not more:
            return None
        found += more
    return bytes(found)
