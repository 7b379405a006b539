"""The controller's one file: whole, checked, and never in two hands."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tandemmq.cluster.controller.store
from tandemmq.cluster.controller.store import (
    CorruptControllerFile,
    FileStore,
    Leader,
    StoreUnreachable,
    decode,
    encode,
    load,
)
from tandemmq.replication import GroupRecord
from tandemmq.replication.election import Member
from tandemmq.storage import StoreLocked

ME = Leader("n0", "127.0.0.1:9878")
RECORD = GroupRecord(
    "c", "a", {1: Member("h:1", "h:2", "x", 1 << 62, "A1"), 2: Member("h:3")}, 3, 2, 1, 7, (2,), 9, (1, 2), (1,), 6,
    "S0",
)  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> GroupRecord:
    name = draw(st.text("abc-", min_size=1, max_size=8))
    ids = draw(st.lists(st.integers(1, 50), unique=True, max_size=5))
    members = {
        each: Member(
            draw(st.text(max_size=20)), draw(st.text(max_size=9)), "", draw(st.integers(0, 9))
        )
        for each in ids
    }
    some = st.lists(st.sampled_from(ids), unique=True).map(tuple) if ids else st.just(())
    epoch = draw(st.integers(0, 9))
    has_master = bool(epoch and ids)
    return GroupRecord(
        "c", name, members, max(ids, default=0) + 1, draw(st.sampled_from(ids)) if has_master else 0,
        draw(st.integers(0, 9)), epoch, draw(some), draw(st.integers(0, 99)),
        draw(some) if has_master else (), draw(some), draw(st.integers(0, epoch)), "S1",
    )  # fmt: skip


@given(st.lists(records(), unique_by=lambda record: record.name))
def test_records_come_back_as_they_were(found: list[GroupRecord]) -> None:
    assert decode(encode(found)) == sorted(found, key=lambda record: record.name)


class OldMember(msgspec.Struct):
    """What a release knew that did not keep the mode of each replica."""

    address: str = ""
    ha_address: str = ""
    check_code: str = ""
    incarnation: int = 0


def test_an_older_release_reads_a_member_and_a_newer_one_reads_its() -> None:
    member = RECORD.members[1]
    old = msgspec.json.decode(msgspec.json.encode(member), type=OldMember)
    assert (old.address, old.incarnation) == (member.address, member.incarnation)
    again = msgspec.json.decode(msgspec.json.encode(old), type=Member)
    assert again == msgspec.structs.replace(member, mode="")


@given(st.integers(0, 600), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(position: int, change: int) -> None:
    content = bytearray(encode([RECORD]))
    content[position % len(content)] ^= change
    try:
        found = decode(bytes(content))
    except ValueError:
        return
    assert found == [RECORD], "a blank in the first line, at most"


@pytest.mark.parametrize("kept", [0, 1, 20, 60, -1, -2])
def test_a_torn_file_stops_the_start_with_what_to_do(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "controller.json"
    path.write_bytes(encode([RECORD])[:kept])
    with pytest.raises(CorruptControllerFile, match=r"controller\.json cannot be read.*restore"):
        load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"sync_set": (2, 5)},
        {"master": 5},
        {"electing_from": (9,)},
        {"suspects": (9,)},
        {"epoch": -1},
        {"lossy_epoch": 8},
        {"next_id": 2},
        {"epoch": 0, "lossy_epoch": 0},
        {"members": {0: Member(), **RECORD.members}},
    ],
)
def test_a_record_that_contradicts_itself_is_not_taken(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a "):
        decode(encode([msgspec.structs.replace(RECORD, **changes)]))


async def test_a_file_that_is_not_there_is_a_new_controller(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new" / "place", ME)
    await store.open()
    assert await store.lead() == []
    await store.write({"a": RECORD, "b": msgspec.structs.replace(RECORD, name="b")})
    await store.write({"b": None})
    await store.close()
    again = FileStore(tmp_path / "new" / "place", ME)
    await again.open()
    assert await again.lead() == [RECORD]
    assert again.leading() and again.leader() == ME
    await again.close()
    assert not again.leading()


async def test_a_second_controller_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path, ME)
    await store.open()
    with pytest.raises(StoreLocked, match="in use by another controller"):
        await FileStore(tmp_path, ME).open()
    await store.close()
    third = FileStore(tmp_path, ME)
    await third.open()
    await third.close()


async def test_a_failed_write_changes_neither_file_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, ME)
    await store.open()
    await store.write({"a": RECORD})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreUnreachable, match="No space left"):
            await store.write({"a": None})
    assert load(tmp_path / "controller.json") == [RECORD]
    later = msgspec.structs.replace(RECORD, epoch=8)
    await store.write({"a": later})
    assert load(tmp_path / "controller.json") == [later]
    await store.close()


async def test_closing_waits_for_a_write_that_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would land on the records of whoever has the lock then."""
    store = FileStore(tmp_path, ME)
    await store.open()
    began, go_on = threading.Event(), threading.Event()
    save = tandemmq.cluster.controller.store.save

    def slow(path: Path, found: list[GroupRecord]) -> None:
        began.set()
        go_on.wait(10)
        save(path, found)

    monkeypatch.setattr(tandemmq.cluster.controller.store, "save", slow)
    writing = asyncio.create_task(store.write({"a": RECORD}))
    await asyncio.to_thread(began.wait, 10)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreLocked):
        await FileStore(tmp_path, ME).open()
    go_on.set()
    await closing
    assert load(tmp_path / "controller.json") == [RECORD]
