"""cluster/broker/tables/resting.py: progress is neither kept nor told beyond the log that it rests on."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker, TwoClocks

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.tables.metasync import Tables, TableSync
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.queuestarts import QueueStarts
from tandemmq.cluster.broker.tables.resting import KEPT_MAX, Recent
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Draft, Owner, encode_properties, pack_host

HOST = pack_host("127.0.0.1", 10911)
OFFSETS, DELAYS = 43, 45


def park(asker: Asker, level: int = 1) -> None:
    """A message of two hours ago, on the disk and in its queue."""
    properties = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}
    asker.broker.store.put(
        Draft("SCHEDULE_TOPIC_XXXX", level - 1, b"x", encode_properties(properties),
              born_host=HOST, store_host=HOST)
    )  # fmt: skip
    asker.broker.store.flush_log()
    settle(asker)


def settle(asker: Asker) -> None:
    while asker.broker.store.dispatch(10_000):
        pass


def deliver(asker: Asker) -> None:
    asker.clock.advance(2_000)
    asker.broker.schedule.step()


def saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
    return found


async def test_delay_progress_is_not_on_the_disk_before_the_delivered_copy(asker: Asker) -> None:
    """INV-41. A message that lay on the disk for two hours must not be lost with the page cache."""
    store, schedule = asker.broker.store, asker.broker.schedule
    park(asker)
    deliver(asker)
    copied = store.end
    assert store.flushed < copied
    await schedule.file.saved()
    assert saved(schedule.file.path) == {"1": 1}
    assert store.flushed >= copied


async def test_delay_progress_is_not_on_the_disk_before_the_copy_is_confirmed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-41. Whoever is elected may not have the copy."""
    monkeypatch.setattr("tandemmq.cluster.broker.tables.resting.SETTLE_MS", 20)
    store, schedule = asker.broker.store, asker.broker.schedule
    park(asker)
    confirmed = store.end
    store.belong_to(Owner(confirmed=lambda: confirmed))
    deliver(asker)
    await schedule.file.saved()
    schedule.file.save()
    assert saved(schedule.file.path) == {}
    assert schedule.file.unsaved
    confirmed = store.end
    await schedule.file.saved()
    assert saved(schedule.file.path) == {"1": 1}


async def test_consumer_progress_is_not_on_the_disk_before_what_was_sent_back(asker: Asker) -> None:
    """A consumer that failed sends the message back and commits: the copy is all that is left of it."""
    store, offsets = asker.broker.store, asker.broker.offsets
    park(asker)
    offsets.commit("G", "T", 0, 1)
    store.put(Draft("%RETRY%G", 0, b"again", born_host=HOST, store_host=HOST))
    copied = store.end
    await offsets.file.saved()
    assert saved(offsets.file.path) == {"T@G": {"0": 1}}
    assert store.flushed >= copied


async def test_a_table_of_progress_says_what_it_rests_on(asker: Asker) -> None:
    park(asker)
    deliver(asker)
    for code in (OFFSETS, DELAYS):
        answer = await asker.ask(code, tableStamp="")
        assert (answer.ext or {})["restsOn"] == str(asker.broker.store.end)


