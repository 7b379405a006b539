"""docs/compatibility.md says what our servers and the stock ones answer now: both are run and asked everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN_S = 900  # two minutes and a half alone


@pytest.mark.timeout(RUN_S + 60)
def test_the_table_of_requests_and_commands_is_what_both_sides_answer(java: None) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "docs.compatibility", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=RUN_S,
    )
    assert run.returncode == 0, run.stderr[-6000:]
