"""For the tests of applications: real clusters, an in-memory double, pytest fixtures, a container.

    from tandemmq.testing import TandemCluster, MemoryCluster

plugin holds the fixtures, which pytest finds by itself; containers the one for testcontainers. docs/howto/test.md shows
all of it. The names are loaded when first asked for: pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandemmq.testing.cluster import ClusterFailed, Member, TandemCluster
    from tandemmq.testing.memory import MemoryCluster

__all__ = ["ClusterFailed", "Member", "MemoryCluster", "TandemCluster"]

_PLACES: Final = {
    "ClusterFailed": "cluster", "Member": "cluster", "TandemCluster": "cluster", "MemoryCluster": "memory",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'tandemmq.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tandemmq.testing.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
