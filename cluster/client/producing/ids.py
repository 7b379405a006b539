"""Unique message ids of the client (UNIQ_KEY): 16 bytes in hex, made without asking anyone."""

from __future__ import annotations

import os
import random
import socket
import struct
from datetime import datetime


class UniqueIds:
    """Makes ids: address | pid | random of this process | milliseconds of the month | counter.

    Not thread-safe by itself; each client instance owns one. A fork is noticed by its pid and gets
    a new random part.
    Source: docs/formats.md "Client unique id".

    Example:
        UniqueIds(socket.inet_aton("192.168.1.10"), random.Random()).next(now_ms)
    """

    def __init__(self, address: bytes, rng: random.Random, pid: int | None = None) -> None:
        self._address = address
        self._rng = rng
        self._fixed_pid = pid
        self._prefix = ""
        self._pid = -1
        self._counter = rng.getrandbits(16)
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id: 32 upper-case hex digits (56 for IPv6). now_ms: wall time, ms since 1970."""
        pid = os.getpid() if self._fixed_pid is None else self._fixed_pid
        if pid != self._pid:
            self._pid = pid
            random_part = struct.pack(">HI", pid & 0xFFFF, self._rng.getrandbits(32))
            self._prefix = (self._address + random_part).hex().upper()
        if now_ms >= self._next_month_ms or now_ms < self._month_start_ms - 1_000_000:
            self._month_start_ms, self._next_month_ms = month_bounds(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        # a clock set back a little must not wrap to a huge number
        since_ms = max(0, now_ms - self._month_start_ms)
        return f"{self._prefix}{since_ms & 0xFFFFFFFF:08X}{self._counter:04X}"


def month_bounds(now_ms: int) -> tuple[int, int]:
    """Start of this month and of the next one in local time, milliseconds since 1970."""
    now = datetime.fromtimestamp(now_ms / 1000)
    start = datetime(now.year, now.month, 1)
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)


def local_address(towards: tuple[str, int] | None) -> str:
    """The address of the interface that leads to a peer; 127.0.0.1 when there is none.

    No packet is sent.

    towards  (host, port) of a name server, or None
    """
    if towards is None:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"  # only a part of names that also carry pid, time and random bits


def packed_address(text: str) -> bytes:
    """4 or 16 bytes of a textual address; the IPv6 zone is dropped."""
    if ":" in text:
        return socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    return socket.inet_aton(text)
