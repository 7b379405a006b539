"""A cluster in a container, for testcontainers: `pip install 'tandemmq[testcontainers]'`.

    with TandemContainer() as container:
        Producer("shop", namesrv=container.namesrv)

No client is needed here: whatever speaks to RocketMQ may use it. In Python tests that need no container
tandemmq.testing.TandemCluster is there in a second.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from docker.errors import APIError, NotFound
from testcontainers.core.container import DockerContainer

IMAGE: Final = "tandemmq"  # what `docker build -f deploy/Dockerfile -t tandemmq .` makes
PORTS: Final = range(20_000, 32_000)  # of the host; below Linux's ephemeral ones
TRIES: Final = 10
READY_S: Final = 120.0
LOOK_S: Final = 0.1
DIRECTORY: Final = "/data/cluster"
LOOPBACK: Final = "127.0.0.1"
BROKER_STEP: Final = 10
_TAKEN: Final = ("port is already allocated", "address already in use")


class ContainerFailed(Exception):
    """The cluster in the container did not get ready. The text holds the end of its log."""


class TandemContainer(DockerContainer):
    """Name server and broker in one container; with replicas=2 a master and a slave with a controller.

    image     built from deploy/Dockerfile, or where your registry has it
    replicas  1 or 2
    settings  of the brokers, by broker.conf's keys
    host      what clients reach the container by; default: where its docker daemon runs. The brokers tell clients that
              address and the same port as inside, so ports are chosen before the start and published under their own
              number. For clients in other containers: the alias of this one in their network
    options   those of testcontainers' DockerContainer

    Example:
        with TandemContainer() as container:
            run_my_service(NAMESRV_ADDR=container.namesrv)
    """

    def __init__(
        self,
        image: str = IMAGE,
        *,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        host: str | None = None,
        **options: Any,
    ) -> None:
        if replicas not in (1, 2):
            raise ValueError(f"replicas must be 1 or 2, got {replicas}")
        super().__init__(image, **options)
        self.replicas = replicas
        self.settings = dict(settings or {})
        self._host = host
        self._port = 0

    @property
    def host(self) -> str:
        """What clients reach it by."""
        if self._host is None:
            named = self.get_docker_client().host()
            self._host = (
                LOOPBACK if named == "localhost" else named
            )  # never IPv6: docker may publish IPv4 alone
        return self._host

    @property
    def namesrv(self) -> str:
        """What clients are given. Raises ContainerFailed before the start."""
        if not self._port:
            raise ContainerFailed("the container was not started: use it with `with`")
        return f"{self.host}:{self._port}"

    def start(self) -> Self:
        """Returns when name server and brokers serve, and are reached from here. Raises ContainerFailed, APIError."""
        for attempt in range(1, TRIES + 1):
            self._choose_ports()
            try:
                super().start()
                break
            except APIError as problem:  # somebody was faster
                self._discard()
                if attempt == TRIES or not any(each in str(problem) for each in _TAKEN):
                    raise
        try:
            self._wait()
        except BaseException:
            self._discard()
            raise
        return self

    def create_topic(self, topic: str, queue_count: int = 4) -> str:
        """Make a topic; its name. Raises ContainerFailed."""
        self._tandem(
            "admin", "updateTopic", "-n", f"{LOOPBACK}:{self._port}", "-c", "TandemCluster", "-t", topic,
            "-r", str(queue_count), "-w", str(queue_count),
        )  # fmt: skip
        return topic

    def kill(self, name: str) -> None:
        """kill -9 one process: namesrv, broker-a; with replicas broker-a-0, broker-a-1. Raises ContainerFailed."""
        self._tandem("local", "kill", name, "--dir", DIRECTORY)

    def restart(self, name: str) -> None:
        """Start one again that was killed; returns when it takes part. Raises ContainerFailed."""
        self._tandem("local", "start", name, "--dir", DIRECTORY)

    def _tandem(self, *words: str) -> str:
        code, output = self.exec(["tandem", *words])
        said: str = output.decode(errors="replace")
        if code:
            raise ContainerFailed(f"tandem {' '.join(words)}: {code}\n{said}")
        return said

    def _choose_ports(self) -> None:
        """The same inside and outside: a broker tells its clients one number."""
        self._port = _free_port(5 if self.replicas == 2 else 3)
        first = self._port + BROKER_STEP
        self.ports = {}
        for port in (self._port, *(first + BROKER_STEP * n for n in range(self.replicas))):
            self.with_bind_ports(port, port)
        words = [
            "local", "run", "--dir", DIRECTORY, "--host", self.host,
            "--namesrv-port", str(self._port), "--broker-port", str(first),
            *(["--mode", "sync"] if self.replicas == 2 else []),
            *(word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")),
        ]  # fmt: skip
        self._command = words
        self._kwargs.setdefault(
            "healthcheck", {"test": ["NONE"]}
        )  # the image's asks the usual ports

    def _discard(self) -> None:
        if self._container is not None:
            with suppress(NotFound):
                self._container.remove(force=True, v=True)
            self._container = None

    def _wait(self) -> None:
        deadline_s = time.monotonic() + READY_S
        container = self.get_wrapped_container()
        while b"ready: name server" not in container.logs():
            container.reload()
            if container.status in ("exited", "dead"):
                raise ContainerFailed(f"the cluster ended:\n{_end_of(container.logs())}")
            self._check(deadline_s, container.logs())
            time.sleep(LOOK_S)
        for port in map(int, self.ports):
            while not _answers(self.host, port):
                self._check(deadline_s, container.logs(), f"; {self.host}:{port} is not reached")
                time.sleep(LOOK_S)

    def _check(self, deadline_s: float, said: bytes, what: str = "") -> None:
        if time.monotonic() > deadline_s:
            raise ContainerFailed(f"not ready within {READY_S:g} s{what}:\n{_end_of(said)}")


def _end_of(log: bytes) -> str:
    return log.decode(errors="replace")[-6000:]


def _answers(host: str, port: int) -> bool:
    """Whether a server is behind the port, and not only docker's proxy, which closes again at once."""
    try:
        with socket.create_connection((host, port), 2.0) as probe:
            probe.settimeout(0.05)
            try:
                return bool(probe.recv(1))
            except TimeoutError:
                return True
    except OSError:
        return False


def _free_port(rooms: int) -> int:
    """A port of the host with as many free ones behind it, ten apart, as far as this machine can tell."""
    for _ in range(200):
        first = random.SystemRandom().randrange(
            PORTS.start, PORTS.stop - rooms * BROKER_STEP, BROKER_STEP
        )
        if all(_can_bind(first + BROKER_STEP * n) for n in range(rooms)):
            return first
    raise ContainerFailed(f"no free ports on this machine in {PORTS.start}..{PORTS.stop}")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
