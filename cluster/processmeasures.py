"""What the kernel says of this process, under the names that Prometheus' own clients use."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

_NONE: Final = ()
_SELF: Final = Path("/proc/self")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def process_readers() -> Mapping[str, Callable[[], Iterable[tuple[tuple[str, ...], float]]]]:
    """Readers of tandemmq.cluster.metrics; where there is no /proc some have nothing to say."""
    return {
        "process_cpu_seconds_total": lambda: [(_NONE, sum(os.times()[:2]))],
        "process_resident_memory_bytes": _resident,
        "process_open_fds": _open_files,
        "process_max_fds": lambda: [(_NONE, resource.getrlimit(resource.RLIMIT_NOFILE)[0])],
        "process_start_time_seconds": _started,
    }


def _resident() -> Iterable[tuple[tuple[str, ...], float]]:
    if (_SELF / "statm").exists():
        yield _NONE, int((_SELF / "statm").read_text().split()[1]) * _PAGE_BYTES


def _open_files() -> Iterable[tuple[tuple[str, ...], float]]:
    if (_SELF / "fd").exists():
        yield _NONE, len(os.listdir(_SELF / "fd"))


def _started() -> Iterable[tuple[tuple[str, ...], float]]:
    if not (_SELF / "stat").exists():
        return
    ticks = int((_SELF / "stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    yield _NONE, round(time.time() - age_s, 2)
