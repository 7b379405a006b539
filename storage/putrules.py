"""When a store takes a put: what a message must keep to, flow control, and the look for space on a full disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tandemmq.storage.codec import Draft
from tandemmq.storage.errors import (
    FlushFailed,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
    StoreIsFull,
    StoreNotWritable,
)
from tandemmq.storage.flags import Problem

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore

log = logging.getLogger(__name__)

WAITING_RECORDS_MAX: Final = 400_000  # appended, not dispatched: beyond, puts are refused
TOPIC_BYTES_MAX: Final = 127
RETRY_TOPIC_BYTES_MAX: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
PROPERTIES_BYTES_MAX: Final = 32_767
SPACE_RETRY_MS: Final = 1000
SPACE_PROBLEMS: Final = Problem.LOG_FULL | Problem.QUEUES_FULL


class PutRules:
    """Those of one store. What is refused is not written."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._no_space_ms = 0  # monotonic, of the last refused segment

    @property
    def behind(self) -> bool:
        """Flow control: whether so many messages wait for dispatch that puts are refused."""
        return self._store.waiting_records > WAITING_RECORDS_MAX

    def check(self, draft: Draft, body_bytes: int) -> None:
        """What RocketMQ checks before a put, plus flow control. Raises what a put raises."""
        reason = self.refusal()
        if reason is not None:
            raise reason
        topic_bytes = len(draft.topic.encode("utf-8", "replace"))
        retry = draft.topic.startswith(RETRY_PREFIX)
        limit = RETRY_TOPIC_BYTES_MAX if retry else TOPIC_BYTES_MAX
        if not 0 < topic_bytes <= limit:
            raise MessageIllegal(f"topic is {topic_bytes} bytes, allowed are 1 to {limit}")
        if draft.queue_id < 0:
            raise MessageIllegal(f"queue id is {draft.queue_id}")
        if body_bytes > self._store.config.body_bytes_max and not draft.again:
            raise MessageTooLarge(
                f"body is {body_bytes} bytes, maxMessageSize is {self._store.config.body_bytes_max}"
            )
        if len(draft.properties) > PROPERTIES_BYTES_MAX:
            raise PropertiesTooLarge(
                f"properties are {len(draft.properties)} bytes, at most {PROPERTIES_BYTES_MAX}"
            )

    def refusal(self) -> StoreNotWritable | None:
        """See MessageStore.refusal."""
        store = self._store
        if not store.flags.writable:
            self._look_for_space()
        if not store.flags.writable:
            kind = StoreIsFull if store.flags.full else StoreNotWritable
            return kind(f"the store refuses writes: {store.flags.why()}")
        waiting = store.stats.appended_messages - store.dispatcher.stats.records
        if waiting > WAITING_RECORDS_MAX:
            return StoreNotWritable(
                f"{waiting} messages wait for their queues, more than {WAITING_RECORDS_MAX}"
            )
        return None

    def _look_for_space(self) -> None:
        """Where a full disk stopped us, try again, once a second."""
        store = self._store
        if (
            store.flags.problems & SPACE_PROBLEMS
            and store.clock.monotonic_ms() - self._no_space_ms >= SPACE_RETRY_MS
        ):
            self._no_space_ms = store.clock.monotonic_ms()
            store.flags.clear(Problem.LOG_FULL)  # the next put finds out
            if store.dispatcher.starved:
                store.dispatch()

    def note_refused(self, error: StoreIsFull | FlushFailed) -> None:
        """An append met this: flags and log say so."""
        store = self._store
        if isinstance(error, FlushFailed):
            store.durability.note_final(error)
            return
        self._no_space_ms = store.clock.monotonic_ms()
        if store.flags.set(Problem.LOG_FULL, str(error)):
            log.error("store refuses writes until there is space why=%s", error)
