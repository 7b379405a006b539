"""cluster/broker/standing/classicmaster.py and classicslave.py: what a master acknowledges, whom a slave follows."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from messagekit import UNIQUE, Kit, open_kit

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.classicslave import ClassicSlave
from tandemmq.cluster.broker.standing.hastatus import Following
from tandemmq.cluster.remoting.command import Command
from tandemmq.replication import StreamRules
from tandemmq.replication.frames import Dialect, Report, encode_slave_frame
from tandemmq.replication.link import Link
from tandemmq.storage import FlushMode, Owner, encode_properties

SLAVE_MS = 2_000
DISK_MS = 5_000


class FakeWire:
    """A slave's end of a stream, made by hand."""

    def __init__(self) -> None:
        self.inbox: list[bytes] = []
        self.sent = bytearray()
        self.closed = False

    def send(self, buffers: Any) -> int:
        data = b"".join(bytes(each) for each in buffers)
        self.sent += data
        return len(data)

    def send_file(self, head: Any, descriptor: int, position: int, size: int) -> int:
        raise NotImplementedError

    def receive(self) -> bytes | None:
        return self.inbox.pop(0) if self.inbox else None

    def wait_writable(self, wanted: bool) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class SlaveBeside:
    """A classic slave, connected to the master of a kit."""

    def __init__(self, group: Group, received: int | None = None) -> None:
        self.group = group
        self.wire = FakeWire()
        self.number = group.master.sender.attach(self.wire, "10.0.0.2:50000")
        self.report(group.kit.store.end if received is None else received)

    def report(self, received: int) -> None:
        self.wire.inbox.append(encode_slave_frame(Report(received), Dialect.CLASSIC))
        self.group.master.sender.readable(self.number)

    def catch_up(self) -> None:
        self.report(self.group.kit.store.end)

    def lose(self) -> None:
        self.wire.inbox.append(b"")
        self.group.master.sender.readable(self.number)


