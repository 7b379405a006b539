"""A running broker as an audit reads it: over its HTTP port, up to what it has confirmed.

Nothing here runs an event loop: engines read in threads and in Spark's tasks. The other end is
cluster/broker/watching/httpplane.py; docs/audit.md "The broker's HTTP port" describes what is spoken.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.files import QueueFiles
from tandemmq.replication.audit.source import SegmentFile, segment_name
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.storage import CorruptFile, fastjson

TIMEOUT_S: Final = 30.0
TRIES: Final = 3  # of one request that was not answered
BUSY_S: Final = 120.0  # a broker that has too many readers is asked again for so long
AHEAD_BYTES_MIN: Final = 256 << 10
AHEAD_BYTES_MAX: Final = 8 << 20  # a request costs a broker's loop as much as 1 MiB of answer
CONTENT_BYTES_MAX: Final = 256 << 20
_REMEDY: Final = "give the broker's httpToken with --token-file or in TANDEM_HTTP_TOKEN"
_SCHEMES: Final = ("http://", "https://")


class Access(msgspec.Struct, frozen=True):
    """How brokers are read: their httpToken, and whose certificates are believed (PEM text; https only)."""

    token: str = ""
    ca: str = ""


def is_live(place: str) -> bool:
    """Whether a place names a running broker."""
    return place.startswith(_SCHEMES)


class Standing(msgspec.Struct, rename="camel"):
    """What a broker says of itself: GET /healthz with the token."""

    cluster: str
    group: str
    broker_id: int
    role: str
    epoch: int
    start: int
    end: int
    confirmed: int
    started_ms: int = 0


@dataclass(slots=True)
class _Ahead:
    """What one thread has read ahead of one log."""

    data: bytearray
    base: int = 0  # log offset of data[0]
    filled: int = 0
    wanted: int = AHEAD_BYTES_MIN


class BrokerPort:
    """One broker's HTTP port. Threads share it; each has a connection of its own."""

    def __init__(self, url: str, access: Access) -> None:
        """Raises BadInput for what is no URL of a broker, or a CA that is none."""
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as problem:
            raise BadInput(f"{url} is no address of a broker: {problem}") from problem
        if not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise BadInput(f"{url} is no address of a broker: give http://HOST:PORT")
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cadata=access.ca or None)
            except ssl.SSLError as problem:
                raise BadInput(f"the CA for {url} cannot be used: {problem}") from problem
        self._mine = threading.local()
        self._lock = threading.Lock()  # guards _open: every thread adds to it
        self._open: list[http.client.HTTPConnection] = []

    def standing(self) -> Standing:
        """Raises AuditIncomplete, BadInput (a wrong token, no broker of ours)."""
        found = self.json("/healthz")
        if not self._headers and found.keys() == {"status"}:
            raise BadInput(
                f"{self.url} wants a token: {_REMEDY}"
            )  # alive is all that strangers hear
        try:
            return msgspec.convert(found, Standing, strict=False)
        except msgspec.ValidationError as problem:
            raise BadInput(f"{self.url} is no HTTP port of a broker: {problem}") from problem

    def json(self, path: str) -> dict[str, Any]:
        """One JSON object. Raises AuditIncomplete, BadInput."""
        data = self.content(path)
        if data is None:
            raise BadInput(f"{self.url} is no HTTP port of a broker: it has no {path}")
        try:
            found = json.loads(data)
        except ValueError as problem:
            raise BadInput(f"{self.url} is no HTTP port of a broker: {problem}") from problem
        if not isinstance(found, dict):
            raise BadInput(f"{self.url} is no HTTP port of a broker: {path} is no JSON object")
        return found

    def content(self, path: str) -> bytes | None:
        """A whole file; None when there is none."""
        with self._answer(path, {}) as answer:
            if answer is None:
                return None
            data: bytes = answer.read(CONTENT_BYTES_MAX)
            return data

    def read_into(self, path: str, at: int, buffer: memoryview) -> int:
        """Bytes of a file from a position on; how many there were, 0 when it is gone."""
        if not len(buffer):
            return 0
        wanted = {"Range": f"bytes={at}-{at + len(buffer) - 1}"}
        done = 0
        with self._answer(path, wanted) as answer:
            if answer is None:
                return 0
            if answer.status != 206:
                raise AuditIncomplete(f"{self.url}{path} ignores ranges: a proxy in between?")
            promised = min(answer.length or 0, len(buffer))
            while done < len(buffer):
                count = answer.readinto(buffer[done:])
                if not count:
                    break
                done += count
            if done < promised:  # readinto() takes a broken connection for the end of the file
                raise http.client.IncompleteRead(b"", promised - done)
        return done

    @contextmanager
    def _answer(self, path: str, headers: dict[str, str]) -> Iterator[Any]:
        """An answer with a body, or None for 404 and 416. Its body must be read to the end."""
        answer = self._ask(path, headers)
        if answer.status in (404, 416):
            answer.read()
            yield None
            return
        try:
            yield answer
        except (OSError, http.client.HTTPException) as problem:
            self._drop()
            raise AuditIncomplete(f"{self.url} broke off: {_told(problem)}") from problem
        except BaseException:
            self._drop()
            raise
        if not answer.isclosed():
            self._drop()  # what was not read would be taken for the next answer

    def _ask(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        deadline = time.monotonic() + BUSY_S
        tries = 0
        while True:
            connection = self._connection()
            try:
                connection.request("GET", path, headers={**self._headers, **headers})
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as problem:
                self._drop()
                tries += 1
                if tries >= TRIES or isinstance(problem, ssl.SSLCertVerificationError):
                    raise AuditIncomplete(
                        f"{self.url} does not answer: {_told(problem)}"
                    ) from problem
                time.sleep(0.2 * tries)
                continue
            if answer.status == 503 and time.monotonic() < deadline:
                pause_s = answer.headers.get("Retry-After", "1")
                answer.read()
                time.sleep(min(10.0, float(pause_s) if pause_s.isdigit() else 1.0))
                continue
            if answer.status not in (200, 206, 404, 416):
                self._refused(path, answer)
            return answer

    def _refused(self, path: str, answer: http.client.HTTPResponse) -> None:
        text = answer.read(500).decode("utf-8", "replace").strip()
        if answer.status == 401:
            self._drop()
            said = "refuses this token" if self._headers else "wants a token"
            raise BadInput(f"{self.url} {said}: {_REMEDY}")
        self._drop()
        raise AuditIncomplete(f"{self.url}{path} answers {answer.status}: {text}")

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            if self._context is not None:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=TIMEOUT_S, context=self._context
                )
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            self._mine.connection = connection
            with self._lock:
                self._open.append(connection)
        return connection

    def _drop(self) -> None:
        """Close this thread's connection; the next request makes a new one."""
        connection = self._connection()
        connection.close()
        self._mine.connection = None
        with self._lock:
            self._open.remove(connection)

    def close(self) -> None:
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
        self._mine = threading.local()


