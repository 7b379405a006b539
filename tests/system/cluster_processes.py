"""Our name server and broker as real processes: free ports, ready when they answer, logs kept."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tandemmq.chaos.ports import BROKER_OFFSETS, LOOPBACK, Ports

REPOSITORY = Path(__file__).resolve().parents[2]
# Below the ephemeral range of Linux (32768): no outgoing connection takes a port first. What runs at the
# same time has ranges of its own: two that look at once find the same port free.
PORTS = Ports(range(*map(int, os.environ.get("TANDEM_TEST_PORTS", "20000-28000").split("-"))))

GET_ROUTE = 105
GET_CLUSTER = 106
TOPIC_NOT_EXIST = 17


class ProcessFailed(AssertionError):
    """A server did not become ready, ended by itself or did not stop; carries the end of its log."""


def wait_until(
    holds: Callable[[], object], timeout_s: float, what: str, *, every_s: float = 0.03
) -> None:
    """Looks until `holds()` is true; after `timeout_s` raises AssertionError naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def free_port(offsets: Iterable[int] = (0,)) -> int:
    """A port of which all `port + offset` can be bound on loopback now, and nobody took lately."""
    return PORTS.take(offsets)


def free_broker_port() -> int:
    """A listen port whose fast port (-2) and replication port (+1) are free too."""
    return PORTS.take(BROKER_OFFSETS)


def ask(
    address: str, code: int, ext: Mapping[str, str] | None = None, timeout_s: float = 3
) -> tuple[int, dict[str, Any], bytes]:
    """One request with a JSON header on a connection of its own: (response code, header, body).

    Deliberately not built on our own remoting code: what it finds is evidence about it.
    """
    host, _, port = address.rpartition(":")
    header = {
        "code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0,
        "extFields": dict(ext or {}), "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    text = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=timeout_s) as sock:
        sock.sendall((len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
        total = int.from_bytes(_receive(sock, 4), "big")
        frame = _receive(sock, total)
    length = int.from_bytes(frame[1:4], "big")
    answer = json.loads(frame[4 : 4 + length])
    return answer["code"], answer, frame[4 + length :]


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += chunk
    return data


def answers(address: str) -> bool:
    """Whether a remoting server speaks at `address`: any answer will do."""
    try:
        ask(address, GET_CLUSTER, timeout_s=1)
    except (OSError, ValueError):
        return False
    return True


def registered(name_server: str, broker_name: str, broker_id: int = 0) -> bool:
    """Whether the name server shows this member of the broker group."""
    try:
        code, _, body = ask(name_server, GET_CLUSTER, timeout_s=1)
    except (OSError, ValueError):
        return False
    return code == 0 and str(broker_id) in _members(body, broker_name)


def registered_at(name_server: str, broker_name: str, broker_id: int = 0) -> str:
    """host:port that this member of the broker group told the name server. KeyError when it told none."""
    return _members(ask(name_server, GET_CLUSTER)[2], broker_name)[str(broker_id)]


def _members(body: bytes, broker_name: str) -> dict[str, str]:
    """id -> address. Stock name servers do not quote numbers that are keys."""
    found = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    members: dict[str, str] = found["brokerAddrTable"].get(broker_name, {}).get("brokerAddrs", {})
    return members


def routed(name_server: str, topic: str) -> bool:
    """Whether the name server has a route for `topic`."""
    return ask(name_server, GET_ROUTE, {"topic": topic})[0] == 0


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """A Java properties file of `settings`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


class ServerProcess:
    """One server process whose output goes to a log file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def launch(self) -> None:
        """Starts the process; does not wait until it is ready."""
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(self.command)[-600:]}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=self.log.parent, env={**os.environ, **self.env}, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self, ready: Callable[[], object], timeout_s: float) -> None:
        """Waits for `ready()`; a process that ends first is an error that shows its log."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive:
                raise ProcessFailed(f"{self.name} ended by itself ({self.code}):\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} not ready in {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.03)

    @property
    def code(self) -> int | None:
        """Exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def terminate(self, timeout_s: float = 10) -> int:
        """SIGTERM, then waits; a process that does not end in time is killed and reported."""
        assert self._process is not None, f"{self.name} was never started"
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ProcessFailed(
                f"{self.name} did not stop in {timeout_s:g} s after SIGTERM:\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        """kill -9, then waits until the process is gone."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()

    def tail(self, characters: int = 6000) -> str:
        """The end of the log."""
        return self.output()[-characters:]

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.kill()


def python_command(*arguments: str) -> list[str]:
    """Our command line in this interpreter."""
    return [sys.executable, "-X", "faulthandler", "-m", "tandemmq", *arguments]


def python_env() -> dict[str, str]:
    """Environment in which this repository's packages are found from any directory."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


class NameServer(ServerProcess):
    """Our name server."""

    READY_S = 15

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.port = free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        path = write_settings(
            directory / "namesrv.conf",
            {
                "bindAddress": LOOPBACK,
                "listenPort": self.port,
                "kvConfigPath": directory / "kvConfig.json",
                **(settings or {}),
            },
        )
        super().__init__(
            "name server",
            python_command("nameserver", "-c", str(path), "-p", str(self.port)),
            directory / "namesrv.log",
            python_env(),
        )

    def start(self) -> Self:
        self.launch()
        self.wait_ready(lambda: answers(self.address), self.READY_S)
        return self


# Small files, so that they roll in tests; the settings of the golden stores.
SMALL_FILES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 800,
    "maxHashSlotNum": 500,
    "maxIndexNum": 400,
}


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


class Broker(ServerProcess):
    """Our broker; `store` survives stop, kill and start."""

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
        self.port = port or free_broker_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.broker_name = name
        self.broker_id = max(0, int(str((settings or {}).get("brokerId", 0))))
        self.cluster = cluster
        self.name_servers = name_servers
        self.store = store or directory / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.settings = broker_settings(self.store, self.port, name, cluster, settings)
        path = write_settings(directory / f"{name}.conf", self.settings)
        command = python_command("broker", "-c", str(path))
        if name_servers:
            command += ["-n", name_servers]
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
        return self.terminate(self.STOP_S)
