"""cluster/broker/tables/metasync.py and handlers/tables.py: a slave's tables become its master's."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import lzma
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker, TwoClocks

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.tables import metasync
from tandemmq.cluster.broker.tables.mastertables import (
    TableRefused,
    read_delays,
    read_groups,
    read_offsets,
    read_topics,
)
from tandemmq.cluster.broker.tables.metasync import STAMP, STOCK_MS, Tables, TableSync
from tandemmq.cluster.broker.tables.queuestarts import QueueStarts
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectFailed, ConnectionLost, RemotingError
from tandemmq.storage import checkpoint, fastjson

MASTER, HEIR = "10.0.0.1:10911", "10.0.0.2:10911"
WIRE = Path(__file__).parents[2] / "golden" / "wire"
TOPICS, OFFSETS, DELAYS, GROUPS, QUEUES, RUNTIME = 21, 43, 45, 201, 202, 28


class Link:
    """A master that is reached without a network; `ours` off makes it answer like a stock one."""

    def __init__(self, master: Asker) -> None:
        self.master = master
        self.ours = True
        self.problem: RemotingError | None = None
        self.asked: list[int] = []
        self.asked_queues: list[str] = []
        self.asked_ends = 0
        self.fails_on: dict[int, RemotingError] = {}
        self.bodies = 0
        self.before_answer: Callable[[], None] = lambda: None
        self.replaced: dict[int, Command] = {}
        self.closed = False
        self.stuck: asyncio.Future[Command] | None = (
            None  # what is asked now, of a host that is dark
        )

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        if self.stuck is not None and address == MASTER:
            return await self.stuck
        assert address in (MASTER, HEIR)
        if command.code == RUNTIME:
            self.asked_ends += 1
        elif command.code == QUEUES:
            self.asked_queues.append((command.ext or {})["topic"])
        else:
            self.asked.append(command.code)
        if self.problem is not None:
            raise self.problem
        if command.code in self.fails_on:
            raise self.fails_on[command.code]
        ext = dict(command.ext or {})
        if not self.ours:
            ext.pop(STAMP, None)
            ext.pop("onlyForward", None)
        request = Command(command.code, ext, command.body)
        peer: Any = FakeConnection()
        answer = self.master.broker.table[command.code](request, peer)
        if inspect.isawaitable(answer):
            answer = await answer
        assert answer is not None
        answer = self.replaced.get(command.code, answer)
        self.bodies += bool(answer.body)
        self.before_answer()
        return answer

    def drop(self, address: str, why: str) -> None:
        if self.stuck is not None and not self.stuck.done():
            self.stuck.set_exception(ConnectionLost(address, why))

    async def close(self) -> None:
        self.closed = True


class Pair:
    """A master, and a slave whose tables follow."""

    def __init__(self, master: Asker, slave: Asker, clock: TwoClocks) -> None:
        self.master = master
        self.slave = slave
        self.clock = clock
        self.link = Link(master)
        self.source: str | None = MASTER
        broker = slave.broker
        self.tables = Tables(
            broker.topics, broker.deletions, broker.groups, broker.offsets, broker.schedule,
            broker.forget_topic, broker.stored_queues, broker.store, lambda: (1, 71),
            locks=broker.locks,
        )  # fmt: skip
        self.starts = QueueStarts(broker.topics, broker.store)
        self.sync = TableSync(lambda: self.source, self.link, self.tables, clock, self.starts)
        self.sync.start(Role.SLAVE)

    async def round(self, after_ms: int = STOCK_MS) -> bool:
        self.clock.advance(after_ms)
        return await self.sync.round(MASTER)

    def state(self, asker: Asker) -> dict[str, Any]:
        """What it would answer to slaves."""
        broker = asker.broker
        return {
            "topics": broker.topics.to_json(),
            "groups": broker.groups.to_json(),
            "offsets": broker.offsets.shared_json(),
            "delays": broker.schedule.to_json(),
        }

    async def make_topic(self, name: str, queues: int = 4) -> None:
        answer = await self.master.ask(
            17, topic=name, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues,
            perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
        )  # fmt: skip
        assert answer.code == 0, answer.remark


@pytest.fixture
def pair(make_broker: MakeBroker, tmp_path: Path, clock: TwoClocks) -> Pair:
    master = make_broker()
    slave = make_broker(storePathRootDir=str(tmp_path / "slave"), listenPort="10921")
    return Pair(master, slave, clock)


def reopened(pair: Pair) -> Any:
    """The slave's progress as its file has it."""
    path = pair.slave.broker.offsets.file.path
    pair.slave.broker.offsets.file.save()
    again = type(pair.slave.broker.offsets)(path, pair.clock)
    again.load()
    again.start_following()
    return again


