"""Seeds, each in a process of its own that ends without cleaning up: what was killed in it must not act again."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import msgspec

from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.whole.classic import ClassicPair
from tandemmq.chaos.whole.cluster import WholeCluster
from tandemmq.chaos.whole.scheduled import ScheduledFaults
from tandemmq.chaos.whole.stage import Finding
from tandemmq.cluster.config import keys_of
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.cluster.remoting.headers import Header
from tandemmq.replication.config import Mode

MEMORY: Final = Path("/dev/shm")  # files there are what the page cache is elsewhere
EVENTS: Final = 2000
CPU_S_MAX: Final = 60  # of a seed, which takes a fifth of a second: something goes round and round

Plant = Callable[[], None]
"""Makes the code worse, once, before anything runs."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """What to run.

    left_out  faults that do not happen, by their number in the seed
    schedule  faults that happen instead of the seed's own
    classic   a pair without a controller
    """

    seed: int
    events: int = EVENTS
    mode: Mode | None = None
    left_out: frozenset[int] = frozenset()
    plant: Plant | None = None
    trace: bool = False
    schedule: Schedule | None = None
    classic: bool = False


@dataclass(slots=True)
class SeedOutcome:
    """What one seed was.

    promise  which did not hold, "" when all did; finding: what is wrong
    doubts   faults of a schedule that were not played
    """

    seed: int
    mode: str = ""
    events: int = 0
    faults: int = 0
    acked: int = 0
    delivered: int = 0
    digest: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    promise: str = ""
    finding: str = ""
    classic: bool = False
    marks: dict[str, int] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def run_seed(run: SeedRun) -> SeedOutcome:
    """One seed's outcome. Raises OSError when no process is to be had."""
    return next(run_seeds([run], jobs=1))


def run_seeds(runs: Iterable[SeedRun], *, jobs: int = 2) -> Iterator[SeedOutcome]:
    """The outcome of each, as they end; `jobs` at once."""
    left = iter(runs)
    working: dict[int, tuple[int, int, list[bytes]]] = {}  # pipe -> pid, seed, what it said so far
    while True:
        while len(working) < jobs and (run := next(left, None)) is not None:
            pipe, pid = _begin(run)
            working[pipe] = pid, run.seed, []
        if not working:
            return
        for pipe in select.select(list(working), [], [])[0]:
            pid, seed, said = working[pipe]
            data = os.read(pipe, 1 << 16)
            if data:
                said.append(data)
                continue
            os.close(pipe)
            os.waitpid(pid, 0)
            del working[pipe]
            if said:
                yield msgspec.msgpack.decode(b"".join(said), type=SeedOutcome)
            else:
                yield SeedOutcome(seed, promise="CRASHED", finding="the seed's process died")


def _begin(run: SeedRun) -> tuple[int, int]:
    _learn_shapes()
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writes)
        return reads, pid
    gc.disable()  # a seed is over before it pays; and nothing that was killed may be cleaned up
    directory = MEMORY if MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix=f"tandem-whole-{run.seed}-", dir=directory))
    found = SeedOutcome(run.seed, classic=run.classic)

    def end() -> NoReturn:
        shutil.rmtree(root, ignore_errors=True)
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(found))
        sys.stdout.flush()
        os._exit(0)

    def spins(number: int, frame: FrameType | None) -> None:
        found.promise, found.finding = "SPINS", "".join(traceback.format_stack(frame))
        end()

    signal.signal(signal.SIGPROF, spins)
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
    _play_whole(run, root, found)
    end()


@functools.cache
def _learn_shapes() -> None:
    """Have msgspec look at every structure before the first seed: it remembers, in processes forked later, too."""
    left: list[type[msgspec.Struct]] = [msgspec.Struct]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if issubclass(kind, Header):
            with contextlib.suppress(HeaderProblem):  # it needs fields, but is known from now on
                kind.from_ext({})
        elif kind.__struct_fields__:
            keys_of(kind)
            with contextlib.suppress(TypeError):  # it is never read from bytes
                msgspec.json.Decoder(kind)


def _play_whole(run: SeedRun, root: Path, found: SeedOutcome) -> None:
    cpu_s = time.process_time
    logging.getLogger("tandemmq").setLevel(logging.CRITICAL + 1)
    try:
        if run.plant is not None:
            run.plant()
        _play(run, root, found)
    except Exception as problem:  # in the simulation itself, or in what it calls: a finding, too
        found.promise, found.finding = "BROKEN", "".join(traceback.format_exception(problem))
    found.cpu_s = cpu_s()


def _play(run: SeedRun, root: Path, found: SeedOutcome) -> None:
    cluster = (ClassicPair if run.classic else WholeCluster)(
        run.seed, root, mode=run.mode, left_out=run.left_out, schedule=run.schedule
    )
    stage = cluster.stage
    if run.trace:
        stage.trace = print
        stage.follow_logs()
        print(cluster.scenario)
    try:
        cluster.run(run.events)
    except Finding as finding:
        found.promise, found.finding = finding.name, str(finding)
        if run.trace:
            traceback.print_exc()
    found.mode, found.marks = cluster.scenario.mode.value, stage.marks
    found.events, found.digest = stage.events, stage.digest
    found.faults, found.simulated_s = cluster.faults.count, stage.now_us / 1e6
    if isinstance(cluster.faults, ScheduledFaults):
        found.doubts = cluster.faults.doubts
    found.acked = len(cluster.load.book.acked)
    found.delivered = cluster.load.book.deliveries


def shrunk(run: SeedRun) -> tuple[SeedRun, SeedOutcome]:
    """The same seed with the fewest faults that still break the same promise: none of them can be left out alone.

    Raises ValueError when it breaks none.
    """
    worst = run_seed(run)
    if not worst.promise:
        raise ValueError(f"seed {run.seed} breaks no promise")
    needed = [number for number in range(1, worst.faults + 1) if number not in run.left_out]
    size = max(1, len(needed) // 2)
    while True:
        smaller = False
        for at in range(0, len(needed), size):
            rest = needed[:at] + needed[at + size :]
            left_out = frozenset(range(1, worst.faults + 1)) - set(rest)
            tried = run_seed(_without(run, left_out | run.left_out))
            if tried.promise == worst.promise:
                needed, smaller = rest, True
                break
        if not smaller and size == 1:
            break
        if not smaller:
            size = max(1, size // 2)
    least = _without(run, frozenset(range(1, worst.faults + 1)) - set(needed) | run.left_out)
    return least, run_seed(least)


def _without(run: SeedRun, left_out: frozenset[int]) -> SeedRun:
    return replace(run, left_out=left_out)
