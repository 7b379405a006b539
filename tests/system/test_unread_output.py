"""Clients that pull and never read: what all of them together may cost a broker."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from raw_wire import PULL, Wire, json_frame, lone_broker, pull_ext, send_one

from tandemmq.chaos.processes import wait_until

pytestmark = pytest.mark.system

CLIENTS = 150
LIMIT = 32 << 20


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096  # without files that are mapped


def test_many_that_never_read_cost_no_more_than_the_limit_and_others_are_served(
    tmp_path: Path,
) -> None:
    # INV-46
    with lone_broker(tmp_path, {"unreadOutputBytesMax": LIMIT}) as broker:
        broker.start()
        for _ in range(8):
            assert send_one(broker.address, "T", b"x" * 30_000).code == 0
        before = resident_bytes(broker.pid)
        asked = json_frame(PULL, pull_ext("T")) * 40
        host, _, port = broker.address.rpartition(":")
        deaf: list[socket.socket] = []
        most = 0
        try:
            for _ in range(CLIENTS):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                sock.connect((host, int(port)))
                sock.sendall(asked)
                deaf.append(sock)
                most = max(most, resident_bytes(broker.pid) - before)
            until = time.monotonic() + 3
            while time.monotonic() < until:
                most = max(most, resident_bytes(broker.pid) - before)
                time.sleep(0.02)
            print(f"{most >> 20} MiB more for {CLIENTS} that never read")
            assert most < 3 * LIMIT  # and what the allocator keeps
            with Wire(broker.address) as wire:
                assert wire.request(json_frame(PULL, pull_ext("T"))).code == 0
            said = "too much unread output, connections cut off"
            wait_until(lambda: said in broker.output(), 5, "it is said")
            assert broker.output().count(said) <= 3
        finally:
            for sock in deaf:
                sock.close()
        assert broker.stop() == 0
