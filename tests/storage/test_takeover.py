"""What a change of role asks of a store: queue offsets go on behind all that the log has, dispatched or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.storage import Draft, MessageStore, Owner, StorageConfig, SysFlag, encode, open_store

SEGMENT_BYTES = 4096


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StorageConfig(
        root=str(tmp_path / "store"), segment_bytes=SEGMENT_BYTES, index_slots=50, index_entries=40
    )
    with open_store(config) as opened:
        yield opened


def received(store: MessageStore, queue_offset: int, sys_flag: int = 0, topic: str = "T") -> None:
    """A master's record, whole."""
    draft = Draft(topic, 0, b"x" * 100, sys_flag=sys_flag)
    store.append_raw(encode(draft, queue_offset, store.end, 1_700_000_000_000), store.end)


def taken_over(store: MessageStore, records_max: int = 1) -> int:
    takeover = store.takeover()
    while takeover.walk(records_max):
        pass
    if takeover.end < store.end:
        store.truncate(takeover.end)
    takeover.finish()
    return takeover.end


@pytest.mark.parametrize("records_max", [1, 2, 3, 100])
def test_offsets_go_on_behind_what_is_not_dispatched_over_several_files(
    store: MessageStore, records_max: int
) -> None:
    while len(store.log.run.segments) < 3:
        store.put(Draft("T", 0, b"x" * 100))
    count, end = store.next_offset("T", 0), store.end
    store.log.queue_tails[b"T"][0].next_offset = 0  # as a slave's, which puts nothing
    store.belong_to(Owner(confirmed=lambda: end // 2))
    store.dispatch()
    assert 0 < store.max_offset("T", 0) < count
    assert taken_over(store, records_max) == end
    assert store.put(Draft("T", 0, b"y")).queue_offset == count


@pytest.mark.parametrize("flag", [SysFlag.PREPARED, SysFlag.ROLLBACK])
def test_half_messages_and_rolled_back_ones_take_no_queue_offset(
    store: MessageStore, flag: int
) -> None:
    received(store, 0)
    received(store, 1, SysFlag.COMMIT)
    received(store, 7, flag)  # whatever it says
    store.belong_to(Owner(confirmed=lambda: 0))
    assert taken_over(store) == store.end
    assert store.next_offset("T", 0) == 2


def test_an_offset_that_the_log_gave_away_is_not_given_again_after_a_deletion_unheard_of(
    store: MessageStore,
) -> None:
    """The topic's second life waits for its queue behind the first: its offsets are lower, and taken already."""
    for queue_offset in (40, 41, 0):
        received(store, queue_offset)
    store.belong_to(Owner(confirmed=lambda: 0))
    taken_over(store)
    assert store.next_offset("T", 0) == 42


def test_messages_of_a_deleted_topic_hold_no_offset(store: MessageStore) -> None:
    received(store, 0)
    received(store, 1)
    store.tombstones.put("T", store.end)
    received(store, 0)
    store.belong_to(Owner(confirmed=lambda: 0))
    taken_over(store)
    assert store.next_offset("T", 0) == 1


@pytest.mark.parametrize("records_max", [1, 100])
def test_half_a_record_is_found_and_the_tail_stays_open_until_it_is_cut(
    store: MessageStore, records_max: int
) -> None:
    received(store, 0)
    end = store.end
    record = encode(Draft("T", 0, b"x" * 100), 1, end, 1_700_000_000_000)
    store.append_raw(record[:90], end)
    takeover = store.takeover()
    while takeover.walk(records_max):
        pass
    assert takeover.end == end
    with pytest.raises(AssertionError, match="whole records"):
        takeover.finish()
    store.truncate(end)
    takeover.finish()
    assert store.put(Draft("T", 0, b"y")).queue_offset == 1


def test_store_times_do_not_go_back_behind_a_masters(store: MessageStore) -> None:
    ahead_ms = store.clock.now_ms() + 60_000
    store.append_raw(encode(Draft("T", 0, b"x"), 0, 0, ahead_ms), 0)
    taken_over(store)
    placed = store.put(Draft("T", 0, b"y"))
    assert store.log.store_ms_at(placed.offset) == ahead_ms


def test_what_is_not_confirmed_is_hidden_until_it_is(store: MessageStore) -> None:
    ends = [store.put(Draft("T", 0, b"x", b"KEYS\x01k\x02")).end for _ in range(5)]
    store.dispatch()
    store.hide_unconfirmed(ends[2])
    assert (store.max_offset("T", 0), store.dispatched) == (3, ends[2])
    store.dispatch()
    assert (store.max_offset("T", 0), store.dispatched) == (5, ends[4])
    assert len(store.query("T", "k", 32, 0, 1 << 60).records) == 5
