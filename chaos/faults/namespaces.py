"""Nodes in network namespaces of their own, joined by a bridge, and partitions between them by dropped packets.

Rules lie in the namespace of who does not hear, in a chain of ours that is flushed by name: healing touches nothing
else. Needs root, ip and iptables; Unsupported says what is missing. The machine itself reaches every node.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.faults.grudges import Pair
from tandemmq.chaos.processes import ProcessBroken, run

CHAIN: Final = "TANDEM_CHAOS"
EFFECT_S: Final = 10.0
HEALED_S: Final = 20.0
CONNECT_S: Final = 1
NET: Final = "10.213"  # + a byte of ours: nets that nobody else routes
_PACKETS: Final = re.compile(r"^\s*(\d+)\s+\d+\s+DROP", re.M)


def unsupported() -> str:
    """What is missing here; "" when nodes can have namespaces."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    for tool in ("ip", "iptables", "nsenter", "bash", "timeout"):
        if shutil.which(tool) is None:
            return f"needs {tool} (Debian: packages iproute2, iptables, util-linux)"
    probe = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    return "" if probe.returncode == 0 else "needs network namespaces (unshare -n)"


class Namespaces:
    """Nodes by name, inside the block. Raises Unsupported."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._mark = f"tq{os.getpid() % 100_000}"
        self._net = f"{NET}.{os.getpid() % 250 + 1}"
        self._made: list[str] = []
        self.ports: Mapping[str, int] = {}  # where each node listens: what probes connect to

    @property
    def bridge(self) -> str:
        return f"{self._mark}b"

    def address(self, node: str) -> str:
        return f"{self._net}.{self.nodes.index(node) + 1}"

    def namespace(self, node: str) -> str:
        return f"{self._mark}-{self.nodes.index(node)}"

    def prefix(self, node: str) -> list[str]:
        """What to put before a command of this node. Not `ip netns exec`: that gives the command mounts of its own, so
        that file systems of other runs stay mounted there when they are gone for everybody else."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(node)}"]

    def __enter__(self) -> Self:
        if missing := unsupported():
            raise Unsupported(missing)
        try:
            self._make()
        except ProcessBroken as problem:
            self._remove()
            raise Unsupported(str(problem)) from None
        return self

    def _make(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self._net}.254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for number, node in enumerate(self.nodes):
            space, outer, inner = (
                self.namespace(node),
                f"{self._mark}v{number}",
                f"{self._mark}n{number}",
            )
            run("ip", "netns", "add", space)
            self._made.append(node)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            run("ip", "link", "set", inner, "netns", space)
            run("ip", "link", "set", outer, "master", self.bridge)
            run("ip", "link", "set", outer, "up")
            for arguments in (
                ("ip", "addr", "add", f"{self.address(node)}/24", "dev", inner),
                ("ip", "link", "set", inner, "up"),
                ("ip", "link", "set", "lo", "up"),
                ("iptables", "-N", CHAIN),
                ("iptables", "-I", "INPUT", "-j", CHAIN),
            ):
                run(*self.prefix(node), *arguments)

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for node in self._made:
            subprocess.run(
                ["ip", "netns", "del", self.namespace(node)], check=False, capture_output=True
            )
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)
        self._made = []

    def drop(self, pairs: Collection[Pair], probability: float = 1.0) -> None:
        """Who is not heard, by whom: their packets are dropped on arrival."""
        chance = (
            ("-m", "statistic", "--mode", "random", "--probability", f"{probability:g}")
            if probability < 1
            else ()
        )
        for speaker, deaf in sorted(pairs):
            source = ("-s", self.address(speaker))
            run(*self.prefix(deaf), "iptables", "-A", CHAIN, *source, *chance, "-j", "DROP")

    def heal(self) -> None:
        for node in self.nodes:
            run(*self.prefix(node), "iptables", "-F", CHAIN)

    def dropped(self) -> int:
        """Packets that were dropped since drop()."""
        pages = [
            run(*self.prefix(node), "iptables", "-L", CHAIN, "-v", "-x", "-n")
            for node in self.nodes
        ]
        return sum(int(count) for page in pages for count in _PACKETS.findall(page))

    async def connects(self, speaker: str, to: str) -> bool:
        """Whether a connection from one node to where the other listens comes about."""
        script = f"exec 3<>/dev/tcp/{self.address(to)}/{self.ports[to]}"
        process = await asyncio.create_subprocess_exec(
            *self.prefix(speaker), "timeout", str(CONNECT_S), "bash", "-c", script,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait() == 0


class PacketLoss(Fault):
    """Packets between pairs of nodes are lost: all of them, which is a partition, or some."""

    kind = "packets"

    def __init__(
        self, spaces: Namespaces, pairs: Collection[Pair], shape: str, probability: float = 1.0
    ) -> None:
        super().__init__(", ".join(f"{a} not heard by {b}" for a, b in sorted(pairs)))
        self.spaces = spaces
        self.pairs = frozenset(pairs)
        self.shape = shape
        self.probability = probability

    def describe(self) -> str:
        if self.probability < 1:
            return f"{100 * self.probability:g} % of the packets are lost: {self.story.victim}"
        return f"partition ({self.shape}): {self.story.victim}"

    async def inject(self) -> str:
        if not self.pairs:
            raise NoEffect(f"a partition of shape {self.shape} cuts nothing between so few nodes")
        self.spaces.drop(self.pairs, self.probability)
        if self.probability >= 1:
            through = [pair for pair in sorted(self.pairs) if await self.spaces.connects(*pair)]
            if through:
                raise NoEffect(f"connections still come about: {through}")

        async def dropped() -> str | None:
            count = await asyncio.to_thread(self.spaces.dropped)
            return f"{count} packets were dropped" if count else None

        seen = await until(dropped, EFFECT_S, NoEffect(f"no packet was dropped in {EFFECT_S:g} s"))
        return seen if self.probability < 1 else f"{seen}, connections time out"

    async def heal(self) -> str:
        self.spaces.heal()
        left = sorted(self.pairs)

        async def all_connect() -> bool:
            while left and await self.spaces.connects(*left[-1]):
                left.pop()
            return not left

        await until(all_connect, HEALED_S, NotHealed(f"no connection: {left}"))
        return f"connections come about again for all {len(self.pairs)} pairs"
