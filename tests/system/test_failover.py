"""One replicated group as real processes: the master dies, freezes or hands over under steady sends of our client."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaos.groups import Group, GroupPlan, GroupView, Replica
from chaos.replicalogs import ReplicaLog, differences, read_cuts, read_log
from cluster.remoting.codes import RequestCode, ResponseCode
from cluster.remoting.command import Command
from replication import LeaseTimes
from storage import fastjson
from tandemmq import ClientError, Message, Producer, SendStatus

pytestmark = pytest.mark.system

TOPIC = "Failover"
PROBED = "Probed"
QUEUES = 4
LANES = 8


@dataclass(slots=True)
class Steady:
    """Lanes that send one message after the other, and what came of each."""

    producer: Producer
    acknowledged: list[tuple[float, str]] = field(default_factory=list)  # when, message id
    failed: list[tuple[float, str]] = field(default_factory=list)  # when, why
    unsafe: list[str] = field(default_factory=list)

    async def lane(self, number: int) -> None:
        for count in itertools.count():
            try:
                body = f"{number}-{count}".encode()
                result = await self.producer.send(Message(TOPIC, body, tags="t"))
            except ClientError as problem:
                self.failed.append((time.monotonic(), str(problem)))
                await asyncio.sleep(0.002)
                continue
            if result.status is SendStatus.SEND_OK:
                self.acknowledged.append((time.monotonic(), result.message_id))
            else:
                self.unsafe.append(result.message_id)
            await asyncio.sleep(0.002)

    def first_after(self, when: float) -> float | None:
        """Seconds from `when` until the first acknowledgement behind it."""
        return next((at - when for at, _ in self.acknowledged if at > when), None)

    def pause_after(self, when: float, until: float) -> float:
        """The longest time without an acknowledgement in between, in seconds."""
        times = [when, *(at for at, _ in self.acknowledged if when < at < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@asynccontextmanager
async def group_of(directory: Path, plan: GroupPlan) -> AsyncIterator[Group]:
    async with Group(directory, plan) as group:
        await group.start()
        await group.create_topic(TOPIC, QUEUES)
        yield group


@asynccontextmanager
async def sending(group: Group, *, retries: int = 0) -> AsyncIterator[Steady]:
    """retries 0: each message is sent once, so it may be in the log once at most."""
    async with Producer(
        "PG", namesrv=group.name_server_address, retries=retries, timeout_ms=15_000
    ) as producer:
        steady = Steady(producer)
        await eventually(lambda: routed(group), 10, "no route")
        lanes = [asyncio.create_task(steady.lane(number)) for number in range(LANES)]
        try:
            await eventually(lambda: done(len(steady.acknowledged) > 50), 10, "nothing is sent")
            yield steady
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)


async def done(holds: bool) -> bool:
    return holds


async def routed(group: Group) -> bool:
    addresses = await group.addresses(TOPIC)
    return addresses is not None and 0 in addresses


async def eventually(
    holds: Callable[[], object], within_s: float, what: str, *, every_s: float = 0.005
) -> None:
    deadline = time.monotonic() + within_s
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(every_s)


async def roles(group: Group) -> tuple[Replica, Replica, GroupView]:
    """Master and slave of a whole group."""
    view = await group.whole()
    assert view.master is not None
    master = group.replica_at(view.master)
    (slave,) = (each for each in group.replicas if each is not master)
    return master, slave, view


async def state(group: Group, replica: Replica) -> dict[str, str]:
    """A broker's runtime table."""
    ask = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await group.pool.request(replica.address, ask, 3_000)
    table = fastjson.loads(bytes(answer.body or b"{}"))["table"]
    return {str(key): str(value) for key, value in table.items()}


def one_send() -> Command:
    ext = {
        "a": "PG", "b": PROBED, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, ext, b"probe")


