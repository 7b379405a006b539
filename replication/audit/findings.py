"""Level 3, second half: what the passes over the log's ranges say together, and what follows from it.

A divergence has consequences: the queue entries of a lost record are missing, queue offsets have gaps. They
are counted under the divergence that explains them and are no findings of their own.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.replication.audit import ledger
from tandemmq.replication.audit.classes import Severity
from tandemmq.replication.audit.rangecheck import (
    Interval,
    MarkRow,
    RangeReport,
    Shelf,
    Span,
    SpecialRow,
)
from tandemmq.replication.audit.shelves import Queue
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.tables import Finding
from tandemmq.storage import CorruptFile

FINDINGS_MAX: Final = 10_000  # of one check in one store
RESIDUE_MS: Final = 3_600_000  # half or delayed messages this long overdue are residue
CHECKPOINT_LATE_MS: Final = 60_000
HALF_GROUP: Final = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"

_QUEUE_CODES: Final = (ledger.GAP, ledger.REPEAT)
_KEY_CODES: Final = (ledger.KEY_MISSING, ledger.KEY_OTHER, ledger.KEY_DANGLING)


@dataclass(slots=True)
class Whole:
    """The ranges of a log as one."""

    records: int = 0
    last_store_ms: int = 0
    end_store_ms: dict[str, int] = field(default_factory=dict)
    spans: dict[tuple[bytes, int], Span] = field(default_factory=dict)
    restarts: dict[tuple[bytes, int], int] = field(default_factory=dict)
    marks: list[MarkRow] = field(default_factory=list)
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    damaged: list[Interval] = field(default_factory=list)
    halves: list[SpecialRow] = field(default_factory=list)
    delayed: list[SpecialRow] = field(default_factory=list)
    ended_halves: set[tuple[int, int]] = field(default_factory=set)
    unindexed: list[int] = field(default_factory=list)
    first_unindexed: list[int] = field(default_factory=list)


def join(reports: Iterable[RangeReport]) -> Whole:
    """Put the reports of neighbouring ranges together; queues are followed over the edges."""
    whole = Whole()
    for report in sorted(reports, key=lambda report: report.start):
        whole.records += report.records
        before_ms = whole.last_store_ms
        whole.last_store_ms = report.last_store_ms or before_ms
        whole.end_store_ms |= {name: ms or before_ms for name, ms in report.end_store_ms.items()}
        for topic, queue_id, span in report.spans:
            _join_span(whole, (topic, queue_id), span)
        for mark in report.marks:
            if mark.code == ledger.RESTART:
                whole.restarts[mark.topic, mark.queue_id] = mark.physical_offset
        whole.marks += report.marks
        for code, by_shelf in enumerate(report.counts):
            for shelf, count in enumerate(by_shelf):
                whole.counts[code, shelf - 1] += count
        whole.damaged += report.damaged
        whole.halves += report.halves
        whole.delayed += report.delayed
        whole.ended_halves |= {(queue_id, offset) for queue_id, offset in report.ended_halves}
        if not whole.unindexed:
            whole.unindexed = [0] * len(report.unindexed)
            whole.first_unindexed = [-1] * len(report.unindexed)
        for shelf, count in enumerate(report.unindexed):
            whole.unindexed[shelf] += count
            if whole.first_unindexed[shelf] < 0:
                whole.first_unindexed[shelf] = report.first_unindexed[shelf]
    return whole


def _join_span(whole: Whole, key: tuple[bytes, int], span: Span) -> None:
    before = whole.spans.get(key)
    if before is None:
        whole.spans[key] = Span(
            span.first, span.first_physical, span.last, span.last_physical, span.count
        )
        return
    expected = before.last + 1
    if span.first != expected:
        code = ledger.GAP if span.first > expected else ledger.REPEAT
        if span.first == 0:
            code = ledger.RESTART
            whole.restarts[key] = span.first_physical
        whole.counts[code, -1] += 1
        whole.marks.append(
            MarkRow(code, -1, *key, span.first, span.first_physical, expected, before.last_physical)
        )
    before.last, before.last_physical = span.last, span.last_physical
    before.count += span.count


class Findings:
    """Collects findings of one run, at most FINDINGS_MAX of each check and store; counts the rest."""

    def __init__(self, run_id: str) -> None:
        self.rows: list[Finding] = []
        self.dropped = 0
        self._run_id = run_id
        self._kept: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        replica: str,
        check: str,
        severity: Severity,
        detail: str,
        *,
        topic: str = "",
        queue_id: int = -1,
        queue_offset: int = -1,
        physical_offset: int = -1,
        caused_by: str = "",
    ) -> None:
        self._kept[replica, check] += 1
        if self._kept[replica, check] > FINDINGS_MAX:
            self.dropped += 1
            return
        self.rows.append(
            Finding(
                self._run_id, replica, check, severity.value, topic, queue_id, queue_offset,
                physical_offset, caused_by, detail,
            )
        )  # fmt: skip


def conclude(
    whole: Whole,
    shelves: Sequence[Shelf],
    islands: Sequence[Interval],
    start: int,
    found: Findings,
) -> None:
    """Turn what was marked into findings.

    start    where the logs begin by now: nothing is said of what lies before
    shelves  the reference first; islands  every divergence of any replica from the reference
    Raises AuditIncomplete, OSError.
    """
    _forget_before(whole, start)
    causes = sorted(islands)
    # what the log's last records say of times and progress holds only if they are not in dispute
    tail_in_doubt = any(gap.end >= shelves[0].replica.end for gap in causes)
    _log_marks(whole, shelves, causes, found)
    for number, shelf in enumerate(shelves):
        _shelf_marks(whole, number, shelf, causes, found)
        _dangling(whole, shelf, causes, start, shelves[0].replica.end, found)
        _index(whole, number, shelf, causes, found)
        if not tail_in_doubt:
            _checkpoint(whole, shelf, shelves[0].replica.end, found)
        if shelf.replica.queues is not None:
            for path in shelf.replica.queues.strays:
                found.add(
                    shelf.replica.name, "stray_file", Severity.WARN, f"{path} is no data file"
                )
    reference = shelves[0].replica
    if reference.files is not None:
        _consumer_offsets(whole, reference, found)
    if reference.files is not None and not tail_in_doubt:
        _transactions(whole, reference, found)
        _delays(whole, reference, found)


def _forget_before(whole: Whole, start: int) -> None:
    """Drop what was marked where a running broker's retention has been since."""
    whole.damaged = [gap for gap in whole.damaged if gap.end > start]
    whole.marks = [
        mark
        for mark in whole.marks
        if mark.physical_offset >= start and not (mark.code in _QUEUE_CODES and mark.second < start)
    ]


