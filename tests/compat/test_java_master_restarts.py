"""A stock master that restarts again and again under load, and a slave of ours that is back before it is (INV-26).

RocketMQ serves its HA port before it has appended the epoch of its new reign: it greets with the old one, and
frames on such a connection bear the old number for ever. Who books them so has another history than its master
and finds, at the next greeting, that its own bytes would have to be cut.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from raw_wire import SEND, Wire, bodies, json_frame, send_ext
from replicas import OURS, compare_logs, log_end, make_controlled, make_topics
from test_java_replica import START_S, VERSION, controlled_name_server, epochs

from tandemmq.chaos.asking import answers
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

# Ours waits 50 ms before it connects again, which on a machine with nothing else to do is often too late to
# meet Java between the two. This one is back at once.
AT_ONCE = """
import sys
from tandemmq.replication import feed, slave
feed.RETRY_TICK_MS = slave.RETRY_MS_MIN = 1
from tandemmq.command.cli import main
sys.exit(main())
"""
NAME = "restarted"
TOPIC = "Restarted"
LANES = 4


class Load:
    """Producers that send to one broker whatever becomes of it; what it acknowledged, by queue and offset."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(LANES)]
        self._over = threading.Event()
        self._lanes = [threading.Thread(target=self._send, args=(n,)) for n in range(LANES)]

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def go_on(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        enough = self.count + count
        wait_until(lambda: self.count >= enough, START_S, "acknowledged again", every_s=0.005)

    def _send(self, lane: int) -> None:
        number = 0
        while not self._over.is_set():
            with contextlib.suppress(OSError), Wire(self.address, timeout_s=5) as wire:
                while not self._over.is_set():
                    body = b"%d-%d " % (lane, number) + b"x" * 400
                    number += 1
                    answer = wire.request(json_frame(SEND, send_ext(TOPIC, lane), body))
                    if answer.code == 0:
                        self.acknowledged[lane][int(answer.ext["queueOffset"])] = body
                    else:
                        time.sleep(0.002)
            time.sleep(0.01)

    def __enter__(self) -> Self:
        for lane in self._lanes:
            lane.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for lane in self._lanes:
            lane.join()


def caught_up(slave: Broker, master: Broker) -> None:
    """Wait until the slave holds the whole log, of which it must not ask anybody to cut anything."""

    def equal() -> bool:
        assert "a person must act" not in slave.output(), slave.tail(2_000)
        return log_end(slave) == log_end(master)

    wait_until(equal, START_S, "caught up", every_s=0.1)
    assert epochs(slave) == epochs(master)


@pytest.mark.parametrize(
    ("controller", "endings"),
    [(OURS, ("kill", "stop", "kill")), (VERSION, ("kill",))],
    ids=["under-ours", "under-the-stock-one"],
)
def test_our_slave_has_the_reigns_of_a_stock_master_that_restarts_under_load(
    java: None, tmp_path: Path, controller: str, endings: tuple[str, ...]
) -> None:
    port = PORTS.take((0,))
    with controlled_name_server(controller, tmp_path, port) as name_server:
        name_server.start()
        where = name_server.address
        wait_until(lambda: answers(f"{LOOPBACK}:{port}"), START_S, "controller")

        def replica(kind: str, number: int, **settings: object) -> Broker:
            at = f"{LOOPBACK}:{port}"
            return make_controlled(kind, tmp_path, where, NAME, number, at, **settings)

        # a learner is never elected: so the master is the master again after each of its restarts
        with replica(VERSION, 0) as master, replica(OURS, 1, asyncLearner="true") as slave:
            module = slave.command.index("-m")
            slave.command[module : module + 2] = ["-c", AT_ONCE]
            master.start()
            make_topics(where, master, {TOPIC: LANES})
            slave.launch()
            slave.wait_ready(lambda: answers(slave.address), START_S)
            with Load(master.address) as load:
                load.go_on(500)
                for ending in endings:
                    getattr(master, ending)()
                    master.launch()
                    load.go_on(300)
            caught_up(slave, master)
            reigns = len(epochs(master)) - 2  # beside count and checksum
            assert reigns == 1 + len(endings)
            restart: Callable[[], object]
            for restart in (slave.kill, slave.stop):
                restart()
                slave.launch()
                slave.wait_ready(lambda: answers(slave.address), START_S)
                with Load(master.address) as more:
                    more.go_on(50)
                caught_up(slave, master)
            found = compare_logs(master.store, slave.store, log_end(master))
            assert (found.start, found.records >= load.count) == (0, True)
            for lane, acknowledged in enumerate(load.acknowledged):
                assert acknowledged.items() <= bodies(slave.address, TOPIC, lane).items()
