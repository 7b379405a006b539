"""What every engine does alike: open the stores, agree on a range, name divergences, conclude.

An engine only brings the three passes over bytes: digests, islands of differing ranges, range checks.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from tandemmq.replication.audit.blocks import Block, Range
from tandemmq.replication.audit.classes import (
    DivergenceClass,
    Severity,
    Side,
    Verdict,
    classify,
    exchanged,
    fork_detail,
    severity_of,
)
from tandemmq.replication.audit.ends import find_ends
from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.findings import Findings, conclude, join
from tandemmq.replication.audit.islands import Compared, common_segments
from tandemmq.replication.audit.kernel import Island
from tandemmq.replication.audit.kernels import rows
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.rangecheck import DELAY_LEVELS, Interval, RangeReport, Shelf
from tandemmq.replication.audit.stores import ReplicaStore, check_kinship, open_replica
from tandemmq.replication.audit.tables import AuditRun, BlockRow, Divergence, Finding, Row
from tandemmq.replication.audit.voting import vote
from tandemmq.replication.audit.windows import limit_of, whole_record

EQUAL: Final = 0
DIVERGENT: Final = 1
WARNINGS: Final = 2
INCOMPLETE: Final = 3
USAGE: Final = 64

VERDICTS: Final = {
    EQUAL: "equal",
    DIVERGENT: "divergent",
    WARNINGS: "warnings",
    INCOMPLETE: "incomplete",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to audit, and how."""

    until: int | None = None  # None: the shortest log's end
    start: int = 0
    levels: tuple[int, ...] = (1, 2, 3)
    lag_warn_bytes: int = 64 << 20
    index_slots: int = 0
    delay_levels: str = DELAY_LEVELS
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    segment_bytes: int = 0
    access: Access = field(default_factory=Access)  # what running brokers are read with


@dataclass(slots=True)
class Outcome:
    """One finished audit: its tables."""

    run: AuditRun
    blocks: list[BlockRow] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return self.run.exit_code

    def tables(self) -> dict[str, Sequence[Row]]:
        return {
            "audit_run": [self.run],
            "block_digest": self.blocks,
            "divergence": self.divergences,
            "finding": self.findings,
        }


@dataclass(slots=True)
class Level1:
    """What comparing digests brought."""

    ranges: list[Range]
    bytes_read: int = 0
    blocks: int = 0  # of the replica
    digests: dict[str, list[Block]] = field(
        default_factory=dict
    )  # by replica, if they are kept here


class Engine(Protocol):
    """The passes over bytes."""

    name: str

    def compare(
        self, reference: ReplicaStore, replica: ReplicaStore, start: int, end: int
    ) -> Level1: ...

    def islands(
        self,
        reference: ReplicaStore,
        replica: ReplicaStore,
        ranges: Sequence[Range],
        end: int,
        compared: Compared,
    ) -> list[Island]: ...

    def checks(
        self,
        reference: ReplicaStore,
        shelves: Sequence[Shelf],
        islands: Sequence[Interval],
        start: int,
        options: Options,
    ) -> list[RangeReport]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Audit:
    """The state of one run."""

    run_id: str
    options: Options
    engine: Engine
    reference: ReplicaStore
    replicas: list[ReplicaStore]
    places: dict[str, str]
    start: int = 0
    compared: Compared = field(default_factory=Compared)
    bytes_compared: int = 0
    blocks_compared: int = 0
    blocks_differing: int = 0
    retained_bytes: int = 0
    records: int = 0
    blocks: list[BlockRow] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    digested: set[str] = field(default_factory=set)
    strangers: set[str] = field(default_factory=set)  # share no record with the reference
    damage: dict[str, list[Interval]] = field(default_factory=dict)  # by replica, from L1 and L2