# --- the log itself -------------------------------------------------------------------------------


def _log_marks(
    whole: Whole, shelves: Sequence[Shelf], causes: list[Interval], found: Findings
) -> None:
    names = [shelf.replica.name for shelf in shelves]
    for gap in whole.damaged:
        for shelf in shelves:
            if shelf.active(gap.start):
                found.add(
                    shelf.replica.name,
                    "unreadable",
                    Severity.CRITICAL,
                    f"no record for {gap.end - gap.start} bytes, the same in every replica",
                    physical_offset=gap.start,
                )
    causes = sorted([*causes, *whole.damaged])
    consequences: Counter[str] = Counter()
    for mark in whole.marks:
        if mark.shelf >= 0:
            continue
        if mark.code == ledger.CRC_WRONG:
            if _covering(causes, mark.physical_offset) is None:
                for shelf in shelves:
                    if shelf.active(mark.physical_offset):
                        _add(found, shelf.replica.name, mark, Severity.CRITICAL, "in every replica")
        elif mark.code == ledger.RESTART:
            _add(found, names[0], mark, Severity.INFO, f"began anew, {mark.first} was next")
        elif mark.code in _QUEUE_CODES:
            cause = _between(causes, mark.second, mark.physical_offset)
            if cause is not None:
                consequences[f"{cause.start}-{cause.end}"] += 1
            else:
                _add(found, names[0], mark, Severity.CRITICAL, f"expected {mark.first}")
    for cause_name, count in consequences.items():
        found.add(
            names[0],
            "queue_gap",
            Severity.INFO,
            f"{count} gaps in queue offsets follow from it",
            caused_by=cause_name,
        )


