"""Stock Java clients, tools and servers for the compatibility tests and the demo.

Needs `tests/system` on the path for `cluster_processes`, beside the standard library. Maven finds the
artifacts, javac compiles our driver (tests/compat/java) against each release, both once: what they
made is kept in .cache/java.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cluster_processes import (
    LOOPBACK,
    REPOSITORY,
    ServerProcess,
    answers,
    broker_settings,
    free_broker_port,
    free_port,
    registered,
    write_settings,
)

SOURCES = Path(__file__).resolve().parent / "java"
CACHE = REPOSITORY / ".cache" / "java"
VERSIONS = ("4.9.7", "5.3.3")
NEWEST = VERSIONS[-1]
SERIALIZATIONS = ("json", "binary")
DRIVER_READY_S = 60
COMMAND_S = 60
# A stock 5.3.3 client can lose the race of its first heartbeats and wait for the next, 30 s later.
MESSAGES_S = 60

# A JVM that starts fast and leaves the cores to others: no second compiler, no collector threads.
LEAN = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
# 4.9.7 unmaps files through internals that JDK 17 hides.
OPENS = [
    option
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang")
    for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
] + ["--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"]

# A stock server makes two RSA keys at each start, 3 s of a core, for TLS that nobody here speaks to it.
SERVER = ["-Dtls.server.mode=disabled"]

LOGBACK = """<configuration><appender name="F" class="{prefix}ch.qos.logback.core.FileAppender">
<file>{log}</file><encoder><pattern>%d %p %t %logger{{0}} - %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="F"/></root></configuration>
"""


def java_missing() -> str | None:
    """Why Java tests cannot run here and what to install; None if they can."""
    absent = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if absent:
        return (
            f"{', '.join(absent)} not on the PATH: install a JDK (11 or later) and Maven, "
            "e.g. apt-get install openjdk-17-jdk-headless maven"
        )
    return None


def classpath(version: str) -> str:
    """Class path of clients, tools and servers of one release; Maven fetches what is not there."""
    pom = (SOURCES / "pom.xml").read_bytes()
    kept = CACHE / f"classpath-{version}-{hashlib.sha256(pom).hexdigest()[:12]}.txt"
    if kept.exists() and all(map(os.path.exists, kept.read_text().split(os.pathsep))):
        return kept.read_text()
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}.new")
    command = [
        "mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:build-classpath",
        f"-Drocketmq.version={version}", f"-Dmdep.outputFile={fresh}",
    ]  # fmt: skip
    for mode in (["-o"], []):  # what the local repository holds is enough most times
        run = subprocess.run([*command, *mode], capture_output=True, text=True, check=False)
        if run.returncode == 0 and fresh.exists():
            fresh.write_text(fresh.read_text().strip())
            fresh.replace(kept)
            return kept.read_text()
    raise AssertionError(
        f"Maven did not resolve {version}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
    )


def compiled(version: str) -> Path:
    """Directory of our driver's classes for one release; compiled once per content of sources."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    kept = CACHE / f"driver-{version}-{digest.hexdigest()[:12]}"
    if kept.exists():
        return kept
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=CACHE))
    command = [
        "javac",
        "-nowarn",
        "-encoding",
        "UTF-8",
        "-d",
        str(fresh),
        "-cp",
        classpath(version),
    ]
    run = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise AssertionError(f"javac: {run.stdout}{run.stderr}")
    with contextlib.suppress(OSError):  # another process was first
        fresh.rename(kept)
    return kept


def java_command(
    version: str, main: str, home: Path, *arguments: str, heap_mb: int, options: Iterable[str] = ()
) -> list[str]:
    """Command line of one JVM whose home directory (logs, local offsets, settings) is `home`."""
    prepare_home(version, home)
    return [
        "java", *LEAN, *OPENS, f"-Xmx{heap_mb}m",
        f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
        "-Drocketmq.client.logLevel=WARN", f"-Drocketmq.client.logRoot={home}/logs",
        "-Djava.net.preferIPv4Stack=true", "-Dio.netty.allocator.type=unpooled", *options,
        "-cp", os.pathsep.join([str(compiled(version)), classpath(version)]), main, *arguments,
    ]  # fmt: skip


