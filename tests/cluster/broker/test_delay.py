"""Delay levels: parking, waiting, delivering, and remembering how far it got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from messagekit import UNIQUE, FakeClock, Kit, open_kit

from tandemmq.cluster.broker.sending.delay import DELIVERIES_PER_STEP, DelayLevels
from tandemmq.cluster.broker.sending.steadytime import BELIEVED_MS, Arrivals
from tandemmq.cluster.broker.tables import names
from tandemmq.storage import Draft, StoreNotWritable

BODY_AT = 88  # in a record with IPv4 hosts


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        yield kit


def send_delayed(kit: Kit, level: int, body: bytes = b"later", queue: int = 2) -> None:
    text = f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01TagA\x02DELAY\x01{level}\x02"
    answer = kit.send(body, e=str(queue), i=text)
    assert answer is not None and answer.code == 0


def step(kit: Kit) -> bool:
    kit.dispatch()
    return kit.schedule.step()


def bodies(kit: Kit, topic: str = "T") -> list[bytes]:
    return [record.body for record in kit.records() if record.topic == topic]


def test_levels_are_read_with_all_their_units() -> None:
    levels = DelayLevels("1s 5m 2h 1d")
    assert levels.delays_ms == (1_000, 300_000, 7_200_000, 86_400_000)
    with pytest.raises(ValueError, match="messageDelayLevel"):
        DelayLevels("1s 5x")


def test_a_message_is_delivered_when_it_is_due_and_not_before(kit: Kit) -> None:
    send_delayed(kit, 2)  # 5 s
    kit.clock.pass_ms(4_999)
    assert not step(kit)
    assert bodies(kit) == []
    kit.clock.pass_ms(1)
    step(kit)
    assert bodies(kit) == [b"later"]
    step(kit)
    assert bodies(kit) == [b"later"]


def test_a_delivered_record_keeps_its_properties_and_is_not_delayed_again(kit: Kit) -> None:
    send_delayed(kit, 1, queue=3)
    kit.clock.pass_ms(1_000)
    step(kit)
    parked, delivered = kit.records()
    assert delivered.properties == parked.properties
    assert delivered.property_map["DELAY"] == "1"
    assert (delivered.topic, delivered.queue_id, delivered.queue_offset) == ("T", 3, 0)
    assert (delivered.born_ms, delivered.born_host) == (parked.born_ms, parked.born_host)
    kit.dispatch()
    entry = kit.store.queues.get("T", 3).entry(0)
    assert entry is not None and entry[2] == 2598919  # TagA again, not a delivery time


def test_messages_of_one_level_are_delivered_in_order_and_in_bounded_steps(kit: Kit) -> None:
    count = DELIVERIES_PER_STEP + 5
    for number in range(count):
        send_delayed(kit, 1, b"%d" % number)
    kit.clock.pass_ms(1_000)
    assert step(kit)
    assert len(bodies(kit)) == DELIVERIES_PER_STEP
    assert not step(kit)
    assert bodies(kit) == [b"%d" % number for number in range(count)]


def test_a_damaged_message_does_not_hold_its_level(
    kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"damaged", b"sound"):
        send_delayed(kit, 1, body)
    with next((tmp_path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(kit.records()[0].physical_offset + BODY_AT)
        file.write(b"DAMAGED")
    kit.clock.pass_ms(1_000)
    step(kit)
    assert "scheduled message is damaged, dropped offset=0" in caplog.text
    assert kit.schedule.offsets == {1: 2}
    kit.dispatch()
    assert kit.store.max_offset("T", 2) == 1


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("garbage", [bytes(60), b"\xff" * 60], ids=["zeros", "ones"])
def test_damaged_entries_deliver_nothing_twice_and_lose_nothing(
    kit: Kit, garbage: bytes, first: int
) -> None:
    """Where zeros point to there is a message too: the first of the log, which is another's."""
    for number in range(6):
        send_delayed(kit, 1, b"%d" % number)
    kit.dispatch()
    view, at, _ = kit.store.queue(names.SCHEDULE_TOPIC, 0).window(first, 1)
    view[at : at + len(garbage)] = garbage
    for _ in range(10):
        kit.clock.pass_ms(1_000)
        step(kit)
    assert not step(kit)
    assert bodies(kit) == [b"%d" % number for number in range(6)]


