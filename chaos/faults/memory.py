"""Memory that is short: a control group whose limit a process meets at once, for new pages of files and its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from tandemmq.chaos.faults.fault import NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.faults.processes import ProcessFault, listens
from tandemmq.chaos.processes import AsyncProcess

MIB: Final = 1 << 20
V1: Final = Path("/sys/fs/cgroup/memory")
V2: Final = Path("/sys/fs/cgroup")
HIT_S: Final = 30.0
_numbers: Final = itertools.count(1)


def unsupported() -> str:
    """What is missing here; "" when a process can be short of memory."""
    if os.geteuid() != 0:
        return "needs root, to make a control group"
    if _root() is None:
        return (
            "needs the memory controller of control groups, mounted at /sys/fs/cgroup and writable"
        )
    return ""


def _root() -> Path | None:
    """Where groups are made: version 1's memory hierarchy, or version 2's with its memory controller on."""
    if (V1 / "memory.limit_in_bytes").exists() and os.access(V1, os.W_OK):
        return V1
    control = V2 / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text().split() and os.access(V2, os.W_OK):
        return V2
    return None


class MemoryGroup:
    """A control group of ours. limit_bytes: for what its processes take from when they come on.

    Pages that a process had already stay charged to where it was: no limit here is below them.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Raises Unsupported."""
        if missing := unsupported():
            raise Unsupported(missing)
        root = _root()
        assert root is not None
        self._first = root == V1
        self.at = root / f"tandem-chaos-{os.getpid()}-{next(_numbers)}"
        self.at.mkdir()
        name = (
            "memory.limit_in_bytes" if self._first else "memory.high"
        )  # high slows down, and kills nobody
        (self.at / name).write_text(str(limit_bytes))

    def take(self, pid: int) -> Path:
        """Move a process here; the group that it was in."""
        before = group_of(pid)
        (self.at / "cgroup.procs").write_text(str(pid))
        return before

    def hits(self) -> int:
        """How often somebody here met the limit."""
        if self._first:
            return int((self.at / "memory.failcnt").read_text())
        events = dict(line.split() for line in (self.at / "memory.events").read_text().splitlines())
        return int(events["high"])

    def remove(self) -> None:
        """When nobody is in it any more. Raises OSError."""
        self.at.rmdir()


def group_of(pid: int) -> Path:
    """The group that a process' memory is charged to. Raises Unsupported."""
    root = _root()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if root is not None and (
            "memory" in controllers.split(",") or (root == V2 and not controllers)
        ):
            return root / path.lstrip("/")
    raise Unsupported(f"process {pid} is in no group whose memory is counted")


class MemoryPressure(ProcessFault):
    """New pages of one process, of files above all, must push out others of its own; a broker that ended is started."""

    kind = "memory"

    def __init__(self, process: AsyncProcess, address: str, limit_bytes: int) -> None:
        super().__init__(process, address)
        self.limit_bytes = limit_bytes
        self._group: MemoryGroup | None = None
        self._before: Path | None = None

    def describe(self) -> str:
        return f"{self.story.victim} gets no more than {self.limit_bytes / MIB:g} MiB for new pages, of files included"

    async def inject(self) -> str:
        group = self._group = MemoryGroup(self.limit_bytes)
        self._before = group.take(self.process.pid)

        async def hit() -> str | None:
            count = group.hits()
            return f"it met the limit {count} times" if count else None

        return await until(hit, HIT_S, NoEffect(f"the limit was not met in {HIT_S:g} s"))

    async def heal(self) -> str:
        group, before = self._group, self._before
        if group is None:
            return "it never began"
        count = group.hits()
        if self.process.alive:
            assert before is not None
            home = before if before.is_dir() else before.parent
            (home / "cgroup.procs").write_text(str(self.process.pid))
            if group_of(self.process.pid) == group.at:
                raise NotHealed(f"{self.story.victim} is still in {group.at}")

        async def removed() -> bool:
            try:
                group.remove()
            except OSError:
                return False  # pages of a process that has just left
            return True

        await until(removed, HIT_S, NotHealed(f"{group.at} cannot be removed"))
        if self.process.alive and await listens(self.address):
            return f"no limit any more, after {count} times that it was met"
        again = await self.answering()
        return f"it had ended with exit code {self.process.code} after {count} times; {again}"


__all__ = ["MIB", "MemoryGroup", "MemoryPressure", "group_of", "unsupported"]
