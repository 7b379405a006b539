"""Disks that fail and disks that are slow, as the broker's process meets them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from failing_disk import FailingDisk, compiler
from raw_wire import (
    HEART_BEAT,
    SEND,
    Wire,
    bodies,
    json_frame,
    lone_broker,
    producing,
    send_ext,
    send_one,
)

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(compiler() is None, reason="needs a C compiler for the failing disk"),
]

DISK_FAILED = 10  # exit code, docs/errors.md
SUCCESS, FLUSH_DISK_TIMEOUT, NOT_AVAILABLE = 0, 10, 14


def broker_on(disk: FailingDisk, directory: Path, **settings: object) -> Broker:
    return lone_broker(directory, settings, env=disk.env)


@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_failed_flush_ends_the_broker_and_what_was_acknowledged_is_kept(
    tmp_path: Path, mode: str
) -> None:
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(disk, tmp_path, flushDiskType=mode) as broker:
        broker.start()
        with producing(broker.address, "T") as load:
            time.sleep(0.3)
            disk.set(("fdatasync", errno.EIO, 0, "commitlog"))
            wait_until(lambda: disk.hits("fdatasync"), 5, "a flush fails")
            failed_at = len(load.acknowledged)
            wait_until(lambda: not broker.alive, 5, "the broker ends")
        assert broker.code == DISK_FAILED
        assert "the disk refused a flush" in broker.output().splitlines()[-1]
        assert disk.hits("fdatasync") == 1, "a flush is never tried again"
        if mode == "SYNC_FLUSH":
            assert len(load.acknowledged) <= failed_at + 1, "nothing is acknowledged after it"
        assert not (broker.store / "bootid").exists(), "the next start acts as after a power cut"
        disk.set()
        broker.start()
        assert load.acknowledged.items() <= bodies(broker.address, "T").items()
        assert send_one(broker.address, "T").code == SUCCESS
        assert broker.stop() == 0


def test_a_failed_flush_of_a_queue_ends_the_broker_too_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(
        disk, tmp_path, flushConsumeQueueThoroughInterval=200, flushIntervalConsumeQueue=100
    ) as broker:
        broker.start()
        with producing(broker.address, "T") as load:
            disk.set(("fdatasync", errno.EIO, 0, "consumequeue"))
            wait_until(lambda: not broker.alive, 5, "the broker ends")
        assert broker.code == DISK_FAILED
        disk.set()
        broker.start()
        assert load.acknowledged.items() <= bodies(broker.address, "T").items()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("topic", ["T", "%RETRY%G"])  # the short path and the long one
def test_a_failed_write_of_the_log_ends_the_broker_and_is_never_acknowledged(
    tmp_path: Path, code: int, topic: str
) -> None:
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(disk, tmp_path) as broker:
        broker.start()
        with producing(broker.address, topic) as load:
            time.sleep(0.2)
            disk.set(("pwrite", code, 0, "commitlog"))
            wait_until(lambda: disk.hits("pwrite"), 5, "a write fails")
            wait_until(lambda: not broker.alive, 5, "the broker ends")
        assert broker.code == DISK_FAILED, broker.tail()
        assert os.strerror(code) in broker.output().splitlines()[-1]
        assert load.refused == [], "INV-7: what a failed write left in the log is not known"
        disk.set()
        broker.start()
        found = bodies(broker.address, topic)
        assert load.acknowledged.items() <= found.items()
        assert sorted(found) == list(range(len(found)))
        assert len(found) <= len(load.acknowledged) + 1
        assert broker.stop() == 0


def test_slow_flushes_hold_acknowledgements_and_nothing_else(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(disk, tmp_path, flushDiskType="SYNC_FLUSH", syncFlushTimeout=400) as broker:
        broker.start()
        assert send_one(broker.address, "T", b"quick").code == SUCCESS
        disk.set(("fdatasync", 0, 1_500, "commitlog"))
        with Wire(broker.address) as sender, Wire(broker.address) as beating:
            began = time.monotonic()
            sender.send(json_frame(SEND, send_ext("T"), b"slow"))
            beats: list[float] = []
            while time.monotonic() - began < 1:
                asked = time.monotonic()
                assert (
                    beating.request(json_frame(HEART_BEAT, {}, b'{"clientID":"c"}')).code == SUCCESS
                )
                beats.append(time.monotonic() - asked)
                time.sleep(0.01)
            answer = sender.read()
            assert answer.code == FLUSH_DISK_TIMEOUT
            assert answer.ext["queueOffset"] == "1"
            assert max(beats) < 0.5, "heartbeats do not wait for the disk"
            assert disk.hits("fdatasync")
        disk.set()
        wait_until(lambda: send_one(broker.address, "T").code == SUCCESS, 10, "the disk is quick")
        assert bodies(broker.address, "T")[1] == b"slow", "stored, only its safety was unknown"
        assert broker.stop() == 0


def test_small_files_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    """Tables, checkpoint and queue state: the older ones stay true, and the next save brings them in line."""
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(
        disk, tmp_path, flushConsumerOffsetInterval=100, flushConsumeQueueThoroughInterval=100,
        flushIntervalConsumeQueue=100,
    ) as broker:  # fmt: skip
        broker.start()
        assert send_one(broker.address, "T").code == SUCCESS
        disk.set(("fsync", errno.EIO, 0, "config"), ("fsync", errno.ENOSPC, 0, "checkpoint"))
        beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
        with Wire(broker.address) as wire:
            wire.send(json_frame(HEART_BEAT, {}, beat))
            with producing(broker.address, "T") as load:
                wait_until(lambda: disk.hits("fsync") > 3, 5, "saves fail")
        assert not load.refused
        for _ in range(3):  # a topic is on the disk before anything in it is acknowledged
            refused = send_one(broker.address, "NewTopic")
            assert (refused.code, refused.remark) == (
                NOT_AVAILABLE, "topic NewTopic cannot be saved: Input/output error"
            )  # fmt: skip
        assert broker.alive
        disk.set()
        assert send_one(broker.address, "NewTopic").code == SUCCESS
        wait_until(
            lambda: '"G"' in (broker.store / "config" / "subscriptionGroup.json").read_text(),
            5,
            "the group is saved",
        )
        broker.kill()
        broker.start()
        assert load.acknowledged.items() <= bodies(broker.address, "T").items()


def test_a_disk_that_fails_while_the_broker_stops_is_reported(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "shim", tmp_path / "store")
    with broker_on(disk, tmp_path, flushIntervalCommitLog=60_000) as broker:
        broker.start()
        answer = send_one(broker.address, "T", b"kept")
        assert answer.code == SUCCESS
        disk.set(("fdatasync", errno.EIO, 0, "commitlog"))
        assert broker.stop() == DISK_FAILED
        assert (broker.store / "abort").exists(), "this was no clean stop"
        disk.set()
        broker.start()
        assert bodies(broker.address, "T") == {0: b"kept"}, "the page cache had it after all"
