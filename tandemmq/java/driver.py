"""One JVM with stock clients, ordered about line by line: how tests, campaigns and the demo use them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from tandemmq.java.stock import JavaFailed, java_command, java_env

SERIALIZATIONS: Final = ("json", "binary")
DRIVER_READY_S: Final = 60
COMMAND_S: Final = 60
# A stock 5.3.3 client can lose the race of its first heartbeats and wait for the next, 30 s later.
MESSAGES_S: Final = 60


class DriverError(JavaFailed):
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

    def __init__(
        self,
        version: str,
        serialization: str,
        name_servers: str,
        home: Path,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """properties: of the JVM besides, as -D has them."""
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
        options = [f"-D{key}={value}" for key, value in (properties or {}).items()]
        if serialization == "binary":
            options.append("-Drocketmq.serialize.type=ROCKETMQ")
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
                raise JavaFailed(f"{why}: {what}\n{log}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, op: str, timeout_s: float = COMMAND_S, **fields: Any) -> Any:
        """Runs one command and returns its answer.

        Raises DriverError if the client threw, JavaFailed if the JVM ended or took too long.
        """
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

    def __exit__(self, *_: object) -> None:
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
