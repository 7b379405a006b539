"""Bugs that only shells can have, planted one at a time in a seed's own process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tandemmq.cluster.broker import jobs
from tandemmq.cluster.broker.sending import acks
from tandemmq.cluster.broker.standing import replicagroup, suspicion
from tandemmq.cluster.broker.timers import marks
from tandemmq.cluster.broker.transactions import halves, records, transactions
from tandemmq.cluster.controller import store
from tandemmq.replication import feed, keeping, receiver, sender
from tandemmq.replication.config import Mode
from tandemmq.storage import FlushFailed, segment, takeover


def answers_before_they_are_held() -> None:
    """An answer is released with its own commit instead of the slaves' reports."""
    hold_all = acks.Acks.hold_all

    def hold(self: Any, end: int, chunks: Any, size: int, *more: Any) -> None:
        hold_all(self, end, chunks, size, *more)
        self.reached(end, 2, 1)

    acks.Acks.hold_all = hold  # type: ignore[method-assign]


def drops_a_tick_for_ever() -> None:
    """A tick that comes while an effect is under way is the last one that is taken."""
    usual = feed.Feed.feed
    deaf: set[int] = set()

    def fed(self: Any, event: object) -> None:
        if type(event) in feed.TICKS:
            if self._under_way is not None:
                deaf.add(id(self))
            if id(self) in deaf:
                return
        usual(self, event)

    feed.Feed.feed = fed  # type: ignore[method-assign]


def leaves_queue_offsets() -> None:
    """A new master goes on with the queue offsets that it had, not with those of its log (INV-5)."""
    takeover.go_on = lambda *_: None  # type: ignore[assignment]


def reports_before_it_appends() -> None:
    """A slave says that it has what it has not written yet."""

    def later(self: Any, effect: Any) -> None:
        body = bytes(self._body)
        asyncio.get_running_loop().call_later(0.02, self._store.append_raw, body, effect.offset)

    receiver.Receiver._append = later  # type: ignore[method-assign]


def claims_a_flush_before_it_is_made() -> None:
    """What is about to be synced is told to be on the disk."""
    flush = jobs.LogFlush._flush

    async def early(self: Any, pages_min: int) -> None:
        self._on_flushed(self._store.end)
        await flush(self, pages_min)

    jobs.LogFlush._flush = early  # type: ignore[method-assign]


def notes_the_reign_later() -> None:
    """The epoch file is written some time after the first append."""
    persist = keeping.LogKeeping._persist

    async def later(self: Any, effect: Any) -> None:
        async def after() -> None:
            await asyncio.sleep(1.5)
            await persist(self, effect)

        self._late = asyncio.get_running_loop().create_task(after())

    keeping.LogKeeping._persist = later  # type: ignore[method-assign]


def forgets_the_suspicion() -> None:
    """A replica that lost power does not say so."""
    suspicion.SuspectMark.look = lambda self: None  # type: ignore[method-assign]
    suspicion.SuspectMark.make = lambda self, why: None  # type: ignore[method-assign]


def counts_what_was_sent() -> None:
    """A master takes what it shipped for what the slave reported."""
    usual = sender.Sender._reported

    def reported(self: Any, stream: Any, reports: Any) -> None:
        usual(
            self,
            stream,
            [msgspec.structs.replace(r, received=max(r.received, stream.sent)) for r in reports],
        )

    sender.Sender._reported = reported  # type: ignore[method-assign]


def believes_a_failed_sync() -> None:
    """An error of fdatasync is passed over."""

    def flush(self: Any) -> int:
        wrote = self.wrote
        with contextlib.suppress(FlushFailed):
            usual(self)
        self._failure = ""
        self.flushed = wrote
        return int(wrote)

    usual = segment.Segment.flush
    segment.Segment.flush = flush  # type: ignore[method-assign]


def keeps_records_in_memory() -> None:
    """The controller answers, and writes nothing down."""

    async def write(self: Any, changes: Any) -> None:
        self._records.update({name: record for name, record in changes.items() if record})

    store.FileStore.write = write  # type: ignore[method-assign]


def shows_what_is_not_confirmed() -> None:
    """Readers get what only the master has."""
    replicagroup.ControlledReplica.confirmed = (  # type: ignore[method-assign]
        lambda self: self._store.end
    )


