"""Cuts a classic slave's log back to where it parted from its master's, when its operator has said so.

The word is an empty file in the store's root, good for one cut, or for hearing that none is possible. What is cut is
kept in `setaside/`, as with a controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.keeping import cut_log
from tandemmq.storage import MessageStore, file_starts, fsync_directory, record_ends, setaside

log = logging.getLogger(__name__)

WORD_NAME: Final = "cut-to-master"
CLASSIC_EPOCH: Final = 0

#: whether the log up to an end of a record is the master's
Compare = Callable[[int], Awaitable[Finding]]


def word_of(store: MessageStore) -> Path:
    """The file by which an operator has the log cut."""
    return Path(store.config.root) / WORD_NAME


def take_back(store: MessageStore) -> None:
    """Remove the word, for good: a power cut does not bring it back. [thread] Raises OSError."""
    word = word_of(store)
    word.unlink(missing_ok=True)
    fsync_directory(word.parent)


async def cut_where_they_part(store: MessageStore, compare: Compare) -> Finding | None:
    """Find the place, keep what lies behind and cut it; None when done, else why not.

    Nobody may append meanwhile. Raises OSError, StoreIsFull, FlushFailed, RemotingError.
    """
    point, problem = await _common_end(store, compare)
    if problem is not None:
        if problem.verdict is Verdict.DIFFERS:
            # Said once and for all: the word was for a fork, and here is none to cut back to.
            await asyncio.to_thread(take_back, store)
            log.warning("not cut why=%s", problem.why)
        return problem
    ranges = setaside.file_ranges(store.log, point, store.end)
    root = Path(store.config.root)
    kept = await asyncio.to_thread(setaside.keep, root, ranges, point, CLASSIC_EPOCH)
    log.warning(
        "log parted from the master's, set aside records=%d from=%d to=%d file=%s",
        kept.records, kept.start, kept.end, kept.path,
    )  # fmt: skip
    # first: were we to die here, the word would stay, for a fork that its operator never saw
    await asyncio.to_thread(take_back, store)
    await cut_log(store, point)
    return None


async def _common_end(store: MessageStore, compare: Compare) -> tuple[int, Finding | None]:
    """The end of the last record that both have: first by files, then in the file where they part."""
    starts = file_starts(store.log)
    file, begun, problem = await _last_same(starts, compare)
    if problem is not None:
        return 0, problem
    ends = await asyncio.to_thread(record_ends, store.log, starts[file])
    at, same, problem = await _last_same(ends, compare)
    if problem is None and not (same if at else begun):
        why = f"nothing in common with the master: seed it anew; {WORD_NAME} is used up"
        problem = Finding(Verdict.DIFFERS, why)
    return ends[at], problem


async def _last_same(places: list[int], compare: Compare) -> tuple[int, bool, Finding | None]:
    """The index of the last place up to which the logs are one, and whether the master said that.

    It says nothing of the first place, nor of those at or below the start of its own log: the search goes on above.
    """
    low, high, same = 0, len(places), False
    while high - low > 1:
        middle = (low + high) // 2
        found = await compare(places[middle])
        if found.verdict is Verdict.UNKNOWN:
            return 0, False, found
        if found.verdict is Verdict.SAME:
            low, same = middle, True
        elif places[middle] <= found.starts:
            low, same = middle, False
        else:
            high = middle
    return low, same, None
