"""What waiting for a slave costs: `python -m bench.modes`.

Two pairs of a master and a slave run side by side, an asynchronous one and a synchronous one, and are
loaded in turns of less than a second: both ship the log, only the second waits for it before it answers.
What else a machine does, or its host, lasts longer than a turn and so meets both. Then an asynchronous
pair is loaded to half of its rate, and how far its slave is behind is looked at every few ms.

Processes have luck that lasts as long as they do: where their memory lies, mostly. So there are many pairs
with a few turns of each, and the standard error is that of the pairs. Turns in which the host took more than
5 % of a core are shown and left out, each with the other mode's turn beside it.

The master has the first core; the slave shares the second with the load generator, and with who looks
at its lag. While the lag is looked at, the generator sleeps between sends: one that looks for what is due
without a pause keeps the slave waiting for the core for milliseconds, and that would be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.accounting import cpu_ns
from bench.build import CACHE, BuildFailed
from bench.load import Load, Run, RunRefused, Timing, run_load, settle, warm_memory
from bench.measure import progress
from bench.servers import PORTS, Server, running, write_conf
from bench.wire import Line, RequestRefused
from tandemmq.chaos.processes import ProcessBroken

DEEP: Final = Load("send", 8, 64)
WIDE: Final = Load("send", 64, 1)
LOADS: Final = (WIDE, DEEP)  # what leaves less behind for the disk and the host comes first
REQUIRED: Final = {DEEP: 0.85, WIDE: 0.90}
MORE_TURNS: Final = {DEEP: 1, WIDE: 2}  # each stores a fifth as much
STOLEN_MAX: Final = 0.05  # cores that the host took, in a turn that counts
MODES: Final = {"async": "ASYNC_MASTER", "sync": "SYNC_MASTER"}
LAG_MS_MAX: Final = 10.0
LAG_SECONDS: Final = 5.0
LAG_WINDOWS: Final = 3  # what a host takes away for a moment shall not decide
WARM_BYTES: Final = 12 << 30  # about twice what two pairs store in their turns, if there is as much
LAG_RATE_MIN: Final = 0.95  # of what was asked for
LAG_TICK_US: Final = 200
TURN_WARMUP_S: Final = 0.2
SAMPLE_S: Final = 0.002
FOLLOWED_S: Final = 20.0


class ReplicaServer(Server):
    """One of a pair, with the settings given."""

    def __init__(self, name: str, directory: Path, core: int, more: dict[str, str]) -> None:
        port = PORTS.take()
        conf = write_conf(directory, port, more)
        command = [sys.executable, "-m", "tandemmq", "broker", "-c", str(conf)]
        super().__init__(name, command, port, "boot success", cores=frozenset({core}))


@dataclass(frozen=True, slots=True)
class Turn:
    """One run against one pair."""

    run: Run
    slave_cpu_us: float  # per message


@dataclass(slots=True)
class Row:
    """What counts of one load against one kind of pair."""

    load: Load
    mode: str
    pairs: list[list[Turn]] = field(default_factory=list)  # of each pair its turns; some have none

    @property
    def turns(self) -> list[Turn]:
        return [turn for turns in self.pairs for turn in turns]

    @property
    def best(self) -> Run:
        return max((turn.run for turn in self.turns), key=lambda run: run.rate)

    @property
    def median_rate(self) -> float:
        return statistics.median(turn.run.rate for turn in self.turns)

    @property
    def rates(self) -> list[list[float]]:
        """By pair; those of which no turn counts are left out."""
        return [[turn.run.rate for turn in turns] for turns in self.pairs if turns]


@contextlib.contextmanager
def pair(directory: Path, mode: str, cores: tuple[int, int]) -> Iterator[tuple[Server, Server]]:
    """A master of this mode and its slave, which has caught up."""
    master = ReplicaServer(
        f"{mode} master", directory / "master", cores[0], {"brokerRole": MODES[mode]}
    )
    with running(master):
        role = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "haMasterAddress": f"127.0.0.1:{master.port + 1}",
        }
        with running(ReplicaServer(f"{mode} slave", directory / "slave", cores[1], role)) as slave:
            wait_followed(master)
            yield master, slave


def wait_followed(master: Server, end: int | None = None) -> None:
    """Until a slave holds the log, of `end` bytes at least."""
    deadline = time.monotonic() + FOLLOWED_S
    with Line(master.port) as line:
        while True:
            status = line.ha_status()
            held = [each["slaveAckOffset"] for each in status["haConnectionInfo"]]
            if held and max(held) >= (status["masterCommitLogMaxOffset"] if end is None else end):
                return
            if time.monotonic() > deadline:
                raise ProcessBroken(f"no slave of {master.name} has caught up: {status}")
            time.sleep(SAMPLE_S)  # the pace of asking


class LagWatch:
    """Asks a master again and again where its log ends and how much of it the slave holds.

    core   where it runs: not on the master's, which it would make wait
    """

    def __init__(self, port: int, core: int) -> None:
        self._port = port
        self._core = core
        self._stop = threading.Event()
        self._ends: list[int] = []
        self._times: list[float] = []
        self.lags_ms: list[float] = []
        self.failure: Exception | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="lag watch")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if self.failure is not None:
            raise RunRefused(f"the lag could not be watched: {self.failure}")

    def _run(self) -> None:
        os.sched_setaffinity(0, {self._core})  # of this thread only
        try:
            with Line(self._port) as line:
                while not self._stop.wait(SAMPLE_S):
                    self._note(line.ha_status(), time.monotonic())
        except (OSError, RequestRefused, KeyError, IndexError) as error:
            self.failure = error

    def _note(self, status: dict[str, Any], now: float) -> None:
        """A slave's lag is the age of the oldest byte that it lacks, as exact as the sampling."""
        self._ends.append(int(status["masterCommitLogMaxOffset"]))
        self._times.append(now)
        held = int(status["haConnectionInfo"][0]["slaveAckOffset"])
        at = bisect_right(self._ends, held)
        behind = at < len(self._ends)
        self.lags_ms.append((now - self._times[at - 1]) * 1000 if behind and at else 0.0)


