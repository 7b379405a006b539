"""Our name server and broker as processes: settings in a file, on free ports, ready when they answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tandemmq.chaos.asking import answers, registered
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess

REPOSITORY: Final = Path(__file__).resolve().parents[1]

# Small files, so that they roll in tests; the settings of the golden stores.
SMALL_FILES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 800,
    "maxHashSlotNum": 500,
    "maxIndexNum": 400,
}


def python_command(*arguments: str) -> list[str]:
    """Our command line in this interpreter."""
    return [sys.executable, "-X", "faulthandler", "-m", "tandemmq", *arguments]


def python_env() -> dict[str, str]:
    """Environment in which this repository's packages are found from any directory."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """A Java properties file of `settings`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def broker_settings(
    store: Path, port: int, name: str, cluster: str, settings: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Settings that our broker and a Java broker both read."""
    return {
        "brokerClusterName": cluster, "brokerName": name, "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "brokerIP1": LOOPBACK, "listenPort": port, "haListenPort": port + 1,
        "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
        "flushDiskType": "ASYNC_FLUSH", "autoCreateTopicEnable": "true", "defaultTopicQueueNums": 4,
        "deleteWhen": "04", "fileReservedTime": 87600,
        **SMALL_FILES, **(settings or {}),
    }  # fmt: skip


class NameServer(ServerProcess):
    """A name server, ours unless the command is exchanged."""

    READY_S = 15

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.port = PORTS.take((0,))
        self.address = f"{LOOPBACK}:{self.port}"
        self.file = write_settings(
            directory / "namesrv.conf",
            {
                "bindAddress": LOOPBACK,
                "listenPort": self.port,
                "kvConfigPath": directory / "kvConfig.json",
                **(settings or {}),
            },
        )
        command = python_command("nameserver", "-c", str(self.file), "-p", str(self.port))
        super().__init__("name server", command, directory / "namesrv.log", python_env())

    def start(self) -> Self:
        """Returns when it answers."""
        self.launch()
        self.wait_ready(lambda: answers(self.address), self.READY_S)
        return self


class Broker(ServerProcess):
    """A broker, ours unless the command is exchanged; `store` survives stop, kill and start.

    name_servers  addresses with ";" between them; "" for a broker that registers nowhere
    """

    READY_S = 20
    STOP_S = 10

    def __init__(
        self,
        directory: Path,
        name_servers: str,
        *,
        name: str = "broker-a",
        cluster: str = "TestCluster",
        store: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port or PORTS.take()
        self.address = f"{LOOPBACK}:{self.port}"
        self.broker_name = name
        self.broker_id = max(0, int(str((settings or {}).get("brokerId", 0))))
        self.cluster = cluster
        self.name_servers = name_servers
        self.store = store or directory / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.settings = broker_settings(self.store, self.port, name, cluster, settings)
        file = write_settings(directory / f"{name}.conf", self.settings)
        self.arguments = ["-c", str(file), *(["-n", name_servers] if name_servers else [])]
        command = python_command("broker", *self.arguments)
        super().__init__(name, command, directory / f"{name}.log", {**python_env(), **(env or {})})

    def start(self) -> Self:
        """Returns when the broker answers and every name server knows it."""
        self.launch()
        self.wait_ready(self.ready, self.READY_S)
        return self

    def ready(self) -> bool:
        return answers(self.address) and all(
            registered(name_server, self.broker_name, self.broker_id)
            for name_server in filter(None, self.name_servers.split(";"))
        )

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self.terminate(self.STOP_S)
