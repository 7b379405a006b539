"""The short path of pulls: compiled where a compiler was at hand, else readable."""

from __future__ import annotations

from tandemmq.cluster.broker.reading.pullpath import PullPath, in_turns
from tandemmq.storage.twins import compiled

COMPILED = compiled(globals(), "tandemmq.cluster.broker.reading._pullpath")

__all__ = ["COMPILED", "PullPath", "in_turns"]
