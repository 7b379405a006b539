"""One replicated group as real processes: the master dies, freezes or hands over under steady sends of our client."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from steady_sends import (
    QUEUES,
    TOPIC,
    Steady,
    eventually,
    group_of,
    one_send,
    roles,
    sending,
    state,
    writable,
)
from test_disk_full import fill, small_disk

from tandemmq import Message, SendStatus
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.replicalogs import ReplicaLog, blocks, read_cuts, read_log
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.replication import LeaseTimes

pytestmark = pytest.mark.system


async def stopped(group: ReplicaGroup) -> list[ReplicaLog]:
    """Stop everything in good order; what the replicas' files hold."""
    for replica in group.replicas:
        await replica.terminate()
        assert replica.code == 0, replica.tail()
    return [read_log(replica.store, frozenset({TOPIC})) for replica in group.replicas]


def identities(log: ReplicaLog) -> Counter[str]:
    return Counter(each.unique_id for stored in log.queues.values() for each in stored)


def check_kept(group: ReplicaGroup, logs: list[ReplicaLog], steady: Steady) -> None:
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
    first, *others = (b"".join(each for _, each in blocks(store, 0, end)) for store in stores)
    assert all(other == first for other in others)


async def test_the_slave_takes_over_from_a_killed_master_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, before = await roles(group)
        async with sending(group) as steady:
            killed = time.monotonic()
            master.signal(signal.SIGKILL)
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


async def test_a_group_goes_on_while_its_controller_is_dead(tmp_path: Path) -> None:
    # INV-23: its name server and controller are killed under load, stay away for four leases, and come back
    async with group_of(tmp_path, GroupPlan()) as group:
        master, _, before = await roles(group)
        async with sending(group) as steady:
            await group.name_server.kill()
            killed = time.monotonic()
            await asyncio.sleep(4 * LeaseTimes().lease_ms / 1000)
            back = time.monotonic()
            group.name_server.launch()
            _, _, after = await roles(group)
            await asyncio.sleep(1)
            pause_s = steady.pause_after(killed, time.monotonic())
            print(f"nothing acknowledged for {pause_s * 1000:.0f} ms at most")
            assert (steady.failed, steady.unsafe) == ([], [])
            assert pause_s < 1
            assert len([at for at, _ in steady.acknowledged if killed + 2.5 < at < back]) > 100
            assert (after.master, after.epoch) == (master.address, before.epoch)
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def test_what_waits_at_a_demotion_is_called_stored_and_its_fate_unknown(
    tmp_path: Path,
) -> None:
    # INV-7: some of it may be in the next master's log, so "not stored" would be a lie
    plan = GroupPlan(settings={"slaveTimeout": 20_000, "haMaxTimeSlaveNotCatchup": 20_000})
    async with group_of(tmp_path, plan) as group:
        master, slave, _ = await roles(group)
        assert (await group.pool.request(master.address, one_send(), 3_000)).code == 0
        await slave.pause()
        channel = await group.pool.get(master.address)
        pending = [channel.request_nowait(one_send(), 30_000) for _ in range(20)]
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in pending)
        await master.pause()
        await (
            slave.kill()
        )  # and what lay unread in its sockets: else it had them, and they were acknowledged
        slave.launch()
        await writable(group, slave)
        await master.resume()
        answers = await asyncio.gather(*pending)
        print(Counter(f"{each.code} {each.remark}" for each in answers))
        for answer in answers:
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert (answer.remark or "").startswith("stored, fate unknown")
            assert (answer.ext or {})["msgId"] and (answer.ext or {})["copies"] == "1"


async def switched_over(group: ReplicaGroup, successor: int) -> float:
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
            assert "handing over before the stop" in master.tail()
            assert "no successor serves yet" not in master.tail()
            await eventually(lambda: steady.first_after(time.monotonic() - 0.1), 5, "no send")
            pause_s = steady.pause_after(asked, time.monotonic())
            print(f"nothing acknowledged for {pause_s * 1000:.0f} ms while the master stopped")
            assert (steady.failed, steady.unsafe) == ([], [])
            master.launch()
            _, _, after = await roles(group)
            assert after.master == slave.address
        logs = await stopped(group)
        check_kept(group, logs, steady)


async def test_a_master_with_a_full_disk_hands_over_to_who_has_space_and_two_do_not_take_turns(
    tmp_path: Path,
) -> None:
    plan = GroupPlan(settings={"cleanResourceInterval": 300})
    async with ReplicaGroup(tmp_path, plan) as group:
        with small_disk(group.replicas[0].store, 32), small_disk(group.replicas[1].store, 32):
            await group.start()
            await group.create_topic(TOPIC, QUEUES)
            master, slave, before = await roles(group)
            async with sending(group) as steady:
                fill(master.store)
                full = time.monotonic()
                await eventually(lambda: routed_to(group, slave), 10, "nobody takes over")
                print(f"handed over after {time.monotonic() - full:.1f} s")
                behind = time.monotonic()
                await eventually(lambda: steady.first_after(behind), 5, "no send")
            assert "no space on this disk, asking to hand over" in master.tail()
            fill(slave.store)
            await asyncio.sleep(10)
            after = await group.view()
            assert after is not None
            assert (after.master, after.epoch) == (slave.address, before.epoch + 1)
            (master.store / "filler").unlink()
            (slave.store / "filler").unlink()
            await eventually(lambda: whole_again(group), 20, "not whole")
            logs = await stopped(group)
            check_kept(group, logs, steady)
            await group.close()


async def routed_to(group: ReplicaGroup, replica: ReplicaProcess) -> bool:
    return ((await group.addresses(TOPIC)) or {}).get(0) == replica.address


async def whole_again(group: ReplicaGroup) -> bool:
    view = await group.view()
    return view is not None and len(view.in_sync) == len(group.replicas)


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
