"""Readies the log of a replica for puts, in turns with the others of the loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tandemmq.replication.keeping import cut_log
from tandemmq.storage import MessageStore

log = logging.getLogger(__name__)

RECORDS_PER_TURN: Final = 2_048  # then others of the loop are served


async def make_ready(store: MessageStore) -> int:
    """Make a slave's log ready for puts, and return where it ends: behind the last whole record.

    What is confirmed is dispatched. Nobody may append meanwhile.
    Raises OSError, StoreIsFull, FlushFailed, CorruptRecord.
    """
    await dispatch_confirmed(store)
    takeover = store.takeover()
    while takeover.walk(RECORDS_PER_TURN):  # noqa: ASYNC110 - a turn for others
        await asyncio.sleep(0)
    if takeover.end < store.end:
        log.info("incomplete record cut end=%d bytes=%d", takeover.end, store.end - takeover.end)
        await cut_log(store, takeover.end)
    takeover.finish()
    return takeover.end


async def dispatch_confirmed(store: MessageStore) -> None:
    """Return when consumers can see everything that is confirmed, or there is no space for more."""
    done = 1
    while done:
        done = store.dispatch(RECORDS_PER_TURN)
        await asyncio.sleep(0)
