"""Consumer groups with positions of their own, messages with a delay, and the judge of both: at least once.

What the judge asks is what chaos.deliveries has campaigns ask: every message of the final log reached every group.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.formermasters import FormerMasters
from tandemmq.chaos.sim.slept import Slept
from tandemmq.chaos.sim.tables import DELAYS, SCALE, TOPIC, Pulled, Tables, queue_of_level
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.sending.delay import DelayLevels

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker
    from tandemmq.chaos.sim.world import Record, World

Answer = TypeVar("Answer")

SHARE: Final = 0.34  # of the seeds have consumers and delays
GROUPS: Final = (
    "G",
    "B",
)  # the members of the second, whose name begins with B, have all messages each
TURN_US: Final = (5_000, 60_000)
PATIENCE_US: Final = 120_000
DELAYED_ONE_IN: Final = 4
EARLY_SHARE: Final = 0.03  # of a delay: what clocks may drift
EARLY_US: Final = 3_000


def drawn(seed: int) -> bool:
    """Whether this seed has consumers and delays."""
    return random.Random(seed ^ 0xC0DE).random() < SHARE


class Connection(NamedTuple):
    """What a broker knows of who asks."""

    id: int
    peer: tuple[str, int]


@dataclass(slots=True)
class Reader:
    """The one member of a group: nothing of it outlives a restart, but the positions that a broadcasting group's
    clients keep in a file.

    positions  queue -> next queue offset to be asked for
    cached     queue -> what was pulled and is not consumed: (queue offset, record)
    reigns     queue -> epoch of the last master that answered a pull
    """

    group: str
    peer: Peer
    target: int = 1
    positions: dict[int, int] = field(default_factory=dict)
    cached: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    reigns: dict[int, int] = field(default_factory=dict)
    heard: bool = True  # from whom it asked last

    @property
    def broadcasting(self) -> bool:
        return self.group.startswith("B")

    def consumed(self, queue: int) -> int:
        """What may be committed: everything below was consumed."""
        cached = self.cached.get(queue)
        return cached[0][0] if cached else self.positions[queue]


class Delivery:
    """Of one run. Draws from a generator of its own."""

    def __init__(self, world: World, make: type[Tables]) -> None:
        self.world = world
        self.rng = random.Random(world.seed ^ 0x7AB1E)
        self.make = make
        self.levels = DelayLevels(DELAYS)
        self.delivered: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.uncommitted: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.slept = Slept()
        self.former = FormerMasters(world.records)
        self.horizon = 0  # below it some replica's log has been trimmed
        self._parked: dict[int, tuple[int, int]] = {}  # record -> level, world time
        self._copied: dict[int, list[int]] = {}  # record -> its copies
        self._connections = 0
        self.readers = [Reader(group, self._connect(group)) for group in GROUPS]
        for reader in self.readers:
            world.after(self.rng.randrange(*TURN_US), self._turn, reader)

    def _connect(self, host: str) -> Peer:
        self._connections += 1
        return cast(Peer, Connection(self._connections, (host, self._connections)))

    def peer_of(self, replica: int) -> Peer:
        return cast(Peer, Connection(-replica, (f"replica {replica}", replica)))

    def tables_of(self, broker: Broker) -> Tables:
        """Of a process that starts."""
        return self.make(broker, self)

    # --- messages with a delay ---

    def queue_of(self, message: int) -> int:
        """Where a producer's message goes: to its queue, or to that of its delay level."""
        if message % DELAYED_ONE_IN or not self.world.faulty:
            return message % self.world.plan.queues
        return queue_of_level(1 + message // DELAYED_ONE_IN % self.levels.highest)

    def stored(self, record: Record) -> None:
        """A producer's message was appended."""
        if record.queue < 0:
            self._parked[record.number] = (-record.queue, self.world.now_us)
            self.world.mark("message delayed")

    def due_ms(self, record: Record) -> int:
        """By the wall clock, as a queue entry of the schedule topic has it."""
        level, at_us = self._parked.get(record.number, (0, 0))
        return at_us * SCALE // 1000 + self.levels.delays_ms[level - 1] if level else 0

    def copied(self, broker: Broker, parked: Record) -> None:
        """A broker delivers one: it appends the copy."""
        due_us = self._parked[parked.number][1] + self._delay_us(parked)
        if self.world.now_us < due_us - EARLY_US - self._delay_us(parked) * EARLY_SHARE:
            raise Violation(
                Check.EARLY,
                f"replica {broker.replica} delivers {parked} at {self.world.now_us}, due at {due_us}",
            )
        copy = broker.store(parked.message, parked.message % self.world.plan.queues)
        self._copied.setdefault(parked.number, []).append(copy)

    def _delay_us(self, parked: Record) -> int:
        return self.levels.delays_ms[-parked.queue - 1] * 1000 // SCALE

    # --- requests ---

    def ask(
        self,
        asker: Broker | None,
        target: Broker,
        call: Callable[[Tables], Answer],
        done: Callable[[Answer | None], None],
    ) -> None:
        """Have a broker's tables do something. `done` gets None where no answer came in time, or says nothing at
        all when what asked is gone."""
        world = self.world
        waiting = [True]

        def arrive() -> None:
            if asker is not None and (asker.host, target.host) in world.network.blocked:
                return
            if target.paused:
                target.later(arrive)
            elif target.up and target.tables is not None:
                world.after(self._way_us(), answered, call(target.tables))

        def answered(answer: Answer | None) -> None:
            if waiting and not (
                asker is not None and (target.host, asker.host) in world.network.blocked
            ):
                waiting.clear()
                done(answer)

        def given_up() -> None:
            if waiting:
                waiting.clear()
                done(None)

        if target.powered:
            world.after(self._way_us(), arrive)
        world.after(PATIENCE_US, given_up)

    def _way_us(self) -> int:
        low, high = self.world.plan.delay_us
        return self.rng.randint(low, high)

    # --- readers ---

    def _turn(self, reader: Reader) -> None:
        """One thing that a reader does, and some later the next."""
        rng = self.rng
        if self.world.faulty and rng.random() < 0.02:
            self._restart(reader)
        queue = rng.randrange(self.world.plan.queues)
        self._consume(reader, queue)
        target = self.world.brokers[self._target(reader)]
        group, peer = reader.group, reader.peer
        if queue not in reader.positions:
            if reader.broadcasting:
                reader.positions[queue] = reader.kept.get(queue, 0)
                self._again(reader)
                return
            self.ask(
                None,
                target,
                lambda there: there.query(group, queue),
                lambda at: self._begin(reader, peer, queue, at, target),
            )
        elif rng.random() < 0.2:
            at = reader.consumed(queue)
            self._commit(reader, target, queue, at)
        else:
            offset = reader.positions[queue]
            self.ask(
                None, target, lambda there: there.pull(group, queue, offset, peer),
                lambda found: self._pulled(reader, peer, queue, offset, found, target),
            )  # fmt: skip

    def _target(self, reader: Reader) -> int:
        """The master by the last route, or any replica: a broadcasting reader is sent to none while there are cuts."""
        record = self.world.controller.durable
        stays = 1.0 if reader.broadcasting and reader.heard else 0.75
        if record is not None and record.master and self.rng.random() < stays:
            return record.master
        return self.rng.randint(1, self.world.plan.replicas)

    def _again(self, reader: Reader) -> None:
        self.world.after(self.rng.randrange(*TURN_US), self._turn, reader)

    def _restart(self, reader: Reader) -> None:
        """With or without a last commit; what it had pulled is pulled again."""
        reader.positions.clear()
        reader.cached.clear()
        reader.peer = self._connect(reader.group)

    def _begin(
        self, reader: Reader, peer: Peer, queue: int, at: int | None, target: Broker
    ) -> None:
        if at is None or reader.peer is not peer or queue in reader.positions:
            self._again(reader)
            return
        reader.positions[queue] = at  # and committed: the group has been here for a while
        self._commit(reader, target, queue, at)

    def _commit(self, reader: Reader, target: Broker, queue: int, at: int) -> None:
        if reader.broadcasting:
            reader.kept[queue] = at
            self._again(reader)
            return
        group, peer = reader.group, reader.peer
        self.ask(
            None, target, lambda there: there.commit(group, queue, at, peer),
            lambda _: self._again(reader),
        )  # fmt: skip

    def _pulled(
        self,
        reader: Reader,
        peer: Peer,
        queue: int,
        offset: int,
        found: Pulled | None,
        target: Broker,
    ) -> None:
        reader.heard = found is not None
        if found is None or reader.peer is not peer or reader.positions.get(queue) != offset:
            self._again(reader)
            return
        if found.reign is not None:
            reader.reigns[queue] = found.reign.epoch
            at = found.next_offset if found.moved else offset
            if self.slept.heard(reader.group, queue, found.reign, at):
                self.world.mark("reader slept through the reign after a loss")
        if found.moved:  # as clients do: what was pulled is dropped, the position kept
            at = found.next_offset
            if reader.broadcasting and at < offset:  # as our clients: back, and over nothing
                at = min(at, reader.consumed(queue))
            cached = reader.cached.pop(queue, ())
            if found.at_cut:
                self._passed_over(reader, queue, at, cached, target)
            reader.positions[queue] = at
            self.former.moved(reader.group, queue, at)
            self._commit(reader, target, queue, at)
            return
        cached = reader.cached.setdefault(queue, deque())
        cached.extend((offset + at, record) for at, record in enumerate(found.records))
        if not self.world.plan.mode.waits_for_slaves:
            self.former.answered(reader.group, queue, offset, found)
        reader.positions[queue] = max(offset, found.next_offset)
        self._again(reader)

    def _passed_over(
        self, reader: Reader, queue: int, at: int, cached: Iterable[tuple[int, int]], target: Broker
    ) -> None:
        """Nobody knows what a group consumed that this master knows no commit of: decision 0010, "Not kept"."""
        tables = target.tables
        if tables is None or tables.offsets.committed(reader.group, TOPIC, queue) >= 0:
            return
        passed_over = {record for offset, record in cached if offset < at}
        if passed_over:
            self.uncommitted[reader.group] |= passed_over
            self.world.mark("reader moved before its group's first commit")

    def _consume(self, reader: Reader, queue: int) -> None:
        cached = reader.cached.get(queue)
        while cached and (not self.world.faulty or self.rng.random() < 0.8):
            self.delivered[reader.group].add(cached.popleft()[1])

    # --- the end ---

    def trimmed(self, broker: Broker, start: int) -> None:
        """Retention takes what is below from a replica: what nobody had read by then may be gone for all."""
        if broker.tables is not None:
            broker.tables.store.dispatch()  # what is on its way to the queues is not that old
        self.horizon = max(self.horizon, start)

    def quiet(self, master: Broker) -> bool:
        """Whether every reader has come to the end, and no message waits for its time.

        A reader that has not asked this master yet may stand where it would be moved away from.
        """
        tables, core = master.tables, master.core
        if tables is None or core is None:
            return False
        tables.store.dispatch()
        queues = tables.store.queues.by_number
        for level in range(1, self.levels.highest + 1):
            queue = queues.get(queue_of_level(level))
            if queue is not None and tables.schedule.offsets.get(level, 0) < queue.max_offset:
                return False
        return all(
            not reader.cached.get(number)
            and reader.positions.get(number, 0) >= queue.max_offset
            and reader.reigns.get(number) == core.epoch
            for number, queue in queues.items()
            if number >= 0
            for reader in self.readers
        )

    def judge(self, cells: list[int]) -> None:
        """Of the final log."""
        records = self.world.records
        final = {cell >> 3 for cell in cells if not cell & 7}
        for number in sorted(final):
            record = records[number]
            if record.offset < self.horizon:
                continue
            if record.queue < 0:
                if not final.intersection(self._copied.get(number, ())):
                    raise Violation(
                        Check.DELAYED, f"{record} is never delivered\n{self.world.describe()}"
                    )
                continue
            for group, delivered in self.delivered.items():
                if number in delivered or number in self.uncommitted[group]:
                    continue
                if self.former.excuses(group, record):
                    self.world.mark("reader has a former master's message in its place")
                elif not self.slept.excuses(group, record):
                    raise Violation(
                        Check.DELIVERED,
                        f"{record} never reached group {group}\n{self.world.describe()}",
                    )