class Group:
    """A classic master over a real store, with time moved by hand."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        assert isinstance(kit.standing, ClassicMaster)
        self.master = kit.standing
        self.master._serving = True
        kit.store.belong_to(dataclasses.replace(kit.store.owner, confirmed=self.master.confirmed))
        kit.topic("T")
        self.queues = 0

    def send(self, **ext: Any) -> Command | None:
        """One message; its answer, if that does not wait."""
        answer = self.kit.send(e="0", **ext)
        self.master.sender.pump()
        return answer

    def flush(self) -> None:
        self.kit.store.flush_log(0)
        self.kit.release.flushed(self.kit.store.flushed)

    def pass_ms(self, duration_ms: int) -> None:
        """In steps, as the jobs of a broker see time."""
        for _ in range(duration_ms // 100):
            self.kit.clock.pass_ms(100)
            self.master.review()
            self.kit.acks.expire(self.kit.clock.monotonic_ms(), self.master.overdue)

    def answers(self) -> list[tuple[int, str, str]]:
        """Code, copies and durable of the answers that left meanwhile."""
        return [safety(answer) for answer in self.kit.connection.take()]

    @property
    def visible(self) -> int:
        self.kit.dispatch()
        return self.kit.store.max_offset("T", 0)


def safety(answer: Command | None) -> tuple[int, str, str]:
    assert answer is not None and answer.ext is not None
    assert int(answer.ext["epoch"]) == 0
    return answer.code, answer.ext["copies"], answer.ext["durable"]


@contextmanager
def group_of(root: Path, **settings: Any) -> Iterator[Group]:
    settings.setdefault("role", Role.SYNC_MASTER)
    with open_kit(root, **settings) as kit:
        yield Group(kit)


@pytest.fixture
def s0(tmp_path: Path) -> Iterator[Group]:
    with group_of(tmp_path) as group:
        yield group


@pytest.fixture
def s1(tmp_path: Path) -> Iterator[Group]:
    with group_of(tmp_path, storage={"flush_mode": FlushMode.SYNC}) as group:
        yield group


# -- who waits for what ---------------------------------------------------------------------


def test_async_master_waits_for_nobody(tmp_path: Path) -> None:
    with group_of(tmp_path, role=Role.ASYNC_MASTER) as group:
        slave = SlaveBeside(group)
        assert safety(group.send()) == (0, "1", "0")
        assert group.visible == 1
        assert slave.wire.sent  # and the slave gets it all the same


def test_async_master_with_sync_flush_says_that_its_disk_has_it(tmp_path: Path) -> None:
    settings = {"role": Role.ASYNC_MASTER, "storage": {"flush_mode": FlushMode.SYNC}}
    with group_of(tmp_path, **settings) as group:
        assert group.send() is None
        group.flush()
        assert group.answers() == [(0, "1", "1")]


def test_sync_master_answers_when_a_slave_has_the_message(s0: Group) -> None:
    slave = SlaveBeside(s0)
    assert s0.send() is None
    assert s0.visible == 0  # nobody may read what one failure could take away
    slave.catch_up()
    assert s0.answers() == [(0, "2", "0")]
    assert s0.visible == 1


def test_setting_says_how_many_copies_beyond_two(tmp_path: Path) -> None:
    with group_of(tmp_path, rules=StreamRules(copies_wanted=3)) as group:
        first = SlaveBeside(group)
        assert safety(group.send()) == (11, "1", "0")  # one slave is not enough
        second = SlaveBeside(group)
        assert group.send() is None
        first.catch_up()
        assert group.answers() == []
        second.catch_up()
        assert group.answers() == [(0, "3", "0")]


def test_who_does_not_want_to_wait_does_not(s0: Group) -> None:
    SlaveBeside(s0)
    answer = s0.send(i=encode_properties({"UNIQ_KEY": UNIQUE, "WAIT": "false"}).decode())
    assert safety(answer) == (0, "1", "0")


def test_without_a_slave_the_message_is_stored_and_the_answer_says_so(s0: Group) -> None:
    assert safety(s0.send()) == (11, "1", "0")
    assert s0.visible == 1
    slave = SlaveBeside(s0)
    assert s0.send() is None
    slave.catch_up()
    assert s0.answers() == [(0, "2", "0")]
    slave.lose()
    assert safety(s0.send()) == (11, "1", "0")
    assert s0.visible == 3


def test_slave_too_far_behind_is_none(tmp_path: Path) -> None:
    with group_of(tmp_path, rules=StreamRules(gap_bytes_max=1_000)) as group:
        slave = SlaveBeside(group)
        for _ in range(3):
            group.send()
        assert group.answers() == []
        while (answer := group.send()) is None:
            pass
        assert answer.code == 11
        slave.catch_up()
        assert {code for code, _, _ in group.answers()} == {0}
        assert group.send() is None


def test_late_slave_holds_up_senders_once_and_is_waited_for_again_when_it_has_caught_up(
    s0: Group,
) -> None:
    slave = SlaveBeside(s0)
    assert s0.send() is None
    s0.pass_ms(SLAVE_MS - 100)
    assert s0.answers() == [] and s0.visible == 0
    s0.pass_ms(100)
    assert s0.answers() == [(12, "1", "0")]
    assert s0.visible == 1  # stored, and nobody knows better any more
    for count in range(2, 5):
        assert safety(s0.send()) == (11, "1", "0")
        assert s0.visible == count

    s0.pass_ms(100)
    slave.catch_up()  # as far as the log was when it was found to be late, and on
    slave.catch_up()
    assert s0.send() is None
    slave.catch_up()
    assert s0.answers() == [(0, "2", "0")]


def test_late_slave_is_found_although_nobody_waits(s0: Group) -> None:
    SlaveBeside(s0)
    s0.send(flag=2)
    s0.pass_ms(100)
    assert s0.visible == 0
    s0.pass_ms(SLAVE_MS)
    assert s0.visible == 1
    assert safety(s0.send()) == (11, "1", "0")


def test_slave_that_keeps_pace_far_behind_is_not_late(s0: Group) -> None:
    slave = SlaveBeside(s0)
    ends = []
    for _ in range(100):
        s0.send()
        ends.append(s0.kit.store.end)
        s0.pass_ms(100)
        if len(ends) > 10:
            slave.report(ends[-10])  # a second behind, for ten seconds
    assert {code for code, _, _ in s0.answers()} == {0}


# -- with the disk ---------------------------------------------------------------------------


def test_with_sync_flush_disk_and_slave_must_both_have_it(s1: Group) -> None:
    slave = SlaveBeside(s1)
    assert s1.send() is None
    s1.flush()
    assert s1.answers() == [] and s1.visible == 0
    slave.catch_up()
    # what its disk has, a slave of RocketMQ's does not say
    assert s1.answers() == [(0, "2", "1")]
    assert s1.send() is None
    slave.catch_up()
    assert s1.answers() == [] and s1.visible == 1
    s1.flush()
    assert s1.answers() == [(0, "2", "1")]
    assert s1.visible == 2


def test_slow_disk_is_told_from_a_late_slave_whose_code_wins(s1: Group) -> None:
    slave = SlaveBeside(s1)
    assert s1.send() is None
    s1.pass_ms(SLAVE_MS)
    assert s1.answers() == [(12, "1", "0")]  # neither has it

    s1.flush()
    slave.catch_up()
    slave.catch_up()
    assert s1.send() is None
    slave.catch_up()
    s1.pass_ms(DISK_MS - 100)
    assert s1.answers() == []
    s1.pass_ms(100)
    assert s1.answers() == [(10, "2", "0")]


def test_with_sync_flush_and_no_slave_the_answer_comes_with_the_disk(s1: Group) -> None:
    assert s1.send() is None
    assert s1.visible == 0
    s1.flush()
    assert s1.answers() == [(11, "1", "1")]
    assert s1.visible == 1


# -- refusing ---------------------------------------------------------------------------------


def test_group_that_wants_copies_refuses_before_anything_is_stored(tmp_path: Path) -> None:
    with group_of(tmp_path, rules=StreamRules(copies_min=2)) as group:
        answer = group.send()
        assert answer is not None
        assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
        assert group.kit.records() == []
        slave = SlaveBeside(group)
        assert group.send() is None
        slave.lose()
        assert group.send() is not None
        assert len(group.kit.records()) == 1


def test_slave_that_claims_more_than_there_is_counts_for_nothing(
    s0: Group, caplog: pytest.LogCaptureFixture
) -> None:
    SlaveBeside(s0, received=s0.kit.store.end + 1)
    assert "beyond our end" in caplog.text
    assert safety(s0.send()) == (11, "1", "0")
    slave = SlaveBeside(s0)
    assert s0.send() is None
    slave.report(1 << 60)
    assert slave.wire.closed
    assert s0.answers() == []
    s0.pass_ms(SLAVE_MS)
    assert s0.answers() == [(12, "1", "0")]


# -- what operators see -------------------------------------------------------------------------


def test_ha_status_of_a_master_is_as_rocketmq_writes_it(s0: Group) -> None:
    slave = SlaveBeside(s0)
    s0.send()
    end = s0.kit.store.end
    status = s0.master.ha_status()
    assert status == {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": 0, "lastWriteTimestamp": 0,
            "masterFlushOffset": 0, "maxOffset": 0, "transferredByteInSecond": 0,
        },
        "haConnectionInfo": [
            {
                "addr": "10.0.0.2:50000", "diff": end, "inSync": True, "slaveAckOffset": 0,
                "transferFromWhere": end, "transferredByteInSecond": 0,
            }
        ],
        "inSyncSlaveNums": 1, "master": True, "masterCommitLogMaxOffset": end,
    }  # fmt: skip
    slave.catch_up()
    assert s0.master.ha_status()["haConnectionInfo"][0]["diff"] == 0


def test_lag_is_told_in_bytes_and_in_time(s0: Group) -> None:
    slave = SlaveBeside(s0)
    s0.pass_ms(1_000)
    s0.send()
    first_end = s0.kit.store.end
    s0.pass_ms(500)
    s0.send()
    s0.pass_ms(300)
    (lag,) = s0.master.slaves()
    assert (lag.behind_bytes, lag.behind_ms) == (s0.kit.store.end, 800)
    slave.report(first_end)
    (lag,) = s0.master.slaves()
    assert (lag.behind_bytes, lag.behind_ms) == (s0.kit.store.end - first_end, 300)
    slave.catch_up()
    (lag,) = s0.master.slaves()
    assert (lag.behind_bytes, lag.behind_ms) == (0, 0)


# -- slaves --------------------------------------------------------------------------------------


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[ClassicSlave]:
    with open_kit(tmp_path, role=Role.SLAVE, broker_id=1) as kit:
        assert isinstance(kit.standing, ClassicSlave)
        yield kit.standing


class FakeTransport:
    """A connection whose other end is silent."""

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass


class Dialled:
    """Masters that are there at once, whatever their address."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.links: list[Link] = []

    async def __call__(self, host: str, port: int, make: Callable[[], Link]) -> object:
        self.addresses.append(f"{host}:{port}")
        self.links.append(make())
        self.links[-1].connection_made(FakeTransport())  # type: ignore[arg-type]
        return None


