"""What the broker's HTTP port has for `tandem audit`: the raw files of its store.

    GET /epochs                               which range of the log was written in which epoch
    GET /commitlog                            the log's files; /commitlog/START: bytes of one (Range)
    GET /consumequeue                         the queues' files; /consumequeue/TOPIC/QUEUE/START: bytes
    GET /index                                the index files; /index/NAME: bytes
    GET /config/consumerOffset.json           and delayOffset.json: progress as it was last saved;
                                              topics.json, subscriptionGroup.json, deletedTopics.json

Everything wants `Authorization: Bearer TOKEN`, on this machine too. Log bytes end at what is confirmed,
with ?upto=end where the log ends. Names are matched whole and never become paths otherwise. Bytes go from
file to socket in threads of their own (a cold page must not stop the loop), so many at a time and so many
per second as the settings allow: producers come first. Imported only when httpPort is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.httpdoor import Shown
from tandemmq.cluster.httpport import HEADERS, Handler, busy, refusal, shown, unauthorized
from tandemmq.replication.epochs import EpochHistory, read_epochs
from tandemmq.replication.errors import ReplicationError
from tandemmq.storage import Clock, MessageStore

log = logging.getLogger(__name__)

ASKED_MAX: Final = 64  # requests at once, those that wait for a turn included; more are sent away
STALL_S: Final = 30.0  # a reader that takes nothing for so long is dropped
CHUNK_BYTES: Final = 1 << 20
QUEUES_PER_TURN: Final = 1_000

_SEGMENT: Final = re.compile(r"[0-9]{20}", re.ASCII).fullmatch
_INDEX: Final = re.compile(r"[0-9]{17}", re.ASCII).fullmatch
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII).fullmatch
_QUEUE: Final = re.compile(r"[0-9]{1,9}", re.ASCII).fullmatch
_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})", re.ASCII).fullmatch
_TABLES: Final = frozenset(
    f"{name}.json"
    for name in ("consumerOffset", "delayOffset", "deletedTopics", "topics", "subscriptionGroup")
)


class ByteRange(NamedTuple):
    """Which bytes of a file are asked for."""

    start: int
    end: int


class RangeProblem(ValueError):
    """A Range header that cannot be answered; the text says why."""


def parse_range(header: str | None, length: int) -> ByteRange | None:
    """What a Range header means for a file of `length` bytes; None without one.

    One range is answered, not several. Raises RangeProblem. Source: RFC 9110, 14.1.2.
    """
    if header is None:
        return None
    found = _RANGE(header.strip())
    if found is None or found[1] == found[2] == "":
        raise RangeProblem("one range of bytes, as in bytes=0-1023")
    if found[1] == "":
        start, end = max(0, length - int(found[2])), length
    else:
        start = int(found[1])
        end = min(length, int(found[2]) + 1) if found[2] else length
        if found[2] and int(found[2]) < start:
            raise RangeProblem("a range does not end before it begins")
    if start >= length or start >= end:
        raise RangeProblem(f"there are {length} bytes")
    return ByteRange(start, end)


class Pace:
    """Lets so many bytes per second pass, whoever asks: each waits until those before are through.

    wait   asyncio.sleep; now_s  a monotonic clock
    """

    def __init__(
        self,
        bytes_per_second: int,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._now_s = now_s
        self._wait = wait
        self._through_s = 0.0

    async def take(self, count: int) -> None:
        """Returns when `count` bytes may be sent."""
        if not self._rate:
            return
        now = self._now_s()
        begin = max(now, self._through_s)
        self._through_s = begin + count / self._rate
        if begin > now:
            await self._wait(begin - now)


class StoreRoom:
    """Answers requests about one broker's store. Everything but what says [thread] is the loop's."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, standing: Standing, clock: Clock
    ) -> None:
        self._config = config
        self._store = store
        self._standing = standing
        self._started_ms = clock.now_ms()
        self._turns = asyncio.Semaphore(config.http_readers_max)
        self._asked = 0
        self._pace = Pace(config.http_bytes_per_second_max)
        self._threads = ThreadPoolExecutor(config.http_readers_max + 1, "http")
        self._stopping = False

    def room(self, app: web.Application) -> None:
        """Add our routes to a port."""
        handlers: dict[str, Handler] = {
            "/epochs": self._epochs,
            "/commitlog": self._log_files,
            "/commitlog/{start}": self._log_bytes,
            "/consumequeue": self._queues,
            "/consumequeue/{topic}/{queue}/{start}": self._queue_bytes,
            "/index": self._indexes,
            "/index/{name}": self._index_bytes,
            "/config/{name}": self._table,
        }
        app.add_routes([web.get(path, self._guarded(each)) for path, each in handlers.items()])

    def close(self) -> None:
        """Readers in the middle of a file are let down within a second."""
        self._stopping = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- who may ask ---

    def _guarded(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if shown(request) is not Shown.RIGHT:  # the store is more than a look from this machine
                return unauthorized(request)
            if self._asked >= ASKED_MAX:
                return busy(request, "too many readers")
            self._asked += 1
            try:
                return await handler(request)
            except (ConnectionError, TimeoutError) as problem:
                log.info("reader gone path=%s why=%s", request.path, problem or "it took nothing")
                if request.transport is not None:
                    request.transport.abort()
                raise
            except (OSError, ReplicationError) as problem:
                log.warning("cannot be read path=%s why=%s", request.path, problem)
                why = getattr(problem, "strerror", None) or problem
                return refusal(request, 500, f"cannot be read: {why}")
            finally:
                self._asked -= 1

        return answer

    # --- what there is ---

    def told(self) -> dict[str, Any]:
        """Who the broker is and how far it came, for who shows the token at /healthz."""
        config, store, standing = self._config, self._store, self._standing
        return {
            "cluster": config.cluster,
            "group": config.name,
            "brokerId": standing.broker_id,
            "role": standing.role.value,
            "epoch": standing.epoch,
            "start": store.start,
            "end": store.end,
            "confirmed": store.confirmed,
            "flushed": store.flushed,
            "writable": store.flags.writable,
            "startedMs": self._started_ms,
        }

    async def _epochs(self, request: web.Request) -> web.Response:
        history = await self._in_thread(_read_epoch_file, self._config.epoch_path)
        reigns = [{"epoch": entry.number, "start": entry.start} for entry in history.entries]
        return _json({"epoch": self._standing.epoch, "end": self._store.end, "epochs": reigns})

    async def _log_files(self, request: web.Request) -> web.Response:
        store = self._store
        positions = {
            "start": store.start,
            "end": store.end,
            "confirmed": store.confirmed,
            "flushed": store.flushed,
        }
        directory = self._config.storage.commitlog_path
        files = await self._in_thread(_listed, directory, _SEGMENT)
        size = self._config.storage.segment_bytes
        return _json(
            {
                "segmentBytes": size,
                "delayLevels": self._config.storage.delay_levels,
                **positions,
                # the file behind the last one is made in advance: it is no part of the log yet
                "files": [
                    (int(name), length) for name, length in files if int(name) < positions["end"]
                ],
            }
        )

    async def _queues(self, request: web.Request) -> web.Response:
        known = []
        for number, queue in enumerate(self._store.queues):
            known.append((queue.topic, queue.queue_id, queue.min_offset, queue.max_offset))
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
        directory = Path(self._config.storage.root) / "consumequeue"
        return _encoded(await self._in_thread(_queue_listing, directory, known))

    async def _indexes(self, request: web.Request) -> web.Response:
        directory = Path(self._config.storage.root) / "index"
        files = await self._in_thread(_listed, directory, _INDEX)
        return _json({"slots": self._config.storage.index_slots, "files": files})

    async def _table(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in _TABLES:
            return _missing()
        return await self._send_file(request, self._config.config_path / name)

    # --- bytes ---

    async def _log_bytes(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["start"]
        upto = request.query.get("upto", "confirmed")
        if upto not in ("confirmed", "end"):
            return refusal(request, 400, "upto is confirmed or end")
        if _SEGMENT(name) is None:
            return _missing()
        end = self._store.end if upto == "end" else self._store.confirmed
        length = min(max(0, end - int(name)), self._config.storage.segment_bytes)
        return await self._send_file(
            request, self._config.storage.commitlog_path / name, length=length
        )

    async def _queue_bytes(self, request: web.Request) -> web.StreamResponse:
        topic, queue, name = (request.match_info[part] for part in ("topic", "queue", "start"))
        if _TOPIC(topic) is None or _QUEUE(queue) is None or _SEGMENT(name) is None:
            return _missing()
        root = Path(self._config.storage.root) / "consumequeue"
        return await self._send_file(request, root / topic / str(int(queue)) / name)

    async def _index_bytes(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if _INDEX(name) is None:
            return _missing()
        return await self._send_file(request, Path(self._config.storage.root) / "index" / name)

    async def _send_file(
        self, request: web.Request, path: Path, *, length: int | None = None
    ) -> web.StreamResponse:
        """The asked-for range of a file, of its first `length` bytes where that is given."""
        async with self._turns:
            return await self._send_opened(request, path, length)

    async def _send_opened(
        self, request: web.Request, path: Path, length: int | None
    ) -> web.StreamResponse:
        try:
            descriptor, size = await self._in_thread(_opened, path)
        except FileNotFoundError:
            return _missing()
        try:
            length = size if length is None else min(length, size)
            try:
                wanted = parse_range(request.headers.get("Range"), length)
            except RangeProblem as problem:
                unanswerable = refusal(request, 416, str(problem))
                unanswerable.headers["Content-Range"] = f"bytes */{length}"
                return unanswerable
            answer = web.StreamResponse(status=200 if wanted is None else 206, headers=_HEADERS)
            answer.content_type = "application/octet-stream"
            if wanted is not None:
                span = f"bytes {wanted.start}-{wanted.end - 1}/{length}"
                answer.headers["Content-Range"] = span
            wanted = wanted or ByteRange(0, length)
            answer.content_length = wanted.end - wanted.start
            await self._send_range(request, answer, descriptor, wanted)
            return answer
        finally:
            os.close(descriptor)

    async def _send_range(
        self, request: web.Request, answer: web.StreamResponse, descriptor: int, wanted: ByteRange
    ) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("closed before the answer")
        encrypted = transport.get_extra_info("sslcontext") is not None
        if not encrypted:
            transport.set_write_buffer_limits(high=0)  # so that drain() means empty
        writer = await answer.prepare(request)
        assert writer is not None
        if request.method == "HEAD":
            return
        async with asyncio.timeout(STALL_S):
            await writer.drain()
        with _own_socket(transport) as socket_descriptor:
            for at in range(wanted.start, wanted.end, CHUNK_BYTES):
                count = min(CHUNK_BYTES, wanted.end - at)
                await self._pace.take(count)
                if encrypted:
                    data = await self._in_thread(os.pread, descriptor, count, at)
                    if len(data) < count:
                        raise ConnectionAbortedError("the file became shorter")
                    async with asyncio.timeout(STALL_S):
                        await answer.write(data)
                else:
                    await self._in_thread(self._splice, socket_descriptor, descriptor, at, count)
        await answer.write_eof()

    def _splice(self, socket_descriptor: int, descriptor: int, at: int, count: int) -> None:
        """Send bytes of a file through a socket that does not block. [thread]

        Raises ConnectionError, TimeoutError.
        """
        writable = select.poll()
        writable.register(socket_descriptor, select.POLLOUT)
        waited_s = 0
        while count:
            try:
                sent = os.sendfile(socket_descriptor, descriptor, at, count)
            except BlockingIOError:
                if not writable.poll(1_000):
                    waited_s += 1
                    if waited_s >= STALL_S or self._stopping:
                        raise TimeoutError(f"took nothing for {waited_s} s") from None
                continue
            if not sent:
                raise ConnectionAbortedError("the file became shorter")
            at += sent
            count -= sent
            waited_s = 0

    async def _in_thread(self, act: Callable[..., Any], *arguments: object) -> Any:
        """In threads of our own: those of the loop flush the log."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, act, *arguments)


# --- answers ---

_HEADERS: Final = {**HEADERS, "Accept-Ranges": "bytes"}


def _missing() -> web.Response:
    return web.Response(status=404, text="there is no such file\n", headers=_HEADERS)


def _json(value: dict[str, Any]) -> web.Response:
    return _encoded(msgspec.json.encode(value))


def _encoded(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=_HEADERS)


# --- files ---


@contextmanager
def _own_socket(transport: Any) -> Iterator[int]:
    """A descriptor of a transport's socket that stays ours when the transport closes its own: the number
    of a closed one may by then belong to another file."""
    found = transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        raise ConnectionResetError("closed before the answer")
    descriptor = os.dup(found.fileno())
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path) -> tuple[int, int]:
    """(descriptor, size) of a regular file. Raises FileNotFoundError, OSError. [thread]"""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise FileNotFoundError(path) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NOREUSE)
    return descriptor, found.st_size


def _listed(directory: Path, named: Callable[[str], Any]) -> list[tuple[str, int]]:
    """(name, size) of the files of a directory whose name matches, sorted. [thread]"""
    try:
        with os.scandir(directory) as entries:
            return sorted(
                (entry.name, entry.stat().st_size)
                for entry in entries
                if named(entry.name) and entry.is_file(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def _queue_listing(directory: Path, known: list[tuple[str, int, int, int]]) -> bytes:
    """What GET /consumequeue answers. [thread]"""
    queues, strays = [], []
    for topic, queue_id, first, last in known:
        if _TOPIC(topic) is None:
            continue
        place = directory / topic / str(queue_id)
        files = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if _SEGMENT(entry.name):
                        files.append((int(entry.name), entry.stat().st_size))
                    else:
                        strays.append(f"consumequeue/{topic}/{queue_id}/{entry.name}")
        except FileNotFoundError:
            continue  # deleted, or no entry yet
        queues.append(
            {"topic": topic, "queueId": queue_id, "min": first, "max": last, "files": sorted(files)}
        )
    return msgspec.json.encode({"queues": queues, "strays": strays})


def _read_epoch_file(path: Path) -> EpochHistory:
    """Raises CorruptEpochFile, OSError. [thread]"""
    return read_epochs(_content(path), _content(path.with_name(path.name + ".bak")))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
