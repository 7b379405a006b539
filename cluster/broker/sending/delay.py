"""Messages with a delay level: parked in SCHEDULE_TOPIC_XXXX, delivered when due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tandemmq.cluster.broker.errors import RequestMalformed
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.sending.steadytime import Arrivals, SteadyTime
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.resting import Recent
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.storage import (
    Clock,
    CorruptRecord,
    Draft,
    Mended,
    MessageStore,
    Record,
    StorageError,
    decode,
    decode_properties,
    encode_properties,
    get_property,
    parse_delay_levels,
)

log = logging.getLogger(__name__)

FIRST_RUN_MS: Final = 1_000
TICK_MS: Final = 100
WARN_MS: Final = 10_000
DELIVERIES_PER_STEP: Final = 256  # per level, then the loop serves others
UPDATES_PER_VERSION: Final = (
    200  # the data version of delayOffset.json advances this often, as RocketMQ's does
)


class DelayLevels:
    """Delays, level 1 first: `1s 5s ... 2h`. Source: RocketMQ's ScheduleMessageService."""

    def __init__(self, text: str) -> None:
        self.delays_ms: Final = tuple(parse_delay_levels(text).values())

    @property
    def highest(self) -> int:
        return len(self.delays_ms)

    def park(self, draft: Draft, level: int) -> None:
        """Turn a message into one that waits: queue level - 1 of the schedule topic."""
        level = min(level, self.highest)
        properties = decode_properties(draft.properties)
        for name in messages.TIMER_PROPERTIES:
            properties.pop(name, None)
        properties[messages.DELAY] = str(level)
        properties[messages.REAL_TOPIC] = draft.topic
        properties[messages.REAL_QID] = str(draft.queue_id)
        draft.properties = encode_properties(properties)
        draft.topic = names.SCHEDULE_TOPIC
        draft.queue_id = level - 1


def delay_level(properties: bytes) -> int:
    """The delay level a message asks for; 0 when it asks for none. Raises RequestMalformed."""
    text = get_property(properties, b"DELAY")
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise RequestMalformed(f"property DELAY is not a number: {text[:40]!r}") from None


