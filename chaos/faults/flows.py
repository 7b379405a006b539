"""How many bytes pass a proxy, by the kernel's own counts (ss): evidence that needs no word of proxy or servers.

A proxy has two sockets for each connection: the one it accepted and the one it opened to the target. What comes in
by one and does not go out by the other is held, dropped or late.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.chaos.faults.fault import Unsupported

_FIGURES: Final = re.compile(r"\b(bytes_sent|bytes_received|data_segs_out):(\d+)")
Socket = tuple[str, str]  # local and peer address


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one socket, since it was opened."""

    sent: int = 0
    received: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Passed:
    """Bytes through a proxy since its meter was made. up: towards the target; segments: packets with data sent."""

    at_s: float = 0.0
    up_in: int = 0
    up_out: int = 0
    down_in: int = 0
    down_out: int = 0
    up_segments: int = 0
    down_segments: int = 0

    def side(self, up: bool) -> tuple[int, int, int]:
        """(in, out, segments out) of one direction."""
        if up:
            return self.up_in, self.up_out, self.up_segments
        return self.down_in, self.down_out, self.down_segments


async def sockets(pid: int) -> dict[Socket, Counts]:
    """The TCP connections of a process. Raises Unsupported."""
    if shutil.which("ss") is None:
        raise Unsupported("needs ss, to see what passes a proxy (Debian: package iproute2)")
    process = await asyncio.create_subprocess_exec(
        "ss", "-tinpHO", "state", "established",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    output, _ = await process.communicate()
    return parse_sockets(output.decode(errors="replace"), pid)


def parse_sockets(text: str, pid: int) -> dict[Socket, Counts]:
    """Lines of `ss -tinpHO`: those of one process."""
    found = {}
    for line in text.splitlines():
        if f"pid={pid}," not in line:
            continue
        addresses = [word for word in line.split() if re.fullmatch(r"\S+:\d+", word)][:2]
        figures: Mapping[str, int] = {name: int(value) for name, value in _FIGURES.findall(line)}
        if len(addresses) == 2:
            found[addresses[0], addresses[1]] = Counts(
                figures.get("bytes_sent", 0),
                figures.get("bytes_received", 0),
                figures.get("data_segs_out", 0),
            )
    return found


@dataclass(slots=True)
class FlowMeter:
    """What passes between `listen` and `upstream`; both as host:port. Connections that end keep their counts."""

    pid: int
    listen: str
    upstream: str
    connections: frozenset[Socket] = frozenset()  # that were accepted, at the last look
    _known: dict[Socket, Counts] = field(default_factory=dict)
    _sums: list[int] = field(default_factory=lambda: [0] * 6)
    _began: bool = False

    async def look(self) -> Passed:
        """Count again. The first look is the beginning."""
        found = await sockets(self.pid)
        accepted = set()
        for socket, counts in found.items():
            local, peer = socket
            if local != self.listen and peer != self.upstream:
                continue
            before = self._known.get(socket, Counts() if self._began else counts)
            growth = (
                counts.received - before.received,
                counts.sent - before.sent,
                counts.segments - before.segments,
            )
            received, sent, segments = (max(0, each) for each in growth)
            if local == self.listen:
                accepted.add(socket)
                self._add(up_in=received, down_out=sent, down_segments=segments)
            else:
                self._add(down_in=received, up_out=sent, up_segments=segments)
            self._known[socket] = counts
        self.connections = frozenset(accepted)
        self._began = True
        return Passed(time.monotonic(), *self._sums)

    def _add(self, **growth: int) -> None:
        names = ("up_in", "up_out", "down_in", "down_out", "up_segments", "down_segments")
        for name, value in growth.items():
            self._sums[names.index(name)] += value
