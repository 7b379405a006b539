"""Puts a store on the disk, and keeps the small files that tell how much of it is there."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from tandemmq.storage.checkpoint import (
    Checkpoint,
    QueueState,
    RunningMark,
    forget_queue_state,
    load_checkpoint,
    load_queue_state,
    save_checkpoint,
    save_queue_state,
)
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.dispatch import Dispatcher
from tandemmq.storage.errors import FlushFailed
from tandemmq.storage.flags import Problem, StoreFlags
from tandemmq.storage.keyindex import KeyIndex

log = logging.getLogger(__name__)


class Durability:
    """What of one store is on its disk.

    checkpoint  times and offsets below which everything is
    derived     queue and index entries of records below this log offset are
    A FlushFailed is final: the flags say so, and the next start does not believe the page cache.
    """

    def __init__(
        self,
        root: Path,
        mark: RunningMark,
        flags: StoreFlags,
        log_: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
    ) -> None:
        self.checkpoint = Checkpoint()
        self.derived = 0
        self._mark = mark
        self._flags = flags
        self._log = log_
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint_path = root / "checkpoint"
        self._state_path = root / "queuestate"
        self._written_checkpoint = b""
        self._written_state: QueueState | None = None
        # Several threads flush the log. Who holds both took the queues' first.
        self._flushing_queues = threading.Lock()
        self._flushing_log = threading.Lock()
        self._stating = threading.Lock()  # taken last, while the queue state is written or deleted
        self._went_back = 0
        self._doubts = 0
        self._stated = True  # a queue state may be on the disk

    def load(self) -> QueueState | None:
        """Read the checkpoint, and what the queues held. Raises OSError."""
        self.checkpoint = load_checkpoint(self._checkpoint_path)
        return load_queue_state(self._state_path)

    # --- flushing ---

    def flush_log(self, pages_min: int = 0) -> int:
        """Flush when at least pages_min pages are dirty (0: any); the flushed end. [thread]"""
        with self._flushing_log, self.noting_failure():
            # Before `end`: never newer than what is flushed. A slave has not stored them itself.
            last_ms = max(self._log.tail.committed_ms, self._dispatcher.stats.store_ms)
            end = self._log.end
            flushed = self._log.flushed
            few = flushed >= end or (end >> 12) - (flushed >> 12) < pages_min
            if few and not self._log.failure and not self._log.run.cut_unflushed:
                return flushed
            flushed = self._log.flush(end)
            if flushed >= end:
                self.checkpoint.physic_ms = max(self.checkpoint.physic_ms, last_ms)
            return flushed

    def flush_queues(self, pages_min: int = 0) -> None:
        """Flush consume queues with enough dirty pages. [thread]

        With 0: all of them, the index and the log up to what was dispatched; only then checkpoint
        and queue state may say so.
        """
        with self._flushing_queues, self.noting_failure():
            if pages_min:
                self._queues.flush(pages_min)
                return
            dispatcher, index = self._dispatcher, self._index
            # In this order: what is promised was written before, whatever the loop does meanwhile.
            went_back = self._went_back
            marks = self._queues.marks()
            last_ms = dispatcher.stats.store_ms
            index_end = index.last_indexed if index is not None else None
            index_position = dispatcher.index_position
            position, last_record = dispatcher.reached
            complete = self._queues.flush(0) and not index_position < position
            if index is not None:
                self.checkpoint.index_ms = max(self.checkpoint.index_ms, index.flush())
            if not complete or self.flush_log() < position:
                return
            state = QueueState(
                dispatched=position, last_record=last_record, index_end=index_end, queues=marks
            )
            with self._stating:
                if went_back == self._went_back and not self._doubts:
                    self.checkpoint.logics_ms = max(self.checkpoint.logics_ms, last_ms)
                    self.derived = position
                    self._write_state(state)

    def _write_state(self, state: QueueState) -> None:
        if state != self._written_state:
            self._stated = True
            try:
                save_queue_state(self._state_path, state)
                self._written_state = state
            except OSError as error:
                # The older state stays true; recovery only has more to do.
                log.warning("queue state not written why=%s", error)

    def flush_checkpoint(self, confirmed: int) -> None:
        """Write the checkpoint when it changed. [thread]"""
        with self._flushing_queues:
            self.checkpoint.confirmed = min(confirmed, self._log.flushed)
            try:
                self._write_checkpoint()
            except OSError as error:
                log.warning("checkpoint not written why=%s", error)

    def _write_checkpoint(self) -> None:
        encoded = self.checkpoint.encode()
        if encoded != self._written_checkpoint:
            save_checkpoint(self._checkpoint_path, self.checkpoint)
            self._written_checkpoint = encoded

    # --- cutting ---

    def hold(self) -> None:
        """Let what is being flushed end, and begin no more until release(). [thread]"""
        self._flushing_queues.acquire()
        self._flushing_log.acquire()

    def release(self) -> None:
        self._flushing_log.release()
        self._flushing_queues.release()

    def forget(self, store_ms: int, log_end: int) -> None:
        """Vouch for nothing that was stored later, or from log_end on: it is about to be cut. While
        flushing is held. [thread] Raises OSError."""
        self.checkpoint.lower(store_ms, log_end)
        self._write_checkpoint()
        self.derived = self._log.start
        self.forget_state()

    def forget_state(self) -> None:
        """Vouch for no entry of a queue: some are about to be written anew, and a power cut leaves those with holes.
        Nor does a flush that is under way. [thread] Raises OSError."""
        with self._stating:
            self._went_back += 1
            self._written_state = None
            if self._stated:
                forget_queue_state(self._state_path)
                self._stated = False

    @contextlib.contextmanager
    def doubting(self) -> Iterator[None]:
        """Around go_back() on a thread that must not wait for a disk, once forget_state() ran on another: meanwhile
        nothing is vouched for anew, so there is nothing left to forget."""
        with self._stating:
            self._doubts += 1
        try:
            yield
        finally:
            with self._stating:
                self._doubts -= 1

    def go_back(self, log_offset: int) -> None:
        """Queues are about to be dropped that have entries of records from there on. Blocks for a sync, unless
        doubting(). Raises OSError."""
        self.forget_state()
        self.derived = min(self.derived, log_offset)

    # --- what is final ---

    @contextlib.contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Around what may raise FlushFailed, which is final: no put is taken afterwards."""
        try:
            yield
        except FlushFailed as error:
            self.note_final(error)
            raise

    def note_final(self, error: FlushFailed) -> None:
        """The disk refused: INV-8. What the kernel still shows of this store may not be on it."""
        if self._flags.set(Problem.FLUSH_FAILED, str(error)):
            log.critical("the disk refused, nothing is acknowledged any more why=%s", error)
        try:
            self._mark.forget_boot()
        except OSError as problem:
            log.error("page cache will be trusted at the next start why=%s", problem)
