"""Ten thousand random mutations of one replica: none is missed, and nothing else is reported."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import auditkit
import pytest

SEGMENT_BYTES = 32_768


def islands(kernel: Any, rng: random.Random, a: bytes, b: bytes, limit: int) -> list[Any]:
    """The pair's islands, read in one to three pieces."""
    pair = kernel.PairDiff(0)
    found: list[Any] = []
    for end in [*sorted(rng.sample(range(1, len(a)), rng.randrange(3))), len(a)]:
        base = pair.offset
        found += pair.step(a[base:end], b[base:end], base, limit, end, end == len(a))
    return found + pair.finish()


def trial(kernel: Any, rng: random.Random, made: auditkit.Segment) -> None:
    damaged = bytearray(made.data)
    touched = [auditkit.mutate(rng, made, damaged) for _ in range(rng.choice((1, 1, 1, 2)))]
    a, b = bytes(made.data), bytes(damaged)
    if rng.random() < 0.5:
        a, b = b, a
    if made.blank < 0:
        a, b = a[: made.end], b[: made.end]
    found = islands(kernel, rng, a, b, SEGMENT_BYTES)
    for first, second in itertools.pairwise(found):
        assert first.end <= second.start, "islands overlap"
    for island in found:
        # a false alarm would be an island without a changed byte
        assert a[island.start : island.end] != b[island.start : island.end], island
        assert island.differing > 0
    outside = bytearray(a), bytearray(b)
    for island in found:
        for side in outside:
            side[island.start : island.end] = bytes(island.end - island.start)
    checked = made.blank + 8 if made.blank >= 0 else len(a)
    assert outside[0][:checked] == outside[1][:checked], "a difference lies in no island"
    if len(touched) == 1 and touched[0][0] < touched[0][1]:
        _near(made, found, *touched[0])


def _near(made: auditkit.Segment, found: list[Any], start: int, end: int) -> None:
    """One mutation's islands hold no record that it did not touch."""
    places = [*made.records, (made.blank, SEGMENT_BYTES - made.blank)]
    first = max(offset for offset, _ in places if 0 <= offset <= start)
    last = min((offset + size for offset, size in places if offset + size >= end), default=end)
    assert all(first <= island.start and island.end <= last for island in found), (found, start)


@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_mutations_are_found_and_nothing_else_is(
    kernel: ModuleType, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(10 if kernel.__name__ == "readable" else 50):
        made = auditkit.segment(rng, 0, SEGMENT_BYTES, full=rng.random() < 0.7)
        for _ in range(10):
            trial(kernel, rng, made)


def test_damage_around_one_sound_record_is_still_all_found(kernel: ModuleType) -> None:
    rng = random.Random(7)
    made = auditkit.segment(rng, 0, SEGMENT_BYTES)
    damaged = bytearray(made.data)
    for index in (3, 5):
        damaged[made.records[index][0] + 4] ^= 1
    found = islands(kernel, rng, bytes(made.data), bytes(damaged), SEGMENT_BYTES)
    assert found[0].start == made.records[3][0]
    assert found[-1].end == made.records[6][0]


def test_body_that_looks_like_the_record_at_that_place_does_not_mislead(kernel: ModuleType) -> None:
    rng = random.Random(3)
    made = auditkit.segment(rng, 0, SEGMENT_BYTES, body_bytes_max=4000)
    offset, size = max(made.records, key=lambda record: record[1])
    inner, inner_size = min(made.records, key=lambda record: record[1])
    forged = bytearray(made.data[inner : inner + inner_size])
    place = offset + 200
    forged[28:36] = place.to_bytes(8, "big")
    assert place + inner_size < offset + size - 200
    made.data[place : place + inner_size] = forged
    view = bytes(made.data)
    assert (
        kernel.kind_at(view, place, 0, SEGMENT_BYTES)[0]
        == kernel.kind_at(view, offset, 0, SEGMENT_BYTES)[0]
    )
    found, _ = kernel.find_record(view, offset + 1, 0, SEGMENT_BYTES)
    assert found == offset + size


def test_padding_behind_a_blank_may_differ(kernel: ModuleType) -> None:
    rng = random.Random(5)
    made = auditkit.segment(rng, 0, SEGMENT_BYTES)
    other = bytearray(made.data)
    other[made.blank + 8 :] = rng.randbytes(SEGMENT_BYTES - made.blank - 8)
    assert islands(kernel, rng, bytes(made.data), bytes(other), SEGMENT_BYTES) == []
