"""What /proc says about processes and the machine: CPU time, memory, who listens on a port."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process: its own memory, without the pages of mapped files."""
    found = re.search(
        r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    if found is None:
        raise ProcessLookupError(f"process {pid} has no RssAnon: it ended")
    return int(found[1]) * 1024


def cpu_ns(pid: int) -> int:
    """Nanoseconds on a CPU of all threads that live now (/proc/PID/schedstat is one thread's)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended meanwhile
    return total


def listens(pid: int, port: int) -> bool:
    """Whether this very process holds a listening socket on the TCP port; an ended one does not."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            return False  # it ended: a process that nobody waited for yet has no sockets left
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(entry) in inodes:
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    return False


def maps_file(pid: int, module: str) -> bool:
    """Whether the process has loaded the extension module of this name."""
    return f"/{module}." in Path(f"/proc/{pid}/maps").read_text()


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures depend on and a reader cannot see."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    data_filesystem: str
    load_average: float  # of the last minute, at the start: other work makes figures worse


def describe_machine(data_dir: Path) -> Machine:
    """The machine that `data_dir` and this process are on."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return Machine(
        cpu=model[1] if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(int(memory[1]) / (1 << 20), 1) if memory else 0.0,
        kernel=platform.release(),
        python=platform.python_version(),
        data_filesystem=filesystem_of(data_dir),
        load_average=round(os.getloadavg()[0], 2),
    )


def filesystem_of(path: Path) -> str:
    """The type of the file system that holds an existing path."""
    best = ("", "unknown")
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def machine_as_dict(machine: Machine) -> dict[str, object]:
    """For the JSON report."""
    return asdict(machine)
