"""Certificates that are wrong: whoever meets one says so at once, and what to do."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import Authority, Signed
from command_line import run
from controller_processes import Controller
from cryptography.hazmat.primitives import serialization
from tls_cluster import start, tls_settings

from tandemmq import Message, Producer
from tandemmq.chaos.asking import registered
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer, write_settings
from tandemmq.cluster.client import ClientError
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

TOPIC = "Orders"
PASSWORD = "right-pass-phrase"


@dataclass(frozen=True)
class Wrong:
    """A certificate that cannot be right, and what is said of it by those who see it."""

    told: str  # to the client, or to the process that connects
    logged: str  # by the one that it belongs to
    by: str = "the CA"
    address: str = LOOPBACK
    days: int = 30


WRONG = {
    "of a CA that nobody trusts": Wrong(
        "nobody whom we trust has signed", "does not trust who signed our certificate", by="another"
    ),
    "expired": Wrong("has expired: renew it there", "our certificate has expired", days=-1),
    "for another address": Wrong(
        "put the one that it is reached by into its subjectAltName",
        "does not take our certificate",
        address="10.0.0.1",
    ),
}


def signed_wrongly(root: Path, wrong: Wrong) -> tuple[Authority, Signed]:
    """Who is trusted, and the certificate of a server."""
    trusted = Authority(root / "trusted")
    signs = Authority(root / "another", "another CA") if wrong.by == "another" else trusted
    return trusted, signs.sign("server", wrong.address, days=wrong.days)


def serving_with(root: Path, trusted: Authority, signed: Signed, auth: str) -> NameServer:
    return NameServer(root / "names", tls_settings(trusted, signed, auth))


@pytest.mark.parametrize("kind", WRONG)
async def test_client_and_server_say_at_once_what_is_wrong_with_a_certificate(
    tmp_path: Path, kind: str
) -> None:
    wrong = WRONG[kind]
    trusted, signed = signed_wrongly(tmp_path, wrong)
    with serving_with(tmp_path, trusted, signed, "none") as names:
        start(names)
        context = ssl.create_default_context(cafile=str(trusted.certificate))
        with pytest.raises(ClientError, match=wrong.told):
            async with asyncio.timeout(10):
                async with Producer("P", namesrv=names.address, tls=context) as producer:
                    await producer.send(Message(TOPIC, b"x"))
        options = ("-n", names.address, "--ca", trusted.certificate)
        done = await asyncio.to_thread(run, "admin", "clusterList", *options)
        assert done.code == ExitCode.UNREACHABLE and wrong.told in done.err
        assert wrong.logged in names.output()


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("", "the peer wants a certificate of ours"),
        ("another CA", "does not trust who signed"),
        ("test CA", "trusts another CA of the same name"),
    ],
)
def test_a_client_is_told_when_it_is_its_own_certificate(
    tmp_path: Path, by: str, told: str
) -> None:
    trusted = Authority(tmp_path / "trusted")
    signed = trusted.sign("server", LOOPBACK)
    with serving_with(tmp_path, trusted, signed, "require") as names:
        start(names)
        options = ["-n", names.address, "--ca", trusted.certificate]
        if by:
            shown = Authority(tmp_path / "shown", by).sign("client")
            options += ["--cert", shown.certificate, "--cert-key", shown.key]
        done = run("admin", "clusterList", *options)
        assert done.code == ExitCode.UNREACHABLE and told in done.err


@pytest.mark.parametrize("kind", WRONG)
def test_a_broker_goes_on_without_a_name_server_of_a_wrong_certificate_and_says_why(
    tmp_path: Path, kind: str
) -> None:
    wrong = WRONG[kind]
    trusted, signed = signed_wrongly(tmp_path, wrong)
    own = tls_settings(trusted, trusted.sign("broker", LOOPBACK), "none")
    with (
        serving_with(tmp_path, trusted, signed, "none") as names,
        Broker(tmp_path / "b", names.address, settings=own) as broker,
    ):
        start(names)
        start(broker)
        wait_until(lambda: wrong.told in broker.output(), 10, "the broker says why")
        assert broker.stop() == 0


@pytest.mark.parametrize("kind", WRONG)
def test_a_slave_says_why_it_does_not_follow_a_master_of_a_wrong_certificate(
    tmp_path: Path, kind: str
) -> None:
    wrong = WRONG[kind]
    trusted, signed = signed_wrongly(tmp_path, wrong)
    master_settings = tls_settings(trusted, signed, "none")
    own = tls_settings(trusted, trusted.sign("slave", LOOPBACK), "none")
    with Broker(tmp_path / "m", "", settings=master_settings) as master:
        start(master)
        follows = {
            **own,
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": f"{LOOPBACK}:{master.port + 1}",
            "haMasterBrokerAddress": master.address,
        }
        with Broker(tmp_path / "s", "", settings=follows) as slave:
            start(slave)
            wait_until(lambda: wrong.told in slave.output(), 10, "the slave says why")
            assert slave.stop() == 0


def test_a_broker_that_waits_for_a_controller_says_that_it_is_the_certificate(
    tmp_path: Path,
) -> None:
    wrong = WRONG["for another address"]
    trusted, signed = signed_wrongly(tmp_path, wrong)
    own = tls_settings(trusted, trusted.sign("broker", LOOPBACK), "none")
    with Controller(tmp_path, settings=tls_settings(trusted, signed, "none")) as controller:
        start(controller)
        asks = {
            **own,
            "brokerId": -1,
            "enableControllerMode": "true",
            "controllerAddr": controller.address,
        }
        with Broker(tmp_path / "b", "", settings=asks) as broker:
            broker.launch()
            wait_until(lambda: wrong.told in broker.output(), 10, "the broker says why")
            assert broker.stop() == 0


def test_peers_without_tls_are_named_and_so_is_the_way_to_do_without(tmp_path: Path) -> None:
    trusted = Authority(tmp_path)
    own = tls_settings(trusted, trusted.sign("broker", LOOPBACK), "none")
    with NameServer(tmp_path) as names:
        start(names)
        with Broker(tmp_path / "b", names.address, settings=own) as broker:
            start(broker)
            wait_until(lambda: "it may not speak TLS here" in broker.output(), 10, "the reason")
            assert "tls.enable=false there" in names.output()
            assert broker.stop() == 0
        plainly = {**own, "tls.enable": "false"}
        with Broker(tmp_path / "b", names.address, settings=plainly) as broker:
            start(broker)
            wait_until(lambda: registered(names.address, "broker-a"), 10, "registered")
            assert broker.stop() == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tls.server.keyPath": "{other}"}, "the key belongs to another certificate"),
        ({"tls.server.certPath": "/nowhere.pem"}, "/nowhere.pem"),
        ({"tls.server.trustCertPath": ""}, "tls.server.trustCertPath"),
        ({"tls.server.keyPath": ""}, "tls.server.keyPath"),
        ({"tls.server.keyPath": "{locked}"}, "password"),
        ({"tls.server.keyPath": "{locked}", "tls.server.keyPassword": "no"}, "password"),
        ({"tls.server.certPath": "", "tls.server.keyPath": ""}, "tls.server.certPath"),
        ({"tls.config.file": "/nowhere.properties"}, "/nowhere.properties"),
    ],
)
@pytest.mark.parametrize("kind", ["nameserver", "controller", "broker"])
def test_files_that_cannot_be_used_stop_a_start_with_one_line(
    tmp_path: Path, kind: str, settings: dict[str, str], told: str
) -> None:
    trusted = Authority(tmp_path)
    signed = trusted.sign("server", LOOPBACK)
    places = {
        "other": str(trusted.sign("other", LOOPBACK).key),
        "locked": str(locked(signed)),
    }
    given: dict[str, object] = {
        **tls_settings(trusted, signed, "require"),
        **{key: text.format(**places) for key, text in settings.items()},
        "storePathRootDir": tmp_path / "store",
        "controllerStorePath": tmp_path / "controller",
        "kvConfigPath": tmp_path / "kv.json",
    }
    file = write_settings(tmp_path / "conf", given)
    done = run(kind, "-c", file)
    assert done.code == ExitCode.BAD_CONFIG, done
    (line,) = [line for line in done.err.splitlines() if line.startswith("tandem: ")]
    assert told in line


def test_a_key_with_its_password_serves_and_the_password_is_shown_to_nobody(
    tmp_path: Path,
) -> None:
    trusted = Authority(tmp_path)
    signed = trusted.sign("server", LOOPBACK)
    given = {
        **tls_settings(trusted, signed, "none"),
        "tls.server.keyPath": locked(signed),
        "tls.server.keyPassword": PASSWORD,
    }
    with NameServer(tmp_path, given) as names:
        start(names)
        with Broker(tmp_path / "b", names.address, settings=given) as broker:
            start(broker)
            options = ("-n", names.address, "--ca", trusted.certificate)
            for command in (("getNamesrvConfig",), ("getBrokerConfig", "-b", broker.address)):
                done = run("admin", *command, *options)
                assert done.code == 0, done.err
                assert "tls.server.keyPassword" in done.out and PASSWORD not in done.out
            assert PASSWORD not in names.output() + broker.output()


def locked(signed: Signed) -> Path:
    """The same key behind a password."""
    key = serialization.load_pem_private_key(signed.key.read_bytes(), None)
    path = signed.key.with_name("locked.key")
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    return path