def counts_reports_of_the_stream_before() -> None:
    """What comes on an older stream counts for the newest one too, as far as that was sent so much."""
    usual = sender.Sender._reported

    def reported(self: Any, stream: Any, reports: Any) -> None:
        usual(self, stream, reports)
        newest = self._streams.get(max(self._streams, default=-1))
        if newest is not None and newest is not stream and newest.acked >= 0:
            usual(
                self,
                newest,
                [
                    msgspec.structs.replace(each, received=min(each.received, newest.sent))
                    for each in reports
                ],
            )

    sender.Sender._reported = reported  # type: ignore[method-assign]


def appends_twice_after_a_reconnect() -> None:
    """The first bytes of a slave's second stream, and of each later one, are appended twice."""
    append, greet = receiver.Receiver._append, receiver.Receiver._greet
    fresh: dict[int, bool] = {}  # receiver -> whether its next append is the first of such a stream

    def greeted(self: Any, effect: Any) -> None:
        fresh[id(self)] = id(self) in fresh
        greet(self, effect)

    def twice(self: Any, effect: Any) -> None:
        append(self, effect)
        if fresh.get(id(self)):
            fresh[id(self)] = False
            self._store.append_raw(self._body, self._store.end)

    receiver.Receiver._greet = greeted  # type: ignore[method-assign]
    receiver.Receiver._append = twice  # type: ignore[method-assign]


def notes_an_end_before_its_message() -> None:
    """A committed transaction is noted as over some time before its message is put."""

    def commit(self: Any, header: Any) -> int:
        record, half = self._named(header, halves.Outcome.COMMITTED)
        if half is not None:
            draft = records.committed(record, half.offset)
            self._over(half, halves.Outcome.COMMITTED)
            self._note_all()
            asyncio.get_running_loop().call_later(0.03, self._release.put, draft)
        return int(self._store.end)

    transactions.Transactions.commit = commit  # type: ignore[method-assign]


def marks_timers_before_their_copies() -> None:
    """A mark says that timers were delivered which are due in a moment only."""
    usual = marks.put

    def put(append: Any, progress: Any, now_ms: int, host: bytes) -> None:
        usual(append, progress._replace(read_ms=progress.read_ms + 1000), now_ms, host)

    marks.put = put


@dataclass(frozen=True)
class PlantedBug:
    """A bug, the promises that it may break, and a seed that shows it in this mode."""

    plant: Callable[[], None]
    breaks: frozenset[str]
    seed: int
    mode: Mode | None = None


NOT_SAFE = frozenset({"COPIES", "FLUSHED", "LOST", "REWRITTEN"})
NOT_WELL = frozenset({"STUCK", "LOST"})

PLANTED = [
    PlantedBug(answers_before_they_are_held, NOT_SAFE, 0),
    PlantedBug(drops_a_tick_for_ever, NOT_WELL, 43),
    PlantedBug(leaves_queue_offsets, frozenset({"REWRITTEN"}), 22),
    PlantedBug(reports_before_it_appends, NOT_SAFE, 4),
    PlantedBug(claims_a_flush_before_it_is_made, NOT_SAFE, 7, Mode.S1),
    PlantedBug(counts_what_was_sent, NOT_SAFE, 47, Mode.S0),
    PlantedBug(keeps_records_in_memory, NOT_WELL, 11),
    PlantedBug(believes_a_failed_sync, NOT_SAFE, 19, Mode.S1),
    PlantedBug(forgets_the_suspicion, NOT_SAFE, 59, Mode.S0),
    PlantedBug(notes_the_reign_later, NOT_SAFE | NOT_WELL, 0, Mode.S0),
    PlantedBug(counts_reports_of_the_stream_before, NOT_SAFE, 108, Mode.S0),
    PlantedBug(appends_twice_after_a_reconnect, frozenset({"DIED"}), 1, Mode.S0),
    PlantedBug(notes_an_end_before_its_message, frozenset({"LOST"}), 64),
    PlantedBug(marks_timers_before_their_copies, frozenset({"LOST", "EARLY"}), 13),
    PlantedBug(
        shows_what_is_not_confirmed, frozenset({"REWRITTEN", "LOST", "STUCK"}), 139, Mode.S0
    ),
]
