"""A store is copied and started beside its original: the same replica id, another process (INV-38).

A copy of what the store is now, an older one, or either on the host of another replica that is down meanwhile. While
the original is there the copy is refused by name. It is not where the original is not: it may register first when that
one has died, and is the replica from then on, if with what the original had; else it is a suspect. Then the original is
the copy. What nobody can tell is a copy that lacks no more than the original told nobody, and one that registers while
the original lives and is cut off from the controller: such a run ends there, unjudged.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.disk import Disk
from tandemmq.chaos.sim.records import Unjudged
from tandemmq.replication import election as e

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker
    from tandemmq.chaos.sim.world import World
    from tandemmq.replication.election import GroupRecord

FIRST_HOST: Final = 100
PAUSE_US: Final = (200_000, 1_200_000)  # between two copies
KEEP_US: Final = (50_000, 500_000)  # between two that somebody keeps
COPYING_US: Final = (130_000, 500_000)  # two heartbeats at least
RUNS_US: Final = (100_000, 1_500_000)
IN_PLACE: Final = 0.3  # so many run on another replica's host, in its place
OTHER_MACHINE: Final = 0.5  # so many do not run on the machine of the original
GIVES_UP_US: Final = (
    500_000  # a process that is refused so long ends, as TAKEN_MS_MAX says, and is started again
)


class Clones:
    """Makes copies, one at a time, and judges what the controller thinks of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed ^ 0xC10E)  # so that it moves no other draw
        self._kept: list[tuple[int, Disk]] = []
        self._outsider: Broker | None = None
        self._made = 0
        self._heard: dict[int, tuple[int, int]] = {}  # by replica: process, when
        world.after(self._rng.randrange(*KEEP_US), self._keep)
        world.after(self._rng.randrange(*PAUSE_US), self._copy)

    # --- copies ---

    def _keep(self) -> None:
        world = self._world
        if world.faulty:
            broker = self._rng.choice(list(world.brokers.values()))
            self._kept.append((broker.replica, broker.disk.snapshot()))
            world.after(self._rng.randrange(*KEEP_US), self._keep)

    def _copy(self) -> None:
        world, rng = self._world, self._rng
        if not world.faulty:
            return
        world.after(rng.randrange(*PAUSE_US), self._copy)
        if self._outsider is not None:
            return
        if self._kept and rng.random() < 0.4:
            replica, disk = rng.choice(self._kept)
            kind = "older"
        else:
            replica = rng.choice(list(world.brokers))
            disk, kind = world.brokers[replica].disk, "equal"
        if not disk.end or not disk.lineage:
            return
        self._made += 1
        clone = world.make_broker(world, replica, rng.uniform(-0.02, 0.02))
        clone.host = FIRST_HOST + self._made
        clone.incarnation = 1000 * self._made
        clone.disk = disk.snapshot()
        clone.disk.flushed = clone.disk.end
        clone.disk.lost_power = (
            rng.random() < OTHER_MACHINE
        )  # another boot id tells no more than that
        world.hosts[clone.host] = self._outsider = clone
        world.mark(f"copy of a store: {kind}")
        world.note("copy", kind, replica, clone.host, clone.disk.end)
        delay_us = rng.randrange(*COPYING_US)
        if rng.random() < IN_PLACE and len(world.brokers) > 1:
            others = [each for each in world.brokers.values() if each.replica != replica]
            world.after(delay_us, self._stop_for_a_while, rng.choice(others))
        world.after(delay_us, self._start, clone)

    def _stop_for_a_while(self, broker: Broker) -> None:
        self._world.fail(broker, power=False)

    def _start(self, clone: Broker) -> None:
        world = self._world
        if world.faulty and clone is self._outsider and not clone.up:
            clone.start()
            world.after(GIVES_UP_US, self._give_up, clone, clone.incarnation)
            world.after(self._rng.randrange(*RUNS_US), self._end, clone)

    def _give_up(self, clone: Broker, life: int) -> None:
        if clone is self._outsider and clone.up and clone.incarnation == life:
            clone.crash(power=False)
            self._world.after(1000, self._start, clone)

    def _end(self, clone: Broker) -> None:
        """A person has read the alarm, and stops the copy."""
        if clone is self._outsider:
            clone.crash(power=False)
            self._outsider = None

    def heal(self) -> None:
        if self._outsider is not None:
            self._end(self._outsider)

    # --- judging ---

    def decided(self, event: e.Event, before: GroupRecord, effects: list[e.Effect]) -> None:
        """What one event made the controller do. Raises Violation, Unjudged."""
        world = self._world
        if isinstance(event, e.Heartbeat):
            self._heard[event.replica] = (event.incarnation, world.now_us)
        if not isinstance(event, e.RegisterBroker):
            return
        original, other = world.brokers[event.replica], world.hosts[int(event.address)]
        answers = [each for each in effects if isinstance(each, e.Answer)]
        if other is original or not answers:
            return
        if answers[-1].code is not e.Code.SUCCESS:
            world.mark("copy refused")
            return
        incarnation, at_us = self._heard.get(event.replica, (0, 0))
        there = incarnation == original.incarnation and original.up
        if there and world.now_us - at_us < 1500 * world.times.heartbeat_ms:
            raise Violation(
                Check.CLONE,
                f"replica {event.replica} at host {original.host} lives, and its copy at {other.host} is "
                f"taken for it\n{world.describe()}",
            )
        self._exchange(original, other, before)

    def _exchange(self, original: Broker, copy: Broker, before: GroupRecord) -> None:
        """The copy is the replica from now on, and the original a copy."""
        world, replica = self._world, original.replica
        suspect = replica in world.controller.record.suspects
        world.mark("copy taken for the replica" + (", a suspect" if suspect else ""))
        world.note("copy", copy.host, "is replica", replica, "suspect", suspect)
        world.brokers[replica], self._outsider = copy, original
        if original.up and not suspect:
            world.mark("copy of a replica that was cut off")
            raise Unjudged(f"replica {replica} may go on beside its copy")
        shared = _shared(original.disk, copy.disk)
        confirmed = len(world.checks.canon) if replica in before.base else 0
        if max(original.disk.end, confirmed) > shared and not suspect:
            member = before.members[replica]
            known = max(member.held, before.confirmed if replica in before.base else 0)
            if copy.disk.end >= known:
                world.mark("copy lacked what nobody was told of")
                raise Unjudged(f"the copy of replica {replica} lacks what that one told nobody")
        world.checks.went_back(copy, shared, original.disk.end)
        world.after(self._rng.randrange(*RUNS_US), self._end, original)


def _shared(one: Disk, other: Disk) -> int:
    """How far two logs are the same."""
    for at, (mine, theirs) in enumerate(zip(one.log, other.log, strict=False)):
        if mine != theirs:
            return at
    return min(one.end, other.end)
