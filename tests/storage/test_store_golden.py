"""Stores that released brokers wrote: opened, served, and rebuilt from their logs alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    Draft,
    GetStatus,
    MessageStore,
    StorageConfig,
    decode,
    inspect_store,
    jsonfile,
    open_store,
    tags_code,
)
from tandemmq.storage.record import index_hash

Lines = Callable[..., list[dict[str, Any]]]
ConfigOf = Callable[[str], StorageConfig]
FOREVER_MS = 1 << 62
GOLDEN_NAMES = sorted(
    path.stem for path in (Path(__file__).parent.parent / "golden" / "stores").glob("*.jsonl")
)


def content(path: Path) -> dict[int, bytes]:
    """What is not zero, by MiB; holes of the 1 GiB files are not read."""
    found = {}
    with open(path, "rb") as file:
        at = 0
        while True:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) >> 20 << 20
            except OSError:
                return found
            data = os.pread(file.fileno(), 1 << 20, at)
            if data.count(0) != len(data):
                found[at] = data
            at += 1 << 20


def files_of(root: Path, *parts: str) -> dict[str, dict[int, bytes]]:
    return {
        str(path.relative_to(root)): content(path)
        for part in parts
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }


def assert_queues_match(store: MessageStore, queues: list[dict[str, Any]]) -> None:
    for line in queues:
        queue = store.queues.get(line["topic"], line["qid"])
        assert queue is not None, line["topic"]
        held = [
            [offset, *(queue.entry(offset) or ())]
            for offset in range(queue.min_offset, queue.max_offset)
        ]
        assert held == line["entries"], line["topic"]
        assert (queue.min_offset, queue.max_offset) == (line["min"], line["max"])
    assert {(queue.topic, queue.queue_id) for queue in store.queues} == {
        (line["topic"], line["qid"]) for line in queues
    }


def assert_keys_found(store: MessageStore, keys: list[dict[str, Any]]) -> None:
    assert store.index is not None
    hashes: dict[int, set[int]] = {}
    for line in keys:
        hashes.setdefault(line["hash"], set()).update(line["phy"])
    for line in keys:
        topic, _, key = line["key"].partition("#")
        assert index_hash(line["key"]) == line["hash"]
        found, _, _ = store.index.query(topic, key, 1 << 30, 0, FOREVER_MS)
        assert set(found) == hashes[line["hash"]], line["key"]


def assert_every_record_served(store: MessageStore, queues: list[dict[str, Any]]) -> None:
    for line in queues:
        offset, sizes = line["min"], []
        while offset < line["max"]:
            result = store.get(line["topic"], line["qid"], offset, 32)
            assert result.status is GetStatus.FOUND
            for record in result.records:
                decoded = decode(record)
                assert (decoded.topic, decoded.queue_id) == (line["topic"], line["qid"])
                sizes.append([decoded.queue_offset, decoded.physical_offset, decoded.size])
                record.release()
            offset = result.next_offset
        assert sizes == [entry[:3] for entry in line["entries"]]


def complete_queues(lines: Lines, name: str) -> list[dict[str, Any]]:
    """The recorded queues, with what the log says is missing in them."""
    queues = {
        (line["topic"], line["qid"]): {**line, "entries": list(line["entries"])}
        for line in lines(name, "queue")
    }
    missing = set(lines(name, "store")[0]["undispatched"])
    for record in lines(name, "record"):
        if record["phy"] in missing:
            key = (record["topic"], record["qid"])
            new = {"topic": key[0], "qid": key[1], "min": record["qoff"], "entries": []}
            line = queues.setdefault(key, new)
            tag = record["props"].get("TAGS")
            entry = [record["qoff"], record["phy"], record["size"], tags_code(tag)]
            line["entries"].append(entry)
            line["max"] = record["qoff"] + 1
    return list(queues.values())


def test_recorded_store_opens_and_serves_every_message(
    golden_name: str, golden_config: ConfigOf, golden_lines: Lines
) -> None:
    queues = complete_queues(golden_lines, golden_name)
    with open_store(golden_config(golden_name)) as store:
        described = golden_lines(golden_name, "store")[0]
        assert store.end == described["commitlog"]["end"]
        assert store.recovered.clean == (described["small"]["abort"] is None)
        assert_queues_match(store, queues)
        assert_keys_found(store, golden_lines(golden_name, "key"))
        assert_every_record_served(store, queues)
        for line in queues:
            assert store.next_offset(line["topic"], line["qid"]) == line["max"]


def test_client_results_are_found_where_the_client_was_told(
    golden_name: str, golden_config: ConfigOf, golden_lines: Lines
) -> None:
    sent = [
        line
        for line in golden_lines(golden_name, "client")
        if line.get("op") == "send" and line.get("status") == "SEND_OK"
    ]
    with open_store(golden_config(golden_name)) as store:
        for line in sent:
            physical = int(line["offsetMsgId"][-16:], 16)
            record = store.record_at(physical)
            assert record is not None
            assert decode(record).queue_offset == line["queueOffset"]
            record.release()


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if "kill9" not in name])
def test_opening_a_cleanly_closed_store_changes_no_queue_and_no_index(
    name: str, golden_config: ConfigOf
) -> None:
    config = golden_config(name)
    root = Path(config.root)
    before = files_of(root, "consumequeue", "index", "commitlog", "config")
    for _ in range(2):  # first without our queue state, then with it
        with open_store(config) as store:
            assert store.recovered.rebuilt == []
            assert store.recovered.dropped_bytes == 0
        assert files_of(root, "consumequeue", "index", "commitlog", "config") == before
    assert not (root / "abort").exists()


def test_queues_and_index_rebuilt_from_the_log_alone_are_identical(
    golden_name: str, golden_config: ConfigOf, golden_lines: Lines
) -> None:
    # INV-6
    config = golden_config(golden_name)
    root = Path(config.root)
    clean = not (root / "abort").exists()
    before = files_of(root, "consumequeue")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with open_store(config) as store:
        assert_queues_match(store, complete_queues(golden_lines, golden_name))
        assert_keys_found(store, golden_lines(golden_name, "key"))
        headers = [header for _, header in store.index.headers] if store.index else []
    if clean:
        assert files_of(root, "consumequeue") == before
        recorded = golden_lines(golden_name, "index")
        assert [(header.begin_physical, header.end_physical) for header in headers] == [
            (line["beginPhy"], line["endPhy"]) for line in recorded
        ]


def test_killed_store_recovers_to_what_the_released_broker_made_of_it(
    golden_config: ConfigOf, golden_lines: Lines
) -> None:
    for name in ("533-kill9", "497-kill9"):
        after = golden_lines(name, "afterRecovery")[0]
        added = {(line["topic"], line["qid"]): 1 for line in after["recordsAddedAfterwards"]}
        with open_store(golden_config(name)) as store:
            assert {
                (topic, queue_id): (store.min_offset(topic, queue_id), maximum)
                for topic, queue_id, _, maximum in after["queuesMinMax"]
            } == {
                (topic, queue_id): (
                    minimum,
                    store.max_offset(topic, queue_id) + added.get((topic, queue_id), 0),
                )
                for topic, queue_id, minimum, _ in after["queuesMinMax"]
            }
            assert store.end == after["commitLogEnd"] - sum(
                record["size"] for record in after["recordsAddedAfterwards"]
            )


def test_recorded_config_files_are_read(
    golden_name: str, golden_config: ConfigOf, golden_lines: Lines
) -> None:
    root = Path(golden_config(golden_name).root)
    read = 0
    for line in golden_lines(golden_name, "config"):
        if line["file"].endswith(".json"):
            assert jsonfile.load(root / "config" / line["file"]) == line["value"]
            read += 1
    assert read > 3


def test_recorded_store_goes_on_where_it_stopped(golden_name: str, golden_config: ConfigOf) -> None:
    config = golden_config(golden_name)
    with open_store(config) as store:
        queue = max(store.queues, key=lambda queue: queue.max_offset)
        topic, queue_id, before = queue.topic, queue.queue_id, queue.max_offset
        placed = store.put(Draft(topic, queue_id, b"one more"))
        assert placed.queue_offset == before
        store.dispatch()
        result = store.get(topic, queue_id, before, 1)
        assert decode(result.records[-1]).body == b"one more"
    assert inspect_store(config.root, config).problems == []


def test_recorded_store_is_sound_for_inspection(
    golden_name: str, golden_config: ConfigOf, golden_lines: Lines
) -> None:
    config = golden_config(golden_name)
    root = Path(config.root)
    before = files_of(root, ".")
    report = inspect_store(root, config)
    assert report.problems == []
    assert report.records == len(golden_lines(golden_name, "record"))
    assert report.log_end == golden_lines(golden_name, "store")[0]["commitlog"]["end"]
    assert files_of(root, ".") == before
