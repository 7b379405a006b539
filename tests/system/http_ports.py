"""A cluster whose processes all have an HTTP port, and requests to those: plain, or as a stranger would send them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller_processes import Controller

from tandemmq.chaos.ports import BROKER_OFFSETS, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

TOKEN = "a-token-of-some-length"
WAIT_S = 60


@dataclass(frozen=True)
class Answer:
    """What a port answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Port:
    """One HTTP port on loopback."""

    port: int

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = TOKEN, body: bytes | None = None,
        host: str | None = None, headers: Mapping[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """One request on a connection of its own."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if host is not None:
            sent["Host"] = host
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Any:
        """The JSON of an answer that is 200."""
        answer = self.ask(path, **more)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return answer.json

    def wait_ready(self) -> None:
        def why() -> object:
            answer = self.ask("/readyz", token=None)
            return answer.status == 200

        wait_until(why, WAIT_S, f"port {self.port} is ready")


@dataclass(frozen=True)
class HttpCluster:
    """A name server, a controller that is a process of its own, and a group of two replicas."""

    names: NameServer
    controller: Controller
    brokers: list[Broker]
    names_http: Port
    controller_http: Port
    brokers_http: list[Port]

    @property
    def ports(self) -> dict[str, Port]:
        return {
            "name server": self.names_http, "controller": self.controller_http, "broker": self.brokers_http[0],
        }  # fmt: skip


@contextmanager
def http_cluster(root: Path, settings: Mapping[str, object] | None = None) -> Iterator[HttpCluster]:
    """Runs while the body does; ready means /readyz of each."""
    token_file = root / "http.token"
    token_file.write_text(TOKEN + "\n", encoding="ascii")

    def http_settings(port: int) -> dict[str, object]:
        return {"httpPort": port, "httpTokenFile": token_file, **(settings or {})}

    ports = [PORTS.take((0,)), PORTS.take((0,))]
    names = NameServer(root, http_settings(ports[0]))
    controller = Controller(root, settings=http_settings(ports[1]))
    brokers = []
    for number in range(2):
        port = PORTS.take((*BROKER_OFFSETS, 2))
        ports.append(port + 2)
        brokers.append(
            Broker(
                root / f"replica-{number}",
                names.address,
                port=port,
                settings={
                    "enableControllerMode": "true",
                    "controllerAddr": controller.address,
                    "brokerRole": "SYNC_MASTER",
                    "brokerId": -1,
                    "registerNameServerPeriod": 10_000,
                    "mappedFileSizeCommitLog": 16 << 20,
                    **http_settings(port + 2),
                },
            )
        )
    with ExitStack() as stack:
        for process in (names, controller, *brokers):
            stack.enter_context(process)
            process.launch()
        found = [Port(each) for each in ports]
        wait_until(lambda: all(map(_answers, found)), WAIT_S, "all HTTP ports answer")
        for each in found:
            each.wait_ready()
        yield HttpCluster(names, controller, brokers, found[0], found[1], found[2:])


def _answers(port: Port) -> bool:
    try:
        return port.ask("/healthz", token=None).status == 200
    except OSError:
        return False
