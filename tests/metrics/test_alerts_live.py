"""Each alert is fired by its real cause, and resolves when that is gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from watched import Prometheus, Traffic
from watchedcluster import TOPIC, LocalCluster

from tandemmq.chaos.faults.failing_disk import FailingDisk, compiler
from tandemmq.chaos.processes import wait_until

pytestmark = pytest.mark.usefixtures("stalled")  # from the start: it takes its time

DISK_MIB: Final = 64


@pytest.fixture(scope="module")
def stalled(prometheus: Prometheus, cluster: LocalCluster) -> Traffic:
    """A consumer that stands still from now on and keeps its connection: what it misses grows old meanwhile."""
    sleeper = cluster.traffic("sleeper", "consume", cluster.namesrv, TOPIC, "sleepers")
    committed = 'rocketmq_consumer_offset{group="sleepers"} > 0'
    wait_until(lambda: prometheus.ask(committed), 60, "it has committed something", every_s=0.5)
    sleeper.pause()
    return sleeper


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of DISK_MIB. Skips where it cannot be had."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the space there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"z" * (1 << 20))
    return filler


def test_a_killed_slave(prometheus: Prometheus, cluster: LocalCluster) -> None:
    _, slave = cluster.replicas("broker-a")
    cluster.ok("kill", slave)
    prometheus.fires("TandemProcessDown", instance=cluster.target(slave))
    prometheus.fires("TandemOneCopy", broker="broker-a")
    prometheus.fires("TandemReplicaMissing", broker="broker-a")
    cluster.ok("start", slave)
    for alert in (
        "TandemProcessDown",
        "TandemOneCopy",
        "TandemReplicaMissing",
        "TandemSlaveBehind",
    ):
        prometheus.resolved(alert)


def test_a_consumer_that_stands_still(prometheus: Prometheus, stalled: Traffic) -> None:
    prometheus.fires("TandemConsumerBehind", consumer_group="sleepers")
    stalled.resume()
    prometheus.resolved("TandemConsumerBehind", consumer_group="sleepers")


def test_a_replica_whose_bytes_are_damaged(prometheus: Prometheus, cluster: LocalCluster) -> None:
    _, slave = cluster.replicas("broker-a")
    with cluster.log_of(slave).open("r+b") as log:
        log.seek(200)
        (before,) = log.read(1)
        log.seek(200)
        log.write(bytes([before ^ 0xFF]))
        log.flush()
        assert cluster.audit() == 1
        alert = prometheus.fires("TandemReplicaDiverged")
        assert slave in alert["labels"]["replica"] or "broker-a" in alert["labels"]["replica"]
        log.seek(200)
        log.write(bytes([before]))
    assert cluster.audit() == 0
    prometheus.resolved("TandemReplicaDiverged")


def test_a_frozen_slave(prometheus: Prometheus, cluster: LocalCluster) -> None:
    """Its name server still names it, and whoever audits waits for it in vain."""
    _, slave = cluster.replicas("broker-a")
    cluster.ok("kill", slave, "--signal", "STOP")
    prometheus.fires("TandemSlaveBehind", node_id="broker-a")
    assert cluster.audit() == 3
    prometheus.fires("TandemAuditIncomplete")
    cluster.ok("kill", slave, "--signal", "CONT")
    prometheus.resolved("TandemSlaveBehind")
    prometheus.resolved("TandemOneCopy")
    assert cluster.audit() == 0
    prometheus.resolved("TandemAuditIncomplete")


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler for the slow disk")
def test_a_slow_disk(prometheus: Prometheus, cluster: LocalCluster) -> None:
    store = cluster.directory / "slow-store"
    broker = cluster.broker_beside(
        "SlowDisk", prometheus, store, flushDiskType="SYNC_FLUSH", syncFlushTimeout=1_200
    )
    disk = FailingDisk(cluster.directory / "shim", store)
    broker.prefix = ["env", *(f"{key}={value}" for key, value in disk.env.items())]
    broker.start()
    cluster.make_topic("OnSlowDisk", "-b", broker.address)
    sender = cluster.traffic("slow", "send", cluster.namesrv, "OnSlowDisk")
    taken = 'tandem_send_seconds_count{node_id="SlowDisk"} > 5'
    wait_until(lambda: prometheus.ask(taken), 60, "it takes messages, and is watched")
    disk.set(("fdatasync", 0, 2_000, "commitlog"))
    prometheus.fires("TandemSendsUnsafe", node_id="SlowDisk")
    prometheus.fires("TandemSendsSlow", node_id="SlowDisk")
    disk.set()
    prometheus.resolved("TandemSendsUnsafe")
    prometheus.resolved("TandemSendsSlow")
    sender.abandon()
    cluster.forget(broker, prometheus)


def test_a_full_disk(prometheus: Prometheus, cluster: LocalCluster) -> None:
    with small_disk(cluster.directory / "disk") as disk:
        broker = cluster.broker_beside(
            "SmallDisk", prometheus, disk / "store",
            mappedFileSizeCommitLog=1 << 20, cleanResourceInterval=300,
        ).start()  # fmt: skip
        cluster.make_topic("OnSmallDisk", "-b", broker.address)
        sender = cluster.traffic("diskful", "send", cluster.namesrv, "OnSmallDisk")
        taken = 'rocketmq_messages_in_total{node_id="SmallDisk",topic="OnSmallDisk"} > 0'
        wait_until(lambda: prometheus.ask(taken), 30, "it takes messages, and is watched")
        filler = fill(disk)
        prometheus.fires("TandemDiskFilling", node_id="SmallDisk")
        prometheus.fires("TandemStoreRefusesWrites", node_id="SmallDisk")
        prometheus.fires("TandemSendsRefused", node_id="SmallDisk")
        filler.unlink()
        for alert in ("TandemDiskFilling", "TandemStoreRefusesWrites", "TandemSendsRefused"):
            prometheus.resolved(alert)
        sender.abandon()
        cluster.forget(broker, prometheus)


def test_a_consumer_that_stops(prometheus: Prometheus, cluster: LocalCluster) -> None:
    cluster.consumer.terminate()
    prometheus.fires("TandemConsumersGone", consumer_group="watchers")
    cluster.consumer.launch()
    prometheus.resolved("TandemConsumersGone")


def test_a_message_that_nobody_can_consume(prometheus: Prometheus, cluster: LocalCluster) -> None:
    cluster.make_topic("Poison")
    failing = cluster.traffic("failing", "fail", cluster.namesrv, "Poison", "failers")
    poison = cluster.traffic("poison", "send", cluster.namesrv, "Poison")
    prometheus.fires("TandemDeadLetters", consumer_group="failers")
    poison.terminate()
    failing.terminate()
    prometheus.resolved("TandemDeadLetters", 90)


def test_unclean_elections_are_allowed(prometheus: Prometheus, cluster: LocalCluster) -> None:
    setting = (
        "updateControllerConfig",
        "-a",
        cluster.layout.controller,
        "-k",
        "enableElectUncleanMaster",
    )
    cluster.admin(*setting, "-v", "true")
    prometheus.fires("TandemUncleanAllowed")
    cluster.admin(*setting, "-v", "false")
    prometheus.resolved("TandemUncleanAllowed")


def test_a_person_elects_who_lacks_messages(prometheus: Prometheus, cluster: LocalCluster) -> None:
    """Of a group only the slave is left, which missed the last messages. Then the master comes back with them."""
    master, slave = cluster.replicas("broker-b")
    ((labels, _),) = prometheus.ask('tandem_slave_lag_bytes{node_id="broker-b"}')
    cluster.ok("kill", slave)
    prometheus.fires("TandemOneCopy", broker="broker-b")
    end = 'tandem_confirmed_bytes{node_id="broker-b"}'
    ((_, before),) = prometheus.ask(end)
    wait_until(lambda: prometheus.ask(end)[0][1] > before, 30, "messages that the slave lacks")
    cluster.ok("kill", master)
    prometheus.fires("TandemNoMaster", broker="broker-b")
    cluster.launch(slave)
    alive = 'tandem_controller_replicas_alive{broker="broker-b"} == 1'
    wait_until(lambda: prometheus.ask(alive), 60, "the slave is back, alone")
    cluster.admin(
        "electMaster", "-a", cluster.layout.controller, "-bn", "broker-b", "-b", labels["slave"],
        "-c", "TandemCluster", "--unclean",
    )  # fmt: skip
    prometheus.fires("TandemLossyElection", broker="broker-b")
    prometheus.resolved("TandemNoMaster")
    cluster.launch(master)
    prometheus.fires("TandemMessagesSetAside", node_id="broker-b")
    prometheus.resolved("TandemLossyElection")
    prometheus.resolved("TandemMessagesSetAside")


def test_a_slave_with_another_log(prometheus: Prometheus, cluster: LocalCluster) -> None:
    """Two brokers that were masters of their own become one classic group: nobody can say whose log is right."""
    master = cluster.broker_beside("Parted", prometheus).start()
    other = cluster.broker_beside("Stranger", prometheus).start()
    cluster.fill(master, 5)
    cluster.fill(other, 3)
    other.terminate()
    cluster.forget(other, prometheus)
    slave = cluster.broker_beside("Parted", prometheus, other.store, brokerId=1, brokerRole="SLAVE")
    slave.launch()
    prometheus.fires("TandemAlarm", node_id="Parted")
    cluster.forget(slave, prometheus)
    cluster.forget(master, prometheus)
    prometheus.resolved("TandemAlarm")


def test_a_name_server_that_is_gone_with_the_controller_in_it(
    prometheus: Prometheus, cluster: LocalCluster
) -> None:
    cluster.ok("kill", "namesrv")
    prometheus.fires("TandemNoController")
    prometheus.fires("TandemNameServerLost")
    cluster.ok("start", "namesrv")
    prometheus.resolved("TandemNoController")
    prometheus.resolved("TandemNameServerLost")
