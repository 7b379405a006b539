"""The client's inner loops: compiled, or readable where no compiler was at hand."""

from __future__ import annotations

from tandemmq.cluster.client.fast import (
    SendHead,
    peek_opaque,
    read_records,
    record_starts,
    scan_sends,
    send_frame,
)
from tandemmq.storage.twins import compiled

COMPILED = compiled(globals(), "tandemmq.cluster.client._fast")

__all__ = [
    "COMPILED",
    "SendHead",
    "peek_opaque",
    "read_records",
    "record_starts",
    "scan_sends",
    "send_frame",
]
