"""tables/tablereaders.py, following in metasync.py: a change is told at once, and answered when it is there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, MakeBroker, TwoClocks
from test_metasync import MASTER, OFFSETS, Pair

from tandemmq.cluster.broker.errors import BrokerError, NotMaster, TooFewReplicas
from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Follows, RoleChanges, SendRefused
from tandemmq.cluster.broker.tables import tablereaders
from tandemmq.cluster.broker.tables.metasync import KINDS
from tandemmq.cluster.broker.tables.savedfile import CHANGES_KEPT, SavedFile
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.replication.master import anybody
from tandemmq.storage import fastjson, jsonfile

TOPICS, GROUPS = KINDS[0], KINDS[3]


@pytest.fixture
def pair(make_broker: MakeBroker, tmp_path: Path, clock: TwoClocks) -> Pair:
    master = make_broker()
    slave = make_broker(storePathRootDir=str(tmp_path / "slave"), listenPort="10921")
    return Pair(master, slave, clock)


class Standing:
    """A master of a group, as far as TableReaders asks."""

    def __init__(self) -> None:
        self.changes = RoleChanges()
        self.role = Role.SYNC_MASTER
        self.in_sync: frozenset[int] | None = frozenset({2, 3})
        self.stock_slaves: frozenset[int] = frozenset()
        self.refused: BrokerError | None = None
        self.follows: Follows = anybody

    def slaves(self) -> list[int]:
        return [2]

    def refusal(self) -> SendRefused | None:
        return None if self.refused is None else SendRefused(self.refused)


class Kit:
    def __init__(self, directory: Path, clock: TwoClocks) -> None:
        self.standing = Standing()
        self.file = SavedFile(directory / "topics.json", dict)
        self.file.changed("T")
        standing: Any = self.standing
        self.readers = TableReaders(standing, {21: self.file}, clock)


@pytest.fixture
def kit(tmp_path: Path, clock: TwoClocks, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setattr(tablereaders, "SHARED_MS", 60)
    return Kit(tmp_path, clock)


# -- whom a change waits for


async def test_a_change_waits_until_every_member_of_the_set_has_it(kit: Kit) -> None:
    """INV-43"""
    kit.readers.has(2, 72, 21, 1)
    sharing = asyncio.create_task(kit.readers.share())
    await asyncio.sleep(0)
    assert not sharing.done()
    kit.readers.has(3, 73, 21, 0)
    await asyncio.sleep(0.01)
    assert not sharing.done()
    kit.readers.has(3, 73, 21, 1)
    assert await sharing is None


def test_who_may_become_a_member_has_every_table_as_it_is_now(
    kit: Kit, clock: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-43: it is not waited for before."""
    up_to_date = kit.standing.follows
    assert not up_to_date(4, 74)
    kit.readers.has(4, 74, 21, 1)
    assert up_to_date(4, 74)
    assert not up_to_date(4, 75), "another process, perhaps on another disk"
    kit.file.changed("U")
    assert not up_to_date(4, 74)
    kit.readers.has(4, 75, 21, 2)
    assert up_to_date(4, 75) and not up_to_date(4, 74)
    assert not caplog.records
    kit.file.changed("U")
    assert not up_to_date(4, 75)
    clock.advance(tablereaders.HERE_MS)
    assert not up_to_date(4, 75)
    assert "does not copy our tables, so it is not in the set" in caplog.text


async def test_a_master_that_waits_for_nobody_shares_with_nobody(kit: Kit) -> None:
    kit.standing.role = Role.ASYNC_MASTER
    assert await kit.readers.share() is None


