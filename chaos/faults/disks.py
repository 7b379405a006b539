"""Faults of disks: full, failing, slow or stalled calls, and power that is cut."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from tandemmq.chaos.faults.failing_disk import FailingDisk
from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.faults.processes import Killed, ProcessFault, listens
from tandemmq.chaos.groups import ReplicaProcess
from tandemmq.chaos.hosts import HostGroup
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken, run

MIB: Final = 1 << 20
HIT_S: Final = 10.0


class SmallDisk:
    """A file system of a few MiB at `at`, inside the block; it knows fallocate. Raises Unsupported."""

    def __init__(self, at: Path, mib: int) -> None:
        self.at = at
        self.mib = mib

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("mount") is None:
            raise Unsupported("needs root, to mount a small file system (tmpfs)")
        self.at.mkdir(parents=True, exist_ok=True)
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={self.mib}m", "tmpfs", str(self.at))
        except ProcessBroken as problem:
            raise Unsupported(str(problem)) from None
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.at)], check=True)


class DiskFull(Fault):
    """All space but `leave_bytes` of the disk that a store lies on is taken, whoever else writes meanwhile."""

    kind = "disk-full"

    def __init__(self, victim: str, at: Path, leave_bytes: int = 0) -> None:
        super().__init__(victim)
        self.at = at
        self.filler = at / "filler"
        self.leave_bytes = leave_bytes

    def describe(self) -> str:
        return f"the disk of {self.story.victim} is full"

    async def inject(self) -> str:
        await asyncio.to_thread(fill, self.filler, self.leave_bytes)
        try:
            with (self.at / "probe").open("wb", buffering=0) as probe:
                os.posix_fallocate(probe.fileno(), 0, MIB)
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            return f"a new file of 1 MiB is refused: {os.strerror(errno.ENOSPC)}"
        finally:
            (self.at / "probe").unlink(missing_ok=True)
        raise NoEffect(f"{free_bytes(self.at)} bytes are free on {self.at}")

    async def heal(self) -> str:
        self.filler.unlink(missing_ok=True)
        free = free_bytes(self.at)
        if free < MIB:
            raise NotHealed(f"only {free} bytes are free on {self.at}")
        return f"{free / MIB:.1f} MiB are free again"


class FailingCalls(ProcessFault):
    """Calls of one process on files of its store fail, or take long (`delay_ms`); a broker that ended is started."""

    kind = "calls"

    def __init__(
        self,
        process: AsyncProcess,
        address: str,
        disk: FailingDisk,
        call: str,
        *,
        code: int = 0,
        delay_ms: int = 0,
        part: str = "",
    ) -> None:
        super().__init__(process, address)
        assert code or delay_ms, "a call that neither fails nor waits is no fault"
        self._disk = disk
        self.call, self.code, self.delay_ms, self.part = call, code, delay_ms, part
        self._before = 0

    def describe(self) -> str:
        what = f"fails with {errno.errorcode[self.code]}" if self.code else ""
        late = f"takes {self.delay_ms} ms longer" if self.delay_ms else ""
        files = f" on files with {self.part} in their path" if self.part else ""
        return f"every {self.call} of {self.story.victim}{files} {' and '.join(filter(None, (what, late)))}"

    async def inject(self) -> str:
        self._before = self._disk.hits(self.call)
        self._disk.set((self.call, self.code, self.delay_ms, self.part))

        async def hit() -> str | None:
            count = self._disk.hits(self.call) - self._before
            return f"{count} calls of {self.call} were met" if count else None

        late = NoEffect(f"{self.story.victim} called no {self.call} in {HIT_S:g} s")
        return await until(hit, HIT_S, late)

    async def heal(self) -> str:
        self._disk.set()
        count = self._disk.hits(self.call) - self._before
        if self.process.alive and await listens(self.address):
            return f"calls succeed again, after {count} that were met"
        code = self.process.code
        again = await self.answering()
        return f"it had ended with exit code {code} after {count} such calls; {again}"


class PowerLoss(Fault):
    """Hosts lose their power at once: what no fsync wrote is gone. Their disks come back when it is over."""

    kind = "power"

    def __init__(self, hosts: HostGroup, victims: Sequence[ReplicaProcess]) -> None:
        super().__init__(", ".join(each.name for each in victims))
        self.hosts = hosts
        self.victims = tuple(victims)
        self.cut_ns = 0
        self.done_ns = 0

    @property
    def everybody(self) -> bool:
        return len(self.victims) == len(self.hosts.replicas)

    def describe(self) -> str:
        return f"power cut of {'all hosts' if self.everybody else self.story.victim}: what no fsync wrote is gone"

    async def inject(self) -> str:
        self.cut_ns = await self.hosts.cut_power(self.victims)
        self.done_ns = time.monotonic_ns()
        return "the file systems were shut down without their journal and refused a new file"

    async def heal(self) -> str:
        found = []
        for victim in self.victims:
            if victim.alive:
                continue
            await self.hosts.power(victim)
            found.append(await Killed(victim, victim.address).heal())
        return f"disks mounted, another boot id shown; {'; '.join(found)}"


def fill(filler: Path, leave_bytes: int = 0) -> None:
    """Take all space of its disk but `leave_bytes` with this file, whoever else writes meanwhile."""
    with filler.open("ab", buffering=0) as file:
        for size in (MIB, 64 << 10, 4 << 10):
            while free_bytes(filler.parent) >= leave_bytes + size:
                try:
                    file.write(b"z" * size)
                except OSError:
                    break  # somebody was quicker


def free_bytes(at: Path) -> int:
    found = os.statvfs(at)
    return found.f_bavail * found.f_frsize
