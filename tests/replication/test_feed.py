"""The feed: one event after the other, each list of effects to its end, nothing after something final."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.feed import EffectFailed, Feed
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import Admit, SlaveGreeted, Tick
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.slave import Connect, Follow, SlaveCore
from tandemmq.storage import FlushFailed, SystemClock


class Say:
    def __init__(self, text: str) -> None:
        self.text = text


class Wait(Say):
    """Performed by somebody who takes his time."""


class Script:
    """A core whose events are the effects they cause."""

    def __init__(self) -> None:
        self.stepped: list[Any] = []

    def step(self, event: Any, now_ms: int) -> list[Any]:
        self.stepped.append(event)
        if isinstance(event, BaseException):
            raise event
        return event if isinstance(event, list) else []


class Stage:
    """A feed over a Script, what was said, and the end of the wait under way."""

    def __init__(self) -> None:
        self.core = Script()
        self.feed = Feed(self.core, SystemClock())
        self.said: list[str] = []
        self.waits: list[asyncio.Future[None]] = []
        self.feed.register(Say, lambda effect: self.said.append(effect.text))
        self.feed.register(Wait, self._wait)

    async def _wait(self, effect: Wait) -> None:
        self.said.append(f"{effect.text}...")
        self.waits.append(asyncio.get_running_loop().create_future())
        await self.waits[-1]
        self.said.append(effect.text)

    async def let_go(self, error: BaseException | None = None) -> None:
        """End the wait under way and let the feed go on."""
        await asyncio.sleep(0)
        wait = self.waits.pop(0)
        if error is None:
            wait.set_result(None)
        else:
            wait.set_exception(error)
        task = self.feed._under_way
        assert task is not None
        await asyncio.wait({task})


def test_an_event_fed_by_a_handler_waits_until_the_list_is_done() -> None:
    stage = Stage()
    stage.feed.register(Say, lambda effect: stage.feed.feed([]) if effect.text == "a" else None)
    stage.feed.feed([Say("a"), Say("b")])
    assert stage.said == ["a", "b"] and len(stage.core.stepped) == 2


async def test_later_events_queue_in_order_while_an_effect_is_under_way() -> None:
    stage = Stage()
    stage.feed.feed([Say("a"), Wait("b"), Say("c")])
    assert stage.feed.busy
    stage.feed.feed([Say("d"), Wait("e")])
    stage.feed.feed([Say("f")])
    await stage.let_go()
    assert stage.said[:5] == ["a", "b...", "b", "c", "d"] and len(stage.core.stepped) == 2
    await stage.let_go()
    assert stage.said == ["a", "b...", "b", "c", "d", "e...", "e", "f"] and not stage.feed.busy


async def test_who_held_back_is_called_when_everything_is_done() -> None:
    stage = Stage()
    called: list[int] = []
    stage.feed.resumed.append(lambda: called.append(len(stage.said)))
    stage.feed.feed([Say("at once")])
    assert called == []
    stage.feed.feed([Wait("a")])
    stage.feed.feed([Say("b")])
    await stage.let_go()
    assert called == [4]


async def test_ticks_are_left_out_while_an_effect_is_under_way() -> None:
    stage = Stage()
    stage.feed.feed([Wait("a")])
    for _ in range(100):
        stage.feed.tick()
    await stage.let_go()
    stage.feed.tick()
    assert [type(each) for each in stage.core.stepped] == [list, Tick]


async def test_a_failed_effect_drops_the_rest_of_its_list_and_its_event_comes_first() -> None:
    stage = Stage()

    def fail(effect: Say) -> None:
        if effect.text == "bad":
            raise EffectFailed([Say("the core knows")])

    stage.feed.register(Say, fail)
    stage.feed.feed([Wait("a"), Say("bad"), Say("never")])
    stage.feed.feed([Say("later")])
    await stage.let_go()
    assert stage.said == ["a...", "a", "bad", "the core knows", "later"]
    stage.feed.feed([Wait("b"), Say("never")])
    stage.feed.feed([Say("last")])
    await stage.let_go(EffectFailed([Say("it knows again")]))
    assert stage.said[-3:] == ["b...", "it knows again", "last"]
    assert stage.feed.failure is None


@pytest.mark.parametrize("error", [AssertionError("INV-21"), FlushFailed("input/output error")])
async def test_what_is_final_ends_run_and_nothing_is_stepped_any_more(error: Exception) -> None:
    ways: list[Callable[[Stage], None]] = [
        lambda stage: stage.feed.feed(error),
        lambda stage: stage.feed.guarded(stage.core.step, error, 0),
        lambda stage: stage.feed.fail(error),
    ]
    for way in ways:
        stage = Stage()
        stopped: list[str] = []
        stage.feed.failed.append(lambda stopped=stopped: stopped.append("stopped"))
        way(stage)
        stage.feed.feed([Say("promised")])
        assert stopped == ["stopped"] and stage.said == []
        with pytest.raises(type(error), match=str(error)):
            await stage.feed.run()


def test_what_is_final_leaves_what_the_core_decided_last_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = MasterCore(1, Mode.S0, StreamRules(), controlled=False)
    feed = Feed(core, SystemClock())
    feed.ignore(Admit)
    feed.feed(SlaveGreeted(7, 2))
    feed.fail(AssertionError("INV-21"))
    (told,) = [record.getMessage() for record in caplog.records if "decided last" in record.message]
    assert "MasterCore" in told and "replica 2 greeted" in told


async def test_a_handler_that_fails_later_is_final_too() -> None:
    stage = Stage()
    stage.feed.feed([Wait("a"), Say("never")])
    stage.feed.feed([Say("never")])
    await stage.let_go(OSError("no space left"))
    assert stage.said == ["a..."]
    with pytest.raises(OSError, match="no space"):
        await stage.feed.run()


async def test_an_effect_that_nobody_performs_is_a_bug_that_ends_run() -> None:
    stage = Stage()
    stage.feed.feed([object()])
    with pytest.raises(AssertionError, match="nobody performs"):
        await stage.feed.run()
    stage = Stage()
    stage.feed.ignore(object)
    stage.feed.feed([object(), Say("a")])
    assert stage.said == ["a"]


async def test_run_waits_for_the_effect_under_way_before_it_ends() -> None:
    stage = Stage()
    running = asyncio.ensure_future(stage.feed.run())
    await asyncio.sleep(0)
    stage.feed.feed([Wait("cut the log"), Say("never")])
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    await stage.let_go()
    await asyncio.wait({running})
    assert running.cancelled() and stage.said == ["cut the log...", "cut the log"]
    stage.feed.feed([Say("never")])
    assert stage.said[-1] == "cut the log"


def test_halves_of_a_replica_are_found() -> None:
    rules = StreamRules()
    replica = ReplicaCore(1, 1, Mode.S0, LeaseTimes(), rules, SlaveCore(rules))
    master = MasterCore(0, Mode.S0, rules, controlled=False)
    clock = SystemClock()
    assert Feed(replica, clock).slave is replica.slave and Feed(replica, clock).master is None
    assert Feed(master, clock).master is master and Feed(master, clock).slave is None


async def test_a_core_is_ticked_in_the_rhythm_that_fits_its_state() -> None:
    core = SlaveCore(StreamRules(), classic=True)
    feed = Feed(core, SystemClock())
    connects: list[Connect] = []
    feed.register(Connect, connects.append)
    feed.feed(Follow(0, "10.0.0.1:1", 0))
    assert feed._tick_ms() == 50 and len(connects) == 1
    core.state = core.state.STREAMING
    assert feed._tick_ms() == 500
