"""Makes the next file of a store's log before it is needed, and deletes those that retention takes."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.storage.errors import SegmentUnavailable, StoreIsFull
from tandemmq.storage.segment import Segment

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore

log = logging.getLogger(__name__)

NOT_MADE_AGAIN_MS: Final = 60_000  # so often it is said that there is no space for the next file


class LogFiles:
    """Of one store. What says [thread] may run beside the store's."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._retired: list[Segment] = []
        #: when it was last said that none was made in advance
        self._not_made_ms = -NOT_MADE_AGAIN_MS

    def prepare_next(self) -> bool:
        """See MessageStore.prepare_next_segment. [thread]

        A full disk is no error yet: the present file still has room. It is said once a minute.
        """
        try:
            if self._store.log.next_segment_needed():
                self._store.log.make_next_segment()
        except (StoreIsFull, SegmentUnavailable) as error:
            now_ms = self._store.clock.monotonic_ms()
            if now_ms - self._not_made_ms >= NOT_MADE_AGAIN_MS:
                self._not_made_ms = now_ms
                log.warning("next segment not made yet why=%s", error)
            return False
        self._not_made_ms = -NOT_MADE_AGAIN_MS
        return True

    def clean(self) -> list[Path]:
        """See MessageStore.clean."""
        store = self._store
        segments = store.retention.take()
        if store.dispatcher.starved:
            store.dispatch()
        now_ms = store.clock.monotonic_ms()
        paths = []
        for segment in segments:
            segment.retire(now_ms)
            self._retired.append(segment)
            paths.append(segment.path)
        if segments:
            store.queues.start_at(store.log.start)
            paths += store.queues.drop_before(store.log.start)
            store.tombstones.log_starts_at(store.log.start)
            if store.index is not None:
                paths += store.index.drop_before(store.log.start)
        return paths

    def free_retired(self) -> int:
        """See MessageStore.free_retired. [thread]

        Deleting a large file keeps the disk busy, so there is a pause after each but the last.
        """
        pause_s = self._store.config.delete_pause_ms / 1000
        deleted = False
        for segment in list(self._retired):
            if segment.path.exists():
                if deleted:
                    time.sleep(pause_s)
                segment.unlink()
                deleted = True
            if segment.free(self._store.clock.monotonic_ms(), self._store.config.forced_release_ms):
                self._retired.remove(segment)
        return len(self._retired)

    def close(self) -> None:
        """Nobody reads any more."""
        for segment in self._retired:
            segment.unlink()
            segment.free(self._store.clock.monotonic_ms(), forced_after_ms=0)