async def writable(group: Group, replica: Replica) -> float:
    """Send to this one replica, as fast as it answers, until it takes a message; when that was."""
    deadline = time.monotonic() + 10
    while True:
        answer = await group.pool.request(replica.address, one_send(), 3_000)
        if answer.code == ResponseCode.SUCCESS:
            return time.monotonic()
        assert time.monotonic() < deadline, f"not writable: {answer.code} {answer.remark}"
        await asyncio.sleep(0.002)


async def stopped(group: Group) -> list[ReplicaLog]:
    """Stop everything in good order; what the replicas' files hold."""
    for replica in group.replicas:
        await replica.terminate()
        assert replica.code == 0, replica.tail()
    return [read_log(replica.store, frozenset({TOPIC})) for replica in group.replicas]


def identities(log: ReplicaLog) -> Counter[str]:
    return Counter(each.unique_id for stored in log.queues.values() for each in stored)


def check_kept(group: Group, logs: list[ReplicaLog], steady: Steady) -> None:
    """Every acknowledged message is in every log, once; the logs are one."""
    for log in logs:
        assert log.problems == []
        found = identities(log)
        missing = [each for _, each in steady.acknowledged if each not in found]
        assert missing == [], f"{len(missing)} of {len(steady.acknowledged)} lost"
        assert max(found.values()) == 1
        for stored in log.queues.values():
            assert [each.queue_offset for each in stored] == list(range(len(stored)))
    end = min(log.end for log in logs)
    stores = [replica.store for replica in group.replicas]
    assert list(differences(stores, 0, end)) == []


