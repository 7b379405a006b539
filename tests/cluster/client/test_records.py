"""Records of a pull answer become messages; damage is never delivered."""

from __future__ import annotations

import zlib

import pytest

from tandemmq.cluster.client.compression import COMPRESSED
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.records import read_records
from tandemmq.storage import Draft, encode, encode_properties, offset_message_id, pack_host

BORN, STORED = pack_host("192.168.1.5", 54321), pack_host("192.168.1.10", 10911)


def record(
    body: bytes = b"hello", topic: str = "T", queue_offset: int = 5, **properties: str
) -> bytes:
    draft = Draft(topic, 3, body, encode_properties(properties), 7, 0, 111, BORN, STORED)
    return encode(draft, queue_offset, 1_000, 222)


def test_every_field_of_a_record_arrives() -> None:
    (message,) = read_records(record(UNIQ_KEY="U", TAGS="A", KEYS="k1 k2", own="1"), "b", 99)
    assert message.queue == MessageQueue("T", "b", 3)
    assert (message.queue_offset, message.physical_offset, message.max_offset) == (5, 1_000, 99)
    assert (message.body, message.flag) == (b"hello", 7)
    assert (message.message_id, message.tags, message.keys) == ("U", "A", ("k1", "k2"))
    assert message.offset_message_id == offset_message_id(STORED, 1_000)
    assert (message.born_host, message.store_host) == ("192.168.1.5:54321", "192.168.1.10:10911")
    assert (message.born_ms, message.store_ms) == (111, 222)
    assert message.properties["own"] == "1"


def test_several_records_come_in_order() -> None:
    body = b"".join(record(b"%d" % place, queue_offset=place) for place in range(10))
    assert [m.body for m in read_records(body, "b", 10)] == [b"%d" % place for place in range(10)]
    assert read_records(b"", "b", 0) == []


def test_message_without_a_unique_id_goes_by_its_place() -> None:
    (message,) = read_records(record(), "b", 0)
    assert message.message_id == message.offset_message_id


def test_ipv6_hosts_are_shown_in_brackets() -> None:
    host = pack_host("fe80::1", 10911)
    draft = Draft("T", 0, b"x", b"", 0, 0, 1, host, host)
    (message,) = read_records(encode(draft, 0, 0, 1), "b", 0)
    assert message.store_host == "[fe80::1]:10911"


@pytest.mark.parametrize("cut", [1, 50, -1])
def test_cut_record_fails_the_whole_answer(cut: int) -> None:
    whole = record()
    with pytest.raises(BrokerAnswerBroken, match="broker b"):
        read_records(whole + whole[:cut], "b", 0)


def test_body_with_a_wrong_checksum_is_not_delivered() -> None:
    damaged = record().replace(b"hello", b"hellO")
    with pytest.raises(BrokerAnswerBroken):
        read_records(damaged, "b", 0)


def test_body_that_does_not_decompress_is_delivered_as_stored() -> None:
    draft = Draft("T", 0, b"not zlib", b"", 0, COMPRESSED, 1, BORN, STORED)
    (message,) = read_records(encode(draft, 0, 0, 1), "b", 0)
    assert message.body == b"not zlib"
    assert message.sys_flag & COMPRESSED


def test_compressed_body_arrives_as_its_producer_gave_it() -> None:
    draft = Draft("T", 0, zlib.compress(b"x" * 5_000), b"", 0, COMPRESSED, 1, BORN, STORED)
    (message,) = read_records(encode(draft, 0, 0, 1), "b", 0)
    assert message.body == b"x" * 5_000
