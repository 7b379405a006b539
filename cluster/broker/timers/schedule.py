"""Delivers timed messages when they are due. Only masters deliver; everybody gives entries their units.

INV-53: a message is done with when its copy is in the log, and never before it is due. A mark (marks.py) speaks only of
copies that lie in front of it, so no crash, cut or election loses one; what is delivered again is what neither the
newest mark nor a copy behind it vouches for.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.sending.steadytime import SteadyTime
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.timers import marks, rules
from tandemmq.cluster.broker.timers.marks import Progress, Put
from tandemmq.cluster.broker.timers.pending import Linked, PendingTimers
from tandemmq.cluster.broker.timers.repeats import Delivered, key_of
from tandemmq.cluster.broker.timers.rules import Window
from tandemmq.storage import (
    NO_UNIT,
    Clock,
    CorruptRecord,
    MessageIllegal,
    MessageStore,
    PropertiesTooLarge,
    StorageError,
    TimerUnit,
    decode,
    encode_properties,
)

log = logging.getLogger(__name__)

TICK_MS: Final = 50
RETRY_MS: Final = 100
LINKS_PER_STEP: Final = 256
DELIVERIES_PER_STEP: Final = 128
WALKED_PER_STEP: Final = 4_096  # units of a chain
SKIPPED_PER_STEP: Final = 8_192  # empty slots
MARK_MS: Final = 1_000  # after a delivery
MARK_IDLE_MS: Final = 60_000  # when only others wrote: how far back a start must look for copies
REPEATS_KNOWN_MS: Final = (
    60_000  # after a reign began; by then no former master can have delivered what is due
)
WARN_MS: Final = 10_000
RETENTION_LOOK_MS: Final = 30_000
RATE_MS: Final = 1_000
SETTLE_LOOK_MS: Final = 10
NEVER_ENQUEUED: Final = (
    1 << 63
) - 1  # RocketMQ's word in TIMER_ENQUEUE_MS: due before it was on the wheel


@dataclass(slots=True)
class _Opened:
    """The slot that is delivered now.

    log_offset where the log ended when it was opened: copies of its messages lie behind
    walk       what of its chain was not looked at yet, the newest first
    positions  of its messages, the oldest first once the walk is over
    at         how many of them were looked at
    soon       (due ms, position) of those that were too early
    deletes    keys of messages of this slot that were recalled
    """

    slot_ms: int
    log_offset: int
    walk: Iterator[Linked] | None
    positions: array[int] = field(default_factory=lambda: array("q"))
    at: int = 0
    soon: list[tuple[int, int]] = field(default_factory=list)
    deletes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Rates:
    """Linked and delivered per second, between two looks that are RATE_MS apart."""

    looked_ms: int = 0
    totals: tuple[int, int] = (0, 0)
    per_s: tuple[float, float] = (0.0, 0.0)

    def look(self, now_ms: int, *totals: int) -> None:
        passed_ms = now_ms - self.looked_ms
        if passed_ms >= RATE_MS:
            linked, delivered = (
                1000 * (a - b) / passed_ms for a, b in zip(totals, self.totals, strict=True)
            )
            self.per_s = (linked, delivered)
            self.looked_ms, self.totals = now_ms, (totals[0], totals[1])


class TimerSchedule:
    """Links and delivers in bounded steps on the loop's thread.

    put    appends one message (Release.put)
    time   wall time that a step of the clock does not corrupt
    """

    def __init__(
        self, store: MessageStore, put: Put, config: BrokerConfig, pending: PendingTimers, time: SteadyTime,
        clock: Clock, host: bytes,
    ) -> None:  # fmt: skip
        self._store = store
        self._put = put
        self._config = config
        self.pending = pending
        self._time = time
        self._clock = clock
        self._host = host
        self._reign_end: int | None = None  # of the log, when the reign began that is not ready yet
        self._serving = False
        self._stopping = False
        self._opened: _Opened | None = None
        self._late: deque[TimerUnit] = deque()  # their slot was over when they were linked
        self._late_deletes: set[str] = set()
        self._delivered: Delivered | None = None
        self._delivered_until_ms = 0
        self._copies = 0  # since the newest mark
        self._marked_ms = self._warned_ms = self._cleaned_ms = -MARK_IDLE_MS
        self._marked_end = -1
        self._rates = _Rates(clock.monotonic_ms())
        self.enqueued_total = 0
        self.dequeued_total = 0

    # -- time ------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The wall time by which is delivered."""
        return self._clock.monotonic_ms() - self._time.monotonic_ms(0)

    @property
    def behind_ms(self) -> int:
        """How far delivery is behind; 0 on a slave and while it keeps up."""
        if not self._serving:
            return 0
        return max(0, self.now_ms() - self.pending.read_ms - self.pending.window.precision_ms)

    def runtime(self) -> dict[str, str]:
        """RocketMQ's entries of the runtime table; TPS over the last ten seconds or so."""
        queued = self._store.max_offset(names.TIMER_TOPIC, 0) - self.pending.enqueued
        rates = self._rates
        rates.look(self._clock.monotonic_ms(), self.enqueued_total, self.dequeued_total)
        return {
            "timerReadBehind": str(self.behind_ms // 1000),
            "timerOffsetBehind": str(max(0, queued)),
            "timerCongestNum": str(self.pending.count),
            "timerEnqueueTps": f"{rates.per_s[0]:.1f}",
            "timerDequeueTps": f"{rates.per_s[1]:.1f}",
        }

    # -- jobs ------------------------------------------------------------------------------

    async def run(self) -> None:
        """In every role: units for what comes, files to the disk. Until cancelled."""
        flushed_ms = self._clock.monotonic_ms()
        while True:
            try:
                more = self.link()
                now_ms = self._clock.monotonic_ms()
                if now_ms - flushed_ms >= self._config.timer_flush_interval_ms:
                    flushed_ms = now_ms
                    await self.pending.flush()
                    if now_ms - self._cleaned_ms >= RETENTION_LOOK_MS:
                        self._cleaned_ms = now_ms
                        self.pending.log_start_moved()
            except OSError as problem:
                self._warn("timers not written", problem)
                more = False
            await asyncio.sleep(0 if more else TICK_MS / 1000)

    async def deliver(self) -> None:
        """While this broker is a master. Until cancelled."""
        self.begin()
        try:
            while True:
                wait_ms = self.step()
                await asyncio.sleep(wait_ms / 1000)
        finally:
            self.end()

    async def settle(self) -> None:
        """Before a stop: the slot that has begun is delivered whole, or RocketMQ would deliver it again from its start.

        Takes at most the length of a slot, and nothing when none is being delivered.
        """
        self._stopping = True
        for _ in range(self.pending.window.precision_ms // SETTLE_LOOK_MS + 5):
            if self._opened is None:
                return
            await asyncio.sleep(SETTLE_LOOK_MS / 1000)

    def begin(self) -> None:
        """A reign begins: what the log holds now may be delivered already."""
        self._reign_end = self._store.end

    def end(self) -> None:
        """The reign is over; the next one begins with what the log says."""
        self._reign_end = self._opened = self._delivered = None
        self._serving = False
        self._late.clear()
        self._late_deletes.clear()

    # -- linking ---------------------------------------------------------------------------

    def link(self) -> bool:
        """Units for the next entries; whether there are more. Raises OSError."""
        if self._config.timer_enqueue_stopped:
            return False
        if not self._serving:
            self.pending.refresh()
        linked = self.pending.link(LINKS_PER_STEP)
        self.pending.discount()
        self.enqueued_total += len(linked)
        if self._serving:
            opened = self._opened
            for each in linked:
                if each.unit.slot_ms < self.pending.read_ms:
                    self._came_late(each.unit)
                elif opened is not None and each.unit.slot_ms == opened.slot_ms:
                    self._into(opened, each)
        return bool(linked) and not self.pending.derived

    def _came_late(self, unit: TimerUnit) -> None:
        if unit.deletes:
            self._late_deletes.add(self._deletes(unit))
        else:
            self._late.append(unit)

    def _into(self, opened: _Opened, linked: Linked) -> None:
        unit = linked.unit
        if unit.deletes:
            opened.deletes.add(self._deletes(unit))
        else:
            opened.positions.append(linked.position)

    def _deletes(self, unit: TimerUnit) -> str:
        """The key that a deleting message names; none of another topic's than its own: who may send to the one need
        not be allowed to send to the other."""
        view = self._store.stored_at(unit.log_offset)
        if view is None:
            return ""
        properties = decode(view, crc_checked=False).property_map
        key = properties.get(rules.DEL_UNIQKEY, "")
        own = rules.delete_key(properties.get(messages.REAL_TOPIC, ""), "")
        return key if key.startswith(own) else ""

    # -- delivering ------------------------------------------------------------------------

    def step(self) -> int:
        """Deliver some of what is due now; after how many ms to call again."""
        self._time.look()
        try:
            more = self.link()
            if not self._ready():
                return TICK_MS
            wait_ms = TICK_MS
            if not self._config.timer_dequeue_stopped:
                wait_ms = self._serve(self.now_ms() - 1)  # of both clocks only whole ms are known
            self._mark()
        except (StorageError, OSError) as problem:
            self._warn("timed messages wait", problem)
            return RETRY_MS
        return 0 if more else min(TICK_MS, wait_ms)

    def _ready(self) -> bool:
        """Whether everything that the log held when the reign began can be seen; then where to go on is known."""
        if self._serving:
            return True
        store, pending = self._store, self.pending
        if self._reign_end is None or min(store.dispatched, store.confirmed) < self._reign_end:
            return False
        if not (pending.derived or pending.blocked):
            return False
        pending.refresh()
        progress = pending.progress
        queue = store.queue(names.TIMER_TOPIC, 0)
        first = queue.entry(queue.min_offset) if queue is not None else None
        if first is None:  # nobody ever sent a timer, or none is left
            pending.read_ms = pending.window.floor(self.now_ms())
        elif not pending.read_ms:
            stored_ms = store.earliest_store_ms(names.TIMER_TOPIC)
            pending.read_ms = pending.window.floor(stored_ms) - pending.window.precision_ms
            progress = progress._replace(log_offset=first[0])
        for unit in pending.since(progress.queue_offset):
            if unit.slot_ms < pending.read_ms:
                self._came_late(unit)
        self._delivered = Delivered(store, progress, store.end)
        self._delivered_until_ms = self._clock.monotonic_ms() + REPEATS_KNOWN_MS
        self._serving = True
        if first is not None:
            log.info(
                "timers deliver from read_ms=%d behind_ms=%d pending=%d late=%d",
                pending.read_ms, self.behind_ms, pending.count, len(self._late),
            )  # fmt: skip
        return True

    def _serve(self, now_ms: int) -> int:
        """Late ones, then slot by slot; after how many ms there is more to do."""
        for _ in range(min(len(self._late), DELIVERIES_PER_STEP)):
            self._hand_out(self._late[0], self._late_deletes, late=True)
            self._late.popleft()
        if self._late:
            return 0
        self._late_deletes.clear()
        if self._opened is None and not self._open(now_ms):
            if self._stopping:
                return TICK_MS  # no slot is opened any more, however many are due
            next_ms = self.pending.read_ms
            if next_ms <= now_ms:
                next_ms += self.pending.window.precision_ms
            return max(0, next_ms - now_ms)
        opened = self._opened
        assert opened is not None
        return self._deliver(opened, now_ms)

    def _open(self, now_ms: int) -> bool:
        """Go over empty slots to one with messages; whether there is one that has begun."""
        pending = self.pending
        step_ms = pending.window.precision_ms
        for _ in range(SKIPPED_PER_STEP):
            slot_ms = pending.read_ms
            if slot_ms > now_ms or self._stopping:
                return False
            if pending.wheel.slot(slot_ms).last != NO_UNIT:
                self._opened = _Opened(slot_ms, self._store.end, pending.chain(slot_ms))
                return True
            if slot_ms + step_ms > now_ms:
                return False  # somebody may still be linked to it
            pending.read_ms = slot_ms + step_ms
        return False

    def _deliver(self, opened: _Opened, now_ms: int) -> int:
        if opened.walk is not None:
            self._walk(opened)
            return 0
        for _ in range(DELIVERIES_PER_STEP):
            if opened.soon and opened.soon[0][0] <= now_ms:
                position = opened.soon[0][1]
                self._hand_out(self.pending.log.unit(position), opened.deletes)
                heapq.heappop(opened.soon)
            elif opened.at < len(opened.positions):
                position = opened.positions[opened.at]
                unit = self.pending.log.unit(position)
                due_ms = self._due_ms(unit, opened.slot_ms)
                if due_ms <= now_ms:
                    self._hand_out(unit, opened.deletes)
                else:
                    heapq.heappush(opened.soon, (due_ms, position))
                opened.at += 1
            else:
                break
        else:
            return 0
        if opened.soon:
            return opened.soon[0][0] - now_ms
        over_ms = opened.slot_ms + self.pending.window.precision_ms
        if now_ms < over_ms:
            return over_ms - now_ms
        self.pending.finished(opened.slot_ms)
        self._opened = None
        return 0

    def _walk(self, opened: _Opened) -> None:
        """Collect the messages of a chain; what came since it was opened stays behind them. Raises StorageError."""
        assert opened.walk is not None
        for _ in range(WALKED_PER_STEP):
            try:
                linked = next(opened.walk, None)
            except StorageError:
                self._opened = None  # none of it was delivered yet: it is opened again
                raise
            if linked is None:
                break
            self._into(opened, linked)
        else:
            return
        opened.walk = None
        opened.positions = array("q", sorted(opened.positions))

    def _due_ms(self, unit: TimerUnit | None, slot_ms: int) -> int:
        if unit is None or unit.rolls:
            return slot_ms
        view = self._store.stored_at(unit.log_offset)
        if view is None:
            return slot_ms
        record = decode(view, crc_checked=False)
        precision_ms = self.pending.window.precision_ms
        return rules.due_ms(record.property_map, slot_ms, record.store_ms, precision_ms)

    def _hand_out(self, unit: TimerUnit | None, deletes: set[str], late: bool = False) -> None:
        """Put one message into its real topic, or back into the timer topic. Raises StorageError: it waits."""
        view = self._store.stored_at(unit.log_offset) if unit is not None else None
        if unit is None or view is None:
            offset = NO_UNIT if unit is None else unit.log_offset
            log.error("timed message is no longer in the log, dropped offset=%d", offset)
            return
        try:
            record = decode(view)
        except CorruptRecord as problem:
            log.error(
                "timed message is damaged, dropped offset=%d why=%s", unit.log_offset, problem
            )
            return
        properties = record.property_map
        topic = properties.get(messages.REAL_TOPIC, "")
        queue_id = rules.number(properties, messages.REAL_QID)
        rolls = unit.rolls
        if queue_id is None or queue_id < 0 or not topic:
            log.error("timed message has no place to go, dropped offset=%d", unit.log_offset)
            return
        unique_id = properties.get(messages.UNIQ_KEY, "")
        if not rolls and deletes and rules.delete_key(topic, unique_id) in deletes:
            self.pending.gone(topic, unit)
            return
        place = (names.TIMER_TOPIC, 0) if rolls else (topic, queue_id)
        if self._is_repeat(place, key_of(record, properties, int(rolls)), unit.log_offset):
            self.pending.gone(topic, unit)
            return
        if rolls:
            rolled = (rules.number(properties, rules.ROLL_TIMES) or 0) + 1
            properties[rules.ROLL_TIMES] = str(rolled)
        properties[rules.ENQUEUE_MS] = str(NEVER_ENQUEUED if late else unit.write_ms)
        properties[rules.DEQUEUE_MS] = str(self._clock.now_ms())
        draft = messages.again(record)
        draft.topic, draft.queue_id = place
        draft.properties = encode_properties(properties)
        try:
            self._put(draft)
        except PropertiesTooLarge:  # with what was added; without, they fit once
            draft.properties = record.properties
            self._put(draft)
        except MessageIllegal as problem:  # its topic's name, say, in a store that others wrote
            log.error(
                "timed message is refused, dropped offset=%d why=%s", unit.log_offset, problem
            )
            return
        self._copies += 1
        self.dequeued_total += 1
        self.pending.gone(topic, unit)

    def _is_repeat(
        self, place: tuple[str, int], key: tuple[str, str, int, int, int], log_offset: int
    ) -> bool:
        former = self._former()
        if former is None or log_offset >= former.end:
            return False
        return former.take(*place, key)

    def _former(self) -> Delivered | None:
        """What former reigns may have delivered of what is due now; None once that is impossible."""
        known = self._clock.monotonic_ms() <= self._delivered_until_ms
        if self._delivered is not None and not known and not self.behind_ms:
            self._delivered = None
        return self._delivered

    # -- marks -----------------------------------------------------------------------------

    def _mark(self) -> None:
        """Put a mark when enough has changed since the last. Raises StorageError."""
        now_ms = self._clock.monotonic_ms()
        since_ms = now_ms - self._marked_ms
        if self._late or not self.pending.enqueued or since_ms < MARK_MS:
            return
        if not self._copies and (since_ms < MARK_IDLE_MS or self._store.end == self._marked_end):
            return
        pending = self.pending
        former = self._former()
        since = self._store.end if self._opened is None else self._opened.log_offset
        if former is None:
            progress = Progress(pending.read_ms, pending.enqueued, since)
        else:  # copies of what comes yet may be those of a former reign
            progress = Progress(pending.read_ms, pending.enqueued, *former.since[2:])
        marks.put(self._put, progress, self._clock.now_ms(), self._host)
        self._copies = 0
        self._marked_ms, self._marked_end = now_ms, self._store.end

    def _warn(self, what: str, problem: Exception) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._warned_ms >= WARN_MS:
            self._warned_ms = now_ms
            log.warning("%s why=%s", what, problem)


def timers_of(
    config: BrokerConfig, store: MessageStore, put: Put, time: SteadyTime, clock: Clock, host: bytes
) -> TimerSchedule:
    """The timers of one broker, not loaded."""
    kept_ms = config.storage.reserved_hours * 3_600_000
    window = Window.of(config.timer_precision_ms, config.timer_roll_window_slots, kept_ms)
    pending = PendingTimers(store, clock, window, config.timer_log_file_bytes)
    return TimerSchedule(store, put, config, pending, time, clock, host)
