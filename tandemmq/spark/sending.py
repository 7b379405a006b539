"""What an executor does with rows: sends them by our producer, as fast as the brokers take them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tandemmq.cluster.client import (
    ClientError,
    Producer,
    SendFailed,
    SendFuture,
    SendResult,
    SendStatus,
)
from tandemmq.cluster.client.consuming.ranges import passes
from tandemmq.spark.cluster import client_config
from tandemmq.spark.errors import RowRefused
from tandemmq.spark.options import WriteOptions
from tandemmq.spark.outgoing import Addressed, RowReader

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
ATTEMPT_MS: Final = 10_000
IN_FLIGHT_BYTES_MAX: Final = 32 << 20


class _UnderWay(NamedTuple):
    row: Mapping[str, Any]
    number: int
    addressed: Addressed
    future: SendFuture


def send_rows(batches: Iterator[Any], options: WriteOptions, reader: RowReader) -> int:
    """Send every row of some Arrow batches and return how many there were; all are stored when it returns.

    Raises RowRefused, with the first row that could not be sent; rows beside it may be stored.
    """
    config = client_config(options.cluster)
    producer = Producer(
        options.group,
        timeout_ms=min(ATTEMPT_MS, options.cluster.retry_timeout_ms),
        in_flight_max=options.in_flight,
        in_flight_bytes_max=IN_FLIGHT_BYTES_MAX,
        config=config,
    )
    with asyncio.Runner() as runner:
        # The loop stands still while Spark makes the next batch: nothing is under way then.
        runner.run(producer.start())
        try:
            sender = _Sender(producer, options, reader)
            for batch in batches:
                runner.run(sender.send(batch))
            return sender.count
        finally:
            runner.run(producer.stop())


class _Sender:
    """One task's rows on their way."""

    def __init__(self, producer: Producer, options: WriteOptions, reader: RowReader) -> None:
        self.count = 0
        self._producer = producer
        self._reader = reader
        self._in_flight_max = options.in_flight
        self._patience_s = options.cluster.retry_timeout_ms / 1000
        self._under_way: deque[_UnderWay] = deque()
        self._lanes: dict[object, SendFuture] = {}

    async def send(self, batch: Any) -> None:
        try:
            for row in batch.to_pylist():
                addressed = self._reader.read(row, self.count)
                await self._begin(row, addressed)
                self.count += 1
                while self._under_way and (
                    self._under_way[0].future.done() or len(self._under_way) >= self._in_flight_max
                ):
                    await self._finish()
            while self._under_way:
                await self._finish()
        finally:
            for left in self._under_way:
                left.future.cancel()
            self._under_way.clear()
            self._lanes.clear()

    async def _begin(self, row: Mapping[str, Any], addressed: Addressed) -> None:
        lane = addressed.lane
        if lane is not None:
            while lane in self._lanes:  # its row before is stored first, or their order is chance
                await self._finish()
        await self._producer.room()
        future = self._start(addressed)
        if lane is not None:
            self._lanes[lane] = future
        self._under_way.append(_UnderWay(row, self.count, addressed, future))

    def _start(self, addressed: Addressed) -> SendFuture:
        if addressed.queue is not None:
            return self._producer.send(addressed.message, queue=addressed.queue)
        if addressed.hash_key is not None:
            return self._producer.send(addressed.message, ordering_key=addressed.hash_key)
        return self._producer.send(addressed.message)

    async def _finish(self) -> None:
        """Have the oldest stored; while a broker is busy or away nothing new begins."""
        oldest = self._under_way.popleft()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        pause_s = PAUSE_S
        future = oldest.future
        while (why := await _why_not_stored(future)) is not None:
            about = self._reader.about(oldest.row, oldest.number, str(why))
            if isinstance(why, ClientError) and not _worth_another(why):
                raise RowRefused(about) from why
            if loop.time() >= deadline_s:
                raise RowRefused(f"{about}; tried for {self._patience_s:g} s (retryTimeoutMs)")
            log.info("send again, same unique id: %s", about)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            future = self._start(oldest.addressed)
        if oldest.addressed.lane is not None:
            self._lanes.pop(oldest.addressed.lane, None)


async def _why_not_stored(future: SendFuture) -> ClientError | str | None:
    """None for a message that is as safe as its broker promises."""
    try:
        result: SendResult = await future
    except ClientError as problem:
        return problem
    if result.status is SendStatus.SEND_OK:
        return None
    return f"{result.status.name}: stored, but not as safe as the broker promises"


def _worth_another(problem: ClientError) -> bool:
    if isinstance(problem, SendFailed):
        return any(passes(cause) for cause in problem.causes) or not problem.causes
    return passes(problem)
