"""A thin disk: a file system that promises more room than there is below it, and finds out when it writes back.

What was written lies in the page cache, and the error comes with fsync: the pages are clean afterwards and gone, and
the next fsync reports success. Whoever goes on after that has lost what it acknowledged.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from tandemmq.chaos.faults.disks import MIB, SmallDisk, fill, free_bytes
from tandemmq.chaos.faults.fault import NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.faults.processes import ProcessFault
from tandemmq.chaos.groups import ReplicaProcess
from tandemmq.chaos.processes import ProcessBroken, run

IMAGE_BYTES: Final = 1 << 30  # what the file system believes to have
FAILS_S: Final = 20.0
ENDS_S: Final = 15.0  # a broker whose flush failed ends by itself
UNMOUNT_S: Final = 20.0


def unsupported() -> str:
    """What is missing here; "" when there can be thin disks."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems"
    for tool in ("mkfs.ext4", "e2fsck", "losetup", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool} (Debian: packages e2fsprogs, mount)"
    return "" if Path("/dev/loop-control").exists() else "needs loop devices (/dev/loop-control)"


class ThinDisk:
    """An ext4 of a GiB at `at`, in an image on a file system of `mib` MiB, inside the block. Raises Unsupported."""

    def __init__(self, at: Path, mib: int) -> None:
        self.at = at
        self.below = SmallDisk(at.with_name(at.name + "-below"), mib)
        self.image = self.below.at / "image"
        self._mounted = False

    def __enter__(self) -> Self:
        if missing := unsupported():
            raise Unsupported(missing)
        self.below.__enter__()
        try:
            with self.image.open("xb") as image:
                image.truncate(IMAGE_BYTES)
            lazy = "lazy_itable_init=1,lazy_journal_init=1"
            run("mkfs.ext4", "-q", "-J", "size=8", "-E", lazy, str(self.image))
            self.at.mkdir(parents=True, exist_ok=True)
            self.mount()
        except ProcessBroken as problem:
            self.__exit__()
            raise Unsupported(str(problem)) from None
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self.unmount()
        finally:
            self.below.__exit__(*problem)

    def mount(self) -> None:
        """Raises ProcessBroken."""
        run("mount", "-t", "ext4", "-o", "loop", str(self.image), str(self.at))
        self._mounted = True

    def unmount(self) -> None:
        """Raises ProcessBroken when somebody keeps it busy."""
        deadline = time.monotonic() + UNMOUNT_S
        while self._mounted:
            try:
                run("umount", str(self.at))
                self._mounted = False
            except ProcessBroken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def repair(self) -> None:
        """Mounted again after errors, as a machine does that starts. Raises ProcessBroken."""
        self.unmount()
        done = subprocess.run(
            ["e2fsck", "-p", str(self.image)], check=False, capture_output=True, text=True
        )
        if done.returncode > 1:  # 1: errors were corrected
            raise ProcessBroken(f"e2fsck of {self.image}: {done.stdout}{done.stderr}")
        self.mount()


class ThinDiskFull(ProcessFault):
    """The room below a thin disk is taken: what is written back from now on fails. Afterwards there is room again, the
    file system is checked and mounted, and the broker started."""

    kind = "thin-disk"

    def __init__(self, replica: ReplicaProcess, address: str, disk: ThinDisk) -> None:
        super().__init__(replica, address)
        self.disk = disk
        self._filler = disk.below.at / "filler"

    def describe(self) -> str:
        return f"the thin disk of {self.story.victim} has no room below it: write-back fails, and fsync says so"

    async def inject(self) -> str:
        await asyncio.to_thread(fill, self._filler)
        deadline = time.monotonic() + FAILS_S
        while time.monotonic() < deadline:
            code = await asyncio.to_thread(self._probe)
            if code:
                seem_free = free_bytes(self.disk.at) // MIB
                return f"fsync of a new file fails: {os.strerror(code)}; {seem_free} MiB seem free"
            await asyncio.sleep(0.1)
        raise NoEffect(f"fsync still succeeds on {self.disk.at}")

    def _probe(self) -> int:
        """The errno of writing a MiB to the disk; 0: it was taken."""
        probe = self.disk.at / f"probe-{time.monotonic_ns()}"
        try:
            with probe.open("xb", buffering=0) as file:
                file.write(b"p" * MIB)
                os.fsync(file.fileno())
            probe.unlink()
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EIO, errno.EROFS):
                raise
            return problem.errno or 0
        return 0

    async def _ended(self) -> bool:
        return not self.process.alive

    async def heal(self) -> str:
        try:
            await until(self._ended, ENDS_S, ProcessBroken("it went on"))
            ended = f"it had ended with exit code {self.process.code}"
        except ProcessBroken:
            ended = "it went on, and was killed -9"
            await self.process.kill()
        self._filler.unlink(missing_ok=True)
        try:
            await asyncio.to_thread(self.disk.repair)
        except ProcessBroken as problem:
            raise NotHealed(str(problem)) from None
        if code := await asyncio.to_thread(self._probe):
            raise NotHealed(f"fsync still fails on {self.disk.at}: {os.strerror(code)}")
        return f"{ended}; fsync succeeds again; {await self.answering()}"
