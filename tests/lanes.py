"""Every test, in four lanes side by side: `python tests/lanes.py`; arguments are passed to each run of pytest.

Stock brokers and clients mostly wait: for their JVMs, and by RocketMQ's own pace. What only computes takes what
the others leave of the processors, or their times would be its doing. A lane that is through with its own takes of
what any of them can do, until nothing is left: the whole takes as long as the work, not as the longest lane. The
computing lane takes from the other end, where what computes lies: all lanes end there, on every processor.

Programs of others (stock brokers and clients, Chromium, Prometheus, Spark) have timeouts of their own, and what they do
while three lanes compete for two cores is not ours to bound. What fails beside them is therefore run once more, alone:
what fails then fails, what passes is named in the end. Nothing else is run twice: a message lost once is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

from tandemmq.java import VERSIONS, JavaFailed, classpath, java_missing

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
#: what some lane does alone, or what is shared out: everything else is the first lane's
COMPUTING: Final = ("simulation", "chaos")
SPARK: Final = "spark"
STOCK: Final = "compat"
SYSTEM: Final = "system"
CONTAINERS: Final = "deploy"
#: folders of one run each, with a cluster of their own
WHOLE: Final = ("console", "metrics")
#: in tests/compat: RocketMQ's own brokers and controllers run beside ours; the other files have its clients
STOCK_SERVERS: Final = (
    "test_compatibility_page.py", "test_controller_tools.py", "test_java_controller.py", "test_java_fork.py",
    "test_java_master_restarts.py", "test_java_replica.py", "test_java_slave.py", "test_java_store.py",
    "test_migration.py", "test_mixed_groups.py", "test_moving.py", "test_mqadmin_of_our_client.py",
    "test_our_client.py", "test_restarts.py",
)  # fmt: skip
#: files of tests/system that take minutes: first, or the last lane would be at one of them alone
LONG: Final = (
    "test_chaos_runs.py", "test_group_campaigns.py", "test_backup.py", "test_upgrade.py", "test_operating.py",
    "test_hostile_peers.py",
)  # fmt: skip
SYSTEM_FILES_AT_ONCE: Final = 4
#: of what only computes, the same, the longest last: it is taken from there
LONG_COMPUTING: Final = (
    "simulation/test_sim.py", "chaos/test_powercut.py", "simulation/test_whole.py",
)  # fmt: skip
#: of each lane, its own: two that look at once would find the same port free
PORTS: Final = {
    "ours": "20000-23000", "clients": "23000-26000", "servers": "26000-29000", "computing": "29000-32000",
}  # fmt: skip
#: of a test that is given only what the other lanes leave: one of ten seconds has taken two minutes
COMPUTING_TIMEOUT_S: Final = 900
#: stores are preallocated files; brokers on a disk that is nearly full rightly refuse to store
ROOM_BYTES: Final = 25 << 30
FULL_PERCENT: Final = 90
FAILED: Final = 1  # pytest's exit codes: tests that failed, and where -k or -m leaves none
NO_TESTS: Final = 5
#: where programs of others are timed; what failed there is run again alone
OTHERS: Final = (STOCK, SPARK, *WHOLE)
AGAIN_MAX: Final = 6  # failed tests; more are no accident


class Work(NamedTuple):
    """One process: pytest on some paths below tests/, or the script that starts a docker daemon for its tests."""

    what: str
    paths: tuple[str, ...]
    containers: bool = False
    computes: bool = False


class Run(NamedTuple):
    """What became of one work. printed: where its output lies in the lane's, from and to."""

    work: Work
    code: int
    printed: tuple[int, int]


@dataclass
class Lane:
    """One process at a time, and what its processes printed."""

    name: str
    own: list[Work]
    output: IO[bytes]
    runs: list[Run] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def cache(self) -> Path:
        """Of pytest."""
        return ROOT / ".pytest_cache" / self.name

    @property
    def last_failed(self) -> Path:
        """Where pytest keeps which tests failed."""
        return self.cache / "v" / "cache" / "lastfailed"


