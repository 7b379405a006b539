"""Digest files: what one host says of its replica's blocks, small enough to be carried together.

A digest leaves padding behind a segment's blank out, so equal records give equal digests. Comparing files
tells which blocks differ; which records, only an audit that reads both logs can tell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandemmq.replication.audit.blocks import (
    BLOCK_BYTES,
    Block,
    Range,
    differing_ranges,
    digest_segment,
)
from tandemmq.replication.audit.ends import find_end
from tandemmq.replication.audit.errors import BadInput
from tandemmq.replication.audit.kernel import BLANK, BLANK_BYTES
from tandemmq.replication.audit.kernels import skip
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.windows import WINDOW_BYTES, limit_of, read

_META: bytes = b"tandem_audit_digest"


@dataclass(frozen=True, slots=True)
class Digest:
    """One replica's block digests in [start, end)."""

    name: str
    place: str
    segment_bytes: int
    start: int
    end: int
    epochs: str  # "number-start,..." of its epoch file
    blocks: tuple[Block, ...] = ()


def take_digest(
    place: str | Path,
    name: str,
    until: int | None = None,
    pace: Callable[[int], None] | None = None,
    access: Access | None = None,
) -> Digest:
    """Read a store once, of a running broker what it has confirmed. Raises BadInput, AuditIncomplete."""
    replica = open_replica(place, name, access=access)
    try:
        end = replica.end if replica.live is not None else find_end(replica)
        if until is not None and until > end:
            raise BadInput(f"offset {until} is beyond the log of {name}, which ends at {end}")
        end = end if until is None else until
        blocks: list[Block] = []
        for file in replica.segments:
            if file.start >= end:
                break
            stop = min(end, file.start + replica.segment_bytes)
            stop = min(stop, _content_end(replica, file.start, stop))
            blocks += digest_segment(replica.log, file.start, file.start, stop, pace)
        epochs = replica.epochs.entries if replica.epochs is not None else ()
        return Digest(
            name,
            str(place),
            replica.segment_bytes,
            replica.start,
            end,
            ",".join(f"{entry.number}-{entry.start}" for entry in epochs),
            tuple(blocks),
        )
    finally:
        replica.close()


def _content_end(replica: ReplicaStore, segment: int, stop: int) -> int:
    """Behind the blank of a segment; `stop` when a walk does not reach one."""
    offset, window = segment, WINDOW_BYTES
    limit = limit_of(replica, segment)
    while offset < stop:
        view = read(replica, offset, window)
        came, kind = skip(view, offset, offset, limit)
        if kind == BLANK:
            return came + BLANK_BYTES
        if len(view) < window or (came == offset and window > replica.segment_bytes):
            return stop
        window = WINDOW_BYTES if came > offset else window * 2
        offset = came
    return stop


def write_digest(digest: Digest, path: Path) -> None:
    """Raises BadInput without pyarrow, OSError."""
    arrow, parquet = _arrow()
    head = {key: value for key, value in asdict(digest).items() if key != "blocks"}
    table = arrow.table(
        {
            "segment": arrow.array([b.segment for b in digest.blocks], arrow.int64()),
            "block": arrow.array([b.block for b in digest.blocks], arrow.int64()),
            "size": arrow.array([b.size for b in digest.blocks], arrow.int64()),
            "xxh3": arrow.array([b.xxh3.hex() for b in digest.blocks], arrow.string()),
        }
    ).replace_schema_metadata({_META: json.dumps(head).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def read_digest(path: Path) -> Digest:
    """Raises BadInput."""
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
        head = json.loads(table.schema.metadata[_META])
        blocks = tuple(
            Block(row["segment"], row["block"], row["size"], bytes.fromhex(row["xxh3"]))
            for row in table.to_pylist()
        )
        return Digest(blocks=blocks, **head)
    except (OSError, ValueError, KeyError, TypeError, arrow.ArrowInvalid) as problem:
        raise BadInput(f"{path} is no digest file: {problem}") from problem


def compare_digests(digests: Sequence[Digest]) -> list[tuple[str, list[Range]]]:
    """(name, differing ranges) of each digest but the first, over what it shares with the first.

    Raises BadInput.
    """
    if len(digests) < 2:
        raise BadInput("comparing needs at least two digests")
    first = digests[0]
    found = []
    for other in digests[1:]:
        if other.segment_bytes != first.segment_bytes:
            raise BadInput(
                f"not replicas of one broker: segments of {first.name} have {first.segment_bytes}"
                f" bytes, those of {other.name} {other.segment_bytes}"
            )
        start, end = max(first.start, other.start), min(first.end, other.end)
        whole = end - end % BLOCK_BYTES if first.end != other.end else end
        found.append(
            (
                other.name,
                differing_ranges(
                    _within(first, start, whole), _within(other, start, whole), start, whole,
                    first.segment_bytes,
                ),
            )
        )  # fmt: skip
    return found


def _within(digest: Digest, start: int, end: int) -> list[Block]:
    return [
        block
        for block in digest.blocks
        if start <= block.start() and block.start() + block.size <= end
    ]


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise BadInput("digest files need pyarrow: pip install 'tandemmq[audit]'") from problem
    return pyarrow, pyarrow.parquet
