"""Three replicas of one log: the one that stands alone is named, whichever it is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import storekit
from storekit import LogFiles, Place

from replication.audit.local import LocalEngine
from replication.audit.plan import Options, Outcome, audit

NAMES = ("broker-a-0", "broker-a-1", "broker-a-2")


@pytest.fixture
def trio(tmp_path: Path) -> dict[str, Path]:
    """Three equal stores."""
    first = storekit.write_store(tmp_path / NAMES[0], 21, 300)
    return {
        NAMES[0]: first,
        **{name: storekit.copy(first, tmp_path / name) for name in NAMES[1:]},
    }


def run(stores: dict[str, Path]) -> Outcome:
    options = Options(index_slots=storekit.INDEX_SLOTS)
    return audit({name: str(path) for name, path in stores.items()}, LocalEngine(2), options)


def rewrite_header(log: LogFiles, place: Place) -> None:
    """Another store time: no checksum covers it."""
    log.write(place.offset + 56, struct.pack(">q", 1_700_000_099_999))


def test_three_equal_replicas_are_equal(trio: dict[str, Path]) -> None:
    outcome = run(trio)
    assert outcome.exit_code == 0
    assert outcome.divergences == []


@pytest.mark.parametrize("odd", NAMES)
def test_replica_that_stands_alone_is_named(trio: dict[str, Path], odd: str) -> None:
    place = next(p for p in storekit.places(trio[odd])[100:] if not p.head.sys_flag & 0x30)
    rewrite_header(LogFiles(trio[odd]), place)
    rows = run(trio).divergences
    others = [name for name in NAMES if name != odd]
    if odd == NAMES[0]:
        assert [(row.replica, row.side) for row in rows] == [(n, "reference") for n in others]
    else:
        assert [(row.replica, row.side) for row in rows] == [(odd, "replica")]
    for row in rows:
        assert row.kind == "HEADER_DIFF"
        assert f"{odd} stands alone, 2 of 3 replicas agree: {', '.join(others)}" in row.detail


def test_three_different_records_decide_nothing(trio: dict[str, Path]) -> None:
    place = next(p for p in storekit.places(trio[NAMES[0]])[100:] if not p.head.sys_flag & 0x30)
    for number, name in enumerate(NAMES[1:]):
        LogFiles(trio[name]).write(place.offset + 56, struct.pack(">q", 1_700_000_050_000 + number))
    rows = run(trio).divergences
    assert [(row.replica, row.side) for row in rows] == [(n, "unknown") for n in NAMES[1:]]


def test_checksums_decide_before_votes(trio: dict[str, Path]) -> None:
    """Two damaged replicas do not outvote a sound one."""
    place = storekit.places(trio[NAMES[0]])[100]
    for name in NAMES[1:]:
        LogFiles(trio[name]).flip(place.body[0])
    rows = run(trio).divergences
    assert [(row.kind, row.side) for row in rows] == [("CRC_SLAVE", "replica")] * 2
    assert all("stands alone" not in row.detail for row in rows)
