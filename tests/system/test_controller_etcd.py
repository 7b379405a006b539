"""Several controllers on one etcd: one leads, another takes over, and whoever lost the lead decides nothing."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import os
import shutil
import signal
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from controller_processes import TIMES, Controller, FakeBroker, until
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandemmq.chaos.asking import ask
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess, wait_until
from tandemmq.cluster.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.system
LEASE_S = 2
TAKEOVER_S = LEASE_S + 4


class Etcd(ServerProcess):
    """One etcd with its data below a directory."""

    def __init__(self, directory: Path, tls: tuple[Path, Path] | None = None) -> None:
        self.port, peer = PORTS.take((0,)), PORTS.take((0,))
        self.url = f"{'https' if tls else 'http'}://{LOOPBACK}:{self.port}"
        self._tls = ssl.create_default_context(cafile=tls[0]) if tls else None
        peer_url = f"http://{LOOPBACK}:{peer}"
        command = [
            shutil.which("etcd") or "etcd", "--data-dir", str(directory / "etcd"), "--name", "e0",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
            "--initial-cluster", f"e0={peer_url}",
            *(["--cert-file", str(tls[0]), "--key-file", str(tls[1])] if tls else []),
        ]  # fmt: skip
        super().__init__("etcd", command, directory / "etcd.log")

    def start(self) -> Etcd:
        self.launch()
        self.wait_ready(self._answers, 20)
        return self

    def _answers(self) -> bool:
        try:
            self.post("kv/range", {"key": encoded("x")})
        except OSError:
            return False
        return True

    def post(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/v3/{path}",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=3, context=self._tls) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def names(self) -> list[str]:
        found = self.post("kv/range", {"key": encoded("/"), "range_end": encoded("0")})
        return [base64.b64decode(each["key"]).decode() for each in found.get("kvs", [])]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def etcd_installed() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not on the PATH: apt-get install etcd-server")


@pytest.fixture
def etcd(etcd_installed: None, tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as running:
        yield running.start()


@pytest.fixture
def controllers(etcd: Etcd, tmp_path: Path) -> Iterator[list[Controller]]:
    """Two of them, the first one leads."""
    found = make_controllers(etcd, tmp_path)
    try:
        for each in found:
            each.start()
        yield found
    finally:
        for each in found:
            each.abandon()


def make_controllers(etcd: Etcd, directory: Path, **more: object) -> list[Controller]:
    ports = [PORTS.take((0,)), PORTS.take((0,))]
    peers = ";".join(f"n{number}-{LOOPBACK}:{port}" for number, port in enumerate(ports))
    return [
        Controller(
            directory / f"n{number}",
            name=f"n{number}",
            port=port,
            settings={
                "controllerDLegerPeers": peers, "controllerStore": "etcd",
                # the first one is nobody: the next is asked
                "etcdEndpoints": f"http://{LOOPBACK}:1;{etcd.url}", "etcdLeaseSeconds": LEASE_S, **more,
            },
        )
        for number, port in enumerate(ports)
    ]  # fmt: skip


def leads(controller: Controller) -> bool:
    header = ask(controller.address, RequestCode.CONTROLLER_GET_METADATA_INFO)[1]
    return bool(header["extFields"]["isLeader"] == "true")


def leader_as_told(controller: Controller) -> str:
    header = ask(controller.address, RequestCode.CONTROLLER_GET_METADATA_INFO)[1]
    return str(header["extFields"].get("controllerLeaderAddress", ""))


@asynccontextmanager
async def pair(controllers: list[Controller]) -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Two replicas that know both controllers; 1 is master, both are in the set."""
    addresses = [each.address for each in controllers]
    async with FakeBroker("", 1, controllers=addresses) as one:
        await until(lambda: one.leases, 15, "1 is active")
        async with FakeBroker("", 2, controllers=addresses) as two:
            await until(lambda: two.view.epoch, 10, "2 registered")
            assert (await one.alter({1, 2}, {2: two})).succeeded
            yield one, two


async def wait_leads(controller: Controller) -> None:
    await asyncio.to_thread(
        wait_until, lambda: leads(controller), TAKEOVER_S, f"{controller.name} leads"
    )


