"""Every test, in three lanes side by side: `python tests/lanes.py`; arguments are passed to each.

Stock brokers and clients mostly wait: for their JVMs, and by RocketMQ's own pace. What only computes takes what
the other two leave of the processors, or their times would be its doing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final

from tandemmq.java import VERSIONS, JavaFailed, classpath, java_missing

TESTS: Final = Path(__file__).parent
STOCK: Final = ["compat"]
COMPUTING: Final = ["simulation", "chaos", "spark"]
LAST: Final = "system"
#: what another command runs: make compose-test
APART: Final = {"deploy"}
#: of each lane, its own: two that look at once would find the same port free
PORTS: Final = {"ours": "20000-24000", "stock": "24000-28000", "computing": "28000-31000"}


def lanes() -> dict[str, list[str]]:
    """The directories of each lane, in the order in which they are run. The first one's output is shown as it comes."""
    found = {each.relative_to(TESTS).parts[0] for each in TESTS.rglob("test_*.py")}
    others = sorted(found - {LAST, *STOCK, *COMPUTING} - APART)
    return {"ours": [*others, LAST], "stock": STOCK, "computing": COMPUTING}


def command(lane: str, directories: list[str], more: list[str]) -> list[str]:
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations=15"]
    cache = f"cache_dir={TESTS.parent / '.pytest_cache' / lane}"
    nice = ["nice", "-n", "10"] if lane == "computing" else []
    return [*nice, *pytest, "-o", cache, *more, *(f"tests/{each}" for each in directories)]


def start(
    lane: str, directories: list[str], more: list[str], output: IO[str] | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(lane, directories, more), cwd=TESTS.parent, stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env={**os.environ, "TANDEM_PORTS": PORTS[lane]},
    )  # fmt: skip


def fetch_rocketmq() -> None:
    """Before lanes ask Maven for it at once. What fails here fails in a test, too, and is told there."""
    if java_missing() is None:
        for version in VERSIONS:
            with contextlib.suppress(JavaFailed, OSError):
                classpath(version)


def main(more: list[str]) -> int:
    began = time.monotonic()
    fetch_rocketmq()
    shown, *behind = lanes().items()
    codes: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        kept = {lane: stack.enter_context(tempfile.TemporaryFile("w+")) for lane, _ in behind}
        print(f"beside what follows, printed at the end: {', '.join(kept)}", flush=True)
        running = {lane: start(lane, which, more, kept[lane]) for lane, which in behind}
        try:
            running[shown[0]] = start(*shown, more, None)
            for lane in (shown[0], *kept):
                codes[lane] = running[lane].wait()
                if lane in kept:
                    kept[lane].seek(0)
                    sys.stdout.write(kept[lane].read())
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.terminate()
                    process.wait()
    ended = ", ".join(f"{lane} {code}" for lane, code in codes.items())
    print(f"all lanes: {time.monotonic() - began:.0f} s, {ended}", flush=True)
    return next(filter(None, codes.values()), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
