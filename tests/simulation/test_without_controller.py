"""A group outlives its controller for as long as no member dies: ten minutes of simulated time without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandemmq.chaos.sim.world import World
from tandemmq.replication.config import LeasePolicy, Mode
from tandemmq.replication.master import MasterCore, Refusal

pytestmark = pytest.mark.simulation

MINUTE_US = 60_000_000
AWAY_MINUTES = 10
PUTS_PER_S = 4.0


def whole(seed: int, mode: Mode, policy: LeasePolicy = LeasePolicy.AUTO) -> World:
    """A healthy group of two, three or four, every replica in its set, with a light load."""
    world = World(seed, mode=mode, retention=False, later=False)
    world.faulty = False
    rules = world.plan.rules
    fields = {name: getattr(rules, name) for name in rules.__struct_fields__}
    fields |= {"lease_policy": policy, "copies_min": 1}
    world.plan = replace(world.plan, rules=type(rules)(**fields), put_rate=PUTS_PER_S)
    assert world.plan.replicas > 1, "choose another seed"
    for _ in range(40_000):
        world.step()
        if world._quiet():
            return world
    raise AssertionError(world.describe())


def acknowledged_per_minute(world: World, minutes: int) -> list[int]:
    counts = []
    for _ in range(minutes):
        before, until_us = len(world.checks.acked), world.now_us + MINUTE_US
        while world.now_us < until_us:
            world.step()
        counts.append(len(world.checks.acked) - before)
    return counts


def refused(world: World) -> Refusal | None:
    (master,) = (each for each in world.brokers.values() if each.reigning)
    assert master.core is not None
    return master.core.refusal(master.local_ms())


@pytest.mark.parametrize("mode", [Mode.S0, Mode.S1])
@pytest.mark.parametrize("seed", [3, 5, 8])
def test_a_whole_set_goes_on_for_ten_minutes_without_its_controller(seed: int, mode: Mode) -> None:
    # INV-23
    world = whole(seed, mode)
    (expected,) = acknowledged_per_minute(world, 1)
    assert expected > PUTS_PER_S * 60 / 4
    world.controller.crash()
    counts = acknowledged_per_minute(world, AWAY_MINUTES)
    assert min(counts) > expected / 2, counts
    assert refused(world) is None
    world.controller.start()
    outcome = world.run(2000)
    assert outcome.reigns == 1, "the same master goes on"
    assert outcome.losses_declared == 0


@pytest.mark.parametrize("seed", [3, 5])
def test_a_member_that_dies_meanwhile_stops_the_group_until_the_controller_is_back(
    seed: int,
) -> None:
    world = whole(seed, Mode.S0)
    world.controller.crash()
    acknowledged_per_minute(world, 1)
    victim = next(each for each in world.brokers.values() if not each.reigning)
    victim.crash(power=False)
    acknowledged_per_minute(world, 1)
    assert sum(acknowledged_per_minute(world, 1)) == 0
    assert refused(world) is Refusal.NO_LEASE
    world.controller.start()
    victim.start()
    world.run(2000)  # judges the history


@pytest.mark.parametrize(
    ("mode", "policy", "goes_on"),
    [
        (Mode.A0, LeasePolicy.AUTO, True),
        (Mode.A1, LeasePolicy.AUTO, False),
        (Mode.A0, LeasePolicy.STRICT, False),
        (Mode.A1, LeasePolicy.AVAILABLE, True),
    ],
)
def test_an_asynchronous_master_does_what_its_policy_says(
    mode: Mode, policy: LeasePolicy, goes_on: bool
) -> None:
    world = whole(3, mode, policy)
    world.controller.crash()
    counts = acknowledged_per_minute(world, 3)
    assert (min(counts[1:]) > 0) is goes_on, counts
    assert (refused(world) is None) is goes_on
    world.controller.start()
    world.run(2000)


class StopsWithItsController(MasterCore):
    """As it was: every mode needs the lease."""

    def _fenced_by(self, members: Any) -> bool:
        return False


def test_a_master_that_stops_with_its_controller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MasterCore, "_fenced_by", StopsWithItsController._fenced_by)
    world = whole(3, Mode.S0)
    world.controller.crash()
    acknowledged_per_minute(world, 1)
    assert sum(acknowledged_per_minute(world, 1)) == 0
    assert refused(world) is Refusal.NO_LEASE