async def test_who_is_late_is_named_and_a_stock_slave_is_not_waited_for(
    kit: Kit, clock: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    kit.readers.has(2, 72, 21, 0)
    for _ in range(2):  # 3 is frozen, or on its way back: it may be the next master all the same
        sharing = asyncio.create_task(kit.readers.share())
        await asyncio.sleep(0)
        clock.advance(60)
        remark = await sharing
        assert remark is not None and "2,3" in remark
    assert "though slaves do not have it brokers=2,3" in caplog.text
    kit.readers.has(2, 72, 21, 1)
    kit.standing.stock_slaves = frozenset({3})
    assert await kit.readers.share() is None
    kit.readers.has(3, 73, 21, 0)  # it is none
    sharing = asyncio.create_task(kit.readers.share())
    await asyncio.sleep(0.01)
    assert not sharing.done()
    kit.readers.has(3, 73, 21, 1)
    assert await sharing is None


@pytest.mark.parametrize("why", [NotMaster("x"), TooFewReplicas("x")])
async def test_a_master_that_may_be_none_any_more_does_not_say_done(
    kit: Kit, clock: TwoClocks, why: BrokerError
) -> None:
    kit.standing.refused = why
    sharing = asyncio.create_task(kit.readers.share())
    await asyncio.sleep(0)
    clock.advance(60)
    if isinstance(why, NotMaster):
        with pytest.raises(NotMaster):
            await sharing
    else:
        assert await sharing is not None


async def test_a_change_of_role_ends_the_wait(kit: Kit) -> None:
    sharing = asyncio.create_task(kit.readers.share())
    await asyncio.sleep(0)
    kit.standing.role = Role.SLAVE
    await kit.standing.changes.tell(Role.SLAVE)
    with pytest.raises(NotMaster, match="another broker"):
        await sharing


async def test_a_change_of_right_before_the_end_of_a_reign_is_not_called_done(
    kit: Kit, clock: TwoClocks
) -> None:
    kit.file.changed("U")  # made as the master
    kit.standing.role = Role.SLAVE
    with pytest.raises(NotMaster):
        await kit.readers.share()
    await kit.standing.changes.tell(Role.SLAVE)
    with pytest.raises(NotMaster):
        await kit.readers.share()
    clock.advance(60)
    assert await kit.readers.share() is None, "a slave's own changes wait for nobody"


async def test_without_a_controller_those_count_that_asked_a_moment_ago(
    kit: Kit, clock: TwoClocks
) -> None:
    kit.standing.in_sync = None
    assert await kit.readers.share() is None
    kit.readers.has(1, 71, 21, 0)
    sharing = asyncio.create_task(kit.readers.share())
    await asyncio.sleep(0)
    assert not sharing.done()
    kit.readers.has(1, 71, 21, 1)
    assert await sharing is None
    kit.file.changed("T")
    clock.advance(tablereaders.HERE_MS + 1)
    assert await kit.readers.share() is None


# -- what slaves are told


async def hear(pair: Pair) -> bool:
    return await pair.sync.hear(TOPICS, MASTER) and await pair.sync.hear(GROUPS, MASTER)


def equal(pair: Pair) -> bool:
    one, two = pair.state(pair.master), pair.state(pair.slave)
    return all(one[name] == two[name] for name in ("topics", "groups"))


async def test_a_slave_is_told_what_changed_and_no_more(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.make_topic("Gone")
    assert await pair.round()
    bodies: list[Any] = []
    request = pair.link.request

    async def noting(address: str, command: Any, timeout_ms: int) -> Any:
        answer = await request(address, command, timeout_ms)
        bodies.append(fastjson.loads(answer.body) if answer.body else None)
        return answer

    pair.link.request = noting  # type: ignore[method-assign]
    await pair.make_topic("Orders", 9)
    await pair.master.ask(215, topic="Gone")
    await pair.master.ask(200, {"groupName": "G", "retryMaxTimes": 5})
    assert await hear(pair)
    assert equal(pair)
    assert list(bodies[0]["topicConfigTable"]) == ["Orders"] and bodies[0]["gone"] == ["Gone"]
    assert list(bodies[1]["subscriptionGroupTable"]) == ["G"]
    await pair.master.ask(207, groupName="G")
    await pair.master.broker.groups.set_readable("H", "Orders", False)
    assert await pair.sync.hear(GROUPS, MASTER)
    assert equal(pair) and bodies[-1]["gone"] == ["G", "H"]


async def test_a_question_waits_for_a_change_and_tells_what_the_slave_has_kept(pair: Pair) -> None:
    assert await pair.round()
    readers = pair.master.broker.table_readers
    hearing = asyncio.create_task(pair.sync.hear(TOPICS, MASTER))
    await asyncio.sleep(0.05)
    assert not hearing.done()
    await pair.make_topic("Orders")
    assert await hearing and equal(pair)
    generation = pair.master.broker.topics.file.generation
    assert readers._has[1][21] < generation
    hearing = asyncio.create_task(pair.sync.hear(TOPICS, MASTER))
    await asyncio.sleep(0.05)
    assert readers._has[1][21] == generation
    assert not pair.slave.broker.topics.file.unsaved
    readers.release_all()
    assert await hearing


async def test_more_changes_than_are_remembered_bring_the_whole_table(pair: Pair) -> None:
    assert await pair.round()
    file = pair.master.broker.topics.file
    for _ in range(CHANGES_KEPT + 1):
        file.changed("Orders")
    await pair.make_topic("Orders")
    assert await hear_topics(pair) and equal(pair)


async def hear_topics(pair: Pair) -> bool:
    return await pair.sync.hear(TOPICS, MASTER)


async def test_what_a_slave_made_by_itself_goes_with_the_next_change(pair: Pair) -> None:
    assert await pair.round()
    hearing = asyncio.create_task(pair.sync.hear(GROUPS, MASTER))
    await asyncio.sleep(0.02)
    pair.slave.broker.groups.find("Own")
    await pair.master.ask(200, {"groupName": "G"})
    assert await hearing
    assert await pair.round(0)  # at once: until then it hears of no changes
    assert equal(pair)
    assert GROUPS.code in pair.sync._stamps


async def test_a_master_that_tells_of_no_changes_is_copied_as_ever(pair: Pair) -> None:
    """A release before this one: it knows the stamp, and neither holds questions nor sends changes."""
    assert await pair.round()
    request = pair.link.request

    async def older(address: str, command: Any, timeout_ms: int) -> Any:
        for field in ("tableReader", "tableHold"):
            (command.ext or {}).pop(field, None)
        return await request(address, command, timeout_ms)

    pair.link.request = older  # type: ignore[method-assign]
    assert not await pair.sync.hear(TOPICS, MASTER)
    await pair.make_topic("Orders")
    assert await pair.round() and equal(pair)


async def test_a_stock_slave_sees_nothing_of_it(pair: Pair) -> None:
    pair.master.put("Gone", 1)
    await pair.make_topic("Gone")
    await pair.master.ask(215, topic="Gone")
    found = await pair.master.json(21)
    assert set(found) == {
        "dataVersion", "mappingDataVersion", "topicConfigTable", "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    }  # fmt: skip


# -- what is saved


def test_what_is_saved_of_topics_is_what_they_answer_with(pair: Pair) -> None:
    table = pair.master.broker.topics
    assert fastjson.loads(table._encoded()) == table.to_json()


# -- deletions


async def deleted(pair: Pair) -> None:
    await pair.make_topic("Gone")
    for asker in (pair.master, pair.slave):
        asker.put("Gone", 1)
        asker.put("Kept", 1)
    await pair.make_topic("Kept")
    assert await pair.round()
    await pair.master.ask(215, topic="Gone")


@pytest.mark.parametrize("told", [False, True])
async def test_a_deletion_comes_with_its_log_offset(pair: Pair, told: bool) -> None:
    """INV-43"""
    await deleted(pair)
    assert await (hear_topics(pair) if told else pair.round())
    master, slave = pair.master.broker.store, pair.slave.broker.store
    assert slave.tombstones.all() == master.tombstones.all() == {"Gone": master.end}
    assert sorted(slave.topics()) == ["Kept"]


async def test_a_slave_leaves_deletions_to_its_master(pair: Pair) -> None:
    await deleted(pair)
    slave = pair.slave
    slave.broker.table_sync.start(Role.SLAVE)
    answer = await slave.ask(215, topic="Kept")
    assert (answer.code, answer.remark) == (0, LEFT_TO_MASTER)  # it says that it did nothing
    assert slave.broker.store.max_offset("Kept", 1) == 1 and "Kept" in slave.broker.topics


async def test_a_deletion_that_only_the_former_master_knew_is_taken_back(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    await deleted(pair)
    slave = pair.slave.broker
    slave.store.delete_topic("Kept")
    assert await pair.round()
    while slave.store.dispatch():
        pass
    assert slave.store.max_offset("Kept", 1) == 1
    assert "the master does not know taken back topics=Kept" in caplog.text


async def test_what_a_new_master_writes_was_not_deleted_by_the_former(pair: Pair) -> None:
    await deleted(pair)
    for number in range(5):
        pair.master.put("Kept", number)
    await pair.master.ask(215, topic="Kept")
    assert await pair.round()
    slave = pair.slave.broker
    assert slave.store.tombstones.all()["Kept"] > slave.store.end
    pair.sync.role_changed(Role.SYNC_MASTER)
    pair.slave.put("Kept", 0)
    assert slave.store.max_offset("Kept", 0) == 1


async def test_a_deletion_behind_a_cut_takes_nothing_that_comes_there(
    pair: Pair, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """INV-43: a former master follows one that may not know it, and is its successor before it has asked."""
    slave = pair.slave
    slave.put("T", 0)
    kept = slave.broker.store.end
    for _ in range(5):
        slave.put("T", 0)
    slave.broker.store.delete_topic("T")
    slave.broker.deletions.save()
    slave.broker.store.truncate(kept)
    for _ in range(5):
        slave.put("T", 0)
    assert slave.broker.store.max_offset("T", 0) == 5
    shutil.copytree(tmp_path / "slave", tmp_path / "killed")
    again = make_broker(storePathRootDir=str(tmp_path / "killed"), listenPort="10931")
    assert again.broker.store.max_offset("T", 0) == 5


async def test_what_a_new_master_writes_is_not_deleted_by_its_restart(
    pair: Pair, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """INV-43: the file had the deletion where the former master's log ended."""
    await deleted(pair)
    for number in range(5):
        pair.master.put("Kept", number)
    await pair.master.ask(215, topic="Kept")
    assert await pair.round()
    await pair.slave.broker.deletions.saved()
    pair.sync.role_changed(Role.SYNC_MASTER)
    pair.slave.put("Kept", 0)
    shutil.copytree(tmp_path / "slave", tmp_path / "killed")
    again = make_broker(storePathRootDir=str(tmp_path / "killed"), listenPort="10931")
    assert again.broker.store.max_offset("Kept", 0) == 1


def test_what_came_after_a_log_lost_the_end_of_a_deletion_survives_restarts(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    """INV-43: an asynchronous disk lost power, and the deletion had reached it before the log."""
    asker = make_broker(storePathRootDir=str(tmp_path / "store"))
    asker.put("T", 0)
    asker.broker.store.delete_topic("T")
    asker.broker.save()
    end = asker.broker.store.end
    shutil.copytree(tmp_path / "store", tmp_path / "cut")
    table = {"deletedTopics": {"T": end + 500}, "format": 1}
    jsonfile.save(tmp_path / "cut" / "config" / "deletedTopics.json", table)
    asker = make_broker(storePathRootDir=str(tmp_path / "cut"), listenPort="10921")
    assert asker.broker.store.tombstones.all() == {"T": end}
    for _ in range(5):
        asker.put("T", 0)
    shutil.copytree(tmp_path / "cut", tmp_path / "killed")
    asker = make_broker(storePathRootDir=str(tmp_path / "killed"), listenPort="10931")
    assert asker.broker.store.max_offset("T", 0) == 5


async def with_progress(pair: Pair) -> None:
    await pair.make_topic("T")
    for asker in (pair.master, pair.slave):
        for _ in range(10):
            asker.put("T", 0)
    await pair.master.ask(200, {"groupName": "G"})
    assert await pair.round()
    pair.master.broker.offsets.commit("G", "T", 0, 10)


async def test_progress_in_a_deleted_topic_does_not_count_in_its_next_life(pair: Pair) -> None:
    """The slave hears of both at once, so the topic was never gone."""
    await with_progress(pair)
    assert await pair.round()
    assert pair.slave.broker.offsets.committed("G", "T", 0) == 10
    await pair.master.ask(215, topic="T")
    await pair.make_topic("T")
    assert await hear_topics(pair) and await pair.round()
    assert pair.slave.broker.offsets.committed("G", "T", 0) == -1
    pair.master.broker.offsets.commit("G", "T", 0, 3)
    assert await pair.round()
    assert pair.slave.broker.offsets.committed("G", "T", 0) == 3


@pytest.mark.parametrize("again", [False, True])
async def test_progress_that_was_on_its_way_when_its_topic_went_is_left_out(
    pair: Pair, again: bool
) -> None:
    await with_progress(pair)
    request = pair.link.request
    deleted_on: list[int] = []

    async def late(address: str, command: Any, timeout_ms: int) -> Any:
        answer = await request(address, command, timeout_ms)
        if command.code == OFFSETS and not deleted_on:
            deleted_on.append(command.code)
            await pair.master.ask(215, topic="T")
            assert await hear_topics(pair)
            if again:
                await pair.make_topic("T")
                pair.master.broker.offsets.commit("G", "T", 0, 3)
        return answer

    pair.link.request = late  # type: ignore[method-assign]
    for _ in range(2):
        assert await pair.round()
    assert pair.slave.broker.offsets.committed("G", "T", 0) == (3 if again else -1)


async def test_a_stock_masters_deletion_covers_what_was_here_when_it_was_asked(
    pair: Pair,
) -> None:
    await deleted(pair)
    pair.link.ours = False
    slave: Asker = pair.slave
    asked_at = slave.broker.store.end
    before = pair.link.before_answer

    def meanwhile() -> None:
        if pair.link.asked[-1] == 21:
            slave.put("Gone", 0, b"of its next life")
        before()

    pair.link.before_answer = meanwhile
    assert await pair.round()
    while slave.broker.store.dispatch():
        pass
    assert slave.broker.store.tombstones.all()["Gone"] == asked_at
    assert slave.broker.store.max_offset("Gone", 0) == 1
    assert slave.broker.store.max_offset("Gone", 1) == 0
