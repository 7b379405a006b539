"""cluster/broker/tables/offsets.py: how far groups came, and where they are sent."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from brokerkit import TwoClocks

from tandemmq.cluster.broker.tables.offsets import COMMITS_PER_VERSION, OffsetTable

STORES = Path(__file__).parents[2] / "golden" / "stores"


@pytest.fixture
def table(tmp_path: Path, clock: TwoClocks) -> OffsetTable:
    offsets = OffsetTable(tmp_path / "consumerOffset.json", clock)
    offsets.load()
    return offsets


def reopened(table: OffsetTable, clock: TwoClocks) -> OffsetTable:
    table.file.save()
    again = OffsetTable(table.file.path, clock)
    again.load()
    return again


@pytest.mark.parametrize("name", ["497-clean", "533-clean"])
def test_offsets_of_both_releases_are_read(name: str, tmp_path: Path, clock: TwoClocks) -> None:
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        member = archive.extractfile(f"{name}/config/consumerOffset.json")
        assert member is not None
        (tmp_path / "consumerOffset.json").write_bytes(member.read())
    offsets = OffsetTable(tmp_path / "consumerOffset.json", clock)
    offsets.load()
    assert offsets.queues("GoldCG", "GoldRetry") == {0: 3, 1: 2}
    assert offsets.queues("GoldPullCG", "GoldNormal") == {0: 4, 2: 1}
    assert set(offsets.topics_of("GoldCG")) == {"GoldRetry", "%RETRY%GoldCG"}


def test_unknown_offset_is_minus_one(table: OffsetTable) -> None:
    assert table.query("G", "T", 0) == -1


def test_commits_may_go_backwards_but_not_below_zero(table: OffsetTable) -> None:
    assert table.commit("G", "T", 0, 10)
    assert table.commit("G", "T", 0, 4)
    assert not table.commit("G", "T", 0, -1)
    assert table.query("G", "T", 0) == 4


def test_committed_offsets_survive_and_pulled_ones_do_not(
    table: OffsetTable, clock: TwoClocks
) -> None:
    table.commit("G", "T", 3, 10)
    table.commit("G", "%RETRY%G", 0, 1)
    table.commit_pull("G", "T", 3, 12)
    again = reopened(table, clock)
    assert again.query("G", "T", 3) == 10
    assert again.query("G", "%RETRY%G", 0) == 1
    assert again.pulled("G", "T", 3) == -1


def test_a_reset_holds_until_a_pull_heard_of_it(table: OffsetTable) -> None:
    table.commit("G", "T", 0, 10)
    table.assign_reset("G", "T", 0, 2)
    assert table.query("G", "T", 0) == 2
    assert not table.commit("G", "T", 0, 11), "a commit that was on its way must not undo the reset"
    assert table.pending_reset("G", "T", 0) == 2
    assert table.take_reset("G", "T", 0) == 2
    assert table.take_reset("G", "T", 0) is None
    assert table.commit("G", "T", 0, 3)
    assert table.query("G", "T", 0) == 3


def test_a_reset_survives_a_restart_as_progress(table: OffsetTable, clock: TwoClocks) -> None:
    table.assign_reset("G", "T", 0, 2)
    assert reopened(table, clock).query("G", "T", 0) == 2


def test_deleted_topic_and_group_leave_nothing(table: OffsetTable, clock: TwoClocks) -> None:
    table.commit("G", "T", 0, 1)
    table.commit("G", "U", 0, 1)
    table.commit("H", "T", 0, 1)
    table.assign_reset("G", "T", 1, 5)
    table.forget_topic("T")
    assert table.groups_of("T") == []
    assert table.pending_reset("G", "T", 1) is None
    table.forget_group("G")
    again = reopened(table, clock)
    assert list(again.groups()) == []


def test_version_advances_once_per_step_of_commits(table: OffsetTable) -> None:
    for offset in range(COMMITS_PER_VERSION * 2):
        table.commit("G", "T", 0, offset + 1)
    assert table.version.counter == 2


def test_unchanged_progress_is_not_written_again(table: OffsetTable) -> None:
    table.commit("G", "T", 0, 1)
    table.file.save()
    table.commit("G", "T", 0, 1)
    assert not table.file.unsaved


def test_what_was_kept_as_a_slave_does_not_hold_beyond_a_cut(table: OffsetTable) -> None:
    """INV-42: a group may have read it before the loss. What a master had of it holds."""
    table.start_following()
    for topic, its_masters in (("Known", 8), ("Before", 3), ("Below", 20), ("Adopted", 30)):
        table.adopt({("G", topic): {0: its_masters}}, table.version)
    for topic in ("Known", "Before", "Below", "Alone", "Adopted"):
        table.commit("G", topic, 0, 13)
    table.adopt({("G", "Below"): {0: 20}, ("G", "Adopted"): {0: 30}}, table.version)
    table.stop_following()
    assert table.limit_kept(lambda topic, queue_id: 5) == 3
    found = {topic: table.committed("G", topic, 0) for topic in table.topics_of("G")}
    assert found == {"Known": 8, "Before": 5, "Below": 20, "Alone": 5, "Adopted": 30}
    assert table.limit_kept(lambda topic, queue_id: 0) == 0, "each once"


def test_what_a_master_had_of_what_was_kept_does_not_outlive_a_cut(table: OffsetTable) -> None:
    """Else the former master's word of 30 vouches for 28, read before the cut, in the history that came behind it."""
    table.start_following()
    table.adopt({("G", "T"): {0: 30}}, table.version)
    table.commit("G", "T", 0, 32)
    assert table.limit(lambda topic, queue_id: 20) == 1
    table.commit("G", "T", 0, 28)
    table.stop_following()
    assert table.limit(lambda topic, queue_id: 50) == 0
    assert table.limit_kept(lambda topic, queue_id: 10) == 1
    assert table.committed("G", "T", 0) == 20


def test_what_was_kept_and_is_committed_to_a_master_holds(table: OffsetTable) -> None:
    table.start_following()
    for queue_id in (0, 1):
        table.commit("G", "T", queue_id, 13)
        table.acknowledged(("G", "T", queue_id), 13)  # whether it was taken is not said
    table.stop_following()
    table.commit("G", "T", 0, 13)
    assert table.limit_kept(lambda topic, queue_id: 5) == 1
    assert table.queues("G", "T") == {0: 13, 1: 5}


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("leads", [False, True])
def test_what_was_kept_over_a_restart_does_not_hold_beyond_a_cut(
    table: OffsetTable, clock: TwoClocks, told: bool, leads: bool
) -> None:
    """Nor when a master was told, which may not have taken it, or the process died where its reign begins."""
    table.start_following()
    table.commit("G", "T", 0, 13)
    if told:
        table.acknowledged(("G", "T", 0), 13)
    if leads:
        table.stop_following()
    again = reopened(table, clock)
    again.stop_following()
    assert again.limit_kept(lambda topic, queue_id: 5) == 1
    assert again.committed("G", "T", 0) == 5
