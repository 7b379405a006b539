"""What a finished run says of one place of the log, and what stands there now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tandemmq.replication.audit.errors import AuditError, BadInput
from tandemmq.replication.audit.kernels import kind_at, rows
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.plan import Outcome
from tandemmq.replication.audit.repair import load_run
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.tables import AuditRun, Divergence, Finding, read_parquet
from tandemmq.replication.audit.windows import end_of_run, limit_of, next_record, read

_SHOWN_BYTES = 64
_KINDS = ("no record", "record", "blank", "cut record")


def load_outcome(directory: Path) -> Outcome:
    """A run's tables, its block digests left aside. Raises BadInput."""
    run, divergences = load_run(directory)
    findings = [row for row in read_parquet(directory, "finding") if isinstance(row, Finding)]
    return Outcome(run, [], divergences, findings)


def earlier_runs(directory: Path) -> list[AuditRun]:
    """The runs beside one, of the same stores."""
    mine, _ = load_run(directory)
    found = []
    for path in sorted(directory.resolve().parent.iterdir()):
        if (path / "audit_run.parquet").exists():
            for row in read_parquet(path, "audit_run"):
                if isinstance(row, AuditRun) and row.places == mine.places:
                    found.append(row)
    return found


def explain(directory: Path, offset: int, access: Access | None = None) -> tuple[list[str], bool]:
    """Lines for people, and whether the run knows something of this offset. Raises BadInput."""
    outcome = load_outcome(directory)
    run = outcome.run
    last = max([run.end_offset, *(row.end for row in outcome.divergences)])
    if not run.start_offset <= offset < last:
        raise BadInput(
            f"offset {offset} is beyond what run {run.run_id} compared:"
            f" {run.start_offset} to {last}"
        )
    lines = list(_told(outcome, offset))
    known = bool(lines)
    if not known:
        lines.append(f"run {run.run_id} found nothing at {offset}: the replicas are equal there")
    for name, place in json.loads(run.places).items():
        lines += _there_now(name, place, run.segment_bytes, offset, access)
    return lines, known


def _told(outcome: Outcome, offset: int) -> Iterator[str]:
    for row in outcome.divergences:
        if row.start <= offset < row.end:
            yield _divergence_line(row)
    for found in outcome.findings:
        covers = found.physical_offset == offset
        if found.caused_by and "-" in found.caused_by:
            first, end = map(int, found.caused_by.split("-"))
            covers = covers or first <= offset < end
        if covers:
            yield (
                f"{found.check} ({found.severity}) in {found.replica}: {found.topic}"
                f" {found.queue_id} queue offset {found.queue_offset}: {found.detail}"
            )


def _divergence_line(row: Divergence) -> str:
    text = f"{row.kind} ({row.severity}) of {row.replica} in {row.start}-{row.end}"
    if row.fields:
        text += f", fields {row.fields}"
    if row.epoch:
        text += f", epoch {row.epoch}"
    if row.topic:
        text += f", {row.topic}-{row.queue_id} queue offset {row.queue_offset}"
    return f"{text}: {row.detail}"


def _there_now(
    name: str, place: str, segment_bytes: int, offset: int, access: Access | None
) -> list[str]:
    try:
        replica = open_replica(place, name, segment_bytes, access)
    except AuditError as problem:
        return [f"{name}: {problem}"]
    try:
        return _described(replica, offset)
    except AuditError as problem:
        return [f"{name}: {problem}"]
    finally:
        replica.close()


def _described(replica: ReplicaStore, offset: int) -> list[str]:
    """The record that an offset lies in, and the bytes at the offset."""
    limit = limit_of(replica, offset)
    start = _record_start(replica, offset)
    view = read(replica, start, max(1 << 16, offset - start + _SHOWN_BYTES))
    if not len(view):
        return [f"{replica.name}: no file holds this offset"]
    kind, size = kind_at(view, start, start, limit)
    lines = [f"{replica.name}: {_KINDS[kind]} at {start}, {size} bytes"]
    if start + len(view) >= start + size:
        for line in rows(view, start, start + 1, start, limit, True):
            crc = "right" if line.computed_crc == line.body_crc else "WRONG"
            lines.append(
                f"  topic {line.topic.decode('utf-8', 'replace')} queue {line.queue_id}"
                f" queue offset {line.queue_offset} stored {line.store_ms} checksum {crc}"
            )
    lines += _hex_lines(offset, bytes(view[offset - start : offset - start + _SHOWN_BYTES]))
    return lines


def _record_start(replica: ReplicaStore, offset: int) -> int:
    """Where the record that holds an offset begins, as far as records can be followed."""
    segment = offset - offset % replica.segment_bytes
    at = segment
    while at <= offset:
        came, _ = end_of_run(replica, at)
        if came > offset:
            return _walk_to(replica, at, offset)
        following = next_record(replica, came + 1, limit_of(replica, offset))
        if following < 0 or following > offset:
            return came
        at = following
    return offset


def _walk_to(replica: ReplicaStore, start: int, offset: int) -> int:
    """The record at or before an offset, from a boundary of its segment."""
    limit = limit_of(replica, start)
    while True:
        view = read(replica, start, 4 << 20)
        behind = start
        for line in rows(view, start, offset + 1, start, limit):
            behind = line.offset + line.size
            if behind > offset:
                return line.offset
        if behind == start:
            return start
        start = behind


def _hex_lines(offset: int, data: bytes) -> Sequence[str]:
    lines = []
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"  {offset + at:>14}  {piece.hex(' '):<47}  {text}")
    return lines
