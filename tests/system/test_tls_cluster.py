"""A whole cluster with TLS between everybody: no plain byte on the wire, clear words about wrong certificates."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority, Signed
from command_line import run
from cryptography import x509
from inbox import Inbox
from raw_wire import Wire, json_frame
from tls_cluster import (
    GROUP,
    TOKEN,
    TlsCluster,
    listening,
    make_cluster,
    running,
    start,
)
from wire_tap import WireTap, records

from tandemmq import Message, Producer, PushConsumer, StartFrom
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import wait_until
from tandemmq.cluster.client import ClientError

pytestmark = pytest.mark.system

TOPIC = "OrdersInSecret"
MARKERS = (TOPIC.encode(), b"body-of-order", b"brokerName", b"extFields", GROUP.encode())
GET_CLUSTER = 106
SETTLE_S = 20

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="a packet socket needs root: run this test as root"
)


def in_sync(cluster: TlsCluster) -> tuple[str, set[str]]:
    """The group's master and its sync-state-set, as the controller tells `tandem admin`."""
    done = run(
        "admin", "getSyncStateSet", "--json", "-a", cluster.controller.address, "-b", GROUP,
        *cluster.options,
    )  # fmt: skip
    if done.code or not done.json:
        return "", set()
    (group,) = done.json
    return group["master_address"] or "", {each["address"] for each in group["in_sync"]}