async def test_who_does_not_look_is_told_no_progress_that_is_not_confirmed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-41, towards stock slaves."""
    monkeypatch.setattr("tandemmq.cluster.broker.tables.resting.SETTLE_MS", 20)
    store = asker.broker.store
    park(asker)
    confirmed = store.end
    store.belong_to(Owner(confirmed=lambda: confirmed))
    deliver(asker)
    answer = await asker.ask(DELAYS)
    assert answer.code != 0 and not answer.body
    confirmed = store.end
    answer = await asker.ask(DELAYS)
    assert json.loads(bytes(answer.body or b""))["offsetTable"]["1"] == 1


async def test_a_cut_takes_back_the_progress_that_rested_on_it(asker: Asker) -> None:
    """INV-41. Demoted with a copy that nobody else has, and elected again: the message is delivered again."""
    store, schedule = asker.broker.store, asker.broker.schedule
    park(asker)
    kept = store.end
    deliver(asker)
    assert schedule.offsets[1] == 1
    store.truncate(kept)
    assert schedule.offsets.get(1, 0) == 0
    deliver(asker)
    assert store.end > kept


async def test_a_cut_after_a_restart_takes_back_no_more_than_rested_on_it(asker: Asker) -> None:
    """A former master comes back and is cut: not every delayed message it still has is due anew."""
    store, schedule = asker.broker.store, asker.broker.schedule
    park(asker)
    deliver(asker)
    await schedule.file.saved()
    copied = store.end
    park(asker, level=2)
    schedule.load()
    store.truncate(copied)
    assert schedule.offsets[1] == 1
    store.truncate(copied - 1)
    assert schedule.offsets.get(1, 0) == 0


def test_recent_progress_goes_back_to_what_rests_on_less() -> None:
    recent = Recent()
    for end in range(0, 100_000, 100):
        recent.note(end, {1: end // 100})
    assert len(recent._kept) == KEPT_MAX
    assert recent.rests_on == 99_900
    found = recent.at(99_850)
    assert found is not None and 900 < found[1] <= 998
    found = recent.at(50_000)
    assert found is not None and found[1] <= 500
    assert recent.at(-1) is None


async def test_a_table_without_a_log_is_saved_as_ever(tmp_path: Path, clock: TwoClocks) -> None:
    table = OffsetTable(tmp_path / "consumerOffset.json", clock)
    table.commit("G", "T", 0, 1)
    await asyncio.wait_for(table.file.saved(), 5)
    assert not table.file.unsaved


class Lagging:
    """A master whose slave has its log up to where it says."""

    def __init__(self, master: Asker, ours: bool) -> None:
        self.master = master
        self.ours = ours

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        ext = dict(command.ext or {})
        if not self.ours:
            ext.pop("tableStamp", None)
        answer: Any = self.master.broker.table[command.code](
            Command(command.code, ext, command.body), FakeConnection()
        )
        if inspect.isawaitable(answer):
            answer = await answer
        assert isinstance(answer, Command)
        return answer

    def drop(self, address: str, why: str) -> None: ...

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "stock"])
async def test_a_slave_takes_over_progress_once_its_log_has_what_it_rests_on(
    make_broker: MakeBroker, tmp_path: Path, clock: TwoClocks, ours: bool
) -> None:
    """INV-41. A slave that has the table but not the delivered copy would never deliver the message."""
    master = make_broker()
    slave = make_broker(storePathRootDir=str(tmp_path / "slave"), listenPort="10921")
    held = 0
    broker = slave.broker
    tables = Tables(
        broker.topics, broker.deletions, broker.groups, broker.offsets, broker.schedule,
        broker.forget_topic, broker.stored_queues, broker.store, lambda: (1, 71), lambda end: end <= held,
    )  # fmt: skip
    starts = QueueStarts(broker.topics, broker.store)
    sync = TableSync(lambda: "10.0.0.1:10911", Lagging(master, ours), tables, clock, starts)
    sync.start(Role.SLAVE)
    park(master)
    deliver(master)
    master.broker.offsets.commit("G", "T", 0, 1)
    copied = master.broker.store.end
    await sync.round("10.0.0.1:10911")
    assert broker.schedule.offsets == {} and broker.offsets.groups_of("T") == []
    assert len(broker.topics) == len(master.broker.topics), "which rests on nothing"
    park(master)  # under load the master's log goes on: what was read must not be asked for anew
    deliver(master)
    clock.advance(10_000)
    held = copied
    await sync.round("10.0.0.1:10911")
    assert broker.schedule.offsets == {1: 1}
    assert broker.offsets.committed("G", "T", 0) == 1


async def test_who_becomes_the_master_takes_over_nothing_that_was_waiting(
    make_broker: MakeBroker, tmp_path: Path, clock: TwoClocks
) -> None:
    master = make_broker()
    slave = make_broker(storePathRootDir=str(tmp_path / "slave"), listenPort="10921")
    broker = slave.broker
    held = 0
    tables = Tables(
        broker.topics, broker.deletions, broker.groups, broker.offsets, broker.schedule,
        broker.forget_topic, broker.stored_queues, broker.store, lambda: (1, 71), lambda end: end <= held,
    )  # fmt: skip
    starts = QueueStarts(broker.topics, broker.store)
    sync = TableSync(lambda: "10.0.0.1:10911", Lagging(master, True), tables, clock, starts)
    sync.start(Role.SLAVE)
    park(master)
    deliver(master)
    await sync.round("10.0.0.1:10911")
    sync.role_changed(Role.ASYNC_MASTER)
    sync.role_changed(Role.SLAVE)
    held = 1 << 40
    assert broker.schedule.offsets == {}
