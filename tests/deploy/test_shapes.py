"""The other shapes that the compose files have: one broker, another mode, addresses of the machine around it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from dockers import Project, docker, until

from tandemmq.cluster.client import Admin

HEALTHY_S = 60
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
        until(lambda: project.healthy(members), HEALTHY_S, "every container is healthy")
        yield project
    finally:
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


def test_the_other_mode_is_an_override(image: str, compose: list[str]) -> None:
    with up(compose, 6, "compose.yaml", "compose.async.yaml"):
        assert asyncio.run(_modes("127.0.0.1:9876")) == ["A0"] * 4


async def _modes(name_server: str) -> list[str]:
    async with Admin(namesrv=name_server) as admin:
        addresses = [at for ids in (await admin.brokers()).values() for at in ids.values()]
        return [(await admin.broker_status(at))["replicaMode"] for at in addresses]


def test_brokers_tell_an_address_of_the_machine_where_they_are_given_one(
    image: str, compose: list[str]
) -> None:
    """Every way in is a published port then: from the host, and from a container on another network."""
    env = {"TANDEM_NET": NET, "TANDEM_HOST": GATEWAY, "TANDEM_PUBLISH": GATEWAY}
    with up(compose, 6, "compose.yaml", env=env) as project:
        at = ("-n", f"{GATEWAY}:9876;{GATEWAY}:9886")
        shown = tandem("admin", "clusterList", *at)
        assert shown.count(f"{GATEWAY}:") == 4
        assert "SEND_OK" in tandem("send", "Around", "from the host", *at)
        for network in ("bridge", f"{project.name}_tandem"):
            assert "SEND_OK" in inside(network, "send", "Around", f"from {network}", *at)
