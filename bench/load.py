"""One run of the load generator against one server, and the reasons to refuse its result."""

from __future__ import annotations

import contextlib
import json
import mmap
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench.build import blaster
from bench.servers import QUEUES, Server

#: a measured process that used less of a core than this did not do the work
CPU_SHARE_MIN: Final = 0.01
#: CPU used by other processes or stolen (in cores) above which a run is called contended
OTHERS_SHARE_MAX: Final = 0.1
#: generator busier than this while the server is not: the figure is a lower bound
GENERATOR_BUSY: Final = 0.95
DISPATCH_TIMEOUT_S: Final = 30.0
WARM_BLOCK_BYTES: Final = 2 << 20

Mode = Literal["send", "pull", "wake"]
Header = Literal["json", "binary"]


class RunRefused(Exception):
    """The run must not be reported: an answer was wrong, or another process did the work."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the generator does: connections x outstanding requests with bodies of `body_bytes`."""

    mode: Mode
    connections: int
    outstanding: int
    body_bytes: int = 1024
    header: Header = "json"
    rate: int = 0  # messages/s, open loop; 0: as fast as the closed loop goes
    tick_us: int = 0  # with a rate: how often to send and read; 0 takes a whole core for it
    behind: bool = False  # of a pull: far from the log's end, where a broker guesses that it must read the disk

    @property
    def name(self) -> str:
        """Stable: `--only` and readers of the JSON report use it."""
        size = f"{self.body_bytes // 1024}k" if self.body_bytes >= 1024 else str(self.body_bytes)
        paced = f"-at-{self.rate}" if self.rate else ""
        where = "-behind" if self.behind else ""
        return (
            f"{self.mode}-{self.connections}x{self.outstanding}-{size}-{self.header}{paced}{where}"
        )

    @property
    def topic(self) -> str:
        """Pulls have a topic per body size, filled before; sends share one."""
        where = "-behind" if self.behind else ""
        return (
            "bench-send" if self.mode == "send" else f"bench-{self.mode}-{self.body_bytes}{where}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One checked result of the generator. Rates count messages, times are microseconds."""

    rate: float
    messages: int
    seconds: float
    acknowledged_total: int
    body_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    cpu_us_per_message: float
    server_cpu_share: float
    server_wait_share: float
    generator_cpu_share: float
    generator_wait_share: float
    others_cpu_share: float
    stolen_share: float

    @property
    def contended(self) -> bool:
        """Other work on the machine, or the hypervisor, took the cores away."""
        return self.others_cpu_share + self.stolen_share > OTHERS_SHARE_MAX

    @property
    def generator_bound(self) -> bool:
        """The server could do more than the generator asks of it."""
        return self.generator_cpu_share > GENERATOR_BUSY > self.server_cpu_share


@dataclass(slots=True)
class Row:
    """All runs of one load against one server."""

    server: str
    load: Load
    cores: str
    command: str = ""
    runs: list[Run] = field(default_factory=list)

    @property
    def best(self) -> Run:
        """Of the uncontended runs, if any: the highest rate; of a paced load the lowest p99."""
        runs = [run for run in self.runs if not run.contended] or self.runs
        if self.load.rate:
            return min(runs, key=lambda run: run.p99_us)
        return max(runs, key=lambda run: run.rate)

    @property
    def median_rate(self) -> float:
        """The median of the runs' rates."""
        return statistics.median(run.rate for run in self.runs)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one run warms up and measures, or how many messages it sends; and the core."""

    warmup_s: float
    seconds: float
    core: int | None
    count: int = 0


def blaster_command(
    server: Server, load: Load, timing: Timing, topic: str, ranges: list[tuple[int, int]] | None
) -> list[str]:
    """The generator's command line for one run."""
    command = [
        str(blaster()),
        "--port",
        str(server.port),
        "--pid",
        str(server.pid),
        "--mode",
        load.mode,
        "--header",
        load.header,
        "--connections",
        str(load.connections),
        "--outstanding",
        str(load.outstanding),
        "--body",
        str(load.body_bytes),
        "--topic",
        topic,
        "--warmup",
        str(timing.warmup_s),
        "--seconds",
        str(timing.seconds),
    ]
    if ranges is not None:
        command += ["--ranges", ",".join(f"{low}:{high}" for low, high in ranges)]
    else:
        command += ["--queues", str(QUEUES)]
    if load.rate:
        command += ["--rate", str(load.rate)]
    if load.tick_us:
        command += ["--tick", str(load.tick_us)]
    if timing.count:
        command += ["--count", str(timing.count)]
    if timing.core is not None:
        command += ["--core", str(timing.core)]
    return command


def shown(command: list[str]) -> str:
    """A command line as one would type it in the repository, for any port and process."""
    root = str(blaster().parents[2]) + "/"
    parts = [part.removeprefix(root) for part in command]
    for option in ("--port", "--pid"):
        parts[parts.index(option) + 1] = option[2:].upper()
    return shlex.join(parts)


def run_load(server: Server, load: Load, timing: Timing, topic: str = "") -> tuple[Run, str]:
    """Run the generator once, on `topic` or the load's own; the result and its command line.

    Raises RunRefused unless every answer was right, the measured process lives, listens on the port
    and burnt CPU, and (brokers, sends) its queues grew by exactly what it acknowledged.
    """
    server.check_alive()
    topic = topic or load.topic
    ranges = server.queue_ranges(topic) if server.stores else None
    asked_ranges = ranges if load.mode != "send" else None
    command = blaster_command(server, load, timing, topic, asked_ranges)
    limit_s = timing.warmup_s + timing.seconds + 60 if not timing.count else 600
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        server.check_alive()
        raise RunRefused(
            f"{load.name} against {server.name}: {done.stderr.strip() or f'exit {done.returncode}'}"
        )
    run = read_result(json.loads(done.stdout), f"{load.name} against {server.name}")
    server.check_alive()
    if ranges is not None and load.mode == "send":
        check_growth(server, topic, ranges, run.acknowledged_total)
    return run, shown(command)


def read_result(given: dict[str, Any], what: str) -> Run:
    """Turn the generator's JSON into a Run; RunRefused when the server's process was idle."""
    if given["messages"] <= 0:
        raise RunRefused(f"{what}: no message inside the measured window")
    share = given["server_cpu_share"]
    if share < CPU_SHARE_MIN:
        raise RunRefused(
            f"{what}: the measured process used {share:.2%} of a core: another answered"
        )
    return Run(
        rate=given["rate"],
        messages=given["messages"],
        seconds=given["seconds"],
        acknowledged_total=given["acknowledged_total"],
        body_bytes=given["body_bytes"],
        p50_us=given["p50_us"],
        p99_us=given["p99_us"],
        p999_us=given["p999_us"],
        max_us=given["max_us"],
        cpu_us_per_message=given["server_cpu_ns"] / 1000 / given["messages"],
        server_cpu_share=share,
        server_wait_share=given["server_wait_share"],
        generator_cpu_share=given["generator_cpu_share"],
        generator_wait_share=given["generator_wait_share"],
        others_cpu_share=given["others_cpu_share"],
        stolen_share=given["stolen_share"],
    )


def check_growth(
    server: Server, topic: str, before: list[tuple[int, int]], acknowledged: int
) -> None:
    """The queues grew by what was acknowledged; dispatch into them gets 30 s to catch up."""
    wanted = sum(high for _, high in before) + acknowledged
    deadline = time.monotonic() + DISPATCH_TIMEOUT_S
    while (there := sum(high for _, high in server.queue_ranges(topic))) != wanted:
        if there > wanted or time.monotonic() > deadline:
            raise RunRefused(
                f"{server.name} acknowledged {acknowledged} messages, its queues grew by "
                f"{there - wanted + acknowledged}"
            )
        time.sleep(0.02)  # the pace of asking


def settle(data_dir: Path) -> None:
    """Write dirty pages of `data_dir`'s disk, so that no run pays for the one before."""
    subprocess.run(["sync", "-f", str(data_dir)], check=True, timeout=300)


@contextlib.contextmanager
def warm_memory(size: int) -> Iterator[None]:
    """Touch memory and free it: files that are written in the body get memory that is really there.

    A host takes what a virtual machine has freed, and who touches it next waits for the host, page by
    page (0.6 or 10 us, of a page of a file). It takes blocks of 2 MiB: one page of each is kept, and
    the others stay. About half of `size` was found to serve files.
    """
    blocks = max(min(size, available_bytes() // 2) // WARM_BLOCK_BYTES, 1)
    size = blocks * WARM_BLOCK_BYTES
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
        kept = mmap.PAGESIZE
        for start in range(0, size, WARM_BLOCK_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, start + kept, WARM_BLOCK_BYTES - kept)
        yield


def available_bytes() -> int:
    """Memory that may be used without anything being swapped out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RunRefused("/proc/meminfo does not tell how much memory is available")
