"""Re-fetching damaged ranges of a stopped replica from one that is sound.

A range is taken only from a side whose records there all have right checksums, where the epochs of both
sides name the same reign, and only onto a side that fails itself: no divergence in which both sides are
readable is ever "repaired", because bytes cannot tell who is right. Replaced bytes are kept. Where both
sides of a divergence are damaged, a third replica may mend them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.replication.audit.classes import DivergenceClass, Side
from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.kernels import Ledger, rows
from tandemmq.replication.audit.ledger import CRC_WRONG
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.source import segment_name
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.tables import AuditRun, Divergence, read_parquet
from tandemmq.replication.audit.windows import limit_of, next_record, read, whole_record

REPAIRABLE: Final = frozenset(
    kind.value
    for kind in (
        DivergenceClass.MISSING_SEGMENT,
        DivergenceClass.SHORT_FILE,
        DivergenceClass.HOLE,
        DivergenceClass.CRC_SLAVE,
        DivergenceClass.CRC_MASTER,
        DivergenceClass.CRC_BOTH,
        DivergenceClass.FRAMING,
        DivergenceClass.GARBAGE,
    )
)
_RANGE_BYTES_MAX: Final = 1 << 30


@dataclass(slots=True)
class Step:
    """One range that can be fetched, or why it cannot."""

    row: Divergence
    source: str
    target: str
    why_not: str = ""


@dataclass(slots=True)
class Done:
    """One range that was replaced; `kept` holds the former bytes."""

    start: int
    end: int
    target: str
    kept: Path


def load_run(directory: Path) -> tuple[AuditRun, list[Divergence]]:
    """A run's own row and its divergences. Raises BadInput."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no directory of a run (tandem audit run --out)")
    runs = [row for row in read_parquet(directory, "audit_run") if isinstance(row, AuditRun)]
    if len(runs) != 1:
        raise BadInput(f"{directory} holds no audit_run.parquet of one run")
    rows = [row for row in read_parquet(directory, "divergence") if isinstance(row, Divergence)]
    return runs[0], rows


def move_places(run: AuditRun, places: Mapping[str, str]) -> None:
    """Say where replicas' stores are now: a broker that was running then may be stopped. Raises BadInput."""
    known: dict[str, str] = json.loads(run.places)
    for name, place in places.items():
        if name not in known:
            raise BadInput(f"run {run.run_id} knows no {name}; there is {', '.join(known)}")
        known[name] = str(Path(place).absolute()) if "://" not in place else place
    run.places = json.dumps(known)


def plan_repair(
    run: AuditRun, rows: Sequence[Divergence], access: Access | None = None
) -> list[Step]:
    """What can be fetched, read from the stores as they are now. Raises BadInput, AuditIncomplete."""
    places: dict[str, str] = json.loads(run.places)
    opened: dict[str, ReplicaStore] = {}
    try:
        for name, place in places.items():
            opened[name] = open_replica(place, name, run.segment_bytes, access)
        steps: dict[tuple[str, int, int], Step] = {}
        for row in rows:
            for target in _targets(row):
                # with several replicas, damage of the reference is in a row of each
                steps.setdefault((target, row.start, row.end), _step(row, target, rows, opened))
        return list(steps.values())
    finally:
        for replica in opened.values():
            replica.close()


def _targets(row: Divergence) -> list[str]:
    if row.side == Side.REFERENCE.value:
        return [row.reference]
    if row.side == Side.BOTH.value:
        return [row.reference, row.replica]
    return [row.replica]


def _step(
    row: Divergence,
    target_name: str,
    rows: Sequence[Divergence],
    opened: Mapping[str, ReplicaStore],
) -> Step:
    """Where a range of one replica can be fetched from: the other side, or a third that both agree with."""
    sources = _sources(row, target_name, rows, opened)
    target = opened[target_name]
    step = Step(row, next(iter(sources), row.reference), target_name)
    if row.kind not in REPAIRABLE or row.side == Side.UNKNOWN.value:
        step.why_not = f"{row.kind} on side {row.side}: bytes cannot tell which side is right"
    elif target.root is None:
        step.why_not = (
            f"{target_name} is no directory of this machine: stop its broker, and say where its store"
            f" is with --at {target_name}=DIR"
        )
    elif not target.clean:
        step.why_not = f"{target_name} runs or did not stop in order: stop its broker first"
    elif row.end - row.start > _RANGE_BYTES_MAX:
        step.why_not = f"{row.end - row.start} bytes: copy the whole store instead"
    else:
        objections = {}
        for name in sources:
            objections[name] = _objection(opened[name], target, row)
            if not objections[name]:
                step.source = name
                return step
        step.why_not = next(iter(objections.values()), "no other replica holds this range")
    return step


def _sources(
    row: Divergence, target: str, rows: Sequence[Divergence], opened: Mapping[str, ReplicaStore]
) -> list[str]:
    """Who may hold what belongs there, the other side of the row first.

    A third replica counts when all in which it differs from the reference there is the reference's damage.
    """
    sides = [row.reference, row.replica]
    found = [name for name in sides if name != target and row.side != Side.BOTH.value]
    for name in opened:
        if name in sides:
            continue
        differs = [
            other
            for other in rows
            if other.replica == name and other.start < row.end and row.start < other.end
        ]
        if all(other.side == Side.REFERENCE.value for other in differs):
            found.append(name)
    return found


