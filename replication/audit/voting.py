"""With three replicas or more: who stands alone where both sides of a difference can be read.

Checksums and epochs decide first. Where they cannot, most replicas are more likely right than one; what is
found is told, never repaired by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tandemmq.replication.audit.classes import DivergenceClass, Side
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.tables import Divergence
from tandemmq.replication.audit.windows import whole_record

VOTERS_MIN: Final = 3
_NOT_ASKED: Final = frozenset({DivergenceClass.LAG.value, DivergenceClass.AHEAD.value})


def vote(rows: Iterable[Divergence], replicas: Sequence[ReplicaStore]) -> None:
    """Set the side of rows that nobody could decide, and say in their detail who stands alone.

    A replica votes with the record that it holds where the difference begins. Raises AuditIncomplete.
    """
    if len(replicas) < VOTERS_MIN:
        return
    for row in rows:
        if row.side == Side.UNKNOWN.value and row.kind not in _NOT_ASKED:
            _decide(row, _votes(row.start, replicas))


def _votes(offset: int, replicas: Sequence[ReplicaStore]) -> dict[bytes, list[str]]:
    """record -> the names of those that hold it there."""
    votes: dict[bytes, list[str]] = {}
    for replica in replicas:
        if replica.start <= offset < replica.end:
            record = whole_record(replica, offset)
            if record is not None:
                votes.setdefault(bytes(record), []).append(replica.name)
    return votes


def _decide(row: Divergence, votes: dict[bytes, list[str]]) -> None:
    count = sum(map(len, votes.values()))
    most = max(votes.values(), key=len, default=[])
    if count < VOTERS_MIN or len(most) * 2 <= count:
        return
    if row.reference in most and row.replica not in most:
        row.side, odd = Side.REPLICA.value, row.replica
    elif row.replica in most and row.reference not in most:
        row.side, odd = Side.REFERENCE.value, row.reference
    else:
        return
    row.detail += f"; {odd} stands alone, {len(most)} of {count} replicas agree: {', '.join(most)}"