async def test_another_controller_takes_over_with_all_that_was_decided(
    controllers: list[Controller], etcd: Etcd
) -> None:
    first, second = controllers
    assert leads(first) and not leads(second)
    assert leader_as_told(second) == first.address
    refused = ask(second.address, RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "a"})
    assert refused[0] == ResponseCode.CONTROLLER_NOT_LEADER
    async with pair(controllers) as (one, two):
        number = one.view.number
        first.kill()
        await wait_leads(second)
        leases = one.leases
        await until(lambda: one.leases > leases, 5, "the master has a lease of the new one")
        assert (one.view.epoch, one.view.number, two.view.epoch) == (1, number, 1)
        assert one.view.members == {1, 2}
        # The new one decides: an election, with its wait for leases of before.
        two.streaming = False
        await one.die()
        await until(lambda: two.master and two.leases, TIMES.election_wait_ms / 1000 + 5, "2 leads")
        assert two.view.epoch == 2
    assert "/tandemmq/controller/group1/groups/a" in etcd.names()


async def test_a_controller_that_stops_gives_the_lead_away_at_once(
    controllers: list[Controller],
) -> None:
    first, second = controllers
    assert first.terminate() == 0
    began = asyncio.get_running_loop().time()
    await wait_leads(second)
    assert asyncio.get_running_loop().time() - began < LEASE_S, "no lease was waited for"


async def test_a_controller_that_slept_over_its_lease_decides_nothing_when_it_wakes(
    controllers: list[Controller],
) -> None:
    first, second = controllers
    async with pair(controllers) as (one, two):
        os.kill(first.pid, signal.SIGSTOP)
        for broker in (one, two):
            assert broker._channel is not None
            broker._channel.abort(
                "the controller is silent"
            )  # as brokers of ours do after half a lease
        await wait_leads(second)
        os.kill(first.pid, signal.SIGCONT)
        await asyncio.to_thread(
            wait_until, lambda: not leads(first), 5, "it knows that it does not lead"
        )
        told = "it tells who does"
        await asyncio.to_thread(
            wait_until, lambda: leader_as_told(first) == second.address, 5, told
        )
        await until(lambda: one.leases and one._channel and not one._channel.closed, 5, "connected")
        leases = one.leases
        await until(lambda: one.leases > leases, 5, "leases from the second")
        assert one.view.epoch == 1
    assert "leading no more" in first.output()


async def test_without_etcd_nobody_leads_and_all_goes_on_when_it_is_back(
    controllers: list[Controller], etcd: Etcd
) -> None:
    async with pair(controllers) as (one, _):
        number = one.view.number
        os.kill(etcd.pid, signal.SIGSTOP)
        await asyncio.to_thread(
            wait_until, lambda: not any(map(leads, controllers)), LEASE_S + 1, "nobody leads"
        )
        leases = one.leases
        refused = ask(
            controllers[0].address, RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "a"}
        )
        assert refused[0] == ResponseCode.CONTROLLER_NOT_LEADER
        assert one.leases == leases, "and nobody gives leases"
        os.kill(etcd.pid, signal.SIGCONT)
        await asyncio.to_thread(
            wait_until, lambda: any(map(leads, controllers)), TAKEOVER_S + 5, "somebody leads"
        )
        await until(lambda: one.leases > leases, 10, "leases again")
        assert (one.view.epoch, one.view.number) == (1, number)


def test_a_user_and_a_password_open_an_etcd_that_asks_for_them(etcd: Etcd, tmp_path: Path) -> None:
    etcd.post("auth/user/add", {"name": "root", "password": "secret"})
    etcd.post("auth/user/grant", {"user": "root", "role": "root"})
    etcd.post("auth/enable", {})
    wrong, right = make_controllers(etcd, tmp_path, etcdUser="root", etcdPassword="secret")
    with wrong, right:
        path = tmp_path / "n0" / "controller-n0.conf"
        path.write_text(path.read_text().replace("secret", "guess"))
        wrong.start()
        right.start()
        wait_until(lambda: leads(right), TAKEOVER_S, "the one with the password leads")
        assert not leads(wrong)
        assert "no controller can lead" in wrong.output()
        assert "secret" not in right.output() and "guess" not in wrong.output()


def test_etcd_behind_tls_is_met_only_with_its_certificate(
    etcd_installed: None, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "etcd.pem", tmp_path / "etcd.key"
    write_certificate(certificate, key)
    with Etcd(tmp_path, (certificate, key)) as etcd:
        etcd.start()
        stranger, friend = make_controllers(etcd, tmp_path, etcdCaPath=certificate)
        path = tmp_path / "n0" / "controller-n0.conf"
        path.write_text(path.read_text().replace(f"etcdCaPath={certificate}\n", ""))
        with stranger, friend:
            stranger.start()
            friend.start()
            wait_until(
                lambda: leads(friend), TAKEOVER_S, "the one that knows the certificate leads"
            )
            assert not leads(stranger) and "certificate" in stranger.output().lower()


def write_certificate(certificate: Path, key: Path) -> None:
    """A self-signed one for loopback."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
