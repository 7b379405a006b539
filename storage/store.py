"""MessageStore: the facade over log, queues, index and what keeps them on the disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemmq.storage.checkpoint import BOOT_ID_PATH, Checkpoint, RunningMark
from tandemmq.storage.clock import Clock, SystemClock
from tandemmq.storage.codec import Draft, Head, LogTail, QueueTail
from tandemmq.storage.commitlog import BatchPlaced, CommitLog, Placed
from tandemmq.storage.config import FlushMode, StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.cutting import Cut
from tandemmq.storage.directories import make_directory
from tandemmq.storage.dispatch import Dispatcher, parse_delay_levels
from tandemmq.storage.durability import Durability
from tandemmq.storage.entries import walk
from tandemmq.storage.errors import (
    FlushFailed,
    StoreIsFull,
    StoreNotWritable,
)
from tandemmq.storage.flags import Problem, StoreFlags
from tandemmq.storage.keyindex import KeyIndex
from tandemmq.storage.logfiles import LogFiles
from tandemmq.storage.mending import QueueMending
from tandemmq.storage.owner import Owner
from tandemmq.storage.putrules import PutRules
from tandemmq.storage.querying import QueryResult, query_by_key
from tandemmq.storage.reading import (
    EVERYTHING,
    GetResult,
    Reader,
    ReadingParts,
    Selector,
    hot_bytes,
)
from tandemmq.storage.record import Bytes
from tandemmq.storage.recovery import Parts, Recovered, Recovery
from tandemmq.storage.retention import Retention
from tandemmq.storage.setaside import FileRange
from tandemmq.storage.storelock import locked
from tandemmq.storage.takeover import Takeover, hide_unconfirmed
from tandemmq.storage.tombstones import Burials

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreStats:
    """Plain counters since the store was opened."""

    appended_messages: int = 0
    appended_bytes: int = 0


class MessageStore:
    """One broker's messages on one disk. Open it with open_store().

    Everything runs on one thread, except what says [thread]: those may run beside it, each one not
    beside itself. Puts raise MessageIllegal, StoreNotWritable (StoreIsFull), SegmentUnavailable;
    nothing is written then. FlushFailed, out of a put or a [thread] function, is final: flush_log()
    raises it from then on, and the process exits.
    """

    def __init__(self, config: StorageConfig, clock: Clock, mark: RunningMark) -> None:
        root = Path(config.root)
        self.config = config
        self.clock = clock
        self.flags = StoreFlags()
        self.stats = StoreStats()
        self.log = CommitLog(config)
        self.queues = ConsumeQueues(config)
        self.tombstones = self.queues.tombstones
        self.burials = Burials(self)
        self.index = KeyIndex(config, clock) if config.index_enabled else None
        self.delay_ms_by_level = parse_delay_levels(config.delay_levels)
        self.dispatcher = Dispatcher(
            self.log, self.queues, self.index, self.flags, self.delay_ms_by_level
        )
        self.mending = QueueMending(
            self.log, self.queues, self.delay_ms_by_level, lambda: self.dispatched
        )
        self.reader = Reader(self.log, self.queues, config, hot_bytes(config), clock, self.mending)
        self.retention = Retention(config, self.log, self.flags, clock)
        self.durability = Durability(
            root, mark, self.flags, self.log, self.queues, self.index, self.dispatcher
        )
        self.retention.durable = lambda: self.durability.derived
        self.owner = Owner()
        self._counted = (0, 0)  # records of the log's tail, and their bytes, that stats know of
        self.recovered = Recovered(clean=True, same_boot=True)
        self.tails_dropped = 0  # who keeps a QueueTail asks for it anew when this changes
        self._mark = mark
        self._synchronous = config.flush_mode is FlushMode.SYNC
        self.put_rules = PutRules(self)
        self.log_files = LogFiles(self)

    # --- opening and closing ---

    def recover(self) -> None:
        """Load and recover; afterwards the running mark is set and puts are possible.

        Raises NotAStore, CorruptFile, OSError, StoreIsFull, FlushFailed.
        """
        clean = not self._mark.unclean
        if clean:
            self._mark.set()  # a crash from here on is one: INV-11
        state = self.durability.load()
        self.tombstones.load()
        self.log.load()
        self.queues.load()
        if self.index is not None:
            self.index.load()
        parts = Parts(
            self.config, self.log, self.queues, self.index, self.dispatcher, self.flags,
            self.delay_ms_by_level, self.durability.forget_state,
        )  # fmt: skip
        self.recovered = Recovery(
            parts, self.checkpoint, state, clean, self._mark.same_boot, self._mark.received
        ).run()
        self._mark.set_received(False)  # what was there in part is cut
        self.durability.derived = self.recovered.derived_from
        if not clean:
            self._mark.set()  # only now: until recovery is through, the old mark tells the truth
        log.info("store recovered %s", self.recovered)

    def close(self, clean: bool = True) -> None:
        """Dispatch what is left, flush everything and take back the running mark.

        clean=False only lets go, as a crash would. The mark stays, too, when a file could not be
        written: the next start then recovers.
        """
        if not self.flags.set(Problem.CLOSED):
            return
        try:
            if clean:
                self._close_clean()
        finally:
            self.log_files.close()
            self.queues.close()
            if self.index is not None:
                self.index.close()
            self.log.close()

    def _close_clean(self) -> None:
        while self.dispatcher.position < self.confirmed and self.dispatch(1 << 20):
            pass
        self.flush_log(0)
        while self.dispatcher.position < self.confirmed and self.dispatch(1 << 20):
            pass
        complete = self.dispatcher.position == self.log.end and not self.dispatcher.starved
        self.flush_queues(0)
        self.flush_checkpoint(self.whole(self.confirmed))
        if self.flags.sound and complete:
            self._mark.clear()  # INV-11
        else:
            log.warning(
                "store closed but not marked clean dispatched=%d end=%d why=%s",
                self.dispatcher.position, self.log.end, self.flags.why(),
            )  # fmt: skip

    # --- appending ---

    def put(self, draft: Draft) -> Placed:
        """Append one message. See the class for errors; limits are RocketMQ's."""
        assert not self.log.staged, "whoever staged it must commit it, for answers go by that"
        self.put_rules.check(draft, len(draft.body))
        tail = self.queue_tail(draft.topic, draft.queue_id)
        try:
            placed = self.log.append(draft, tail, self.clock.now_ms())
        except (StoreIsFull, FlushFailed) as error:
            self.put_rules.note_refused(error)
            raise
        self._count()
        return placed

    def put_batch(self, envelope: Draft) -> BatchPlaced:
        """Append the messages of the envelope's body, as clients write a batch, next to each other in one file.

        Raises what put() raises, and MessageIllegal for a body that is no batch.
        """
        assert not self.log.staged, "as in put()"
        self.put_rules.check(envelope, len(envelope.body))
        tail = self.queue_tail(envelope.topic, envelope.queue_id)
        try:
            placed = self.log.append_batch(envelope, tail, self.clock.now_ms())
        except (StoreIsFull, FlushFailed) as error:
            self.put_rules.note_refused(error)
            raise
        self._count()
        return placed

    def append_raw(self, data: Bytes, offset: int) -> int:
        """Append a master's bytes, which must continue the log; its new end.

        Only a lack of space stops a slave: what the flags refuse to producers is the master's to
        refuse. How many records it were is counted when they are dispatched.
        Raises ValueError when offset is not the end, StoreIsFull, SegmentUnavailable, and
        FlushFailed, which is final.
        """
        if not self._mark.received:
            self._mark.set_received(True)
        seeded = not self.log.end
        try:
            end = self.log.append_raw(data, offset)
        except (StoreIsFull, FlushFailed) as error:
            self.put_rules.note_refused(error)
            raise
        finally:
            if seeded and self.log.run.segments:  # a part may be in it although the disk is full
                self.dispatcher.begin_at(offset)
        if not self.flags.writable:
            self.flags.clear(Problem.LOG_FULL)
        self.stats.appended_bytes += len(data)
        return end

    def refusal(self) -> StoreNotWritable | None:
        """Why a put would be refused right now, whatever it holds; None when it would not."""
        return self.put_rules.refusal()

    def commit(self) -> None:
        """Make what the send path staged part of the log. Answers may leave only after this. Raises
        FlushFailed, from then on always."""
        try:
            self.log.commit()
        except FlushFailed as error:
            self.durability.note_final(error)
            raise
        self._count()

    def _count(self) -> None:
        tail, (records, size) = self.log.tail, self._counted
        self._counted = tail.records, tail.record_bytes
        self.stats.appended_messages += tail.records - records
        self.stats.appended_bytes += tail.record_bytes - size

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        """Where the next message of a queue goes; the same object until the topic is deleted."""
        return self.log.queue_tail(topic.encode("utf-8", "replace"), queue_id)

    # --- positions ---

    @property
    def end(self) -> int:
        """Log offset of the next byte."""
        return self.log.end

    @property
    def flushed(self) -> int:
        """Everything below this log offset is on the disk."""
        return self.log.flushed

    @property
    def start(self) -> int:
        """Log offset of the first byte; 0 for an empty log."""
        return self.log.start

    @property
    def dispatched(self) -> int:
        """Everything below this log offset is in the queues. It ends a record."""
        return self.dispatcher.position

    @property
    def starved(self) -> bool:
        """Whether a full disk keeps a record from its queue, or the index from following."""
        return self.dispatcher.starved

    @property
    def staged(self) -> bool:
        """See CommitLog.staged."""
        return self.log.staged

    @property
    def log_tail(self) -> LogTail:
        """Where the send path stages records, each at its queue's tail, before it calls commit(). Always the same
        object."""
        return self.log.tail

    @property
    def last_store_ms(self) -> int:
        """The newest store time given; store times never go back, whatever the clock does."""
        return self.log.tail.last_store_ms

    @property
    def checkpoint(self) -> Checkpoint:
        """What is known to be on the disk."""
        return self.durability.checkpoint

    @property
    def confirmed(self) -> int:
        """Consumers see what lies below: on disk (SYNC_FLUSH), and replicated, as the owner says."""
        confirmed = self.log.flushed if self._synchronous else self.log.end
        if self.owner.confirmed is not None:
            confirmed = min(confirmed, self.owner.confirmed())
        return confirmed

    def whole(self, confirmed: int) -> int:
        """As much of what is confirmed as is known to end a record: what comes from a master ends anywhere, and a
        process that dies leaves its successor whole records only. INV-37"""
        if not self._mark.received:
            return confirmed
        return min(confirmed, max(self.dispatcher.position, self.checkpoint.confirmed))

    # --- dispatch ---

    def dispatch(self, records_max: int = 4096) -> int:
        """Derive queue and index entries of confirmed messages; how many messages were done."""
        done = self.dispatcher.step(records_max, self.confirmed)
        # A slave counts what was replicated here, so nothing "waits" when it becomes the master.
        if self.stats.appended_messages < self.dispatcher.stats.records:
            self.stats.appended_messages = self.dispatcher.stats.records
        return done

    def belong_to(self, owner: Owner) -> None:
        """Ask and tell this owner from now on."""
        self.owner = self.dispatcher.owner = owner

    @property
    def dispatch_backlog_bytes(self) -> int:
        return max(0, self.confirmed - self.dispatcher.position)

    @property
    def waiting_records(self) -> int:
        """Messages appended and not dispatched."""
        return max(0, self.stats.appended_messages - self.dispatcher.stats.records)

    @property
    def dispatch_behind(self) -> bool:
        """Flow control: whether so many messages wait that puts are refused."""
        return self.put_rules.behind

    # --- reading ---

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int = 128 << 20,
        selector: Selector = EVERYTHING,
        *,
        patient: bool = False,
    ) -> GetResult:
        """See Reader.get."""
        return self.reader.get(
            topic, queue_id, offset, count_max, bytes_max, selector, patient=patient
        )

    @property
    def reading_parts(self) -> ReadingParts:
        """For the short path of pulls, which does in C what get() does where nothing is special."""
        return self.reader.parts()

    @property
    def hot_from(self) -> int:
        """Log offset from which on records are taken to be in memory, without asking."""
        return self.reader.hot_from

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset that can be read; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last message that consumers can see; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the next message to be put."""
        tails = self.log.queue_tails.get(topic.encode("utf-8", "replace"), {})
        tail = tails.get(queue_id)
        return tail.next_offset if tail is not None else 0

    def disk_space(self) -> tuple[int, int]:
        """Bytes of the file system that the log is on, and how many of them we may still use. Raises OSError."""
        return self.retention.space()

    def put_counts(self) -> Iterator[tuple[str, int]]:
        """topic -> messages ever put into it. Topics may come and go while it is gone over."""
        for topic, tails in list(self.log.queue_tails.items()):
            yield topic.decode("utf-8", "replace"), sum(each.next_offset for each in tails.values())

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None for an unknown queue."""
        return self.queues.get(topic, queue_id)

    def begin_queue(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """See ConsumeQueues.begin. Of a slave: puts go on there once it has taken over."""
        return self.queues.begin(topic, queue_id, queue_offset)

    def queue_describes_nothing(self, topic: str, queue_id: int) -> bool:
        """See ConsumeQueues.describes_nothing."""
        return self.queues.describes_nothing(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, store_ms: int, upper: bool = False) -> int:
        """See ConsumeQueue.offset_by_time; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.offset_by_time(self.log.store_ms_at, store_ms, upper)

    def store_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of a queue's message; -1 when it is not there."""
        queue = self.queues.get(topic, queue_id)
        entry = queue.entry(queue_offset) if queue is not None else None
        found = self.log.store_ms_at(entry[0]) if entry is not None else None
        return -1 if found is None else found

    def earliest_store_ms(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of a queue's first message, of the log's without a topic; -1 when empty."""
        if topic is None:
            found = self.log.store_ms_at(self.log.start)
            return -1 if found is None else found
        return self.store_ms(topic, queue_id, self.min_offset(topic, queue_id))

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record at a log offset; None when none begins there (size and magic are checked), or
        it is not confirmed: what consumers were shown stays."""
        record = self.log.record_at(physical_offset)
        if record is not None and physical_offset + len(record) > self.confirmed:
            return None
        return record

    def stored_at(self, physical_offset: int) -> memoryview | None:
        """The record at a log offset, confirmed or not; None when none begins there."""
        return self.log.record_at(physical_offset)

    def walk(self, offset: int, records_max: int) -> tuple[list[Head], int]:
        """See entries.walk; confirmed or not. Where records lie is in their physical_offset."""
        return walk(self.log, offset, records_max)

    def file_range(self, offset: int, bytes_max: int) -> FileRange | None:
        """Where the log's bytes from an offset on lie, or from its start on; as far as one file goes. None: nowhere."""
        offset = max(offset, self.log.start)
        segment = self.log.run.find(offset)
        if segment is None:
            return None
        position = offset - segment.start
        return FileRange(segment.path, position, min(bytes_max, segment.wrote - position))

    def query(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        unique: bool = False,
    ) -> QueryResult:
        """See query_by_key()."""
        return query_by_key(self, topic, key, count_max, begin_ms, end_ms, unique)

    # --- topics ---

    def queue_ids(self, topic: str) -> set[int]:
        """Queues of a topic that are known here; others are at 0."""
        return {queue.queue_id for queue in self.queues.of_topic(topic)}

    def topics(self) -> list[str]:
        """Topics with queues."""
        return self.queues.topics()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues; its messages stay in the log until they age, and are nobody's. Raises OSError."""
        assert not self.log.staged, "what is staged was sent before"
        self.burials.bury(topic, self.log.end)

    def clean_expired_queues(self, is_system: Callable[[str], bool] = lambda topic: False) -> int:
        """Remove queues of which no message is left; their offsets begin again at 0."""
        return self.burials.drop_expired(is_system)

    def clean_unused_topics(self, known: set[str] | frozenset[str]) -> list[str]:
        """Remove the queues of every topic that is not known (system topics count as known)."""
        unused = [topic for topic in self.topics() if topic not in known]
        for topic in unused:
            self.delete_topic(topic)
        return unused

    # --- to the disk ---

    def flush_log(self, pages_min: int = 0) -> int:
        """Flush when at least pages_min pages are dirty (0: any); the flushed end. [thread]"""
        return self.durability.flush_log(pages_min)

    def flush_queues(self, pages_min: int = 0) -> None:
        """Flush consume queues with enough dirty pages; with 0 all of them, the index and the log
        up to what was dispatched. [thread]"""
        self.durability.flush_queues(pages_min)

    def flush_checkpoint(self, confirmed: int) -> None:
        """Write the checkpoint when it changed. [thread]

        confirmed   what whole() made of `confirmed` on the store's own thread: what it asks is not ours to lock
        """
        self.durability.flush_checkpoint(confirmed)

    @property
    def next_segment_needed(self) -> bool:
        """Whether prepare_next_segment() has something to do."""
        return self.log.next_segment_needed()

    def prepare_next_segment(self) -> bool:
        """Make the next log file; whether there is one. [thread]"""
        return self.log_files.prepare_next()

    # --- retention ---

    def clean(self) -> list[Path]:
        """One pass of retention: what goes is out of sight now; free_retired() deletes the log
        files.

        Also looks at the disk: sets and clears the disk-full flag. Raises OSError.
        """
        return self.log_files.clean()

    def free_retired(self) -> int:
        """Delete and unmap log files that clean() took out; how many still wait for readers. [thread]"""
        return self.log_files.free_retired()

    def clean_soon(self) -> None:
        """The next clean() deletes what has expired, whatever the hour."""
        self.retention.request()

    @property
    def clean_held_back(self) -> bool:
        """Whether clean() left files because nothing vouches yet for what was derived from them."""
        return self.retention.held_back

    # --- cutting ---

    def truncate(self, log_end: int) -> None:
        """Cut the log and everything derived from it; replication found that its end is not shared.
        Durable when done; blocks for that long (see Cut).

        Raises OSError, StoreIsFull, FlushFailed.
        """
        cut = Cut(self, log_end)
        try:
            cut.prepare()
            cut.make()
            cut.flush()
        finally:
            cut.end()

    # --- changes of role ---

    def takeover(self) -> Takeover:
        """This broker is to write the log itself from now on: see there for the steps. What is confirmed is
        dispatched; nobody appends until they are done."""
        return Takeover(self)

    def ends_whole(self) -> None:
        """The log ends with a whole record from now on: this broker writes it itself."""
        self._mark.set_received(False)

    def hide_unconfirmed(self, confirmed: int) -> None:
        """Take queue and index entries of records at and behind `confirmed` back, and dispatch no further.

        Recovery derives everything that is in the log. A replica that comes back may show consumers
        only what was confirmed; the rest they see when it is, or never. Raises OSError.
        """
        hide_unconfirmed(self, confirmed)

    def runtime(self) -> dict[str, str]:
        """RocketMQ's names for what operators ask. Source: its DefaultMessageStore.getRuntimeInfo."""
        disk = self.retention.disk
        log_path = str(self.config.commitlog_path)
        return {
            "commitLogDiskRatio": f"{disk.log_percent / 100}",
            f"commitLogDiskRatio_{log_path}": f"{disk.log_percent / 100}",
            "consumeQueueDiskRatio": f"{disk.queue_percent / 100}",
            "commitLogMinOffset": f"{self.log.start}",
            "commitLogMaxOffset": f"{self.log.end}",
        }


@contextlib.contextmanager
def open_store(
    config: StorageConfig,
    clock: Clock | None = None,
    boot_id_path: Path = BOOT_ID_PATH,
) -> Iterator[MessageStore]:
    """Lock, load, recover and mark a store; leaving closes it, cleanly unless an exception leaves.

    Raises StoreLocked, NotAStore, StoreIsFull, FlushFailed, OSError.
    """
    root = Path(config.root)
    make_directory(root)
    with locked(root):
        mark = RunningMark(root, boot_id_path, config.flush_mode)
        store = MessageStore(config, clock or SystemClock(), mark)
        clean = False
        try:
            store.recover()
            yield store
            clean = True
        finally:
            store.close(clean)
