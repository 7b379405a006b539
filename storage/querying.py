"""Finds records by their keys: the index names places, the log says what is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore

QUERY_ROUNDS_MAX: Final = 3


@dataclass(slots=True)
class QueryResult:
    """Records are slices of the log: copy them before the event loop runs anything else."""

    records: list[memoryview] = field(default_factory=list)
    last_ms: int = 0  # end of the newest index file
    last_offset: int = 0


def query_by_key(
    store: MessageStore,
    topic: str,
    key: str,
    count_max: int,
    begin_ms: int,
    end_ms: int,
    unique: bool,
) -> QueryResult:
    """Records whose key has the same hash, oldest first; the caller compares the keys.

    unique: a look-up by message id, which takes defaultQueryMaxNum at most.
    Source: RocketMQ's DefaultMessageStore.queryMessage.
    """
    result = QueryResult()
    if store.index is None:
        return result
    if unique:
        count_max = store.config.query_count_default
    count_max = min(count_max, store.config.query_count_max)
    last_query_ms = end_ms
    for _ in range(QUERY_ROUNDS_MAX):
        offsets, result.last_ms, result.last_offset = store.index.query(
            topic, key, count_max, begin_ms, last_query_ms
        )
        offsets = sorted(set(offsets))
        if not offsets:
            break
        last_query_ms = store.log.store_ms_at(offsets[0]) or 0
        for offset in offsets:
            record = store.record_at(offset)
            if record is not None:
                result.records.append(record)
        if result.records or last_query_ms < begin_ms:
            break
    return result
