"""A topic that is deleted and made again, over and over, while the group is broken: each life begins empty."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tandemmq.chaos.checking.lines import INFO, OK, Delivered, Send
from tandemmq.chaos.groups import ReplicaGroup
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.routes import topic_fields
from tandemmq.chaos.traffic import CHURN_TOPIC, Traffic
from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.remoting import Command, RemotingError, RequestCode, ResponseCode

DELETED_EVENT: Final = "topic deleted"
LAST_EVENT: Final = "topic's last life"  # of a run that did not break off
SENDS: Final = 5  # in each life
TIMEOUT_MS: Final = 3000
RETRY_S: Final = 0.1
SERVED_S: Final = 20.0
#: where changes are not waited for: a slave copies the tables every 3 s, and who is made master sooner after a change
#: may not know of it
TABLES_NS: Final = 5_000_000_000


class Churn:
    """run() until finish(): what is under way is done first, or it would reach into the last life."""

    def __init__(self, group: ReplicaGroup, journal: Journal, traffic: Traffic, seed: int) -> None:
        self.lives = 0
        self._group = group
        self._journal = journal
        self._traffic = traffic
        self._rng = random.Random(seed ^ 0xC4)
        self._finishing = asyncio.Event()

    async def run(self) -> None:
        while not self._finishing.is_set():
            await self._live()
            await self._pause(self._rng.uniform(0.2, 3.0))
            await self._delete()
            await self._pause(self._rng.uniform(0.0, 1.0))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finishing.wait(), seconds)

    async def finish(self, running: asyncio.Task[None], addresses: Sequence[str]) -> list[str]:
        """One more life, of a group that is whole; what any replica serves of an earlier one.

        running  the task of run()
        """
        self._finishing.set()
        await running
        await self._delete()
        self._journal.expected |= {CHURN_TOPIC}  # this life is not taken away from its readers
        self._journal.event(LAST_EVENT, life=self.lives + 1)
        await self._live()
        deadline = time.monotonic() + SERVED_S
        while True:
            ends = {each: await self._traffic.end(each, CHURN_TOPIC, 0) for each in addresses}
            wrong = {address: end for address, end in ends.items() if end != SENDS}
            if not wrong:
                return []
            if time.monotonic() > deadline:
                return [f"GHOST {SENDS} messages were sent to {CHURN_TOPIC}, its ends are {wrong}"]
            await asyncio.sleep(RETRY_S)

    async def _live(self) -> None:
        self.lives += 1
        await self._asked(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(CHURN_TOPIC, 1))
        for number in range(SENDS):
            await self._traffic.attempt(CHURN_TOPIC, 0, self.lives, number, 100, TIMEOUT_MS)

    async def _delete(self) -> None:
        remark = await self._asked(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": CHURN_TOPIC})
        self._journal.event(DELETED_EVENT, life=self.lives, everywhere=not remark)

    async def _asked(self, code: RequestCode, ext: Mapping[str, str]) -> str | None:
        """Ask the master of the moment until one has done it; its remark names who may not know of it."""
        while True:
            master = self._traffic.route.master
            if master is not None:
                try:
                    answer = await self._group.pool.request(
                        master, Command(code, dict(ext)), TIMEOUT_MS
                    )
                except RemotingError:
                    pass  # its death is what the campaign is about: ask the next
                else:
                    if answer.code == ResponseCode.SUCCESS and answer.remark != LEFT_TO_MASTER:
                        return answer.remark  # it was the master, whatever the route says
            await asyncio.sleep(RETRY_S)


def check_lives(
    sends: Iterable[Send],
    deleted: Mapping[int, int],
    began: Mapping[int, int],
    exchanges: Sequence[tuple[int, int]] = (),
    tables_ns: int = TABLES_NS,
) -> Iterator[str]:
    """A topic that was deleted and made again begins at queue offset 0: nothing of its former life is there.

    sends    to the topic; `lane` is the life
    deleted  life -> when its deletion was acknowledged, ns
    began    epoch -> when it acknowledged its first message, ns
    tables_ns  0 where a deletion is answered when the sync-state-set has it
    exchanges  from when to when a master did alone what the slave that a person then made the master knows nothing of
    """
    attempts: dict[int, int] = {}
    unclear: set[int] = set()  # lives of which a send may be stored after the deletion
    for send in sorted(sends, key=lambda each: each.began_ns):
        before = attempts.get(send.lane, 0)
        attempts[send.lane] = before + 1
        if send.outcome == INFO:
            unclear.add(send.lane)
        at_ns = deleted.get(send.lane - 1)
        if send.outcome != OK or at_ns is None or send.lane - 1 in unclear:
            continue
        untold = any(since <= at_ns <= until for since, until in exchanges) or any(
            epoch <= send.epoch and -tables_ns < first_ns - at_ns < tables_ns
            for epoch, first_ns in began.items()
        )
        if send.queue_offset > before and not untold:
            yield f"GHOST life {send.lane} of the topic begins with {send.queue_offset - before} messages: {send}"


def check_last_life(
    last: int, sends: Iterable[Send], delivered: Iterable[Delivered]
) -> Iterator[str]:
    """What the last life was sent reached the group that had read the topic's former lives.

    sends      to the topic; `lane` is the life
    delivered  to that group
    """
    given = {each.unique_id for each in delivered}
    for send in sends:
        if send.lane == last and send.outcome == OK and send.unique_id not in given:
            yield f"SKIPPED life {last} of the topic was not given to who read the one before: {send}"