class DelaySchedule:
    """Moves due messages from the schedule topic to their real topics, one queue per level.

    Progress is kept in config/delayOffset.json every flushConsumerOffsetInterval and at stop, so a
    crash delivers some seconds of messages twice, as in RocketMQ; it rests on the delivered copies
    (INV-41: Broker gives the file its log), so no crash, cut or election delivers one never. The
    properties of a delivered record keep DELAY, REAL_TOPIC and REAL_QID byte by byte: nothing here
    looks at them again, so nothing is delayed twice.

    put  appends a message: Release.put

    When a message is due: tandemmq.cluster.broker.sending.steadytime. No step of the wall clock shortens or lengthens
    the delay of what came during our reign; what came before waits no longer than its whole delay.
    """

    def __init__(
        self,
        store: MessageStore,
        put: Callable[[Draft], object],
        levels: DelayLevels,
        path: Path,
        clock: Clock,
    ) -> None:
        self._store = store
        self._put = put
        self._levels = levels
        self._clock = clock
        self._store_host = b""
        self._warned_ms = -WARN_MS
        self._updates = 0
        self._recent = Recent()
        self.offsets: dict[int, int] = {}
        self.file = SavedFile(path, self._file_tree)
        self.version = DataVersion(timestamp=clock.now_ms())
        self.time = SteadyTime(store, clock)
        self._arrivals: dict[int, Arrivals] = {}
        self._reign_began()

    def load(self) -> None:
        """Read the file and correct each level's offset to what the store really has."""
        found = self.file.load() or {}
        for level, offset in (found.get("offsetTable") or {}).items():
            self.offsets[int(level)] = int(offset)
        self.version = DataVersion.from_json(found.get("dataVersion"), self._clock.now_ms())
        self._recent.note(int(found.get("restsOn") or 0), dict(self.offsets))
        self.correct()
        self.cut(self._store.end)  # for a log that lost what it had on the disk
        self.file.take_back()

    def _file_tree(self) -> dict[str, Any]:
        """What the file holds; `restsOn` is ours, RocketMQ does not read it."""
        return {**self.to_json(), "restsOn": self._recent.rests_on}

    def to_json(self) -> dict[str, Any]:
        """What slaves are told, and tools."""
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {str(level): offset for level, offset in sorted(self.offsets.items())},
        }

    def adopt(self, offsets: Mapping[int, int], version: DataVersion, rests_on: int = 0) -> None:
        """Take over the master's progress; a slave delivers nothing itself.

        rests_on   the log offset on which it rests, which our log has reached
        Not compared with our own queues: they may be behind. `correct` is for who becomes the master.
        """
        self._recent.note(rests_on, dict(offsets))
        if (self.offsets, self.version) != (offsets, version):
            self.offsets, self.version = dict(offsets), version
            self.file.changed()

    def cut(self, log_end: int) -> None:
        """The log was cut: so is progress that rested on what lay behind (INV-41)."""
        if self._recent.rests_on <= log_end:
            return
        before = self.offsets
        self.offsets = dict(self._recent.at(log_end) or {})
        self.correct()
        self._recent.note(log_end, dict(self.offsets))
        self.file.changed()
        log.warning(
            "delay progress taken back with the log end=%d from=%s to=%s",
            log_end, before, self.offsets,
        )  # fmt: skip

    def correct(self) -> None:
        """Bring every level's offset to what the store really has."""
        for level, offset in list(self.offsets.items()):
            self.offsets[level] = self._corrected(level, offset)

    def progress(self) -> dict[int, tuple[int, int]]:
        """level -> (next queue offset to deliver, end of the level's queue)."""
        return {
            level: (offset, self._store.max_offset(names.SCHEDULE_TOPIC, level - 1))
            for level, offset in sorted(self.offsets.items())
        }

    async def run(self) -> None:
        """Deliver until cancelled."""
        self._reign_began()
        await asyncio.sleep(FIRST_RUN_MS / 1000)
        while True:
            more = self.step()
            await asyncio.sleep(0 if more else TICK_MS / 1000)

    def _reign_began(self) -> None:
        """What is in the queues now came at some time before."""
        now_ms = self._clock.monotonic_ms()
        for level in range(1, self._levels.highest + 1):
            end = self._store.max_offset(names.SCHEDULE_TOPIC, level - 1)
            self._arrivals[level] = Arrivals(self._levels.delays_ms[level - 1], end, now_ms)

    def step(self) -> bool:
        """Deliver what is due now, some of every level; True when there is more that is due."""
        more = False
        self.time.look()
        now_ms = self._clock.monotonic_ms()
        generation = self.file.generation
        for level in range(1, self._levels.highest + 1):
            more |= self._step_level(level, now_ms)
        if self.file.generation != generation:
            self._recent.note(self._store.end, dict(self.offsets))
        return more

    def _step_level(self, level: int, now_ms: int) -> bool:
        queue = self._store.queue(names.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            self._arrivals[level].look(0, now_ms)  # when its first message comes is known, too
            return False
        start = offset = self.offsets.get(level, 0)
        arrivals, steady = self._arrivals[level], self.time
        arrivals.look(queue.max_offset, now_ms)
        more = True
        try:
            for _ in range(DELIVERIES_PER_STEP):
                entry = queue.entry(offset)
                if entry is None:
                    offset = self._corrected(level, offset)
                    more = False
                    break
                physical, _, deliver_at_ms = entry
                stored_due_ms = steady.monotonic_ms(deliver_at_ms)
                if now_ms < arrivals.due_ms(offset, stored_due_ms, steady.moved_ms):
                    more = False
                    break
                if not self._deliver(level, offset, physical):
                    mended = self._store.mending.mend(queue, offset)
                    if mended is not Mended.GONE:  # the next step finds it there, or looks on
                        more = mended is Mended.SEARCHING or queue.entry(offset) != entry
                        break
                offset += 1
        except StorageError as error:
            more = False
            self._warn(level, offset, error)
        if offset != start or level not in self.offsets:
            self._moved(level, offset)
        return more

    def _deliver(self, level: int, queue_offset: int, physical: int) -> bool:
        """Put one message into its real topic, unless it is damaged or senseless; False where it is not."""
        view = self._store.record_at(physical)
        if view is None:
            return False
        try:
            record = decode(view)
        except CorruptRecord as problem:  # tried again it would hold its whole level
            log.error("scheduled message is damaged, dropped offset=%d why=%s", physical, problem)
            return True
        if (record.topic, record.queue_id, record.queue_offset) != (
            names.SCHEDULE_TOPIC, level - 1, queue_offset,
        ):  # fmt: skip
            return False  # a damaged entry that names another's place
        draft = delivered(record)
        if draft is None:
            log.error("scheduled message has no place to go, dropped offset=%d", physical)
        elif draft.topic != names.HALF_TOPIC:
            self._put(draft)
        return True

    def _corrected(self, level: int, offset: int) -> int:
        lowest = self._store.min_offset(names.SCHEDULE_TOPIC, level - 1)
        highest = self._store.max_offset(names.SCHEDULE_TOPIC, level - 1)
        corrected = max(lowest, min(offset, highest))
        if corrected != offset:
            log.warning("delay offset corrected level=%d from=%d to=%d", level, offset, corrected)
        return corrected

    def _moved(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        self._updates += 1
        if self._updates % UPDATES_PER_VERSION == 0:
            self.version.advance(self._clock.now_ms())
        self.file.changed()

    def _warn(self, level: int, offset: int, error: StorageError) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._warned_ms >= WARN_MS:
            self._warned_ms = now_ms
            log.warning(
                "scheduled message waits level=%d queue_offset=%d why=%s", level, offset, error
            )


def delivered(record: Record) -> Draft | None:
    """The message with its real topic and queue, else unchanged. None without a sound REAL_QID."""
    topic = get_property(record.properties, b"REAL_TOPIC")
    queue_id = get_property(record.properties, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    draft = messages.again(record)
    draft.topic, draft.queue_id = topic.decode("utf-8", "replace"), int(queue_id)
    return draft
