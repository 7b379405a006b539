"""Picks the compiled send path, or the readable one where no compiler was at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage import COMPILED as CODEC_COMPILED

if (
    TYPE_CHECKING or not CODEC_COMPILED
):  # the compiled path writes through the compiled codec's tails only
    from cluster.broker.sendpath import SendPath
else:
    try:
        from cluster.broker._sendpath import SendPath
    except ImportError:
        from cluster.broker.sendpath import SendPath

COMPILED = SendPath.__module__ == "cluster.broker._sendpath"

__all__ = ["COMPILED", "SendPath"]
