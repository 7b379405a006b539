"""A name server, a controller and a group of two replicas as processes that take and speak nothing but TLS."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from certificates import Authority, Signed
from controller_processes import Controller

from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess
from tandemmq.chaos.servers import Broker, NameServer

TOKEN = "token-of-the-test-0123"
GROUP = "broker-a"


def tls_settings(authority: Authority, signed: Signed, client_auth: str) -> dict[str, object]:
    """What a process of the cluster is given: it checks whoever it connects to, and who connects."""
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": signed.certificate,
        "tls.server.keyPath": signed.key,
        "tls.server.trustCertPath": authority.certificate,
        "tls.server.need.client.auth": client_auth,
        "tls.test.mode.enable": "false",
    }


@dataclass
class TlsCluster:
    """The processes, and how a client reaches them."""

    authority: Authority
    names: NameServer
    controller: Controller
    brokers: list[Broker]
    http_ports: list[int]
    client: Signed
    token_file: Path

    @property
    def remoting_ports(self) -> dict[str, int]:
        """Every port that speaks the remoting protocol, by what it is."""
        found = {"name server": self.names.port, "controller": self.controller.port}
        for number, broker in enumerate(self.brokers):
            found[f"replica {number}"] = broker.port
            found[f"fast port of replica {number}"] = broker.port - 2
        return found

    @property
    def ha_ports(self) -> list[int]:
        return [broker.port + 1 for broker in self.brokers]

    @property
    def ports(self) -> set[int]:
        return {*self.remoting_ports.values(), *self.ha_ports, *self.http_ports}

    def context(self, *, shown: bool = True) -> ssl.SSLContext:
        """Of a client that checks servers, and shows its certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if shown:
            context.load_cert_chain(self.client.certificate, self.client.key)
        return context

    @property
    def options(self) -> list[str]:
        """The same for a command."""
        return [
            "-n", self.names.address, "--ca", str(self.authority.certificate),
            "--cert", str(self.client.certificate), "--cert-key", str(self.client.key),
        ]  # fmt: skip


def make_cluster(
    root: Path,
    *,
    client_auth: str = "require",
    settings: Mapping[str, object] | None = None,
) -> TlsCluster:
    """Nobody runs yet; each has a certificate of its own. settings: of every process besides."""
    authority = Authority(root / "tls")
    more = dict(settings or {})
    given = {
        name: {**tls_settings(authority, authority.sign(name, LOOPBACK), client_auth), **more}
        for name in ("names", "controller", "replica-0", "replica-1")
    }
    names = NameServer(root / "names", given["names"])
    controller = Controller(root / "controller", settings=given["controller"])
    http_ports = [PORTS.take((0,)), PORTS.take((0,))]
    replicated = {
        "brokerId": -1,
        "brokerRole": "SYNC_MASTER",
        "enableControllerMode": "true",
        "controllerAddr": controller.address,
        "httpToken": TOKEN,
    }
    brokers = [
        Broker(
            root / name,
            names.address,
            name=GROUP,
            settings={**replicated, "httpPort": http_port, **given[name]},
        )
        for name, http_port in zip(("replica-0", "replica-1"), http_ports, strict=True)
    ]
    token_file = root / "token"
    token_file.write_text(TOKEN)
    client = authority.sign("client")
    return TlsCluster(authority, names, controller, brokers, http_ports, client, token_file)


@contextmanager
def running(cluster: TlsCluster) -> Iterator[TlsCluster]:
    """Everybody serves while the body runs."""
    with ExitStack() as stack:
        for process in (cluster.names, cluster.controller, *cluster.brokers):
            stack.enter_context(process)
            start(process)
        yield cluster


def start(process: ServerProcess) -> None:
    """Returns when it says that it serves: the tools that ask it speak no TLS."""
    process.launch()
    process.wait_ready(lambda: "boot success" in process.output(), 20)


def listening(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
