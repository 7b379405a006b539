"""Timed messages: parking, waiting, delivering once, recalling, and going on from what the log says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from messagekit import START_MS, FakeClock, Kit, open_kit

from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.timers import marks, rules
from tandemmq.cluster.broker.timers.rules import Window
from tandemmq.cluster.broker.timers.schedule import DELIVERIES_PER_STEP, REPEATS_KNOWN_MS
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.recall import RecallHandle
from tandemmq.storage import (
    PROPERTIES_BYTES_MAX,
    CorruptFile,
    Draft,
    StoreNotWritable,
    encode_properties,
)

HOUR_MS = 3_600_000


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_timers(tmp_path) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        yield kit


def open_timers(root: Path, clock: FakeClock | None = None, **settings: object):  # type: ignore[no-untyped-def]
    return open_kit(root, clock, recall_enabled=True, timer_log_file_bytes=5_200, **settings)


def send(kit: Kit, number: int, *, queue: int = 1, **timer: int | str) -> Command:
    properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA"}
    properties |= {f"TIMER_{name.upper()}": str(value) for name, value in timer.items()}
    answer = kit.send(b"%d" % number, e=str(queue), i=encode_properties(properties).decode())
    assert answer is not None
    return answer


def settle(kit: Kit, steps: int = 400) -> None:
    """As often as the job would step without time passing."""
    for _ in range(steps):
        kit.dispatch()
        if kit.timers.step() > 0:
            kit.dispatch()
            return
    raise AssertionError("it never has nothing to do")


def pass_ms(kit: Kit, duration_ms: int, step_ms: int = 50) -> None:
    for _ in range(0, duration_ms, step_ms):
        kit.clock.pass_ms(step_ms)
        settle(kit)


def arrived(kit: Kit) -> list[int]:
    return [int(r.body) for r in kit.records() if r.topic == "T"]


def reopened(root: Path, clock: FakeClock, **settings: object) -> Iterator[Kit]:
    with open_timers(root, clock, **settings) as kit:
        kit.topic("T", 4)
        kit.dispatch()
        kit.timers.pending.load()
        kit.timers.begin()
        settle(kit)
        yield kit


async def test_a_broker_that_takes_long_to_stop_does_not_spin_over_what_is_due(kit: Kit) -> None:
    send(kit, 1, deliver_ms=START_MS + 1_500)
    await kit.timers.settle()
    pass_ms(kit, 5_000)
    assert arrived(kit) == []
    assert kit.timers.step() > 0


# -- when, and in which slot ----------------------------------------------------------------


def test_a_message_waits_in_the_last_slot_that_begins_before_it_is_due() -> None:
    assert rules.out_ms(10_001, 1000) == 10_000
    assert rules.out_ms(10_000, 1000) == 9_000
    assert rules.out_ms(10_999, 1000) == 10_000


def test_what_waits_longer_than_the_window_is_put_back_and_never_for_a_short_rest() -> None:
    window = Window(1000, 172_800)
    day = 86_400_000
    assert rules.slotted(day, 0, window) == (day, False)
    assert rules.slotted(60 * HOUR_MS, 0, window) == (
        day,
        True,
    )  # as RocketMQ, see the golden store
    assert rules.slotted(10 * day, 0, window) == (2 * day, True)


def test_no_message_waits_longer_than_the_log_is_kept() -> None:
    assert Window.of(1000, 172_800, 72 * HOUR_MS).slots == 172_800
    assert Window.of(1000, 172_800, 24 * HOUR_MS).slots == 16 * 3600
    assert Window.of(1000, 1, 10_000 * HOUR_MS).slots == 7 * 86_400 - 60


def test_a_slot_is_never_further_ahead_than_a_unit_of_the_timer_log_can_say() -> None:
    window = Window.of(60_000, 172_800, 10_000 * HOUR_MS)
    slot_ms, rolls = rules.slotted(90 * 24 * HOUR_MS, 59_999, window)
    assert rolls and slot_ms + 60_000 < 1 << 31


# -- sending --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timer", [{"delay_sec": 3}, {"delay_ms": 3_000}, {"deliver_ms": START_MS + 3_000}], ids=str
)
def test_a_message_comes_when_it_is_due_and_not_before(kit: Kit, timer: dict[str, int]) -> None:
    assert send(kit, 1, queue=2, **timer).code == 0
    kit.dispatch()
    pass_ms(kit, 3_000)
    assert arrived(kit) == []
    pass_ms(kit, 1, 1)
    assert arrived(kit) == [1]
    pass_ms(kit, 5_000)
    (record,) = (r for r in kit.records() if r.topic == "T")
    assert record.queue_id == 2
    parked = next(r for r in kit.records() if r.topic == names.TIMER_TOPIC)
    assert (record.born_ms, record.born_host) == (parked.born_ms, parked.born_host)
    properties = record.property_map
    assert properties["TIMER_OUT_MS"] == str(rules.out_ms(START_MS + 3_000, 1000))
    assert properties["REAL_TOPIC"] == "T" and "TIMER_DEQUEUE_MS" in properties


def test_a_time_that_is_over_is_delivered_at_once_and_one_too_far_is_refused(kit: Kit) -> None:
    answer = send(kit, 1, deliver_ms=START_MS - 5)
    assert answer.code == 0 and "recallHandle" not in (answer.ext or {})
    assert arrived(kit) == [1]
    for timer in (
        {"delay_sec": 259_201},
        {"deliver_ms": "soon"},
        {"delay_ms": -1, "del_uniqkey": "T+1"},
    ):
        answer = send(kit, 2, **timer)  # type: ignore[arg-type]
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, timer
        assert (answer.remark or "").startswith("timer message illegal")


def test_what_came_back_with_the_marks_of_a_timer_is_no_timer(kit: Kit) -> None:
    assert send(kit, 1, deliver_ms=START_MS + 60_000, out_ms=START_MS).code == 0
    assert arrived(kit) == [1]


def test_properties_that_hardly_fit_are_delivered_as_they_are_and_larger_ones_refused(
    kit: Kit,
) -> None:
    def sent(length: int) -> int:
        properties = {"UNIQ_KEY": f"{length:032X}", "TIMER_DELAY_SEC": "2", "own": "x" * length}
        answer = kit.send(b"%d" % length, i=encode_properties(properties).decode())
        assert answer is not None
        return answer.code

    room = PROPERTIES_BYTES_MAX - 400
    while sent(room) == 0:  # its place in the timer topic takes some of it
        room += 1 + (PROPERTIES_BYTES_MAX - room) // 20
    assert sent(room) == ResponseCode.MESSAGE_ILLEGAL
    parked = [int(r.body) for r in kit.records() if r.topic == names.TIMER_TOPIC]
    biggest = max(parked)
    while sent(biggest + 1) == 0:
        biggest += 1
    pass_ms(kit, 3_500)
    assert set(arrived(kit)) == {*parked, *range(max(parked), biggest + 1)}
    (last,) = [r for r in kit.records() if r.topic == "T" and r.body == b"%d" % biggest]
    assert last.property_map["own"] == "x" * biggest


def test_a_delay_level_wins(kit: Kit) -> None:
    text = encode_properties({"DELAY": "3", "TIMER_DELAY_SEC": "60", "UNIQ_KEY": "1"}).decode()
    assert (answer := kit.send(b"1", i=text)) is not None and answer.code == 0
    assert [r.topic for r in kit.records()] == [names.SCHEDULE_TOPIC]


def test_switched_off_it_refuses(tmp_path: Path) -> None:
    with open_timers(tmp_path, timer_wheel_enabled=False) as kit:
        kit.topic("T", 4)
        answer = send(kit, 1, delay_sec=1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"


def test_nobody_sends_to_the_topics_in_which_timers_wait(kit: Kit) -> None:
    for topic in (names.TIMER_TOPIC, names.TIMER_MARKS_TOPIC):
        answer = kit.send(b"x", b=topic)
        assert answer is not None and answer.code == ResponseCode.NO_PERMISSION


def test_a_crowded_slot_refuses_and_names_the_next_with_room(tmp_path: Path) -> None:
    with open_timers(tmp_path, timer_congest_count_max=2) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        due_ms = START_MS + 10_000
        for number in range(3):
            assert send(kit, number, deliver_ms=due_ms).code == 0
        settle(kit)
        # nobody is unlucky at half of what is allowed above the limit
        object.__setattr__(kit.door, "draw", lambda: 0.9)
        assert send(kit, 3, deliver_ms=due_ms).code == 0
        settle(kit)
        answer = send(kit, 4, deliver_ms=due_ms)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timer message is under flow control, max num limit is 4" in (answer.remark or "")
        free_ms = int((answer.ext or {})["timerFreeMs"])
        assert 0 < free_ms - due_ms <= 1_000
        assert send(kit, 5, deliver_ms=free_ms).code == 0


# -- delivering -----------------------------------------------------------------------------


def test_many_in_any_order_come_in_order_of_their_time(kit: Kit) -> None:
    rng = random.Random(3)
    times = [rng.randrange(1, 8_000) for _ in range(300)]
    for number, after_ms in enumerate(times):
        send(kit, number, deliver_ms=START_MS + after_ms)
    due = dict(enumerate(times))
    seen: list[int] = []
    for now_ms in range(10, 8_050, 10):
        pass_ms(kit, 10, 10)
        now = arrived(kit)
        for number in now[len(seen) :]:
            assert now_ms - 10 <= due[number] < now_ms, (number, due[number], now_ms)
        seen = now
    assert sorted(seen) == list(range(300))
    assert kit.timers.pending.count == 0


def test_a_message_sent_into_the_running_second_comes_in_it(kit: Kit) -> None:
    send(kit, 1, deliver_ms=START_MS + 900)
    pass_ms(kit, 100)
    send(kit, 2, deliver_ms=START_MS + 400)
    pass_ms(kit, 350)
    assert arrived(kit) == [2]
    pass_ms(kit, 500)
    assert arrived(kit) == [2, 1]


def test_while_nothing_can_be_stored_all_wait(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        send(kit, number, delay_sec=1)
    kit.dispatch()
    pass_ms(kit, 900)

    def refuse(draft: Draft) -> None:
        raise StoreNotWritable("full")

    monkeypatch.setattr(kit.store, "put", refuse)
    for _ in range(40):
        kit.clock.pass_ms(50)
        kit.timers.step()
    monkeypatch.undo()
    assert arrived(kit) == []
    pass_ms(kit, 100)
    assert arrived(kit) == [0, 1, 2]


def test_a_long_wait_is_cut_into_stretches(tmp_path: Path) -> None:
    with open_timers(tmp_path, timer_roll_window_slots=10) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        answer = send(kit, 1, delay_sec=35)
        pass_ms(kit, 34_950, 50)
        assert arrived(kit) == []
        rolled = [r for r in kit.records() if r.topic == names.TIMER_TOPIC]
        assert [r.property_map.get("TIMER_ROLL_TIMES") for r in rolled] == [None, "1", "2", "3"]
        assert len({r.property_map["TIMER_OUT_MS"] for r in rolled}) == 1
        pass_ms(kit, 1_000)
        assert arrived(kit) == [1]
        assert RecallHandle.decode((answer.ext or {})["recallHandle"]).message_id == f"{1:032X}"


def test_more_than_three_days_are_taken_where_they_are_set(tmp_path: Path) -> None:
    day_ms = 24 * HOUR_MS
    with open_timers(tmp_path, timer_max_delay_s=30 * 86_400) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        assert send(kit, 1, deliver_ms=START_MS + 10 * day_ms).code == 0
        refused = send(kit, 2, deliver_ms=START_MS + 30 * day_ms + 1_000)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "max delay 2592000000ms" in (refused.remark or "")
        settle(kit)
        pass_ms(kit, 10 * day_ms - 5_000, step_ms=HOUR_MS // 2)
        kit.clock.pass_ms(START_MS + 10 * day_ms - 1_000 - kit.clock.now_ms())
        settle(kit)
        assert not arrived(kit) and kit.timers.pending.count == 1
        pass_ms(kit, 2_000)
        assert arrived(kit) == [1] and kit.timers.pending.count == 0


def test_what_was_down_for_weeks_is_late_and_not_lost(kit: Kit) -> None:
    for number in range(20):
        send(kit, number, delay_sec=1 + number * 7_200)
    settle(kit)
    kit.clock.pass_ms(20 * 86_400_000)
    settle(kit, 10_000)
    send(kit, 20, delay_sec=1)
    pass_ms(kit, 1_050)
    assert arrived(kit) == list(range(21))


def test_what_nobody_delivered_for_weeks_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """A new message wants the place on the wheel that one of two weeks ago still has."""
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        send(kit, 1, deliver_ms=START_MS + 10_000)
        kit.dispatch()
        kit.timers.link()
        clock.pass_ms(14 * 86_400_000)
        send(kit, 2, deliver_ms=START_MS + 14 * 86_400_000 + 10_000)
        kit.dispatch()
        kit.timers.link()
        assert kit.timers.pending.blocked
        kit.timers.begin()
        settle(kit, 10_000)
        assert arrived(kit) == [1]
        pass_ms(kit, 11_000)
        assert arrived(kit) == [1, 2]


# -- recalling ------------------------------------------------------------------------------


def recall(kit: Kit, handle: str, topic: str = "T") -> Command:
    answer = kit.ask(
        Command(370, {"producerGroup": "PG", "topic": topic, "recallHandle": handle}, None)
    )
    assert answer is not None
    return answer


def test_a_recalled_message_never_comes(kit: Kit) -> None:
    handles = [(send(kit, n, delay_sec=3).ext or {})["recallHandle"] for n in range(3)]
    answer = recall(kit, handles[1])
    assert answer.code == 0 and (answer.ext or {})["msgId"] == f"{1:032X}"
    pass_ms(kit, 2_500)
    assert recall(kit, handles[2]).code == 0  # its slot is being delivered
    pass_ms(kit, 4_000)
    assert arrived(kit) == [0]
    assert kit.timers.pending.count == 0


def test_what_cannot_be_recalled_is_refused(kit: Kit) -> None:
    handle = RecallHandle.decode((send(kit, 1, delay_sec=3).ext or {})["recallHandle"])
    illegal = ResponseCode.ILLEGAL_OPERATION
    for bad in (
        "?", "", RecallHandle("T", "broker-a", "", "1").encode(),
        handle._replace(topic="Other").encode(), handle._replace(broker_name="b").encode(),
        handle._replace(deliver_ms=str(START_MS - 1)).encode(),
        handle._replace(deliver_ms="1e9").encode(),
        handle._replace(deliver_ms=str(START_MS + 259_200_000)).encode(),
    ):  # fmt: skip
        assert recall(kit, bad).code == illegal, bad
    assert recall(kit, handle.encode(), "Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    pass_ms(kit, 3_500)
    assert arrived(kit) == [1]


def test_nobody_deletes_a_message_of_another_topic_than_the_deleting_one_has(kit: Kit) -> None:
    """Who may send to the one need not be allowed to send to the other."""
    kit.topic("Other", 4)
    assert send(kit, 1, delay_sec=3).code == 0
    properties = {"UNIQ_KEY": "B" * 32, "TIMER_DELAY_SEC": "3", "TIMER_DEL_UNIQKEY": f"T+{1:032X}"}
    answer = kit.send(b"0", b="Other", e="0", i=encode_properties(properties).decode())
    assert answer is not None and answer.code == ResponseCode.MESSAGE_ILLEGAL
    parked = {
        "TIMER_OUT_MS": str(rules.out_ms(START_MS + 3_000, 1000)),
        "REAL_TOPIC": "Other",
        "REAL_QID": "0",
    }
    kit.store.put(  # as a store may have it that was RocketMQ's
        Draft(names.TIMER_TOPIC, 0, b"0", encode_properties(properties | parked))
    )
    pass_ms(kit, 10_000)
    assert arrived(kit) == [1]


def test_a_message_that_is_larger_than_is_taken_by_now_comes_all_the_same(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        properties = {"UNIQ_KEY": "A" * 32, "TIMER_DELAY_SEC": "3"}
        answer = kit.send(b"7".rjust(5_000), i=encode_properties(properties).decode())
        assert answer is not None and answer.code == 0
        settle(kit)
    with open_timers(tmp_path, clock, storage={"body_bytes_max": 1_000}) as kit:
        kit.topic("T", 4)
        kit.dispatch()
        kit.timers.pending.load()
        kit.timers.begin()
        pass_ms(kit, 5_000)
        assert arrived(kit) == [7]


def test_recalling_is_off_by_default(tmp_path: Path) -> None:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        handle = (send(kit, 1, delay_sec=3).ext or {})["recallHandle"]
        assert recall(kit, handle).code == ResponseCode.NO_PERMISSION


# -- going on: INV-52, INV-53 ---------------------------------------------------------------


def fill(kit: Kit, count: int = 200) -> None:
    rng = random.Random(5)
    for number in range(count):
        send(kit, number, queue=number % 4, deliver_ms=START_MS + rng.randrange(1, 10_000))
    settle(kit)


def crash(root: Path, clock: FakeClock, after_ms: int, marked: bool) -> None:
    """Fill, deliver for a while, and die in the middle of a second; files as they happen to be."""
    with open_timers(root, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        fill(kit)
        pass_ms(kit, after_ms)
        assert 0 < len(arrived(kit)) < 200
        marks = [r for r in kit.records() if r.topic == names.TIMER_MARKS_TOPIC]
        assert len(marks) >= (2 if marked else 1)


def damage(root: Path, what: str) -> None:
    logs = sorted((root / "timerlog").iterdir())
    if what == "no wheel":
        (root / "timerwheel").unlink(missing_ok=True)
    elif what == "no timer log":
        for path in logs:
            path.unlink()
    elif what == "a unit overwritten":
        data = bytearray(logs[0].read_bytes())
        data[52 * 40 : 52 * 41] = bytes(52)
        logs[0].write_bytes(data)
    elif what == "units of another message":
        data = bytearray(logs[0].read_bytes())
        data[52 * 40 : 52 * 41], data[52 * 41 : 52 * 42] = (
            data[52 * 41 : 52 * 42],
            data[52 * 40 : 52 * 41],
        )
        logs[0].write_bytes(data)
    elif what == "everything":
        for path in (*logs, *root.glob("timerwheel"), *(root / "config").glob("timer*")):
            path.unlink()


@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "no wheel",
        "no timer log",
        "a unit overwritten",
        "units of another message",
        "everything",
    ],
)
@pytest.mark.parametrize("after_ms", [750, 4_350])
def test_after_a_crash_each_comes_once_whatever_is_left_of_the_files(
    tmp_path: Path, what: str, after_ms: int
) -> None:
    clock = FakeClock()
    crash(tmp_path, clock, after_ms, marked=after_ms > 2_000)
    damage(tmp_path, what)
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 11_000)
        assert sorted(arrived(kit)) == list(range(200))


def test_a_copy_that_is_not_in_the_log_is_delivered_again(tmp_path: Path) -> None:
    """A cut takes the copy and the mark behind it together."""
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(10):
            send(kit, number, delay_ms=1_000 + number * 100)
        settle(kit)
        pass_ms(kit, 1_450)
        before = kit.store.end
        kept = len(arrived(kit))
        assert 0 < kept < 10
        pass_ms(kit, 3_000)
        assert len(arrived(kit)) == 10
        kit.timers.end()
        kit.store.truncate(before)
        kit.timers.pending.cut(before)
        kit.timers.begin()
        settle(kit)
        pass_ms(kit, 3_000)
        assert sorted(arrived(kit)) == list(range(10))


def test_messages_that_a_cut_took_are_not_delivered(kit: Kit) -> None:
    send(kit, 1, delay_sec=3)
    settle(kit)
    before = kit.store.end
    for number in range(2, 5):
        send(kit, number, delay_sec=3)
    settle(kit)
    assert kit.timers.pending.count == 4
    kit.timers.end()
    kit.store.truncate(before)
    kit.timers.pending.cut(before)
    assert kit.timers.pending.count == 1
    kit.timers.begin()
    send(kit, 9, delay_sec=3)
    pass_ms(kit, 4_000)
    assert arrived(kit) == [1, 9]


def test_two_sends_of_one_message_are_two_deliveries_after_a_crash_too(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for _ in range(2):
            send(kit, 7, deliver_ms=START_MS + 1_500)
        settle(kit)
        put = kit.store.put

        def once(draft: Draft) -> object:
            placed = put(draft)
            if draft.topic == "T":
                kit.store.put = refuse  # type: ignore[method-assign]
            return placed

        def refuse(draft: Draft) -> object:
            raise StoreNotWritable("dies here")

        kit.store.put = once  # type: ignore[method-assign,assignment]
        for _ in range(40):
            clock.pass_ms(50)
            kit.dispatch()
            kit.timers.step()
        assert arrived(kit) == [7]
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 1_000)
        assert arrived(kit) == [7, 7]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("field", "damage"), [(0, "0000"), (4, "00" * 8), (24, "00bc614e"), (28, "00" * 8)]
)
def test_a_damaged_unit_is_found_at_the_start_and_no_message_is_lost(
    tmp_path: Path, field: int, damage: str, clean: bool
) -> None:
    """Its size, the unit before it, its slot, where its message lies."""
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(60):
            send(kit, number, delay_ms=5_000 + number % 7 * 1_000)
        pass_ms(kit, 1_000)
        kit.timers.pending.flush_now()
        kit.timers.pending.close()
    if not clean:
        (tmp_path / "abort").touch()
    with next((tmp_path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(30 * 52 + field)
        file.write(bytes.fromhex(damage))
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 20_000)
        assert sorted(arrived(kit)) == list(range(60))


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("garbage", [bytes(60), b"\xff" * 60], ids=["zeros", "ones"])
def test_damaged_entries_of_the_timer_queue_lose_nothing(
    kit: Kit, garbage: bytes, first: int
) -> None:
    for number in range(6):
        send(kit, number, deliver_ms=START_MS + 3_000)
    while kit.store.dispatch():
        pass
    view, at, _ = kit.store.queue(names.TIMER_TOPIC, 0).window(first, 1)
    view[at : at + len(garbage)] = garbage
    pass_ms(kit, 5_000, 250)
    assert sorted(arrived(kit)) == list(range(6))


def test_a_slot_whose_chain_is_broken_waits_until_a_start_mends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(3):
            send(kit, number, delay_ms=5_000)
        settle(kit)
        with next((tmp_path / "timerlog").iterdir()).open("r+b") as file:
            file.seek(52)
            file.write(b"\xff")
        for _ in range(200):
            clock.pass_ms(50)
            kit.timers.step()
        assert arrived(kit) == []
        assert "timed messages wait" in caplog.text and "is damaged at 52" in caplog.text
    (tmp_path / "abort").touch()
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 1_000)
        assert sorted(arrived(kit)) == [0, 1, 2]


def test_slots_that_a_power_cut_left_without_their_log_point_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the queue is derived again, nothing says that there were timers. A unit that continued itself was walked
    without end (chaos.whole, seed 349)."""
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(3):
            send(kit, number, delay_ms=5_000)
        settle(kit)
        kit.timers.pending.flush_now()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    (tmp_path / "abort").touch()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        with monkeypatch.context() as patch:  # a replica derives no more than is confirmed
            patch.setattr(type(kit.store), "queue", lambda *_: None)
            kit.timers.pending.load()
        kit.timers.begin()
        settle(kit)
        pass_ms(kit, 6_000)
        assert sorted(arrived(kit)) == [0, 1, 2]


