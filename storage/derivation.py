"""Picks the compiled inner loop of dispatch, or the readable one where no compiler was at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
)

if TYPE_CHECKING or os.environ.get("TANDEM_PURE_PYTHON"):
    from tandemmq.storage.derive import IndexEnd, QueueEnd, check, derive, key_hash
else:
    try:
        from tandemmq.storage._derive import IndexEnd, QueueEnd, check, derive, key_hash
    except ImportError:  # built without a compiler: slower, never different
        from tandemmq.storage.derive import IndexEnd, QueueEnd, check, derive, key_hash

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
