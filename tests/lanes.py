"""Every test, in two lanes side by side: `python tests/lanes.py`; arguments are passed to both.

Stock brokers and clients mostly wait: for their JVMs, and by RocketMQ's own pace. So their lane is the
quiet one for tests that look at our own processes' times, and both lanes first do what only computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parent
STOCK = "compat"
#: run before the stock ones, so that both lanes take as long
COMPUTING = ["chaos", "simulation", "spark"]
PORTS = {"stock": "24000-28000", "ours": "20000-24000"}
LAST = "system"
#: what another command runs: make compose-test
APART = {"deploy"}


def lanes() -> dict[str, list[str]]:
    """The directories of each lane, in the order in which they are run."""
    found = {each.relative_to(TESTS).parts[0] for each in TESTS.rglob("test_*.py")}
    others = sorted(found - {STOCK, LAST, *COMPUTING} - APART)
    return {"stock": [*COMPUTING, STOCK], "ours": [*others, LAST]}


def command(lane: str, directories: list[str], more: list[str]) -> list[str]:
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations=15"]
    cache = f"cache_dir={TESTS.parent / '.pytest_cache' / lane}"
    return [*pytest, "-o", cache, *more, *(f"tests/{each}" for each in directories)]


def environment(lane: str) -> dict[str, str]:
    """Ports of its own: two lanes that look at once would find the same one free."""
    return {**os.environ, "TANDEM_PORTS": PORTS[lane]}


def main(more: list[str]) -> int:
    began = time.monotonic()
    commands = {name: command(name, which, more) for name, which in lanes().items()}
    with tempfile.TemporaryFile("w+") as kept:
        print(f"beside what follows, printed at the end: {' '.join(commands['stock'])}", flush=True)
        stock = subprocess.Popen(
            commands["stock"], cwd=TESTS.parent, stdout=kept, stderr=subprocess.STDOUT,
            env=environment("stock"),
        )  # fmt: skip
        try:
            ours = subprocess.run(
                commands["ours"], cwd=TESTS.parent, check=False, env=environment("ours")
            ).returncode
            theirs = stock.wait()
        finally:
            if stock.poll() is None:
                stock.terminate()
                stock.wait()
        kept.seek(0)
        sys.stdout.write(kept.read())
    print(f"both lanes: {time.monotonic() - began:.0f} s, stock {theirs}, ours {ours}", flush=True)
    return ours or theirs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
