"""A classic master that a power cut left with a shorter log than its slave's: INV-36 by real processes."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from raw_wire import SEND, Wire, bodies, json_frame, send_ext, topic_names
from test_classic_group import TOPIC, Group, group_of, runtime, send, status

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

pytestmark = pytest.mark.system

BODY_BYTES = 400


def send_many(broker: Broker, name: str, count: int) -> dict[bytes, int]:
    """Body of each message -> code of its answer."""
    codes = {}
    with Wire(broker.address) as wire:
        for number in range(count):
            body = f"{name}-{number}".encode().ljust(BODY_BYTES, b".")
            codes[body] = wire.request(json_frame(SEND, send_ext(TOPIC), body)).code
    return codes


def log_end(broker: Broker) -> int:
    return int(runtime(broker)["commitLogMaxOffset"])


def cut_power(master: Any, kept: int) -> None:
    """What a power cut does to the store of a dead broker: so many bytes of the log were on the disk."""
    for segment in (master.store / "commitlog").iterdir():
        size, start = segment.stat().st_size, int(segment.name)
        if start + size > kept:
            with segment.open("r+b") as file:
                file.truncate(max(0, kept - start))
                file.truncate(size)
    assert (master.store / "abort").exists(), "it was not killed"
    pid = (master.store / "abort").read_text()
    (master.store / "bootid").write_text(f"{pid} another-boot")


def promoted(stack: ExitStack, group: Group, root: Path) -> Broker:
    """As docs/howto/classic-replication.md has it when the master is gone for good."""
    group.master.kill()
    assert group.slave.stop() == 0
    return stack.enter_context(
        Broker(
            root / "new",
            group.names.address,
            store=group.slave.store,
            settings={"brokerRole": "ASYNC_MASTER"},
        )
    ).start()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"], ids=["S0", "S1"])
@pytest.mark.parametrize("restarted", [False, True], ids=["slave-stays", "slave-restarts"])
def test_a_slave_whose_master_came_back_shorter_is_never_counted_again(
    tmp_path: Path, flush: str, restarted: bool
) -> None:
    with group_of(tmp_path, "SYNC_MASTER", flushDiskType=flush) as group, ExitStack() as stack:
        before = send_many(group.master, "before", 20)
        assert set(before.values()) == {0}
        kept = log_end(group.master)
        lost = send_many(group.master, "only-the-slave-keeps-it", 10)
        assert set(lost.values()) == {0}
        wait_until(group.caught_up, 10, "the slave has everything")
        wait_until(lambda: TOPIC in topic_names(group.slave.address), 20, "the topic is copied")
        end = log_end(group.slave)
        group.master.kill()
        cut_power(group.master, kept)
        group.master.start()
        assert log_end(group.master) == kept

        after: dict[bytes, int] = {}
        while log_end(group.master) <= end + 10 * BODY_BYTES:
            after |= send_many(group.master, f"after-{len(after)}", 5)
        if restarted:
            group.slave.kill()
            group.slave.start()
        until = time.monotonic() + 5  # a slave tries again every 2 s at most
        while time.monotonic() < until:
            after |= send_many(group.master, f"after-{len(after)}", 1)
            time.sleep(0.1)
        assert status(group.master)["inSyncSlaveNums"] == 0
        assert set(after.values()) == {11}

        # told to whoever looks at the slave, once and not every second
        told = re.findall(r"ERROR.*a person must act.*", group.slave.output())
        assert len(told) in (1, 2), group.slave.tail()
        assert log_end(group.slave) == end

        new = promoted(stack, group, tmp_path)
        kept_bodies = set(bodies(new.address, TOPIC).values())
        acknowledged = {each for each, code in (before | lost | after).items() if code == 0}
        assert acknowledged - kept_bodies == set()


@pytest.mark.parametrize("word", ["seeded", "cut"])
def test_a_slave_is_counted_again_when_its_operator_has_it_seeded_or_cut(
    tmp_path: Path, word: str
) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        send_many(group.master, "before", 5)
        kept = log_end(group.master)
        send_many(group.master, "lost", 5)
        group.master.kill()
        cut_power(group.master, kept)
        group.master.start()
        send_many(group.master, "after", 20)
        wait_until(lambda: "a person must act" in group.slave.output(), 20, "the slave stops")
        assert send(group.master).code == 11
        group.slave.kill()
        if word == "seeded":
            group.slave.store.rename(tmp_path / "moved-away")
        else:
            (group.slave.store / "cut-to-master").touch()
        group.slave.start()
        group.wait_streaming()
        if word == "cut":
            assert "log parted from the master's, set aside records=5" in group.slave.output()
        assert send(group.master).code == 0
        group.identical()


def test_a_healthy_pair_goes_on_after_a_power_cut_that_took_nothing(tmp_path: Path) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        send_many(group.master, "before", 5)
        kept = log_end(group.master)
        group.master.kill()
        cut_power(group.master, kept)
        group.master.start()
        group.wait_streaming()
        assert send(group.master).code == 0
        # and the other way round: a slave that lost its end asks for it again
        end = log_end(group.slave)
        send_many(group.master, "more", 5)
        group.slave.kill()
        cut_power(group.slave, end)
        group.slave.start()
        group.wait_streaming()
        assert send(group.master).code == 0
        group.identical()
