"""Timed messages that wait: wheel and timer log, kept in step with the timer topic's queue on masters and slaves alike.

INV-52: everything here follows from the message log. What is missing, damaged, behind it or ahead of it is derived
anew: units from the timer queue, slots from the units.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.broker.timers import marks, rules
from tandemmq.cluster.broker.timers.marks import Progress
from tandemmq.cluster.broker.timers.repeats import Key, key_of
from tandemmq.cluster.broker.timers.rules import Window
from tandemmq.storage import (
    NO_UNIT,
    TIMER_BITS,
    TIMER_DEFAULT,
    TIMER_DELETE,
    TIMER_ROLL,
    UNIT_BYTES,
    Clock,
    CorruptFile,
    CorruptRecord,
    Mended,
    MessageStore,
    Record,
    Slot,
    TimerCheckpoint,
    TimerLog,
    TimerUnit,
    TimerWheel,
    decode,
    get_property,
    java_hash,
    jsonfile,
    load_timer_checkpoint,
    save_timer_checkpoint,
    sync_files,
    write_wheel,
)

log = logging.getLogger(__name__)

UNCLEAN_MARGIN_MS: Final = (
    15_000  # so much may a crash of RocketMQ's leave its checkpoint ahead of its log
)
FOREIGN_SLACK_MS: Final = 1_000
FREE_LOOK_SLOTS: Final = 600
HOUR_MS: Final = 3_600_000
COUNTED_PER_STEP: Final = 4_096  # units
_OUT: Final = rules.OUT_MS.encode()
_REAL_TOPIC: Final = messages.REAL_TOPIC.encode()
_DELETE: Final = rules.DEL_UNIQKEY.encode()


class Linked(NamedTuple):
    """An entry of the timer queue that has its unit now."""

    position: int
    unit: TimerUnit


class PendingTimers:
    """Wheel, timer log and their counters.

    read_ms   slots before it were delivered, as far as is known here: by the newest mark, on a master by its delivery
    enqueued  entries of the timer queue below this queue offset have their unit
    blocked   the next entry's place on the wheel is taken until a slot of two weeks ago or more is delivered
    """

    def __init__(
        self, store: MessageStore, clock: Clock, window: Window, log_file_bytes: int
    ) -> None:
        root = Path(store.config.root)
        self._store = store
        self._clock = clock
        self.window = window
        self.wheel = TimerWheel(root / "timerwheel", window.precision_ms)
        self.log = TimerLog(root / "timerlog", log_file_bytes)
        self._check_path = root / "config" / "timercheck"
        self._metrics_path = root / "config" / "timermetrics"
        self._foreign: TimerCheckpoint | None = None  # what RocketMQ left, while no mark says more
        self._marks_end = -1
        self._rolled: Counter[Key] | None = (
            None  # copies of messages that were put back; while all is derived anew
        )
        self._known_below = 0  # entries below were known to a mark when all had to be derived anew
        self._written: TimerCheckpoint | None = None
        self.version = DataVersion(timestamp=clock.now_ms())
        self.progress = marks.NOTHING
        self.read_ms = 0
        self.enqueued = 0
        self._linked_offset = -1  # log offset of the last entry that has a unit
        self.blocked = False
        # hour since 1970 of the slot -> topic -> messages
        self.waiting: dict[int, Counter[str]] = {}
        self._counted_ms = 0  # messages of slots from here on count, none of those before
        self._leaving: Iterator[Linked] | None = None  # what still counts of the slot before
        self._gone: Counter[str] = Counter()  # handed out of the first slot that counts
        self._topics: dict[int, str] = {}  # of what is counted, by the hash that units have

    # -- starting --------------------------------------------------------------------------

    def load(self) -> None:
        """Open what is there, believe what agrees with the log, derive the rest. Raises OSError, CorruptFile."""
        began = time.monotonic()
        check = load_timer_checkpoint(self._check_path)
        clean = self._store.recovered.clean
        if not check.ours and check.read_ms:
            margin_ms = 0 if clean else UNCLEAN_MARGIN_MS
            self._foreign = check._replace(read_ms=max(0, check.read_ms - margin_ms))
        self.refresh()
        how = self._load_files(check, clean)
        self._load_counts(check.read_ms if check.ours and how == "read" else None)
        if self.log.end or self.enqueued:
            log.info(
                "timers loaded pending=%d how=%s queue_offset=%d read_ms=%d took_ms=%d",
                self.count, how, self.enqueued, self.read_ms, (time.monotonic() - began) * 1000,
            )  # fmt: skip

    def _load_files(self, check: TimerCheckpoint, clean: bool) -> str:
        """Wheel and timer log; whether they were "read", "replayed" from the timer log or "derived" from the queue."""
        if check.ours and check.precision_ms != self.window.precision_ms:
            return self._derive_anew("timerPrecisionMs is another")
        try:
            self.log.load()
            self.wheel.load()
        except FileNotFoundError:
            pass  # no wheel: it is replayed
        except CorruptFile as problem:
            return self._derive_anew(str(problem))
        if not self.log.end:
            return self._derive_anew("")
        how = "read"
        if not (clean and self._are_as_left(check)):
            self._replay()
            how = "replayed"
        self._cut(self._store.end)
        self.enqueued = self._next_of_last()
        return how

    def _derive_anew(self, why: str) -> str:
        """Nothing of before stays, whatever the queue has by now: slots that a power cut left without their log would
        point into the one that begins here."""
        queue = self._store.queue(names.TIMER_TOPIC, 0)
        if why or (queue is not None and queue.max_offset > queue.min_offset):
            log.warning("timer wheel is derived anew why=%s", why or "there is no timer log")
        if self.wheel.path.exists() or self.log.directory.exists():
            self.log.clear()
            self.wheel.clear()
        self.enqueued = 0
        self._linked_offset = -1
        self._known_below = self.progress.queue_offset
        return "derived"

    def _are_as_left(self, check: TimerCheckpoint) -> bool:
        """Whether wheel and timer log are what a clean stop left; of RocketMQ's only some of it can be told."""
        if check.timer_log_end != self.log.end:
            return False
        if check.ours:
            return check.checksum == self._checksum()
        last = self.log.before(self.log.end)
        unit = self.log.unit(last)
        return unit is not None and self.wheel.slot(unit.slot_ms).last == last

    def _replay(self) -> None:
        """Slots from units. A unit that does not continue its slot is damage: it and what follows are derived anew."""
        self.wheel.clear()
        slots: dict[int, list[int]] = {}  # slot -> first, last, num
        damaged = former_offset = NO_UNIT
        begin = self.log.start
        for start, units in self.log.fields():
            for at, (size, previous, magic, write_ms, delay_ms, offset, *_) in enumerate(units):
                position = start + at * UNIT_BYTES
                slot_ms = write_ms + delay_ms
                found = slots.get(slot_ms)
                if found is None:
                    sound = previous < begin
                    slots[slot_ms] = found = [position, position, 0]
                else:
                    sound = previous == found[1]
                sound = sound and offset > former_offset  # units come in the order of the log
                former_offset = offset
                if size != UNIT_BYTES or not 0 < magic <= TIMER_BITS or not sound:
                    damaged = position
                    if not found[2]:
                        del slots[slot_ms]
                    break
                found[1] = position
                found[2] += -1 if magic & TIMER_DELETE else 1
            if damaged != NO_UNIT:
                break
        for slot_ms in sorted(slots):  # of two times in one place the later is the one that waits
            self.wheel.put(slot_ms, Slot(*slots[slot_ms]))
        if damaged != NO_UNIT:
            log.warning("timer log is damaged, derived anew from position=%d", damaged)
            self.log.truncate(damaged)

    def _next_of_last(self) -> int:
        """The queue offset behind the last unit's."""
        unit = self.log.unit(self.log.before(self.log.end))
        view = self._store.stored_at(unit.log_offset) if unit is not None else None
        if view is None:
            return 0
        return int(decode(view, crc_checked=False).queue_offset) + 1

    # -- progress --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look what the log says of delivery by now."""
        end = self._store.max_offset(names.TIMER_MARKS_TOPIC, 0)
        if end == self._marks_end:
            return
        self._marks_end = end
        self.progress = marks.newest(self._store)
        foreign = self._foreign
        if foreign is not None and foreign.read_ms > self.progress.read_ms:
            from_ms = foreign.read_ms - FOREIGN_SLACK_MS
            self.progress = Progress(foreign.read_ms, foreign.queue_offset, 0, from_ms)
        self.read_ms = self.window.floor(self.progress.read_ms)

    # -- linking ---------------------------------------------------------------------------

    def link(self, count_max: int) -> list[Linked]:
        """Give the next entries of the timer queue their units; those that were linked. Raises OSError."""
        queue = self._store.queue(names.TIMER_TOPIC, 0)
        if queue is None or self.enqueued >= queue.max_offset:
            return []
        offset = max(self.enqueued, queue.min_offset)
        end = min(queue.max_offset, offset + count_max)
        self.blocked = False
        units: list[TimerUnit] = []
        topics: list[str] = []
        while offset < end:
            entry = queue.entry(offset)
            # A queue may have been shorter meanwhile than what was linked: entries come in the order of the log.
            new = entry is not None and entry[0] > self._linked_offset
            found = self._unit_at(entry[0]) if entry is not None and new else None
            if entry is not None and (found is None or found[1].queue_offset != offset):
                mended = self._store.mending.mend(queue, offset)
                if mended is Mended.SEARCHING:
                    break
                if mended is Mended.RIGHT and queue.entry(offset) != entry:
                    continue
                if mended is Mended.GONE:
                    found = None
            if found is not None:
                fresh, record, topic = found
                unit: TimerUnit | None = fresh
                if offset < self._known_below:
                    unit = self._known(fresh, record)
                if unit is not None:
                    held_ms = self.wheel.held_ms(unit.slot_ms)
                    waits = held_ms and self.wheel.slot(held_ms).last != NO_UNIT
                    if waits and self.read_ms <= held_ms < unit.slot_ms:
                        self.blocked = True
                        break
                    units.append(unit)
                    topics.append(topic)
            offset += 1
        linked = self._append(units)
        self.enqueued = offset
        for topic, unit in zip(topics, units, strict=True):
            if not unit.magic & TIMER_DELETE and unit.slot_ms >= self._counted_ms:
                self._topics[unit.topic_hash] = topic
                self._count(topic, unit.slot_ms, 1)
        return linked

    def _append(self, units: list[TimerUnit]) -> list[Linked]:
        slots: dict[int, Slot] = {}
        linked = []
        for unit, position in zip(units, self.log.positions(len(units)), strict=True):
            slot_ms = unit.slot_ms
            slot = slots.get(slot_ms) or self.wheel.slot(slot_ms)
            first = position if slot.last == NO_UNIT else slot.first
            slots[slot_ms] = Slot(first, position, slot.num + _counts(unit))
            linked.append(Linked(position, TimerUnit(slot.last, *unit[1:])))
        self.log.append([each.unit for each in linked])
        if units:
            self._linked_offset = units[-1].log_offset
        for slot_ms, slot in slots.items():
            self.wheel.put(slot_ms, slot)
        return linked

    def _unit_at(self, log_offset: int) -> tuple[TimerUnit, Record, str] | None:
        """The unit that a record of the timer topic gets, and its real topic; None for one that is gone or waits for
        nothing."""
        view = self._store.stored_at(log_offset)
        if view is None:
            return None
        try:
            record = decode(view, crc_checked=False)
        except CorruptRecord:
            return None
        properties = record.properties
        out = get_property(properties, _OUT)
        topic = get_property(properties, _REAL_TOPIC)
        if out is None or not out.isdigit() or len(out) > 18 or not topic:
            log.error(
                "message without delivery time in the timer topic, left out offset=%d", log_offset
            )
            return None
        slot_ms, rolls = rules.slotted(int(out), record.store_ms, self.window)
        magic = TIMER_DEFAULT | (TIMER_ROLL if rolls else 0)
        if _DELETE in properties and get_property(properties, _DELETE) is not None:
            magic |= TIMER_DELETE
        write_ms = self.window.floor(record.store_ms)
        real_topic = topic.decode("utf-8", "replace")
        unit = TimerUnit(
            NO_UNIT,
            magic,
            write_ms,
            slot_ms - write_ms,
            log_offset,
            record.size,
            java_hash(real_topic),
        )
        return unit, record, real_topic

    def _known(self, unit: TimerUnit, record: Record) -> TimerUnit | None:
        """While all is derived anew: a message that was put back waits there, one that was not, still here. The log
        says which, whatever timerRollWindowSlot was then. What was due before is done with."""
        properties = record.property_map
        if (rules.number(properties, rules.OUT_MS) or 0) < self.read_ms:
            return None
        if self._rolled is None:
            self._rolled = Counter(self._rolled_copies())
        key = key_of(record, properties, more_rolls=1)
        if self._rolled[key] > 0:
            self._rolled[key] -= 1
            return None
        if unit.magic & TIMER_ROLL and unit.slot_ms < self.read_ms:
            return unit._replace(delay_ms=self.read_ms - unit.write_ms)
        return unit

    def _rolled_copies(self) -> Iterator[Key]:
        queue = self._store.queue(names.TIMER_TOPIC, 0)
        for offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
            entry = queue.entry(offset) if queue is not None else None
            view = self._store.stored_at(entry[0]) if entry is not None else None
            if view is not None:
                record = decode(view, crc_checked=False)
                if rules.ROLL_TIMES.encode() in record.properties:
                    yield key_of(record, record.property_map)

    @property
    def derived(self) -> bool:
        """Whether every message has its unit."""
        return self.enqueued >= self._store.max_offset(names.TIMER_TOPIC, 0)

    def since(self, queue_offset: int) -> Iterator[TimerUnit]:
        """What units the entries from a queue offset on have, up to `enqueued`."""
        queue = self._store.queue(names.TIMER_TOPIC, 0)
        if queue is None:
            return
        for offset in range(max(queue_offset, queue.min_offset), self.enqueued):
            entry = queue.entry(offset)
            found = self._unit_at(entry[0]) if entry is not None else None
            if found is not None:
                yield found[0]

    # -- slots -----------------------------------------------------------------------------

    def chain(self, slot_ms: int) -> Iterator[Linked]:
        """The units of a slot, the newest first. Raises CorruptFile."""
        position = self.wheel.slot(slot_ms).last
        while position != NO_UNIT:
            unit = self.log.unit(position)
            if unit is None or unit.slot_ms != slot_ms or unit.previous >= position:
                if position >= self.log.start:
                    raise CorruptFile(
                        f"{self.log.directory} is damaged at {position}, a start derives it anew"
                    )
                return
            yield Linked(position, unit)
            position = unit.previous

    def finished(self, slot_ms: int) -> None:
        """A slot was delivered, all of it."""
        self.read_ms = slot_ms + self.window.precision_ms

    def gone(self, topic: str, unit: TimerUnit) -> None:
        """A message of the slot that is delivered waits no longer."""
        if unit.slot_ms >= self._counted_ms and not unit.magic & TIMER_DELETE:
            self._gone[topic] += 1

    def discount(self, units_max: int | None = COUNTED_PER_STEP) -> None:
        """Count no longer what waited in slots that are over, on whatever broker they were delivered.

        units_max  None: all of it
        """
        hour_ms = self.read_ms - self.read_ms % HOUR_MS
        if self._counted_ms < hour_ms:
            for hour in [each for each in self.waiting if each * HOUR_MS < hour_ms]:
                del self.waiting[hour]
            self._counted_ms, self._leaving = hour_ms, None
            self._gone.clear()
        left = sys.maxsize if units_max is None else units_max
        while left > 0:
            if self._leaving is None:
                slot_ms = self._counted_ms
                if slot_ms >= self.read_ms:
                    return
                self._counted_ms += self.window.precision_ms
                self._leaving = self.chain(slot_ms)
                self._gone.clear()
            left -= 1
            try:
                linked = next(self._leaving, None)
            except CorruptFile:
                linked = None  # whoever delivers the slot says so; this only counts
            if linked is None:
                self._leaving = None
            elif not linked.unit.magic & TIMER_DELETE:
                topic = self._topics.get(linked.unit.topic_hash, "")
                self._count(topic, linked.unit.slot_ms, -1)

    def _count(self, topic: str, slot_ms: int, more: int) -> None:
        self.waiting.setdefault(slot_ms // HOUR_MS, Counter())[topic] += more

    def by_hour(self, *, whole_slots: bool = False) -> dict[int, dict[str, int]]:
        """Start of the hour, ms since 1970 -> topic -> messages that wait in it. A message that is put back on its way
        counts in the hour of that.

        whole_slots  as if nothing of the slot under way were delivered, which is how a start counts it
        """
        first = self.read_ms // HOUR_MS
        found = {}
        for hour, topics in sorted(self.waiting.items()):
            if hour == self._counted_ms // HOUR_MS and not whole_slots:
                topics = topics - self._gone
            if hour >= first and (left := {each: n for each, n in sorted(topics.items()) if n > 0}):
                found[hour * HOUR_MS] = left
        return found

    @property
    def count(self) -> int:
        """Messages that wait."""
        return sum(sum(topics.values()) for topics in self.by_hour().values())

    def count_at(self, slot_ms: int) -> int:
        return self.wheel.slot(slot_ms).num

    def free_at(self, slot_ms: int, limit: int) -> int | None:
        """The first moment after a slot for which there is room; None: not soon."""
        step_ms = self.window.precision_ms
        for ahead in range(1, FREE_LOOK_SLOTS):
            if self.count_at(slot_ms + ahead * step_ms) <= limit:
                return slot_ms + ahead * step_ms + 1
        return None

    # -- cutting ---------------------------------------------------------------------------

    def cut(self, log_end: int) -> None:
        """The message log was cut: units beyond go, and their slots are what they were before. Raises OSError."""
        self._foreign = None  # it may speak for what is gone
        self._marks_end = -1
        self._cut(log_end)
        self.enqueued = self._next_of_last()
        self.refresh()
        self._load_counts(None)

    def _cut(self, log_end: int) -> None:
        position = self.log.end
        while (last := self.log.before(position)) != NO_UNIT:
            unit = self.log.unit(last)
            if unit is None or unit.log_offset < log_end:
                break
            slot = self.wheel.slot(unit.slot_ms)
            if slot.last == last:
                before = Slot(
                    slot.first if unit.previous != NO_UNIT else NO_UNIT,
                    unit.previous,
                    slot.num - _counts(unit),
                )
                self.wheel.put(unit.slot_ms, before)
            position = last
        self.log.truncate(position)
        kept = self.log.unit(self.log.before(position))
        self._linked_offset = -1 if kept is None else kept.log_offset

    def log_start_moved(self) -> None:
        """Files whose messages are gone, go. Raises OSError."""
        self.log.drop_before(self._store.start)

    # -- files -----------------------------------------------------------------------------

    def checkpoint(self) -> TimerCheckpoint:
        """What RocketMQ goes on from, here or as a slave."""
        version = self.version
        return TimerCheckpoint(
            self.read_ms, self.log.end, self.enqueued, self.enqueued, version.state_version,
            version.timestamp, version.counter, True, self.window.precision_ms,
        )  # fmt: skip

    def metrics(self, *, whole_slots: bool = False) -> dict[str, Any]:
        """Body of GET_TIMER_METRICS and file timermetrics; pendingByHour is ours."""
        now_ms = self._clock.now_ms()
        by_hour = self.by_hour(whole_slots=whole_slots)
        counts: Counter[str] = Counter()
        for topics in by_hour.values():
            counts.update(topics)
        return {
            "dataVersion": self.version.to_json(),
            "timingCount": {
                topic: {"count": count, "timeStamp": now_ms} for topic, count in counts.items()
            },
            "pendingByHour": {str(hour_ms): topics for hour_ms, topics in by_hour.items()},
        }

    def _load_counts(self, written_ms: int | None) -> None:
        """From our own file, or from the units.

        written_ms  up to where was delivered when the file was written; None: it is not to be trusted
        """
        self.waiting.clear()
        self._leaving = None
        self._gone.clear()
        self._counted_ms = self.read_ms
        found = jsonfile.load(self._metrics_path) or {}
        if written_ms is not None and isinstance(hours := found.get("pendingByHour"), dict):
            for hour_ms, topics in hours.items():
                self.waiting[int(hour_ms) // HOUR_MS] = Counter(topics)
                self._topics |= {java_hash(topic): topic for topic in topics}
            self._counted_ms = written_ms
            return
        known = found.get("timingCount")
        names_known = [*(known if isinstance(known, dict) else ()), *self._store.topics()]
        by_hash = {java_hash(topic): topic for topic in names_known}
        counts: Counter[tuple[int, int]] = Counter()
        for _, units in self.log.fields():
            counts.update(
                (slot_ms // HOUR_MS, topic_hash)
                for _, _, magic, write_ms, delay_ms, _, _, topic_hash, _ in units
                if (slot_ms := write_ms + delay_ms) >= self.read_ms and not magic & TIMER_DELETE
            )
        if unknown := {topic_hash for _, topic_hash in counts} - by_hash.keys():
            by_hash |= self._topics_of(unknown)
        for (hour, topic_hash), count in counts.items():
            topic = self._topics[topic_hash] = by_hash.get(topic_hash, "")
            self._count(topic, hour * HOUR_MS, count)

    def _topics_of(self, hashes: set[int]) -> dict[int, str]:
        """The topics of units that neither a file nor a queue names: their first messages are still waiting."""
        found: dict[int, str] = {}
        for _, units in self.log.fields():
            for _, _, _, _, _, log_offset, _, topic_hash, _ in units:
                if topic_hash in hashes and topic_hash not in found:
                    unit_of = self._unit_at(log_offset)
                    if unit_of is not None:
                        found[topic_hash] = unit_of[2]
                        if len(found) == len(hashes):
                            return found
        return found

    async def flush(self) -> None:
        """Write what changed, in a thread. Raises OSError; what was not written is written next time."""
        work = self._to_write()
        if work is None:
            return
        try:
            await asyncio.to_thread(self._write, *work)
        except OSError:
            self._written = None
            self.wheel.dirty_again(work[1])
            raise

    def flush_now(self) -> None:
        """The same, blocking, and with a checksum: at the end."""
        if (work := self._to_write()) is not None:
            self._write(*work)
        if self._written is not None:
            sync_files(self.log.to_sync())
            write_wheel(self.wheel.path, self.wheel.to_write())
            check = self.checkpoint()._replace(checksum=self._checksum())
            save_timer_checkpoint(self._check_path, check)

    def _checksum(self) -> int:
        return self.wheel.checksum(self.log.checksum())

    def _to_write(self) -> tuple[Any, ...] | None:
        check = self.checkpoint()
        if not check.timer_log_end and not check.queue_offset:
            return None  # no timer was ever sent: no files
        if self._written is not None and check[:4] == self._written[:4]:
            return None
        if self._written is not None:
            self.version.advance(self._clock.now_ms())
            check = self.checkpoint()
        self._written = check
        self.discount(None)  # what is written counts from where the checkpoint says
        metrics = self.metrics(whole_slots=True)
        return self.log.to_sync(), self.wheel.to_write(), check, metrics

    def _write(
        self, files: list[tuple[int, Path]], pages: list[tuple[int, bytes]],
        check: TimerCheckpoint, metrics: dict[str, Any],
    ) -> None:  # fmt: skip
        sync_files(files)
        write_wheel(self.wheel.path, pages)
        save_timer_checkpoint(self._check_path, check)
        jsonfile.save(self._metrics_path, metrics)

    def close(self) -> None:
        """Let go of the files; nobody asks for anything any more."""
        self.log.close()
        self.wheel.close()


def _counts(unit: TimerUnit) -> int:
    """How a unit counts in its slot: one that deletes counts against what it deletes. Source: RocketMQ's doEnqueue."""
    return -1 if unit.magic & TIMER_DELETE else 1
