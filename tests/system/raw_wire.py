"""Frames made by hand and sockets that do as told: what a hostile peer has, and nothing of our own client."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tandemmq.chaos.asking import ask
from tandemmq.chaos.processes import ServerProcess
from tandemmq.chaos.servers import Broker

SEND = 10
PULL = 11
HEART_BEAT = 34
SYSTEM_BUSY = 2
GET_ALL_TOPIC_CONFIG = 21


def json_frame(
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
    version: int = 479,
) -> bytes:
    """One request with a JSON header."""
    header = {
        "code": code, "language": "JAVA", "version": version, "opaque": opaque, "flag": flag,
        "extFields": dict(ext or {}), "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    return framed(json.dumps(header).encode(), body)


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame around any bytes whatever as header."""
    word = len(header) | kind << 24
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def binary_frame(
    code: int, ext: Mapping[str, str], body: bytes = b"", *, opaque: int = 1, flag: int = 0
) -> bytes:
    """One request with a binary header."""
    fields = b""
    for key, value in ext.items():
        fields += struct.pack(">H", len(key.encode())) + key.encode()
        fields += struct.pack(">i", len(value.encode())) + value.encode()
    head = struct.pack(">hBhiii", code, 0, 479, opaque, flag, 0)
    return framed(head + struct.pack(">i", len(fields)) + fields, body, kind=1)


def send_ext(topic: str, queue_id: int = 0, **others: str) -> dict[str, str]:
    """Header fields of SEND_MESSAGE."""
    return {
        "producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": str(queue_id), "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false", **others,
    }  # fmt: skip


def pull_ext(topic: str, offset: int = 0, queue_id: int = 0, **others: str) -> dict[str, str]:
    """Header fields of PULL_MESSAGE with its own subscription; it waits when told so by sysFlag=6."""
    return {
        "consumerGroup": "CG", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "20000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", **others,
    }  # fmt: skip


@dataclass(slots=True)
class Answer:
    """One frame that came back."""

    code: int
    header: dict[str, Any]
    body: bytes

    @property
    def ext(self) -> dict[str, str]:
        return self.header.get("extFields") or {}

    @property
    def remark(self) -> str:
        return self.header.get("remark") or ""


def _binary_header(head: bytes) -> dict[str, Any]:
    code, _, _, opaque, flag, remark_size = struct.unpack_from(">hBhiii", head)
    at = 17 + remark_size
    (end,) = struct.unpack_from(">i", head, at)
    end += at + 4
    fields: dict[str, str] = {}
    position = at + 4
    while position < end:
        (size,) = struct.unpack_from(">H", head, position)
        key = head[position + 2 : position + 2 + size]
        position += 2 + size
        (size,) = struct.unpack_from(">i", head, position)
        fields[key.decode()] = head[position + 4 : position + 4 + size].decode()
        position += 4 + size
    remark = head[17:at].decode()
    return {"code": code, "opaque": opaque, "flag": flag, "remark": remark, "extFields": fields}


class Wire:
    """A connection that sends any bytes and reads frames; every read has a deadline."""

    def __init__(
        self, address: str, *, timeout_s: float = 10, receive_bytes: int = 0, source: str = ""
    ) -> None:
        """source: the address of this machine to come from, "" for the usual one."""
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout_s)
        try:
            if source:
                self.socket.bind((source, 0))
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self._pending = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Answer:
        """The next frame. Raises ConnectionError when the server closed, TimeoutError."""
        frame = self._take(int.from_bytes(self._take(4), "big"))
        length = int.from_bytes(frame[1:4], "big")
        head = frame[4 : 4 + length]
        header = _binary_header(head) if frame[0] else json.loads(head)
        return Answer(header["code"], header, frame[4 + length :])

    def request(self, frame: bytes) -> Answer:
        self.send(frame)
        return self.read()

    def ended(self, timeout_s: float = 5) -> bool:
        """Whether the server closes this connection within the time, whatever it still sends."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _take(self, size: int) -> bytes:
        while len(self._pending) < size:
            chunk = self.socket.recv(1 << 18)
            if not chunk:
                raise ConnectionError(f"closed after {len(self._pending)} of {size} bytes")
            self._pending += chunk
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


@dataclass(slots=True)
class Load:
    """What a producer that never stops saw: acknowledged bodies by (queue offset), and how long each took."""

    topic: str
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    refused: list[tuple[int, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    problem: BaseException | None = None

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def producing(address: str, topic: str, *, pause_s: float = 0.001, body: bytes = b"x" * 200) -> Any:
    """A producer on a connection and thread of its own, one message at a time, while the body runs."""
    load = Load(topic)
    stop = threading.Event()
    first = threading.Event()

    def produce() -> None:
        try:
            with Wire(address) as wire:
                number = 0
                while not stop.is_set():
                    text = b"%08d " % number + body
                    began = time.perf_counter()
                    answer = wire.request(json_frame(SEND, send_ext(topic), text, opaque=number))
                    load.seconds.append(time.perf_counter() - began)
                    if answer.code == 0:
                        load.acknowledged[int(answer.ext["queueOffset"])] = text
                    else:
                        load.refused.append((answer.code, answer.remark))
                    number += 1
                    first.set()
                    time.sleep(pause_s)
        except BaseException as problem:  # the test that started it decides what it means
            load.problem = problem
            first.set()

    thread = threading.Thread(target=produce, name="producer")
    thread.start()
    try:
        assert first.wait(20), "the producer got no answer"
        yield load
    finally:
        stop.set()
        thread.join()


def bodies(address: str, topic: str, queue_id: int = 0, timeout_s: float = 30) -> dict[int, bytes]:
    """Every message of one queue, read from its first to its last: queue offset -> body."""
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout_s
    with Wire(address) as wire:
        offset = 0
        while True:
            assert time.monotonic() < deadline, f"{topic}: still reading at {offset}"
            answer = wire.request(json_frame(PULL, pull_ext(topic, offset, queue_id)))
            if answer.code == 0:
                for queue_offset, body in records(answer.body):
                    assert queue_offset not in found, f"{queue_offset} came twice"
                    found[queue_offset] = body
            elif offset >= int(answer.ext.get("maxOffset", "0")):
                return found
            offset = int(answer.ext["nextBeginOffset"])


def records(data: bytes) -> Iterable[tuple[int, bytes]]:
    """(queue offset, body) of each record with IPv4 hosts. Source: docs/formats.md."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        (queue_offset,) = struct.unpack_from(">q", data, at + 20)
        (length,) = struct.unpack_from(">i", data, at + 84)
        yield queue_offset, data[at + 88 : at + 88 + length]
        at += size


def send_one(address: str, topic: str, body: bytes = b"one") -> Answer:
    """One message on a connection of its own."""
    with Wire(address) as wire:
        return wire.request(json_frame(SEND, send_ext(topic), body))


def topic_names(address: str) -> set[str]:
    """The topics of a broker."""
    code, _, body = ask(address, GET_ALL_TOPIC_CONFIG)
    assert code == 0
    return set(json.loads(body)["topicConfigTable"])


def memory_bytes(process: ServerProcess) -> int:
    """Anonymous memory of a process: what it allocated, without mapped files."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def files_below(directory: Path) -> set[str]:
    """Every path below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def count_lines(process: ServerProcess, text: str) -> int:
    return sum(text in line for line in process.output().splitlines())


def lone_broker(
    directory: Path, settings: Mapping[str, object] | None = None, **options: Any
) -> Broker:
    """A broker without a name server, not started."""
    return Broker(directory, "", settings=settings, **options)
