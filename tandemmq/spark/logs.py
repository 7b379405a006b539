"""The raw-log path: the same questions and the same rows, from stores or the brokers' HTTP ports."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tandemmq.cluster.client import ReceivedMessage
from tandemmq.cluster.client.hot import read_records
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.replication.audit.kernels import rows
from tandemmq.replication.audit.lines import lines_of
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.shelves import BLANK_SIZE, Queue
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.walking import ranges_of
from tandemmq.replication.audit.windows import limit_of, whole_record
from tandemmq.spark.errors import OptionRefused, UnknownTopic
from tandemmq.spark.options import LogOptions, ReadOptions
from tandemmq.spark.planning import LogPiece, QueueRange, lost
from tandemmq.spark.positions import Offsets, QueueKey, Span
from tandemmq.spark.topics import matching

log = logging.getLogger(__name__)


class Logs:
    """The stores of some brokers, asked as Cluster is."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def held(
        self, topics: Collection[str], pattern: str, *, known: bool = False
    ) -> dict[QueueKey, Span]:
        """As Cluster.held(), from consume queues. Raises UnknownTopic, AuditIncomplete, BadInput."""
        found: dict[QueueKey, Span] = {}
        for broker in sorted(self._options.places):
            with opened(self._options, broker) as replica:
                queues = {(each.topic.decode(), each.queue_id): each for each in _queues(replica)}
                names = {topic for topic, _ in queues}
                wanted = set(topics) or set(matching(names, pattern))
                for (topic, queue_id), queue in queues.items():
                    if topic in wanted:
                        found[QueueKey(topic, broker, queue_id)] = _span(replica, queue)
        missing = sorted(set(topics) - {key.topic for key in found})
        if (missing or not found) and not known:
            raise UnknownTopic(
                f"the stores of {', '.join(sorted(self._options.places))} have no queue of "
                f"{', '.join(missing) or f'topicPattern {pattern!r}'}"
            )
        return found

    def times(self, queues: Collection[QueueKey], time_ms: int) -> Offsets:
        """As Cluster.times()."""
        found: Offsets = {}
        with ExitStack() as stack:
            replicas = {
                broker: stack.enter_context(opened(self._options, broker))
                for broker in {key.broker for key in queues}
            }
            for key in queues:
                replica = replicas[key.broker]
                queue = _queue(replica, key)
                span = _span(replica, queue)
                places = range(span.start, span.end)
                at = bisect_left(
                    places, time_ms, key=lambda offset: _stored_ms(replica, queue, offset)
                )
                found[key] = span.start + at
        return found

    def epochs(self, brokers: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """As Cluster.epochs()."""
        found: dict[str, list[tuple[int, int]]] = {}
        for broker in sorted(set(brokers)):
            with opened(self._options, broker) as replica:
                entries = replica.epochs.entries if replica.epochs is not None else ()
                found[broker] = [(each.start, each.number) for each in entries]
        return found

    def pieces(self, ranges: Sequence[QueueRange]) -> list[LogPiece]:
        """The parts of the logs in which the rows of these ranges lie."""
        found: list[LogPiece] = []
        for broker in sorted({each.queue.broker for each in ranges}):
            mine = tuple(each for each in ranges if each.queue.broker == broker)
            with opened(self._options, broker) as replica:
                queues = {each: _queue(replica, each.queue) for each in mine}
                firsts = [_place(queues[each], each.start) for each in mine]
                ends = [_end(queues[each], each.end - 1) for each in mine]
                cuts = ranges_of(replica, min(firsts), max(ends), self._options.piece_bytes)
                found += [LogPiece(broker, start, end, mine) for start, end in cuts]
        return found


@contextmanager
def opened(options: LogOptions, broker: str) -> Iterator[ReplicaStore]:
    """A broker's store. Raises OptionRefused for one without a place, AuditIncomplete, BadInput, OSError."""
    if broker not in options.places:
        known = ", ".join(sorted(options.places))
        raise OptionRefused(f"places has no broker {broker}; it has {known}")
    token, ca = options.token, ""
    if options.token_file:
        token = Path(options.token_file).read_text(encoding="utf-8").strip()
    if options.ca_file:
        ca = Path(options.ca_file).read_text(encoding="utf-8")
    replica = open_replica(options.places[broker], broker, access=Access(token, ca))
    try:
        yield replica
    finally:
        replica.close()


def read_log(options: ReadOptions, piece: LogPiece) -> Iterator[Sequence[ReceivedMessage]]:
    """The wanted messages of one piece, in the order of the log. Raises DataLost, AuditIncomplete, BadInput."""
    assert options.log is not None
    with opened(options.log, piece.broker) as replica:
        wanted = _expected(replica, piece)
        counts = dict.fromkeys(wanted, 0)
        keep = _filter(options)
        for view, base, lines in lines_of(replica, piece.start, piece.end):
            records: list[memoryview] = []
            for line in lines:
                name = (line.topic, line.queue_id)
                if name in wanted and wanted[name].start <= line.queue_offset < wanted[name].end:
                    counts[name] += 1
                    records.append(view[line.offset - base : line.offset - base + line.size])
            if records:
                yield keep(read_records(b"".join(records), piece.broker, 0))
        for name, span in wanted.items():
            if missing := span.rows - counts[name]:
                key = QueueKey(name[0].decode(), piece.broker, name[1])
                why = f"{missing} of these are not in the log at [{piece.start}, {piece.end})"
                tell = None if options.fails_on_loss else log.warning
                lost(QueueRange(key, span.start, span.end), why, tell)


def _filter(options: ReadOptions) -> _Keep:
    return _Keep(options.tags, options.sql92)


class _Keep:
    """Leaves out what brokers would leave out."""

    def __init__(self, tags: str, sql92: str) -> None:
        self._tags = frozenset(word.strip() for word in tags.split("||") if word.strip())
        self._expression = compile_expression(sql92) if sql92 else None

    def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
        if self._expression is not None:
            return [each for each in messages if self._expression.matches(each.properties)]
        if self._tags:
            return [each for each in messages if each.tags in self._tags]
        return messages


def _expected(replica: ReplicaStore, piece: LogPiece) -> dict[tuple[bytes, int], Span]:
    """What the consume queues say of a piece: the queue offsets that must be found in it."""
    found: dict[tuple[bytes, int], Span] = {}
    for key, start, end in piece.ranges:
        queue = _queue(replica, key)
        places = range(start, end)
        first = bisect_left(places, piece.start, key=lambda offset: _place(queue, offset))
        stop = bisect_left(places, piece.end, key=lambda offset: _place(queue, offset))
        if first < stop:
            found[key.topic.encode(), key.queue_id] = Span(start + first, start + stop)
    return found


def _queues(replica: ReplicaStore) -> Iterator[Queue]:
    queues = replica.queues
    if queues is None:
        raise OptionRefused(
            f"the place of {replica.name} has no consume queues to look offsets up in: give a store's directory or a "
            "broker's HTTP port; format commitlog reads logs alone"
        )
    return iter(queues)


def _queue(replica: ReplicaStore, key: QueueKey) -> Queue:
    _queues(replica)
    assert replica.queues is not None
    found = replica.queues.by_name.get((key.topic.encode(), key.queue_id))
    if found is None:
        raise UnknownTopic(f"the store of {replica.name} has no queue {key}")
    return found


def _span(replica: ReplicaStore, queue: Queue) -> Span:
    """Entries whose records are in the log, and confirmed where the broker runs."""
    places = range(queue.min_offset, queue.max_offset)
    start = bisect_left(places, replica.start, key=lambda offset: _place(queue, offset))
    end = len(places)
    if replica.live is not None:
        end = bisect_left(places, replica.end, key=lambda offset: _place(queue, offset))
    return Span(queue.min_offset + start, queue.min_offset + max(start, end))


def _place(queue: Queue, offset: int) -> int:
    """Where the record of an entry begins in the log; -1 for an entry that only fills."""
    entry = queue.entry(offset)
    return -1 if entry is None or entry.size in (0, BLANK_SIZE) else entry.physical_offset


def _end(queue: Queue, offset: int) -> int:
    entry = queue.entry(offset)
    return 0 if entry is None else entry.physical_offset + entry.size


def _stored_ms(replica: ReplicaStore, queue: Queue, offset: int) -> int:
    place = _place(queue, offset)
    record = whole_record(replica, place) if place >= 0 else None
    if record is None:
        return -1
    line = next(rows(record, place, place + len(record), place, limit_of(replica, place)))
    return int(line.store_ms)
