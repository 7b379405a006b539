"""cluster/broker/standing/suspicion.py: who may have lost what it reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.cluster.broker.standing.suspicion import SuspectMark
from tandemmq.storage import FlushMode, StorageConfig, open_store

BOOT = "0000-boot"


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text(BOOT)
    return path


def mark_of(root: Path, boot_id: Path, flush: FlushMode = FlushMode.ASYNC) -> SuspectMark:
    return SuspectMark(StorageConfig(root=str(root), flush_mode=flush), boot_id)


def crash(root: Path, boot: str = BOOT, ran: str = "77 ASYNC_FLUSH") -> None:
    """What a process that ran under this boot leaves behind."""
    root.mkdir(exist_ok=True)
    (root / "abort").write_text("77")
    (root / "bootid").write_text(f"77 {boot}")
    (root / "flushmode").write_text(ran)


@pytest.mark.parametrize(
    ("boot", "ran", "suspect"),
    [
        (BOOT, "77 ASYNC_FLUSH", False),  # the page cache survived
        ("another", "77 ASYNC_FLUSH", True),
        ("", "77 ASYNC_FLUSH", True),  # a failed flush: nothing is known of it
        ("another", "77 SYNC_FLUSH", False),  # what was reported was on the disk
        ("", "77 SYNC_FLUSH", False),
        (
            "another",
            "76 SYNC_FLUSH",
            True,
        ),  # a process before, and the last one did not say: Java's
        ("another", "", True),
    ],
)
@pytest.mark.parametrize("configured", FlushMode)
def test_a_replica_is_suspect_when_the_page_cache_is_gone_and_was_counted_on(
    tmp_path: Path, boot_id: Path, boot: str, ran: str, suspect: bool, configured: FlushMode
) -> None:
    """INV-39: by how it ran, not by what broker.conf says now."""
    root = tmp_path / "store"
    crash(root, boot, ran)
    mark = mark_of(root, boot_id, configured)
    mark.look()
    assert mark.there is suspect


@pytest.mark.parametrize("ran", FlushMode)
def test_a_store_notes_how_it_really_ran(tmp_path: Path, boot_id: Path, ran: FlushMode) -> None:
    # INV-39
    root = tmp_path / "store"
    with open_store(
        StorageConfig(root=str(root), index_enabled=False, flush_mode=ran), boot_id_path=boot_id
    ) as store:
        store.close(clean=False)
    boot_id.write_text("after the power cut")
    other = FlushMode.SYNC if ran is FlushMode.ASYNC else FlushMode.ASYNC
    mark = mark_of(root, boot_id, other)
    mark.look()
    assert mark.there is (ran is FlushMode.ASYNC)
    with open_store(StorageConfig(root=str(root), index_enabled=False), boot_id_path=boot_id):
        pass
    assert not (root / "flushmode").exists()


def test_a_new_store_and_one_that_was_closed_are_not_suspect(tmp_path: Path, boot_id: Path) -> None:
    root = tmp_path / "store"
    mark = mark_of(root, boot_id)
    mark.look()
    assert not mark.there
    with open_store(StorageConfig(root=str(root), index_enabled=False), boot_id_path=boot_id):
        pass
    boot_id.write_text("later")
    mark.look()
    assert not mark.there


def test_the_mark_outlives_restarts_until_the_controller_has_noted_it(
    tmp_path: Path, boot_id: Path
) -> None:
    root = tmp_path / "store"
    crash(root, "another")
    mark_of(root, boot_id).look()
    crash(root)  # it ran since, under this boot, and nobody was told
    later = mark_of(root, boot_id)
    later.look()
    assert later.there
    later.clear()
    assert not mark_of(root, boot_id).there
    later.clear()  # nothing to do


def test_a_slave_that_stopped_in_order_lost_nothing_when_the_machine_is_switched_off(
    tmp_path: Path, boot_id: Path
) -> None:
    root = tmp_path / "store"
    crash(root, "another")  # its store does not count as closed: not all of it is confirmed
    mark_of(root, boot_id).stopped()
    mark = mark_of(root, boot_id)
    mark.look()
    assert not mark.there
    mark.look()  # the next start; it has run since
    assert mark.there
