"""What the next increment must hold (INV-70): every way in which a log may differ from what a chain ends with."""

from __future__ import annotations

import msgspec
import pytest

from tandemmq.backup.chain import (
    Anew,
    Continue,
    Refuse,
    Seen,
    chain_of,
    check_chain,
    decide,
    increments_for,
)
from tandemmq.backup.copying import chain_name
from tandemmq.backup.errors import BackupDamaged, NoBackup
from tandemmq.backup.manifest import (
    Layout,
    Manifest,
    Piece,
    SavedTable,
    Tail,
    decode,
    encode,
    seal_of,
)
from tandemmq.replication.epochs import Epoch, EpochHistory

TAIL = Tail(90, 100, "right")


def made(number: int = 1, start: int = 0, end: int = 100, **more: object) -> Manifest:
    fields: dict[str, object] = {
        "number": number, "chain": "one", "previous": "", "directory": f"{number:08d}-aa",
        "cluster": "C", "group": "broker-a", "broker_id": 0, "role": "SYNC_MASTER", "source": "http://h:1",
        "version": "1", "began_ms": 1_000 * number, "ended_ms": 1_000 * number + 1, "start": start,
        "end": end, "layout": Layout(1_000), "tail": TAIL,
        "pieces": (Piece(start, end, "f", "x"),) if end > start else (),
    }  # fmt: skip
    return Manifest(**{**fields, **more})  # type: ignore[arg-type]


def chained(*parts: tuple[int, int], **more: object) -> list[Manifest]:
    chain: list[Manifest] = []
    for number, (start, end) in enumerate(parts, 1):
        previous = seal_of(chain[-1]) if chain else ""
        chain.append(made(number, start, end, previous=previous, **more))
    return chain


def seen(start: int = 0, end: int = 200, *epochs: tuple[int, int], **more: object) -> Seen:
    history = EpochHistory(tuple(Epoch(*each) for each in epochs))
    fields: dict[str, object] = {"cluster": "C", "group": "broker-a", "segment_bytes": 1_000}
    return Seen(start=start, end=end, epochs=history, **{**fields, **more})  # type: ignore[arg-type]


EPOCHS = ((1, 0), (2, 50))


@pytest.mark.parametrize(
    ("now", "tail", "kind", "said"),
    [
        (seen(), "right", Continue, ""),
        (seen(end=100), "right", Continue, ""),
        (seen(0, 200, *EPOCHS), "right", Continue, ""),
        (seen(0, 200, *EPOCHS, (3, 100)), "right", Continue, ""),
        (seen(0, 200, *EPOCHS, (3, 99)), "right", Anew, "parted from the backup at 99"),
        (seen(0, 99, *EPOCHS), "right", Refuse, "lags"),
        (seen(0, 99), None, Refuse, "--full"),
        (seen(0, 200, (7, 10)), "right", Anew, "share no epoch"),
        (seen(101, 200), None, Anew, "retention took log[100, 101)"),
        (seen(100, 200, *EPOCHS), None, Continue, ""),
        (seen(100, 200), None, Anew, "nothing any more to compare"),
        (seen(), "wrong", Anew, "other bytes"),
        (seen(group="broker-b"), "right", Refuse, "--group"),
        (seen(cluster="D"), "right", Refuse, "C#broker-a"),
        (seen(segment_bytes=500), "right", Anew, "500 bytes"),
    ],
)
def test_a_log_continues_a_chain_only_where_it_holds_what_the_chain_ends_with(
    now: Seen, tail: str | None, kind: type, said: str
) -> None:
    last = made(epochs=EPOCHS)
    found = decide(last, now, tail)
    assert type(found) is kind, found
    assert said in getattr(found, "why", "")


def test_the_first_backup_begins_a_chain() -> None:
    assert isinstance(decide(None, seen(), None), Anew)


def test_a_manifest_comes_back_as_it_was_written_and_one_flipped_bit_is_seen() -> None:
    manifest = made(epochs=EPOCHS, tables=(SavedTable("topics.json", "topics.json", 3, "aa"),))
    data = encode(manifest)
    assert decode(data, "m") == manifest
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        try:
            assert decode(bytes(damaged), "m") == manifest  # of the line end behind all
            assert place == len(data) - 1 or data[place : place + 1] == b"\n"
        except BackupDamaged as problem:
            assert "m " in str(problem)


def test_a_torn_manifest_and_one_of_a_later_release_are_told() -> None:
    data = encode(made())
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(BackupDamaged):
            decode(data[:length], "m")
    with pytest.raises(BackupDamaged, match="format 2"):
        decode(data.replace(b'"format":1', b'"format":2'), "m")


