"""Keeps transactions on a master: puts what halves.py decides, asks producers, and notes in the log what is over."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tandemmq.cluster.broker.errors import (
    BrokerError,
    NoMessageThere,
    RequestMalformed,
    TransactionLate,
    TransactionOver,
)
from tandemmq.cluster.broker.reading.members import ProducerMembers
from tandemmq.cluster.broker.replies import no_such_topic
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.broker.transactions import records
from tandemmq.cluster.broker.transactions.halves import Half, Halves, OpBatch, Outcome, Step
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.headers import EndTransactionHeader
from tandemmq.storage import (
    Clock,
    CorruptRecord,
    Draft,
    Mended,
    MessageIllegal,
    MessageStore,
    Record,
    StorageError,
    SysFlag,
    decode,
    offset_message_id,
)

log = logging.getLogger(__name__)
_unnoted = once_per(10)
_unchecked = once_per(10)

REPLAYED_AT_ONCE: Final = 1_024  # records: a few ms, then others are served
CHECKS_AT_ONCE: Final = 200
CHECK_PAUSE_S: Final = 0.05  # 4,000 checks a second
ROUND_MS_MAX: Final = 60_000
NOTE_RETRY_MS: Final = 1_000
HOUR_MS: Final = 3_600_000
_SHOWN: Final = 20  # topics

#: told up to where the log must be safe for a rollback to be certain; None: its end could not be noted yet
Noted = Callable[[int | None], None]


class Transactions:
    """The transactions of this broker while it is the master; on a slave it rests.

    ready   the log was replayed, so it is known which halves are pending
    broken  why that cannot be known, or ""
    Progress in both topics is that of RocketMQ's own group in consumerOffset.json.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        release: Release,
        topics: TopicTable,
        offsets: OffsetTable,
        producers: ProducerMembers,
        standing: Standing,
        clock: Clock,
        *,
        store_host: bytes,
    ) -> None:
        self._config = config
        self._store = store
        self._release = release
        self._topics = topics
        self._offsets = offsets
        self._producers = producers
        self._standing = standing
        self._clock = clock
        self._store_host = store_host
        self._kept_ms = config.storage.reserved_hours * HOUR_MS
        self.halves = Halves()
        self._ops = OpBatch(config.transaction_op_bytes_max, config.transaction_op_interval_ms)
        self._rollbacks: list[Noted] = []
        self._noting_soon = False
        self._not_before_ms = 0  # no op message: the last attempt failed
        self._wake = asyncio.Event()
        self.became_ready = asyncio.Event()
        self.broken = ""
        self._changed_ms: dict[str, int] = {}
        self.ended: Counter[tuple[str, Outcome]] = Counter()  # topic, how; since the start
        self.version = DataVersion(timestamp=clock.now_ms())
        self.metrics = SavedFile(config.config_path / "transactionMetrics", self._metrics_tree)

    @property
    def ready(self) -> bool:
        return self.became_ready.is_set()

    @property
    def full(self) -> bool:
        """Whether no more can be begun now."""
        return self.halves.full or self._ops.full or bool(self.broken)

    def runtime(self) -> dict[str, str]:
        """Entries of the runtime table, ours: how many transactions are open, in all and by topic. No entry on a slave,
        nor before that is known."""
        if not self.ready:
            return {}
        counts = {topic: count for topic, count in self.halves.counts.items() if count > 0}
        by_topic = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items())[:_SHOWN])
        more = f", and {len(counts) - _SHOWN} more topics" if len(counts) > _SHOWN else ""
        return {
            "transactionsPending": str(sum(counts.values())),
            **({"transactionsPendingByTopic": by_topic + more} if counts else {}),
        }

    def _metrics_tree(self) -> dict[str, Any]:
        counts = self.halves.counts
        return {
            "dataVersion": self.version.to_json(),
            "transactionCount": {
                topic: {"count": counts[topic], "timeStamp": changed_ms}
                for topic, changed_ms in sorted(self._changed_ms.items())
            },
        }

    def _counted(self, topic: str) -> None:
        now_ms = self._clock.now_ms()
        self._changed_ms[topic] = now_ms
        self.version.advance(now_ms)
        self.metrics.changed()

    # -- what producers do -----------------------------------------------------------------

    def began(self, offset: int, queue_offset: int) -> None:
        """A half message was put. Before the replay is through it finds it itself."""
        if self.ready:
            record = self._record(offset)
            assert record is not None, (
                f"the half message that was just put at {offset} is not there"
            )
            half = self._half(record, queue_offset, offset)
            self.halves.stored(half)
            self._counted(half.topic)

    def commit(self, header: EndTransactionHeader) -> int:
        """Put the message where consumers see it; up to where the log must be safe for that to be certain.

        The same again for one that was committed already. Raises NoMessageThere, RequestMalformed, TransactionLate,
        TransactionOver, NoSuchTopic and what a put raises; then it stays as it is, and its producer is asked.
        """
        record, half = self._named(header, Outcome.COMMITTED)
        if half is None:
            return self._store.end
        draft = records.committed(record, half.offset)
        if draft is None:
            raise NoMessageThere(f"half message at {header.commit_log_offset} names no queue")
        if draft.topic not in self._topics:
            raise no_such_topic(draft.topic)
        placed = self._release.put(draft)
        self._over(half, Outcome.COMMITTED)
        return placed.end

    def roll_back(self, header: EndTransactionHeader, noted: Noted | None) -> None:
        """Have the half message reach nobody. Raises as commit().

        noted   told when that is in the log: then it is noted at once
        """
        _, half = self._named(header, Outcome.ROLLED_BACK)
        if half is None:
            if noted is not None:
                noted(self._store.end)
            return
        if noted is not None:
            self._rollbacks.append(noted)
            if not self._noting_soon:
                self._noting_soon = True
                asyncio.get_running_loop().call_soon(self._note_soon)
        self._over(half, Outcome.ROLLED_BACK)

    def resume(self, offset: int) -> int:
        """Begin a transaction again that was given up: the message at a log offset of TRANS_CHECK_MAX_TIME_TOPIC. Up to
        where the log must be safe for that. Raises NoMessageThere, and what a put raises."""
        record = self._record(offset)
        if record is None or record.topic != records.GIVEN_UP_TOPIC:
            raise NoMessageThere(f"no message of {records.GIVEN_UP_TOPIC} is at {offset}")
        placed = self._release.put(records.resumed(record))
        self.began(placed.offset, placed.queue_offset)
        return placed.end

    def _named(self, header: EndTransactionHeader, wanted: Outcome) -> tuple[Record, Half | None]:
        """The half message that a request is about, and its newest copy; None when it ended as is wanted already."""
        offset, queue_offset = header.commit_log_offset, header.tran_state_table_offset
        record = self._record(offset)
        if record is None or record.topic != names.HALF_TOPIC:
            raise NoMessageThere("Find prepared transaction message failed")
        if records.group_of(record) != header.producer_group:
            raise RequestMalformed("The producer group wrong")
        if record.queue_offset != queue_offset:
            raise RequestMalformed("The transaction state table offset wrong")
        if record.physical_offset != offset:
            raise RequestMalformed("The commit log offset wrong")
        origin = self._half(record, queue_offset, offset).origin
        half = self.halves.find(origin) or self.halves.find(queue_offset)
        if not self._is_in_queue(queue_offset, offset, half):
            raise NoMessageThere("Find prepared transaction message failed")
        if half is None:
            outcome = self.halves.outcome(origin)
            if outcome is wanted:
                return record, None
            how = "is over" if outcome is None else f"was {outcome.value}"
            raise TransactionOver(f"Find prepared transaction message failed: it {how}")
        late = half.end_ms is not None and self._clock.monotonic_ms() > half.end_ms
        if late and not header.from_transaction_check:
            raise TransactionLate("its CHECK_IMMUNITY_TIME_IN_SECONDS is over, wait check")
        if self._ops.full:
            raise TransactionLate("too many ends wait to be noted, wait check")
        return record, half

    def _is_in_queue(self, queue_offset: int, offset: int, half: Half | None) -> bool:
        """Whether it is no forgery: a body may hold what looks like a half message."""
        if half is not None and (half.queue_offset, half.offset) == (queue_offset, offset):
            return True
        queue = self._store.queue(names.HALF_TOPIC, records.HALF_QUEUE)
        entry = queue.entry(queue_offset) if queue is not None else None
        return entry is not None and entry[0] == offset

    def _over(self, half: Half, outcome: Outcome) -> None:
        self.halves.end(half, outcome)
        self.ended[half.topic, outcome] += 1
        self._counted(half.topic)
        self._to_note(half.queue_offset)

    def _to_note(self, queue_offset: int) -> None:
        before = self._ops.due_ms()
        self._ops.add(queue_offset, self._clock.monotonic_ms())
        if self._ops.due_ms() != before:
            self._wake.set()

    # -- what is done by itself ------------------------------------------------------------

    async def run(self) -> None:
        """Keep transactions until cancelled: this broker is the master."""
        self.broken = ""
        try:
            await self.replay()
        except CorruptRecord as problem:
            self.broken = f"the log cannot be read: {problem}"
            log.error("transactions are not served why=%s", self.broken)
            await asyncio.Event().wait()
        try:
            await self._serve()
        finally:
            self.became_ready.clear()
            if self._standing.refusal() is None:
                self._note_all()
            self._ops.clear()  # a new reign finds in the log what is not noted
            self._let_go(None)

    async def _serve(self) -> None:
        config, clock = self._config, self._clock
        check_ms = clock.monotonic_ms() + config.transaction_check_interval_ms
        metrics_ms = clock.monotonic_ms() + config.transaction_metrics_interval_ms
        while True:
            await self._rest_until(check_ms, metrics_ms)
            now_ms = clock.monotonic_ms()
            self._note_due(now_ms)
            if now_ms >= check_ms:
                await self.check_round()
                check_ms = now_ms + config.transaction_check_interval_ms
            if now_ms >= metrics_ms:
                metrics_ms = now_ms + config.transaction_metrics_interval_ms
                try:
                    await self.metrics.saved()
                except OSError as problem:
                    log.error("table not saved path=%s why=%s", self.metrics.path, problem)
            self._keep_progress()

    async def _rest_until(self, check_ms: int, metrics_ms: int) -> None:
        until_ms = min(check_ms, metrics_ms)
        due_ms = self._ops.due_ms()
        if due_ms is not None:
            until_ms = min(until_ms, max(due_ms, self._not_before_ms))
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0, until_ms - self._clock.monotonic_ms()) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass  # the usual case: it is time for something

    def _keep_progress(self) -> None:
        offsets, halves, queue = self._offsets, self.halves, records.HALF_QUEUE
        offsets.commit(records.GROUP, names.HALF_TOPIC, queue, halves.progress)
        offsets.commit(records.GROUP, names.OP_TOPIC, queue, halves.op_progress)

    async def replay(self) -> None:
        """Learn from the log which halves are pending."""
        began_ms = self._clock.monotonic_ms()
        first, at = self._first_pending()
        start = at
        self.halves.begin(first, self._store.next_offset(names.OP_TOPIC, records.HALF_QUEUE))
        self._changed_ms.clear()
        while at < self._store.end:
            at = self._replay_some(at)
            if at < self._store.end:
                await asyncio.sleep(0)
        self.halves.caught_up()
        for topic in self.halves.counts:
            self._counted(topic)
        self.became_ready.set()
        log.info(
            "transactions replayed start=%d end=%d pending=%d took_ms=%d",
            start, at, len(self.halves), self._clock.monotonic_ms() - began_ms,
        )  # fmt: skip

    def _first_pending(self) -> tuple[int, int]:
        """Queue offset of the first half that may be pending, and from where on the log may tell of it."""
        queue = self._store.queue(names.HALF_TOPIC, records.HALF_QUEUE)
        if queue is None:
            return 0, self._store.dispatched
        kept = self._offsets.committed(records.GROUP, names.HALF_TOPIC, records.HALF_QUEUE)
        first = min(max(kept, queue.min_offset), queue.max_offset)
        while self._store.mending.mend(queue, first) is Mended.SEARCHING:
            pass  # from where it wrongly points on, nothing would be found
        entry = queue.entry(first)
        return first, self._store.dispatched if entry is None else entry[0]

    def _replay_some(self, at: int) -> int:
        heads, behind = self._store.walk(at, REPLAYED_AT_ONCE)
        for head in heads:
            committed = head.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.COMMIT
            if not committed and head.topic not in _TOPICS:
                continue
            record = self._record(head.physical_offset)
            if record is None:
                continue
            if head.topic == _HALF_TOPIC:
                half = self._half(record, record.queue_offset, record.physical_offset)
                self.halves.saw_half(half, records.birth_of(record))
            elif head.topic == _OP_TOPIC:
                self.halves.saw_op(record.queue_offset, records.offsets_of(record))
            else:
                self.halves.saw_commit(record.prepared_offset, records.birth_of(record))
        return behind

    def _record(self, offset: int) -> Record | None:
        """Raises CorruptRecord."""
        view = self._store.stored_at(offset) if 0 <= offset < self._store.end else None
        if view is None:
            return None
        with view:
            return decode(view)

    def _half(self, record: Record, queue_offset: int, offset: int) -> Half:
        return records.half_of(
            record,
            queue_offset,
            offset,
            now_ms=self._clock.now_ms(),
            monotonic_ms=self._clock.monotonic_ms(),
            timeout_ms=self._config.transaction_timeout_ms,
            kept_ms=self._kept_ms,
        )

    # -- op messages -----------------------------------------------------------------------

    def _note_due(self, now_ms: int) -> None:
        due_ms = self._ops.due_ms()
        while due_ms is not None and max(due_ms, self._not_before_ms) <= now_ms:
            if not self._note(now_ms):
                return
            due_ms = self._ops.due_ms()

    def _note_soon(self) -> None:
        self._noting_soon = False
        if self.ready:
            self._note_all()

    def _note_all(self) -> None:
        """Whoever waits for it is told, the other way where it could not be done."""
        now_ms = self._clock.monotonic_ms()
        while self._ops and self._note(now_ms):
            pass
        if self._ops:
            self._let_go(None)

    def _note(self, now_ms: int) -> bool:
        """Put one op message; False when the store takes none now."""
        named = self._ops.first()
        refused = self._standing.refusal()
        try:
            if refused is not None:
                raise refused.why
            placed = self._release.put(
                records.op_message(named, self._store_host, self._clock.now_ms())
            )
        except (BrokerError, StorageError) as problem:
            self._not_before_ms = now_ms + NOTE_RETRY_MS
            _unnoted.warning(log, "ends wait to be noted count=%d why=%s", len(self._ops), problem)
            return False
        self._ops.drop(len(named), now_ms)
        self.halves.noted(placed.queue_offset, max(named))
        if not self._ops:
            self._let_go(placed.end)
        return True

    def _let_go(self, end: int | None) -> None:
        waiting, self._rollbacks = self._rollbacks, []
        for noted in waiting:
            noted(end)

    # -- checks ----------------------------------------------------------------------------

    async def check_round(self) -> None:
        """Ask about every half whose time has come."""
        began_ms = self._clock.monotonic_ms()
        count = 0
        while (half := self.halves.next_due(began_ms)) is not None:
            over = self._clock.monotonic_ms() - began_ms > ROUND_MS_MAX
            if over or self._standing.refusal() is not None:
                self.halves.later(half, began_ms)
                return
            try:
                self._check(half, began_ms)
            except (MessageIllegal, CorruptRecord) as problem:  # others can be asked for
                self.halves.later(half, began_ms)
                _unchecked.warning(
                    log, "half message is left as it is offset=%d why=%s", half.offset, problem
                )
            except StorageError as problem:
                self.halves.later(half, began_ms)
                log.warning("transactions not checked why=%s", problem)
                return
            count += 1
            if count % CHECKS_AT_ONCE == 0:
                await asyncio.sleep(CHECK_PAUSE_S)

    def _check(self, half: Half, now_ms: int) -> None:
        record = self._record(half.offset)
        if record is None:
            log.error("half message is not in the log any more offset=%d", half.offset)
            self._over(half, Outcome.GIVEN_UP)
            return
        group = records.group_of(record)
        peer = self._producers.pick(group, half.topic)
        step = self.halves.step(
            half,
            now_ms,
            checks_max=self._config.transaction_checks_max,
            kept_ms=self._kept_ms,
            reachable=peer is not None,
        )
        if step is Step.WAIT:
            self.halves.later(half, now_ms)
        elif step is Step.GIVE_UP:
            self._give_up(half, record)
        else:
            checks = half.checks + (step is Step.ASK)
            draft = records.copied(record, half, checks)
            try:
                copy = self._put_again(half, draft, checks, now_ms, asked=step is Step.ASK)
            except MessageIllegal as problem:  # RocketMQ tries for ever
                log.error("half message cannot be put again offset=%d why=%s", half.offset, problem)
                self._give_up(half, record)
                return
            if step is Step.ASK and peer is not None:
                check = self._check_command(record, draft, copy)
                if check is not None:
                    peer.oneway(check)

    def _put_again(
        self, half: Half, draft: Draft, checks: int, now_ms: int, *, asked: bool
    ) -> Half:
        placed = self._release.put(draft)
        copy = dataclasses.replace(
            half,
            queue_offset=placed.queue_offset,
            offset=placed.offset,
            checks=checks,
            stored_ms=now_ms,
            ask_ms=now_ms + 1 if asked else half.ask_ms,
        )
        self._to_note(
            half.queue_offset
        )  # RocketMQ, going on with the store, asks for the copy only
        self.halves.stored(copy)
        return copy

    def _give_up(self, half: Half, record: Record) -> None:
        self._topics.create_for_retry(records.GIVEN_UP_TOPIC, 1, wait=False)
        self._release.put(records.given_up(record))
        self._over(half, Outcome.GIVEN_UP)
        log.warning(
            "transaction given up, see topic %s topic=%s group=%s id=%s checks=%d",
            records.GIVEN_UP_TOPIC,
            half.topic,
            records.group_of(record),
            records.unique_id_of(record),
            half.checks,
        )

    def _check_command(self, record: Record, draft: Draft, copy: Half) -> Command | None:
        """The question to a producer; it is answered with END_TRANSACTION, by the offsets named here."""
        body = records.checked(
            record, draft, copy.queue_offset, copy.offset, self._store.last_store_ms
        )
        if body is None:
            return None
        unique_id = records.unique_id_of(record)
        ext = {
            "topic": names.HALF_TOPIC,
            "tranStateTableOffset": str(copy.queue_offset),
            "commitLogOffset": str(copy.offset),
            "msgId": unique_id,
            "transactionId": unique_id,
            "offsetMsgId": offset_message_id(record.store_host, copy.offset),
            "bname": self._config.name,
        }
        return Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body)


_HALF_TOPIC: Final = names.HALF_TOPIC.encode()
_OP_TOPIC: Final = names.OP_TOPIC.encode()
_TOPICS: Final = frozenset({_HALF_TOPIC, _OP_TOPIC})
