"""What a broker does beside answering: flushing, dispatching, making room, saving, forgetting."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.broker.reading.locks import QueueLocks
from tandemmq.cluster.broker.reading.members import ConsumerMembers, ProducerMembers
from tandemmq.cluster.broker.sending.acks import Acks, Late
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.watching.latencies import now_us
from tandemmq.cluster.broker.watching.putsizes import PutSizes
from tandemmq.cluster.broker.watching.stats import MINUTE_SAMPLE_S, BrokerStats
from tandemmq.storage import COMPILED, Clock, FlushMode, MessageStore

log = logging.getLogger(__name__)

#: per turn of the loop: 1 to 3 ms, then others are served
DISPATCH_RECORDS_MAX: Final = 2_048 if COMPILED else 256
SEGMENT_CHECK_MS: Final = 100
SEGMENT_RETRY_MS: Final = 1_000  # where there was no space for it
FLUSH_RETRY_S: Final = 0.1
EXPIRY_LOOK_MS: Final = 100
EXPIRY_LOOK_MS_MIN: Final = 5
STOOD_STILL_MS: Final = 1_000  # this process was stopped, or the loop was
EXPIRY_MS: Final = 10_000
STATS_MS: Final = 1_000
INSECURE_REMINDER_S: Final = 3_600


class LogFlush:
    """Puts the log on the disk: by time, or in SYNC_FLUSH mode whenever somebody waits for it.

    One fdatasync at a time, for everything appended until it began: the more senders wait, the
    more share it. A failed flush is final (FlushFailed ends the job, and the process with it):
    what the kernel dropped cannot be known. on_flushed is told after each flush up to where the log
    is on the disk.
    """

    def __init__(
        self, store: MessageStore, acks: Acks, clock: Clock, on_flushed: Callable[[int], None]
    ) -> None:
        self._store = store
        self._acks = acks
        self._clock = clock
        self._on_flushed = on_flushed
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()
        self._told = self._wanted_end = 0
        self.put_off = 0  # flushes that had to wait for a descriptor
        self.began_ms: int | None = None  # of the flush that runs
        self._synchronous = store.config.flush_mode is FlushMode.SYNC

    async def run(self) -> None:
        if self._synchronous:
            await self._run_sync()
        else:
            await self._run_async()

    async def _run_async(self) -> None:
        config = self._store.config
        thorough_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(config.flush_interval_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            pages_min = config.flush_pages_min
            if now_ms - thorough_ms >= config.flush_thorough_interval_ms:
                thorough_ms, pages_min = now_ms, 0
            await self._flush(pages_min)

    async def _run_sync(self) -> None:
        interval_s = self._store.config.flush_interval_ms / 1000
        while True:
            self._wanted.clear()
            if self._told >= max(self._acks.wanted_end, self._wanted_end):
                try:
                    async with asyncio.timeout(interval_s):
                        await self._wanted.wait()
                except TimeoutError:
                    pass  # nobody waits, but what came one-way must not lie in memory for ever
            await self._flush(0)

    def hurry(self) -> None:
        """In SYNC_FLUSH mode: flush soon if answers wait for that."""
        if self._synchronous and self._told < self._acks.wanted_end:
            self._wanted.set()

    def want(self, end: int) -> None:
        """In SYNC_FLUSH mode: flush soon, for somebody else than a sender waits for it."""
        self._wanted_end = end
        self._wanted.set()

    async def reach(self, end: int) -> None:
        """Have the log on the disk up to `end`, unless no descriptor is to be had. Raises FlushFailed."""
        if self._store.flushed < end:
            await self._flush(0)

    async def settle(self) -> None:
        """Flush everything now, so that nobody waits any more: the broker stops."""
        await self._flush(0)

    async def _flush(self, pages_min: int) -> None:
        async with self._turn:
            self.began_ms = self._clock.monotonic_ms()
            try:
                took_us = await asyncio.to_thread(self._timed_flush, pages_min)
            except OSError as problem:  # no descriptor to be had: nothing was tried, nobody is told
                self.put_off += 1
                log.warning("log not flushed, trying again why=%s", problem)
                await asyncio.sleep(FLUSH_RETRY_S)
                return
            finally:
                self.began_ms = None
            if took_us >= 0:
                self._acks.latencies.flush.add(took_us)
            self._told = self._store.flushed
            self._on_flushed(self._told)

    def _timed_flush(self, pages_min: int) -> int:
        """Flush; how many us it took, -1 where there was nothing to do."""
        flushed, began_us = self._store.flushed, now_us()
        return now_us() - began_us if self._store.flush_log(pages_min) > flushed else -1


class AckExpiry:
    """Answers senders that wait too long for the disk or for a slave, right when it is too long.

    late   what they are told then
    """

    def __init__(self, acks: Acks, late: Late, clock: Clock) -> None:
        self._acks = acks
        self._late = late
        self._clock = clock

    async def run(self) -> None:
        looked_ms = self._clock.monotonic_ms()
        while True:
            due_ms = self._acks.due_ms
            wait_ms = EXPIRY_LOOK_MS if due_ms is None else due_ms - looked_ms
            await asyncio.sleep(min(max(wait_ms, EXPIRY_LOOK_MS_MIN), EXPIRY_LOOK_MS) / 1000)
            now_ms = self._clock.monotonic_ms()
            stood_still = now_ms - looked_ms > STOOD_STILL_MS
            looked_ms = now_ms
            if (
                not stood_still
            ):  # else what came in meanwhile is read first: it may be what is waited for
                self._acks.expire(now_ms, self._late)


class QueueFlush:
    """Puts queues, index and checkpoint on the disk; all of them can be rebuilt from the log."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        config = self._store.config
        thorough_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(config.queue_flush_interval_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            pages_min = config.queue_flush_pages_min
            if now_ms - thorough_ms >= config.queue_flush_thorough_interval_ms:
                thorough_ms, pages_min = now_ms, 0
            await asyncio.to_thread(self._store.flush_queues, pages_min)
            confirmed = self._store.whole(self._store.confirmed)
            await asyncio.to_thread(self._store.flush_checkpoint, confirmed)


class Dispatch:
    """Derives queues and index from the log, right behind the appends that wake it.

    A turn takes at most DISPATCH_RECORDS_MAX records; more wait for the next turn of the loop, so
    that no backlog holds up requests.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """There is, or may be, more to dispatch. Costs nothing when a turn is already due."""
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        failure = self._failure
        if failure is None or failure.done():
            return
        try:
            taken = self._store.dispatch(DISPATCH_RECORDS_MAX)
        except Exception as problem:  # ends the job, and the process with it
            failure.set_exception(problem)
            return
        if taken >= DISPATCH_RECORDS_MAX:
            self.wake()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        self.wake()
        try:
            await self._failure
        finally:
            self._loop = None


class NextSegment:
    """Makes the next file of the log before a sender needs it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def run(self) -> None:
        while True:
            pause_ms = SEGMENT_CHECK_MS
            if self._store.next_segment_needed:
                made = await asyncio.to_thread(self._store.prepare_next_segment)
                pause_ms = SEGMENT_CHECK_MS if made else SEGMENT_RETRY_MS
            await asyncio.sleep(pause_ms / 1000)


class Retention:
    """Deletes old files when their time has come or the disk fills, and watches how full it is."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._wanted = asyncio.Event()

    def clean_now(self) -> None:
        """An administrator wants expired files gone, whatever the hour."""
        self._store.clean_soon()
        self._wanted.set()

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            await self._pass()
            try:
                async with asyncio.timeout(self._store.config.clean_interval_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the usual case: time for the next look

    async def _pass(self) -> None:
        try:
            deleted = self._store.clean()
            if self._store.clean_held_back:
                # What a start has found, nothing has vouched for yet: not only a minute later
                await asyncio.to_thread(self._store.flush_queues, 0)
                deleted += self._store.clean()
            waiting = await asyncio.to_thread(self._store.free_retired)
            if deleted and self._store.flags.full:
                self._wanted.set()  # there may be space now: look again at once
        except OSError as problem:
            log.error("old files not deleted why=%s", problem)
            return
        if deleted:
            log.info("old files deleted count=%d still_read=%d", len(deleted), waiting)


class TableSaving:
    """Writes tables whose changes nobody waits for: progress of consumers, groups made by use.

    FlushFailed, out of the log that progress rests on, ends the job, and the process with it.
    """

    def __init__(self, files: Iterable[SavedFile], interval_ms: int) -> None:
        self._files = list(files)
        self._interval_ms = interval_ms

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            for file in self._files:
                try:
                    await file.saved()
                except OSError as problem:
                    log.error("table not saved path=%s why=%s", file.path, problem)


@dataclass(frozen=True, slots=True, eq=False)
class Expiry:
    """Forgets clients that stopped sending heartbeats, and locks that nobody renews."""

    consumers: ConsumerMembers
    producers: ProducerMembers
    locks: QueueLocks
    clock: Clock
    expired_after_ms: int

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_MS / 1000)
            self.scan(self.clock.monotonic_ms())

    def scan(self, now_ms: int) -> None:
        """One look at every member and lock."""
        for members in (self.consumers, self.producers):
            for connection in members.expire(now_ms, self.expired_after_ms):
                log.info("client expired peer=%s:%d", *connection.peer)
                connection.close("no heartbeat for too long")
        self.locks.expire(now_ms)


class StatsSampling:
    """Samples the counters that rates and windows are made of."""

    def __init__(self, stats: BrokerStats, puts: PutSizes, clock: Clock) -> None:
        self._stats = stats
        self._puts = puts
        self._clock = clock

    async def run(self) -> None:
        day = time.localtime(self._clock.now_ms() / 1000).tm_yday
        seconds = 0
        while True:
            now_ms = self._clock.now_ms()
            self._stats.sample_rates(now_ms)
            if seconds % MINUTE_SAMPLE_S == 0:
                self._stats.put(self._puts.look())
                self._stats.sample_windows(now_ms)
            today = time.localtime(now_ms / 1000).tm_yday
            if today != day:
                day = today
                self._stats.morning()
            seconds += 1
            await asyncio.sleep(STATS_MS / 1000)


class InsecureReminder:
    """Says every hour that strangers may read and write everything.

    said  it was said at the start already
    """

    def __init__(self, exposure: str, said: bool = False) -> None:
        self._exposure = exposure
        self._said = said

    async def run(self) -> None:
        while True:
            if not self._said:
                log.warning("insecure: %s", self._exposure)
            self._said = False
            await asyncio.sleep(INSECURE_REMINDER_S)
