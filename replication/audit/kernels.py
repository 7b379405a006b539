"""The audit's inner loops: compiled, or readable where no compiler was at hand."""

from __future__ import annotations

from tandemmq.replication.audit.kernel import PairDiff, find_record, kind_at, rows, skip
from tandemmq.replication.audit.ledger import Ledger
from tandemmq.storage.twins import compiled

COMPILED = compiled(globals(), "tandemmq.replication.audit._kernel")

__all__ = ["COMPILED", "Ledger", "PairDiff", "find_record", "kind_at", "rows", "skip"]
