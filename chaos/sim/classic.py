"""One seeded run of a classic pair: no controller, one master and one slave by configuration, and a person.

The person restarts what died, makes the slave the master as the how-to says (docs/howto/classic-replication.md), and
decides about a slave whose log is another one: cut to the master's, seeded anew, or made the master.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.faults import TICK_MS, draw
from tandemmq.chaos.sim.network import Network
from tandemmq.chaos.sim.pair import Node
from tandemmq.chaos.sim.world import CELLS_MAX, Outcome, Record
from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.replication import masterevents as m
from tandemmq.replication.config import Mode
from tandemmq.replication.slave import SlaveState

QUIET_EVENTS_MAX: Final = 20_000
PERSON_US: Final = (100_000, 900_000)  # until somebody looks at an alarm
FAULTS: Final = ("crash", "power", "power_all", "partition", "cut", "promote")
CALM_PUTS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Acked:
    """A message that was answered with SEND_OK: by whom, and who held it then."""

    record: Record
    master: int
    holders: tuple[int, ...]
    at_us: int


class ClassicJudge:
    """Asks of every acknowledgement who holds it, and at the end where the promise table (chaos.survival) has it."""

    def __init__(self, world: ClassicWorld) -> None:
        self.world = world
        self.acked: list[Acked] = []
        self._taken: set[tuple[int, int]] = (
            set()
        )  # (broker, record): a person took this copy, or its machine is gone
        self._cuts: dict[int, list[tuple[int, int, int]]] = {
            1: [],
            2: [],
        }  # end, end before, flushed

    def acknowledged(self, node: Node, number: int, effect: m.Acknowledge) -> None:
        """INV-36: a slave that counts has the master's log, byte for byte, up to what it is counted for."""
        world, record = self.world, self.world.records[number]
        assert node.master is not None
        holders = [node.host]
        if node.master.copies(record.end)[0] > 1:
            disk = node.peer.disk
            held = disk.flushed if node.mode.waits_for_disk else disk.end
            same = disk.cells[: record.end] == node.disk.cells[: record.end]
            lost = any(end < record.end <= before for end, before, _ in self._cuts[node.peer.host])
            if (held < record.end and not lost) or (disk.end >= record.end and not same):
                raise Violation(
                    Check.FORKED,
                    f"{record} is acknowledged with a slave that has {held}\n{world.describe()}",
                )
            holders.append(node.peer.host)
        elif node.mode.waits_for_slaves:
            raise Violation(
                Check.COPIES, f"{record} acknowledged with one copy\n{world.describe()}"
            )
        if node.mode.waits_for_disk and node.disk.flushed < record.end:
            raise Violation(Check.COPIES, f"{record} acknowledged before it was flushed")
        self.acked.append(Acked(record, node.host, tuple(holders), world.now_us))
        world.outcome.acked += 1

    def power_lost(self, node: Node, end: int, before: int, flushed: int) -> None:
        self._cuts[node.host].append((end, before, flushed))

    def stopped(self, node: Node) -> None:
        """A slave says that its log is another one. It must be: what is a part of the master's is followed."""
        mine, theirs = node.disk.cells, node.peer.disk.cells
        if node.peer.up and mine == theirs[: len(mine)]:
            raise Violation(Check.ALARM, f"slave {node.host} stops\n{self.world.describe()}")

    def given_up(self, node: Node, end: int) -> None:
        """A person has this broker give up its log from here on, or it is gone with its machine."""
        for cell in node.disk.cells[end:]:
            self._taken.add((node.host, cell >> 3))

    def promoted(self, node: Node, old: Node) -> None:
        """What the other log alone has is left behind. Of what was acknowledged with two copies that is nothing."""
        mine = {cell >> 3 for cell in node.disk.cells}
        for acked in self.acked:
            record = acked.record
            if record.number in mine or node.host not in acked.holders:
                continue
            if len(acked.holders) > 1 and not self._excused(node.host, acked):
                raise Violation(
                    Check.LOST,
                    f"{record} was acknowledged with two copies, and broker {node.host} is made the master without it\n"
                    + self.world.describe(),
                )
        self.given_up(old, 0)

    def _excused(self, host: int, acked: Acked) -> bool:
        return (host, acked.record.number) in self._taken or self._in_window(host, acked)

    def _in_window(self, host: int, acked: Acked) -> bool:
        """Whether this broker lost it in a power cut, unflushed as its mode allows."""
        end = acked.record.end
        allowed = fate(self.world.plan.mode, Fault.HOSTS) is Fate.WINDOW
        return allowed and any(flushed < end <= before for _, before, flushed in self._cuts[host])

    def history(self) -> None:
        """At the end, with both logs the same."""
        one, other = (node.disk.cells for node in self.world.nodes.values())
        if one != other:
            raise Violation(Check.DIVERGED, self.world.describe())
        final = {cell >> 3 for cell in one}
        for acked in self.acked:
            number = acked.record.number
            if number in final:
                continue
            if all(self._excused(host, acked) for host in acked.holders):
                self.world.mark("acknowledged message lost within the promise")
                continue
            raise Violation(
                Check.LOST, f"{acked} is lost; power cuts {self._cuts}\n{self.world.describe()}"
            )


class ClassicWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, *, mode: Mode | None = None, node: type[Node] = Node) -> None:
        self.seed = seed
        self.rng = random.Random(seed ^ 0xC1A551C)
        plan = draw(self.rng, mode)
        kinds = tuple(kind for kind in FAULTS if self.rng.random() < 0.6) or FAULTS
        self.plan = replace(plan, replicas=2, fault_kinds=kinds, wire=False)
        wanted = 2 if self.plan.mode.waits_for_slaves else 1
        self.rules = msgspec.structs.replace(
            plan.rules, copies_min=1, copies_wanted=wanted, slave_timeout_ms=200
        )
        self.tick_us = TICK_MS * 1000
        self.now_us = self.events = 0
        self.trace: Callable[[str], None] | None = None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.sizes: list[int] = []
        self.records: list[Record] = []
        self.faulty = True
        self.outcome = Outcome(seed, self.plan.mode)
        self.network = Network(self)  # type: ignore[arg-type]
        self.judge = ClassicJudge(self)
        self.nodes = {host: node(self, host) for host in (1, 2)}
        self._messages = 0
        for each in self.nodes.values():
            self.after(self.rng.randrange(1, 20_000), each.start)
        self.after(50_000, self._produce)
        self.after(100_000 + self._gap(), self._fault)
        self.after(PERSON_US[0], self._look)

    # --- time ---

    def at(self, when_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_us, self._sequence, call, arguments))

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_us + delay_us, call, *arguments)

    def step(self) -> None:
        """The next event. Raises Violation, AssertionError."""
        self.now_us, _, call, arguments = heapq.heappop(self._heap)
        self.events += 1
        call(*arguments)

    def run(self, events: int) -> Outcome:
        """Faults for so many events, then heal, run until quiet, and check the history."""
        while self.events < events:
            self.step()
        self._heal()
        limit = self.events + QUIET_EVENTS_MAX
        while not self._quiet():
            if self.events >= limit:
                raise Violation(Check.STUCK, self.describe())
            for _ in range(20):
                self.step()
        self.judge.history()
        self.outcome.events = self.events
        return self.outcome

    def note(self, *what: Any) -> None:
        text = " ".join(map(str, what))
        self.outcome.digest = zlib.crc32(text.encode(), self.outcome.digest ^ self.now_us & 0xFFFF)
        if self.trace is not None:
            self.trace(f"{self.now_us / 1000:10.2f} {text}")

    def mark(self, situation: str) -> None:
        self.outcome.marks["classic: " + situation] = self.outcome.marks.get(situation, 0) + 1

    def describe(self) -> str:
        return "\n".join(
            f"  broker {each.host}: {'master' if each.is_master else 'slave'} {'up' if each.up else 'down'} "
            f"{each.slave.state.value if each.slave else ''} end {each.disk.end} flushed {each.disk.flushed} "
            f"{each.alarmed}"
            for each in self.nodes.values()
        )

    def host_powered(self, host: int) -> bool:
        return self.nodes[host].powered

    # --- clients ---

    def new_record(
        self, message: int, queue: int, queue_offset: int, offset: int, writer: int
    ) -> int:
        number, size = len(self.records), 1 + self.rng.randrange(CELLS_MAX)
        self.sizes.append(size)
        self.records.append(Record(number, message, queue, queue_offset, 0, offset, size, writer))
        return number

    def _produce(self) -> None:
        self._messages += 1
        for node in self.nodes.values():
            if node.is_master:
                node.put(self._messages)
        rate = self.plan.put_rate if self.faulty else CALM_PUTS
        self.after(int(self.rng.expovariate(rate) * 1e6) + 1, self._produce)

    def unanswered(self, puts: int) -> None:
        """So many senders were told anything but SEND_OK."""
        if puts:
            self.mark("not acknowledged")

    # --- faults ---

    def _gap(self) -> int:
        return int(self.rng.expovariate(self.plan.fault_rate or 2.0) * 1e6) + 1

    def _fault(self) -> None:
        if not self.faulty:
            return
        kind = self.rng.choice(self.plan.fault_kinds)
        self.outcome.faults += 1
        self.mark("fault " + kind)
        getattr(self, "_fault_" + kind)(self.nodes[self.rng.randint(1, 2)])
        self.after(self._gap(), self._fault)

    def _fail(self, node: Node, *, power: bool) -> None:
        if node.up:
            node.crash(power=power)
            self.after(self.rng.randrange(5_000, 900_000), self._restart, node)

    def _restart(self, node: Node) -> None:
        if not node.up:
            node.powered = True
            node.start()

    def _fault_crash(self, node: Node) -> None:
        self._fail(node, power=False)

    def _fault_power(self, node: Node) -> None:
        self._fail(node, power=True)

    def _fault_power_all(self, node: Node) -> None:
        for each in self.nodes.values():
            self._fail(each, power=True)

    def _fault_partition(self, node: Node) -> None:
        self.network.block([(1, 2), (2, 1)])
        self.after(self.rng.randrange(5_000, 800_000), self.network.unblock, [(1, 2), (2, 1)])

    def _fault_cut(self, node: Node) -> None:
        for link in list(self.network.links.values()):
            self.network.break_link(link)

    def _fault_promote(self, node: Node) -> None:
        """The master is gone for good, or so somebody thinks: its slave takes its place, as the how-to says."""
        if not node.is_master and node.up and not node.seeding and self.rng.random() < 0.5:
            self._promote(node)

    # --- the person ---

    def _look(self) -> None:
        """Somebody looks whether a slave has stopped, and decides."""
        self.after(self.rng.randrange(*PERSON_US), self._look)
        slave = next(each for each in self.nodes.values() if not each.is_master)
        slave.seeding &= slave.disk.end < slave.peer.disk.end
        if not slave.alarmed or slave.slave is None or slave.slave.state is not SlaveState.STOPPED:
            return
        choice = self.rng.choice(("wait", "cut", "cut", "seed", "promote"))
        if choice == "promote":
            self._promote(slave)
        elif choice == "cut" and not slave.word:
            slave.crash(power=False)
            slave.word = True
            self.after(1000, self._restart, slave)
        elif choice == "seed" or (choice == "cut" and slave.word):  # nothing in common, say
            self._seed(slave)

    def _seed(self, node: Node) -> None:
        node.crash(power=False)
        self.mark("slave seeded anew")
        self.judge.given_up(node, 0)
        node.disk.empty()
        node.seeding = True
        node.word = False
        self.after(1000, self._restart, node)

    def _promote(self, node: Node) -> None:
        """Stop both, change the roles, start them; the store of the old master is moved away, or kept and compared."""
        old = node.peer
        self.note("promote", node.host)
        self.mark("slave made the master")
        for each in (node, old):
            each.crash(power=False)
        self.judge.promoted(node, old)
        node.is_master, old.is_master = True, False
        node.word = old.word = False
        node.seeding = False
        if self.rng.random() < 0.5:
            old.disk.empty()
            old.seeding = True
        self.after(self.rng.randrange(1_000, 50_000), self._restart, node)
        self.after(self.rng.randrange(1_000, 400_000), self._restart, old)

    # --- healing ---

    def _heal(self) -> None:
        self.note("heal")
        self.faulty = False
        self.network.clear()
        for node in self.nodes.values():
            self._restart(node)

    def _quiet(self) -> bool:
        """The slave follows and has all of the master's log."""
        one, other = self.nodes.values()
        if not (one.up and other.up):
            return False
        slave = one if other.is_master else other
        core = slave.slave
        return (
            core is not None
            and core.state is SlaveState.STREAMING
            and one.disk.end == other.disk.end
            and slave.peer.master is not None
            and bool(slave.peer.master.slaves)
        )


def simulate_classic(
    seed: int, events: int = 1000, *, mode: Mode | None = None, node: type[Node] = Node
) -> Outcome:
    """Run one seed. Raises Violation or AssertionError when something is wrong."""
    return ClassicWorld(seed, mode=mode, node=node).run(events)
