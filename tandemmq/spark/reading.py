"""What batch and stream reads share: asking, planning, and reading a piece in an executor. Nothing of Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tandemmq.spark.batches import Batches
from tandemmq.spark.cluster import Cluster
from tandemmq.spark.errors import ClusterAway
from tandemmq.spark.options import LogOptions, ReadOptions
from tandemmq.spark.planning import (
    Held,
    LogPiece,
    QueueRange,
    Tell,
    between,
    cut_back,
    grown,
    lost,
    resolved,
    shrunk,
    split,
    together,
)
from tandemmq.spark.positions import Offsets, Positions, QueueKey, Span
from tandemmq.spark.pulling import pulled, subscription_of

if TYPE_CHECKING:
    from tandemmq.spark.logs import Logs

log = logging.getLogger(__name__)

SETTLE_S: Final = (
    5.0  # a new master knows its queues at once; one that restarts looks them over first
)


class Task(NamedTuple):
    """What one executor reads of one broker: plain values. epochs: of the broker's log."""

    piece: tuple[QueueRange, ...] | LogPiece
    epochs: tuple[tuple[int, int], ...]


class Source(Protocol):
    """Who is asked about queues: a cluster, or stores."""

    def held(
        self, topics: Collection[str], pattern: str, *, known: bool = False
    ) -> dict[QueueKey, Span]:
        """What every queue holds."""

    def times(self, queues: Collection[QueueKey], time_ms: int) -> Offsets:
        """The first queue offset of a time."""

    def epochs(self, brokers: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Which master wrote what."""


class Reading:
    """One read of topics, in the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        for topic in options.topics or ("any",):
            subscription_of(options, topic)  # a bad expression is refused before anybody is asked
        self._logs = None if options.log is None else _logs(options.log)
        self._source: Source = self._logs or Cluster(options.cluster)
        self.latest: Offsets = {}  # where the queues ended when next() last looked
        self._committed: Offsets = {}

    @property
    def _tell(self) -> Tell | None:
        return None if self._options.fails_on_loss else log.warning

    def held(self, *, known: bool = False) -> dict[QueueKey, Span]:
        """What the queues hold now. Raises UnknownTopic, ClusterAway, ClientError."""
        return self._source.held(self._options.topics, self._options.pattern, known=known)

    def resolve(self, positions: Positions, held: Held, option: str) -> Offsets:
        """Positions as queue offsets. Raises OffsetsRefused, DataLost, ClusterAway."""
        time_ms = positions.everywhere.time_ms
        times = self._source.times(list(held), time_ms) if time_ms is not None else {}
        return resolved(positions, held, times, option, self._tell)

    def start(self, held: Held | None = None) -> Offsets:
        """Where to begin."""
        return self.resolve(self._options.start, held or self.held(), "startingOffsets")

    def batch(self) -> list[QueueRange]:
        """The ranges of a batch read."""
        held = self.held()
        start = self.start(held)
        end = self.resolve(self._options.end, held, "endingOffsets")
        return between(start, end, checked=bool(self._options.end.exact))

    def tasks(self, ranges: Sequence[QueueRange]) -> list[Task]:
        """What the executors do; everything that is read was stored before this is called."""
        if not ranges:
            return []
        brokers = {each.queue.broker for each in ranges}
        wanted = "epoch" in self._options.columns
        epochs = self._source.epochs(brokers) if wanted else dict[str, list[tuple[int, int]]]()
        if self._logs is not None:
            pieces = self._logs.pieces(ranges)
            return [Task(each, tuple(epochs.get(each.broker, ()))) for each in pieces]
        least = self._options.partitions_min
        return [
            Task(each, tuple(epochs.get(each[0].queue.broker, ())))
            for each in together(split(ranges, least), least)
        ]

    # Streams

    def next(self, start: Offsets, rows_max: int | None, target: Offsets | None) -> Offsets:
        """Where the next micro-batch of a stream at `start` ends. Raises DataLost, ClusterAway, and as commit().

        Everything up to `start` is through its sink by then. Spark says so itself only when there is a next
        micro-batch: of a stream that rests, or is through, the last one would never be committed.
        """
        self.commit(start)
        held = self.held(known=bool(start))
        cut = shrunk(start, held)
        deadline_s = time.monotonic() + SETTLE_S
        while cut and time.monotonic() < deadline_s:
            time.sleep(0.2)
            held = self.held(known=True)
            cut = shrunk(start, held)
        for each in cut:
            lost(each, "the queue ends before what was read of it", self._tell)
        self.latest = {queue: span.end for queue, span in held.items()}
        return grown(cut_back(start, cut), held, rows_max, target)

    def target(self) -> Offsets:
        """Where all queues end now."""
        return {queue: span.end for queue, span in self.held().items()}

    def commit(self, offsets: Offsets) -> None:
        """Tell the cluster how far the stream is, where that was asked for. Raises ClientError: not allowed to."""
        changed = dict(offsets.items() - self._committed.items())
        if not changed or not self._options.commits or not isinstance(self._source, Cluster):
            return
        try:
            self._source.commit(self._options.group, changed)
            self._committed.update(changed)
        except ClusterAway as problem:  # the next one says as much and more
            log.warning("progress not committed group=%s why=%s", self._options.group, problem)


def read_task(options: ReadOptions, task: Task) -> Iterator[Any]:
    """The Arrow batches of one task, in an executor. Raises DataLost, BodyNotText, ClientError, AuditIncomplete."""
    batches = Batches(options.columns, text=options.text)
    if isinstance(task.piece, LogPiece):
        from tandemmq.spark.logs import read_log  # as in _logs()

        found = read_log(options, task.piece)
    else:
        found = pulled(options, task.piece, decoded=options.filtered)
    yield from batches.of(found, task.epochs)


def _logs(options: LogOptions) -> Logs:
    # not above: a part of what every stream's Python would import when it starts, and few need it
    from tandemmq.spark.logs import Logs

    return Logs(options)