def golden(code: int) -> Command:
    """The recorded answer of a stock 5.3.3 master to its slave's request."""
    opaque = connection = None
    with lzma.open(WIRE / "ha-pair-remoting.jsonl.xz", "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["k"] != "frame":
                continue
            if entry["d"] == ">" and entry["code"] == code and opaque is None:
                opaque, connection = entry["opaque"], entry["c"]
            elif entry["d"] == "<" and (entry["opaque"], entry["c"]) == (opaque, connection):
                return Command.decode(memoryview(base64.b64decode(entry["b"])))
    raise AssertionError(f"no answer to {code} was recorded")


async def test_everything_the_master_has_is_copied_with_its_versions(pair: Pair) -> None:
    await pair.make_topic("Orders", 6)
    await pair.master.heartbeat("Billing", "Orders")
    pair.master.broker.offsets.commit("Billing", "Orders", 2, 17)
    pair.master.broker.schedule.adopt({1: 20, 3: 4}, pair.master.broker.schedule.version)
    await pair.master.broker.groups.set_readable("Billing", "Orders", False)
    assert await pair.round()
    assert pair.state(pair.slave) == pair.state(pair.master)
    assert pair.slave.broker.groups.read_forbidden("Billing", "Orders")


async def test_a_settled_pair_writes_nothing_and_sends_no_bodies(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.round()
    pair.slave.broker.save()
    pair.link.bodies = 0
    assert await pair.round()
    assert await pair.round()
    broker = pair.slave.broker
    tables = (broker.topics, broker.groups, broker.offsets, broker.schedule)
    assert not any(table.file.unsaved for table in tables)
    assert pair.link.bodies == 0


async def test_a_stock_master_is_asked_as_often_as_stock_slaves_ask(pair: Pair) -> None:
    pair.link.ours = False
    await pair.round()
    assert pair.link.asked == [TOPICS, OFFSETS, DELAYS, GROUPS]
    await pair.round(after_ms=STOCK_MS - 1)
    assert len(pair.link.asked) == 4
    await pair.round(after_ms=1)
    assert pair.link.asked[4:] == [TOPICS, OFFSETS, DELAYS, GROUPS]
    assert pair.state(pair.slave) == pair.state(pair.master)


async def test_recorded_answers_of_a_stock_master_are_taken_over(pair: Pair) -> None:
    for code in (TOPICS, OFFSETS, DELAYS, GROUPS):
        pair.link.replaced[code] = golden(code)
    pair.link.ours = False
    assert await pair.round()
    for code, mine in (
        (TOPICS, pair.slave.broker.topics.to_json()),
        (OFFSETS, pair.slave.broker.offsets.shared_json()),
        (DELAYS, pair.slave.broker.schedule.to_json()),
        (GROUPS, pair.slave.broker.groups.to_json()),
    ):
        recorded = fastjson.loads(golden(code).body or b"")
        assert mine["dataVersion"] == recorded["dataVersion"]
        name = next(key for key in mine if key.endswith("Table") and key != "forbiddenTable")
        assert recorded[name] or code in (OFFSETS, DELAYS)  # nobody had consumed, nothing was due
        for key, entry in recorded[name].items():
            if isinstance(entry, dict):
                missing = {k for k, v in entry.items() if mine[name][key].get(k) != v}
                assert not missing, (code, key, missing, mine[name][key])
            else:
                assert mine[name][key] == entry


async def test_a_topic_deleted_on_the_master_loses_queues_and_progress_here(pair: Pair) -> None:
    await pair.make_topic("Gone")
    await pair.make_topic("Kept")
    for asker in (pair.master, pair.slave):
        asker.put("Gone", 1)
        asker.put("Kept", 1)
    pair.master.broker.offsets.commit("G", "Gone", 1, 1)
    await pair.round()
    await pair.master.ask(215, topic="Gone")
    assert await pair.round()
    slave = pair.slave.broker
    assert "Gone" not in slave.topics
    assert slave.store.max_offset("Gone", 1) == 0
    assert slave.offsets.committed("G", "Gone", 1) == -1
    assert slave.store.max_offset("Kept", 1) == 1


async def test_a_deletion_is_taken_over_without_a_sync_on_the_loop(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream runs on the loop as well: half a second of a busy disk would go unacknowledged."""
    synced_by: list[threading.Thread] = []

    def forget(path: Path) -> None:
        synced_by.append(threading.current_thread())
        checkpoint.forget_queue_state(path)

    await pair.make_topic("Gone")
    for asker in (pair.master, pair.slave):
        asker.put("Gone", 1)
    await pair.round()
    store = pair.slave.broker.store
    store.flush_queues()
    state = Path(store.config.root) / "queuestate"
    assert state.exists()
    monkeypatch.setattr("tandemmq.storage.durability.forget_queue_state", forget)
    await pair.master.ask(215, topic="Gone")
    assert await pair.round()
    assert store.max_offset("Gone", 1) == 0 and not state.exists()
    assert len(synced_by) == 1 and threading.main_thread() not in synced_by


async def test_a_master_that_lost_its_topics_costs_no_queues(pair: Pair) -> None:
    await pair.make_topic("Orders")
    pair.slave.put("Orders", 1)
    await pair.round()
    table = pair.master.broker.topics
    table.adopt({}, type(table.version)(timestamp=1))  # as after a start without its file
    assert await pair.round()
    assert pair.slave.broker.store.max_offset("Orders", 1) == 1


async def test_built_in_topics_stay_when_an_older_master_lacks_them(pair: Pair) -> None:
    tree = pair.master.broker.topics.to_json()
    del tree["topicConfigTable"]["rmq_sys_wheel_timer"]
    pair.link.replaced[TOPICS] = Command(0, body=fastjson.dumps(tree))
    assert await pair.round()
    assert "rmq_sys_wheel_timer" in pair.slave.broker.topics


async def test_what_is_made_on_the_slave_alone_is_gone_with_the_next_copy(pair: Pair) -> None:
    await pair.round()
    version = pair.slave.broker.topics.version
    await pair.slave.heartbeat("Stray", "T")
    assert "%RETRY%Stray" in pair.slave.broker.topics
    assert pair.slave.broker.topics.version == version
    assert await pair.round()
    assert pair.state(pair.slave) == pair.state(pair.master)


async def test_progress_committed_here_while_the_master_was_away_stays_and_is_told(
    pair: Pair,
) -> None:
    await pair.make_topic("Orders")
    await pair.master.heartbeat("G", "Orders")
    pair.master.broker.offsets.commit("G", "Orders", 0, 10)
    await pair.round()
    pair.link.problem = ConnectFailed(MASTER, "refused")
    assert not await pair.round()
    pair.slave.broker.offsets.commit("G", "Orders", 0, 25)
    pair.slave.broker.offsets.commit("G", "Orders", 1, 3)
    pair.link.problem = None
    assert await pair.round()
    for asker in (pair.slave, pair.master):
        assert asker.broker.offsets.queues("G", "Orders") == {0: 25, 1: 3}
    assert not pair.slave.broker.offsets.ahead


@pytest.mark.parametrize("ours", [True, False])
async def test_a_reset_on_the_master_reaches_the_slave_though_it_goes_back(
    pair: Pair, ours: bool
) -> None:
    pair.link.ours = ours
    await pair.make_topic("Orders")
    await pair.master.heartbeat("G", "Orders")
    pair.master.broker.offsets.commit("G", "Orders", 0, 10)
    await pair.round()
    pair.slave.broker.offsets.commit("G", "Orders", 0, 25)
    await pair.round()  # the master was told, and says from now on where the group is
    pair.master.broker.offsets.assign_reset("G", "Orders", 0, 2)
    assert await pair.round()
    assert pair.slave.broker.offsets.query("G", "Orders", 0) == 2
    assert pair.master.broker.offsets.query("G", "Orders", 0) == 2


async def test_a_commit_that_came_to_the_master_meanwhile_is_not_set_back(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.master.heartbeat("G", "Orders")
    await pair.round()
    pair.slave.broker.offsets.commit("G", "Orders", 0, 25)

    def commit_on_master() -> None:
        pair.master.broker.offsets.commit("G", "Orders", 0, 40)

    pair.link.before_answer = commit_on_master  # after the master's table was written down
    await pair.round()
    assert pair.master.broker.offsets.query("G", "Orders", 0) == 40


async def test_progress_that_only_the_slave_knows_survives_its_restart(pair: Pair) -> None:
    pair.slave.broker.offsets.commit("G", "Orders", 0, 25)
    again = reopened(pair)
    assert again.ahead == {("G", "Orders", 0): 25}
    again.adopt({("G", "Orders"): {0: 10, 1: 4}}, again.version)
    assert again.queues("G", "Orders") == {0: 25, 1: 4}


async def test_a_slave_that_is_started_as_a_master_has_nobody_to_tell(pair: Pair) -> None:
    pair.slave.broker.offsets.commit("G", "Orders", 0, 25)
    pair.sync.start(Role.SYNC_MASTER)
    assert reopened(pair).ahead == {}
    assert pair.slave.broker.offsets.committed("G", "Orders", 0) == 25


async def test_groups_of_progress_that_the_master_does_not_name_stay(pair: Pair) -> None:
    offsets = pair.slave.broker.offsets
    offsets.adopt({("Old", "T"): {0: 5}}, offsets.version)
    assert await pair.round()
    assert offsets.committed("Old", "T", 0) == 5


async def test_a_group_that_began_at_the_slave_is_made_on_the_master(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.round()
    pair.slave.broker.offsets.commit("Began", "Orders", 0, 25)
    assert await pair.round()
    assert pair.master.broker.offsets.committed("Began", "Orders", 0) == 25
    assert "Began" in pair.master.broker.groups


async def test_refused_progress_is_told_again_and_forgotten_with_its_topic(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.round()
    pair.link.ours = False  # a stock master takes no progress of a group that it does not know
    pair.slave.broker.offsets.commit("Nobody", "Orders", 0, 25)
    assert await pair.round()
    assert pair.slave.broker.offsets.ahead
    await pair.master.ask(215, topic="Orders")
    assert await pair.round()
    assert not pair.slave.broker.offsets.ahead


async def test_one_table_that_cannot_be_read_does_not_stop_the_others(pair: Pair) -> None:
    await pair.make_topic("Orders")
    pair.master.broker.offsets.commit("G", "Orders", 0, 10)
    pair.link.replaced[TOPICS] = Command(0, body=b'{"topicConfigTable":[')
    before = pair.slave.broker.topics.to_json()
    assert not await pair.round()
    assert pair.slave.broker.topics.to_json() == before
    assert pair.slave.broker.offsets.committed("G", "Orders", 0) == 10
    assert pair.sync.failures == 1


async def test_a_table_that_could_not_be_copied_is_asked_for_with_the_next_round(
    pair: Pair,
) -> None:
    """A slave without its master's tables is not taken into the set: ten seconds of one copy only."""
    pair.link.problem = ConnectFailed(MASTER, "connection refused")
    assert not await pair.round()
    pair.link.problem = None
    pair.link.fails_on[GROUPS] = ConnectionLost(MASTER, "lost")
    assert not await pair.round(after_ms=100)
    del pair.link.fails_on[GROUPS]
    pair.link.asked.clear()
    assert await pair.round(after_ms=100)
    assert GROUPS in pair.link.asked
    assert pair.state(pair.slave) == pair.state(pair.master)


async def test_an_error_answer_changes_nothing(pair: Pair) -> None:
    pair.link.replaced[GROUPS] = Command(1, remark="no")
    before = pair.slave.broker.groups.to_json()
    assert not await pair.round()
    assert pair.slave.broker.groups.to_json() == before


async def test_an_answer_that_comes_after_the_master_changed_is_not_taken(pair: Pair) -> None:
    await pair.make_topic("Orders")

    def promoted() -> None:
        pair.source = None

    pair.link.before_answer = promoted
    await pair.sync.round(MASTER)
    assert "Orders" not in pair.slave.broker.topics


async def test_what_was_not_taken_is_asked_for_at_once_when_the_same_master_is_back(
    pair: Pair,
) -> None:
    await pair.make_topic("Orders")

    def gone() -> None:
        pair.source = None

    pair.link.before_answer = gone
    await pair.round()
    assert "Orders" not in pair.slave.broker.topics
    pair.source, pair.link.before_answer = MASTER, lambda: None
    assert await pair.round(after_ms=100)
    assert "Orders" in pair.slave.broker.topics


async def test_a_topic_that_only_the_log_knows_is_asked_for_at_once(pair: Pair) -> None:
    pair.link.ours = False
    await pair.round()
    await pair.make_topic("Fresh")
    pair.sync.noticed({"TBW102"})
    await pair.round(after_ms=0)
    assert "Fresh" not in pair.slave.broker.topics
    pair.sync.noticed({"Fresh"})
    await pair.round(after_ms=0)
    assert "Fresh" in pair.slave.broker.topics


async def test_pages_of_a_long_table_are_put_together(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metasync, "PAGE_ENTRIES", 7)
    names = [f"Topic{n}" for n in range(20)]
    version = {"stateVersion": 0, "timestamp": 5, "counter": 9}
    asked: list[dict[str, str]] = []

    class Paging:
        """As 5.4 pages: the first request of an unknown version starts at 0."""

        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            ext = dict(command.ext or {})
            if command.code != TOPICS:
                return await pair.link.request(address, command, timeout_ms)
            asked.append(ext)
            start = int(ext.get("topicSeq", 0))
            table = {name: {"topicName": name} for name in names[start : start + 7]}
            body = {"dataVersion": version, "topicConfigTable": table}
            return Command(0, {"totalTopicNum": "20"}, fastjson.dumps(body))

        def drop(self, address: str, why: str) -> None: ...

        async def close(self) -> None: ...

    sync = TableSync(lambda: MASTER, Paging(), pair.tables, pair.clock, pair.starts)
    assert await sync.round(MASTER)
    assert set(names) <= set(pair.slave.broker.topics)
    assert [ext.get("topicSeq") for ext in asked] == [None, "7", "14"]
    assert json.loads(asked[1]["dataVersion"]) == version


async def test_pages_of_two_versions_are_not_mixed(pair: Pair) -> None:
    class Changing:
        calls = 0

        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            if command.code != TOPICS:
                return await pair.link.request(address, command, timeout_ms)
            self.calls += 1
            name = f"Topic{self.calls}"
            body = {
                "dataVersion": {"counter": self.calls},
                "topicConfigTable": {name: {"topicName": name}},
            }
            return Command(0, {"totalTopicNum": "3"}, fastjson.dumps(body))

        def drop(self, address: str, why: str) -> None: ...

        async def close(self) -> None: ...

    sync = TableSync(lambda: MASTER, Changing(), pair.tables, pair.clock, pair.starts)
    assert not await sync.round(MASTER)
    assert "Topic1" not in pair.slave.broker.topics


async def test_a_promoted_slave_covers_topics_it_knows_by_messages_only(pair: Pair) -> None:
    await pair.round()
    pair.slave.put("Late", 2)
    pair.slave.broker.offsets.commit("G", "Late", 2, 1)
    pair.slave.broker.offsets.commit("H", "Late", 2, 5)
    pair.slave.broker.schedule.adopt({1: 99}, pair.slave.broker.schedule.version)
    version = pair.slave.broker.topics.version.counter
    pair.source = None
    pair.sync.role_changed(Role.SYNC_MASTER)
    slave = pair.slave.broker
    late = slave.topics.get("Late")
    assert late is not None
    assert (late.read_queue_nums, late.write_queue_nums, late.perm) == (3, 3, 6)
    assert slave.topics.version.counter == version + 1
    assert not slave.offsets.ahead
    assert slave.offsets.committed("G", "Late", 2) == 1
    assert slave.offsets.committed("H", "Late", 2) == 1  # four of them never came over
    assert not slave.offsets.file.unsaved  # before others come in their place
    assert slave.schedule.offsets == {1: 0}  # nothing of that level is in its log


async def test_resets_of_a_deposed_master_are_forgotten(pair: Pair) -> None:
    offsets = pair.slave.broker.offsets
    pair.sync.role_changed(Role.SYNC_MASTER)
    offsets.assign_reset("G", "T", 0, 3)
    pair.sync.role_changed(Role.SLAVE)
    assert offsets.pending_reset("G", "T", 0) is None
    offsets.commit("G", "T", 0, 9)
    assert offsets.ahead == {("G", "T", 0): 9}


def test_offsets_beyond_a_cut_log_are_taken_back(pair: Pair) -> None:
    pair.slave.put("T", 0)
    offsets = pair.slave.broker.offsets
    offsets.adopt({("G", "T"): {0: 7, 1: 2}, ("H", "T"): {0: 1}}, offsets.version)
    assert offsets.limit(pair.slave.broker.store.max_offset) == 2
    assert offsets.queues("G", "T") == {0: 1, 1: 0}
    assert offsets.queues("H", "T") == {0: 1}


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (read_topics, '"T":{"topicName":"T"}', '"../x":{}'),
        (read_topics, '"T":{"topicName":"T"}', '"U":{"readQueueNums":-1}'),
        (read_topics, '"T":{"topicName":"T"}', '"U":{"writeQueueNums":99999999}'),
        (read_topics, '"T":{"topicName":"T"}', '"U":{"perm":8}'),
        (read_topics, '"T":{"topicName":"T"}', '"U":7'),
        (read_groups, '"T":{"groupName":"T"}', '"a b":{}'),
        (read_groups, '"T":{"groupName":"T"}', '"U":{"retryQueueNums":-1}'),
    ],
)
def test_entries_that_cannot_be_are_left_out(read: Any, good: str, bad: str) -> None:
    name = "topicConfigTable" if read is read_topics else "subscriptionGroupTable"
    found = read(f'{{"{name}":{{{good},{bad}}}}}'.encode())
    assert set(found.entries) == {"T"}
    assert len(found.skipped) == 1


def test_offsets_that_cannot_be_are_left_out() -> None:
    table = {
        "T@G": {0: 5, 1: (1 << 63) - 1},
        "T@N": {0: -1},
        "T@Q": {70_000: 1},
        "T": {0: 1},
        "a/b@G": {0: 1},
        "T@L": [1],
    }
    found = read_offsets(fastjson.dumps({"offsetTable": table}))
    assert found.entries == {("G", "T"): {0: 5, 1: (1 << 63) - 1}}
    assert len(found.skipped) == 5


def test_numeric_keys_without_quotes_are_read() -> None:
    assert read_offsets(b'{"offsetTable":{"%RETRY%G@G":{0:5,1:7}}}').entries == {
        ("G", "%RETRY%G"): {0: 5, 1: 7}
    }
    delays = read_delays(b'{"dataVersion":{"counter":1},"offsetTable":{1:20,3:4}}')
    assert delays.entries == {1: 20, 3: 4}
    assert delays.version.counter == 1


@pytest.mark.parametrize("read", [read_topics, read_groups, read_offsets, read_delays])
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"7", b"{}", b'{"offsetTable":[]}', b"{" * 100, b"\xff",
     b'{"offsetTable":{},"topicConfigTable":{},"subscriptionGroupTable":{},"dataVersion":7}'],
)  # fmt: skip
def test_what_is_no_table_is_refused(read: Any, body: bytes) -> None:
    with pytest.raises(TableRefused):
        read(body)


