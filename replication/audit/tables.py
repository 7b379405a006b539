"""The rows an audit leaves behind, as four flat tables: Parquet, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from tandemmq.replication.audit.errors import BadInput

COLUMN_TYPES: Final = {"int": "int64", "str": "string", "float": "float64", "bool": "bool_"}


@dataclass(slots=True)
class AuditRun:
    """One audit: what was compared, and how it ended."""

    run_id: str
    started_ms: int
    finished_ms: int
    engine: str
    reference: str
    replicas: str  # names, comma separated
    places: str  # JSON: name -> directory or URI
    options: str  # JSON: what was asked for
    segment_bytes: int
    start_offset: int
    end_offset: int
    levels: str
    verdict: str  # equal, divergent, warnings, incomplete, void
    exit_code: int
    bytes_compared: int
    blocks_compared: int
    blocks_differing: int
    records_checked: int
    padding_bytes: int
    retained_bytes: int  # below the common start: only on one side, because of retention
    divergences: int
    findings: int
    cpu_seconds: float
    detail: str = ""


@dataclass(slots=True)
class BlockRow:
    """The digest of one block of one replica."""

    run_id: str
    replica: str
    segment: int
    block: int
    size: int
    xxh3: str  # hexadecimal


@dataclass(slots=True)
class Divergence:
    """One difference between a replica and the reference."""

    run_id: str
    replica: str
    reference: str
    start: int
    end: int
    kind: str  # column "class"
    severity: str
    side: str
    records_reference: int
    records_replica: int
    fields: str
    epoch: int  # whose reign wrote the start, by the reference's epochs; 0: unknown
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    detail: str = ""


@dataclass(slots=True)
class Finding:
    """Something in one store that does not fit its log."""

    run_id: str
    replica: str
    check: str
    severity: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    caused_by: str  # the divergence (START-END) or the finding that explains it
    detail: str = ""


Row = AuditRun | BlockRow | Divergence | Finding

#: table -> its row type; the file is TABLE.parquet in a run's directory
TABLES: Final[dict[str, type[Row]]] = {
    "audit_run": AuditRun,
    "block_digest": BlockRow,
    "divergence": Divergence,
    "finding": Finding,
}
_RENAMED: Final = {"kind": "class"}  # a word Python keeps for itself


def columns(row_type: type[Row]) -> list[tuple[str, str]]:
    """(attribute, type) of each column, in order."""
    return [(field.name, str(field.type)) for field in fields(row_type)]


def as_dict(row: Row) -> dict[str, Any]:
    """A row by its column names."""
    return {_RENAMED.get(name, name): value for name, value in asdict(row).items()}


def write_parquet(directory: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write one table of one run. Raises BadInput when pyarrow is not installed, OSError."""
    arrow, parquet = _arrow()
    row_type = TABLES[name]
    kinds = columns(row_type)
    schema = arrow.schema(
        [
            (_RENAMED.get(column, column), getattr(arrow, COLUMN_TYPES[kind])())
            for column, kind in kinds
        ]
    )
    arrays = [
        arrow.array([getattr(row, column) for row in rows], field.type)
        for (column, _), field in zip(kinds, schema, strict=True)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.parquet"
    parquet.write_table(arrow.table(arrays, schema=schema), path)
    return path


def read_parquet(directory: Path, name: str) -> list[Row]:
    """The rows of one table of one run; none when it was not written. Raises BadInput."""
    _, parquet = _arrow()
    path = directory / f"{name}.parquet"
    if not path.exists():
        return []
    back = {column: attribute for attribute, column in _RENAMED.items()}
    try:
        found = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as problem:
        raise BadInput(f"cannot read {path}: {problem}") from problem
    row_type = TABLES[name]
    try:
        return [
            row_type(**{back.get(column, column): value for column, value in row.items()})
            for row in found
        ]
    except TypeError as problem:
        raise BadInput(f"{path} is not a table of an audit: {problem}") from problem


def to_json(tables: dict[str, Iterable[Row]]) -> str:
    """Tables as one JSON object."""
    return json.dumps({name: [as_dict(row) for row in rows] for name, rows in tables.items()})


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # an extra: audits that write no tables do without
        import pyarrow.parquet
    except ImportError as problem:
        raise BadInput(
            "tables need pyarrow: pip install 'tandemmq[audit]' (or leave --out away)"
        ) from problem
    return pyarrow, pyarrow.parquet