def _told(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there"
    return str(problem) or type(problem).__name__


class LiveLog:
    """The log of a running broker, up to what it has confirmed. Reads ahead while reading in order."""

    def __init__(self, port: BrokerPort, files: list[SegmentFile]) -> None:
        self.name = port.url
        self._port = port
        self._files = files
        self._mine = threading.local()

    def segments(self) -> list[SegmentFile]:
        return list(self._files)

    def read_into(self, segment: int, offset: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            ahead = self._ahead(segment, offset + done, len(buffer) - done)
            first = offset + done - ahead.base
            count = min(len(buffer) - done, ahead.filled - first)
            if count <= 0:
                break
            buffer[done : done + count] = memoryview(ahead.data)[first : first + count]
            done += count
        return done

    def _ahead(self, segment: int, offset: int, size: int) -> _Ahead:
        """What was read of this place, after reading more when it was not there."""
        ahead: _Ahead | None = getattr(self._mine, "ahead", None)
        if ahead is None:
            ahead = self._mine.ahead = _Ahead(bytearray(AHEAD_BYTES_MIN))
        if ahead.base <= offset < ahead.base + ahead.filled and ahead.base >= segment:
            return ahead
        in_order = ahead.base <= offset <= ahead.base + ahead.filled
        ahead.wanted = min(AHEAD_BYTES_MAX, 2 * ahead.wanted) if in_order else AHEAD_BYTES_MIN
        wanted = min(max(ahead.wanted, size), AHEAD_BYTES_MAX)
        if len(ahead.data) < wanted:
            ahead.data = bytearray(wanted)
        ahead.base, ahead.filled = offset, 0
        path = f"/commitlog/{segment_name(segment)}"
        view = memoryview(ahead.data)[:wanted]
        ahead.filled = self._port.read_into(path, offset - segment, view)
        return ahead

    def close(self) -> None:
        self._mine = threading.local()


class LiveFiles:
    """The files beside a running broker's log.

    They grow while they are read, so progress is taken before the queues it is held against.
    """

    def __init__(self, port: BrokerPort) -> None:
        self.name = port.url
        self._port = port
        self._tables: dict[str, dict[str, Any]] = {}

    def queues(self) -> tuple[list[QueueFiles], list[str]]:
        for name in ("consumerOffset.json", "delayOffset.json"):
            self._tables[name] = self._fetch_table(name)
        listed = self._port.json("/consumequeue")
        found = [
            QueueFiles(
                queue["topic"].encode("utf-8", "surrogateescape"),
                queue["queueId"],
                [(start, size) for start, size in queue["files"]],
                queue["max"],
            )
            for queue in listed["queues"]
        ]
        return found, list(listed["strays"])

    def index_slots(self) -> int:
        """maxHashSlotNum."""
        slots: int = self._port.json("/index")["slots"]
        return slots

    def indexes(self) -> list[tuple[str, int]]:
        return [(name, size) for name, size in self._port.json("/index")["files"]]

    def read(self, path: str, size: int, at: int) -> bytes:
        buffer = bytearray(size)
        count = self._port.read_into(f"/{quote(path)}", at, memoryview(buffer))
        return bytes(buffer) if count == size else bytes(buffer[:count])

    def used_bytes(self, path: str, size: int) -> int:
        raise AssertionError("a broker says where its queues end")

    def table(self, name: str) -> dict[str, Any]:
        if name not in self._tables:
            self._tables[name] = self._fetch_table(name)
        return self._tables[name]

    def _fetch_table(self, name: str) -> dict[str, Any]:
        data = self._port.content(f"/config/{name}")
        if not data:
            return {}
        try:
            found = fastjson.loads(data)
        except ValueError as problem:
            raise CorruptFile(f"{self.name}/config/{name}: {problem}") from problem
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class LiveStore:
    """A broker's listing at one moment."""

    port: BrokerPort
    segment_bytes: int
    files: list[SegmentFile]
    epochs: EpochHistory
    standing: Standing
    delay_levels: str  # messageDelayLevel


def list_store(port: BrokerPort) -> LiveStore:
    """What a broker holds now. Raises AuditIncomplete, BadInput."""
    standing = port.standing()
    listed, reigns = port.json("/commitlog"), port.json("/epochs")
    try:
        return LiveStore(
            port,
            int(listed["segmentBytes"]),
            sorted(SegmentFile(int(start), int(size)) for start, size in listed["files"]),
            EpochHistory(
                tuple(Epoch(int(reign["epoch"]), int(reign["start"])) for reign in reigns["epochs"])
            ),
            standing,
            str(listed["delayLevels"]),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise BadInput(f"{port.url} is no HTTP port of a broker: {problem!r}") from problem
