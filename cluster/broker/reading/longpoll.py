"""Pulls that wait for a message, for their time to be up, or for their consumer to go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.headers import PullHeader
from tandemmq.storage import Clock, Selector

log = logging.getLogger(__name__)

#: (topic, queue id)
QueueKey = tuple[str, int]

#: (topic, queue id, end of the queue, tags code) of one dispatched message
Arrival = tuple[str, int, int, int]

K = TypeVar("K")

TICK_MS: Final = 500  # how late a pull's time may be noticed
JUDGING_MS: Final = 3  # in one go, of new messages by the filters of held pulls
SWEEP_MS: Final = 5_000  # how often every held pull is compared with its queue's end


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that found nothing and may wait.

    judged  queue offset behind the last message that its filter of properties did not take while it waits
    """

    connection: Connection
    request: Command
    header: PullHeader
    selector: Selector
    deadline_ms: int
    due_tick: int = field(init=False, default=0)
    judged: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.judged = self.offset

    @property
    def queue(self) -> QueueKey:
        return (self.header.topic, self.header.queue_id)

    @property
    def offset(self) -> int:
        """Queue offset it asked for: an entry at or behind it is what it waits for."""
        return self.header.queue_offset


class HeldPulls:
    """All held pulls of a broker, at most `count_max`.

    answer       called once for each pull that leaves: it reads the queue again and answers
                 whatever it finds.
                 Not called for a pull whose connection closed.
    queue_end    (topic, queue id) -> the queue's end
    look_on      judges some messages from pull.judged on; False when none is wanted, and pull.judged is behind them
    Deadlines are of clock.monotonic_ms.
    """

    def __init__(
        self,
        answer: Callable[[HeldPull], None],
        queue_end: Callable[[str, int], int],
        look_on: Callable[[HeldPull], bool],
        clock: Clock,
        count_max: int,
    ) -> None:
        self._answer = answer
        self._queue_end = queue_end
        self._look_on = look_on
        self._clock = clock
        self.count_max = count_max
        self.count = 0
        # The inner dicts are sets that keep their order: who waited first is woken first, on every
        # run alike.
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_tick: dict[int, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._unjudged: dict[HeldPull, None] = {}  # messages came that their filters did not see
        self._judges_later = False
        self._deleted: set[str] = set()
        self._tick = clock.monotonic_ms() // TICK_MS
        self._swept_ms = clock.monotonic_ms()

    @property
    def unjudged(self) -> int:
        """Pulls whose filters have not seen the new messages yet."""
        return len(self._unjudged)

    @property
    def full(self) -> bool:
        return self.count >= self.count_max

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until something concerns it. The caller looked at `full` before."""
        assert not self.full, self.count
        if pull.connection.closed:
            return
        mine = self._by_connection.get(pull.connection)
        if mine is None:
            self._by_connection[pull.connection] = mine = {}
            pull.connection.on_close(self._closed)
        mine[pull] = None
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        pull.due_tick = max(-(-pull.deadline_ms // TICK_MS), self._tick + 1)
        self._by_tick.setdefault(pull.due_tick, {})[pull] = None
        self.count += 1

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Wake the pulls that these messages concern, each once."""
        held = self._by_queue
        if not held:
            return
        ends: dict[QueueKey, int] = {}
        codes: dict[QueueKey, set[int]] = {}
        for topic, queue_id, queue_end, tags_code in arrivals:
            key = (topic, queue_id)
            if key in held:
                ends[key] = queue_end
                codes.setdefault(key, set()).add(tags_code)
        for key, end in ends.items():
            found = codes[key]
            for pull in [p for p in held[key] if end > p.offset]:
                if pull.selector.matches is not None:
                    self._unjudged[pull] = None
                elif pull.selector.may_want(found):
                    self._leave(pull)
        if self._unjudged and not self._judges_later:
            self._judge()

    def _judge(self) -> None:
        """Wake the pulls whose filter takes one of the new messages; after JUDGING_MS others have their turn first."""
        self._judges_later = False
        until_ms = self._clock.monotonic_ms() + JUDGING_MS
        while self._unjudged:
            pull = next(iter(self._unjudged))
            del self._unjudged[pull]
            if self._look_on(pull):
                self._leave(pull)
            elif self._queue_end(*pull.queue) > pull.judged:
                self._unjudged[pull] = None
            if self._clock.monotonic_ms() > until_ms and self._unjudged:
                self._judges_later = True
                asyncio.get_running_loop().call_soon(self._judge)
                return

    def queue_grew(self, topic: str, queue_id: int, queue_end: int) -> None:
        """Wake every pull of one queue that lies before its end, whatever it filters by."""
        pulls = self._by_queue.get((topic, queue_id))
        if pulls is not None:
            for pull in [p for p in pulls if queue_end > p.offset]:
                self._leave(pull)

    def sweep(self) -> None:
        """Wake every pull that lies before its queue's end, so that its offset moves on."""
        for topic, queue_id in list(self._by_queue):
            self.queue_grew(topic, queue_id, self._queue_end(topic, queue_id))

    def deleted(self, topic: str) -> None:
        """Its queues begin anew: with the next tick every pull of it is answered, wherever it lies."""
        self._deleted.add(topic)

    def sent_elsewhere(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """An administrator sends a group elsewhere in these queues: its pulls there are told now."""
        for queue_id in queue_ids:
            pulls = self._by_queue.get((topic, queue_id), {})
            for pull in [p for p in pulls if p.header.consumer_group == group]:
                self._leave(pull)

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is up, or whose queue is another one now."""
        if self._deleted:
            gone, self._deleted = self._deleted, set()
            for queue in [queue for queue in self._by_queue if queue[0] in gone]:
                for pull in list(self._by_queue.get(queue, ())):
                    self._leave(pull)
        last = now_ms // TICK_MS
        if last - self._tick > len(
            self._by_tick
        ):  # after a pause: look at what there is, not at every tick
            due = sorted(tick for tick in self._by_tick if tick <= last)
        else:
            due = [tick for tick in range(self._tick, last + 1) if tick in self._by_tick]
        self._tick = last
        for tick in due:
            for pull in list(self._by_tick.get(tick, ())):
                self._leave(pull)

    def release_all(self) -> None:
        """Answer everything that is held: the broker stops, or its role changed."""
        for pulls in list(self._by_queue.values()):
            for pull in list(pulls):
                self._leave(pull)

    async def run(self) -> None:
        """Watch the clock until cancelled."""
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now_ms = self._clock.monotonic_ms()
            self.expire(now_ms)
            if now_ms - self._swept_ms >= SWEEP_MS:
                self._swept_ms = now_ms
                self.sweep()

    def _leave(self, pull: HeldPull) -> None:
        self._forget(pull)
        # The connection's set stays, empty or not: its presence says that we are told when the
        # connection closes.
        del self._by_connection[pull.connection][pull]
        self._answer(pull)

    def _closed(self, connection: Connection) -> None:
        dropped = self._by_connection.pop(connection, {})
        for pull in dropped:
            self._forget(pull)
        if dropped:
            log.debug("held pulls dropped with their connection count=%d", len(dropped))

    def _forget(self, pull: HeldPull) -> None:
        _drop(self._by_queue, pull.queue, pull)
        _drop(self._by_tick, pull.due_tick, pull)
        self._unjudged.pop(pull, None)
        self.count -= 1


def _drop(table: dict[K, dict[HeldPull, None]], key: K, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