def prepare_home(version: str, home: Path) -> None:
    """What is expected below ROCKETMQ_HOME: settings of logs (4.x does not start without)."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    prefix = "" if version.startswith("4.") else "org.apache.rocketmq.logging."
    for part in ("broker", "namesrv", "tools"):
        text = LOGBACK.format(log=home / "logs" / f"{part}.log", prefix=prefix)
        for name in (f"logback_{part}.xml", f"rmq.{part}.logback.xml"):
            (conf / name).write_text(text)


def java_env(home: Path) -> dict[str, str]:
    return {"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": "", "JAVA_TOOL_OPTIONS": ""}


class JavaNameServer(ServerProcess):
    """The stock name server."""

    READY_S = 40

    def __init__(
        self, version: str, directory: Path, more: Mapping[str, object] | None = None
    ) -> None:
        self.version = version
        self.port = free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        home = directory / "namesrv-home"
        own = {
            "listenPort": self.port,
            "kvConfigPath": home / "kvConfig.json",
            "rocketmqHome": home,
        }
        settings = write_settings(home / "conf" / "namesrv.conf", {**own, **(more or {})})
        super().__init__(
            f"Java name server {version}",
            java_command(
                version, "org.apache.rocketmq.namesrv.NamesrvStartup", home, "-c", str(settings),
                heap_mb=192, options=SERVER,
            ),
            directory / "java-namesrv.log",
            java_env(home),
        )  # fmt: skip

    def start(self) -> Self:
        self.launch()
        self.wait_ready(lambda: answers(self.address), self.READY_S)
        return self


# What keeps a stock broker fast on a small, busy machine and its files comparable with ours.
JAVA_BROKER_SETTINGS: Mapping[str, object] = {
    "waitTimeMillsInSendQueue": 10_000, "brokerFastFailureEnable": "false",
    "sendMessageThreadPoolNums": 2, "pullMessageThreadPoolNums": 4, "timerWheelEnable": "false",
    "diskMaxUsedSpaceRatio": 95, "rejectTransactionMessage": "false",
}  # fmt: skip


class JavaBroker(ServerProcess):
    """The stock broker on `store`; small heap and files."""

    READY_S = 60
    STOP_S = 40

    def __init__(
        self, version: str, directory: Path, name_servers: str, *, name: str = "broker-a",
        cluster: str = "TestCluster", store: Path | None = None, port: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.version = version
        self.port = port or free_broker_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.broker_name = name
        self.broker_id = max(0, int(str((settings or {}).get("brokerId", 0))))
        self.cluster = cluster
        self.name_servers = name_servers
        self.store = store or directory / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        home = directory / f"{name}-home"
        merged = {**JAVA_BROKER_SETTINGS, **(settings or {})}
        self.settings = broker_settings(self.store, self.port, name, cluster, merged)
        self.settings["rocketmqHome"] = home
        conf = write_settings(home / "conf" / "broker.conf", self.settings)
        arguments = ["-c", str(conf)] + (["-n", name_servers] if name_servers else [])
        super().__init__(
            f"Java broker {version}",
            java_command(
                version, "org.apache.rocketmq.broker.BrokerStartup", home, *arguments, heap_mb=512,
                options=[*SERVER, "-XX:MaxDirectMemorySize=512m"],
            ),
            directory / f"java-{name}.log",
            java_env(home),
        )  # fmt: skip

    def start(self) -> Self:
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


class DriverError(AssertionError):
    """A client threw: `kind` is the exception's class, `code` the response code if it has one."""

    def __init__(self, op: str, answer: Mapping[str, Any]) -> None:
        super().__init__(
            f"{op}: {answer['kind']}: {answer['error']}\n{answer.get('trace', '')[:3000]}"
        )
        self.kind: str = answer["kind"]
        self.code: int | None = answer.get("code")
        self.text: str = answer["error"]


