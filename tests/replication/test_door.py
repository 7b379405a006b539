"""INV-44: from where the HA port may be reached, and who needs no TLS; the stream through TLS, byte for byte."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import tempfile
from pathlib import Path

import pytest

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.haport import door_of
from tandemmq.cluster.remoting.selfsigned import self_signed_pem
from tandemmq.replication.door import Door, networks
from tandemmq.replication.tlswire import HELD_BYTES_MAX, Encrypted, TlsWire
from tandemmq.replication.wire import SocketWire


def test_addresses_and_networks_in_any_separation() -> None:
    found = networks(" 10.0.0.7;10.1.0.0/16, ::1 ")
    assert [str(each) for each in found] == ["10.0.0.7/32", "10.1.0.0/16", "::1/128"]
    assert networks(" ") == ()
    for wrong in ("broker-a", "10.0.0.1/8", "10.0.0.300"):
        with pytest.raises(ValueError, match="no IP address or network"):
            networks(wrong)


def test_a_door_without_a_list_is_open_and_with_one_only_to_those_on_it() -> None:
    assert Door().refuse("203.0.113.5") is None and Door().takes_plain("203.0.113.5")
    door = Door(True, networks("10.0.0.7"), networks("10.1.0.0/16"))
    for host in ("10.0.0.7", "10.1.2.3", "::ffff:10.1.2.3"):
        assert door.refuse(host) is None
    for host in ("10.2.0.1", "::1", "no address"):
        assert "haAllowedAddresses" in (door.refuse(host) or "")
    assert door.takes_plain("10.0.0.7") and not door.takes_plain("10.1.2.3")


def door(insecure: bool = False, **settings: str) -> Door:
    return door_of(BrokerConfig.from_properties(settings, insecure=insecure, environment={}))


ENFORCING = {"tls.server.mode": "enforcing"}
WIDE = {"bindAddress": "0.0.0.0"}


def test_a_classic_port_that_others_reach_is_for_this_machine_until_slaves_are_named() -> None:
    found = door(**WIDE, **ENFORCING)
    assert found.encrypted and found.refuse("10.0.0.7") is not None
    assert found.refuse("127.0.0.1") is None and found.refuse("::1") is None
    named = door(**WIDE, **ENFORCING, haAllowedAddresses="10.0.0.7")
    assert named.refuse("10.0.0.7") is None and named.refuse("127.0.0.1") is not None


def test_loopback_insecure_and_controlled_ports_ask_for_no_address() -> None:
    controlled = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"}
    for found in (
        door(brokerIP1="127.0.0.1"),
        door(True, **WIDE),
        door(**WIDE, **ENFORCING, **controlled),
    ):
        assert found.refuse("10.0.0.7") is None
    listed = door(True, **WIDE, haAllowedAddresses="10.0.0.0/24")
    assert listed.refuse("10.0.0.7") is None and listed.refuse("10.0.1.7") is not None


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled", "authorizationEnabled"])
def test_insecure_that_access_control_asks_for_opens_the_log_to_nobody(key: str) -> None:
    switched = {key: "true"}
    found = door(True, **WIDE, **switched)
    assert found.refuse("10.0.0.7") is not None and found.refuse("127.0.0.1") is None
    asked = door(True, **WIDE, **switched, haAllowedAddresses="0.0.0.0/0")
    assert asked.refuse("10.0.0.7") is None
    assert door(True, **WIDE, **{key: "false"}).refuse("10.0.0.7") is None


@pytest.mark.parametrize("key", ["haAllowedAddresses", "haPlainAddresses"])
def test_a_name_among_the_addresses_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(Exception, match=f"{key}: 'broker-b' is no IP address"):
        door(**{key: "10.0.0.7,broker-b"})


# --- the wire ---


def server_side() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = Path(directory, "key"), Path(directory, "certificate")
        for path, pem in zip((key, certificate), self_signed_pem(), strict=True):
            path.write_bytes(pem)
        context.load_cert_chain(certificate, key)
    return context


def client_side() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    return near, far


class Served:
    """One connection of a server that sends `data` through a TlsWire as fast as it is taken, from a file or not."""

    def __init__(self, near: socket.socket, data: bytes, file: Path | None, *, plain_too: bool):
        self.data = data
        self.sent = 0
        self.received = b""
        self.problem: OSError | None = None
        self.held = 0
        self.file = file.open("rb") if file is not None else None
        plain = SocketWire(near, asyncio.get_running_loop())
        self.wire = TlsWire(plain, Encrypted(server_side), plain_too=plain_too)
        self.wire.watch(self.readable, self.writable)

    def close(self) -> None:
        self.wire.close()
        if self.file is not None:
            self.file.close()

    def readable(self) -> None:
        try:
            data = self.wire.receive()
        except OSError as problem:
            self.problem = problem
            self.wire.close()
            return
        if data:
            self.received += data
            self.writable()

    def writable(self) -> None:
        for _ in range(4):
            if self.sent == len(self.data):
                break
            if self.file is not None:
                left = len(self.data) - self.sent
                taken = self.wire.send_file(b"", self.file.fileno(), self.sent, left)
            else:
                half = self.sent + (len(self.data) - self.sent) // 2
                taken = self.wire.send((self.data[self.sent : half], self.data[half:]))
            self.sent += taken
            self.held = max(self.held, taken)
        self.wire.wait_writable(self.sent < len(self.data))


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("tls", [True, False])
def test_every_byte_arrives_through_a_slow_socket_and_little_is_held(
    tmp_path: Path, from_file: bool, tls: bool
) -> None:
    data = random.Random(4).randbytes(3 << 20)
    file = tmp_path / "log"
    file.write_bytes(data)

    async def main() -> None:
        near, far = tcp_pair()
        served = Served(near, data, file if from_file else None, plain_too=not tls)
        context = client_side() if tls else None
        reader, writer = await asyncio.open_connection(
            sock=far, ssl=context, server_hostname="" if tls else None
        )
        writer.write(b"hello")
        got = bytearray()
        while len(got) < len(data):
            got += await reader.read(50_000)
            if len(got) < 1 << 20:
                await asyncio.sleep(0.001)
        assert got == data and served.received == b"hello"
        assert not tls or served.held <= HELD_BYTES_MAX
        writer.close()
        served.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (bytes(8), "speaks no TLS"),
        (b"\x16\x03\x01\x00\x05hello", "TLS handshake failed"),
    ],
)
def test_who_does_not_speak_tls_gets_not_a_byte_of_the_log(said: bytes, why: str) -> None:
    async def main() -> None:
        near, far = tcp_pair()
        served = Served(near, b"log" * 100, None, plain_too=False)
        reader, writer = await asyncio.open_connection(sock=far)
        writer.write(said)
        async with asyncio.timeout(5):
            got = await reader.read()
        assert b"log" not in got and served.sent == 0
        assert why in str(served.problem)
        writer.close()

    asyncio.run(main())