async def test_tools_get_every_table_without_a_stamp(pair: Pair) -> None:
    for code in (TOPICS, OFFSETS, DELAYS, GROUPS, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE):
        answer = await pair.master.ask(code)
        assert answer.code == 0
        assert STAMP not in (answer.ext or {})
        assert isinstance(fastjson.loads(answer.body or b""), dict)


async def test_progress_of_slaves_alone_is_not_shown_to_others(pair: Pair) -> None:
    pair.slave.broker.offsets.commit("G", "T", 0, 9)
    assert "aheadOffsetTable" in pair.slave.broker.offsets.to_json()
    assert set(await pair.slave.json(OFFSETS)) == {"dataVersion", "offsetTable"}


async def test_only_forward_commits_never_go_back(pair: Pair) -> None:
    await pair.make_topic("Orders")
    await pair.master.heartbeat("G", "Orders")
    fields: Any = {"consumerGroup": "G", "topic": "Orders", "queueId": 0}
    await pair.master.ask(15, **fields, commitOffset=8)
    await pair.master.ask(15, **fields, commitOffset=5, onlyForward=True)
    assert pair.master.broker.offsets.query("G", "Orders", 0) == 8
    await pair.master.ask(15, **fields, commitOffset=5)
    assert pair.master.broker.offsets.query("G", "Orders", 0) == 5


async def test_a_master_that_never_answers_keeps_nobody_from_its_successor(pair: Pair) -> None:
    """Its host is dark: a change of one table is waited for, and that table's turn is taken, for half a minute."""
    await pair.round()
    await pair.make_topic("OfTheHeir")
    pair.link.stuck = asyncio.get_running_loop().create_future()
    waits = asyncio.create_task(pair.sync.hear(metasync.KINDS[0], MASTER))
    await asyncio.sleep(0)
    pair.source = HEIR
    pair.sync.role_changed(Role.SLAVE)
    async with asyncio.timeout(1):
        assert not await waits
        assert await pair.sync.round(HEIR)
    assert "OfTheHeir" in pair.slave.broker.topics
