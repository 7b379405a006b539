"""What a power cut may leave of an index file, and that each message is found by its key all the same (INV-6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.storage import Draft, StorageConfig, encode_properties, open_store
from tandemmq.storage.clock import SystemClock
from tandemmq.storage.derivation import INDEX_HEADER_BYTES, SLOT_BYTES
from tandemmq.storage.keyindex import IndexFile, KeyIndex

SLOTS = 8
KEYS = 12


def config_of(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=8192, queue_segment_bytes=200, index_slots=SLOTS,
        index_entries=40,
    )  # fmt: skip


def slots_without_entries(path: Path, before: bytes) -> None:
    """The slots came to the disk, header and entries did not."""
    fresh = path.read_bytes()
    slots = slice(INDEX_HEADER_BYTES, INDEX_HEADER_BYTES + SLOTS * SLOT_BYTES)
    path.write_bytes(before[: slots.start] + fresh[slots] + before[slots.stop :])


def nothing(path: Path, before: bytes) -> None:
    """The name and the length of a new file came to the disk, its bytes did not."""
    path.write_bytes(bytes(len(before)))


@pytest.mark.parametrize(("left", "indexed"), [(slots_without_entries, 5), (nothing, 1)])
def test_each_message_is_found_by_its_key_after_a_power_cut(
    tmp_path: Path, left: Callable[[Path, bytes], None], indexed: int
) -> None:
    root, boot = tmp_path / "store", tmp_path / "boot"
    boot.write_text("one")
    with open_store(config_of(root), boot_id_path=boot) as store:
        before = b""
        for number in range(KEYS):
            if number == indexed:
                store.flush_log()
                store.flush_queues(0)
                store.flush_checkpoint(store.confirmed)
                before = next((root / "index").iterdir()).read_bytes()
            store.put(Draft("T", 0, b"body", encode_properties({"KEYS": f"key{number:02d}"})))
            while store.dispatch():
                pass
        store.close(clean=False)
    left(next((root / "index").iterdir()), before)
    boot.write_text("two")
    with open_store(config_of(root), boot_id_path=boot) as store:
        assert store.recovered.log_end == store.end
        for number in range(KEYS):
            found = store.query("T", f"key{number:02d}", 10, 0, 1 << 62)
            assert len(found.records) == 1, number
            for record in found.records:
                record.release()


def test_a_file_of_which_a_part_is_older_is_told_from_a_sound_one(tmp_path: Path) -> None:
    index = KeyIndex(config_of(tmp_path), SystemClock())
    for number in range(30):
        index.put(b"T", None, b"key%d" % number, number * 100, 1_000)
    (path,) = (tmp_path / "index").iterdir()
    sound = path.read_bytes()
    index.close()
    entries_at = INDEX_HEADER_BYTES + SLOTS * SLOT_BYTES
    parts = [
        *(slice(at, at + SLOT_BYTES) for at in range(INDEX_HEADER_BYTES, entries_at, SLOT_BYTES)),
        *(slice(at, at + 200) for at in range(entries_at + 20, entries_at + 600, 200)),
    ]
    assert not torn(path)
    for part in parts:
        broken = bytearray(sound)
        broken[part] = bytes(part.stop - part.start)
        path.write_bytes(broken)
        assert torn(path), part
    path.write_bytes(sound[:INDEX_HEADER_BYTES] + b"\x7f\xff\xff\xff" + sound[44:])
    assert torn(path), "a slot leads beyond the entries"


def torn(path: Path) -> bool:
    file = IndexFile.open(path, SLOTS)
    try:
        return file.torn
    finally:
        file.close()
