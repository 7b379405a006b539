"""What of a machine is bad for a broker: from facts to findings, without asking anybody.

Each limit has its reason beside it. A fact that is not known here (None) is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tandemmq.doctor.findings import Finding, Severity, size_text

HERE: Final = "this machine"
MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: so much may be dirty before the kernel makes writers wait; a broker that is made to wait answers nobody
DIRTY_BYTES_MAX: Final = 2 * GIB
#: a mapping per open file of a store, and a queue has one at least: RocketMQ's own advice is above this
MAP_COUNT_MIN: Final = 262_144
OPEN_FILES_MIN: Final = 65_536  # as cluster/process.py wants it
SWAPPINESS_MAX: Final = 10
#: what is read a moment after it was written comes from the page cache, if there is room for it
CACHE_BYTES_MIN: Final = 512 * MIB
#: what a broker needs for itself, and as much again for what it writes (docs/benchmarks.md has the measured memory)
LIMIT_BYTES_MIN: Final = 256 * MIB
DISK_WARNING: Final = (
    0.80  # retention begins to delete before its time at 0.75, diskMaxUsedSpaceRatio
)
DISK_CRITICAL: Final = 0.90  # a store refuses messages from here on
INODES_WARNING: Final = 0.95
LOWEST_PORT: Final = (
    10_912  # of the usual ones the highest: an outgoing connection may take it first
)
FAST_CLOCKS: Final = frozenset(
    {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"}
)
GOOD_FILE_SYSTEMS: Final = frozenset({"ext4", "xfs", "btrfs", "zfs", "f2fs", "ext3", "bcachefs"})
REMOTE_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs", "lustre", "afs"}
)


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Where a store lies, or will.

    path         as it was named; mount, file_system and device are of the nearest directory that exists
    used         share of the file system that is taken, as root's reserve leaves it for others
    inodes_used  share of its inodes, None where it has no fixed number
    writable     for whoever asks
    owner        user id of the directory
    directory    whether what exists of the path is one
    """

    path: str
    mount: str
    file_system: str
    used: float
    free_bytes: int
    inodes_used: float | None
    read_only: bool
    writable: bool
    owner: int
    directory: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A machine, or a container's share of it; None where it does not say.

    memory_bytes        of the machine; available_bytes of it can be had without swapping
    limit_bytes         of the container or unit (cgroup), limit_used_bytes of it in use without the page cache
    dirty_bytes         may be dirty before writers wait; background_bytes before the kernel begins to write
    open_files          how far this user may raise the limit on open files
    map_count           vm.max_map_count
    clock_synchronised  whether something keeps the kernel's clock right
    processor_share     processors that the cgroup may use, where it is limited
    first_local_port    where the ports of outgoing connections begin
    compiled            whether the compiled modules are used
    """

    user: int = 0
    memory_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swappiness: int | None = None
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None
    dirty_bytes: int | None = None
    background_bytes: int | None = None
    open_files: int | None = None
    map_count: int | None = None
    clock_source: str | None = None
    clock_synchronised: bool | None = None
    processor_share: float | None = None
    first_local_port: int | None = None
    compiled: bool = True
    disks: tuple[DiskFacts, ...] = ()


def host_findings(facts: HostFacts) -> list[Finding]:
    """Everything that looks wrong on this machine."""
    return [
        *_memory(facts),
        *_kernel(facts),
        *_clock(facts),
        *(found for disk in facts.disks for found in _disk(disk, facts.user)),
    ]


def _memory(facts: HostFacts) -> Iterator[Finding]:
    if facts.limit_bytes is not None and facts.limit_bytes < LIMIT_BYTES_MIN:
        yield _warning(
            "memory-limit",
            f"the container or unit may use {size_text(facts.limit_bytes)}, page cache included",
            f"give a broker {size_text(LIMIT_BYTES_MIN)} at least (mem_limit, MemoryMax, resources.limits.memory)",
        )
    room = facts.available_bytes
    if facts.limit_bytes is not None and room is not None:
        room = min(room, facts.limit_bytes - (facts.limit_used_bytes or 0))
    if room is not None and room < CACHE_BYTES_MIN:
        yield _warning(
            "page-cache",
            f"{size_text(max(room, 0))} of memory are free for the page cache: consumers that are a little behind "
            "will wait for the disk",
            f"leave {size_text(CACHE_BYTES_MIN)} or more free beside what runs here",
        )
    if facts.swap_bytes and (facts.swappiness or 0) > SWAPPINESS_MAX:
        yield _advice(
            "swappiness",
            f"vm.swappiness is {facts.swappiness}: the kernel may swap a broker out, which stops it for seconds",
            "sysctl -w vm.swappiness=1",
        )


def _kernel(facts: HostFacts) -> Iterator[Finding]:
    if facts.dirty_bytes is not None and facts.dirty_bytes > DIRTY_BYTES_MAX:
        yield _advice(
            "dirty-memory",
            f"{size_text(facts.dirty_bytes)} of memory may wait to be written, and writing begins at "
            f"{size_text(facts.background_bytes or 0)}: once full every write waits, and a power cut takes all of it "
            "(ASYNC_FLUSH)",
            f"sysctl -w vm.dirty_background_bytes={256 * MIB} vm.dirty_bytes={GIB}",
        )
    if facts.map_count is not None and facts.map_count < MAP_COUNT_MIN:
        yield _advice(
            "max-map-count",
            f"vm.max_map_count is {facts.map_count}: each file of a store that is read is mapped, "
            "and many topics have many files",
            f"sysctl -w vm.max_map_count={MAP_COUNT_MIN}",
        )
    if facts.open_files is not None and facts.open_files < OPEN_FILES_MIN:
        yield _warning(
            "open-files",
            f"a server may open {facts.open_files} files; connections and files of a store share them",
            f"ulimit -Hn {OPEN_FILES_MIN}, LimitNOFILE={OPEN_FILES_MIN} of a unit, or docker's ulimits: nofile",
        )
    if facts.first_local_port is not None and facts.first_local_port <= LOWEST_PORT:
        yield _warning(
            "local-ports",
            f"outgoing connections take ports from {facts.first_local_port} on: one of them may have a server's port "
            "when it starts",
            'sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
        )
    if facts.processor_share is not None and facts.processor_share < 1:
        yield _advice(
            "processor-limit",
            f"the container or unit may use {facts.processor_share:g} of a processor: it is stopped in the middle "
            "of its work when that is used up, and everybody waits",
            "limit it by weight (cpu_shares, CPUWeight, resources.requests.cpu), not by time",
        )
    if not facts.compiled:
        yield _advice(
            "compiled",
            "the compiled modules are not used: everything works, several times slower",
            "install a wheel, or a C compiler before pip install; TANDEM_PURE_PYTHON must not be set",
        )


def _clock(facts: HostFacts) -> Iterator[Finding]:
    if facts.clock_synchronised is False:
        yield _advice(
            "clock",
            "nothing keeps this machine's clock right (the kernel says: not synchronised)",
            "run chrony or systemd-timesyncd: delayed messages, retention and searches by time go by the clock",
        )
    if facts.clock_source is not None and facts.clock_source not in FAST_CLOCKS:
        yield _advice(
            "clock-source",
            f"reading the clock is slow here (clock source {facts.clock_source})",
            "if this is a virtual machine let its hypervisor offer kvm-clock or a stable tsc",
        )


def _disk(disk: DiskFacts, user: int) -> Iterator[Finding]:
    where = disk.path
    if disk.read_only:
        yield Finding(
            "disk-read-only", Severity.CRITICAL, where, f"{disk.mount} is mounted read-only",
            "look into the kernel's log for an error of the disk before you mount it again for writing",
        )  # fmt: skip
    elif not disk.directory:
        yield Finding(
            "disk-no-directory", Severity.CRITICAL, where, "this is a file, and no directory",
            "name a directory in storePathRootDir; a broker makes it where it is missing",
        )  # fmt: skip
    elif not disk.writable and disk.owner == user:
        yield Finding(
            "disk-owner", Severity.CRITICAL, where,
            f"user {user} may not write there, although it belongs to this user",
            f"chmod -R u+rwX {disk.path}",
        )  # fmt: skip
    elif not disk.writable:
        yield Finding(
            "disk-owner", Severity.CRITICAL, where,
            f"user {user} may not write there; it belongs to user {disk.owner}",
            f"chown -R {user} {disk.path}, or run the server as the user whom it belongs to",
        )  # fmt: skip
    if disk.used >= DISK_WARNING:
        full = disk.used >= DISK_CRITICAL
        yield Finding(
            "disk-space", Severity.CRITICAL if full else Severity.WARNING, where,
            f"{disk.mount} is {disk.used:.0%} full, {size_text(disk.free_bytes)} are free"
            + (": a broker takes no message above 90 %" if full else ""),
            "make room, add space, or lower fileReservedTime so that old messages go earlier",
        )  # fmt: skip
    if disk.inodes_used is not None and disk.inodes_used >= INODES_WARNING:
        yield Finding(
            "disk-inodes", Severity.WARNING, where,
            f"{disk.inodes_used:.0%} of the inodes of {disk.mount} are taken: no new file soon, whatever space is left",
            "delete what has many small files, or make the file system anew with more inodes",
        )  # fmt: skip
    kind = disk.file_system
    if kind in REMOTE_FILE_SYSTEMS:
        yield Finding(
            "disk-remote", Severity.WARNING, where,
            f"{disk.mount} is {kind}, on another machine: what a flush is worth there is that machine's word",
            "keep stores on a disk of this machine; replicas are on the others",
        )  # fmt: skip
    elif kind in ("tmpfs", "ramfs"):
        yield Finding(
            "disk-memory", Severity.WARNING, where,
            f"{disk.mount} is {kind}: what is stored there is gone with the machine's power",
            "mount a disk there, if messages are to be kept",
        )  # fmt: skip
    elif kind == "overlay":
        yield Finding(
            "disk-container", Severity.WARNING, where,
            "it lies in the container's own layer: what is stored there is gone with the container",
            "mount a volume there (-v tandem:/data)",
        )  # fmt: skip
    elif kind.startswith("fuse") or (kind and kind not in GOOD_FILE_SYSTEMS):
        yield Finding(
            "disk-file-system", Severity.ADVICE, where,
            f"{disk.mount} is {kind}: stores are tested on ext4 and xfs", "use one of these",
        )  # fmt: skip


def _warning(check: str, text: str, do: str) -> Finding:
    return Finding(check, Severity.WARNING, HERE, text, do)


def _advice(check: str, text: str, do: str) -> Finding:
    return Finding(check, Severity.ADVICE, HERE, text, do)
