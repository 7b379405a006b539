"""Where the controller's tests find their kit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tandemmq.cluster.controller.reign

sys.path.insert(0, str(Path(__file__).parent))  # controllerkit


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is tried again at once."""
    monkeypatch.setattr(tandemmq.cluster.controller.reign, "RETRY_S", 0)