class Shared:
    """What is left for whoever has nothing of its own to do."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._left = list(work)
        self._lock = threading.Lock()
        self.stopped = False

    def take(self, at: int) -> Work | None:
        """at: 0 for the first, -1 for the last."""
        with self._lock:
            return self._left.pop(at) if self._left and not self.stopped else None


def own_work() -> dict[str, list[Work]]:
    """What each lane does first. Every folder of tests/ that is not named above is the first one's."""
    found = {each.relative_to(TESTS).parts[0] for each in TESTS.rglob("test_*.py")}
    others = sorted(found - {SYSTEM, STOCK, SPARK, CONTAINERS, *COMPUTING, *WHOLE})
    stock = sorted(each.name for each in (TESTS / STOCK).glob("test_*.py"))
    servers = [f"{STOCK}/{each}" for each in stock if each in STOCK_SERVERS]
    clients = [f"{STOCK}/{each}" for each in stock if each not in STOCK_SERVERS]
    return {
        "ours": [Work("units", tuple(others))],
        "clients": [Work("stock clients", tuple(clients)), Work(SPARK, (SPARK,))],
        "servers": [Work("stock servers", tuple(servers))],
        "computing": [],
    }


def shared_work() -> list[Work]:
    """What any lane can do, the longest first, what only computes last."""
    files = sorted(each.name for each in (TESTS / SYSTEM).glob("test_*.py"))
    long = [each for each in LONG if each in files]
    short = [each for each in files if each not in LONG]
    whole = [each for each in WHOLE if any((TESTS / each).rglob("test_*.py"))]
    computing = [
        f"{folder}/{each.name}"
        for folder in COMPUTING
        for each in sorted((TESTS / folder).glob("test_*.py"))
    ]
    containers = [Work(CONTAINERS, (), containers=True)] if daemon_possible() else []
    return [
        *containers,
        *(Work(each, (f"{SYSTEM}/{each}",)) for each in long),
        *(Work(each, (each,)) for each in whole),
        *(
            Work(", ".join(some), tuple(f"{SYSTEM}/{each}" for each in some))
            for some in (
                short[at : at + SYSTEM_FILES_AT_ONCE]
                for at in range(0, len(short), SYSTEM_FILES_AT_ONCE)
            )
        ),
        *(Work(each, (each,), computes=True) for each in computing if each not in LONG_COMPUTING),
        *(Work(each, (each,), computes=True) for each in LONG_COMPUTING if each in computing),
    ]


def daemon_possible() -> bool:
    """Whether tests/deploy/run.py finds a docker daemon or may start one."""
    if os.geteuid() == 0:
        return True
    asked = shutil.which("docker") and subprocess.run(
        ["docker", "info"], capture_output=True, check=False
    )
    if asked and asked.returncode == 0:
        return True
    print(
        "skipped: tests/deploy: no docker daemon answers, and only root can start one", flush=True
    )
    return False


def command(cache_dir: Path, work: Work, more: Sequence[str]) -> list[str]:
    cache = ["-o", f"cache_dir={cache_dir}"]
    if work.containers:
        return [sys.executable, "tests/deploy/run.py", *cache, *more]
    nice = ["nice", "-n", "10"] if work.computes else []
    patience = [f"--timeout={COMPUTING_TIMEOUT_S}"] if work.computes else []
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations=10", *patience, *cache, *more]
    return [*nice, *pytest, *(f"tests/{each}" for each in work.paths)]


def run_lane(lane: Lane, shared: Shared, more: Sequence[str], began_s: float) -> None:
    """Its own work, then what is left. What each run printed is in `lane.output`."""
    end = -1 if lane.name == "computing" else 0
    while (work := lane.own.pop(0) if lane.own else shared.take(end)) is not None:
        started_s = time.monotonic()
        at = lane.output.seek(0, os.SEEK_END)
        lane.output.write(f"======== {work.what}\n".encode())
        lane.output.flush()
        lane.process = subprocess.Popen(
            command(lane.cache, work, more), cwd=ROOT, stdout=lane.output, stderr=subprocess.STDOUT,
            env={**os.environ, "TANDEM_PORTS": PORTS[lane.name]},
        )  # fmt: skip
        # wait() would not tell what it and its children used
        _, status, used = os.wait4(lane.process.pid, 0)
        code = lane.process.returncode = os.waitstatus_to_exitcode(status)
        printed = (at, lane.output.seek(0, os.SEEK_END))
        lane.runs.append(Run(work, 0 if code == NO_TESTS and more else code, printed))
        now_s = time.monotonic()
        print(
            f"{now_s - began_s:.0f} s, {lane.name}: {work.what}: {code} after {now_s - started_s:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} s of a processor",
            flush=True,
        )
        if shared.stopped:
            return


