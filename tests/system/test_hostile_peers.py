"""Peers that are slow, many, or deaf: they lose their connections, and producers do not notice them."""

from __future__ import annotations

import errno
import re
import socket
import time
from pathlib import Path

import pytest
from raw_wire import (
    HEART_BEAT,
    PULL,
    SEND,
    Wire,
    json_frame,
    lone_broker,
    memory_bytes,
    producing,
    pull_ext,
    send_ext,
    send_one,
)

from tandemmq.chaos.asking import answers
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import wait_until

pytestmark = pytest.mark.system

FIRST_FRAME_S, FRAME_S = 10, 15  # tandemmq.cluster.remoting.stream.ConnectionLimits
LORISES = 800
# A quiet machine needs 1 ms; this one has two cores and other work.
P99_S_MAX = 0.1


def ended(sock: socket.socket) -> bool:
    """Whether the other side closed; takes no time."""
    sock.setblocking(False)
    try:
        return sock.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_connections_that_trickle_are_closed_while_a_producer_works(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        broker.start()
        before = memory_bytes(broker)
        frame = json_frame(SEND, send_ext("Trickled"), b"x" * 5_000)
        beat = json_frame(HEART_BEAT, {}, b'{"clientID":"c"}')
        lorises: list[socket.socket] = []
        with producing(broker.address, "T", pause_s=0.002) as load:
            began = time.monotonic()
            for number in range(LORISES):
                sock = socket.create_connection((LOOPBACK, broker.port))
                if number % 2:  # half of them say something sensible first
                    sock.sendall(beat)
                lorises.append(sock)
            at = 0
            while time.monotonic() - began < FRAME_S + 4 and lorises:
                for sock in list(lorises):
                    try:
                        sock.setblocking(True)
                        sock.sendall(frame[at : at + 1])
                    except OSError:
                        pass
                    if at and ended(sock):
                        lorises.remove(sock)
                        sock.close()
                at += 1
                time.sleep(1)
            left = len(lorises)
            for sock in lorises:
                sock.close()
        assert left == 0, f"{left} of {LORISES} still connected after {FRAME_S + 4} s"
        assert load.problem is None and not load.refused
        assert load.quantile(0.99) < P99_S_MAX
        assert len(load.acknowledged) > 1_000
        assert memory_bytes(broker) - before < 40 << 20
        assert "Trickled" not in broker.output()


def test_more_connections_than_descriptors_leave_the_others_working(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        broker.command = ["bash", "-c", 'ulimit -n 150 && exec "$@"', "bash", *broker.command]
        broker.start()
        with producing(broker.address, "T") as load:
            crowd: list[socket.socket] = []
            try:
                for _ in range(300):
                    sock = socket.socket()
                    sock.setblocking(False)
                    assert sock.connect_ex((LOOPBACK, broker.port)) in (0, errno.EINPROGRESS)
                    crowd.append(sock)
                used = cpu_seconds(broker.pid)
                sent = len(load.acknowledged)
                time.sleep(2)
                assert cpu_seconds(broker.pid) - used < 1.5, "it does not spin"
                assert load.problem is None and not load.refused, "who is in goes on"
                assert len(load.acknowledged) > sent + 100
                assert broker.alive
            finally:
                for sock in crowd:
                    sock.close()
            wait_until(lambda: answers(broker.address), 10, "new ones come in again")
        assert load.problem is None and not load.refused
        assert len(broker.output()) < 100_000
        assert broker.stop() == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_reader_that_never_reads_costs_little_and_delays_nobody(tmp_path: Path) -> None:
    with lone_broker(tmp_path, {"mappedFileSizeCommitLog": 64 << 20}) as broker:
        broker.start()
        with Wire(broker.address) as wire:
            for _ in range(40):
                assert wire.request(json_frame(SEND, send_ext("Big"), bytes(1 << 20))).code == 0
        before = memory_bytes(broker)
        deaf = [Wire(broker.address, receive_bytes=4096) for _ in range(10)]
        with producing(broker.address, "T") as load:
            for wire in deaf:
                wire.send(json_frame(PULL, pull_ext("Big")) * 500)  # 500 MiB each
            time.sleep(1.5)
            assert memory_bytes(broker) - before < 10 * (4 << 20) + (20 << 20)
        assert load.problem is None
        assert load.quantile(0.99) < P99_S_MAX
        for wire in deaf:
            wire.close()
        assert broker.stop() == 0


def test_many_who_connect_and_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        broker.start()
        send_one(broker.address, "T")
        descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        beat = (
            b'{"clientID":"c%d","producerDataSet":[{"groupName":"P%d"}],'
            b'"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T"}]}]}'
        )
        for number in range(300):
            with Wire(broker.address) as wire:
                wire.send(json_frame(HEART_BEAT, {}, beat % (number, number)))
                wire.send(json_frame(PULL, pull_ext("T", 1, sysFlag="6")))
                if number % 2:  # a reset instead of an end
                    linger = b"\x01\0\0\0\0\0\0\0"
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_until(
            lambda: len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) <= descriptors + 2,
            5,
            "all descriptors are free again",
        )
        with Wire(broker.address) as wire:
            members = wire.request(json_frame(38, {"consumerGroup": "G"}))
            assert members.code == 1 and "no consumer" in members.remark
        began = time.monotonic()
        assert send_one(broker.address, "T").code == 0, "nobody is left to be woken"
        assert time.monotonic() - began < 1
        assert not re.search("Traceback|ERROR", broker.output()), broker.tail()
