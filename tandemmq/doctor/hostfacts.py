"""Facts of this machine for tandemmq.doctor.host: from /proc, /sys, limits and the file systems of stores.

Reading them takes some milliseconds and changes nothing. What is not to be had is None: not every kernel, container
and operating system says everything.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tandemmq.doctor.host import DiskFacts, HostFacts
from tandemmq.storage import COMPILED

ROOT: Final = Path("/")
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC of adjtimex(2)
_TIMEX_BYTES: Final = 512  # more than struct timex has anywhere
_UNLIMITED_BYTES: Final = 1 << 60


def host_facts(stores: Sequence[Path], root: Path = ROOT) -> HostFacts:
    """stores: directories of brokers. root: where /proc and /sys are, for tests."""
    kernel = root / "proc" / "sys"
    memory = _meminfo(root / "proc" / "meminfo")
    limit, used = _memory_limit(root / "sys" / "fs" / "cgroup")
    total = memory.get("MemTotal")
    available = memory.get("MemAvailable")
    ports = _text(kernel / "net" / "ipv4" / "ip_local_port_range")
    clock = (
        root / "sys" / "devices" / "system" / "clocksource" / "clocksource0" / "current_clocksource"
    )
    return HostFacts(
        user=os.geteuid(),
        memory_bytes=total,
        available_bytes=available,
        swap_bytes=memory.get("SwapTotal"),
        swappiness=_number(kernel / "vm" / "swappiness"),
        limit_bytes=limit,
        limit_used_bytes=used,
        dirty_bytes=_dirty(kernel / "vm", "dirty", available),
        background_bytes=_dirty(kernel / "vm", "dirty_background", available),
        open_files=_open_files(),
        map_count=_number(kernel / "vm" / "max_map_count"),
        clock_source=_text(clock),
        clock_synchronised=clock_synchronised(),
        processor_share=_processor_share(root / "sys" / "fs" / "cgroup"),
        first_local_port=int(ports.split()[0]) if ports else None,
        compiled=COMPILED,
        disks=tuple(disk_facts(store, root / "proc" / "self" / "mounts") for store in stores),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _meminfo(path: Path) -> dict[str, int]:
    """Name -> bytes."""
    found = {}
    for line in (_text(path) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[0] if rest.split() else ""
        if number.isdecimal():
            found[name] = int(number) * 1024
    return found


def _dirty(folder: Path, name: str, available: int | None) -> int | None:
    """Bytes that may be dirty: fixed, or a share of the memory that can be had."""
    fixed = _number(folder / f"{name}_bytes")
    if fixed:
        return fixed
    ratio = _number(folder / f"{name}_ratio")
    return None if ratio is None or available is None else available * ratio // 100


def _memory_limit(cgroup: Path) -> tuple[int | None, int | None]:
    """(limit, used without page cache) of our cgroup, of either version; None without a limit."""
    for limit_name, stat_name in (
        ("memory.max", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.stat"),
    ):
        limit = _number(cgroup / limit_name)
        if limit is None or limit >= _UNLIMITED_BYTES:
            continue
        for line in (_text(cgroup / stat_name) or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("anon", "rss") and value.isdecimal():
                return limit, int(value)
        return limit, None
    return None, None


def _processor_share(cgroup: Path) -> float | None:
    quota, period = (*(_text(cgroup / "cpu.max") or "").split(), "", "")[:2]
    if quota.isdecimal() and period.isdecimal():
        return int(quota) / int(period)
    old, every = (
        _number(cgroup / "cpu" / "cpu.cfs_quota_us"),
        _number(cgroup / "cpu" / "cpu.cfs_period_us"),
    )
    return old / every if old is not None and old > 0 and every else None


def _open_files() -> int | None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where it cannot be asked."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (AttributeError, OSError):
        return None  # not Linux
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # mode 0: it only asks
    if ask(timex) < 0:
        return None
    longs = ctypes.sizeof(ctypes.c_long)
    at = 5 * longs  # modes (padded), offset, freq, maxerror, esterror
    return not int.from_bytes(timex.raw[at : at + 4], "little") & _UNSYNCHRONISED


def disk_facts(store: Path, mounts: Path = Path("/proc/self/mounts")) -> DiskFacts:
    """Of the directory, or of the nearest one above it that exists. Raises OSError."""
    directory = store.absolute()
    while not _exists(directory) and directory != directory.parent:
        directory = directory.parent
    space = os.statvfs(directory)
    usable = space.f_blocks - space.f_bfree + space.f_bavail
    mount, kind = _mount_of(directory.resolve(), _text(mounts) or "")
    return DiskFacts(
        path=str(store),
        mount=mount,
        file_system=kind,
        used=1 - space.f_bavail / usable if usable else 0.0,
        free_bytes=space.f_bavail * space.f_frsize,
        inodes_used=1 - space.f_favail / space.f_files if space.f_files else None,
        read_only=bool(space.f_flag & os.ST_RDONLY),
        writable=os.access(directory, os.W_OK | os.X_OK),
        owner=directory.stat().st_uid,
        directory=directory.is_dir(),
    )


def _exists(path: Path) -> bool:
    """A directory in one that may not be entered is not there for us."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _mount_of(directory: Path, mounts: str) -> tuple[str, str]:
    """(mount point, file system): the last one of the longest paths above it."""
    best, kind = Path("/"), ""
    for line in mounts.splitlines():
        _, where, found, *_ = line.split()
        point = Path(where.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if directory.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, found
    return str(best), kind
