"""The HTTP port of every role by real requests: alive, ready by role, version, metrics, and who may ask."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from http_ports import TOKEN, HttpCluster, Port, http_cluster

import tandemmq
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

pytestmark = pytest.mark.system

ROLES = ("name server", "controller", "broker")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCluster]:
    with http_cluster(tmp_path_factory.mktemp("roles")) as found:
        yield found


@pytest.mark.parametrize("role", ROLES)
def test_every_role_says_that_it_runs_that_it_is_ready_and_what_it_is(
    cluster: HttpCluster, role: str
) -> None:
    port = cluster.ports[role]
    assert port.ask("/healthz", token=None).body == b'{"status": "ok"}'
    assert port.get("/readyz", token=None) == {"status": "ready", "role": role, "why": []}
    told = port.get("/version", token=None)
    assert (told["name"], told["version"], told["role"]) == ("TandemMQ", tandemmq.__version__, role)


def test_with_the_token_each_role_tells_more_of_itself(cluster: HttpCluster) -> None:
    assert cluster.names_http.get("/healthz")["address"] == cluster.names.address
    told = cluster.controller_http.get("/healthz")
    assert (told["leading"], told["leader"]) == (True, cluster.controller.address)
    roles = {port.get("/healthz")["role"] for port in cluster.brokers_http}
    assert roles == {"SYNC_MASTER", "SLAVE"}


@pytest.mark.parametrize(
    ("role", "metric"),
    [
        ("name server", "process_resident_memory_bytes"),
        ("controller", "tandem_controller_leading"),
        ("broker", "rocketmq_topic_number"),
    ],
)
def test_metrics_are_for_this_machine_and_not_for_who_comes_by_a_proxy(
    cluster: HttpCluster, role: str, metric: str
) -> None:
    port = cluster.ports[role]
    page = port.ask("/metrics", token=None)
    assert page.status == 200 and page.headers["Content-Type"].startswith("text/plain")
    assert f"\n{metric}{{" in page.body.decode()
    proxied = {"X-Forwarded-For": "127.0.0.1"}
    assert port.ask("/metrics", token=None, headers=proxied).status == 401
    assert port.ask("/metrics", headers=proxied).status == 200


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/metrics", "/nothing"])
def test_wrong_token_and_other_origins_get_nothing_anywhere(
    cluster: HttpCluster, role: str, path: str
) -> None:
    port = cluster.ports[role]
    assert port.ask(path, token="x" * 22).status == 401
    assert port.ask(path, token=None, host="evil.example").status == 403
    for token in (None, TOKEN):
        forged = port.ask(path, token=token, headers={"Origin": "http://evil.example"})
        assert forged.status == 403, forged.body


@pytest.mark.parametrize("role", ROLES)
def test_what_there_is_not_wants_the_token_to_say_so(cluster: HttpCluster, role: str) -> None:
    port = cluster.ports[role]
    assert port.ask("/nothing", token=None).status == 401
    assert port.ask("/nothing").status == 404
    assert port.ask("/healthz", method="DELETE").status == 405
    refused = port.ask("/api/nothing", token=None)
    assert refused.status == 401
    assert refused.json == {
        "error": f"show the {role}'s httpToken", "hint": "Authorization: Bearer TOKEN",
    }  # fmt: skip


def test_master_that_may_not_acknowledge_is_alive_and_not_ready(cluster: HttpCluster) -> None:
    """Its lease runs out when neither its controller nor the rest of its sync-state-set is heard of."""
    master, slave = by_role(cluster)
    silent = (cluster.controller, slave.process)
    for process in silent:
        os.kill(process.pid, signal.SIGSTOP)
    try:

        def refuses() -> bool:
            answer = master.http.ask("/readyz", token=None)
            return answer.status == 503 and any(
                why.startswith("sends are refused") for why in answer.json["why"]
            )

        wait_until(refuses, 30, "the master is not ready")
        assert master.http.ask("/healthz", token=None).status == 200
    finally:
        for process in silent:
            os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: is_whole(cluster), 60, "both replicas are in the sync-state-set, and ready")


def test_slave_is_ready_as_master_when_it_took_over_and_the_former_one_as_slave(
    cluster: HttpCluster,
) -> None:
    master, slave = by_role(cluster)
    os.kill(master.process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_ready_as(slave.http, "SYNC_MASTER"), 30, "the slave took over")
    finally:
        os.kill(master.process.pid, signal.SIGCONT)
    wait_until(lambda: is_ready_as(master.http, "SLAVE"), 30, "the former master follows")
    wait_until(lambda: is_whole(cluster), 60, "both replicas are in the sync-state-set, and ready")


def test_slave_without_a_master_is_not_ready(cluster: HttpCluster) -> None:
    """With its master and its controller gone nobody takes over: the slave lives on and says what it lacks."""
    master, slave = by_role(cluster)
    for process in (cluster.controller, master.process):
        os.kill(process.pid, signal.SIGSTOP)
    try:
        master.process.kill()

        def says_so() -> bool:
            answer = slave.http.ask("/readyz", token=None)
            return answer.status == 503 and "receives no log from a master" in str(answer.json)

        wait_until(says_so, 30, "the slave is not ready")
    finally:
        os.kill(cluster.controller.pid, signal.SIGCONT)
    master.process.launch()
    wait_until(lambda: is_whole(cluster), 60, "both replicas are in the sync-state-set, and ready")


class Replica(NamedTuple):
    process: Broker
    http: Port


def by_role(cluster: HttpCluster) -> list[Replica]:
    """Master, slave."""
    both = map(Replica, cluster.brokers, cluster.brokers_http)
    return sorted(both, key=lambda each: each.http.get("/healthz")["role"] == "SLAVE")


def is_ready(port: Port) -> bool:
    try:
        return port.ask("/readyz", token=None).status == 200
    except OSError:
        return False


def is_whole(cluster: HttpCluster) -> bool:
    page = cluster.controller_http.ask("/metrics").body.decode()
    whole = re.search(r"^tandem_controller_in_sync_replicas\{.*\} 2", page, re.MULTILINE)
    return whole is not None and all(map(is_ready, cluster.brokers_http))


def is_ready_as(port: Port, role: str) -> bool:
    return is_ready(port) and port.get("/healthz")["role"] == role