@pytest.fixture
def dialled(slave: ClassicSlave, monkeypatch: pytest.MonkeyPatch) -> Dialled:
    found = Dialled()
    monkeypatch.setattr(slave.receiver, "_dial", found)
    return found


async def settled(slave: ClassicSlave) -> None:
    async with asyncio.timeout(5):
        while not slave.core.streaming:  # noqa: ASYNC110 - a turn of the loop, nothing announces it
            await asyncio.sleep(0)


async def test_slave_follows_whom_a_name_server_names_and_remembers_the_address(
    slave: ClassicSlave, dialled: Dialled
) -> None:
    slave.heard("10.0.0.1:10911", "10.0.0.1:10912")
    await settled(slave)
    assert slave.master == "10.0.0.1:10911"
    slave.heard(None, None)
    assert slave.master is None  # its tables are no longer copied; its log is still asked for
    slave.heard("10.0.0.1:10911", "10.0.0.1:10912")
    slave.heard("10.0.0.1:10911", "no address")
    slave.follow()
    await asyncio.sleep(0)
    assert dialled.addresses == ["10.0.0.1:10912"]
    assert slave.following == Following("10.0.0.1:10912", True, 1, "")


async def test_slave_leaves_no_stream_that_is_up_for_another_master(
    slave: ClassicSlave, dialled: Dialled
) -> None:
    slave.heard("10.0.0.1:10911", "10.0.0.1:10912")
    await settled(slave)
    slave.heard("10.0.0.9:10911", "10.0.0.9:10912")
    slave.follow()
    assert slave.core.streaming and dialled.addresses == ["10.0.0.1:10912"]
    slave.receiver.link_down(dialled.links[0], "gone")
    slave.follow()
    await settled(slave)
    assert dialled.addresses == ["10.0.0.1:10912", "10.0.0.9:10912"]


