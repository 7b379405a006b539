"""Histories of epochs: the file, and where two logs part, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from newinputs import new_inputs

from tandemmq.replication import epochs
from tandemmq.replication.epochs import (
    ENTRIES_MAX,
    Epoch,
    EpochHistory,
    common_end,
    decode_epochs,
    encode_epochs,
    read_epochs,
)
from tandemmq.replication.errors import CorruptEpochFile


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(Epoch(*entry) for entry in entries))


THREE = history((1, 0), (2, 4096), (5, 10240))


def test_the_file_is_the_specifications_example() -> None:
    assert encode_epochs(THREE) == b"3\n2124483871\n1-0\n2-4096\n5-10240\n"
    assert decode_epochs(encode_epochs(THREE)) == THREE


def test_windows_line_ends_and_a_checksum_of_zero_are_read() -> None:
    assert decode_epochs(b"1\r\n0\r\n7-99\r\n") == history((7, 99))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1\n",
        b"2\n0\n1-0\n",
        b"1\n5\n1-0\n",
        b"x\n0\n1-0\n",
        b"1\n0\n1:0\n",
        b"2\n0\n2-0\n1-5\n",
        b"2\n0\n1-5\n2-4\n",
        b"1\n0\n9999999999-0\n",
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptEpochFile):
        decode_epochs(content)


def test_an_empty_reign_that_rocketmq_kept_is_folded() -> None:
    assert decode_epochs(b"3\n0\n1-0\n2-50\n3-50\n") == history((1, 0), (3, 50))


def test_the_previous_generation_helps_out_but_damage_is_never_taken_for_a_fresh_replica() -> None:
    good = encode_epochs(THREE)
    assert read_epochs(None, None) == EpochHistory()
    assert read_epochs(good, None) == THREE
    assert read_epochs(b"", good) == THREE
    assert read_epochs(b"rubbish", good) == THREE
    assert read_epochs(None, good) == THREE
    for main, previous in (
        (b"rubbish", None),
        (b"rubbish", b""),
        (b"", b"rubbish"),
        (None, b"rubbish"),
    ):
        with pytest.raises(CorruptEpochFile):
            read_epochs(main, previous)


def test_an_empty_reign_is_replaced_by_its_successor() -> None:
    # INV-20
    assert history((1, 0), (2, 100)).begin(3, 100) == history((1, 0), (3, 100))
    assert history((1, 0)).begin(2, 0) == history((2, 0))


def test_a_reign_cannot_begin_inside_another_or_go_back() -> None:
    # INV-20
    with pytest.raises(AssertionError):
        history((1, 0), (2, 100)).begin(3, 50)
    with pytest.raises(AssertionError):
        history((1, 0), (2, 100)).begin(2, 200)


def test_cutting_forgets_the_reigns_behind_and_retention_those_before() -> None:
    assert THREE.cut(4096) == history((1, 0))
    assert THREE.cut(4097) == history((1, 0), (2, 4096))
    assert THREE.cut(0) == EpochHistory()
    assert THREE.drop_before(4096) is THREE, (
        "a log may end right there, and says who wrote its last byte"
    )
    assert THREE.drop_before(4097) == history((2, 4096), (5, 10240))
    assert THREE.drop_before(99_999) == history((5, 10240))
    assert EpochHistory().drop_before(7) == EpochHistory()
    assert THREE.at(4095) == Epoch(1, 0)
    assert THREE.at(4096) == Epoch(2, 4096)
    assert EpochHistory().at(0) is None


def test_logs_of_equal_length_part_where_their_epochs_do() -> None:
    assert common_end(history((1, 0), (2, 100)), 150, history((1, 0), (3, 100)), 150) == 100


def test_a_silently_diverged_empty_reign_cannot_happen() -> None:
    """INV-20: A wrote [100, 150) alone in epoch 2, B reigned from 100 in epoch 3."""
    a = history((1, 0), (2, 100))
    b = history((1, 0), (2, 100)).begin(3, 100)
    assert common_end(a, 150, b, 180) == 100


def test_first_masters_that_lost_everything_part_at_the_beginning() -> None:
    assert common_end(history((1, 0)), 13, history((2, 0)), 0) == 0
    assert common_end(history((1, 0)), 13, history((2, 50)), 60) is None


@st.composite
def lineages(draw: st.DrawFn) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Two logs as lists of (epoch, byte) that followed one another for a while and then did not."""
    logs: list[list[tuple[int, str]]] = [[], []]
    for epoch in range(1, draw(st.integers(1, 8))):
        writer = draw(st.integers(0, 1))
        follower = 1 - writer
        if draw(
            st.booleans()
        ):  # the follower catches up first: it is cut to the common part and copies
            common = 0
            while common < min(map(len, logs)) and logs[0][common] == logs[1][common]:
                common += 1
            del logs[follower][common:]
            logs[follower] += logs[writer][common:]
        written = draw(st.integers(0, 4))
        shared = draw(st.integers(0, written)) if logs[0] == logs[1] else 0
        for at in range(written):
            byte = (epoch, f"{epoch}.{at}")
            logs[writer].append(byte)
            if at < shared:
                logs[follower].append(byte)
    return logs[0], logs[1]