def measure_modes(given: argparse.Namespace, data_dir: Path) -> tuple[list[Row], list[float], int]:
    """(rows, lags in ms, the rate they were measured at)."""
    cores = sorted(os.sched_getaffinity(0))
    places = (cores[0], cores[-1])
    rows = {(load, mode): Row(load, mode) for load in LOADS for mode in MODES}
    for number in range(1, given.runs + 1):
        directory = data_dir / f"pairs-{number}"
        settle(data_dir)
        progress(f"  pairs {number} of {given.runs}")
        with contextlib.ExitStack() as stack:
            pairs = {
                mode: stack.enter_context(pair(directory / mode, mode, places)) for mode in MODES
            }
            stack.enter_context(warm_memory(WARM_BYTES))
            for load in LOADS:
                take_turns({mode: rows[load, mode] for mode in MODES}, given, pairs, places[1])
        shutil.rmtree(directory)  # else the page cache fills up, and who comes later pays
    for load in LOADS:
        taken, wanted = len(rows[load, "sync"].turns), given.runs * given.turns * MORE_TURNS[load]
        if taken * 2 < wanted:
            raise RunRefused(
                f"the host left the machine to us in {taken} of {wanted} turns of {load.name}"
            )
    found = list(rows.values())
    lags, rate = measure_lag(given, data_dir, places, rows[DEEP, "async"].median_rate)
    return found, lags, rate


def take_turns(
    rows: dict[str, Row],
    given: argparse.Namespace,
    pairs: dict[str, tuple[Server, Server]],
    core: int,
) -> None:
    """Load a pair of each mode in turns, each as often first as the other; keep what counts."""
    (load,) = {row.load for row in rows.values()}
    for master, _ in pairs.values():
        master.create_topic(load.topic)
        run_load(master, load, Timing(TURN_WARMUP_S, given.warmup, core))
        wait_followed(master)
    for row in rows.values():
        row.pairs.append([])
    for number in range(given.turns * MORE_TURNS[load]):
        turns = {
            mode: take_turn(rows[mode], *pairs[mode], Timing(TURN_WARMUP_S, given.seconds, core))
            for mode in sorted(rows, reverse=number % 2 == 1)
        }
        keep_turns(rows, turns)


def keep_turns(rows: dict[str, Row], turns: dict[str, Turn]) -> None:
    """Add one turn of each mode to its row, unless the host took too much of either."""
    if max(turn.run.stolen_share for turn in turns.values()) <= STOLEN_MAX:
        for mode, turn in turns.items():
            rows[mode].pairs[-1].append(turn)


def take_turn(row: Row, master: Server, slave: Server, timing: Timing) -> Turn:
    """One mode's turn, which ends when the slave holds everything."""
    used = cpu_ns(slave.pid)
    run, _ = run_load(master, row.load, timing)
    wait_followed(master)  # else it goes on in the other's turn
    turn = Turn(run, (cpu_ns(slave.pid) - used) / 1000 / run.acknowledged_total)
    progress(
        f"  {row.load.name:20} {row.mode:6} {run.rate:10,.0f}/s"
        f"  master {run.cpu_us_per_message:5.2f} us  slave {turn.slave_cpu_us:5.2f} us"
        f"  stolen {run.stolen_share:6.1%}"
    )
    return turn


