"""cluster/broker/standing/slavereads.py: who is sent where, and how slaves answer pulls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from messagekit import FakeClock, FakeConnection, Kit, open_kit

from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.slavereads import (
    AHEAD_BYTES,
    ASK_AGAIN_MS,
    LOST_MS,
    PIECE_BYTES,
    REMEMBERED_MAX,
    STAY_MS,
    Recent,
    SlaveReads,
)
from tandemmq.cluster.broker.tables.groups import GroupConfig
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import (
    Draft,
    GetResult,
    GetStatus,
    StorageConfig,
    hot_bytes,
    pack_host,
    setaside,
)

FOUND, MOVED, RETRY, NOTHING_NEW = 0, 21, 20, 19
SUSPEND, SUBSCRIPTION = 2, 4
GROUP = GroupConfig(group_name="G", broker_id=0, which_broker_when_consume_slowly=7)
READER = (1, "T", 0)


class Cache:
    """A page cache that a test fills: what part of each piece of the log is in memory."""

    def __init__(self, resident: float | None) -> None:
        self.value = resident
        self.asked: list[tuple[int, int]] = []

    @property
    def tells(self) -> bool:
        return self.value is not None

    def resident(self, path: Path, start: int, size: int) -> float | None:
        self.asked.append((start, size))
        return self.value


class Place:
    """A log of any length, and a broker of any role, with or without slaves."""

    NEAR: int = 1 << 20
    END: int = 1 << 40

    def __init__(
        self,
        resident: float | None = None,
        *,
        role: Role = Role.SYNC_MASTER,
        percent: int = 40,
        slave_end: int = END,
        **settings: Any,
    ) -> None:
        storage = StorageConfig(root="unused", hot_memory_percent=percent)
        self.hot = hot_bytes(storage)
        self.clock = FakeClock()
        self.cache = Cache(resident)
        self.slave_end = slave_end
        identity: dict[str, Any] = {"broker_id": 1} if role is Role.SLAVE else {}
        config = BrokerConfig(storage=storage, role=role, **identity, **settings)
        store: Any = SimpleNamespace(
            end=self.END,
            config=storage,
            file_range=lambda offset, bytes_max: setaside.FileRange(
                Path("unused"), offset, min(bytes_max, self.END - offset)
            ),
        )
        standing: Any = SimpleNamespace(role=role, readable_elsewhere=self._readable)
        cache: Any = self.cache
        self.reads = SlaveReads(
            config, store, standing, self.clock, near_bytes=self.NEAR, page_cache=cache
        )

    def _readable(self, offset: int) -> bool:
        return offset <= self.slave_end

    def next_broker(self, behind: int, reader: object = READER) -> int:
        found = GetResult(GetStatus.FOUND, 1, last_physical=self.END - behind)
        return self.reads.next_broker(GROUP, reader, found)


# -- a master


def test_a_reader_of_what_is_not_in_memory_is_sent_to_the_slave() -> None:
    assert Place(0.1).next_broker(Place.NEAR + 1) == 7


def test_a_reader_of_what_is_in_memory_stays_however_far_behind() -> None:
    place = Place(0.9)
    assert place.next_broker(place.hot * 3) == 0


def test_a_reader_near_the_end_stays_and_the_kernel_is_not_asked() -> None:
    place = Place(0.0)
    assert place.next_broker(Place.NEAR) == 0
    assert place.cache.asked == []


def test_the_estimate_decides_where_the_kernel_does_not_tell() -> None:
    place = Place(None)
    assert place.next_broker(place.hot) == 0
    assert place.next_broker(place.hot + 1) == 7


def test_with_a_ratio_of_zero_nothing_counts_as_in_memory() -> None:
    place = Place(1.0, percent=0)
    assert place.next_broker(1) == 7
    assert place.cache.asked == []


def test_nobody_is_sent_to_a_slave_that_does_not_hold_the_place() -> None:
    assert Place(0.0, slave_end=0).next_broker(Place.NEAR * 5) == 0


def test_nobody_is_sent_away_where_slaves_are_not_read() -> None:
    assert Place(0.0, slave_read_enabled=False).next_broker(Place.NEAR * 5) == 0


def test_a_pull_that_looked_at_nothing_says_nothing_about_memory() -> None:
    place = Place(0.0)
    assert place.reads.next_broker(GROUP, READER, GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 1)) == 0


def test_the_kernel_is_asked_about_the_piece_ahead_and_once_a_second() -> None:
    place = Place(0.9)
    behind = Place.NEAR * 64
    for step in range(50):
        place.next_broker(behind - step * 1000)
    assert len(place.cache.asked) == 1
    start, size = place.cache.asked[0]
    offset = Place.END - behind
    ahead = offset + AHEAD_BYTES
    assert (start, size) == (ahead - ahead % PIECE_BYTES, PIECE_BYTES)
    place.clock.pass_ms(ASK_AGAIN_MS)
    place.next_broker(behind)
    assert len(place.cache.asked) == 2


def test_a_reader_that_came_back_is_not_sent_away_again_for_a_while() -> None:
    place = Place(0.0)
    assert place.next_broker(Place.NEAR * 9) == 7
    place.clock.pass_ms(1000)
    assert place.next_broker(Place.NEAR * 8) == 0
    assert place.next_broker(Place.NEAR * 8, reader=(2, "T", 0)) == 7
    place.clock.pass_ms(STAY_MS)
    assert place.next_broker(Place.NEAR * 7) == 7
    assert place.reads.sent_away == 3


# -- a slave


def test_a_slave_keeps_its_reader_until_the_master_has_its_pages() -> None:
    place = Place(1.0, role=Role.SLAVE)  # warm pages of its own, for it has read ahead
    assert place.next_broker(Place.NEAR + 1) == 7
    assert place.next_broker(Place.NEAR) == 0
    assert place.cache.asked == []


def test_a_slave_without_the_kernels_word_goes_by_the_estimate() -> None:
    place = Place(None, role=Role.SLAVE)
    assert place.next_broker(place.hot + 1) == 7
    assert place.next_broker(place.hot) == 0


def test_master_and_slave_never_send_a_reader_to_and_fro() -> None:
    """Whatever is in memory: behind both of them, a reader goes on with one."""
    for resident in (None, 0.0, 0.4, 0.6, 1.0):
        master, slave = Place(resident), Place(resident, role=Role.SLAVE)
        at, moves = 0, 0
        for behind in range(Place.NEAR * 100, 0, -Place.NEAR // 2):
            place = master if at == 0 else slave
            there = place.next_broker(behind)
            moves += there != at
            at = there
        assert at == 0
        assert moves <= 2, resident


def test_slaves_can_be_closed_to_readers() -> None:
    assert Place(role=Role.SLAVE).reads.refusal() is None
    assert Place(slave_read_enabled=False).reads.refusal() is None
    refused = Place(role=Role.SLAVE, slave_read_enabled=False).reads.refusal()
    assert refused is not None
    assert "[REJECTREQUEST]" in str(refused)


def test_what_is_remembered_has_a_bound_and_an_end() -> None:
    recent = Recent(1000)
    for number in range(REMEMBERED_MAX * 2):
        recent.note(number, number // REMEMBERED_MAX)
    assert 0 not in recent
    assert REMEMBERED_MAX * 2 - 1 in recent
    assert not recent.note("new", 2000)
    assert REMEMBERED_MAX * 2 - 1 not in recent
    assert recent.note("new", 2500)
    assert recent.note("new", 3400)  # counted from the last time


# -- pulls on a slave


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path, role=Role.SLAVE, broker_id=1) as kit:
        kit.topic("T", 4)
        yield kit


def put(kit: Kit, count: int, queue: int = 0) -> None:
    """As if the master had sent these."""
    host = pack_host("10.0.0.1", 10911)
    for number in range(count):
        kit.store.put(
            Draft(
                topic="T", queue_id=queue, body=b"%d" % number, properties=b"", born_ms=1,
                born_host=host, store_host=host,
            )
        )  # fmt: skip
    kit.dispatch()


def pull(
    kit: Kit, offset: int, *, suspend: bool = True, connection: FakeConnection | None = None,
    queue: int = 0,
) -> Command | None:  # fmt: skip
    ext = {
        "consumerGroup": "G", "topic": "T", "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(SUBSCRIPTION | (SUSPEND if suspend else 0)),
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return kit.ask(Command(11, ext, opaque=6), connection)


def outcome(answer: Command | None) -> tuple[int, str, str]:
    """Code, next offset and broker of an answer."""
    assert answer is not None
    ext = answer.ext or {}
    return answer.code, ext["nextBeginOffset"], ext["suggestWhichBrokerId"]


def test_a_slave_serves_what_it_has(slave: Kit) -> None:
    put(slave, 3)
    assert outcome(pull(slave, 1)) == (FOUND, "3", "0")


def test_a_pull_at_the_end_of_a_slave_waits_for_replicated_messages(slave: Kit) -> None:
    put(slave, 3)
    assert pull(slave, 3) is None
    put(slave, 1)
    [answer] = slave.connection.take()
    assert outcome(answer) == (FOUND, "4", "0")


@pytest.mark.parametrize("offset", [9, 100_000])
def test_a_reader_ahead_of_the_slave_is_sent_to_the_master_unmoved(slave: Kit, offset: int) -> None:
    put(slave, 3)
    assert outcome(pull(slave, offset)) == (RETRY, str(offset), "0")


def test_a_reader_of_a_queue_that_the_slave_lacks_is_sent_to_the_master(slave: Kit) -> None:
    assert outcome(pull(slave, 5, queue=2)) == (RETRY, "5", "0")


def test_a_reader_that_finds_no_master_waits_and_is_served_when_the_slave_has_its_place(
    slave: Kit,
) -> None:
    put(slave, 3)
    assert outcome(pull(slave, 5)) == (RETRY, "5", "0")
    assert pull(slave, 5) is None  # it came straight back
    put(slave, 2)
    assert slave.connection.take() == []  # the end is its place: nothing there yet
    put(slave, 1)
    [answer] = slave.connection.take()
    assert outcome(answer) == (FOUND, "6", "0")


def test_a_waiting_readers_time_ends_without_moving_it_and_it_waits_again(slave: Kit) -> None:
    put(slave, 3)
    pull(slave, 5)
    for _ in range(5):
        assert pull(slave, 5) is None
        slave.clock.pass_ms(15_500)
        slave.pulls.held.expire(slave.clock.monotonic_ms())
        [answer] = slave.connection.take()
        assert outcome(answer) == (NOTHING_NEW, "5", "0")


def test_a_reader_that_was_long_away_is_sent_to_the_master_once_more(slave: Kit) -> None:
    pull(slave, 5)
    slave.clock.pass_ms(LOST_MS)
    assert outcome(pull(slave, 5)) == (RETRY, "5", "0")


def test_a_reader_that_does_not_wait_is_told_that_there_is_nothing(slave: Kit) -> None:
    assert outcome(pull(slave, 5, suspend=False)) == (RETRY, "5", "0")
    assert outcome(pull(slave, 5, suspend=False)) == (NOTHING_NEW, "5", "0")


def test_two_readers_are_told_apart(slave: Kit) -> None:
    pull(slave, 5)
    other = FakeConnection()
    assert outcome(pull(slave, 5, connection=other)) == (RETRY, "5", "0")


def test_a_slave_may_be_told_to_move_readers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"role": Role.SLAVE, "broker_id": 1}
    with open_kit(tmp_path, **settings, offset_checked_in_slave=True) as kit:
        kit.topic("T", 4)
        put(kit, 3)
        assert outcome(pull(kit, 9)) == (MOVED, "3", "0")


def test_a_master_moves_readers(tmp_path: Path) -> None:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        put(kit, 3)
        assert outcome(pull(kit, 9)) == (MOVED, "3", "0")


def test_a_closed_slave_refuses_pulls_before_anything_else(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"role": Role.SLAVE, "broker_id": 1, "slave_read_enabled": False}
    with open_kit(tmp_path, **settings) as kit:
        answer = pull(kit, 0)
        assert answer is not None
        assert answer.code == 2
        assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
