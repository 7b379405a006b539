"""The whole measurement: loads against servers that take turns, and the single figures."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench.accounting import anonymous_bytes, cpu_ns
from bench.load import Load, Row, RunRefused, Timing, run_load, settle
from bench.servers import (
    QUEUES,
    Echo,
    RocketMQ,
    Server,
    Tandem,
    running,
)
from bench.wire import Line, RequestRefused
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.java import JavaFailed, java_missing

QUICK: Final = (
    Load("send", 8, 64),
    Load("send", 64, 1),
    Load("send", 8, 64, 16384),
    Load("send", 8, 64, header="binary"),
    Load("send", 64, 1, rate=10_000),
    Load("pull", 8, 4),
    Load("pull", 8, 4, behind=True),
)
FULL: Final = (
    *QUICK,
    Load("send", 1, 1),
    Load("send", 8, 1),
    Load("send", 1, 64),
    Load("send", 64, 16),
    Load("send", 8, 256),
    Load("send", 8, 64, 128),
    Load("send", 8, 64, 128, "binary"),
    Load("send", 64, 1, header="binary"),
    Load("send", 8, 64, 16384, "binary"),
    Load("pull", 1, 1),
    Load("pull", 8, 4, header="binary"),
)
PURE_LOADS: Final = ("send-8x64-1k-json", "send-64x1-1k-json", "pull-8x4-1k-json")
#: of bodies, per server, before its pulls; and once more behind those that are to be old
FILL_BYTES: Final = 400 << 20
#: RocketMQ's setting, in per cent of the machine's memory: what is older than that counts as on disk
MEMORY_RATIO: Final = "accessMessageInMemoryMaxRatio"
MEMORY_RATIO_DEFAULT: Final = 40
MEMORY_RATIO_BEHIND: Final = 1
WAKE: Final = Load("wake", 2, 1, 128)
WAKE_COUNT: Final = 1000
TOPIC_COUNT: Final = 1000
IDLE_SHARE_MAX: Final = 0.05  # of a core: what counts as idle


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how long."""

    loads: tuple[Load, ...]
    servers: frozenset[str]  # of ours, pure, echo, rocketmq
    runs: int
    warmup_s: float
    seconds: float
    rocketmq_warmup_s: float
    data_dir: Path
    server_cores: frozenset[int]
    all_cores: frozenset[int]
    generator_core: int | None

    @property
    def timing(self) -> Timing:
        return Timing(self.warmup_s, self.seconds, self.generator_core)


@dataclass(frozen=True, slots=True)
class Figure:
    """A single number: `value` in `unit`, `how` says what was done."""

    server: str
    name: str
    value: float
    unit: str
    how: str


@dataclass(slots=True)
class Results:
    """Everything that was measured, and what was not and why."""

    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    servers: dict[str, str] = field(default_factory=dict)  # name: the command that started it
    refused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def row(self, server: str, load: Load, cores: str) -> Row:
        """The row of a server and load, made when it is new."""
        for row in self.rows:
            if (row.server, row.load, row.cores) == (server, load, cores):
                return row
        row = Row(server, load, cores)
        self.rows.append(row)
        return row


