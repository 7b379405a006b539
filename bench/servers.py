"""The measured processes: started on their cores, awaited until ready, checked and stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.accounting import listens, maps_file
from bench.build import HERE
from bench.wire import Line, RequestRefused
from tandemmq.chaos.ports import LOOPBACK, Ports
from tandemmq.chaos.processes import POLL_S, ProcessBroken, ServerProcess
from tandemmq.chaos.servers import write_settings
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.java import NEWEST, classpath

PORTS: Final = Ports(range(32_000, 32_760))  # above the others', below Linux's ephemeral range
STOP_TIMEOUT_S: Final = 30.0
ENDING_S: Final = 1.0  # from the end of the last thread to the end of the process
QUEUES: Final = 8
COMPILED: Final = tuple(
    sorted(
        source.stem
        for name in ("storage", "cluster/broker")
        for source in (HERE.parent / name).rglob("_*.pyx")
    )
)

_numbers = itertools.count(1)


class Server(ServerProcess):
    """A process with one listening port, on some cores; `stores` tells brokers from the echo server.

    port   0: the one that the process says, as the group of `ready`
    ready  regular expression of the line by which it says that it serves
    """

    stores = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        ready: str,
        *,
        cores: frozenset[int],
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 60.0,
    ) -> None:
        log = Path(tempfile.gettempdir()) / f"tandem-bench-{os.getpid()}-{next(_numbers)}.log"
        super().__init__(name, command, log, environment, cwd=HERE.parent)
        self.port = port
        self.cores = cores
        self._ready = re.compile(ready)
        self._ready_timeout_s = ready_timeout_s
        self.started_ns = 0

    def launch(self) -> None:
        """Start the process on its cores; returns without waiting."""
        self.started_ns = time.monotonic_ns()
        own_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)  # the child inherits them
        try:
            super().launch()
        finally:
            os.sched_setaffinity(0, own_cores)

    @property
    def shown_command(self) -> str:
        """The command line, as one would type it in the repository."""
        root = str(HERE.parent) + "/"
        parts = [part.replace(root, "") for part in self.command]
        if "-cp" in parts:
            parts[parts.index("-cp") + 1] = "CLASSPATH"
        shown = [f"{name}={value}" for name, value in self.env.items() if value]
        return " ".join([*shown, shlex.join(parts)])

    def start(self) -> None:
        """Launch it; returns once the process itself said that it is ready and listens on its port."""
        self.launch()
        self.get_ready()

    def get_ready(self) -> None:
        """The second half of start()."""
        self.wait_ready(self._said_ready, self._ready_timeout_s)
        self.check_alive()

    def _said_ready(self) -> bool:
        found = self._ready.search(self.said())
        if found and found.groups() and not self.port:
            self.port = int(found[1])
        return found is not None

    def check_alive(self) -> None:
        """Raise ProcessBroken unless this process runs and is the one that listens on the port."""
        if listens(self.pid, self.port):
            return
        ending_ns = time.monotonic_ns() + int(ENDING_S * 1e9)
        while self.alive and time.monotonic_ns() < ending_ns:
            time.sleep(POLL_S)  # one that is about to end says more by its end
        if not self.alive:
            raise self.broken(f"ended with {self.code}")
        raise self.broken(f"(process {self.pid}) does not listen on port {self.port}")

    def first_accepted_ms(self) -> float:
        """From the start of the process to its first accepted message, which makes a topic."""
        deadline = self.started_ns + int(self._ready_timeout_s * 1e9)
        while True:
            try:
                with Line(self.port) as line:
                    line.send("bench-first", 0, b"first")
                return (time.monotonic_ns() - self.started_ns) / 1e6
            except (OSError, RequestRefused) as error:
                if time.monotonic_ns() > deadline or not self.alive:
                    raise self.broken(f"accepted no message ({error})") from error
                time.sleep(
                    0.001
                )  # the pace of asking: nothing tells another process that it may connect

    def create_topic(self, topic: str) -> None:
        """Make a topic that load goes to."""
        with Line(self.port) as line:
            line.create_topic(topic, QUEUES)

    def queue_ranges(self, topic: str) -> list[tuple[int, int]]:
        """(min, max) of each queue of the topic."""
        with Line(self.port) as line:
            return line.queue_ranges(topic, QUEUES)

    def change(self, key: str, value: str) -> None:
        """Have the running broker take another value of a setting."""
        with Line(self.port) as line:
            line.request(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{key}={value}\n".encode())

    def pin(self, cores: frozenset[int]) -> None:
        """Move every thread to these cores."""
        self.cores = cores
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread ended meanwhile
                os.sched_setaffinity(int(task.name), cores)

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL when that took longer than 30 s."""
        if self.alive:
            self.signal(signal.SIGCONT)
            with contextlib.suppress(
                ProcessBroken
            ):  # it was killed: what it did is measured by now
                self.terminate(STOP_TIMEOUT_S)
        self.log.unlink(missing_ok=True)


