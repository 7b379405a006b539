"""How far a group has consumed each queue: in memory first, then at the broker or in a file."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Protocol

import msgspec

from tandemmq.cluster.client.errors import BrokerUnreachable, ClientError, OffsetUnknown
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.remoting import bodies
from tandemmq.storage import CorruptFile, jsonfile

log = logging.getLogger(__name__)

QUERY_TIMEOUT_MS = 5_000  # RocketMQ's for codes 14 and 15


class OffsetStore(Protocol):
    """Where commit positions live between runs.

    An offset is the queue offset of the first entry not consumed.
    """

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored position, None when the group has none.

        Raises OffsetUnknown when that cannot be told now.
        """

    async def write(
        self, positions: dict[MessageQueue, int], *, waiting: bool
    ) -> list[MessageQueue]:
        """Store positions; returns the queues where it failed. waiting: for the answers."""


class OffsetTable:
    """Positions in memory. No I/O."""

    def __init__(self) -> None:
        self._positions: dict[MessageQueue, int] = {}

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Move forward; a smaller offset is ignored (messages finish in any order)."""
        self._positions[queue] = max(offset, self._positions.get(queue, offset))

    def set(self, queue: MessageQueue, offset: int) -> None:
        """Move anywhere: a seek, or what the broker told."""
        self._positions[queue] = offset

    def get(self, queue: MessageQueue) -> int | None:
        """The position in memory."""
        return self._positions.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """The queue belongs to somebody else now."""
        self._positions.pop(queue, None)

    def all(self) -> dict[MessageQueue, int]:
        """A copy of every position."""
        return dict(self._positions)


class BrokerOffsets:
    """Clustering: the brokers keep the positions, so that members can take over from each other."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._begun: set[tuple[str, str]] = set()  # (topic, broker name) with a position stored

    async def read(self, queue: MessageQueue) -> int | None:
        """QUERY_CONSUMER_OFFSET at the queue's broker. Raises OffsetUnknown."""
        try:
            address, _ = await self._instance.reader_address(queue.broker_name, queue.topic)
            return await calls.query_offset(
                self._instance.connections, address, self._group, queue, QUERY_TIMEOUT_MS
            )
        except ClientError as problem:
            raise OffsetUnknown(
                f"the offset of group {self._group} in {queue} is unknown now: {problem}"
            ) from problem

    async def write(
        self, positions: dict[MessageQueue, int], *, waiting: bool
    ) -> list[MessageQueue]:
        """UPDATE_CONSUMER_OFFSET for each queue; failures are logged and returned."""

        async def commit(queue: MessageQueue, offset: int, *, waiting: bool) -> MessageQueue | None:
            try:
                found = self._instance.reader(queue.broker_name)
                if found is None:
                    raise BrokerUnreachable(queue.broker_name, "no member is registered now")
                await calls.commit_offset(
                    self._instance.connections,
                    found[0],
                    self._group,
                    queue,
                    offset,
                    QUERY_TIMEOUT_MS,
                    oneway=not waiting,
                )
            except ClientError as problem:
                log.warning(
                    "offset not committed group=%s queue=%s offset=%d why=%s",
                    self._group,
                    queue,
                    offset,
                    problem,
                )
                return queue
            return None

        # A stock broker that gets a group's first two positions of a topic at once keeps only one:
        # each thread makes a table for them, and the later replaces the earlier.
        first = {(queue.topic, queue.broker_name): queue for queue in reversed(positions)}
        alone = [queue for place, queue in first.items() if place not in self._begun]
        results = await asyncio.gather(
            *(commit(queue, positions[queue], waiting=True) for queue in alone)
        )
        failed = [queue for queue in results if queue is not None]
        self._begun.update(
            (queue.topic, queue.broker_name) for queue in alone if queue not in failed
        )
        results = await asyncio.gather(
            *(
                commit(queue, offset, waiting=waiting)
                for queue, offset in positions.items()
                if queue not in alone
            )
        )
        return [*failed, *(queue for queue in results if queue is not None)]


class FileOffsets:
    """Broadcasting: every client keeps its own positions, in RocketMQ's file offsets.json.

    path  usually ~/.rocketmq_offsets/<client id>/<group>/offsets.json
    Source: RocketMQ's LocalFileOffsetStore.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored: dict[MessageQueue, int] | None = None
        self._saving = threading.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        """From the file, read once. Raises OffsetUnknown when the file cannot be read."""
        if self._stored is None:
            try:
                self._stored = await asyncio.to_thread(_load, self._path)
            except (CorruptFile, OSError, ValueError) as problem:
                raise OffsetUnknown(
                    f"{self._path} cannot be read, move it away to start anew: {problem!r}"
                ) from problem
        return self._stored.get(queue)

    async def write(
        self, positions: dict[MessageQueue, int], *, waiting: bool
    ) -> list[MessageQueue]:
        """Replace the file; positions of queues that are not given stay as they were."""
        if self._stored is None or positions.items() <= self._stored.items():
            return []  # without a read there is no position to keep: queues start by reading
        merged = {**self._stored, **positions}
        try:
            await asyncio.to_thread(self._save, merged)
        except OSError as problem:
            log.warning("offsets not saved path=%s why=%s", self._path, problem)
            return list(positions)
        self._stored = merged
        return []

    def _save(self, positions: dict[MessageQueue, int]) -> None:
        """In a thread. A save whose task was cancelled goes on: the next one must wait for it."""
        with self._saving:
            _save(self._path, positions)


class _Positions(msgspec.Struct, rename="camel"):
    offset_table: dict[MessageQueue, int] = {}


def _load(path: Path) -> dict[MessageQueue, int]:
    return bodies.shaped(_Positions, jsonfile.load(path) or {}).offset_table


def _save(path: Path, positions: dict[MessageQueue, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {calls.to_json(queue).decode(): offset for queue, offset in sorted(positions.items())}
    jsonfile.save(path, {"offsetTable": table})