def progress(text: str) -> None:
    """Tell the person who waits; the report itself goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def measure_all(plan: Plan) -> Results:
    """Run the plan. What is refused is recorded and never reported as a figure."""
    results = Results()
    plan.data_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=plan.data_dir))
        )
        bench = Bench(plan, directory, results)
        if "rocketmq" in plan.servers:
            if missing := java_missing():
                results.skipped.append(f"RocketMQ: {missing}")
            else:
                with bench.refusing("RocketMQ"):
                    bench.rocketmq = stack.enter_context(bench.started_rocketmq())
        if "echo" in plan.servers:
            bench.echo = stack.enter_context(running(Echo(plan.server_cores)))
            bench.echo.pause()
        for load in plan.loads:
            bench.measure_load(load)
        bench.measure_figures()
    return results


class Bench:
    """The servers that live through a measurement, and the order of work."""

    def __init__(self, plan: Plan, directory: Path, results: Results) -> None:
        self.plan = plan
        self.directory = directory
        self.results = results
        self.echo: Server | None = None
        self.rocketmq: Server | None = None
        self._serial = 0

    @contextlib.contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """Record a refused run or a failed server, and go on with the rest."""
        try:
            yield
        except (RunRefused, ProcessBroken, RequestRefused, JavaFailed, OSError) as error:
            self.results.refused.append(f"{what}: {error}")
            progress(f"  REFUSED {what}: {error}")

    @contextlib.contextmanager
    def tandem(
        self, *, pure_python: bool = False, memory_ratio: int = MEMORY_RATIO_DEFAULT
    ) -> Iterator[Server]:
        """Our broker over an empty store that is removed afterwards."""
        self._serial += 1
        directory = self.directory / f"ours-{self._serial}"
        try:
            more = {MEMORY_RATIO: str(memory_ratio)}
            with running(
                Tandem(directory, self.plan.server_cores, pure_python=pure_python, more=more)
            ) as server:
                yield server
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @contextlib.contextmanager
    def started_rocketmq(self) -> Iterator[Server]:
        """RocketMQ with both cores, its topic made, warmed up by load, and paused."""
        progress(f"starting Apache RocketMQ, then {self.plan.rocketmq_warmup_s:g} s of warm-up")
        server = RocketMQ(self.directory / "rocketmq", self.plan.all_cores)
        try:
            server.launch()
            first_ms = server.first_accepted_ms()
            server.get_ready()
            self.results.figures.append(
                Figure(
                    server.name,
                    "start to first accepted message",
                    first_ms,
                    "ms",
                    "empty store, all cores",
                )
            )
            warm = Timing(self.plan.rocketmq_warmup_s, 1.0, self.plan.generator_core)
            load = Load("send", 8, 64)
            server.create_topic(load.topic)
            run_load(server, load, warm)
            server.pause()
            yield server
        finally:
            server.stop()

    # ---- loads ----

    def measure_load(self, load: Load) -> None:
        """All servers take turns, `runs` rounds; only the measured one runs."""
        progress(f"{load.name}: {self.plan.runs} rounds")
        if load.mode == "pull":
            self._measure_pull(load)
            return
        for _ in range(self.plan.runs):
            if self.echo is not None:
                self._run_paused(self.echo, load, self.plan.server_cores)
            for pure_python in self._our_kinds(load):
                with self.refusing(load.name), self.tandem(pure_python=pure_python) as server:
                    server.create_topic(load.topic)
                    self._run(server, load, self.plan.server_cores)
            self._run_rocketmq(load)

    def _measure_pull(self, load: Load) -> None:
        ratio = MEMORY_RATIO_BEHIND if load.behind else MEMORY_RATIO_DEFAULT
        for pure_python in self._our_kinds(load):
            with (
                self.refusing(load.name),
                self.tandem(pure_python=pure_python, memory_ratio=ratio) as server,
            ):
                self._fill(server, load)
                for _ in range(self.plan.runs):
                    self._run(server, load, self.plan.server_cores)
        if self.rocketmq is not None:
            with self.refusing(load.name), resumed(self.rocketmq):
                self.rocketmq.pin(self.plan.all_cores)
                self.rocketmq.change(MEMORY_RATIO, str(ratio))
                self._fill(self.rocketmq, load)
                run_load(self.rocketmq, load, replace(self.plan.timing, seconds=5.0))  # its warm-up
            for _ in range(self.plan.runs):
                self._run_rocketmq(load)

    def _our_kinds(self, load: Load) -> list[bool]:
        kinds = [False] if "ours" in self.plan.servers else []
        if "pure" in self.plan.servers and load.name in PURE_LOADS:
            kinds.append(True)
        return kinds

    def _fill(self, server: Server, load: Load) -> None:
        server.create_topic(load.topic)
        if sum(high - low for low, high in server.queue_ranges(load.topic)):
            return  # by a pull of the same size before
        fill = Load("send", 8, 64, load.body_bytes)
        timing = replace(self.plan.timing, warmup_s=0.0, count=FILL_BYTES // load.body_bytes)
        run_load(server, fill, timing, load.topic)
        if load.behind:
            server.create_topic(fill.topic)
            run_load(server, fill, timing)

    def _run_rocketmq(self, load: Load) -> None:
        if self.rocketmq is None:
            return
        for cores in dict.fromkeys((self.plan.all_cores, self.plan.server_cores)):
            self._run_paused(self.rocketmq, load, cores)

    def _run_paused(self, server: Server, load: Load, cores: frozenset[int]) -> None:
        with self.refusing(load.name), resumed(server):
            server.pin(cores)
            self._run(server, load, cores)

    def _run(self, server: Server, load: Load, cores: frozenset[int]) -> None:
        settle(self.plan.data_dir)
        run, command = run_load(server, load, self.plan.timing)
        row = self.results.row(server.name, load, cores_text(cores))
        row.runs.append(run)
        row.command = command
        self.results.servers[server.name] = server.shown_command
        progress(
            f"  {server.name:18} {row.cores:8} {run.rate:12,.0f}/s"
            f" {run.cpu_us_per_message:8.2f} us CPU  waited {run.server_wait_share:.0%}"
            f"{'  contended' if run.contended else ''}"
        )

    # ---- single figures ----

    def measure_figures(self) -> None:
        """Start, memory and wake-up."""
        if "ours" in self.plan.servers:
            progress("start, memory and wake-up of our broker")
            with self.refusing("start"):
                self._figure_start()
            with self.refusing("memory"):
                self._figure_memory()
            with self.refusing("wake"), self.tandem() as server:
                self._figure_wake(server, self.plan.server_cores)
        if self.rocketmq is not None:
            with self.refusing("RocketMQ"), resumed(self.rocketmq):
                self._add(
                    self.rocketmq,
                    "anonymous memory",
                    anonymous_bytes(self.rocketmq.pid) / 1e6,
                    "MB",
                    "after the loads above",
                )
                self.rocketmq.pin(self.plan.all_cores)
                self._figure_wake(self.rocketmq, self.plan.all_cores)

    def _add(self, server: Server, name: str, value: float, unit: str, how: str) -> None:
        self.results.figures.append(Figure(server.name, name, value, unit, how))
        progress(f"  {server.name:18} {name}: {value:,.1f} {unit} ({how})")

    def _figure_start(self) -> None:
        starts = []
        for number in range(self.plan.runs):
            directory = self.directory / f"start-{number}"
            server = Tandem(directory, self.plan.server_cores)
            try:
                settle(self.plan.data_dir)
                server.launch()
                starts.append(server.first_accepted_ms())
                server.get_ready()
            finally:
                server.stop()
                shutil.rmtree(directory, ignore_errors=True)
        self._add(
            server,
            "start to first accepted message",
            min(starts),
            "ms",
            f"empty store, 1 core; the slowest of {len(starts)}: {max(starts):.0f} ms",
        )

    def _figure_memory(self) -> None:
        with self.tandem() as server:
            with Line(server.port) as line:
                for number in range(TOPIC_COUNT):
                    line.create_topic(f"bench-{number:04}", QUEUES)
            busy = idle_share(server.pid)
            if busy > IDLE_SHARE_MAX:
                raise RunRefused(
                    f"the broker used {busy:.0%} of a core with nobody connected: it is not idle"
                )
            self._add(
                server,
                "anonymous memory",
                anonymous_bytes(server.pid) / 1e6,
                "MB",
                f"idle with {TOPIC_COUNT:,} topics of {QUEUES} queues; CPU {busy:.2%} of a core",
            )

    def _figure_wake(self, server: Server, cores: frozenset[int]) -> None:
        server.create_topic(WAKE.topic)
        run, _ = run_load(server, WAKE, replace(self.plan.timing, count=WAKE_COUNT))
        how = f"{WAKE_COUNT:,} sends, at most 1,000/s, each to a held pull; {cores_text(cores)}"
        self._add(server, "long-poll wake p50", run.p50_us, "us", how)
        self._add(server, "long-poll wake p99", run.p99_us, "us", how)


def cores_text(cores: frozenset[int]) -> str:
    """How a report names where a server ran."""
    return "1 core" if len(cores) == 1 else f"{len(cores)} cores"


@contextlib.contextmanager
def resumed(server: Server) -> Iterator[None]:
    """Let a paused server run inside the block."""
    server.resume()
    try:
        yield
    finally:
        server.pause()


def idle_share(
    pid: int, seconds: float = 3.0, clock: Callable[[], float] = time.monotonic
) -> float:
    """Share of one core that a process used over `seconds`."""
    before, started = cpu_ns(pid), clock()
    time.sleep(seconds)
    return (cpu_ns(pid) - before) / 1e9 / (clock() - started)