async def test_the_slave_takes_over_from_a_killed_master_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, before = await roles(group)
        async with sending(group) as steady:
            killed = time.monotonic()
            master.signal_kill()
            takeover_s = await writable(group, slave) - killed
            print(f"writable {takeover_s * 1000:.0f} ms after kill -9")
            assert takeover_s < 2  # a quiet machine takes 0.05 s
            await master.gone()
            await eventually(lambda: steady.first_after(killed + takeover_s), 5, "not found")
            alone = await group.view()
            assert alone is not None and alone.in_sync == {slave.address}
            master.launch()
            _, _, after = await roles(group)
            assert after.master == slave.address and after.epoch == before.epoch + 1
            assert not steady.unsafe
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def test_a_frozen_master_is_replaced_by_its_lease_and_acknowledges_nothing_when_it_wakes(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, _ = await roles(group)
        async with sending(group) as steady:
            frozen = time.monotonic()
            await master.pause()
            takeover_s = await writable(group, slave) - frozen
            print(f"writable {takeover_s * 1000:.0f} ms after SIGSTOP")
            lease_s = LeaseTimes().lease_ms / 1000
            assert lease_s <= takeover_s + LeaseTimes().heartbeat_ms / 1000
            assert takeover_s < 2 * lease_s
            await master.resume()
            answer = await group.pool.request(master.address, one_send(), 3_000)
            assert answer.code != ResponseCode.SUCCESS
            _, _, after = await roles(group)
            assert after.master == slave.address
            behind = time.monotonic()
            await eventually(lambda: steady.first_after(behind), 5, "no send after the takeover")
        assert (await state(group, master))["replicaState"] == "following"
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def switched_over(group: Group, successor: int) -> float:
    """Hand over; when it was asked for. A slave that is too slow is asked again: nobody noticed."""
    ext = {
        "clusterName": group.plan.cluster,
        "brokerName": group.plan.name,
        "brokerId": str(successor),
        "designateElect": "true",
    }
    deadline = time.monotonic() + 10
    while True:
        asked = time.monotonic()
        ask = Command(RequestCode.CONTROLLER_ELECT_MASTER, dict(ext))
        answer = await group.pool.request(group.controller_address, ask, 5_000)
        if answer.code == ResponseCode.SUCCESS:
            return asked
        assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, answer.remark
        assert time.monotonic() < deadline, answer.remark


async def test_a_planned_switchover_fails_no_send(tmp_path: Path) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        _, slave, view = await roles(group)
        successor = next(each for each in view.members if each.address == slave.address)
        async with sending(group, retries=2) as steady:
            asked = await switched_over(group, successor.broker_id)
            await asyncio.sleep(1.5)
            pause_s = steady.pause_after(asked, asked + 1.5)
            print(f"nothing acknowledged for {pause_s * 1000:.0f} ms while the master changed")
            assert steady.failed == []
            assert steady.unsafe == []
            assert pause_s < 1.5
            _, _, after = await roles(group)
            assert after.master == slave.address and after.epoch == view.epoch + 1
        logs = await stopped(group)
        check_kept(group, logs, steady)


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_master_that_is_told_to_stop_hands_over_first(
    tmp_path: Path, synchronous: bool
) -> None:
    """So not even an asynchronous group loses anything when its machines are restarted one by one."""
    async with group_of(tmp_path, GroupPlan(synchronous=synchronous)) as group:
        master, slave, _ = await roles(group)
        async with sending(group, retries=2) as steady:
            asked = time.monotonic()
            await master.terminate()
            assert master.code == 0, master.tail()
            await eventually(lambda: steady.first_after(time.monotonic() - 0.1), 5, "no send")
            pause_s = steady.pause_after(asked, time.monotonic())
            print(f"nothing acknowledged for {pause_s * 1000:.0f} ms while the master stopped")
            assert (steady.failed, steady.unsafe) == ([], [])
            master.launch()
            _, _, after = await roles(group)
            assert after.master == slave.address
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def test_a_frozen_slave_stalls_senders_once_leaves_the_set_and_comes_back(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, view = await roles(group)
        async with sending(group) as steady:
            await slave.pause()
            frozen = time.monotonic()
            await eventually(lambda: steady.first_after(frozen + 0.2), 10, "stalled for good")
            await asyncio.sleep(1)
            stall_s = steady.pause_after(frozen, time.monotonic())
            print(f"a frozen slave stalled senders for {stall_s * 1000:.0f} ms")
            assert stall_s < 2.6  # slaveTimeout, and a loaded machine
            alone = await group.view()
            assert alone is not None and alone.in_sync == {master.address}
            assert (await state(group, master))["syncStateSet"].count(",") == 0
            assert not steady.failed
            await slave.resume()
            _, _, after = await roles(group)
            assert (after.master, after.epoch) == (master.address, view.epoch)
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def test_what_an_asynchronous_master_takes_with_it_is_set_aside_counted_and_reported(
    tmp_path: Path,
) -> None:
    plan = GroupPlan(
        synchronous=False,
        settings={"haMaxTimeSlaveNotCatchup": 20_000, "mappedFileSizeCommitLog": 16 << 20},
    )
    async with group_of(tmp_path, plan) as group:
        master, slave, _ = await roles(group)
        async with sending(group) as steady:
            await slave.pause()
            large = [
                steady.producer.send(Message(TOPIC, os.urandom(256 << 10), tags="t"))
                for _ in range(120)  # more than two sockets hold
            ]
            results = await asyncio.gather(*large)
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            lag = int((await state(group, master))["confirmOffset"])
            assert lag > 0
            await master.kill()
            killed = time.monotonic()
            await slave.resume()
            await eventually(lambda: steady.first_after(killed + 0.2), 10, "not writable")
        acknowledged = [each for _, each in steady.acknowledged]
        acknowledged += [result.message_id for result in results]
        master.launch()
        await roles(group)
        table = await state(group, master)
        logs = await stopped(group)
    kept = identities(logs[0])
    lost = [each for each in acknowledged if each not in kept]
    assert lost, "the slave had everything: nothing was shown"
    (cut,) = read_cuts(master.store, frozenset({TOPIC}))
    assert set(lost) <= {each for each in cut.unique_ids}
    assert int(table["setAsideRecords"]) == cut.reported == cut.found >= len(lost)
    assert f":{cut.start}-{cut.end}" in table["setAsideRanges"]
    assert f"records={cut.found} from={cut.start} to={cut.end}" in master.tail(100_000)
    assert identities(logs[1]) == kept
