"""The compiled kernel and the readable one say the same of every input, damaged ones included."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from array import array
from pathlib import Path
from types import ModuleType
from typing import Any

import auditkit
import pytest

from tandemmq.replication.audit import kernel as readable
from tandemmq.replication.audit import ledger as readable_ledger
from tandemmq.storage.record import queue_tags_code

if os.environ.get("TANDEM_PURE_PYTHON"):
    pytest.skip("one form only", allow_module_level=True)

from tandemmq.replication.audit import _kernel as compiled


def pieces(rng: random.Random, first: int, last: int) -> list[int]:
    """Where a reader's views end: at random places, the last at the end."""
    return [*sorted(rng.sample(range(first + 1, last), rng.randrange(4))), last]


def diff(
    kernel: ModuleType, a: bytes, b: bytes, start: int, limit: int, ends: list[int]
) -> tuple[list[Any], tuple[int, ...]]:
    """Islands of two replicas whose views end at `ends`, one after the other."""
    pair = kernel.PairDiff(start)
    found: list[Any] = []
    for end in ends:
        base = pair.offset
        views = a[base - start : end - start], b[base - start : end - start]
        found += pair.step(*views, base, limit, end, end == ends[-1])
    found += pair.finish()
    return found, (pair.offset_a, pair.offset_b, pair.equal_records, pair.equal_bytes, pair.padding)


@pytest.mark.parametrize("seed", range(150))
def test_both_find_the_same_islands_however_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    made = auditkit.segment(rng, 65_536, 65_536, full=rng.random() < 0.7)
    damaged = bytearray(made.data)
    for _ in range(rng.randrange(1, 5)):
        auditkit.mutate(rng, made, damaged)
    a, b = bytes(made.data), bytes(damaged)
    if rng.random() < 0.3:
        a, b = b, a
    if made.blank < 0:
        a, b = a[: made.end - made.start], b[: made.end - made.start]
    ends = pieces(rng, made.start, made.start + len(a))
    limit = made.start + len(made.data)
    slow = diff(readable, a, b, made.start, limit, ends)
    fast = diff(compiled, a, b, made.start, limit, ends)
    assert slow == fast


@pytest.mark.parametrize("seed", range(40))
def test_both_find_the_same_way_again(seed: int) -> None:
    rng = random.Random(seed)
    made = auditkit.segment(rng, 0, 32_768)
    for _ in range(6):
        auditkit.mutate(rng, made, made.data)
    view = bytes(made.data[: rng.choice((32_768, 20_000, 3_000))])
    for _ in range(60):
        start = rng.randrange(len(view))
        assert readable.find_record(view, start, 0, 32_768) == compiled.find_record(
            view, start, 0, 32_768
        )
        assert readable.kind_at(view, start, 0, 32_768) == compiled.kind_at(view, start, 0, 32_768)


@pytest.mark.parametrize("seed", range(20))
def test_both_list_the_same_rows(seed: int) -> None:
    rng = random.Random(seed)
    made = auditkit.segment(rng, 0, 32_768)
    auditkit.mutate(rng, made, made.data)
    for checked in (False, True):
        slow = list(readable.rows(made.data, 0, 32_768, 0, 32_768, checked))
        assert slow == list(compiled.rows(made.data, 0, 32_768, 0, 32_768, checked))


def account(kernel: ModuleType, seed: int) -> dict[str, Any]:
    """All that a ledger says of a damaged log, with queues and an index that are wrong here and there."""
    rng = random.Random(seed)
    made = auditkit.segment(rng, 0, 65_536)
    entries: dict[tuple[bytes, int], bytearray] = {}
    physical, hashes = array("q"), array("i")
    for line in readable.rows(made.data, 0, 65_536, 0, 65_536):
        code = queue_tags_code(line.topic, line.properties, line.store_ms, {})
        entry = line.offset.to_bytes(8, "big") + line.size.to_bytes(4, "big")
        entries.setdefault((line.topic, line.queue_id), bytearray()).extend(
            entry + code.to_bytes(8, "big", signed=True)
        )
        for hashed in readable_ledger.expected_hashes(line.topic, line.properties):
            if rng.random() < 0.95:
                physical.append(line.offset if rng.random() < 0.97 else line.offset + 1)
                hashes.append(hashed if rng.random() < 0.97 else 17)
    for queue in entries.values():
        if rng.random() < 0.5:
            queue[rng.randrange(len(queue))] ^= 1 << rng.randrange(8)
    auditkit.mutate(rng, made, made.data)

    def window(shelf: int, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, bytes]:
        queue = bytes(entries.get((topic, queue_id), b""))
        first = queue_offset - queue_offset % 4
        return first, queue[20 * first : 20 * first + 80]

    ledger = kernel.Ledger(2, window, lambda topic, properties, ms: 0)
    if kernel is readable_ledger:
        ledger = kernel.Ledger(
            2, window, lambda topic, properties, ms: queue_tags_code(topic, properties, ms, {})
        )
    ledger.set_index(1, physical, hashes, physical[0], physical[-1])
    came, kind = ledger.walk(made.data, 0, 65_536, 0, 65_536, rng.randrange(4))
    return {
        "came": (came, kind),
        "marks": ledger.marks,
        "counts": ledger.counts,
        "numbers": (ledger.records, ledger.bytes, ledger.last_store_ms),
        "index": (ledger.unindexed, ledger.first_unindexed),
        "spans": {
            key: (span.first, span.first_physical, span.last, span.last_physical, span.count)
            for key, span in ledger.spans.items()
        },
    }


@pytest.mark.parametrize("seed", range(60))
def test_both_keep_the_same_ledger(seed: int) -> None:
    assert account(readable_ledger, seed) == account(compiled, seed)


@pytest.mark.parametrize(("pure", "expected"), [("", "True"), ("1", "False")])
def test_compiled_form_is_used_unless_it_is_switched_off(pure: str, expected: str) -> None:
    environment = {**os.environ, "TANDEM_PURE_PYTHON": pure}
    if not pure:
        del environment["TANDEM_PURE_PYTHON"]
    script = "from tandemmq.replication.audit import kernels; print(kernels.COMPILED)"
    shown = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    assert shown.stdout.strip() == expected
