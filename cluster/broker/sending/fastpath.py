"""Picks the compiled send path, or the readable one where no compiler was at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq.storage import COMPILED as CODEC_COMPILED

if (
    TYPE_CHECKING or not CODEC_COMPILED
):  # the compiled path writes through the compiled codec's tails only
    from tandemmq.cluster.broker.sending.sendpath import SendPath
else:
    try:
        from tandemmq.cluster.broker.sending._sendpath import SendPath
    except ImportError:
        from tandemmq.cluster.broker.sending.sendpath import SendPath

COMPILED = SendPath.__module__ == "tandemmq.cluster.broker.sending._sendpath"

__all__ = ["COMPILED", "SendPath"]
