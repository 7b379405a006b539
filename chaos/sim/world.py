"""One seeded run: a clock, a network, a controller, its brokers and their clients, and what goes wrong."""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.sim.broker import Broker, Waiting
from tandemmq.chaos.sim.checks import Check, Checks, Violation
from tandemmq.chaos.sim.configuration import Configuration
from tandemmq.chaos.sim.control import GROUP, Controller
from tandemmq.chaos.sim.delivery import Delivery
from tandemmq.chaos.sim.delivery import drawn as delivery_drawn
from tandemmq.chaos.sim.faults import TICK_MS, TIMES, Plan, draw, varied
from tandemmq.chaos.sim.mishaps import Mishaps, controller
from tandemmq.chaos.sim.mishaps import drawn as mishaps_drawn
from tandemmq.chaos.sim.network import Network
from tandemmq.chaos.sim.records import Unjudged
from tandemmq.chaos.sim.shortstores import ShortStores
from tandemmq.chaos.sim.tables import Tables
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication.config import Mode

if TYPE_CHECKING:
    from tandemmq.chaos.sim.controllers import EtcdControllers

QUIET_EVENTS_MAX: Final = 40_000
OPERATOR_PATIENCE_US: Final = 1_500_000
PRODUCER_PATIENCE_US: Final = 300_000
RETENTION_US: Final = (50_000, 400_000, 2_000_000)  # between two files that expire anywhere
SEEDING_US: Final = 200_000  # until a person empties the store of a replica that says it needs that
CELLS_MAX: Final = 6
CALM_PUT_RATE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """One append by one master."""

    number: int
    message: int
    queue: int
    queue_offset: int
    epoch: int
    offset: int
    size: int
    writer: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs; tests put defective ones in.

    tables        what every broker derives from its log; another than Tables runs in every seed
    short_stores  one replica's store comes back emptied, shorter or as an older copy, again and again; nothing retained
    mishaps       those of tandemmq.chaos.sim.mishaps that every seed has, instead of those that it draws
    plan          what every seed's plan is like, whatever it draws
    rolling       as World's
    """

    broker: type[Broker] = Broker
    controller: type[Controller | EtcdControllers] = Controller
    tables: type[Tables] = Tables
    short_stores: bool = False
    mishaps: frozenset[str] | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    rolling: bool = False


@dataclass(slots=True)
class Producer:
    number: int
    target: int
    message: int = -1
    sent_us: int = 0
    attempt: int = 0


@dataclass(slots=True)
class Outcome:
    """What a run was: for tests, the command line and the campaign."""

    seed: int
    mode: Mode
    events: int = 0
    acked: int = 0
    consumed: int = 0
    reigns: int = 0
    faults: int = 0
    losses_declared: int = 0
    operator_elections: int = 0
    digest: int = 0
    marks: dict[str, int] = field(default_factory=dict)


class World:
    """Everything of one seed. step() performs the next event; run() a whole schedule."""

    def __init__(
        self,
        seed: int,
        *,
        mode: Mode | None = None,
        parts: Parts | None = None,
        retention: bool = True,
        later: bool = True,
        rolling: bool = False,
    ) -> None:
        """retention False: no log ever loses its front, and all else of the seed is drawn as with it; later False: nor
        has it any setting or fault of faults.varied. rolling: see Configuration."""
        parts = parts or Parts()
        self.seed = seed
        retention, later = retention and not parts.short_stores, later and not parts.short_stores
        self.rng = random.Random(seed)
        self.plan: Plan = draw(self.rng, mode)
        if later:
            self.plan = varied(self.plan, random.Random(seed ^ 0x5EED))
        self.plan = replace(self.plan, **parts.plan)
        self.times = TIMES
        self.tick_us = TICK_MS * 1000
        self.now_us = 0
        self.events = 0
        self.trace: Callable[[str], None] | None = None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.sizes: list[int] = []
        self.records: list[Record] = []
        self.network = Network(self)
        self.faulty = True
        self.configuration = Configuration(self, rolling=rolling or parts.rolling)
        kinds = parts.mishaps
        if kinds is None:
            kinds = mishaps_drawn(seed) if later else frozenset()
        self.controller = controller(self, kinds, parts.controller, self.plan.drifts[0])
        self.brokers: dict[int, Broker] = {
            replica: parts.broker(self, replica, self.plan.drifts[replica])
            for replica in range(1, self.plan.replicas + 1)
        }
        self.make_broker = parts.broker
        self.hosts = dict(self.brokers)
        self.checks = Checks(self)
        self.outcome = Outcome(seed, self.plan.mode)
        self.producers = [
            Producer(number, self.rng.randint(1, self.plan.replicas))
            for number in range(self.plan.producers)
        ]
        self.delivery = None
        if later and (parts.tables is not Tables or delivery_drawn(seed)):
            self.delivery = Delivery(self, parts.tables)
        self.mishaps = Mishaps(self, kinds)
        self._messages = 0
        self._without_master_us = 0
        self.controller.start()
        self.controller.found(self.plan.replicas)
        self.controller.crash()
        self.controller.start()
        for broker in self.brokers.values():
            self.after(self.rng.randrange(1, 20_000), broker.start)
        for producer in self.producers:
            self.after(self.rng.randrange(10_000, 90_000), self._produce, producer)
        self.after(30_000, self._consume)
        self._expiry = random.Random(~seed)  # so that it moves no other draw
        self._retention_us = self._expiry.choice(RETENTION_US) if retention else 0
        if self._expiry.random() < 0.5 and retention:
            self.after(self._retention_us, self._expire)
        if parts.short_stores and self.plan.replicas > 1:
            ShortStores(self)
        if self.plan.fault_kinds:
            self.after(self._fault_gap() + 100_000, self._fault)

    # --- time ---

    def at(self, when_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_us, self._sequence, call, arguments))

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._sequence, call, arguments))

    def step(self) -> None:
        """The next event. Raises Violation, AssertionError."""
        when_us, _, call, arguments = heapq.heappop(self._heap)
        self.now_us = when_us
        self.events += 1
        call(*arguments)

    def run(self, events: int) -> Outcome:
        """Faults for so many events, then heal, run until quiet, and check the history."""
        try:
            self._run(events)
            self.checks.history()
        except Unjudged as why:
            self.note("unjudged", why)
        outcome = self.outcome
        outcome.events = self.events
        outcome.acked = len(self.checks.acked)
        outcome.consumed = self.checks.consumed
        return outcome

    def _run(self, events: int) -> None:
        step, target = self.step, self.events + events
        while self.events < target:
            step()
        self.note("heal")
        self.heal()
        limit = self.events + QUIET_EVENTS_MAX
        while not self._quiet():
            if self.events >= limit:
                raise Violation(
                    Check.STUCK,
                    f"not quiet {QUIET_EVENTS_MAX} events after healing: {self.describe()}",
                )
            for _ in range(50):
                step()
            self._operate()

    def note(self, *what: Any) -> None:
        """One fact for the trace and for the digest that makes two runs comparable."""
        text = " ".join(map(str, what))
        self.outcome.digest = zlib.crc32(text.encode(), self.outcome.digest ^ self.now_us & 0xFFFF)
        if self.trace is not None:
            self.trace(f"{self.now_us / 1000:10.2f} {text}")

    def mark(self, situation: str) -> None:
        """A situation that the suite as a whole must have met."""
        self.outcome.marks[situation] = self.outcome.marks.get(situation, 0) + 1

    def describe(self) -> str:
        lines = [f"record {self.controller.record}"]
        for broker in self.brokers.values():
            core = broker.core
            role = core.role.value if core else "down"
            state = core.slave.state.value if core else "-"
            lines.append(
                f"  replica {broker.replica}: {role} {state} epoch {core.epoch if core else 0} "
                f"start {broker.disk.start} end {broker.disk.end} "
                f"flushed {broker.disk.flushed} confirmed {broker.visible()} {list(broker.disk.history.entries)}"
            )
        return "\n".join(lines)

    # --- clients ---

    def new_record(
        self, message: int, queue: int, queue_offset: int, epoch: int, offset: int, writer: int
    ) -> int:
        number = len(self.records)
        size = 1 + self.rng.randrange(CELLS_MAX)
        self.sizes.append(size)
        self.records.append(
            Record(number, message, queue, queue_offset, epoch, offset, size, writer)
        )
        return number

    def _produce(self, producer: Producer) -> None:
        producer.attempt += 1
        producer.sent_us = self.now_us
        if producer.message < 0:
            self._messages += 1
            producer.message = self._messages
            if self.rng.random() < 0.1:  # its route is stale
                producer.target = self.rng.randint(1, self.plan.replicas)
        target = self.brokers[producer.target]
        if target.powered:
            self.after(self.network.delay(), target.put, producer.number, producer.message)
        self.after(PRODUCER_PATIENCE_US, self._patience, producer, producer.attempt)

    def _patience(self, producer: Producer, attempt: int) -> None:
        if producer.attempt == attempt:
            self._elsewhere(producer)
            self._produce(producer)

    def _elsewhere(self, producer: Producer) -> None:
        leader = self.controller.durable.master if self.controller.durable else 0
        producer.target = leader or self.rng.randint(1, self.plan.replicas)
        if self.rng.random() < 0.2:
            producer.target = self.rng.randint(1, self.plan.replicas)

    def answer(self, producer: int, message: int, record: int | None, replica: int) -> None:
        """A broker answers a put: with the record when it is acknowledged."""
        self.after(
            self.network.delay(), self._answered, self.producers[producer], record, self.producers[producer].attempt
        )  # fmt: skip

    def _answered(self, producer: Producer, record: int | None, attempt: int) -> None:
        if attempt != producer.attempt:
            return
        producer.attempt += 1
        if record is None:
            self._elsewhere(producer)
            delay = 20_000
        else:
            producer.message = -1
            # after healing slowly: a slave behind a narrow link must have a chance to catch up
            rate = self.plan.put_rate if self.faulty else CALM_PUT_RATE
            delay = int(self.rng.expovariate(rate / self.plan.producers) * 1e6)
        self.after(delay, self._produce, producer)

    def answers_lost(self, waiting: Iterable[Waiting]) -> None:
        """The connections of these producers break."""
        for put in waiting:
            self.answer(put.producer, -1, None, 0)

    def _consume(self) -> None:
        self.brokers[self.rng.randint(1, self.plan.replicas)].read()
        self.after(int(self.rng.expovariate(self.plan.read_rate) * 1e6) + 1, self._consume)

    # --- what the shells tell ---

    def acknowledged(self, broker: Broker, record: int, effect: m.Acknowledge) -> None:
        self.checks.acknowledged(broker, self.records[record], effect)

    def confirmed(self, broker: Broker, offset: int) -> None:
        self.checks.whole(broker, offset)
        self.checks.confirmed(broker, offset)

    def consumed(self, broker: Broker, offset: int) -> None:
        self.checks.read(broker, offset)

    def proposed(self, broker: Broker, proposal: m.Propose) -> None:
        self.checks.proposed(broker, proposal)

    def check_append(self, broker: Broker, offset: int, cells: list[int]) -> None:
        self.checks.appended(broker, offset, cells)

    def check_broker(self, broker: Broker) -> None:
        self.checks.broker(broker)

    def power_lost(self, broker: Broker, end: int, before: int, flushed: int) -> None:
        if end < before:
            self.mark("power cut lost bytes")
        self.checks.power_lost(broker, end, before, flushed)

    def truncated(self, broker: Broker, end: int) -> None:
        self.mark("log cut at rejoin")
        self.note("truncated", broker.replica, end)
        self.checks.truncated(broker, end)

    def reign_began(self, broker: Broker, epoch: int) -> None:
        self.outcome.reigns += 1
        self.note("reign", broker.replica, epoch, broker.disk.end)
        if self.delivery is not None:
            self.delivery.former.reigning = max(epoch, self.delivery.former.reigning)
        self.checks.reign_began(broker, epoch)

    def alarmed(self, broker: Broker, reason: str) -> None:
        self.note("alarm", broker.replica, reason)
        if broker.stopped_by_retention and self.checks.needs_seeding(broker):
            self.after(SEEDING_US, self._empty, broker)
            return
        if self.mishaps.explains(reason):
            return
        raise Violation(
            Check.ALARM, f"replica {broker.replica} alarms: {reason}\n{self.describe()}"
        )

    def announced(self, event: e.Announce) -> None:
        self.note(event.kind.value, event.epoch, event.text)
        if event.kind is e.Kind.ELECTED:
            self.checks.elected(event.epoch)
        if event.kind is e.Kind.LOSS_POSSIBLE:
            self.outcome.losses_declared += 1
            self.mark("loss declared")
        elif event.kind is e.Kind.WAITING:
            self.mark("nobody can be elected")

    def host_powered(self, host: int) -> bool:
        return host not in self.hosts or self.hosts[host].powered

    def reach(self, address: str) -> Broker:
        """The broker at an address that it registered."""
        return self.hosts[int(address)]

    # --- retention ---

    def _expire(self) -> None:
        if self.faulty:
            self.brokers[self._expiry.randint(1, self.plan.replicas)].retain(self._expiry)
            self.after(self._expiry.randrange(1, 2 * self._retention_us), self._expire)

    def deleted(self, broker: Broker, start: int) -> None:
        """The front of a log is about to go, up to `start`."""
        self.mark("retention")
        self.note("deleted", broker.replica, start)
        self.checks.deleted(broker, start)
        if self.delivery is not None:
            self.delivery.trimmed(broker, start)

    def _empty(self, broker: Broker) -> None:
        """What a person does about a replica that must be seeded anew, if it still must."""
        if broker.up and broker.stopped_by_retention:
            self.note("emptied", broker.replica)
            self.mark("replica seeded anew")
            broker.crash(power=False)
            self.checks.emptied(broker)
            broker.disk.empty()
            self.after(1000, self.restart, broker)

    # --- faults ---

    def _fault_gap(self) -> int:
        return int(self.rng.expovariate(self.plan.fault_rate) * 1e6) + 1

    def _fault(self) -> None:
        if not self.faulty:
            return
        kind = self.rng.choice(self.plan.fault_kinds)
        self.outcome.faults += 1
        self.mark("fault " + kind)
        getattr(self, "_fault_" + kind)()
        self.after(self._fault_gap(), self._fault)

    def _somebody(self) -> Broker:
        """The master more often than not: that is where it hurts."""
        record = self.controller.record
        if record.master and self.rng.random() < 0.6:
            return self.brokers[record.master]
        return self.brokers[self.rng.randint(1, self.plan.replicas)]

    def fail(self, broker: Broker, *, power: bool) -> None:
        """Crash a broker or its host, and start it again some time later."""
        if not broker.up:
            return
        broker.crash(power=power)
        shortest, longest = (60_000, 900_000) if power else (3_000, 600_000)
        if self.rng.random() < 0.3:
            longest = shortest * 3
        self.after(self.rng.randrange(shortest, longest), self.restart, broker)

    def restart(self, broker: Broker) -> None:
        inside = self.brokers[broker.replica] is broker  # else its copy is the replica by now
        if not broker.up and (inside or self.faulty):
            broker.boot()
            broker.start()

    def _fault_crash(self) -> None:
        self.fail(self._somebody(), power=False)

    def _fault_power(self) -> None:
        self.fail(self._somebody(), power=True)

    def _fault_power_all(self) -> None:
        if self.rng.random() < 0.5:
            return
        for broker in self.brokers.values():
            self.after(self.rng.randrange(1, 20_000), self._power_off, broker)

    def _power_off(self, broker: Broker) -> None:
        self.fail(broker, power=True)

    def _fault_pause(self) -> None:
        self.pause(self._somebody())

    def pause(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            self.note("pause", broker.replica)
            broker.pause(True)
            duration = self.rng.choice((20_000, 150_000, 400_000, 900_000))
            self.after(self.rng.randrange(1000, duration), broker.pause, False)

    def _fault_freeze(self) -> None:
        """A pause that begins right behind an append, while its acknowledgement is being waited for."""
        self._somebody().freezes = True

    def _fault_cut(self) -> None:
        links = list(self.network.links.values())
        if links:
            self.network.break_link(self.rng.choice(links))

    def _block(self, pairs: list[tuple[int, int]]) -> None:
        self.network.block(pairs)
        duration = self.rng.choice((20_000, 200_000, 600_000, 1_200_000))
        self.after(self.rng.randrange(1000, duration), self.network.unblock, pairs)

    def _two_hosts(self) -> tuple[int, int]:
        hosts = range(self.plan.replicas + 1)
        first = self._somebody().host
        second = self.rng.choice([host for host in hosts if host != first])
        return first, second

    def _fault_partition(self) -> None:
        first, second = self._two_hosts()
        self._block([(first, second), (second, first)])

    def _fault_one_way(self) -> None:
        first, second = self._two_hosts()
        self._block([(first, second) if self.rng.random() < 0.5 else (second, first)])

    def _fault_isolate(self) -> None:
        alone = self._somebody().host
        others = [host for host in range(self.plan.replicas + 1) if host != alone]
        self._block([(alone, host) for host in others] + [(host, alone) for host in others])

    def _fault_clog(self) -> None:
        self.network.clogged_us = self.rng.choice((20_000, 100_000))
        self.after(self.rng.randrange(10_000, 300_000), self._unclog)

    def _unclog(self) -> None:
        self.network.clogged_us = 0

    def _fault_slow_disk(self) -> None:
        broker = self._somebody()
        broker.slow_us = self.rng.choice((5_000, 50_000, 300_000))
        self.after(self.rng.randrange(50_000, 600_000), self._fast_disk, broker)

    def _fast_disk(self, broker: Broker) -> None:
        broker.slow_us = 0

    def _fault_disk_full(self) -> None:
        """A disk takes no more: puts are refused, and what a slave is sent it cannot append."""
        broker = self._somebody()
        broker.full = True
        self.after(self.rng.randrange(20_000, 600_000), self._disk_has_space, broker)

    def _disk_has_space(self, broker: Broker) -> None:
        broker.full = False

    def _fault_sync_error(self) -> None:
        """A failed sync leaves pages clean that are not durable: the process stops, its page cache is not trusted."""
        broker = self._somebody()
        if broker.up and broker.disk.flushed < broker.disk.end:
            broker.sync_failed()

    def _fault_fuse(self) -> None:
        self._somebody().fuse = self.rng.randint(1, 8)

    def _fault_controller_crash(self) -> None:
        self.controller.crash()
        self.after(self.rng.randrange(5_000, 400_000), self._restart_controller)

    def _restart_controller(self) -> None:
        if not self.controller.up:
            self.controller.start()

    def _fault_controller_pause(self) -> None:
        self.controller.pause(True)
        self.after(self.rng.randrange(5_000, 500_000), self.controller.pause, False)

    def _fault_switchover(self) -> None:
        self.controller.operator(self.rng.randint(1, self.plan.replicas), unclean=False)

    # --- healing ---

    def heal(self) -> None:
        """No more faults, everybody up. What was lost stays lost."""
        self.faulty = False
        self.network.clear()
        if not self.controller.up:
            self.controller.start()
        self.controller.pause(False)
        self.controller.heal()
        self.mishaps.heal()
        for broker in self.brokers.values():
            broker.fuse = 0
            broker.freezes = False
            broker.slow_us = 0
            broker.full = False
            if broker.paused:
                broker.pause(False)
            self.restart(broker)
        self._without_master_us = self.now_us

    def _master(self) -> Broker | None:
        record = self.controller.record
        if record.master and not record.electing_from:
            broker = self.brokers[record.master]
            if broker.reigning and broker.core is not None and broker.core.epoch == record.epoch:
                return broker
        return None

    def _operate(self) -> None:
        """An operator elects by hand what the controller declares it will not elect itself."""
        forgotten = self.mishaps.forgotten
        if not forgotten and (self._master() is not None or self.controller.record.master):
            self._without_master_us = self.now_us
            return
        if self.now_us - self._without_master_us < OPERATOR_PATIENCE_US:
            return
        self._without_master_us = self.now_us
        record = self.controller.record
        if record.epoch == 0 and not forgotten:
            return
        core = self.controller.core
        lacking = (
            core.judge.lacking(core.groups[GROUP]) if core is not None and record.epoch else {}
        )
        if not (set(record.base) <= {*record.suspects, *lacking} or forgotten):
            raise Violation(Check.NOBODY, self.describe())
        best = (
            max(  # of all replicas: an earlier member may hold more than a member that lost power
                self.brokers.keys()
                - ({self.plan.learner} - {*record.base}),  # unless it had to lead
                key=lambda each: (
                    self.brokers[each].disk.history.last,
                    self.brokers[each].disk.end,
                ),
            )
        )
        self.outcome.operator_elections += 1
        self.mark("operator election")
        self.controller.operator(best, unclean=True)

    def _quiet(self) -> bool:
        """One master, every replica in its set with the same log, and a message acknowledged since the healing.

        Every replica in its reign: where records were lost a former master may count a set that has left it.
        """
        master = self._master()
        if master is None or master.core is None or master.core.master is None:
            return False
        core = master.core.master
        everybody = frozenset(self.brokers)
        if master.replica != self.plan.learner:  # which leads only where every copy lost power
            everybody -= {self.plan.learner}
        if core.granted != everybody or frozenset(self.controller.record.sync_set) != everybody:
            return False
        if core.confirmed != core.end or core.acknowledged < core.end or self.records == []:
            return False
        if self.delivery is not None and not self.delivery.quiet(master):
            return False
        return all(
            broker.disk.end == core.end
            and broker.visible() == core.confirmed
            and (broker.core is not None and broker.core.epoch == core.epoch)
            for broker in self.brokers.values()
        )


def simulate(
    seed: int,
    events: int = 2000,
    *,
    mode: Mode | None = None,
    parts: Parts | None = None,
    retention: bool = True,
    later: bool = True,
    rolling: bool = False,
) -> Outcome:
    """Run one seed. Raises Violation or AssertionError when something is wrong."""
    world = World(seed, mode=mode, parts=parts, retention=retention, later=later, rolling=rolling)
    return world.run(events)
