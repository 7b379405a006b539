"""The other shapes that the compose files have: one broker, another mode, addresses of the machine around it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockers import LOCAL_BASE, ROOT, Project, base_image, docker, until

from tandemmq.cluster.client import Admin

PATIENCE_S = 240  # the machine may have other work
NET = "172.29.89"
GATEWAY = f"{NET}.1"  # an address of the machine that containers of any network reach


@contextlib.contextmanager
def up(
    compose: list[str], members: int, *files: str, env: dict[str, str] | None = None
) -> Iterator[Project]:
    """These files, every container healthy; nothing is left afterwards."""
    project = Project(f"tandem-shape-{os.getpid()}", files, compose, env or {})
    try:
        project.compose("up", "-d")
        until(lambda: project.healthy(members), PATIENCE_S, "every container is healthy")
        yield project
    finally:
        project.compose("kill")  # how they stop is looked at elsewhere
        project.compose("down", "-v")


def tandem(*words: str) -> str:
    """What `tandem` printed on the host."""
    return subprocess.run(
        [sys.executable, "-m", "tandemmq", *words],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


def inside(network: str, *words: str) -> str:
    """And in a container of its own."""
    return docker("run", "--rm", "--network", network, "tandemmq:test", *words)


def test_a_single_broker_serves_host_and_containers(image: str, compose: list[str]) -> None:
    with up(compose, 2, "compose.single.yaml") as project:
        at = ("-n", "127.0.0.1:9876")
        assert "SEND_OK" in tandem("send", "Single", "from the host", *at)
        sent = inside(
            f"{project.name}_tandem", "send", "Single", "from inside", "-n", "namesrv:9876"
        )
        assert "SEND_OK" in sent
        shown = tandem("tail", "Single", "--from", "first", "--until-end", *at)
        assert ("from the host" in shown, "from inside" in shown) == (True, True)
        assert "broker-a" in tandem("admin", "clusterList", *at)


async def _modes(name_server: str) -> list[str]:
    async with Admin(namesrv=name_server) as admin:
        addresses = [at for ids in (await admin.brokers()).values() for at in ids.values()]
        return [(await admin.broker_status(at))["replicaMode"] for at in addresses]


def test_brokers_of_the_other_mode_tell_an_address_of_the_machine_where_they_are_given_one(
    image: str, compose: list[str]
) -> None:
    """The mode is an override. Every way in is a published port with such an address: from the host, and from a
    container on another network."""
    env = {"TANDEM_NET": NET, "TANDEM_HOST": GATEWAY, "TANDEM_PUBLISH": GATEWAY}
    with up(compose, 6, "compose.yaml", "compose.async.yaml", env=env) as project:
        assert asyncio.run(_modes(f"{GATEWAY}:9876")) == ["A0"] * 4
        at = ("-n", f"{GATEWAY}:9876;{GATEWAY}:9886")
        shown = tandem("admin", "clusterList", *at)
        assert shown.count(f"{GATEWAY}:") == 4
        assert "SEND_OK" in tandem("send", "Around", "from the host", *at)
        for network in ("bridge", f"{project.name}_tandem"):
            assert "SEND_OK" in inside(network, "send", "Around", f"from {network}", *at)


def test_masters_without_slaves_take_messages_side_by_side(image: str, compose: list[str]) -> None:
    with up(compose, 3, "compose.noslave.yaml"):
        at = ("-n", "127.0.0.1:9876")
        tandem("admin", "updateTopic", "-c", "DefaultCluster", "-t", "Beside", *at)
        for number in range(8):
            assert "SEND_OK" in tandem("send", "Beside", str(number), "-n", "127.0.0.1:9876")
        shown = tandem("admin", "topicStatus", "-t", "Beside", "--json", "-n", "127.0.0.1:9876")
        assert "broker-a" in shown and "broker-b" in shown


def test_who_shows_no_key_or_trusts_nobody_is_not_heard_by_the_secured_cluster(
    image: str, compose: list[str], tmp_path: Path
) -> None:
    secure = tmp_path / "secure"
    subprocess.run([str(ROOT / "deploy/secure.sh"), str(secure)], check=True, capture_output=True)
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)  # pytest's directories are for its user alone
    at = ("-n", "127.0.0.1:9876")
    trusting = ("--ca", str(secure / "ca.pem"))
    with_key = (*trusting, "--credentials", str(secure / "tools.yml"), *at)
    with up(compose, 6, "compose.yaml", "compose.secure.yaml", env={"TANDEM_SECURE": str(secure)}):
        assert "SEND_OK" in tandem("send", "Secret", "17", *with_key)
        assert "17" in tandem("tail", "Secret", "--from", "first", "--until-end", *with_key)
        for words in (at, (*trusting, *at)):
            with pytest.raises(subprocess.CalledProcessError):
                tandem("send", "Secret", "18", *words)


def test_one_controller_takes_over_from_the_other_where_their_records_are_in_etcd(
    image: str, compose: list[str]
) -> None:
    env = {"ETCD_IMAGE": etcd_image()}
    with up(compose, 7, "compose.yaml", "compose.etcd.yaml", env=env) as project:
        at = ("-n", "127.0.0.1:9886")  # the one that stays
        docker("kill", "-s", "KILL", project.container("namesrv-a"))
        docker("kill", "-s", "KILL", project.container("broker-a-0"))
        docker("kill", "-s", "KILL", project.container("broker-b-0"))
        until(
            lambda: masters_of_all(at) == {"broker-a", "broker-b"}, PATIENCE_S, "both are led again"
        )
        for number in range(4):
            assert "SEND_OK" in tandem("send", "Etcd", str(number), *at)


def masters_of_all(at: tuple[str, ...]) -> set[str]:
    shown = json.loads(tandem("admin", "clusterList", "--json", *at))
    return {each["broker"] for each in shown if str(each["broker_id"]) == "0"}


def etcd_image() -> str:
    """This machine's etcd on the image's base, where no registry answers."""
    if base_image() != LOCAL_BASE:
        return "quay.io/coreos/etcd:v3.5.17"
    found = [shutil.which(name) for name in ("etcd", "etcdctl")]
    if None in found:
        pytest.skip("needs etcd and etcdctl: apt-get install etcd-server etcd-client")
    with tempfile.TemporaryDirectory() as where:
        for each in found:
            shutil.copy(str(each), where)
        Path(where, "Dockerfile").write_text(
            f"FROM {LOCAL_BASE}\nCOPY etcd etcdctl /usr/local/bin/\n"
            'RUN ["python3", "-c", "import os; os.mkdir(\'/data\'); os.chown(\'/data\', 10001, 10001)"]\n'
        )
        docker("build", "-q", "-t", "tandemmq-etcd:test", where)
    return "tandemmq-etcd:test"
