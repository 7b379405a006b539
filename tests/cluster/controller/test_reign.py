"""INV-34: nothing leaves a controller before what it rests on is durable, whatever the store does."""

from __future__ import annotations

import asyncio
import random

import pytest

from tandemmq.cluster.controller.reign import HELD_MAX, Reign
from tandemmq.cluster.controller.store import Changes, LeadershipLost, StoreUnreachable
from tandemmq.replication import GroupRecord, LeaseTimes
from tandemmq.replication import election as e


class RecordingCore(e.ControllerCore):
    """A core that writes down what it decides."""

    made: list[e.Effect]

    def step(self, event: e.Event, now_ms: int) -> list[e.Effect]:
        effects = super().step(event, now_ms)
        self.made += effects
        return effects


class Watched:
    """A core whose every effect is known in order, and a store that keeps time as it likes."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.leads = True
        self.durable: dict[str, GroupRecord | None] = {}
        self.made: list[e.Effect] = []  # by the core, in order
        self.done: list[e.Effect] = []  # by the shell, in order
        self.failing = False
        self.position = 0  # in made
        self.needed: dict[str, int] = {}  # the last record of each group before it
        self.core = RecordingCore(LeaseTimes())
        self.core.made = self.made
        self.reign = Reign(
            self.core, self.write, self.perform, lambda: self.now_ms, lambda: self.leads
        )

    async def write(self, changes: Changes) -> None:
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)
        if self.failing or self.rng.random() < 0.2:
            if self.rng.random() < 0.5:
                self.durable.update(changes)  # done, but not known to be
            raise StoreUnreachable("the seed says so")
        self.durable.update(changes)

    def perform(self, effect: e.Effect) -> None:
        """Whatever the core decided before this effect must be durable, or be overtaken by what is."""
        self.done.append(effect)
        while (made := self.made[self.position]) is not effect:
            if isinstance(made, e.Persist):
                self.needed[made.group] = self.position
            self.position += 1
        for group, index in self.needed.items():
            kept = self.durable[group]
            places = (i for i, m in enumerate(self.made) if isinstance(m, e.Persist))
            assert max(i for i in places if self.made[i].record is kept) >= index, "not durable yet"  # type: ignore[union-attr]


def random_event(rng: random.Random, world: Watched) -> e.Event:
    replica = rng.randrange(1, 4)
    group = world.core.groups.get("a")
    record = group.record if group else GroupRecord("c", "a")
    known = record.members.get(replica)
    process = known.incarnation if known else 0
    match rng.randrange(9):
        case 0:
            return e.ApplyBrokerId(rng.randrange(99), "c", "a", replica, f"code{replica}")
        case 1:
            fresh = rng.randrange(1, 1000)
            return e.RegisterBroker(
                1, fresh, "c", "a", replica, f"h:{replica}", "", fresh, "S0", rng.random() < 0.1
            )
        case 2:
            return e.ElectMaster(2, "c", "a", replica, rng.random() < 0.3)
        case 3 | 4 | 5:
            leading = record.master == replica
            return e.Heartbeat(
                process, "a", replica, process, rng.randrange(99), record.epoch, rng.randrange(99),
                leading=leading, streaming=rng.random() < 0.5, resigned=leading and rng.random() < 0.1,
            )  # fmt: skip
        case 6:
            members = frozenset(each for each in (1, 2, 3) if rng.random() < 0.6) | {record.master}
            vouched = tuple((each, m.incarnation) for each, m in record.members.items())
            return e.AlterSyncSet(
                3, "a", record.master, record.epoch, members, record.set_number, vouched
            )
        case 7:
            return e.SessionClosed(process)
        case _:
            return e.Tick()


async def test_effects_leave_in_order_and_only_on_durable_ground() -> None:
    elections = 0
    for seed in range(20):
        world = Watched(seed)
        job = asyncio.create_task(world.reign.run())
        for _ in range(200):
            world.now_ms += world.rng.randrange(400)
            world.reign.feed(random_event(world.rng, world))
            if world.rng.random() < 0.5:
                await asyncio.sleep(0)
        for _ in range(10_000):
            if not world.reign.held:
                break
            await asyncio.sleep(0)
        job.cancel()
        wanted = [effect for effect in world.made if not isinstance(effect, e.Persist)]
        assert world.done == wanted and len(wanted) > 100, f"{seed}: all, each once, in order"
        elections += sum(record.epoch for record in world.core.records())
    assert elections > 20


async def test_a_reign_that_is_over_decides_and_says_nothing() -> None:
    world = Watched()
    world.failing = True
    job = asyncio.create_task(world.reign.run())
    world.reign.feed(e.ApplyBrokerId(1, "c", "a", 1, "x"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.reign.failing_since_ms == 0
    world.leads = False
    world.failing = False
    world.reign.feed(e.NextBrokerId(2, "c", "a"))
    await asyncio.wait_for(job, 5)
    assert world.done == [] and len(world.made) == 2, "the second event was not even taken"


async def test_lost_leadership_comes_out_of_the_write() -> None:
    world = Watched()

    async def deposed(_: Changes) -> None:
        raise LeadershipLost("n1 leads")

    reign = Reign(world.core, deposed, world.perform, lambda: 0, lambda: True)
    reign.feed(e.ApplyBrokerId(1, "c", "a", 1, "x"))
    with pytest.raises(LeadershipLost, match="n1 leads"):
        await reign.run()
    assert world.done == []


async def test_a_store_that_is_too_slow_is_noticed() -> None:
    world = Watched()
    world.reign.feed(e.ApplyBrokerId(1, "c", "a", 1, "x"))
    while not world.reign.overloaded:
        assert world.reign.held <= HELD_MAX
        world.reign.feed(e.NextBrokerId(2, "c", "a"))
    assert world.reign.held == HELD_MAX
