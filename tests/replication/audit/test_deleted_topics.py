"""An audit of stores with a deleted topic: its messages in the log want no queue entries (INV-43)."""

from __future__ import annotations

from pathlib import Path

import pytest
import storekit

from tandemmq.storage import Draft, StorageConfig, jsonfile, open_store


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_deleted_topics_messages_are_no_divergence(
    tmp_path: Path, again: bool, known: bool
) -> None:
    root = tmp_path / "master"
    with open_store(StorageConfig(root=str(root), segment_bytes=65_536, index_slots=500)) as store:
        for number in range(50):
            store.put(Draft("T", number % 2, b"%d" % number, b""))
            store.put(Draft("Other", 0, b"%d" % number, b""))
        while store.dispatch():
            pass
        store.delete_topic("T")
        if again:
            store.put(Draft("T", 0, b"again", b""))
        if known:
            jsonfile.save(store.tombstones.path, store.tombstones.to_json())
    storekit.copy(root, tmp_path / "slave")
    outcome = storekit.run(root, tmp_path / "slave")
    found = [each.check for each in outcome.findings if each.check.startswith("cq_")]
    assert bool(found) == (not known)