def test_configured_master_is_followed_whatever_name_servers_say(tmp_path: Path) -> None:
    with open_kit(
        tmp_path, role=Role.SLAVE, broker_id=1, ha_master_address="10.0.0.5:10912"
    ) as kit:
        slave = kit.standing
        assert isinstance(slave, ClassicSlave)
        slave.heard("10.0.0.1:10911", "10.0.0.1:10912")
        assert slave.following is not None and slave.following.address == "10.0.0.5:10912"
        assert slave.master == "10.0.0.1:10911"


def test_slave_lets_consumers_read_all_it_has(tmp_path: Path) -> None:
    with open_kit(tmp_path / "master") as master:
        master.send()
        with master.store.log.read(0, master.store.end) as data:  # type: ignore[union-attr]
            log = bytes(data)
    with open_kit(tmp_path / "slave", role=Role.SLAVE, broker_id=1) as kit:
        kit.store.belong_to(Owner(confirmed=kit.standing.confirmed))
        kit.store.append_raw(log, 0)
        assert kit.store.confirmed == kit.store.end == len(log) > 0
        assert kit.store.dispatch() == 1


def test_slave_takes_no_message_and_says_how_it_follows(slave: ClassicSlave) -> None:
    assert slave.refusal() is not None
    status = slave.ha_status()
    assert status["master"] is False and status["haConnectionInfo"] == []
    assert status["haClientRuntimeInfo"]["masterAddr"] == ""
    assert status["haClientRuntimeInfo"]["maxOffset"] == 0