def _objection(source: ReplicaStore, target: ReplicaStore, row: Divergence) -> str:
    if not _same_reign(source, target, row.start, row.end):
        return "the epochs of the two sides differ there"
    return _why_unsound(source, row.start, row.end) or _why_other_history(
        source, target, row.start, row.end
    )


def _why_other_history(source: ReplicaStore, target: ReplicaStore, start: int, end: int) -> str:
    """Why what is damaged is not all that differs: the target holds sound messages there that the source
    does not have at the same place. "" when it holds none.

    A damaged place in a forked log makes one divergence with the fork: fetching it would lose messages.
    """
    at = start
    while at < end:
        limit = limit_of(target, at)
        stop = min(end, limit)
        found = next_record(target, at, stop)
        if found < 0:
            at = stop
            continue
        record = whole_record(target, found)
        assert record is not None
        line = next(iter(rows(record, found, found + 1, found, limit, True)))
        at = found + line.size
        if line.computed_crc != line.body_crc:
            continue
        theirs = whole_record(source, found)
        body = slice(line.body_start, line.body_end)
        if theirs is None or len(theirs) != len(record) or theirs[body] != record[body]:
            return (
                f"{target.name} holds a sound message at {found} that {source.name} does not have"
            )
    return ""


def _same_reign(source: ReplicaStore, target: ReplicaStore, start: int, end: int) -> bool:
    mine = source.epochs.at(start) if source.epochs is not None else None
    theirs = target.epochs.at(start) if target.epochs is not None else None
    if mine != theirs:
        return False
    return (source.epochs.at(end - 1) if source.epochs is not None else None) == (
        target.epochs.at(end - 1) if target.epochs is not None else None
    )


def _why_unsound(source: ReplicaStore, start: int, end: int) -> str:
    """Why the source cannot give [start, end); "" when all its records there have right checksums."""
    at = start
    while at < end:
        limit = limit_of(source, at)
        stop = min(end, limit)
        view = read(source, at, limit - at if stop == limit else stop - at)
        ledger = Ledger(0, lambda *_: (0, b""), lambda *_: 0)
        came, _ = ledger.walk(view, at, stop, at, limit, 0)
        if came < stop:
            return f"{source.name} holds no record at {came}"
        if ledger.counts[CRC_WRONG][0]:
            return f"{source.name} has wrong checksums there, too"
        at = stop
    return ""


def apply_repair(
    run: AuditRun, steps: Sequence[Step], kept_directory: Path, access: Access | None = None
) -> list[Done]:
    """Replace the ranges of the steps that can be. The stores must not be in use.

    The former bytes are written to kept_directory and flushed before anything is overwritten; a range is
    flushed before the next one begins. Stopped half-way, a repair can be run again.
    Raises BadInput (a broker holds the store), AuditIncomplete, OSError.
    """
    places: dict[str, str] = json.loads(run.places)
    done: list[Done] = []
    targets = sorted({step.target for step in steps if not step.why_not})
    for target_name in targets:
        target = open_replica(places[target_name], target_name, run.segment_bytes)
        try:
            assert target.root is not None
            with _locked(target.root):
                for step in steps:
                    if step.target == target_name and not step.why_not:
                        source = open_replica(
                            places[step.source], step.source, run.segment_bytes, access
                        )
                        try:
                            done += _fetch(source, target, step.row, kept_directory)
                        finally:
                            source.close()
        finally:
            target.close()
    return done


def _fetch(
    source: ReplicaStore, target: ReplicaStore, row: Divergence, kept: Path
) -> Iterator[Done]:
    assert target.root is not None
    at = row.start
    while at < row.end:
        limit = limit_of(source, at)
        end = min(row.end, limit)
        data = read(source, at, end - at)
        if len(data) < end - at:
            raise AuditIncomplete(f"{source.name} holds only {len(data)} bytes at {at}")
        segment = limit - target.segment_bytes
        path = target.root / "commitlog" / segment_name(segment)
        former = kept / target.name / f"{at:020d}-{end:020d}"
        _write_durably(former, bytes(read(target, at, end - at)))
        if not path.exists():
            (kept / target.name / f"{segment:020d}.was-missing").touch()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(descriptor).st_size < target.segment_bytes:
                os.ftruncate(descriptor, target.segment_bytes)
            written = os.pwrite(descriptor, data, at - segment)
            if written < len(data):
                raise AuditIncomplete(f"{path}: only {written} of {len(data)} bytes were written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield Done(at, end, target.name, former)
        at = end


def _write_durably(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the store's lock file as a broker would. Raises BadInput when one does."""
    with open(root / "lock", "a+b") as file:
        try:
            fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as problem:
            raise BadInput(f"{root} is in use by a broker: stop it first") from problem
        yield