def _add(
    found: Findings, replica: str, mark: MarkRow, severity: Severity, detail: str, cause: str = ""
) -> None:
    found.add(
        replica,
        ledger.MARK_NAMES[mark.code],
        severity,
        detail,
        topic=mark.topic.decode("utf-8", "replace"),
        queue_id=mark.queue_id,
        queue_offset=mark.queue_offset,
        physical_offset=mark.physical_offset,
        caused_by=cause,
    )


def _covering(intervals: Sequence[Interval], offset: int) -> Interval | None:
    at = bisect_right(intervals, Interval(offset, 1 << 63)) - 1
    if at >= 0 and intervals[at].end > offset:
        return intervals[at]
    return None


def _between(intervals: Sequence[Interval], after: int, before: int) -> Interval | None:
    """An interval that touches [after, before]."""
    at = bisect_right(intervals, Interval(before, 1 << 63)) - 1
    return intervals[at] if at >= 0 and intervals[at].end > after else None


# --- consume queues -------------------------------------------------------------------------------


def _shelf_marks(
    whole: Whole, number: int, shelf: Shelf, causes: list[Interval], found: Findings
) -> None:
    """Entries and keys that are not as the log says."""
    replica = shelf.replica
    undispatched = 0
    deleted = _tombstones(replica, found)
    consequences: Counter[str] = Counter()
    for mark in whole.marks:
        if mark.shelf != number or mark.code in _KEY_CODES:
            continue
        key = (mark.topic, mark.queue_id)
        if whole.restarts.get(key, -1) > mark.physical_offset:
            continue  # the queue was deleted since, and began anew
        if mark.physical_offset < deleted.get(mark.topic, 0):
            continue  # INV-43: the topic was deleted since
        inside = _covering(causes, mark.physical_offset)
        if inside is not None:
            consequences[f"{inside.start}-{inside.end}"] += 1
            continue
        queue = replica.queues.by_name.get(key) if replica.queues is not None else None
        behind = queue is None or mark.queue_offset >= queue.max_offset
        if mark.code == ledger.ENTRY_MISSING and behind and not replica.clean:
            undispatched += 1
            continue
        if mark.code == ledger.ENTRY_OTHER:
            cause = _covering(causes, mark.first)
            detail = f"it names offset {mark.first}, {mark.second} bytes"
            _add(
                found, replica.name, mark, Severity.CRITICAL, detail,
                f"{cause.start}-{cause.end}" if cause is not None else "",
            )  # fmt: skip
        elif mark.code == ledger.ENTRY_TAGS:
            detail = f"it holds {mark.first}, the record's is {mark.second}"
            _add(found, replica.name, mark, Severity.CRITICAL, detail)
        else:
            _add(found, replica.name, mark, Severity.CRITICAL, "no entry for this record")
    for cause_name, count in consequences.items():
        found.add(
            replica.name,
            "cq_consequence",
            Severity.INFO,
            f"{count} queue entries do not match records that differ there",
            caused_by=cause_name,
        )
    if undispatched:
        found.add(
            replica.name,
            "not_dispatched",
            Severity.INFO,
            f"{undispatched} records await their queue entries: the broker did not stop in order",
        )


def _tombstones(replica: ReplicaStore, found: Findings) -> dict[bytes, int]:
    """Below which log offset the messages of deleted topics are deleted."""
    table = _config_table(replica, "deletedTopics.json", "deletedTopics", found)
    return {os.fsencode(name): below for name, below in table.items() if isinstance(below, int)}


def _dangling(
    whole: Whole,
    shelf: Shelf,
    causes: list[Interval],
    start: int,
    log_end: int,
    found: Findings,
) -> None:
    """Entries that no record of the log stands behind.

    log_end: where the log that was read ends.
    """
    replica = shelf.replica
    consequences: Counter[str] = Counter()
    for queue in replica.queues or ():
        name = queue.topic.decode("utf-8", "replace")
        if name.startswith("%LMQ%"):
            continue  # its entries point at records of other topics
        span = whole.spans.get((queue.topic, queue.queue_id))
        for queue_offset, entry in _unclaimed(queue, span, replica, max(start, replica.start)):
            physical = entry[0]
            cause = _covering(shelf.masks, physical) or _covering(causes, physical)
            cause = cause or _covering(whole.damaged, physical)
            if replica.live is not None and physical >= min(replica.end, log_end):
                continue  # confirmed since; the log was not read so far
            if physical >= replica.end:
                check, detail = "cq_beyond_log", f"names {physical}, the log ends at {replica.end}"
            elif cause is not None:
                consequences[f"{cause.start}-{cause.end}"] += 1
                continue
            else:
                check, detail = "cq_dangling", f"names {physical}, no record of this queue"
            found.add(
                replica.name,
                check,
                Severity.CRITICAL,
                detail,
                topic=name,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
                physical_offset=physical,
            )
    for cause_name, count in consequences.items():
        found.add(
            replica.name,
            "cq_dangling",
            Severity.INFO,
            f"{count} queue entries name records that are lost there",
            caused_by=cause_name,
        )


