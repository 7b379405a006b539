"""Picks the compiled inner loop of dispatch, or the readable one where no compiler was at hand."""

from __future__ import annotations

from tandemmq.storage.derive import (
    BLANK,
    BROKEN,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    MORE,
    NOTHING_WRITTEN,
    QUEUE_ENTRY,
    SLOT_BYTES,
    Arrival,
    Checked,
    Derived,
    IndexEnd,
    QueueEnd,
    check,
    derive,
    key_hash,
)
from tandemmq.storage.twins import compiled

compiled(globals(), "tandemmq.storage._derive")

__all__ = [
    "BLANK",
    "BROKEN",
    "INDEX_ENTRY",
    "INDEX_ENTRY_BYTES",
    "INDEX_HEADER",
    "INDEX_HEADER_BYTES",
    "MORE",
    "NOTHING_WRITTEN",
    "QUEUE_ENTRY",
    "SLOT_BYTES",
    "Arrival",
    "Checked",
    "Derived",
    "IndexEnd",
    "QueueEnd",
    "check",
    "derive",
    "key_hash",
]