@pytest.mark.parametrize(
    "more",
    [
        {"directory": "../../etc"},
        {"directory": ".."},
        {"group": "a/../../b"},
        {"group": "a\naclEnable=false"},
        {"chain": ""},
        {"pieces": (Piece(0, 100, "../../../etc/passwd", "x"),)},
        {"tables": (SavedTable("topics.json", "/etc/passwd", 1, "x"),)},
        {"layout": Layout(0)},
        {"layout": Layout(-1)},
        {"layout": Layout(1_000, delay_levels="1s\nbrokerRole=SLAVE")},
        {"pieces": (Piece(-100, 100, "f", "x"),)},
        {"pieces": (Piece(0, 1_001, "f", "x"),)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_manifest_that_somebody_else_made_leads_nowhere(more: dict[str, object]) -> None:
    assert decode(encode(made()), "where") == made()
    with pytest.raises(BackupDamaged, match="no manifest of ours"):
        decode(encode(made(**more)), "where")


def test_a_chain_without_one_of_its_increments_is_told_with_what_is_left() -> None:
    chain = chained((0, 100), (100, 150), (150, 150), (150, 300))
    found = [(f"{each.number}.json", each) for each in chain]
    assert check_chain(found[::-1]) == chain
    with pytest.raises(BackupDamaged, match=r"increment 3 .* is missing.*--until 150"):
        check_chain([each for each in found if each[1].number != 3])
    with pytest.raises(BackupDamaged, match=r"increment 1 .* is missing"):
        check_chain(found[1:])


def test_an_increment_that_was_exchanged_or_leaves_a_gap_is_told() -> None:
    chain = chained((0, 100), (100, 150))
    exchanged = msgspec.structs.replace(chain[0], ended_ms=99)
    with pytest.raises(BackupDamaged, match="does not follow increment 1"):
        check_chain([("1", exchanged), ("2", chain[1])])
    with pytest.raises(BackupDamaged, match="begins at 101"):
        check_chain([("1", chain[0]), ("2", made(2, 101, 150, previous=seal_of(chain[0])))])
    with pytest.raises(BackupDamaged, match="pieces end at 100, not at 120"):
        check_chain([("1", made(1, 0, 120, pieces=(Piece(0, 100, "f", "x"),)))])
    with pytest.raises(BackupDamaged, match="where 40 should be next"):
        pieces = (Piece(0, 40, "f", "x"), Piece(50, 100, "g", "x"))
        check_chain([("1", made(1, 0, 100, pieces=pieces))])


def test_the_chain_of_a_moment_is_the_first_that_was_still_written_then() -> None:
    old = [made(1, chain="old", began_ms=10), made(2, chain="old", began_ms=20)]
    new = [made(1, chain="new", began_ms=30), made(2, chain="new", began_ms=40)]
    chains = {"2-new": new, "1-old": old}
    assert chain_of(chains) == new
    assert chain_of(chains, until_ms=15) == old
    assert chain_of(chains, until_ms=25) == new
    assert chain_of(chains, until_ms=99) == new
    assert chain_of(chains, "1-old", until_ms=99) == old
    with pytest.raises(NoBackup, match="no chain lost; there is 1-old, 2-new"):
        chain_of(chains, "lost")
    with pytest.raises(NoBackup):
        chain_of({})


def test_tables_of_a_point_are_those_of_the_increments_around_it() -> None:
    one, two, three, four = chain = chained((10, 100), (100, 150), (150, 150), (150, 300))
    assert increments_for(chain, 50) == (one, None)
    assert increments_for(chain, 100) == (one, one)
    assert increments_for(chain, 120) == (two, one)
    assert increments_for(chain, 150) == (three, three)  # taken last, and rests on no more
    assert increments_for(chain, 151) == (four, three)
    assert increments_for(chain, 300) == (four, four)
    for offset in (9, 301):
        with pytest.raises(NoBackup, match="not in chain one"):
            increments_for(chain, offset)


def test_a_chain_comes_behind_the_newest_by_name_whatever_the_clock_says() -> None:
    first = chain_name(1_700_000_000_999, "")
    assert first.startswith("20231114T221320999Z-")
    for began_ms in (5, 1_700_000_000_999, 1_700_000_001_000):
        assert chain_name(began_ms, first).startswith("20231114T221321000Z-")
    assert chain_name(1_700_000_005_000, first) > first
