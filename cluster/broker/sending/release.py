"""The way of a message into the log and of its answer out of the broker: one order of effects, in every mode.

Whether an acknowledged message survives rests on this order, so it is spelled out in one place: Release.now().
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from tandemmq.cluster.broker.sending.acks import Acks, Chunk
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.watching.latencies import Pace, Timed
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.storage import BatchPlaced, Draft, MessageStore, Placed


class Release:
    """The only one that writes messages of clients into the log, and lets their answers go.

    The send path stages records in the log's tail, and their answers here; what comes in on all connections in one
    turn of the loop is released together. Whatever else writes a message does so by put().

    wake   have queues derived of what is confirmed
    flush  answers may wait for the disk
    later  calls a function soon, before the loop waits again (call_soon)
    """

    def __init__(
        self,
        store: MessageStore,
        acks: Acks,
        standing: Standing,
        *,
        wake: Callable[[], None],
        flush: Callable[[], None],
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        self.acks = acks
        self.holds = standing.holds_answers
        self._latencies = acks.latencies
        self.staged: list[Chunk] = []  # of the send path, which calls due() with the first of them
        self._store = store
        self._standing = standing
        self._wake = wake
        self._flush = flush
        self._later = later
        self._is_due = False
        self._pace = Pace()
        self._untimed = 1  # commits until one is timed
        self._since_ns = 0  # when that one began to come in, 0 for the others
        self._counted = 0  # messages up to the last timed one

    def due(self) -> None:
        """Something was staged, or put: now() is called soon."""
        if not self._is_due:
            self._is_due = True
            self._untimed -= 1
            if self._untimed <= 0:
                self._since_ns = perf_counter_ns()
            self._later(self.now)

    def now(self) -> None:
        """Release what is staged. Raises FlushFailed; then no answer goes, now or ever.

        1. Commit: the records are in the log's file, though perhaps in the kernel's memory alone.
        2. Hold: the answers wait until the log is as safe as this broker promises, and that before anybody hears of
           the records, or a slave's report might come before the answer that it lets go. An ASYNC_MASTER with
           ASYNC_FLUSH and no controller promises no more than 1: there they leave.
        3. Ship: slaves get the log, and where answers wait for our disk it is flushed. What slaves report ends in
           the standing, what the disk has in flushed(): both let answers go.
        4. Wake: where no slave is waited for, dispatch shows consumers what is confirmed. Else 3 wakes it, later.
        """
        self._is_due = False
        lost = self._standing.lost() if self.holds else None
        if self.staged:
            chunks = [chunk for chunk in self.staged if chunk[1]]  # others are one-way
            self.staged.clear()  # the send path keeps this list
            timed = self._commit()
            if not self.holds:
                for connection, answers, _ in chunks:
                    connection.write_now(answers)
                if timed is not None:
                    self._latencies.answered(timed)
            elif chunks:
                size = sum([len(answers) for _, answers, _ in chunks])
                self.acks.hold_all(self._store.end, chunks, size, lost, timed)
        self._standing.ship()
        self._flush()
        if lost is not None or not self.holds:
            self._wake()

    def _commit(self) -> Timed | None:
        if not self._since_ns:
            self._store.commit()
            return None
        began_ns = perf_counter_ns()
        self._store.commit()
        timed = self._timed(perf_counter_ns())
        self._latencies.commit.add((timed.committed_ns - began_ns) // 1_000, timed.commits)
        return timed

    def _timed(self, committed_ns: int) -> Timed:
        """What is timed, and stands for what came since the one before."""
        messages = self._store.stats.appended_messages
        timed = Timed(self._since_ns, committed_ns, messages - self._counted, self._pace.every)
        self._pace.timed(self._since_ns)
        self._counted, self._untimed, self._since_ns = messages, self._pace.every, 0
        return timed

    def flushed(self, end: int) -> None:
        """The disk has the log up to `end`."""
        self._standing.flushed(end)
        self.acks.on_disk(end)
        self._wake()

    # --- the long way ---

    def settle(self) -> None:
        """Release what is staged, if anything is: what the caller does next comes after it."""
        if self.staged:
            self.now()

    def put(self, draft: Draft) -> Placed:
        """Append one message, and release it soon: hold() its answer before anything else happens.

        It lies behind what is staged, so that is released first. Raises what MessageStore.put raises.
        """
        self.settle()
        placed = self._store.put(draft)
        self.due()
        return placed

    def put_batch(self, envelope: Draft) -> BatchPlaced:
        """As put(), for the messages of a batch's body, next to each other."""
        self.settle()
        placed = self._store.put_batch(envelope)
        self.due()
        return placed

    def hold(self, end: int, connection: Connection, answer: Command) -> None:
        """The answer to what was put up to `end`, in the same callback of the loop."""
        timed = self._timed(perf_counter_ns()) if self._since_ns else None
        self.acks.hold(end, connection, answer, lost=self._standing.lost(), timed=timed)