def measure_lag(
    given: argparse.Namespace, data_dir: Path, places: tuple[int, int], full_rate: float
) -> tuple[list[float], int]:
    """What was seen in the middle one of the windows, by p99, and at which rate."""
    rate = int(full_rate / 2)
    load = replace(DEEP, rate=rate, tick_us=LAG_TICK_US)
    windows = []
    settle(data_dir)
    with (
        warm_memory(WARM_BYTES),
        pair(data_dir / "lag", "async", places) as (master, _),
    ):
        master.create_topic(load.topic)
        for _ in range(2 * LAG_WINDOWS):
            watch = LagWatch(master.port, places[1])
            with watch.watching():
                run, _ = run_load(master, load, Timing(given.warmup, LAG_SECONDS, places[1]))
            if run.rate >= rate * LAG_RATE_MIN:
                windows.append(watch.lags_ms)
            progress(
                f"  async lag at {run.rate:,.0f}/s of {rate:,}  p99 {quantile(watch.lags_ms, 0.99):.1f} ms"
                f"  ({run.stolen_share:.1%} of a core stolen by the host)"
            )
            if len(windows) == LAG_WINDOWS:
                windows.sort(key=lambda lags: quantile(lags, 0.99))
                return windows[LAG_WINDOWS // 2], rate
    raise RunRefused(f"half of the load, {rate:,}/s, was seldom reached: no lag to look at")


def report(rows: list[Row], lags: list[float], rate: int) -> tuple[str, list[str]]:
    """The table, and what was missed."""
    lines = [
        f"{'load':20} {'pair':6} {'best/s':>10} {'median/s':>10} {'p99 us':>8}"
        f" {'master us CPU':>14} {'slave us CPU':>13}"
    ]
    for row in rows:
        lines.append(
            f"{row.load.name:20} {row.mode:6} {row.best.rate:10,.0f} {row.median_rate:10,.0f}"
            f" {row.best.p99_us:8,.0f} {row.best.cpu_us_per_message:14.2f}"
            f" {statistics.median(turn.slave_cpu_us for turn in row.turns):13.2f}"
        )
    missed = []
    for load in LOADS:
        by_mode = {row.mode: row for row in rows if row.load == load}
        rates = by_mode["sync"].rates
        ratio, error = ratio_of(rates, by_mode["async"].rates)
        medians = by_mode["sync"].median_rate / by_mode["async"].median_rate
        best = by_mode["sync"].best.rate / by_mode["async"].best.rate
        required = REQUIRED[load]
        verdict = "met" if ratio >= required else "MISSED"
        text = (
            f"{load.name}: sync / async = {ratio:.3f} +- {error:.3f}"
            f" ({medians:.3f} of the medians, {best:.3f} of the best)"
        )
        lines.append(f"ratio  {text}, required {required:.2f}: {verdict}")
        lines.append(
            f"       in {sum(map(len, rates))} turns of each, by {len(rates)} pairs of each"
        )
        if ratio < required:
            missed.append(text)
    p50, p99 = quantile(lags, 0.5), quantile(lags, 0.99)
    verdict = "met" if p99 <= LAG_MS_MAX else "MISSED"
    text = (
        f"async lag at {rate:,}/s, half load: p50 {p50:.1f} ms, p99 {p99:.1f} ms,"
        f" max {max(lags):.1f} ms (the middle one of {LAG_WINDOWS} windows, {len(lags):,} looks)"
    )
    lines.append(f"figure {text}, p99 required {LAG_MS_MAX:.0f}: {verdict}")
    if p99 > LAG_MS_MAX:
        missed.append(text)
    return "\n".join(lines), missed


def ratio_of(ours: list[list[float]], theirs: list[list[float]]) -> tuple[float, float]:
    """The rates of one kind of pair divided by the other's, all turns together, and the standard error
    of that: how far it moves when any one pair of each is left out (jackknife).

    Both by pair, and then by turn, of equal lengths. Of one pair nothing is known: the error is NaN.
    """
    sums = [(sum(one), sum(other)) for one, other in zip(ours, theirs, strict=True)]
    our_sum, their_sum = (sum(each) for each in zip(*sums, strict=True))
    if len(sums) == 1:
        return our_sum / their_sum, math.nan
    without = [(our_sum - one) / (their_sum - other) for one, other in sums]
    return our_sum / their_sum, math.sqrt((len(sums) - 1) * statistics.pvariance(without))


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of all lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.modes",
        description="Synchronous against asynchronous replication, and how far a slave is behind.",
        epilog="example: python -m bench.modes --runs 40 --require",
    )
    parser.add_argument("--runs", type=int, default=20, help="new pairs (default %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=2, help="of each pair, at 64 x 1 twice (default %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.7, help="measured per turn (default %(default)s)"
    )
    parser.add_argument(
        "--warmup", type=float, default=1.0, help="seconds before the first (default %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="also as JSON; - is stdout")
    parser.add_argument("--require", action="store_true", help="exit 3 when a figure is missed")
    given = parser.parse_args(arguments)
    parent = CACHE / "data"
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="modes-", dir=parent) as directory:
            rows, lags, rate = measure_modes(given, Path(directory))
    except (ProcessBroken, RunRefused, BuildFailed, RequestRefused, OSError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    text, missed = report(rows, lags, rate)
    if given.json:
        found = {
            "rates": {f"{row.load.name} {row.mode}": row.rates for row in rows},  # by pair
            "lag_ms": {"p50": quantile(lags, 0.5), "p99": quantile(lags, 0.99), "rate": rate},
            "missed": missed,
        }
        if given.json == "-":
            print(json.dumps(found))
        else:
            Path(given.json).write_text(json.dumps(found) + "\n")
    if given.json != "-":
        print(text)
    return 3 if missed and given.require else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
