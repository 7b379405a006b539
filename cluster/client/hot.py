"""Picks the compiled inner loops, or the readable ones where no compiler was at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tandemmq.cluster.client.fast import SendHead, peek_opaque

if TYPE_CHECKING or os.environ.get("TANDEM_PURE_PYTHON"):
    from tandemmq.cluster.client.fast import read_records, scan_sends, send_frame
else:
    try:
        from tandemmq.cluster.client._fast import read_records, scan_sends, send_frame
    except ImportError:  # built without a compiler: slower, never different
        from tandemmq.cluster.client.fast import read_records, scan_sends, send_frame

COMPILED = scan_sends.__module__ == "tandemmq.cluster.client._fast"

__all__ = ["COMPILED", "SendHead", "peek_opaque", "read_records", "scan_sends", "send_frame"]