class Echo(Server):
    """The upper limit: bench/echo.py."""

    stores = False

    def __init__(self, cores: frozenset[int], opaque_offset: int = 0) -> None:
        command = [sys.executable, "-m", "bench.echo", "--opaque-offset", str(opaque_offset)]
        super().__init__("echo", command, 0, r"ready port=(\d+)", cores=cores)


class Tandem(Server):
    """Our broker over an empty store in `directory`."""

    def __init__(
        self,
        directory: Path,
        cores: frozenset[int],
        *,
        pure_python: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        port = PORTS.take()
        conf = write_conf(directory, port, more or {})
        super().__init__(
            "ours, pure Python" if pure_python else "ours",
            [sys.executable, "-m", "tandemmq", "broker", "-c", str(conf)],
            port,
            "boot success",
            cores=cores,
            environment={"TANDEM_PURE_PYTHON": "1" if pure_python else ""},
        )
        self._pure_python = pure_python

    def check_alive(self) -> None:
        """As any server; and the compiled modules are loaded exactly when they should be."""
        super().check_alive()
        missing = [name for name in COMPILED if not maps_file(self.pid, name)]
        if self._pure_python and len(missing) < len(COMPILED):
            raise self.broken("loaded a compiled module in spite of TANDEM_PURE_PYTHON")
        if not self._pure_python and missing:
            raise self.broken(f"runs without the compiled {', '.join(missing)}")


class RocketMQ(Server):
    """Apache RocketMQ's broker over an empty store in `directory`, with its start script's options.

    The heap is the script's scaled to the machine. Queue waiting times are raised, so that a closed
    loop is never answered with a flow control code.
    """

    def __init__(self, directory: Path, cores: frozenset[int]) -> None:
        port = PORTS.take()
        conf = write_conf(
            directory,
            port,
            {
                "waitTimeMillsInSendQueue": "10000",
                "waitTimeMillsInPullQueue": "10000",
                "osPageCacheBusyTimeOutMills": "10000",
            },
        )
        heap = heap_gib()
        command = [
            "java",
            "-server",
            f"-Xms{heap}g",
            f"-Xmx{heap}g",
            "-XX:+UseG1GC",
            "-XX:G1HeapRegionSize=16m",
            "-XX:G1ReservePercent=25",
            "-XX:InitiatingHeapOccupancyPercent=30",
            "-XX:SoftRefLRUPolicyMSPerMB=0",
            "-XX:-OmitStackTraceInFastThrow",
            "-XX:+AlwaysPreTouch",
            "-XX:-UseLargePages",
            f"-XX:MaxDirectMemorySize={heap}g",
            f"-Duser.home={directory}",
            f"-Drocketmq.home.dir={directory}",
            "-cp",
            classpath(NEWEST),
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(conf),
        ]
        name = f"RocketMQ {NEWEST}"
        super().__init__(name, command, port, "boot success", cores=cores, ready_timeout_s=120.0)


def heap_gib() -> int:
    """4 GiB, or a quarter of the machine's memory where that is less; at least 1."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4, memory_bytes >> 32))


def write_conf(directory: Path, port: int, more: Mapping[str, str]) -> Path:
    """A broker.conf that both brokers read: ASYNC_FLUSH, all under `directory`, no name server."""
    settings = {
        "brokerClusterName": "bench-cluster",
        "brokerName": "bench-broker",
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "brokerIP1": LOOPBACK,
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": directory / "store",
        **more,
    }
    return write_settings(directory / "broker.conf", settings)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, wait until it is ready, stop it when the block ends."""
    try:
        server.start()
        yield server
    finally:
        server.stop()