def new_run_id(now_ms: int) -> str:
    """Sorts by time; unique on one machine."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ms / 1000))
    return f"{stamp}-{now_ms % 1000:03d}-{os.getpid():x}"


def audit(
    places: dict[str, str],
    engine: Engine,
    options: Options | None = None,
    run_id: str = "",
) -> Outcome:
    """Audit replicas against the first of them.

    places  name -> store directory, URI or a running broker's HTTP port; the reference (the master) first
    Of running brokers only what all of them have confirmed by now is compared; a run during which one of
    them changes its role, its epochs or cuts its log is void.
    Raises BadInput (nothing was audited), AuditIncomplete.
    """
    options = options or Options()
    started_ms = time.time_ns() // 1_000_000
    cpu_before = _cpu_seconds()
    if len(places) < 2:
        raise BadInput("an audit needs a reference and at least one replica")
    opened = _open_all(places, options)
    try:
        live = opened[0].live
        if live is not None and options.delay_levels == DELAY_LEVELS:
            options = replace(options, delay_levels=live.delay_levels)
        state = _Audit(
            run_id or new_run_id(started_ms), options, engine, opened[0], opened[1:], dict(places)
        )
        _agree_on_range(state, opened)
        for replica in state.replicas:
            _compare(state, replica)
        _refuse_strangers(state)
        vote(state.divergences, opened)
        found = Findings(state.run_id)
        if 3 in options.levels:
            _check(state, found)
        else:
            _forget_retained(state)
        void = next(filter(None, (replica.why_void() for replica in opened)), "")
        return _outcome(state, found, started_ms, cpu_before, void)
    finally:
        for replica in opened:
            replica.close()


def _open_all(places: dict[str, str], options: Options) -> list[ReplicaStore]:
    opened: list[ReplicaStore] = []
    try:
        for name, place in places.items():
            opened.append(open_replica(place, name, options.segment_bytes, options.access))
        size = max(replica.segment_bytes for replica in opened)
        for replica in opened:
            # a log of one file that was cut short cannot tell its segments' size; its peers can
            if len(replica.segments) == 1 and replica.segments[0].start % size == 0:
                replica.segment_bytes = size
            check_kinship(opened[0], replica)
    except BaseException:
        for replica in opened:
            replica.close()
        raise
    return opened


def _agree_on_range(state: _Audit, opened: list[ReplicaStore]) -> None:
    options = state.options
    for replica in reversed(opened):  # the reference last: then nobody seems to be ahead of it
        replica.note_position()
    find_ends(opened)
    if options.until is not None:
        shortest = min(opened, key=lambda replica: replica.end)
        if options.until > shortest.end:
            raise BadInput(
                f"offset {options.until} is beyond the log of {shortest.name}, which ends at"
                f" {shortest.end}"
            )
        for replica in opened:
            replica.end = replica.head = options.until
    size = state.reference.segment_bytes
    state.start = max([options.start - options.start % size, *(r.start for r in opened)])
    state.retained_bytes = sum(
        max(0, min(state.start, replica.end) - replica.start) for replica in opened
    )
    for replica in opened:
        if replica.end <= state.start and replica.start > state.reference.end:
            raise AuditIncomplete(
                f"{state.reference.name} and {replica.name} have no offset in common:"
                f" one ends at {state.reference.end}, the other begins at {replica.start}"
            )


# --- levels 1 and 2 -------------------------------------------------------------------------------


def _compare(state: _Audit, replica: ReplicaStore) -> None:
    reference, engine = state.reference, state.engine
    end = min(reference.end, replica.end)
    level1 = engine.compare(reference, replica, state.start, end)
    for name, digests in level1.digests.items():
        if name not in state.digested:
            state.digested.add(name)
            state.blocks += _block_rows(state.run_id, name, digests)
    state.bytes_compared += level1.bytes_read
    state.blocks_compared += level1.blocks
    ranges = level1.ranges
    state.blocks_differing += sum(-(-(r.end - r.start) // (1 << 20)) for r in ranges)
    damage: list[Interval] = []
    absent = set()
    for segment, here, there in common_segments(reference, replica, state.start, end):
        if here and there:
            continue
        absent.add(segment)
        interval = Interval(max(segment, state.start), min(segment + reference.segment_bytes, end))
        damage.append(interval)
        side = Side.REPLICA if here else Side.REFERENCE if there else Side.BOTH
        verdict = Verdict(DivergenceClass.MISSING_SEGMENT, side, (), "there is no file")
        state.divergences.append(_divergence(state, replica, interval, verdict))
    if 2 in state.options.levels:
        wanted = [piece for piece in ranges if piece.segment not in absent]
        equal_before = state.compared.records
        islands = engine.islands(reference, replica, wanted, end, state.compared)
        same = (
            state.compared.records > equal_before
            or sum(piece.end - piece.start for piece in ranges) < end - state.start
        )
        if not same and len(wanted) == len(ranges) and any(row.records_b for row in islands):
            state.strangers.add(replica.name)
        state.divergences += _name_islands(state, replica, islands, end)
        damage += [Interval(island.start, island.end) for island in islands]
    else:
        for piece in ranges:
            if piece.segment not in absent:
                interval = Interval(piece.start, piece.end)
                damage.append(interval)
                verdict = Verdict(
                    DivergenceClass.CONTENT_DIFF, Side.UNKNOWN, (),
                    "blocks differ; padding behind a blank may, too: level 2 was left out",
                )  # fmt: skip
                state.divergences.append(_divergence(state, replica, interval, verdict))
    damage += _lag_or_ahead(state, replica)
    state.damage[replica.name] = sorted(damage)


def _block_rows(run_id: str, replica: str, blocks: Iterable[Block]) -> list[BlockRow]:
    return [
        BlockRow(run_id, replica, block.segment, block.block, block.size, block.xxh3.hex())
        for block in blocks
    ]


def _name_islands(
    state: _Audit, replica: ReplicaStore, islands: Sequence[Island], end: int
) -> list[Divergence]:
    swapped = exchanged(islands)
    found = []
    for index, island in enumerate(islands):
        verdict = classify(
            island,
            _file_end(state.reference, island),
            _file_end(replica, island),
            end,
        )
        if index in swapped and verdict.kind is not DivergenceClass.ORDER:
            verdict = Verdict(
                DivergenceClass.ORDER, Side.UNKNOWN, verdict.fields,
                "its records and those of another island changed places",
            )  # fmt: skip
        if verdict.kind is DivergenceClass.FORK:
            detail = f"{verdict.detail}; {fork_detail(state.reference.epochs, replica.epochs)}"
            verdict = Verdict(verdict.kind, verdict.side, verdict.fields, detail)
        interval = Interval(island.start, island.end)
        row = _divergence(state, replica, interval, verdict)
        row.records_reference = island.records_a
        row.records_replica = island.records_b
        found.append(row)
    return found


def _file_end(replica: ReplicaStore, island: Island) -> int:
    """Where the file of an island's last segment ends."""
    file = replica.segment_at(max(island.start, island.end - 1))
    return file.end if file is not None else island.start