def history_of_log(log: list[tuple[int, str]]) -> EpochHistory:
    found = EpochHistory()
    for offset, (epoch, _) in enumerate(log):
        if epoch != found.last:
            found = found.begin(epoch, offset)
    return found


@given(lineages())
def test_the_common_end_is_that_of_the_bytes(
    logs: tuple[list[tuple[int, str]], list[tuple[int, str]]],
) -> None:
    mine, theirs = logs
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    found = common_end(history_of_log(mine), len(mine), history_of_log(theirs), len(theirs))
    assert (found or 0) == common


def point_both_accept(
    mine: EpochHistory, my_log: range, theirs: EpochHistory, their_log: range
) -> int | None:
    """Where I go on as their slave; None when one of us refuses (SlaveCore, MasterCore)."""
    point = common_end(mine, my_log.stop, theirs, their_log.stop)
    refused = point is None or point < my_log.start or 0 < point < their_log.start
    return None if refused else point


@given(lineages(), st.data())
def test_trimmed_histories_find_the_same_point_or_it_is_before_a_log(
    logs: tuple[list[tuple[int, str]], list[tuple[int, str]]], data: st.DataObject
) -> None:
    mine, theirs = logs
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    starts = [data.draw(st.integers(0, len(log))) for log in logs]
    halves = [
        history_of_log(log).drop_before(start) for log, start in zip(logs, starts, strict=True)
    ]
    my_log, their_log = (range(start, len(log)) for log, start in zip(logs, starts, strict=True))
    found = point_both_accept(halves[0], my_log, halves[1], their_log)
    if common and common >= max(starts):
        assert found == common
    else:  # at 0 nothing is cut that could not be sent again
        assert not found


@given(lineages(), st.integers(2, 4), st.data())
def test_a_history_at_its_limit_never_claims_more_in_common_than_there_is(
    logs: tuple[list[tuple[int, str]], list[tuple[int, str]]], limit: int, data: st.DataObject
) -> None:
    whole = [history_of_log(log) for log in logs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "ENTRIES_MAX", limit)
        folded = [history_of_log(log) for log in logs]
    assert all(len(each.entries) <= limit for each in folded)
    # one of the two may have been there before the limit, and crashes take the ends of both
    mine, theirs = (data.draw(st.sampled_from(pair)) for pair in zip(whole, folded, strict=True))
    ends = [data.draw(st.integers(0, len(log))) for log in logs]
    logs = (logs[0][: ends[0]], logs[1][: ends[1]])
    common = 0
    while common < min(ends) and logs[0][common] == logs[1][common]:
        common += 1
    found = common_end(mine.cut(ends[0]), ends[0], theirs.cut(ends[1]), ends[1])
    assert (found or 0) <= common
    kept = set(mine.cut(ends[0]).entries) & set(theirs.cut(ends[1]).entries)
    if common and any(common > entry.start for entry in kept):
        assert found == common


def test_ten_thousand_failovers_and_one_more_leave_a_history_that_can_be_read() -> None:
    # INV-20
    full = EpochHistory(tuple(Epoch(number, number * 10) for number in range(1, ENTRIES_MAX + 1)))
    more = full.begin(ENTRIES_MAX + 1, ENTRIES_MAX * 10 + 10)
    assert more.entries[:2] == (Epoch(2, 10), Epoch(3, 30)), "the two oldest are one"
    assert decode_epochs(encode_epochs(more)) == more
    followed = full.begin(ENTRIES_MAX + 1, ENTRIES_MAX * 10 + 10)  # by a slave, frame by frame
    assert common_end(followed, 10**6, more, 10**6) == 10**6
    parted = EpochHistory(full.entries[:1])  # it was away since the first reign
    assert common_end(parted, 15, more, 10**6) == 10


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=20))
def test_files_come_back(steps: list[tuple[int, int]]) -> None:
    found = EpochHistory()
    number = start = 0
    for by, further in steps:
        number, start = number + by, start + further
        found = found.begin(number, start)
    assert decode_epochs(encode_epochs(found)) == found


@pytest.mark.fuzz
def test_20_000_damaged_files_are_read_or_refused() -> None:
    rng = new_inputs()
    read = 0
    for _ in range(20_000):
        data = bytearray(
            rng.choice([encode_epochs(THREE), b"3\r\n0\r\n1-0\r\n2-4096\r\n5-10240\r\n"])
        )
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.choice(b"0123456789-\r\n \0\xff")
                case 1:
                    del data[at : at + rng.randint(1, 6)]
                case _:
                    data[at:at] = data[at : at + rng.randint(1, 12)]
        try:
            found = decode_epochs(bytes(data))
        except CorruptEpochFile:
            continue
        read += 1
        assert decode_epochs(encode_epochs(found)) == found
    assert 100 < read < 19_000
