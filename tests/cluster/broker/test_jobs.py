"""cluster/broker/jobs.py: what a broker does beside answering."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker, TwoClocks

from tandemmq.cluster.broker.jobs import (
    DISPATCH_RECORDS_MAX,
    Dispatch,
    NextSegment,
    QueueFlush,
    Retention,
    StatsSampling,
    TableSaving,
)
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.process import running
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Draft, FlushFailed, Owner, StoreIsFull, encode_properties, pack_host

HOST = pack_host("127.0.0.1", 10911)


def put(asker: Asker, topic: str = "T") -> int:
    """Append without dispatching."""
    draft = Draft(
        topic=topic,
        queue_id=0,
        body=b"x",
        properties=encode_properties({}),
        born_host=HOST,
        store_host=HOST,
    )
    return asker.broker.release.put(draft).end


@asynccontextmanager
async def job(run: Callable[[], Any]) -> AsyncIterator[None]:
    """Run one job for the body, which may take 5 s at most."""
    async with asyncio.timeout(5), running(job=run):
        yield


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the caller's timeout ends the wait."""
    while not condition():  # noqa: ASYNC110 - the store has no events; every turn is one of the loop's
        await asyncio.sleep(0)


async def test_append_becomes_visible_without_anybody_asking(asker: Asker) -> None:
    async with job(asker.broker.dispatch.run):
        await asyncio.sleep(0)
        put(asker)
        await until(lambda: asker.broker.store.max_offset("T", 0) == 1)


async def test_what_was_there_before_the_start_is_dispatched_too(asker: Asker) -> None:
    put(asker)
    async with job(asker.broker.dispatch.run):
        await until(lambda: asker.broker.store.max_offset("T", 0) == 1)


async def test_backlog_leaves_turns_to_others(asker: Asker) -> None:
    for _ in range(DISPATCH_RECORDS_MAX * 2 + 10):
        put(asker)
    store = asker.broker.store
    seen = []
    async with job(asker.broker.dispatch.run):
        while store.dispatch_backlog_bytes:
            await asyncio.sleep(0)
            seen.append(store.max_offset("T", 0))
    assert {DISPATCH_RECORDS_MAX, DISPATCH_RECORDS_MAX * 2} <= set(seen)