def _unclaimed(
    queue: Queue, span: Span | None, replica: ReplicaStore, start: int
) -> Iterable[tuple[int, tuple[int, int, int]]]:
    """Entries outside what the log knows of a queue, of records at or behind `start`."""
    low, high = queue.min_offset, queue.max_offset
    if span is None:
        pieces = [(low, high)]
    else:
        last = min(span.last, high - 1)
        while last >= span.first and replica.end <= span.last_physical:
            entry = queue.entry(last)  # a lagging replica: its queue must end earlier, too
            if entry is not None and entry.size and entry.physical_offset < replica.end:
                break
            last -= 1
        pieces = [(low, min(span.first, high)), (max(last + 1, low), high)]
    for first, end in pieces:
        for queue_offset, entry in queue.walk(first, end):
            if entry.physical_offset >= start:
                yield queue_offset, entry


# --- index, checkpoint ----------------------------------------------------------------------------


def _index(
    whole: Whole, number: int, shelf: Shelf, causes: list[Interval], found: Findings
) -> None:
    index = shelf.index
    if index is None:
        return
    replica = shelf.replica
    for name in index.unread:
        found.add(
            replica.name, "index_unread", Severity.INFO,
            f"index file {name} has no default size: give maxHashSlotNum to have it checked",
        )  # fmt: skip
    for name, what in index.problems:
        found.add(replica.name, "index_broken", Severity.WARN, f"index file {name}: {what}")
    known = sorted([*causes, *whole.damaged])
    for name, what, offset in index.disagreeing:
        if _covering(known, offset) is None:
            found.add(replica.name, "index_broken", Severity.WARN, f"index file {name}: {what}")
    for mark in whole.marks:
        if mark.shelf != number or mark.code not in _KEY_CODES:
            continue
        if _covering(known, mark.physical_offset) is None:
            _add(found, replica.name, mark, Severity.WARN, f"hash {mark.first}")
    beyond = sum(1 for offset in index.physical if offset >= replica.end)
    if beyond and replica.live is None:
        found.add(
            replica.name, "index_beyond_log", Severity.WARN,
            f"{beyond} index entries name offsets at or behind the log's end {replica.end}",
        )  # fmt: skip
    behind = whole.unindexed[number] if whole.unindexed else 0
    first = whole.first_unindexed[number] if behind else -1
    if _covering(known, first) is not None:
        behind = 0
    if behind and (index.physical or index.problems) and replica.end >= shelf.replica.end:
        found.add(
            replica.name,
            "index_behind",
            Severity.WARN if replica.clean else Severity.INFO,
            f"{behind} records with keys are not in the index",
            physical_offset=first,
        )


