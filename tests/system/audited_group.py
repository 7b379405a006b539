"""A master and its slave whose HTTP ports are open, and audits of them by name server."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from command_line import Done, run
from raw_wire import SEND, Wire, json_frame, send_ext

from tandemmq.chaos.asking import ask
from tandemmq.chaos.ports import BROKER_OFFSETS, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

TOKEN = "a-token-of-some-length"
TOPICS = ("Orders", "Payments", "Returns")
GET_BROKER_HA_STATUS = 907


class HttpBroker(Broker):
    """A broker with an HTTP port; keeps a token file beside its settings."""

    def __init__(
        self, directory: Path, name_servers: str, *, settings: Mapping[str, object], **more: Any
    ) -> None:
        port = PORTS.take((*BROKER_OFFSETS, 2))
        self.http_port = port + 2
        directory.mkdir(parents=True, exist_ok=True)
        self.token_file = directory / "http.token"
        self.token_file.write_text(TOKEN + "\n", encoding="ascii")
        http_settings = {"httpPort": self.http_port, "httpTokenFile": self.token_file}
        super().__init__(
            directory, name_servers, port=port, settings={**http_settings, **settings}, **more
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def get(
        self, path: str, *, token: str | None = TOKEN, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) on a connection of its own. Header names: _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        try:
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> dict[str, Any]:
        status, _, body = self.get(path)
        assert status == 200, (status, body)
        found: dict[str, Any] = json.loads(body)
        return found


class AuditedGroup:
    """One master, one slave, one name server."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.names = NameServer(root)
        master = {"brokerRole": "ASYNC_MASTER", **settings}
        slave = {**settings, "brokerRole": "SLAVE", "brokerId": 1}
        self.master = HttpBroker(root / "master", self.names.address, settings=master)
        self.slave = HttpBroker(root / "slave", self.names.address, settings=slave)

    def start(self, stack: ExitStack) -> None:
        for process in (self.names, self.master, self.slave):
            stack.enter_context(process)
            process.start()

    def fill(self, count: int, seed: int = 1) -> None:
        """Messages of several topics, sizes and keys."""
        rng = random.Random(seed)
        with Wire(self.master.address) as wire:
            for number in range(count):
                properties = (
                    f"UNIQ_KEY\x01{rng.getrandbits(128):032X}\x02KEYS\x01k{number % 50}\x02"
                )
                ext = send_ext(rng.choice(TOPICS), properties=properties)
                body = rng.randbytes(rng.randrange(1, 3000))
                assert wire.request(json_frame(SEND, ext, body, opaque=number)).code == 0

    def caught_up(self) -> bool:
        code, _, body = ask(self.master.address, GET_BROKER_HA_STATUS)
        slaves = json.loads(body)["haConnectionInfo"] if code == 0 else []
        return len(slaves) == 1 and slaves[0]["diff"] == 0 and slaves[0]["slaveAckOffset"] >= 0

    def wait_caught_up(self) -> None:
        wait_until(self.caught_up, 20, "the slave has everything")

    def audit(self, *words: object, action: str = "run") -> Done:
        return run(
            "audit", action, "--namesrv", self.names.address,
            "--token-file", self.master.token_file, *words,
        )  # fmt: skip


@contextmanager
def audited_group(root: Path, **settings: object) -> Iterator[AuditedGroup]:
    with ExitStack() as stack:
        group = AuditedGroup(root, **settings)
        group.start(stack)
        yield group
