"""The send path: compiled where the codec is, whose tails it writes through; else readable."""

from __future__ import annotations

from tandemmq.cluster.broker.sending.sendpath import SendPath
from tandemmq.storage import COMPILED as CODEC_COMPILED
from tandemmq.storage.twins import compiled

COMPILED = CODEC_COMPILED and compiled(globals(), "tandemmq.cluster.broker.sending._sendpath")

__all__ = ["COMPILED", "SendPath"]