def delay_of(kit: Kit, body: bytes) -> int:
    """Steps on until a message is delivered; how long that took by the monotonic clock."""
    began_ms = kit.clock.monotonic_ms()
    while body not in bodies(kit):
        kit.clock.pass_ms(100)
        step(kit)
        assert kit.clock.monotonic_ms() - began_ms < 3_700_000, "it is held for ever"
    return kit.clock.monotonic_ms() - began_ms


HOUR_MS = 3_600_000


def test_a_clock_that_went_back_neither_holds_messages_nor_makes_them_immediate(kit: Kit) -> None:
    step(kit)
    send_delayed(kit, 3)
    step(kit)
    kit.clock.wall_ms -= HOUR_MS
    assert delay_of(kit, b"later") == 10_000


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_a_forward_step_that_is_taken_back_corrupts_no_delay(kit: Kit, levels: int) -> None:
    """Store times never go back: for an hour they are ahead of what the clock says."""
    delay_ms = kit.levels.delays_ms[levels - 1]
    step(kit)
    kit.clock.wall_ms += HOUR_MS
    kit.store.put(Draft("T", 0, b"an hour ahead"))
    step(kit)
    kit.clock.pass_ms(2_000)
    send_delayed(kit, levels, b"during")
    step(kit)
    kit.clock.wall_ms -= HOUR_MS
    send_delayed(kit, levels, b"after")
    step(kit)
    assert delay_ms <= delay_of(kit, b"after") <= delay_ms + 100
    assert b"during" in bodies(kit)
    kit.clock.pass_ms(120_000)
    step(kit)
    send_delayed(kit, levels, b"later")
    step(kit)
    assert delay_ms <= delay_of(kit, b"later") <= delay_ms + 100


def test_a_forward_step_makes_nothing_immediate_also_when_it_stays(kit: Kit) -> None:
    """The clock was behind, and is right from now on."""
    step(kit)
    send_delayed(kit, 9, b"five minutes")
    step(kit)
    kit.clock.pass_ms(10_000)
    kit.clock.wall_ms += HOUR_MS
    assert delay_of(kit, b"five minutes") == 290_000
    send_delayed(kit, 2, b"five seconds")
    step(kit)
    assert delay_of(kit, b"five seconds") == 5_000


