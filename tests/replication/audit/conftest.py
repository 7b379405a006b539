"""Both forms of the audit's inner loops in one run."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tandemmq.replication.audit.kernel
import tandemmq.replication.audit.ledger

sys.path.insert(0, str(Path(__file__).parent))  # auditkit


def _readable() -> SimpleNamespace:
    kernel, ledger = tandemmq.replication.audit.kernel, tandemmq.replication.audit.ledger
    return SimpleNamespace(
        __name__="readable",
        PairDiff=kernel.PairDiff,
        kind_at=kernel.kind_at,
        find_record=kernel.find_record,
        rows=kernel.rows,
        Ledger=ledger.Ledger,
    )


def _kernels() -> list[Any]:
    if os.environ.get("TANDEM_PURE_PYTHON"):
        return [_readable()]
    try:
        return [_readable(), import_module("tandemmq.replication.audit._kernel")]
    except ImportError as error:
        pytest.exit(
            f"tandemmq.replication.audit._kernel is not built ({error}): half of the audit's tests would not"
            " run. Build it (pip install -e .), or set TANDEM_PURE_PYTHON=1 to test Python alone.",
            returncode=4,
        )


@pytest.fixture(params=_kernels(), ids=lambda kernel: kernel.__name__)
def kernel(request: pytest.FixtureRequest) -> Any:
    """The readable kernel, then the compiled one."""
    return request.param
