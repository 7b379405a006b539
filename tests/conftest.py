"""What holds for every test."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# how long an example takes says how busy the machine is
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

#: links in tandemmq/ (docs/decisions/0011): under these names alone a checkout has second copies of everything
LINKED = {"storage", "replication", "cluster", "chaos"}


@pytest.fixture(autouse=True, scope="module")
def _one_copy_of_everything() -> Iterator[None]:
    """A patch of "storage.x" would patch nothing that runs."""
    yield
    assert not LINKED & sys.modules.keys()


@pytest.fixture(autouse=True, scope="module")
def _log_levels() -> Iterator[None]:
    """Commands that a test calls say how much their process logs; the tests after it are of the same process."""
    loggers = [logging.getLogger(f"tandemmq{each}") for each in ("", ".cluster", ".cluster.client")]
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)