@pytest.mark.parametrize("back_ms", [5_000, 30_000, HOUR_MS])
@pytest.mark.parametrize("after_ms", [3_000, 50_000, 70_000])
def test_what_comes_while_a_clock_that_went_back_stands_still_is_not_immediate(
    kit: Kit, back_ms: int, after_ms: int
) -> None:
    """Store times stand still then, so by them it came long ago."""
    step(kit)
    send_delayed(kit, 1)
    kit.clock.wall_ms -= back_ms
    for _ in range(after_ms // 100):
        kit.clock.pass_ms(100)
        step(kit)
    send_delayed(kit, 3, b"after")  # the first of its level, too
    assert 10_000 <= delay_of(kit, b"after") <= 10_200


def test_a_step_back_that_is_taken_back_shortens_no_delay(kit: Kit) -> None:
    step(kit)
    send_delayed(kit, 1)
    kit.clock.wall_ms -= 30_000
    for _ in range(200):
        kit.clock.pass_ms(100)
        step(kit)
    send_delayed(kit, 5, b"a minute")
    step(kit)
    kit.clock.wall_ms += 30_000
    assert 60_000 <= delay_of(kit, b"a minute") <= 60_200


def test_after_a_switchover_with_store_times_ahead_nothing_is_immediate(tmp_path: Path) -> None:
    """What came before our reign waits for its delay at most, what comes in it for exactly that."""
    clock = FakeClock()
    with open_kit(tmp_path, clock) as kit:
        kit.topic("T", 4)
        clock.wall_ms += HOUR_MS
        kit.store.put(Draft("T", 0, b"an hour ahead"))
        clock.wall_ms -= HOUR_MS
        send_delayed(kit, 3, b"before")
        clock.pass_ms(3_000)
    with open_kit(tmp_path, clock) as kit:
        kit.schedule.load()
        step(kit)
        send_delayed(kit, 3, b"in our reign")
        step(kit)
        assert delay_of(kit, b"before") == 10_000
        assert delay_of(kit, b"in our reign") <= 200


def test_a_step_is_logged_with_what_follows(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    steady = kit.schedule.time
    steady.look()
    kit.clock.wall_ms += HOUR_MS
    kit.store.put(Draft("T", 0, b"an hour ahead"))
    for _ in range(3):
        steady.look()
    kit.clock.wall_ms -= HOUR_MS
    steady.look()
    kit.clock.pass_ms(BELIEVED_MS)
    kit.clock.wall_ms += 999
    steady.look()
    assert [record.getMessage() for record in caplog.records if "clock" in record.getMessage()] == [
        f"the clock stepped by {HOUR_MS} ms, delays are counted without that store_times_stand_still_ms=0",
        f"the clock is right again store_times_stand_still_ms={HOUR_MS}",
    ]
    assert steady.steps == 1


def test_a_change_of_levels_is_not_waited_out(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_kit(tmp_path, clock) as kit:
        kit.topic("T", 4)
        send_delayed(kit, 18)
        kit.dispatch()
    with open_kit(tmp_path, clock, storage={"delay_levels": "1s " * 17 + "7s"}) as kit:
        kit.schedule.load()
        step(kit)
        assert delay_of(kit, b"later") == 7_000


def test_a_refusing_store_is_tried_again_with_the_same_message(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delayed(kit, 1, b"one")
    send_delayed(kit, 1, b"two")
    kit.clock.pass_ms(1_000)
    put, refused = kit.store.put, []

    def refuse_two(draft: Draft) -> object:
        if draft.body == b"two" and not refused:
            refused.append(draft)
            raise StoreNotWritable("full")
        return put(draft)

    monkeypatch.setattr(kit.store, "put", refuse_two)
    assert not step(kit)
    assert bodies(kit) == [b"one"]
    step(kit)
    assert bodies(kit) == [b"one", b"two"]


def test_a_half_message_and_one_without_a_place_are_passed_over(kit: Kit) -> None:
    for text in (
        b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"DELAY\x011\x02",
    ):
        kit.store.put(Draft("SCHEDULE_TOPIC_XXXX", 0, b"x", text))
    send_delayed(kit, 1, b"good")
    kit.clock.pass_ms(1_000)
    step(kit)
    assert bodies(kit) == [b"good"]
    assert kit.schedule.offsets[1] == 3


def test_progress_survives_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_kit(tmp_path, clock) as kit:
        kit.topic("T", 4)
        send_delayed(kit, 1, b"first")
        send_delayed(kit, 18, b"tomorrow")
        clock.pass_ms(1_000)
        step(kit)
        kit.schedule.file.save()
        found = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
        assert found["offsetTable"] == {"1": 1, "18": 0}
    with open_kit(tmp_path, clock) as kit:
        kit.schedule.load()
        assert kit.schedule.progress() == {1: (1, 1), 18: (0, 1)}
        step(kit)
        assert bodies(kit) == [b"first"]


def test_an_offset_that_the_queue_does_not_have_is_corrected_on_load(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_kit(tmp_path, clock) as kit:
        kit.topic("T", 4)
        send_delayed(kit, 1)
        kit.dispatch()
        (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:99,3:7}}')
        kit.schedule.load()
        assert kit.schedule.offsets == {1: 1, 3: 0}


async def test_the_loop_delivers_when_it_is_time_and_leaves_saving_to_those_who_save(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delayed(kit, 2, b"later")
    delivered_at: list[int] = []
    start = kit.clock.monotonic_ms()

    async def moved_on(seconds: float) -> None:
        kit.clock.pass_ms(max(1, round(seconds * 1000)))
        kit.dispatch()
        if bodies(kit) and not delivered_at:
            delivered_at.append(kit.clock.monotonic_ms() - start)
        if kit.clock.monotonic_ms() - start > 25_000:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", moved_on)
    with pytest.raises(asyncio.CancelledError):
        await kit.schedule.run()
    assert 5_000 <= delivered_at[0] <= 5_200
    assert kit.schedule.file.unsaved
    kit.schedule.file.save()
    saved = json.loads(kit.schedule.file.path.read_text())
    assert saved["offsetTable"]["2"] == 1


def test_what_came_around_a_step_of_the_clock_is_late_by_a_look_and_never_early() -> None:
    """When it came is known as far as somebody looked; its store time says more only where that can be compared."""
    arrivals = Arrivals(delay_ms=1_000, end=0, now_ms=0)
    arrivals.look(0, 100)
    arrivals.look(1, 200)  # it came at 190
    assert arrivals.due_ms(0, stored_due_ms=1_190, moved_ms=-1) == 1_190
    assert arrivals.due_ms(0, stored_due_ms=1_190, moved_ms=90) == 1_190, "it came behind the step"
    for stored_due_ms in (-3_598_810, 3_601_190):
        assert arrivals.due_ms(0, stored_due_ms, moved_ms=5_000) == 1_200
