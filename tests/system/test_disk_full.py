"""A disk that really is full: refuse before the append, serve the rest, go on by itself when space returns."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from raw_wire import (
    HEART_BEAT,
    Load,
    Wire,
    bodies,
    json_frame,
    lone_broker,
    producing,
    send_one,
)

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

pytestmark = pytest.mark.system

SUCCESS, NOT_AVAILABLE = 0, 14
UPDATE_OFFSET, QUERY_OFFSET = 15, 14
MIB = 1 << 20
RECOVERY_S = 10


@contextmanager
def small_disk(directory: Path, mib: int) -> Iterator[Path]:
    """A file system of a few MiB that knows fallocate. Skips where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    directory.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(directory)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"cannot mount tmpfs: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def fill(disk: Path, leave: int = 0) -> Path:
    """Takes all space but `leave` bytes, whoever else writes meanwhile."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (MIB, 64 << 10, 4 << 10):
            while free_bytes(disk) >= leave + size:
                try:
                    file.write(b"z" * size)
                except OSError:
                    break  # the broker was quicker
    return filler


def broker_on(disk: Path, directory: Path, **settings: object) -> Broker:
    small = {
        "mappedFileSizeCommitLog": MIB, "cleanResourceInterval": 300, "flushConsumerOffsetInterval": 200,
        "messageIndexEnable": "true", "mappedFileSizeConsumeQueue": 4_000,
    }  # fmt: skip
    return lone_broker(directory, {**small, **settings}, store=disk / "store")


def serves_readers(broker: Broker, load: Load) -> None:
    """Pulls, heartbeats and commits go on; what was acknowledged is there."""
    acknowledged = dict(load.acknowledged)
    found = bodies(broker.address, load.topic)
    assert found.items() <= acknowledged.items()
    # A queue's next file may be missing too: then the last message waits for it, and only that one.
    assert acknowledged.keys() - found.keys() <= {len(acknowledged) - 1}
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    with Wire(broker.address) as wire:
        wire.send(json_frame(HEART_BEAT, {}, beat))
        while not (answer := wire.read()).header["flag"] & 1:
            pass  # the group hears of its new member
        assert answer.code == SUCCESS, answer.remark
        place = {"consumerGroup": "CG", "topic": load.topic, "queueId": "0"}
        number = str(len(acknowledged))
        committed = wire.request(json_frame(UPDATE_OFFSET, {**place, "commitOffset": number}))
        assert committed.code == SUCCESS, committed.remark
        assert wire.request(json_frame(QUERY_OFFSET, place)).ext["offset"] == number


def refused_with_14(load: Load) -> bool:
    """Whether sends are refused now; each refusal says why in words."""
    seen = len(load.refused)
    wait_until(lambda: len(load.refused) > seen + 3 or load.problem, 5, "sends are refused")
    assert load.problem is None
    for code, remark in load.refused:
        assert code == NOT_AVAILABLE, remark
        assert "the store refuses writes" in remark or "no space" in remark, remark
    return True


@pytest.mark.parametrize(
    ("ratio", "why"),
    [
        (90, "diskSpaceWarningLevelRatio"),  # the look at the disk finds it
        (100, "no space"),  # only posix_fallocate does
    ],
)
def test_full_disk_refuses_sends_serves_readers_and_recovers(
    tmp_path: Path, ratio: int, why: str
) -> None:
    with (
        small_disk(tmp_path / "disk", 32) as disk,
        broker_on(disk, tmp_path, diskSpaceWarningLevelRatio=ratio, diskSpaceCleanForciblyRatio=ratio) as broker,
    ):  # fmt: skip
        broker.start()
        with producing(broker.address, "T", body=b"x" * 4_000) as load:
            for _ in range(2):  # twice: it comes back as well as before
                filled_at = time.monotonic()
                filler = fill(disk)
                wait_until(lambda: load.refused or load.problem, 10, "the disk is full")
                assert refused_with_14(load)
                wait_until(lambda: why in load.refused[-1][1], 5, f"the reason is {why}")
                serves_readers(broker, load)
                assert free_bytes(disk) < 2 * MIB, "it was full all the time"
                assert time.monotonic() - filled_at < 15
                number = len(load.acknowledged)
                filler.unlink()
                wait_until(
                    lambda n=number: len(load.acknowledged) > n or load.problem,
                    RECOVERY_S,
                    "sends succeed again",
                )
                load.refused.clear()
        assert load.problem is None
        assert "Traceback" not in broker.output()
        assert load.acknowledged.items() <= bodies(broker.address, "T").items()
        assert broker.stop() == 0
        broker.start()
        assert load.acknowledged.items() <= bodies(broker.address, "T").items()


def test_a_disk_that_fills_up_right_after_the_start_is_cleaned_at_once(tmp_path: Path) -> None:
    """Files go when queues are known to be on the disk; that was first looked at a minute after the start."""
    with (
        small_disk(tmp_path / "disk", 32) as disk,
        broker_on(disk, tmp_path, diskSpaceCleanForciblyRatio=60, diskMaxUsedSpaceRatio=50) as broker,
    ):  # fmt: skip
        broker.start()
        began = time.monotonic()
        with producing(broker.address, "T", body=b"x" * 40_000) as load:
            wait_until(
                lambda: len(load.acknowledged) * 40_000 > 60 * MIB or load.problem, 40, "it goes on"
            )
            assert load.problem is None
            print(
                f"{time.monotonic() - began:.1f} s for twice the disk, refused {len(load.refused)}"
            )
        assert broker.stop() == 0
        assert broker.output().count("next segment not made yet") <= 3


def test_kill_on_a_full_disk_loses_nothing_and_the_start_says_what_it_needs(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 32) as disk,
        broker_on(disk, tmp_path, diskSpaceWarningLevelRatio=100, diskSpaceCleanForciblyRatio=100) as broker,
    ):  # fmt: skip
        broker.start()
        with producing(broker.address, "T", body=b"x" * 4_000) as load:
            wait_until(lambda: len(load.acknowledged) > 200, 10, "some messages")
            filler = fill(disk)
            wait_until(lambda: load.refused or load.problem, 10, "the disk is full")
            broker.kill()
        broker.launch()
        try:
            wait_until(lambda: not broker.alive or broker.ready(), 15, "started or refused")
            if broker.alive:
                assert load.acknowledged.items() <= bodies(broker.address, "T").items()
                assert send_one(broker.address, "T", b"y" * 100_000).code in (
                    SUCCESS,
                    NOT_AVAILABLE,
                )
            else:
                assert broker.code in (1, 9), broker.tail()
                assert "space" in broker.output().splitlines()[-1], broker.tail()
        finally:
            broker.abandon()
        filler.unlink()
        broker.start()
        found = bodies(broker.address, "T")
        assert load.acknowledged.items() <= found.items()
        assert sorted(found) == list(range(len(found)))
        assert send_one(broker.address, "T").code == SUCCESS
        assert broker.stop() == 0


def test_new_topics_and_tables_on_a_full_disk_fail_cleanly(tmp_path: Path) -> None:
    """Small files cannot be written: no half of one is left, and none is lost."""
    with (
        small_disk(tmp_path / "disk", 32) as disk,
        broker_on(disk, tmp_path, diskSpaceWarningLevelRatio=100, diskSpaceCleanForciblyRatio=100) as broker,
    ):  # fmt: skip
        broker.start()
        assert send_one(broker.address, "Before").code == SUCCESS
        topics = (broker.store / "config" / "topics.json").read_bytes()
        filler = fill(disk)
        for number in range(20):
            answer = send_one(broker.address, f"During{number}")
            assert answer.code == NOT_AVAILABLE and "space" in answer.remark, answer
        assert (broker.store / "config" / "topics.json").read_bytes() == topics
        assert not list((broker.store / "config").glob("*.new"))
        assert bodies(broker.address, "Before") == {0: b"one"}
        filler.unlink()
        assert send_one(broker.address, "After").code == SUCCESS
        broker.kill()
        broker.start()
        assert bodies(broker.address, "Before") == bodies(broker.address, "After") == {0: b"one"}