def test_a_unit_that_continues_itself_is_damage(kit: Kit, tmp_path: Path) -> None:
    send(kit, 1, delay_ms=5_000)
    settle(kit)
    with next((tmp_path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(4)
        file.write(bytes(8))
    slot_ms = next(unit.slot_ms for unit in kit.timers.pending.since(0))
    with pytest.raises(CorruptFile):
        list(kit.timers.pending.chain(slot_ms))


def test_a_clean_stop_and_start_goes_on_from_the_files(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        fill(kit)
        pass_ms(kit, 3_000)
        kit.timers.pending.flush_now()
        now = kit.timers.pending.by_hour()
        assert sum(now[START_MS // HOUR_MS * HOUR_MS].values()) == 200 - len(arrived(kit))
        waiting = kit.timers.pending.by_hour(whole_slots=True)
    with open_timers(tmp_path, clock) as kit:
        pending = kit.timers.pending
        pending.load()
        assert pending.by_hour() == waiting
        assert pending.derived
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 11_000)
        assert sorted(arrived(kit)) == list(range(200))


def test_rolled_messages_survive_a_rebuild_with_another_window(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock, timer_roll_window_slots=10) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(6):
            send(kit, number, delay_sec=5 + number * 7)
        pass_ms(kit, 14_000)
    damage(tmp_path, "everything")
    with open_timers(tmp_path, clock, timer_roll_window_slots=4) as kit:
        kit.topic("T", 4)
        kit.dispatch()
        kit.timers.pending.load()
        kit.timers.begin()
        pass_ms(kit, 40_000)
        assert sorted(arrived(kit)) == list(range(6))


def test_two_crashes_in_one_second_deliver_nothing_twice(tmp_path: Path) -> None:
    """The second reign's mark must not hide the copies of the first: INV-53."""
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        second_ms = START_MS // 1000 * 1000 + 2_000
        for number in range(40):
            send(kit, number, deliver_ms=second_ms + 1 + number * 20)
        settle(kit)
        pass_ms(kit, second_ms + 200 - clock.now_ms(), 1)
        assert 5 <= len(arrived(kit)) < 15
    for _ in range(3):
        for kit in reopened(tmp_path, clock):
            before = len(arrived(kit))
            pass_ms(kit, 100, 10)
            assert before < len(arrived(kit)) < 40
            assert kit.records()[-1].topic in ("T", names.TIMER_MARKS_TOPIC)
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 2_000)
        assert sorted(arrived(kit)) == list(range(40))


def test_late_ones_that_could_not_be_delivered_are_after_a_crash(tmp_path: Path) -> None:
    """Linked when their second was over, more than one step delivers: a mark must not pass them. INV-53"""
    clock = FakeClock()
    count = 3 * DELIVERIES_PER_STEP
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        send(kit, 0, delay_ms=700)
        pass_ms(kit, 1_000)
        for number in range(1, count):
            send(kit, number, delay_ms=500)
        for _ in range(60):  # nobody derives queues: they are seen when they are long due
            clock.pass_ms(50)
            kit.timers.step()
        kit.dispatch()
        while kit.timers.link():
            pass
        kit.timers.step()
        assert 1 < len(arrived(kit)) < count
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 1_000)
        assert sorted(arrived(kit)) == list(range(count))


def test_a_crash_in_a_long_reign_loses_nothing_of_the_running_second(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_timers(tmp_path, clock) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        send(kit, 99, delay_sec=1)
        pass_ms(kit, 2 * REPEATS_KNOWN_MS, 1_000)
        second_ms = clock.now_ms() // 1000 * 1000 + 2_000
        for number in range(40):
            send(kit, number, deliver_ms=second_ms + 1 + number * 20)
        settle(kit)
        pass_ms(kit, second_ms + 300 - clock.now_ms(), 10)
        assert 10 <= len(arrived(kit)) < 20
        assert kit.records()[-1].topic in ("T", names.TIMER_MARKS_TOPIC)
    for kit in reopened(tmp_path, clock):
        pass_ms(kit, 2_000)
        assert sorted(arrived(kit)) == [*range(40), 99]


def test_entries_that_a_queue_gets_again_are_not_linked_again(kit: Kit) -> None:
    """A replica that comes back takes back what is not confirmed, and derives it again when it is."""
    for number in range(5):
        send(kit, number, delay_sec=1)
    settle(kit)
    second = [r for r in kit.records() if r.topic == names.TIMER_TOPIC][1]
    kit.timers.end()
    kit.store.hide_unconfirmed(second.physical_offset)
    assert kit.store.max_offset(names.TIMER_TOPIC, 0) == 1
    kit.timers.pending.cut(kit.store.end)
    kit.timers.pending.enqueued = 0  # whatever else is forgotten
    kit.timers.begin()
    pass_ms(kit, 2_500)
    assert arrived(kit) == list(range(5))
    assert kit.timers.pending.count == 0


# -- what waits, as it is told -----------------------------------------------------------------


def test_what_waits_is_told_right_through_delivery_recall_restart_and_rolls(tmp_path: Path) -> None:
    clock = FakeClock()
    draw = random.Random(5)
    settings = {"timer_roll_window_slots": 40}
    due: dict[int, int] = {}
    recalled = set()
    with open_timers(tmp_path, clock, **settings) as kit:
        kit.topic("T", 4)
        kit.timers.begin()
        settle(kit)
        for number in range(120):
            delay_ms = draw.randrange(1_000, 90_000)
            due[number] = START_MS + delay_ms
            sent = send(kit, number, delay_ms=delay_ms)
            if delay_ms > 30_000 and number % 3 == 0:
                recalled.add(number)
                assert recall(kit, (sent.ext or {})["recallHandle"]).code == 0
        settle(kit)
        for _ in range(8):
            pass_ms(kit, 3_700)
            assert kit.timers.pending.count == 120 - len(arrived(kit))
        kit.timers.pending.flush_now()
    for kit in reopened(tmp_path, clock, **settings):
        for _ in range(20):
            pass_ms(kit, 3_700)
            count, now_ms = kit.timers.pending.count + len(arrived(kit)), kit.clock.now_ms()
            # one that is recalled counts until it is due, or the end of that second
            assert count <= 120 - len([n for n in recalled if due[n] + 1_050 < now_ms])
            assert count >= 120 - len([n for n in recalled if due[n] <= now_ms])
        assert set(arrived(kit)) == due.keys() - recalled
        assert kit.timers.pending.by_hour() == {}


def test_a_replica_tells_what_waits_by_the_marks_of_its_master(kit: Kit) -> None:
    for number in range(20):
        send(kit, number, delay_ms=2_000 + number * 100)
    for number in range(20, 30):
        send(kit, number, delay_ms=60_000)
    settle(kit)
    kit.timers.end()
    pending = kit.timers.pending
    assert pending.count == 30
    upto_ms = pending.window.floor(START_MS + 10_000)
    progress = marks.Progress(upto_ms, pending.enqueued, kit.store.end)
    marks.put(kit.store.put, progress, kit.clock.now_ms(), bytes(8))
    kit.dispatch()
    kit.timers.link()
    assert pending.count == 10
    kit.clock.pass_ms(10_500)
    kit.timers.begin()  # it is the master now
    settle(kit)
    send(kit, 30, delay_ms=60_000)
    settle(kit)
    assert pending.count == 11
    pass_ms(kit, 61_000)
    assert pending.by_hour() == {}
