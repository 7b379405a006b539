"""Pulls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from messagekit import FakeClock, FakeConnection

from tandemmq.cluster.broker.reading.longpoll import HeldPull, HeldPulls
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.headers import PullHeader
from tandemmq.storage import Selector


class Bench:
    """Held pulls whose answers are counted."""

    def __init__(self, count_max: int = 100) -> None:
        self.clock = FakeClock()
        self.answered: list[HeldPull] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.wanted: set[int] = set()  # queue offsets that filters take
        self.judge_ms = 0
        self.looked: list[HeldPull] = []
        self.held = HeldPulls(
            self.answered.append,
            lambda topic, queue: self.ends.get((topic, queue), 0),
            self.look_on,
            self.clock,
            count_max,
        )

    def look_on(self, pull: HeldPull) -> bool:
        """Judge three messages at once."""
        self.looked.append(pull)
        self.clock.pass_ms(self.judge_ms)
        seen = range(pull.judged, min(pull.judged + 3, self.ends[pull.queue]))
        pull.judged = seen.stop
        return not self.wanted.isdisjoint(seen)

    def hold(
        self,
        queue_id: int = 0,
        offset: int = 5,
        codes: frozenset[int] | None = None,
        hold_ms: int = 15_000,
        connection: FakeConnection | None = None,
        matches: Callable[[bytes], bool] | None = None,
    ) -> HeldPull:
        header = PullHeader("g", "T", queue_id, offset, 32, 2)
        pull = HeldPull(
            connection or FakeConnection(),
            Command(11),
            header,
            Selector(codes, matches),
            self.clock.monotonic_ms() + hold_ms,
        )
        self.held.hold(pull)
        return pull


def test_a_message_behind_the_asked_offset_wakes_the_pull_once() -> None:
    bench = Bench()
    pull = bench.hold(offset=5)
    bench.held.arrived([("T", 1, 9, 0), ("U", 0, 9, 0), ("T", 0, 5, 0)])
    assert bench.answered == []
    bench.held.arrived([("T", 0, 6, 0), ("T", 0, 7, 0)])
    assert bench.answered == [pull]
    assert bench.held.count == 0
    bench.held.arrived([("T", 0, 8, 0)])
    assert bench.answered == [pull]


def test_only_messages_with_a_wanted_tag_wake_a_pull() -> None:
    bench = Bench()
    pull = bench.hold(codes=frozenset({77, -3}))
    bench.held.arrived([("T", 0, 6, 12)])
    assert bench.answered == []
    bench.held.arrived([("T", 0, 7, 12), ("T", 0, 8, -3)])
    assert bench.answered == [pull]


def test_the_sweep_answers_pulls_whose_tags_never_came() -> None:
    bench = Bench()
    pull = bench.hold(codes=frozenset({77}))
    waiting = bench.hold(queue_id=1, offset=5)
    bench.held.arrived([("T", 0, 6, 12)])
    bench.ends = {("T", 0): 6, ("T", 1): 5}
    bench.held.sweep()
    assert bench.answered == [pull]
    assert bench.held.count == 1
    bench.ends["T", 1] = 6
    bench.held.sweep()
    assert bench.answered == [pull, waiting]


def test_a_pull_is_answered_when_its_time_is_up_and_not_before() -> None:
    bench = Bench()
    short, long = bench.hold(hold_ms=1_000), bench.hold(hold_ms=15_000)
    bench.clock.pass_ms(999)
    bench.held.expire(bench.clock.monotonic_ms())
    assert bench.answered == []
    bench.clock.pass_ms(501)
    bench.held.expire(bench.clock.monotonic_ms())
    assert bench.answered == [short]
    bench.clock.pass_ms(3_600_000)  # the process stood still
    bench.held.expire(bench.clock.monotonic_ms())
    assert bench.answered == [short, long]


def test_a_pull_with_no_time_left_is_answered_by_the_next_tick() -> None:
    bench = Bench()
    pull = bench.hold(hold_ms=0)
    bench.clock.pass_ms(500)
    bench.held.expire(bench.clock.monotonic_ms())
    assert bench.answered == [pull]


def test_pulls_of_a_closed_connection_are_dropped_without_an_answer() -> None:
    bench = Bench()
    gone, stays = FakeConnection(), FakeConnection()
    for connection in (gone, stays, gone):
        bench.hold(connection=connection)
    gone.close()
    assert bench.held.count == 1
    bench.held.arrived([("T", 0, 6, 0)])
    assert [pull.connection for pull in bench.answered] == [stays]


def test_a_pull_of_a_connection_that_is_closed_already_is_not_kept() -> None:
    bench = Bench()
    gone = FakeConnection()
    gone.close()
    bench.hold(connection=gone)
    assert bench.held.count == 0
    bench.held.release_all()
    assert bench.answered == []


async def test_the_loop_answers_what_is_due_and_sweeps_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    due, swept = bench.hold(hold_ms=2_000), bench.hold(codes=frozenset({7}))
    bench.ends["T", 0] = 0
    happened = []

    async def moved_on(seconds: float) -> None:
        happened.append((bench.clock.monotonic_ms(), list(bench.answered)))
        bench.clock.pass_ms(round(seconds * 1000))
        bench.ends["T", 0] = 9
        if bench.clock.monotonic_ms() > 7_000:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", moved_on)
    with pytest.raises(asyncio.CancelledError):
        await bench.held.run()
    assert next(at for at, answered in happened if due in answered) in (3_000, 3_500)
    assert next(at for at, answered in happened if swept in answered) == 6_000


def test_one_close_callback_serves_all_pulls_of_a_connection() -> None:
    bench = Bench()
    connection = FakeConnection()
    for offset in range(50):
        bench.hold(offset=offset, connection=connection)
        bench.held.arrived([("T", 0, offset + 1, 0)])
    assert len(bench.answered) == 50
    assert connection.close_callbacks == 1


def test_who_waited_longest_is_woken_first() -> None:
    bench = Bench()
    pulls = [bench.hold() for _ in range(20)]
    bench.held.arrived([("T", 0, 6, 0)])
    assert bench.answered == pulls


def test_pulls_of_a_group_that_is_sent_elsewhere_are_answered_at_once() -> None:
    bench = Bench()
    mine = [bench.hold(queue_id) for queue_id in (0, 1, 1, 2)]
    bench.held.sent_elsewhere("other", "T", [0, 1, 2])
    bench.held.sent_elsewhere("g", "U", [0, 1, 2])
    assert bench.answered == []
    bench.held.sent_elsewhere("g", "T", [1, 2, 9])
    assert bench.answered == mine[1:]
    assert bench.held.count == 1


def test_the_number_of_held_pulls_is_bounded() -> None:
    bench = Bench(count_max=2)
    bench.hold()
    assert not bench.held.full
    bench.hold()
    assert bench.held.full
    bench.held.release_all()
    assert not bench.held.full and len(bench.answered) == 2


def never(properties: bytes) -> bool:
    return False


def test_messages_that_a_filter_does_not_take_leave_the_pull_where_it_is() -> None:
    bench = Bench()
    pull = bench.hold(offset=5, matches=never)
    bench.ends["T", 0], bench.wanted = 12, {4, 12}
    bench.held.arrived([("T", 0, end, 0) for end in range(6, 13)])
    assert (bench.answered, pull.judged) == ([], 12)
    bench.ends["T", 0] = 13
    bench.held.arrived([("T", 0, 13, 0)])
    assert bench.answered == [pull]
    assert len(bench.looked) == 4  # three for the seven messages: each message is judged once


def test_the_sweep_answers_a_pull_whose_filter_took_nothing() -> None:
    bench = Bench()
    pull = bench.hold(offset=5, matches=never)
    bench.ends["T", 0] = 9
    bench.held.arrived([("T", 0, 9, 0)])
    assert bench.answered == []
    bench.held.sweep()
    assert bench.answered == [pull]


async def test_filters_that_are_dear_are_asked_in_turns_with_all_else() -> None:
    bench = Bench()
    bench.judge_ms = 2
    pulls = [bench.hold(offset=5, matches=never) for _ in range(10)]
    bench.ends["T", 0] = 7
    bench.held.arrived([("T", 0, 6, 0)])
    assert len(bench.looked) == 2
    bench.held.arrived([("T", 0, 7, 0)])  # a turn is coming: nobody is asked before it
    assert len(bench.looked) == 2
    pulls[4].connection.close("gone")
    for _ in range(4):
        await asyncio.sleep(0)
    assert [pull.judged for pull in pulls] == [7, 7, 7, 7, 5, 7, 7, 7, 7, 7]
    assert bench.answered == []
