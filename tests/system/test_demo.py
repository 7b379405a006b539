"""`make demo` runs to its end, and says what it promises to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tandemmq.chaos.servers import python_env

pytestmark = pytest.mark.system


def test_demo_kills_a_master_and_counts_every_message() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq.demo", "--no-java"],
        capture_output=True, text=True, timeout=110, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **python_env()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(re.findall(r"^(\S+(?: -9)?) {2,}(.*)$", done.stdout, re.MULTILINE))
    assert said["kill -9"].startswith("broker-a-0, the master of broker-a")
    assert said["takeover"].startswith("broker-a-1 leads epoch 2 after ")
    assert said["rejoin"].startswith("broker-a-0 started again: slave in epoch 2, in sync after ")
    assert said["switchover"].startswith("broker-a handed over to broker-a-0 in ")
    counted = re.match(
        r"([\d,]+) sent, ([\d,]+) acknowledged: every one delivered", said["counted"]
    )
    assert counted is not None, said["counted"]
    assert int(counted[2].replace(",", "")) > 1_000
    audits = re.findall(r"^audit +broker-[ab]: broker-[ab]-1 equals broker-[ab]-0", done.stdout,
                        re.MULTILINE)  # fmt: skip
    assert len(audits) == 2
    assert "Traceback" not in done.stderr
