"""Picks the compiled inner loops of the audit, or the readable ones where no compiler was at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("TANDEM_PURE_PYTHON"):
    from tandemmq.replication.audit.kernel import PairDiff, find_record, kind_at, rows, skip
    from tandemmq.replication.audit.ledger import Ledger
else:
    try:
        from tandemmq.replication.audit._kernel import (
            Ledger,
            PairDiff,
            find_record,
            kind_at,
            rows,
            skip,
        )
    except ImportError:  # built without a compiler: slower, never different
        from tandemmq.replication.audit.kernel import PairDiff, find_record, kind_at, rows, skip
        from tandemmq.replication.audit.ledger import Ledger

COMPILED = PairDiff.__module__ == "tandemmq.replication.audit._kernel"

__all__ = ["COMPILED", "Ledger", "PairDiff", "find_record", "kind_at", "rows", "skip"]