class Driver:
    """One JVM with stock clients of one release and header form, ordered about line by line."""

    def __init__(self, version: str, serialization: str, name_servers: str, home: Path) -> None:
        self.version = version
        self.serialization = serialization
        self.name_servers = name_servers
        self.home = home
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._messages: dict[str, list[dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self.shared: set[str] = set()  # names of clients that live as long as the JVM
        self._ready = False
        self._ended = False
        home.mkdir(parents=True, exist_ok=True)
        options = ["-Drocketmq.serialize.type=ROCKETMQ"] if serialization == "binary" else []
        command = java_command(version, "Driver", home, heap_mb=256, options=options)
        self._log = (home / "driver.log").open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=home,
            env={**os.environ, **java_env(home)}, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="driver reader", daemon=True)
        self._reader.start()
        self._wait(lambda: self._ready, DRIVER_READY_S, "driver ready")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = json.loads(raw)
            with self._changed:
                match line.get("event"):
                    case "message":
                        self._messages.setdefault(line["consumer"], []).append(received(line))
                    case "ready":
                        self._ready = True
                    case _:
                        self._answers[line["id"]] = line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, holds: Callable[[], object], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: holds() or self._ended, timeout_s) or not holds():
                why = "the JVM ended before" if self._ended else f"not within {timeout_s:g} s"
                log = (self.home / "driver.log").read_text(errors="replace")[-4000:]
                raise AssertionError(f"{why}: {what}\n{log}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, op: str, timeout_s: float = COMMAND_S, **fields: Any) -> Any:
        """Runs one command and returns its answer; DriverError if the client threw."""
        identity = next(self._ids)
        line = {"id": identity, "op": op, "namesrv": self.name_servers, **fields}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()
        self._wait(lambda: identity in self._answers, timeout_s, f"answer to {op}")
        answer = self._answers.pop(identity)
        if "error" in answer:
            raise DriverError(op, answer)
        return answer["ok"]

    def mqadmin(self, *arguments: str) -> str:
        """What one mqadmin subcommand prints."""
        return str(self.call("mqadmin", args=list(arguments)))

    def messages(self, consumer: str) -> list[dict[str, Any]]:
        """What a push consumer was given so far, in order of arrival."""
        with self._changed:
            return list(self._messages.get(consumer, []))

    def wait_messages(
        self, consumer: str, count: int, timeout_s: float = MESSAGES_S
    ) -> list[dict[str, Any]]:
        """Waits until a push consumer was given `count` messages; all that it has."""
        self._wait(
            lambda: len(self._messages.get(consumer, [])) >= count, timeout_s,
            f"{count} messages at {consumer}",
        )  # fmt: skip
        return self.messages(consumer)

    def wait_for(self, holds: Callable[[], object], timeout_s: float, what: str) -> None:
        """Waits for a condition over `messages()` of this driver's consumers."""
        self._wait(holds, timeout_s, what)

    def kill(self) -> None:
        """kill -9: its clients say no goodbye."""
        self._process.kill()
        self._close()

    def close(self) -> None:
        """Ends the JVM without stopping its clients one by one."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def received(event: Mapping[str, Any]) -> dict[str, Any]:
    """A delivered message with the time it was handed over (ms)."""
    return {**event["message"], "atMs": event["atMs"]}


def body_of(message: Mapping[str, Any]) -> bytes:
    """The body, which the driver shows up to 2 KiB."""
    return base64.b64decode(message["body64"])


def text_of(message: Mapping[str, Any]) -> str:
    return body_of(message).decode()


def sha_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def encoded(body: bytes) -> dict[str, str]:
    """The field of a message to send that carries any bytes."""
    return {"body64": base64.b64encode(body).decode()}
