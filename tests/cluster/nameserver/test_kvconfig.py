"""The KV table: what is acknowledged is on the disk, what failed has not happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tandemmq.cluster.nameserver import kvconfig
from tandemmq.cluster.nameserver.kvconfig import KvConfig, TableFull
from tandemmq.storage import CorruptFile


async def test_entries_survive_a_restart_in_rocketmqs_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KvConfig.load(path)
    await table.put("ORDER_TOPIC_CONFIG", "TopicOrder", "broker-a:4;broker-b:4")
    await table.put("ORDER_TOPIC_CONFIG", "Ümlaut", "x\ny")
    await table.put("other", "k", "")
    assert json.loads(path.read_bytes()) == {
        "configTable": {
            "ORDER_TOPIC_CONFIG": {"TopicOrder": "broker-a:4;broker-b:4", "Ümlaut": "x\ny"},
            "other": {"k": ""},
        }
    }
    again = KvConfig.load(path)
    assert again.get("ORDER_TOPIC_CONFIG", "TopicOrder") == "broker-a:4;broker-b:4"
    assert again.namespace("other") == {"k": ""}


async def test_what_is_missing_is_none_and_deleting_it_is_fine(tmp_path: Path) -> None:
    table = KvConfig.load(tmp_path / "kv.json")
    assert table.get("n", "k") is None
    assert table.namespace("n") is None
    await table.delete("n", "k")
    assert not (tmp_path / "kv.json").exists()
    await table.put("n", "k", "v")
    await table.delete("n", "k")
    assert table.get("n", "k") is None
    assert KvConfig.load(tmp_path / "kv.json").get("n", "k") is None


async def test_a_change_that_cannot_be_saved_has_not_happened(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    table = KvConfig(blocker / "kv.json", {"n": {"k": "old"}})
    with pytest.raises(OSError):
        await table.put("n", "k", "new")
    with pytest.raises(OSError):
        await table.delete("n", "k")
    assert table.get("n", "k") == "old"


async def test_changes_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    table = KvConfig.load(tmp_path / "kv.json")
    await asyncio.gather(*(table.put("n", str(number), "v") for number in range(20)))
    assert len(KvConfig.load(tmp_path / "kv.json").namespace("n") or {}) == 20


async def test_the_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvconfig, "ENTRIES_MAX", 2)
    table = KvConfig.load(tmp_path / "kv.json")
    await table.put("a", "1", "v")
    await table.put("b", "1", "v")
    with pytest.raises(TableFull):
        await table.put("a", "2", "v")
    await table.put("a", "1", "changed")
    with pytest.raises(TableFull):
        await table.put("a", "1", "x" * (kvconfig.VALUE_LENGTH_MAX + 1))
    assert table.get("a", "1") == "changed"


@pytest.mark.parametrize("content", [b"{", b'{"configTable":7}', b'{"configTable":{"n":{"k":1}}}'])
def test_a_damaged_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(content)
    with pytest.raises(CorruptFile):
        KvConfig.load(path)


async def test_the_table_as_a_whole_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvconfig, "TABLE_LENGTH_MAX", 100)
    table = KvConfig.load(tmp_path / "kv.json")
    await table.put("n", "a", "x" * 60)
    with pytest.raises(TableFull):
        await table.put("n", "b", "x" * 60)
    await table.put("n", "a", "y" * 90)
    assert table.namespace("n") == {"a": "y" * 90}