def _lag_or_ahead(state: _Audit, replica: ReplicaStore) -> list[Interval]:
    distance = state.reference.end - replica.end
    if distance < 0:  # a running master may hold what it has not confirmed yet
        distance = min(0, state.reference.head - replica.end)
    if distance == 0:
        return []
    kind = DivergenceClass.LAG if distance > 0 else DivergenceClass.AHEAD
    interval = Interval(*sorted((state.reference.end, replica.end)))
    detail = f"{abs(distance)} bytes {'behind' if distance > 0 else 'beyond'} the reference"
    if kind is DivergenceClass.AHEAD:
        detail += f"; {fork_detail(state.reference.epochs, replica.epochs)}"
    row = _divergence(state, replica, interval, Verdict(kind, Side.UNKNOWN, (), detail))
    row.severity = severity_of(kind, distance, state.options.lag_warn_bytes).value
    state.divergences.append(row)
    return []


def _divergence(
    state: _Audit, replica: ReplicaStore, interval: Interval, verdict: Verdict
) -> Divergence:
    epoch = state.reference.epochs.at(interval.start) if state.reference.epochs else None
    topic, queue_id, queue_offset, store_ms = "", -1, -1, 0
    for side in (state.reference, replica):
        record = whole_record(side, interval.start) if side.present(interval.start) else None
        if record is not None:
            limit = limit_of(side, interval.start)
            start = interval.start
            line = next(iter(rows(record, start, start + len(record), start, limit)))
            topic = line.topic.decode("utf-8", "replace")
            queue_id, queue_offset, store_ms = line.queue_id, line.queue_offset, line.store_ms
            break
    return Divergence(
        state.run_id, replica.name, state.reference.name, interval.start, interval.end,
        verdict.kind.value, severity_of(verdict.kind).value, verdict.side.value, 0, 0,
        ",".join(verdict.fields), epoch.number if epoch is not None else 0,
        topic, queue_id, queue_offset, store_ms, verdict.detail,
    )  # fmt: skip


