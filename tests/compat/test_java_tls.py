"""Stock Java clients and mqadmin against a replicated group that takes nothing but TLS, with access keys on top."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from certificates import Signed
from tls_cluster import TlsCluster, make_cluster, running

from tandemmq import java as stock
from tandemmq.chaos.processes import wait_until
from tandemmq.java import Driver, DriverError, text_of

TOPIC, GROUP = "Orders", "Readers"
ROOT = {"accessKey": "root0001", "secretKey": "rootpw12"}
SETTLE_S = 30
SIGNED = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innerpw1"}',
}

ACCOUNTS = """
accounts:
- {accessKey: root0001, secretKey: rootpw12, admin: true}
- {accessKey: inner001, secretKey: innerpw1, admin: true}
"""


def access(kind: str, directory: Path) -> dict[str, object]:
    """Settings of every process."""
    if kind == "1.0":
        path = directory / "plain_acl.yml"
        path.write_text(ACCOUNTS)
        return {**SIGNED, "authenticationEnabled": "false", "aclEnable": "true", "aclFile": path}
    return {**SIGNED, "authorizationEnabled": "true"} if kind == "2.0" else {}


def as_java_has_them(cluster: TlsCluster, shown: Signed) -> dict[str, str]:
    """A client that checks whom it speaks to and shows a certificate."""
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(cluster.authority.certificate),
        "tls.client.certPath": str(shown.certificate),
        "tls.client.keyPath": str(shown.key),
    }


def sent(driver: Driver, bodies: list[str]) -> None:
    """Each until it is taken."""
    for body in bodies:
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                driver.call("send.sync", name="P", topic=TOPIC, messages=[{"body": body}])
                break
            except DriverError:
                assert time.monotonic() < deadline, "no master took a message"
                time.sleep(0.1)


@pytest.mark.parametrize(
    ("checked", "kind"), [(False, "open"), (True, "1.0"), (True, "2.0")],
    ids=["trusting anybody", "checked both ways with accounts", "checked both ways with users"],
)  # fmt: skip
@pytest.mark.parametrize(("version", "serialization"), [("5.3.3", "binary")])
def test_java_clients_go_through_a_failover_behind_tls(
    java: None, tmp_path: Path, version: str, serialization: str, checked: bool, kind: str
) -> None:
    made = make_cluster(
        tmp_path, client_auth="require" if checked else "none", settings=access(kind, tmp_path)
    )
    keys = {} if kind == "open" else ROOT
    with running(made) as cluster:
        properties = (
            as_java_has_them(cluster, cluster.client) if checked else {"tls.enable": "true"}
        )
        home = tmp_path / "java"
        with stock.Driver(
            version, serialization, cluster.names.address, home, properties
        ) as driver:
            if keys:
                (home / "conf" / "tools.yml").write_text(
                    "accessKey: root0001\nsecretKey: rootpw12\n"
                )
            said = driver.mqadmin(
                "updateTopic", "-n", cluster.names.address, "-c", "TestCluster", "-t", TOPIC
            )
            assert "success" in said, said
            said = driver.mqadmin(
                "getSyncStateSet", "-a", cluster.controller.address, "-b", "broker-a"
            )
            assert "#MasterAddr" in said, said
            driver.call("producer.start", name="P", group="Senders", **keys)
            first = [f"before-{number}" for number in range(10)]
            sent(driver, first)
            driver.call(
                "push.start", name="C", topic=TOPIC, group=GROUP,
                **{"from": "CONSUME_FROM_FIRST_OFFSET"}, **keys,
            )  # fmt: skip
            master = next(b for b in cluster.brokers if f"{b.address}" in said.split("InSync")[0])
            master.signal(signal.SIGKILL)
            second = [f"after-{number}" for number in range(10)]
            sent(driver, second)
            wanted = {*first, *second}
            driver.wait_for(
                lambda: wanted <= {text_of(m) for m in driver.messages("C")}, 60, "every message"
            )


def test_a_java_client_that_speaks_plain_text_is_turned_away(java: None, tmp_path: Path) -> None:
    with running(make_cluster(tmp_path, client_auth="none")) as cluster:
        home = tmp_path / "java"
        with (
            stock.Driver("5.3.3", "json", cluster.names.address, home) as driver,
            pytest.raises(DriverError),
        ):
            driver.call("producer.start", name="P", group="Senders")
            driver.call("send.sync", name="P", topic=TOPIC, messages=[{"body": "never"}])
        wait_until(
            lambda: "-Dtls.enable=true at a Java client" in cluster.names.output(), 10, "the reason"
        )