def whole(cluster: TlsCluster) -> bool:
    return len(in_sync(cluster)[1]) == len(cluster.brokers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    """For what leaves the cluster as it is."""
    with running(make_cluster(tmp_path_factory.mktemp("tls"))) as found:
        wait_until(lambda: whole(found), SETTLE_S, "both replicas are in sync")
        yield found


async def sent(producer: Producer, numbers: range) -> list[bytes]:
    """Send these; one that is refused is sent until it is taken."""
    bodies = []
    for number in numbers:
        body = b"body-of-order-%d" % number
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                await producer.send(Message(TOPIC, body))
                break
            except ClientError:
                assert time.monotonic() < deadline, "no master took a message"
                await asyncio.sleep(0.1)
        bodies.append(body)
    return bodies


async def consumed(cluster: TlsCluster, group: str, bodies: list[bytes]) -> None:
    inbox = Inbox()
    async with PushConsumer(
        group,
        inbox,
        namesrv=cluster.names.address,
        subscribe={TOPIC: "*"},
        start=StartFrom.FIRST,
        tls=cluster.context(),
    ):
        await inbox.until(lambda: {each.body for each in inbox.messages} >= set(bodies))


def secure_answer(cluster: TlsCluster, port: int, *, shown: bool = True) -> int:
    """The response code of one request. Raises OSError where we are not let in."""
    with Wire(f"{LOOPBACK}:{port}") as wire:
        wire.socket = cluster.context(shown=shown).wrap_socket(
            wire.socket, server_hostname=LOOPBACK
        )
        return wire.request(json_frame(GET_CLUSTER, {})).code


def health(cluster: TlsCluster, port: int) -> int:
    connection = http.client.HTTPSConnection(
        LOOPBACK, port, context=cluster.context(shown=False), timeout=10
    )
    try:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        connection.request("GET", "/healthz", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def what_plain_text_gets(port: int, said: bytes) -> bytes:
    """Everything that a server says to somebody who speaks no TLS, until it hangs up."""
    heard = b""
    with socket.create_connection((LOOPBACK, port), timeout=20) as plain:
        plain.sendall(said)
        try:
            while data := plain.recv(1 << 16):
                heard += data
        except ConnectionResetError:
            pass
    return heard


async def live(cluster: TlsCluster) -> None:
    """Messages, consumers, commands, the HTTP ports, a killed master, its return, a planned stop."""
    await asyncio.to_thread(wait_until, lambda: whole(cluster), SETTLE_S, "both are in sync")
    master_address, _ = await asyncio.to_thread(in_sync, cluster)
    master = next(each for each in cluster.brokers if each.address == master_address)
    (slave,) = set(cluster.brokers) - {master}
    async with Producer("P", namesrv=cluster.names.address, tls=cluster.context()) as producer:
        bodies = await sent(producer, range(50))
        await consumed(cluster, "before", bodies)
        done = await asyncio.to_thread(run, "admin", "clusterList", *cluster.options)
        assert done.code == 0 and slave.address in done.out
        for port in cluster.http_ports:
            assert await asyncio.to_thread(health, cluster, port) == 200
        for port in cluster.remoting_ports.values():
            await asyncio.to_thread(secure_answer, cluster, port)
        for process in (cluster.names, cluster.controller, *cluster.brokers):
            assert listening(process.pid) <= cluster.ports, "a port that nobody watches"
        master.signal(signal.SIGKILL)
        bodies += await sent(producer, range(50, 100))
        await asyncio.to_thread(start, master)
        await asyncio.to_thread(wait_until, lambda: whole(cluster), SETTLE_S, "it follows now")
        bodies += await sent(producer, range(100, 120))
        assert (await asyncio.to_thread(in_sync, cluster))[0] == slave.address
        words = ("audit", "run", *cluster.options, "--token-file", cluster.token_file)
        done = await asyncio.to_thread(run, *words)
        assert done.code == 0, done.err + done.out
        assert await asyncio.to_thread(slave.stop) == 0  # hands over, and takes its leave
        bodies += await sent(producer, range(120, 130))
    await consumed(cluster, "after", bodies)


@needs_root
async def test_through_a_failover_not_one_plain_byte_crosses_any_port(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    ports = cluster.ports
    with WireTap(ports) as tap, running(cluster):  # nobody has said a word before
        await live(cluster)
    assert tap.dropped == 0, "the tap missed packets: what it has says nothing"
    seen: Counter[int] = Counter()
    for (way, _), stream in tap.streams.items():
        assert stream.first >= 0 or not stream.parts, f"{way} began before we listened"
        data = stream.data()
        assert len(data) == stream.bytes_seen, f"{way} has a gap"
        count, why = records(data)
        assert not why, f"{way}: after {count} records, {why}"
        assert not any(marker in data for marker in MARKERS)
        for port in ports & set(way):
            seen[port] += count
    for name, port in cluster.remoting_ports.items():
        assert seen[port] > 4, f"nothing was seen at the {name}"
    for port in (*cluster.ha_ports, *cluster.http_ports):
        assert seen[port] > 4, f"nothing was seen at {port}"


@pytest.mark.parametrize("kind", ["remoting", "HA", "HTTP"])
def test_who_speaks_plain_text_hears_nothing_at_any_port(cluster: TlsCluster, kind: str) -> None:
    said = {
        "remoting": json_frame(GET_CLUSTER, {}),
        "HA": bytes(8),  # a classic slave, whose log is empty
        "HTTP": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }[kind]
    for port in cluster.ports:
        assert what_plain_text_gets(port, said) == b"", port


def test_who_shows_no_certificate_is_let_in_nowhere_but_at_the_http_port(
    cluster: TlsCluster,
) -> None:
    for port in cluster.remoting_ports.values():
        secure_answer(cluster, port)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            secure_answer(cluster, port, shown=False)
    for port in cluster.ha_ports:
        bare = cluster.context(shown=False)
        with (
            socket.create_connection((LOOPBACK, port), timeout=10) as plain,
            pytest.raises((ConnectionError, ssl.SSLError)),
            bare.wrap_socket(plain, server_hostname=LOOPBACK) as stream,
        ):
            stream.sendall(bytes(8))
            if not stream.recv(1):
                raise ConnectionError("hung up")
    for port in cluster.http_ports:
        assert health(cluster, port) == 200  # there the token says who comes


@needs_root
def test_the_tap_knows_plain_text_when_it_sees_some() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with WireTap({port}) as tap, socket.create_connection((LOOPBACK, port)) as said:
            heard, _ = listener.accept()
            with heard:
                said.sendall(b"\x16\x03\x03\x00\x02ab" + json_frame(GET_CLUSTER, {}))
                assert heard.recv(100)
    assert tap.dropped == 0
    found = [records(stream.data()) for stream in tap.streams.values() if stream.parts]
    ((count, why),) = found
    assert count == 1 and "stands" in why


# -- renewing ----------------------------------------------------------------------------------------


def serial_at(port: int, trusted: Authority, *, client: Signed | None = None) -> int:
    """The number of the certificate that a server shows now."""
    context = ssl.create_default_context(cafile=str(trusted.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    with (
        socket.create_connection((LOOPBACK, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as stream,
    ):
        shown = stream.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


async def test_renewed_certificates_are_shown_without_a_restart(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    with running(cluster):
        await asyncio.to_thread(wait_until, lambda: whole(cluster), SETTLE_S, "both are in sync")
        authority = cluster.authority

        def serials() -> dict[int, int]:
            return {
                port: serial_at(port, authority, client=cluster.client) for port in cluster.ports
            }

        before = serials()
        for name in ("names", "controller", "replica-0", "replica-1"):
            authority.sign(name, LOOPBACK)  # into the same files

        def renewed() -> bool:
            return all(serial != before[port] for port, serial in serials().items())

        await asyncio.to_thread(wait_until, renewed, 20, "every port shows a new certificate")
        broken = cluster.brokers[0]
        (tmp_path / "tls" / "replica-0.pem").write_text("half of a certi")
        await asyncio.to_thread(
            wait_until,
            lambda: "changed TLS files cannot be used" in broken.output(),
            20,
            "the broker says so",
        )
        assert await asyncio.to_thread(whole, cluster)
        async with Producer("P", namesrv=cluster.names.address, tls=cluster.context()) as producer:
            await consumed(cluster, "G", await sent(producer, range(10)))
