"""Members of groups that read for who asks over HTTP: one consumer per topic and group, as long as somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.cluster.client import (
    CacheLimits,
    MessageQueue,
    OffsetUnknown,
    PullConsumer,
    QueueNotAssigned,
    StartFrom,
)
from tandemmq.plane.leases import Lease, Leases
from tandemmq.plane.problems import ApiProblem
from tandemmq.plane.reach import Reach

log = logging.getLogger(__name__)

SESSIONS_MAX: Final = 64
IDLE_S: Final = 60.0  # then the member leaves its group
REAP_S: Final = 5.0
LEAVE_S: Final = 2.0  # all members together, when the process stops
HELD_MAX: Final = 1_000  # messages of a session that are handed out and not acknowledged
HELD_BYTES_MAX: Final = 32 << 20
READ_AHEAD: Final = CacheLimits(
    messages_max=256, bytes_max=8 << 20
)  # per queue: a broker's memory is for brokers
POLL_MS: Final = 200  # so often those whose time is over are looked at
ANSWER_BYTES_MAX: Final = 8 << 20


class Session:
    """One member of a group, reading one topic."""

    def __init__(self, consumer: PullConsumer, topic: str, tags: str) -> None:
        self.tags = tags
        self.used_s = time.monotonic()
        self.asking = 0
        self._consumer = consumer
        self._leases = Leases(topic, HELD_MAX, HELD_BYTES_MAX)
        self._turn = asyncio.Lock()
        self._committing = asyncio.Lock()

    async def take(self, count_max: int, wait_s: float, lease_ms: int) -> list[Lease]:
        """The next messages; an empty list after wait_s without any. Raises ClientError."""
        deadline_s = time.monotonic() + wait_s
        while True:
            async with self._turn:
                found = await self._take_now(count_max, lease_ms, deadline_s)
            if found or time.monotonic() >= deadline_s:
                return found
            if not self._leases.room:
                await asyncio.sleep(POLL_MS / 1000)

    async def _take_now(self, count_max: int, lease_ms: int, deadline_s: float) -> list[Lease]:
        leases = self._leases
        leases.keep(self._consumer.assignment)
        again = _within(leases.due_again(count_max, _now_ms(), lease_ms), leases)
        room = min(count_max, leases.room)
        if again or not room:
            return again
        left_ms = int(1000 * (deadline_s - time.monotonic()))
        messages = await self._consumer.poll(room, timeout_ms=max(1, min(POLL_MS, left_ms)))
        return _within(leases.hand_out(messages, _now_ms(), lease_ms), leases)

    async def acknowledge(self, receipts: Sequence[str]) -> list[str]:
        """Receipts that are unknown. When this returns brokers have the positions. Raises ApiProblem."""
        self._leases.keep(self._consumer.assignment)
        unknown = self._leases.acknowledge(receipts)
        async with self._committing:
            positions = self._leases.take_positions()
            if positions:
                await self._commit(positions)
        return unknown

    async def _commit(self, positions: Mapping[MessageQueue, int]) -> None:
        try:
            await self._consumer.commit(positions)
        except (
            QueueNotAssigned
        ):  # moved to another member meanwhile: what was done of it may come again there
            self._leases.keep(self._consumer.assignment)
            self._leases.not_stored(positions.keys())
        except OffsetUnknown as problem:
            self._leases.not_stored(positions.keys())
            hint = "they are done here, and the position goes with the next receipts"
            raise ApiProblem(503, str(problem), hint) from problem

    def give_back(self, leases: Sequence[Lease]) -> None:
        """They did not reach who asked."""
        self._leases.give_back(leases, _now_ms())

    async def close(self) -> None:
        """Leave the group. What is not acknowledged comes again to whoever reads its queue next."""
        await self._consumer.stop(consumed=False)


def _within(found: list[Lease], leases: Leases) -> list[Lease]:
    """As many as an answer may hold, at least one; the others are for the next who asks."""
    size = 0
    for place, lease in enumerate(found):
        size += len(lease.message.body)
        if place and size > ANSWER_BYTES_MAX:
            leases.give_back(found[place:], _now_ms())
            return found[:place]
    return found


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Sessions:
    """All members that this process has over HTTP. run() closes those that nobody asks; serves until cancelled."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._open: dict[tuple[str, str], Session] = {}
        self._opening = asyncio.Lock()

    async def of(self, topic: str, group: str, tags: str, start: StartFrom) -> Session:
        """The member that reads this topic for this group; joins when there is none. Raises ApiProblem, ClientError."""
        key = (topic, group)
        async with self._opening:
            found = self._open.get(key)
            if found is None:
                if len(self._open) >= SESSIONS_MAX:
                    raise ApiProblem(
                        503, f"{SESSIONS_MAX} groups are read here", "ask another process"
                    )
                found = self._open[key] = await self._join(topic, group, tags, start)
        if found.tags != tags:
            raise ApiProblem(
                409, f"{group} reads {topic} with tags={found.tags} here", f"or nobody asks for {IDLE_S:g} s"
            )  # fmt: skip
        found.used_s = time.monotonic()
        return found

    def known(self, topic: str, group: str) -> Session | None:
        """The member, if there is one."""
        found = self._open.get((topic, group))
        if found is not None:
            found.used_s = time.monotonic()
        return found

    async def _join(self, topic: str, group: str, tags: str, start: StartFrom) -> Session:
        consumer = PullConsumer(
            group,
            subscribe={topic: tags},
            start=start,
            auto_commit=False,
            limits=READ_AHEAD,
            config=await self._reach.client(),
        )
        await consumer.start()
        try:
            await consumer.queues(topic)
        except BaseException:  # there is no such topic, or the request was given up
            await consumer.stop()
            raise
        log.info("reading over HTTP topic=%s group=%s tags=%s", topic, group, tags)
        return Session(consumer, topic, tags)

    async def run(self) -> None:
        """Have members leave whom nobody asked for a while."""
        while True:
            await asyncio.sleep(REAP_S)
            for key, session in list(self._open.items()):
                if not session.asking and time.monotonic() - session.used_s > IDLE_S:
                    await self._leave(key)

    async def close(self) -> None:
        """All members leave, as far as brokers answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(*map(self._leave, list(self._open)))

    async def _leave(self, key: tuple[str, str]) -> None:
        session = self._open.pop(key)
        topic, group = key
        log.info("reading over HTTP no more topic=%s group=%s", topic, group)
        await session.close()
