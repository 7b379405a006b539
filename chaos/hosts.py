"""Machines that lose their power: each replica's store lies on a file system of its own, on a loop device.

A cut shuts that file system down without flushing its journal (the kernel's own ioctl for testing this), so that
what no fsync wrote is gone: data, sizes, new files, renames. Then the host's processes are killed, the file
system is mounted again, and the kernel looks freshly booted to the broker: it is shown another boot id.
Needs root and loop devices; unsupported() says what is missing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import struct
import subprocess
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, Self

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.processes import ProcessBroken, run

FileSystem = Literal["ext4", "xfs"]
FILE_SYSTEMS: Final[tuple[FileSystem, ...]] = ("ext4", "xfs")
IMAGE_BYTES: Final = 2 << 30  # sparse; stores that were moved away stay
#: EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one: _IOR('X', 125, __u32)
SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = struct.pack("I", 2)
UNMOUNT_S: Final = 10.0
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
#: shows the boot id of a host to what it starts, which keeps no other host's disk mounted: not of this group, and
#: not of another campaign on this machine. Arguments: boot id, where it is shown, the host's own disk, the command
AS_HOST: Final = """
mount --bind "$1" "$2"
while read -r device at type rest; do
    case "$device $type" in
        "/dev/loop"*" ext4" | "/dev/loop"*" xfs") [ "$at" = "$3" ] || umount "$at" || true ;;
    esac
done </proc/self/mounts 2>/dev/null
shift 3
exec "$@"
"""


def as_host(disk: Disk) -> list[str]:
    """What to put before a command that runs on the host of this disk."""
    return [
        "unshare", "-m", "--propagation", "private", "sh", "-ec", AS_HOST, "host",
        str(disk.boot_id), BOOT_ID, str(disk.at.resolve()),
    ]  # fmt: skip


def unsupported(file_system: FileSystem) -> str:
    """What is missing here; "" when hosts can lose their power."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems"
    for tool in (f"mkfs.{file_system}", "losetup", "mount", "umount", "unshare"):
        if shutil.which(tool) is None:
            return f"needs {tool} (packages e2fsprogs, xfsprogs, util-linux)"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices (/dev/loop-control)"
    probe = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True)
    return "needs mount namespaces (unshare -m)" if probe.returncode else ""


class Disk:
    """One host's file system in an image file, and the host's boot id."""

    def __init__(self, directory: Path, number: int, file_system: FileSystem) -> None:
        self.file_system = file_system
        self.image = directory / f"replica-{number}.img"
        self.at = directory / f"replica-{number}" / "disk"
        self.boot_id = directory / f"replica-{number}.boot_id"
        self.mounted = False

    def make(self) -> None:
        """Raises ProcessBroken."""
        with self.image.open("xb") as image:
            image.truncate(IMAGE_BYTES)
        run(f"mkfs.{self.file_system}", "-q", str(self.image))
        self.at.mkdir(parents=True)
        self.boot()

    def boot(self) -> None:
        """Mount, as a machine does that starts. Raises ProcessBroken."""
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        run("mount", "-t", self.file_system, "-o", "loop", str(self.image), str(self.at))
        self.mounted = True

    def cut(self) -> None:
        """From now on nothing reaches the disk. Raises OSError."""
        directory = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(directory)

    def unmount(self) -> None:
        """Raises ProcessBroken when somebody keeps it busy, in a mount namespace of his own perhaps: what is
        mounted then would be the same file system again, shut down."""
        if not self.mounted:
            return
        deadline = time.monotonic() + UNMOUNT_S
        while True:
            done = subprocess.run(["umount", self.at], check=False, capture_output=True, text=True)
            if done.returncode == 0:
                self.mounted = False
                break
            if time.monotonic() > deadline:
                raise ProcessBroken(f"cannot unmount {self.at}: {done.stderr}")
            time.sleep(0.05)
        while run("losetup", "-j", str(self.image)):
            if time.monotonic() > deadline:
                raise ProcessBroken(f"somebody else keeps {self.at} mounted")
            time.sleep(0.05)

    def is_shut(self) -> bool:
        """Whether the cut had its effect: a new file is refused."""
        try:
            (self.at / "after-the-cut").write_bytes(b"x")
        except OSError:
            return True
        return False


class Disks:
    """The disks of all hosts, mounted inside the block."""

    def __init__(self, directory: Path, count: int, file_system: FileSystem) -> None:
        self.all = [Disk(directory, number, file_system) for number in range(count)]

    def __enter__(self) -> Self:
        try:
            for disk in self.all:
                disk.make()
        except ProcessBroken:
            self._unmount()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()

    def _unmount(self) -> None:
        for disk in self.all:
            disk.unmount()


class HostGroup(ReplicaGroup):
    """A group of which every replica is a host with a disk."""

    def __init__(self, directory: Path, plan: GroupPlan, disks: Disks) -> None:
        self.disks = disks.all
        self.cut_ns = 0  # when power was cut last
        super().__init__(directory, plan)
        for replica, disk in zip(self.replicas, self.disks, strict=True):
            replica.prefix = as_host(disk)

    def store_of(self, number: int) -> Path:
        return self.disks[number].at / "store"

    async def cut_power(self, victims: Iterable[ReplicaProcess]) -> int:
        """All of them at once: nobody runs any more and nothing more is written. The time, ns.

        A process is stopped before its disk is: it acknowledges nothing that it wrote to a disk that is gone, and
        meets no error that a machine without power would not meet. Raises ProcessBroken without effect.
        """
        hosts = [(each, self.disks[each.number]) for each in victims]
        self.cut_ns = at_ns = time.monotonic_ns()
        await asyncio.gather(*(replica.pause() for replica, _ in hosts))
        for _, disk in hosts:
            disk.cut()
        for replica, disk in hosts:
            await replica.kill()
            if not disk.is_shut():
                raise ProcessBroken(f"the disk of {replica.name} still takes files after its cut")
        for _, disk in hosts:
            await asyncio.to_thread(disk.unmount)
        return at_ns

    async def power(self, replica: ReplicaProcess) -> None:
        """The host is back: its disk with what was written, and its broker starting."""
        await asyncio.to_thread(self.disks[replica.number].boot)
        replica.launch()
