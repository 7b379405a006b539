"""Delay levels: parking, waiting, delivering, and remembering how far it got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from messagekit import UNIQUE, FakeClock, Kit, open_kit

from cluster.broker.delay import DELIVERIES_PER_STEP, DelayLevels
from storage import Draft, StoreNotWritable


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
    return kit.schedule.step(kit.clock.now_ms())


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


def test_a_clock_that_went_back_does_not_hold_messages_for_ever(kit: Kit) -> None:
    send_delayed(kit, 3)
    kit.dispatch()
    kit.clock.wall_ms -= 3_600_000
    kit.schedule.step(kit.clock.now_ms())
    assert bodies(kit) == [b"later"]


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


async def test_the_loop_delivers_and_saves_its_progress(
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
    saved = json.loads(kit.schedule.file.path.read_text())
    assert saved["offsetTable"]["2"] == 1
