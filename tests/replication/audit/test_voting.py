"""Three replicas of one log: the one that stands alone is named, whichever it is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import storekit
from storekit import LogFiles, Place

from tandemmq.command.cli import main
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import Options, Outcome, audit

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


def repaired(stores: dict[str, Path], tmp_path: Path) -> int:
    """Audit with tables, repair by them; the exit code."""
    words = [f"{name}={path}" for name, path in stores.items()]
    slots = ["--index-slots", str(storekit.INDEX_SLOTS)]
    assert main(["audit", "run", *words, *slots, "--out", str(tmp_path / "audits")]) == 1
    (directory,) = (tmp_path / "audits").iterdir()
    return main(["audit", "repair", str(directory), "--yes"])


def test_third_replica_mends_what_is_damaged_in_two(trio: dict[str, Path], tmp_path: Path) -> None:
    """The same record has a wrong checksum in the reference and, elsewhere in it, in the first replica."""
    place = storekit.places(trio[NAMES[2]])[100]
    LogFiles(trio[NAMES[0]]).flip(place.body[0])
    LogFiles(trio[NAMES[1]]).flip(place.body[0] + 1)
    (both,) = [row for row in run(trio).divergences if row.replica == NAMES[1]]
    assert (both.kind, both.side) == ("CRC_BOTH", "both")
    assert repaired(trio, tmp_path) == 0
    logs = [LogFiles(path).read(place.offset, place.end) for path in trio.values()]
    assert logs[0] == logs[1] == logs[2]


def test_reference_damage_is_mended_once_from_a_sound_replica(
    trio: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = storekit.places(trio[NAMES[0]])[100]
    LogFiles(trio[NAMES[0]]).flip(place.body[0])
    assert repaired(trio, tmp_path) == 0
    assert capsys.readouterr().out.count("replaced, former bytes in") == 1


def test_replica_of_another_history_mends_nobody(trio: dict[str, Path], tmp_path: Path) -> None:
    """Its checksums are right there, too; what it has in common with the others ends before the damage."""
    places = storekit.places(trio[NAMES[0]])
    other = storekit.write_store(tmp_path / "other", 21, 300, fork_at=90, fork_seed=4)
    trio[NAMES[2]] = other
    for name in NAMES[:2]:
        LogFiles(trio[name]).write(places[100].offset + 20, bytes([int(name[-1]) + 1]) * 600)
    before = [LogFiles(trio[name]).read(places[100].offset, places[103].end) for name in NAMES[:2]]
    assert repaired(trio, tmp_path) == 1
    after = [LogFiles(trio[name]).read(places[100].offset, places[103].end) for name in NAMES[:2]]
    assert after == before
