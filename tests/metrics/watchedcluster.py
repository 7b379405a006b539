"""What Prometheus watches in these tests: `tandem local`, two groups of a master and a slave, with traffic."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from command_line import Done, run
from watched import Files, Prometheus, Traffic

from tandemmq.chaos.ports import BROKER_OFFSETS, LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker
from tandemmq.cluster.config import read_properties
from tandemmq.local import processes
from tandemmq.local.layout import Layout, open_layout

TOPIC: Final = "Watched"


class LocalCluster:
    """Everything that runs is ended with the stack."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.files = Files(directory / "textfile")
        self.others: list[str] = []  # HTTP ports of processes beside the local cluster

    @property
    def layout(self) -> Layout:
        return open_layout(self.directory / "local")

    @property
    def namesrv(self) -> str:
        return self.layout.name_server.address

    @property
    def token_file(self) -> Path:
        return self.layout.token_file

    def start(self) -> None:
        self.stack.callback(self.local, "down", "--kill")
        self.ok("up", "--mode", "sync")
        self.stack.enter_context(self.files).launch()
        self.make_topic(TOPIC)
        self.producer = self.traffic("producer", "send", self.namesrv, TOPIC)
        self.consumer = self.traffic("consumer", "consume", self.namesrv, TOPIC, "watchers")
        wait_until(lambda: "consuming" in self.consumer.said(), 60, "somebody consumes")
        assert self.audit() == 0

    def traffic(self, name: str, *arguments: str) -> Traffic:
        found = self.stack.enter_context(Traffic(self.directory, name, *arguments))
        found.launch()
        return found

    def targets(self) -> list[str]:
        """HTTP ports of all processes."""
        ports = [read_properties(path).get("httpPort") for path in self._settings()]
        assert all(ports), ports
        return [*(f"{LOOPBACK}:{port}" for port in ports), *self.others]

    def target(self, name: str) -> str:
        return f"{LOOPBACK}:{read_properties(self._setting(name))['httpPort']}"

    def _settings(self) -> list[Path]:
        return [self.layout.config_file(each) for each in self.layout.members]

    def _setting(self, name: str) -> Path:
        return self.layout.config_file(self.layout.member(name))

    # --- commands ---

    def local(self, action: str, *more: object) -> Done:
        return run("local", action, "--dir", self.directory / "local", *more)

    def ok(self, action: str, *more: object) -> Any:
        """The JSON of a `tandem local` command that must succeed."""
        done = self.local(action, *more, "--json")
        assert done.code == 0, (action, more, done.err, done.out)
        return json.loads(done.out)

    def admin(self, *words: object) -> Done:
        done = run("admin", *words, "-n", self.namesrv)
        assert done.code == 0, (words, done.err, done.out)
        return done

    def make_topic(self, topic: str, *where: object) -> None:
        """In the whole local cluster, or where it is said."""
        self.admin(
            "updateTopic", *(where or ("-c", "TandemCluster")), "-t", topic, "-r", 4, "-w", 4
        )

    def launch(self, name: str) -> None:
        """Start a process that will not become ready, or not soon."""
        processes.start(self.layout, [self.layout.member(name)])

    def replicas(self, group: str) -> tuple[str, str]:
        """(master, slave) of a group, by the names of their processes."""
        members = self.local("status", "--json").json["members"]
        mine = [each for each in members if each["name"].startswith(group)]
        roles = {str(each["role"]): each["name"] for each in mine}
        (slave,) = (name for role, name in roles.items() if "SLAVE" in role.upper())
        (master,) = (name for name in roles.values() if name != slave)
        return master, slave

    def audit(self, token_file: Path | None = None) -> int:
        """Compare all replicas, and show what came of it; the exit code."""
        done = run(
            "audit", "run", "--namesrv", self.namesrv, "--token-file", token_file or self.token_file,
            "--metrics", self.files.file,
        )  # fmt: skip
        return done.code

    def fill(self, broker: Broker, count: int) -> None:
        """Messages that only this broker has."""
        topic = f"Of{broker.broker_name}"
        self.make_topic(topic, "-b", broker.address)
        lines = "".join(f"{broker.broker_name} {number}\n" for number in range(count))
        done = run("send", topic, "-n", self.namesrv, stdin=lines.encode())
        assert done.code == 0, (done.err, done.out)

    def log_of(self, name: str) -> Path:
        """The first file of a broker's CommitLog."""
        store = self.layout.store(self.layout.member(name))
        return min((store / "commitlog").iterdir())

    def broker_beside(
        self, name: str, prometheus: Prometheus, store: Path | None = None, **settings: object
    ) -> Broker:
        """A classic broker of a cluster of its own, in the same name server, and watched. Not started."""
        port = PORTS.take((*BROKER_OFFSETS, 2))
        broker = Broker(
            self.directory / f"{name}-{port}", self.namesrv, name=name, cluster=name, port=port, store=store,
            settings={"httpPort": port + 2, "httpTokenFile": self.token_file, **settings},
        )  # fmt: skip
        self.others.append(f"{LOOPBACK}:{port + 2}")
        prometheus.watch("tandem", self.targets())
        return self.stack.enter_context(broker)

    def forget(self, broker: Broker, prometheus: Prometheus) -> None:
        """It is gone for good: nobody asks it any more."""
        broker.abandon()
        self.others.remove(f"{LOOPBACK}:{broker.port + 2}")
        prometheus.watch("tandem", self.targets())