async def test_failed_dispatch_ends_its_job(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(records_max: int) -> int:
        raise AssertionError("a queue went backwards")

    monkeypatch.setattr(asker.broker.store, "dispatch", fail)
    with pytest.raises(AssertionError, match="went backwards"):
        async with job(Dispatch(asker.broker.store).run):
            await asyncio.Event().wait()


async def test_sync_flush_releases_answers_once_the_disk_has_them(make_broker: MakeBroker) -> None:
    asker = make_broker(flushDiskType="SYNC_FLUSH", flushIntervalCommitLog="60000")
    broker, connection = asker.broker, FakeConnection()
    async with job(broker.log_flush.run):
        for _ in range(3):
            end = put(asker)
            broker.acks.hold(end, connection, b"answer")  # type: ignore[arg-type]
            assert broker.store.flushed < end
            await until(lambda: not broker.acks.waiting)
            assert broker.store.flushed >= end
    assert connection.written == [b"answer"] * 3


async def test_sync_flush_shows_messages_only_once_they_are_safe(make_broker: MakeBroker) -> None:
    asker = make_broker(flushDiskType="SYNC_FLUSH", flushIntervalCommitLog="60000")
    broker = asker.broker
    async with job(broker.dispatch.run):
        await asyncio.sleep(0)
        put(asker)
        await asyncio.sleep(0)
        assert broker.store.max_offset("T", 0) == 0
        await broker.log_flush.settle()
        await until(lambda: broker.store.max_offset("T", 0) == 1)


async def test_oneway_sends_are_flushed_though_nobody_waits(make_broker: MakeBroker) -> None:
    asker = make_broker(flushDiskType="SYNC_FLUSH", flushIntervalCommitLog="1")
    end = put(asker)
    async with job(asker.broker.log_flush.run):
        await until(lambda: asker.broker.store.flushed >= end)


async def test_async_flush_comes_by_time_for_the_last_byte_too(make_broker: MakeBroker) -> None:
    """What the last moment of ASYNC_FLUSH is: one message lies in memory no longer than many do."""
    asker = make_broker(flushIntervalCommitLog="1")
    end = put(asker)
    async with job(asker.broker.log_flush.run):
        await until(lambda: asker.broker.store.flushed >= end)


async def test_few_pages_wait_for_the_thorough_flush_where_the_file_says_so(
    make_broker: MakeBroker, clock: TwoClocks
) -> None:
    asker = make_broker(flushIntervalCommitLog="1", flushCommitLogLeastPages="4")
    end = put(asker)
    flushes: list[int] = []
    store = asker.broker.store
    original = store.flush_log

    def flush(pages_min: int = 0) -> int:
        flushes.append(pages_min)
        return original(pages_min)

    store.flush_log = flush  # type: ignore[method-assign]
    async with job(asker.broker.log_flush.run):
        await until(lambda: len(flushes) > 2)
        assert set(flushes) == {4}
        assert store.flushed < end
        clock.advance(10_000)
        await until(lambda: store.flushed >= end)


async def test_failed_flush_ends_the_job_with_its_reason(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pages_min: int = 0) -> int:
        raise FlushFailed("fdatasync: Input/output error")

    monkeypatch.setattr(asker.broker.store, "flush_log", fail)
    with pytest.raises(FlushFailed):
        async with job(asker.broker.log_flush.settle):
            await asyncio.Event().wait()


async def test_queues_and_checkpoint_reach_the_disk(make_broker: MakeBroker) -> None:
    asker = make_broker(flushIntervalConsumeQueue="1", flushConsumeQueueThoroughInterval="1")
    asker.put("T")
    asker.broker.store.flush_log(0)
    checkpoint = Path(asker.broker.config.storage.root) / "checkpoint"
    asked_on: set[int] = set()

    def confirmed() -> int:
        asked_on.add(threading.get_ident())
        return asker.broker.store.end

    asker.broker.store.belong_to(Owner(confirmed=confirmed))
    async with job(QueueFlush(asker.broker.store, asker.clock).run):
        asker.clock.advance(10)
        await until(lambda: checkpoint.exists() and any(checkpoint.read_bytes()))
    assert asked_on == {threading.get_ident()}, "what replication confirms is the loop's to say"


async def test_next_segment_is_made_before_it_is_needed(asker: Asker) -> None:
    store = asker.broker.store
    while not store.log.next_segment_needed():
        put(asker)
    async with job(NextSegment(store).run):
        await until(lambda: not store.log.next_segment_needed())


async def test_no_space_for_the_next_segment_is_said_once_and_tried_once_a_second(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = asker.broker.store
    while not store.log.next_segment_needed():
        put(asker)
    tries: list[float] = []

    def full() -> None:
        tries.append(time.monotonic())
        raise StoreIsFull("no space for the next file")

    monkeypatch.setattr(store.log, "make_next_segment", full)
    async with job(NextSegment(store).run):
        await until(lambda: len(tries) == 3)
    assert tries[2] - tries[0] > 1.5
    assert caplog.text.count("next segment not made yet") == 1


async def test_a_full_disk_is_cleaned_at_once_also_right_after_the_start(asker: Asker) -> None:
    """What recovery found is not known to be on the disk yet; a file may not go before it is."""
    store = asker.broker.store
    while len(store.log.run.segments) < 3:
        put(asker)
    while store.dispatch():
        pass
    percent = [95, 95]
    store.retention.usage = lambda path: (100, percent[0], 100 - percent[0])
    assert store.durability.derived < store.log.run.segments[0].end
    async with job(Retention(store).run):
        await until(lambda: len(store.log.run.segments) == 1)
        percent[0] = 50
        await until(lambda: store.flags.writable)


async def test_administrator_wakes_the_retention(asker: Asker) -> None:
    retention = Retention(asker.broker.store)
    passes: list[int] = []
    original = asker.broker.store.clean

    def clean() -> list[Path]:
        passes.append(1)
        return original()

    asker.broker.store.clean = clean  # type: ignore[method-assign]
    async with job(retention.run):
        await until(lambda: len(passes) == 1)
        retention.clean_now()
        await until(lambda: len(passes) == 2)


async def test_progress_is_saved_by_time_and_an_error_is_not_the_end(
    tmp_path: Path, clock: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    bad = OffsetTable(blocked / "consumerOffset.json", clock)
    good = OffsetTable(tmp_path / "consumerOffset.json", clock)
    for table in (bad, good):
        table.commit("G", "T", 0, 1)
    async with job(TableSaving([bad.file, good.file], interval_ms=1).run):
        await until(lambda: not good.file.unsaved)
    assert bad.file.unsaved
    assert "table not saved" in caplog.text


async def test_rates_are_sampled_from_the_first_moment(asker: Asker) -> None:
    stats = asker.broker.stats
    async with job(StatsSampling(stats, asker.broker.put_sizes, asker.clock).run):
        await asyncio.sleep(0)
        put(asker)
        asker.clock.advance(1_000)
        stats.sample_rates(asker.clock.now_ms())
        assert stats.rates()["putTps"].startswith("1.0 ")


async def test_answers_that_wait_too_long_leave_as_timed_out(make_broker: MakeBroker) -> None:
    asker = make_broker(flushDiskType="SYNC_FLUSH")
    connection = FakeConnection()
    answer = Command(0, {"msgId": "x"}, opaque=9, flag=1)
    asker.broker.acks.hold(1, connection, answer)  # type: ignore[arg-type]
    asker.clock.advance(5_000)
    asker.broker.acks.expire(asker.clock.monotonic_ms(), asker.broker.standing.overdue)
    (written,) = connection.written
    assert Command.decode(memoryview(written)).code == 10