def fetch_rocketmq() -> None:
    """Before lanes ask Maven for it at once. What fails here fails in a test, too, and is told there."""
    if java_missing() is None:
        for version in VERSIONS:
            with contextlib.suppress(JavaFailed, OSError):
                classpath(version)


@contextlib.contextmanager
def temporary_directory() -> Iterator[None]:
    """One for all that tests leave, removed with it; told before, not by a hundred tests, when there is no room."""
    disk = shutil.disk_usage(tempfile.gettempdir())
    used_percent = 100 * (disk.total - disk.free) // disk.total
    if disk.free < ROOM_BYTES or used_percent >= FULL_PERCENT:
        raise SystemExit(
            f"{tempfile.gettempdir()} has {disk.free >> 30} GiB free and is {used_percent} % full: tests need "
            f"{ROOM_BYTES >> 30} GiB, and brokers refuse to store on a nearly full disk. Make room, or set TMPDIR."
        )
    with tempfile.TemporaryDirectory(prefix="tandem-tests-", ignore_cleanup_errors=True) as where:
        os.environ["TMPDIR"] = where
        yield


def show(lanes: Sequence[Lane]) -> None:
    """What all tests printed, those of failed runs last: the end is what a reader of a long log sees."""
    for failed in (False, True):
        for lane in lanes:
            for run in lane.runs:
                if bool(run.code) == failed:
                    start, end = run.printed
                    lane.output.seek(start)
                    sys.stdout.write(lane.output.read(end - start).decode(errors="replace"))
    sys.stdout.flush()


def failed_beside_others(runs: Sequence[Run], failed: Sequence[str]) -> list[str]:
    """Which tests may be run again: all that failed, or none. failed: node ids, relative to the root."""
    if not 0 < len(failed) <= AGAIN_MAX or any(run.code not in (0, FAILED) for run in runs):
        return []
    may = all(each.startswith(tuple(f"tests/{folder}/" for folder in OTHERS)) for each in failed)
    told = all(
        any(each.startswith(f"tests/{path}") for each in failed for path in run.work.paths)
        for run in runs
        if run.code
    )
    return list(failed) if may and told else []


def run_again(lanes: Sequence[Lane]) -> bool:
    """Alone, what failed beside programs of others. Whether that is all that failed, and passed now."""
    failed: list[str] = []
    for lane in lanes:
        with contextlib.suppress(FileNotFoundError):
            failed += json.loads(lane.last_failed.read_text())
    again = failed_beside_others([run for lane in lanes for run in lane.runs], sorted(failed))
    if not again:
        return False
    print("======== once more, alone:", *again, sep="\n", flush=True)
    cache = f"cache_dir={ROOT / '.pytest_cache' / 'again'}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-o", cache, *again]
    passed = subprocess.run(pytest, cwd=ROOT, check=False).returncode == 0
    for each in again if passed else ():
        print(f"failed beside other work, passed alone: {each}", flush=True)
    return passed


def main(more: Sequence[str]) -> int:
    began_s = time.monotonic()
    # in the background of a shell Ctrl-C is ignored, and tests that press it would wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # thousands of processes start: sources are compiled once
    fetch_rocketmq()
    shared = Shared(shared_work())
    with temporary_directory(), contextlib.ExitStack() as stack:
        lanes = [
            Lane(name, own, stack.enter_context(tempfile.TemporaryFile()))
            for name, own in own_work().items()
        ]
        for lane in lanes:
            lane.last_failed.unlink(missing_ok=True)
        threads = [
            threading.Thread(target=run_lane, args=(each, shared, more, began_s)) for each in lanes
        ]
        print(f"{len(lanes)} lanes; what their tests print comes at the end", flush=True)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            shared.stopped = True
            for lane in lanes:
                if lane.process is not None and lane.process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(lane.process.pid, signal.SIGTERM)  # terminate() would wait for it
            for thread in threads:
                thread.join()
        show(lanes)
        failed = [run for lane in lanes for run in lane.runs if run.code]
        if failed and run_again(lanes):
            failed = []
    print(f"all lanes: {time.monotonic() - began_s:.0f} s", flush=True)
    for run in failed:
        print(f"failed with {run.code}: {run.work.what}", flush=True)
    return failed[0].code if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