def _checkpoint(whole: Whole, shelf: Shelf, shelf_end: int, found: Findings) -> None:
    """shelf_end: where the log that was read ends."""
    replica = shelf.replica
    checkpoint = replica.checkpoint
    if checkpoint is None:
        return
    own_tail = any(mask.end >= replica.end for mask in shelf.masks)
    if own_tail or replica.end > shelf_end:
        return  # its newest records are not the ones that were read
    last_ms = whole.end_store_ms.get(replica.name, whole.last_store_ms)
    times = {
        "log": checkpoint.physic_ms,
        "queue": checkpoint.logics_ms,
        "index": checkpoint.index_ms,
    }
    for name, ms in times.items():
        if ms > last_ms:
            found.add(
                replica.name, "checkpoint", Severity.WARN,
                f"the {name} time {ms} is later than the last record, stored {last_ms}",
            )  # fmt: skip
    if replica.clean and whole.records and checkpoint.physic_ms < last_ms - CHECKPOINT_LATE_MS:
        found.add(
            replica.name, "checkpoint", Severity.WARN,
            f"the broker stopped in order, yet the log time {checkpoint.physic_ms} is"
            f" {last_ms - checkpoint.physic_ms} ms before the last record",
        )  # fmt: skip
    for name, offset in (
        ("flushed", checkpoint.master_flushed),
        ("confirmed", checkpoint.confirmed),
    ):
        if offset < 0 or (name == "confirmed" and offset > replica.end):
            found.add(
                replica.name, "checkpoint", Severity.WARN,
                f"the {name} offset {offset} is not in the log, which ends at {replica.end}",
            )  # fmt: skip


# --- progress files -------------------------------------------------------------------------------


def _by_number(table: Any, number: int) -> int:
    """The offset of a queue or level in a table whose keys are numbers or their text; 0 without."""
    found = table.get(number, table.get(str(number))) if isinstance(table, dict) else None
    return found if isinstance(found, int) else 0


def _table(replica: ReplicaStore, name: str, found: Findings) -> dict[Any, Any]:
    return _config_table(replica, name, "offsetTable", found)


def _config_table(replica: ReplicaStore, name: str, key: str, found: Findings) -> dict[Any, Any]:
    if replica.files is None:
        return {}
    try:
        content = replica.files.table(name)
    except CorruptFile as problem:
        found.add(replica.name, "config", Severity.WARN, str(problem))
        return {}
    table = content.get(key)
    return table if isinstance(table, dict) else {}


def _consumer_offsets(whole: Whole, replica: ReplicaStore, found: Findings) -> None:
    """Groups that would wait for queue offsets which do not exist yet, and then skip messages."""
    for key, queues in _table(replica, "consumerOffset.json", found).items():
        topic, _, group = key.partition("@")
        for queue_id, offset in (queues or {}).items():
            name = (topic.encode(), int(queue_id))
            span = whole.spans.get(name)
            queue = replica.queues.by_name.get(name) if replica.queues is not None else None
            if span is None and queue is None:
                continue
            end = max(span.last + 1 if span else 0, queue.max_offset if queue else 0)
            if int(offset) > end:
                found.add(
                    replica.name, "consumer_beyond", Severity.WARN,
                    f"group {group} is at {offset}, the queue ends at {end}",
                    topic=topic, queue_id=int(queue_id), queue_offset=int(offset),
                )  # fmt: skip


def _transactions(whole: Whole, replica: ReplicaStore, found: Findings) -> None:
    """Half messages that neither an op message nor the checker's progress has ended."""
    progress = _table(replica, "consumerOffset.json", found).get(HALF_GROUP)
    for half in whole.halves:
        done = _by_number(progress, half.queue_id)
        if half.queue_offset < done or (half.queue_id, half.queue_offset) in whole.ended_halves:
            continue
        age_ms = whole.last_store_ms - half.store_ms
        found.add(
            replica.name,
            "half_without_end",
            Severity.WARN if age_ms > RESIDUE_MS else Severity.INFO,
            f"stored {age_ms} ms before the log's last record",
            topic=ledger.HALF_TOPIC.decode(),
            queue_id=half.queue_id,
            queue_offset=half.queue_offset,
            physical_offset=half.physical_offset,
        )


def _delays(whole: Whole, replica: ReplicaStore, found: Findings) -> None:
    """Delayed messages long due that were not delivered."""
    progress = _table(replica, "delayOffset.json", found)
    for delayed in whole.delayed:
        level = delayed.queue_id + 1
        done = _by_number(progress, level)
        overdue_ms = whole.last_store_ms - delayed.due_ms
        if delayed.queue_offset >= done and overdue_ms > RESIDUE_MS:
            found.add(
                replica.name,
                "delay_residue",
                Severity.WARN,
                f"due {overdue_ms} ms before the log's last record, level {level} is at {done}",
                topic=ledger.DELAY_TOPIC.decode(),
                queue_id=delayed.queue_id,
                queue_offset=delayed.queue_offset,
                physical_offset=delayed.physical_offset,
            )
