"""Every record that RocketMQ wrote into the golden stores, decoded and written again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage.config import StorageConfig
from tandemmq.storage.record import (
    BatchItem,
    Draft,
    Record,
    index_hash,
    join_batch,
    offset_message_id,
    parse_offset_message_id,
    queue_tags_code,
    unpack_host,
)

Lines = Callable[..., list[dict[str, Any]]]

UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
LEVELS = StorageConfig(root="unused").delay_levels.split()
DELAY_MS = {n: int(text[:-1]) * UNIT_MS[text[-1]] for n, text in enumerate(LEVELS, 1)}


class Log:
    """The files of a golden store's commit log by start offset."""

    def __init__(self, root: Path) -> None:
        paths = sorted((root / "commitlog").iterdir())
        self.files = {int(path.name): _without_long_tail(path) for path in paths}
        self.segment_bytes = paths[0].stat().st_size

    def at(self, offset: int) -> tuple[bytes, int]:
        start = offset - offset % self.segment_bytes
        return self.files[start], offset - start


def _without_long_tail(path: Path) -> bytes:
    with path.open("rb") as file:  # sparse files of 1 GiB hold 40 KB
        return file.read(1 << 20)


@pytest.fixture
def log(golden_name: str, golden_store: Callable[[str], Path]) -> Log:
    return Log(golden_store(golden_name))


def host_text(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def draft_of(record: Record) -> Draft:
    return Draft(
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_offset,
    )


def test_every_golden_record_decodes_to_its_fields(
    codec: Any, golden_name: str, golden_lines: Lines, log: Log
) -> None:
    lines = golden_lines(golden_name, "record")
    assert lines
    for line in lines:
        record = codec.decode(*log.at(line["phy"]))
        assert f"V{record.version}" == line["magic"]
        assert {
            "phy": record.physical_offset,
            "size": record.size,
            "topic": record.topic,
            "qid": record.queue_id,
            "qoff": record.queue_offset,
            "flag": record.flag,
            "sys": record.sys_flag,
            "born": record.born_ms,
            "bornHost": host_text(record.born_host),
            "store": record.store_ms,
            "storeHost": host_text(record.store_host),
            "recons": record.reconsume_times,
            "prep": record.prepared_offset,
            "bodyLen": len(record.body),
            "crc": record.body_crc,
            "sha": hashlib.sha256(record.body).hexdigest(),
            "propsLen": len(record.properties),
            "props": record.property_map,
        }.items() <= line.items(), line["phy"]
        for name, value in line["props"].items():
            found = codec.get_property(record.properties, name.encode())
            assert found is not None and found.decode() == value


def test_every_golden_record_is_written_again_byte_for_byte(
    codec: Any, golden_name: str, golden_lines: Lines, log: Log
) -> None:
    for line in golden_lines(golden_name, "record"):
        data, position = log.at(line["phy"])
        record = codec.decode(data, position)
        written = codec.encode(
            draft_of(record), record.queue_offset, record.physical_offset, record.store_ms
        )
        assert written == data[position : position + record.size], line["phy"]


def test_scan_finds_exactly_the_golden_records_and_blanks(
    codec: Any, golden_name: str, golden_lines: Lines, log: Log
) -> None:
    found: list[int] = []
    blanks: list[int] = []
    for start, data in log.files.items():
        for head in codec.scan(data, 0, len(data), crc_checked=True):
            (blanks if head.blank else found).append(start + head.position)
            assert not head.blank or head.size == log.segment_bytes - head.position
    lines = golden_lines(golden_name, "record")
    assert found == [line["phy"] for line in lines]
    files = golden_lines(golden_name, "store")[0]["commitlog"]["files"]
    assert blanks == [file["blankAt"] for file in files if file.get("blankAt") is not None]


def test_golden_queue_entries_carry_our_tags_codes(
    codec: Any, golden_name: str, golden_lines: Lines, log: Log
) -> None:
    count = 0
    for line in golden_lines(golden_name, "queue"):
        for queue_offset, physical_offset, size, tags_code in line["entries"]:
            data, position = log.at(physical_offset)
            (head,) = codec.scan(data, position, position + size)
            assert (head.topic.decode(), head.queue_id) == (line["topic"], line["qid"])
            assert head.queue_offset == queue_offset
            code = queue_tags_code(head.topic, head.properties, head.store_ms, DELAY_MS)
            assert code == tags_code
            delayed = head.topic == b"SCHEDULE_TOPIC_XXXX"
            assert delayed or head.tags_code == tags_code
            count += 1
    assert count


def test_golden_index_keys_have_our_hashes(golden_name: str, golden_lines: Lines) -> None:
    lines = golden_lines(golden_name, "key")
    assert lines
    for line in lines:
        assert index_hash(line["key"]) == line["hash"]


def test_golden_message_ids_name_our_offsets(
    codec: Any, golden_name: str, golden_lines: Lines, log: Log
) -> None:
    ids = [
        line["offsetMsgId"]
        for line in golden_lines(golden_name, "client")
        if line.get("offsetMsgId")
    ]
    if not ids:
        assert golden_name.startswith(("533-ctl", "533-ha-slave")), "these have no client lines"
    for message_id in (one for joined in ids for one in joined.split(",")):
        host, offset = parse_offset_message_id(message_id)
        record = codec.decode(*log.at(offset))
        assert offset_message_id(record.store_host, record.physical_offset) == message_id
        assert host == record.store_host


@pytest.mark.parametrize(
    ("name", "envelope_start"), [("533-clean", b"MSG_REGION\x01"), ("497-clean", b"CLUSTER\x01")]
)
def test_golden_batch_records_are_written_again_from_batch_and_envelope(
    codec: Any,
    golden_store: Callable[[str], Path],
    golden_lines: Lines,
    name: str,
    envelope_start: bytes,
    memory_file: Callable[[int], Any],
) -> None:
    log = Log(golden_store(name))
    lines = [line for line in golden_lines(name, "record") if line["topic"] == "GoldBatch"]
    assert lines
    for line in lines:
        data, position = log.at(line["phy"])
        record = codec.decode(data, position)
        joint = record.properties.rindex(envelope_start)
        own, envelope = record.properties[:joint], draft_of(record)
        envelope.properties = record.properties[joint:]
        for as_sent in (own, own.removesuffix(b"\x02")):  # clients send both forms
            tail = codec.LogTail()
            file = memory_file(record.size + 8)
            tail.open(file.descriptor, record.physical_offset, 0, file.size)
            item = BatchItem(record.flag, memoryview(record.body), as_sent)
            envelope.body = join_batch([item])
            placed = tail.append_batch(envelope, record.queue_offset, record.store_ms)
            assert (placed, tail.position) == ([line["phy"]], line["size"])
            tail.close()
            assert file.contents()[:-8] == data[position : position + record.size]
