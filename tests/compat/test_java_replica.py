"""Ours and a stock 5.x broker as replicas of one controlled group: each follows and succeeds the other.

Under our controller, and under RocketMQ's own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replicas import OURS, Filling, compare_logs, log_end, make_controlled, make_topics, wait_equal

from tandemmq.chaos.asking import answers, ask, registered, registered_at
from tandemmq.chaos.java import JavaNameServer
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

VERSION = "5.3.3"
NAME = "mixed"
TOPIC = "Mixed"
PART = 5_000
HA_STATUS = 907
START_S = 90
ELECTION_S = 40  # a stock controller may need more than one look


def controlled_name_server(
    kind: str, directory: Path, controller_port: int
) -> NameServer | JavaNameServer:
    """A name server with a controller inside, not started."""
    settings = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "mixed",
        "controllerDLegerPeers": f"n0-{LOOPBACK}:{controller_port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": directory / "controller",
    }
    if kind == OURS:
        return NameServer(directory, settings)
    return JavaNameServer(kind, directory, {**settings, "mappedFileSize": 16 << 20})


def epochs(broker: Broker) -> list[str]:
    """The lines of its epoch file."""
    return (broker.store / "epochFileCheckpoint").read_text().split()


def in_sync(master: Broker) -> bool:
    return bool(json.loads(ask(master.address, HA_STATUS)[2])["inSyncSlaveNums"] == 1)


@pytest.mark.parametrize(
    ("controller", "first", "second"),
    [(OURS, OURS, VERSION), (VERSION, VERSION, OURS), (OURS, VERSION, OURS)],
    ids=["stock-joins-ours", "ours-joins-stock", "ours-joins-stock-under-ours"],
)
def test_either_follows_the_other_and_takes_over_from_it(
    java: None, tmp_path: Path, controller: str, first: str, second: str
) -> None:
    port = PORTS.take((0,))
    with controlled_name_server(controller, tmp_path, port) as name_server:
        name_server.start()
        where = name_server.address
        wait_until(lambda: answers(f"{LOOPBACK}:{port}"), START_S, "controller")

        def send(count: int, seed: int) -> None:
            Filling(where, [TOPIC], count, seed).run()

        def replica(kind: str, number: int) -> Broker:
            return make_controlled(kind, tmp_path, where, NAME, number, f"{LOOPBACK}:{port}")

        with replica(first, 0) as master, replica(second, 1) as slave:
            master.start()
            make_topics(where, master, {TOPIC: 4})
            send(PART, 1)
            slave.launch()
            slave.wait_ready(lambda: answers(slave.address), START_S)
            send(PART, 2)
            slave.kill()
            slave.launch()
            slave.wait_ready(lambda: answers(slave.address), START_S)
            send(PART, 3)
            wait_until(lambda: log_end(slave) == log_end(master), START_S, "caught up")
            wait_until(lambda: in_sync(master), START_S, "in the set", every_s=0.2)
            end = wait_equal(master, slave)
            assert compare_logs(master.store, slave.store, end).records >= 3 * PART
            assert epochs(master) == epochs(slave)

            master.kill()
            wait_until(
                lambda: registered(where, NAME) and registered_at(where, NAME) == slave.address,
                ELECTION_S, "another master", every_s=0.1,
            )  # fmt: skip
            send(PART, 4)
            master.launch()
            master.wait_ready(lambda: answers(master.address), START_S)
            wait_until(lambda: log_end(master) == log_end(slave), START_S, "the old one follows")
            end = wait_equal(slave, master)
            found = compare_logs(slave.store, master.store, end)
            assert (found.start, found.records >= 4 * PART) == (0, True)
            assert epochs(master) == epochs(slave)
            assert len(epochs(slave)) == 4  # count, checksum, and two reigns
