"""A double of a cluster for unit tests: the real client, and servers that are dictionaries in this process."""

from __future__ import annotations

from tandemmq.testing.memory.cluster import MemoryCluster

__all__ = ["MemoryCluster"]
