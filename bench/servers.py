"""The measured processes: started on their cores, awaited until ready, checked and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.accounting import listens, maps_file
from bench.build import CACHE, HERE
from bench.wire import Line, RequestRefused
from tandemmq.chaos.ports import Ports
from tandemmq.chaos.processes import ProcessBroken

PORTS: Final = Ports(range(32_000, 32_760))  # above the campaigns', below Linux's ephemeral range
ROCKETMQ_VERSION: Final = "5.3.3"
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

POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>rocketmq</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>{ROCKETMQ_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class ServerFailed(Exception):
    """A measured process did not come up, or ended by itself."""


class Server:
    """A process with one listening port; `stores` tells brokers from the echo server."""

    stores = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        ready: str,
        *,
        cores: frozenset[int],
        environment: dict[str, str] | None = None,
        ready_timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.port = port
        self.cores = cores
        self._ready = re.compile(ready)
        self._ready_timeout_s = ready_timeout_s
        environment = environment or {}
        self._environment = {**os.environ, **environment}
        self._shown_environment = [
            f"{name}={value}" for name, value in environment.items() if value
        ]
        self._lines: deque[str] = deque(maxlen=200)
        self._said_ready = threading.Event()
        self.started_ns = 0

    def start(self) -> None:
        """Start the process; returns without waiting."""
        self.started_ns = time.monotonic_ns()
        own_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)  # the child inherits them
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=HERE.parent,
            errors="replace",
        )
        os.sched_setaffinity(0, own_cores)
        self._reader = threading.Thread(
            target=self._read_output, name=f"output of {self.name}", daemon=True
        )
        self._reader.start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._lines.append(line.rstrip())
                if found := self._ready.search(line):
                    if found.groups() and not self.port:
                        self.port = int(found[1])
                    self._said_ready.set()
        self._said_ready.set()  # ended: whoever waits finds out in check_alive

    @property
    def shown_command(self) -> str:
        """The command line, as one would type it in the repository."""
        root = str(HERE.parent) + "/"
        parts = [part.replace(root, "") for part in self.command]
        if "-cp" in parts:
            parts[parts.index("-cp") + 1] = "CLASSPATH"
        return " ".join([*self._shown_environment, shlex.join(parts)])

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Return once the process itself said that it is ready and listens on its port."""
        if not self._said_ready.wait(self._ready_timeout_s):
            raise ServerFailed(
                f"{self.name} did not say {self._ready.pattern!r}; it said:\n{self.output()}"
            )
        self.check_alive()

    def check_alive(self) -> None:
        """Raise ServerFailed unless this process runs and is the one that listens on the port."""
        listening = listens(self.pid, self.port)
        if not listening:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)  # one that is about to end says more by its end
        if self._process.poll() is not None:
            raise ServerFailed(
                f"{self.name} ended with {self._process.returncode}; it said:\n{self.output()}"
            )
        if not listening:
            raise ServerFailed(
                f"{self.name}: process {self.pid} does not listen on port {self.port}"
            )

    def output(self) -> str:
        """The last lines that the process printed."""
        return "\n".join(self._lines)

    def first_accepted_ms(self) -> float:
        """From the start of the process to its first accepted message, which makes a topic."""
        deadline = self.started_ns + int(self._ready_timeout_s * 1e9)
        while True:
            try:
                with Line(self.port) as line:
                    line.send("bench-first", 0, b"first")
                return (time.monotonic_ns() - self.started_ns) / 1e6
            except (OSError, RequestRefused) as error:
                if time.monotonic_ns() > deadline or self._process.poll() is not None:
                    raise ServerFailed(
                        f"{self.name} accepted no message ({error}); it said:\n{self.output()}"
                    ) from error
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

    def pin(self, cores: frozenset[int]) -> None:
        """Move every thread to these cores."""
        self.cores = cores
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread ended meanwhile
                os.sched_setaffinity(int(task.name), cores)

    def pause(self) -> None:
        """Let it use no CPU while another server is measured."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL when that took longer than 30 s."""
        if not hasattr(self, "_process"):
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()


class Echo(Server):
    """The upper limit: bench/echo.py."""

    stores = False

    def __init__(self, cores: frozenset[int], opaque_offset: int = 0) -> None:
        command = [sys.executable, "-m", "bench.echo", "--opaque-offset", str(opaque_offset)]
        super().__init__("echo", command, 0, r"ready port=(\d+)", cores=cores)


class Tandem(Server):
    """Our broker over an empty store in `directory`."""

    def __init__(
        self, directory: Path, cores: frozenset[int], *, pure_python: bool = False
    ) -> None:
        port = free_port()
        conf = write_conf(directory, port, {})
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
            raise ServerFailed(
                f"{self.name}: loaded a compiled module in spite of TANDEM_PURE_PYTHON"
            )
        if not self._pure_python and missing:
            raise ServerFailed(f"{self.name}: runs without the compiled {', '.join(missing)}")


class RocketMQ(Server):
    """Apache RocketMQ's broker over an empty store in `directory`, with its start script's options.

    The heap is the script's scaled to the machine. Queue waiting times are raised, so that a closed
    loop is never answered with a flow control code.
    """

    def __init__(self, directory: Path, cores: frozenset[int]) -> None:
        port = free_port()
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
            rocketmq_classpath(),
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(conf),
        ]
        name = f"RocketMQ {ROCKETMQ_VERSION}"
        super().__init__(name, command, port, "boot success", cores=cores, ready_timeout_s=120.0)


def heap_gib() -> int:
    """4 GiB, or a quarter of the machine's memory where that is less; at least 1."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4, memory_bytes >> 32))


def why_no_rocketmq() -> str:
    """Empty when Apache RocketMQ can be measured here, else what is missing."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"not found: {', '.join(missing)}" if missing else ""


def rocketmq_classpath() -> str:
    """Fetch the broker's Maven artifacts once; the class path of them all."""
    directory = CACHE / f"rocketmq-{ROCKETMQ_VERSION}"
    listing = directory / "classpath.txt"
    if not listing.exists() or not all(
        Path(jar).exists() for jar in listing.read_text().split(":")
    ):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listing}"]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=900
        )
        if done.returncode:
            raise ServerFailed(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    return listing.read_text().strip()


def write_conf(directory: Path, port: int, more: dict[str, str]) -> Path:
    """A broker.conf that both brokers read: ASYNC_FLUSH, all under `directory`, no name server."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "brokerClusterName": "bench-cluster",
        "brokerName": "bench-broker",
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "storePathRootDir": str(directory / "store"),
        **more,
    }
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return conf


def free_port() -> int:
    """A free port; the one two below (fast port) and the one above (replication) are free too."""
    try:
        return PORTS.take()
    except ProcessBroken as problem:
        raise ServerFailed(str(problem)) from problem


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, wait until it is ready, stop it when the block ends."""
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()