def _refuse_strangers(state: _Audit) -> None:
    """Logs that share not one record are no replicas of one broker, unless their epochs say so."""
    for replica in state.replicas:
        if (
            replica.name in state.strangers
            and state.start == 0
            and not (replica.epochs and replica.epochs.entries)
        ):
            raise BadInput(
                f"{state.reference.name} and {replica.name} share not one record: they are no"
                " replicas of one broker"
            )


# --- level 3 --------------------------------------------------------------------------------------


def _check(state: _Audit, found: Findings) -> None:
    reference, options = state.reference, state.options
    try:
        shelves = [
            Shelf(replica, state.damage.get(replica.name, []), replica.index(options.index_slots))
            for replica in (reference, *state.replicas)
        ]
        islands = sorted({gap for gaps in state.damage.values() for gap in gaps})
        reports = state.engine.checks(reference, shelves, islands, state.start, options)
        whole = join(reports)
        state.records = whole.records
        _forget_retained(state)
        conclude(whole, shelves, islands, state.start, found)
    except OSError as problem:
        raise AuditIncomplete(f"cannot read {problem.filename}: {problem.strerror}") from problem


def _forget_retained(state: _Audit) -> None:
    """What retention took from running brokers while they were read is nobody's damage."""
    before = state.start
    state.start = max(replica.start_now() for replica in (state.reference, *state.replicas))
    state.start = max(before, state.start)
    if state.start == before:
        return
    state.divergences = [row for row in state.divergences if row.end > state.start]
    for row in state.divergences:
        row.start = max(row.start, state.start)


# --- the end --------------------------------------------------------------------------------------


def _outcome(
    state: _Audit, found: Findings, started_ms: int, cpu_before: float, void: str
) -> Outcome:
    severities = {row.severity for row in state.divergences} | {row.severity for row in found.rows}
    code = EQUAL
    if Severity.CRITICAL.value in severities:
        code = DIVERGENT
    elif Severity.WARN.value in severities:
        code = WARNINGS
    if void:
        code = INCOMPLETE
    detail = void
    if found.dropped:
        detail = f"{detail} {found.dropped} further findings were only counted".strip()
    run = AuditRun(
        run_id=state.run_id,
        started_ms=started_ms,
        finished_ms=time.time_ns() // 1_000_000,
        engine=state.engine.name,
        reference=state.reference.name,
        replicas=",".join(replica.name for replica in state.replicas),
        places=json.dumps({name: str(Path(p).absolute()) if "://" not in p else p
                           for name, p in state.places.items()}),
        options=json.dumps({"index_slots": state.options.index_slots,
                            "delay_levels": state.options.delay_levels}),
        segment_bytes=state.reference.segment_bytes,
        start_offset=state.start,
        end_offset=state.reference.end,
        levels=",".join(map(str, state.options.levels)),
        verdict="void" if void else VERDICTS[code],
        exit_code=code,
        bytes_compared=state.bytes_compared,
        blocks_compared=state.blocks_compared,
        blocks_differing=state.blocks_differing,
        records_checked=state.records,
        padding_bytes=state.compared.padding_bytes,
        retained_bytes=state.retained_bytes,
        divergences=len(state.divergences),
        findings=len(found.rows),
        cpu_seconds=round(_cpu_seconds() - cpu_before, 3),
        detail=detail,
    )  # fmt: skip
    return Outcome(run, state.blocks, state.divergences, found.rows)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
