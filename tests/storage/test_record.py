"""Records, properties, hashes, identifiers and batches, in both implementations."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from tandemmq.storage.errors import (
    CorruptRecord,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
)
from tandemmq.storage.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Draft,
    SysFlag,
    encode_properties,
    index_hash,
    join_batch,
    join_properties,
    offset_message_id,
    offset_message_ids,
    pack_host,
    parse_offset_message_id,
    queue_tags_code,
    record_size,
    unpack_host,
)

# worked examples
EXAMPLE_V4 = bytes.fromhex(
    "000000a5 daa320a7 77d18982 00000000 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 0a00000100009c40 0000018bcfe56be8 c0a8010a00002a9f 00000000 0000000000000000"
    "00000005 48656c6c6f 09 546f70696354657374 003c 4b455953016b3102 54414753015461674102"
    "554e49515f4b455901" + b"0A000001000000000000000000000001".hex() + "02"
)
EXAMPLE_V6 = bytes.fromhex(
    "00000088 daa320a7 77065916 00000000 00000000 0000000000000001 00000000000000a5 00000030"
    "0000018bcfe56800 20010db800000000000000000000000100009c40"
    "0000018bcfe56c8d 20010db800000000000000000000000200002a9f"
    "00000000 0000000000000000 00000002 7636 09 546f70696354657374 000a 54414753015461674202"
)
EXAMPLE_BATCH = bytes.fromhex(
    "00000034 00000000 00000000 00000007 00000002 6131"
    "001c 4b455953016b3102 5741495401747275650254414753015461674102"
    "0000002d 00000000 00000000 00000000 00000003 623232"
    "0014 5741495401747275650254414753015461674202"
)
DRAFT_V4 = Draft(
    "TopicTest",
    0,
    b"Hello",
    encode_properties({"KEYS": "k1", "TAGS": "TagA", "UNIQ_KEY": "0A" + "000001".rjust(30, "0")}),
    born_ms=1_700_000_000_000,
    born_host=pack_host("10.0.0.1", 40000),
    store_host=pack_host("192.168.1.10", 10911),
)


def example_draft() -> Draft:
    properties = EXAMPLE_V4[105:]
    return Draft(
        "TopicTest", 0, b"Hello", properties, 0, 0, DRAFT_V4.born_ms,
        DRAFT_V4.born_host, DRAFT_V4.store_host,
    )  # fmt: skip


def test_worked_example_is_encoded_byte_for_byte(codec: Any) -> None:
    draft = example_draft()
    assert record_size(draft) == 165
    assert codec.encode(draft, 0, 0, 1_700_000_001_000) == EXAMPLE_V4


def test_ipv6_example_is_encoded_byte_for_byte_whatever_the_draft_flags_say(codec: Any) -> None:
    draft = Draft(
        "TopicTest",
        0,
        b"v6",
        encode_properties({"TAGS": "TagB"}),
        born_ms=1_700_000_000_000,
        born_host=pack_host("2001:db8::1", 40000),
        store_host=pack_host("2001:db8::2", 10911),
    )
    assert codec.encode(draft, 1, 165, 0x18BCFE56C8D) == EXAMPLE_V6
    draft.born_host = draft.store_host = bytes(8)
    draft.sys_flag = SysFlag.BORN_V6 | SysFlag.STORE_V6 | SysFlag.COMPRESSED
    assert codec.decode(codec.encode(draft, 1, 165, 0)).sys_flag == SysFlag.COMPRESSED


def test_decode_returns_every_field(codec: Any) -> None:
    record = codec.decode(EXAMPLE_V6)
    assert (record.size, record.version, record.body_crc) == (136, 1, 0x77065916)
    assert (record.queue_id, record.flag, record.queue_offset) == (0, 0, 1)
    assert (record.physical_offset, record.sys_flag) == (165, 0x30)
    assert (record.born_ms, record.store_ms) == (1_700_000_000_000, 0x18BCFE56C8D)
    assert unpack_host(record.born_host) == ("2001:db8::1", 40000)
    assert unpack_host(record.store_host) == ("2001:db8::2", 10911)
    assert (record.reconsume_times, record.prepared_offset) == (0, 0)
    assert (record.body, record.topic) == (b"v6", "TopicTest")
    assert record.property_map == {"TAGS": "TagB"}


def test_every_number_survives_at_its_limits(codec: Any) -> None:
    low, high = -(1 << 31), (1 << 31) - 1
    for number, long_number in ((low, -(1 << 63)), (high, (1 << 63) - 1)):
        draft = Draft("T", number, b"b", b"", number, 0, long_number, reconsume_times=number)
        draft.prepared_offset = long_number
        record = codec.decode(codec.encode(draft, long_number, long_number, long_number))
        assert (record.queue_id, record.flag, record.reconsume_times) == (number,) * 3
        assert (record.queue_offset, record.physical_offset) == (long_number,) * 2
        assert (record.born_ms, record.store_ms, record.prepared_offset) == (long_number,) * 3


@pytest.mark.parametrize("field", ["queue_id", "flag", "sys_flag", "reconsume_times"])
@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1])
def test_number_beyond_its_field_is_illegal(codec: Any, field: str, number: int) -> None:
    draft = example_draft()
    setattr(draft, field, number)
    with pytest.raises(MessageIllegal):
        codec.encode(draft, 0, 0, 0)


def test_long_beyond_its_field_is_illegal(codec: Any) -> None:
    with pytest.raises(MessageIllegal):
        codec.encode(example_draft(), 1 << 63, 0, 0)
    with pytest.raises(MessageIllegal):
        codec.encode(example_draft(), 0, 1 << 63, 0)
    with pytest.raises(MessageIllegal):
        codec.encode(example_draft(), 0, 0, 1 << 63)


@pytest.mark.parametrize(("topic_bytes", "version"), [(1, 1), (127, 1), (128, 2), (255, 2)])
def test_topics_longer_than_127_bytes_make_version_2(
    codec: Any, topic_bytes: int, version: int
) -> None:
    topic = "%RETRY%".ljust(topic_bytes, "g")[:topic_bytes]
    encoded = codec.encode(Draft(topic, 0, b"x"), 0, 0, 0)
    record = codec.decode(encoded)
    assert (record.version, record.topic) == (version, topic)
    assert len(encoded) == record_size(Draft(topic, 0, b"x")) == 74 + 16 + 1 + version + topic_bytes


def test_topic_of_127_characters_but_more_bytes_does_not_overflow_its_length(codec: Any) -> None:
    record = codec.decode(codec.encode(Draft("é" * 127, 0, b"x"), 0, 0, 0))
    assert (record.version, record.topic) == (2, "é" * 127)


def test_lone_surrogates_in_a_topic_become_question_marks(codec: Any) -> None:
    assert codec.decode(codec.encode(Draft("a\ud800b", 0, b"x"), 0, 0, 0)).topic == "a?b"


def test_limits_of_topic_properties_and_hosts_are_named(codec: Any) -> None:
    with pytest.raises(MessageIllegal, match="32768"):
        codec.encode(Draft("t" * 32_768, 0, b""), 0, 0, 0)
    codec.encode(Draft("t", 0, b"", b"p" * 32_767), 0, 0, 0)
    with pytest.raises(PropertiesTooLarge, match="32768"):
        codec.encode(Draft("t", 0, b"", b"p" * 32_768), 0, 0, 0)
    with pytest.raises(ValueError, match="8 or 20"):
        codec.encode(Draft("t", 0, b"", born_host=b"1234"), 0, 0, 0)


def test_bodies_of_every_length_have_zlibs_checksum(codec: Any) -> None:
    body = bytes(i * 37 & 0xFF for i in range(5000))
    for size in [*range(300), 1023, 1024, 1025, 4096, 4999]:
        encoded = codec.encode(Draft("T", 0, memoryview(body)[:size]), 0, 0, 0)
        stored = int.from_bytes(encoded[8:12], "big")
        assert stored == zlib.crc32(body[:size]) & 0x7FFFFFFF, size


def test_checksum_is_checked_unless_told_not_to(codec: Any) -> None:
    damaged = bytearray(EXAMPLE_V4)
    damaged[90] ^= 1
    with pytest.raises(CorruptRecord, match="checksum"):
        codec.decode(damaged)
    assert codec.decode(damaged, crc_checked=False).body == b"Hello"[:2] + b"m" + b"lo"


def test_empty_body_has_no_checksum_to_check(codec: Any) -> None:
    encoded = bytearray(codec.encode(Draft("T", 0, b""), 0, 0, 0))
    assert encoded[8:12] == bytes(4)
    encoded[11] = 1
    assert codec.decode(encoded).body == b""


def test_decode_reads_at_a_position_and_ignores_what_follows(codec: Any) -> None:
    view = memoryview(b"???" + EXAMPLE_V4 + b"rest")
    assert codec.decode(view, 3) == codec.decode(EXAMPLE_V4)


@pytest.mark.parametrize("position", [-1, 160, 165, 1000])
def test_decode_where_no_record_is_raises(codec: Any, position: int) -> None:
    with pytest.raises(CorruptRecord) as caught:
        codec.decode(EXAMPLE_V4, position)
    assert (caught.value.position, caught.value.size) == (position, 0)


def test_every_cut_of_a_record_is_refused(codec: Any) -> None:
    for size in range(len(EXAMPLE_V4)):
        with pytest.raises(CorruptRecord):
            codec.decode(EXAMPLE_V4[:size])
        assert list(codec.scan(EXAMPLE_V4[:size], 0, size)) == []


# --- scan ---


def segment_of(*records: bytes, size: int = 1024) -> bytes:
    return b"".join(records).ljust(size, b"\0")


def test_scan_yields_heads_in_order_and_stops_at_zeros(codec: Any) -> None:
    segment = segment_of(EXAMPLE_V4, EXAMPLE_V6)
    heads = list(codec.scan(segment, 0, len(segment)))
    assert [(head.position, head.size, head.blank) for head in heads] == [
        (0, 165, False),
        (165, 136, False),
    ]
    first, second = heads
    assert (first.topic, first.queue_id, first.queue_offset) == (b"TopicTest", 0, 0)
    assert (second.queue_offset, second.physical_offset, second.sys_flag) == (1, 165, 0x30)
    assert (first.store_ms, second.store_ms) == (1_700_000_001_000, 0x18BCFE56C8D)
    assert (first.tags_code, second.tags_code) == (2598919, 2598920)
    assert first.properties == EXAMPLE_V4[105:]


def test_scan_starts_and_ends_where_it_is_told(codec: Any) -> None:
    segment = segment_of(EXAMPLE_V4, EXAMPLE_V6)
    assert [head.position for head in codec.scan(segment, 165, 1024)] == [165]
    assert [head.position for head in codec.scan(segment, 0, 165)] == [0]
    assert [head.position for head in codec.scan(segment, 0, 164)] == []
    with pytest.raises(ValueError, match="scan of"):
        list(codec.scan(segment, 0, 1025))


def test_blank_ends_the_scan_and_reaches_to_the_end_of_the_view(codec: Any) -> None:
    blank = (52).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    segment = segment_of(EXAMPLE_V4, blank, EXAMPLE_V4)
    heads = list(codec.scan(segment, 0, len(segment)))
    assert [(head.position, head.size, head.blank) for head in heads] == [
        (0, 165, False),
        (165, 1024 - 165, True),
    ]


def test_blank_of_exactly_eight_bytes_is_seen(codec: Any) -> None:
    blank = (8).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    segment = segment_of(EXAMPLE_V4, blank, size=173)
    assert [head.blank for head in codec.scan(segment, 0, 173)] == [False, True]


@pytest.mark.parametrize("what", ["body length", "topic length", "properties length", "size"])
def test_whole_record_with_wrong_lengths_raises_with_its_place(codec: Any, what: str) -> None:
    record = bytearray(EXAMPLE_V4)
    at, value = {
        "body length": (87, 0x7F),
        "topic length": (93, 0xFF),  # a signed byte: -1
        "properties length": (104, 0x3B),
        "size": (3, 0x5A),
    }[what]
    record[at] = value
    heads = codec.scan(segment_of(EXAMPLE_V4, bytes(record)), 0, 1024)
    next(heads)
    with pytest.raises(CorruptRecord) as caught:
        next(heads)
    assert caught.value.position == 165
    assert caught.value.size == (90 if what == "size" else 165)


def test_scan_looks_at_bodies_only_when_asked_to(codec: Any) -> None:
    damaged = bytearray(EXAMPLE_V4)
    damaged[90] ^= 1
    assert len(list(codec.scan(damaged, 0, 165))) == 1
    with pytest.raises(CorruptRecord, match="checksum"):
        list(codec.scan(damaged, 0, 165, crc_checked=True))


def test_negative_body_and_properties_lengths_count_as_empty_as_in_rocketmq(codec: Any) -> None:
    record = bytearray(codec.encode(Draft("T", 0, b""), 0, 0, 0))
    record[84:88] = b"\xff" * 4
    record[-2:] = b"\xff\xff"
    decoded = codec.decode(record)
    assert (decoded.body, decoded.properties) == (b"", b"")


# --- properties ---


def test_properties_round_trip(codec: Any) -> None:
    properties = {"KEYS": "a b", "uni": "Ünïcode ✓ 属性 🌍", "eq": "1=2"}
    encoded = encode_properties(properties)
    assert encoded.endswith(b"\x02")
    assert codec.decode_properties(encoded) == properties
    assert codec.decode_properties(encoded[:-1]) == properties, "4.9.7 leaves the last 02 away"
    assert codec.decode_properties(memoryview(encoded)) == properties
    assert encode_properties({}) == b"" and codec.decode_properties(b"") == {}


def test_entries_without_name_or_value_do_not_exist(codec: Any) -> None:
    encoded = b"\x01v\x02a\x01\x02\x02\x02b\x02c\x011\x02\x01\x01\x02"
    assert codec.decode_properties(encoded) == {"c": "1"}
    assert codec.get_property(encoded, b"a") is None
    assert codec.get_property(encoded, b"b") is None
    assert codec.get_property(encoded, b"c") == b"1"


def test_first_separator_counts_and_last_duplicate_wins(codec: Any) -> None:
    encoded = b"a\x011\x01TAGS\x01x\x02TAGS\x01one\x02a\x012\x02TAGS\x01two\x02TAGS\x01\x02"
    assert codec.decode_properties(encoded) == {"a": "2", "TAGS": "two"}
    assert codec.get_property(encoded, b"TAGS") == b"two"
    assert codec.get_property(encoded[:11], b"TAGS") is None, "TAGS inside a value is no name"
    assert codec.get_property(b"xTAGS\x01v", b"TAGS") is None
    assert codec.get_property(b"TAGS\x01v", b"TAGS") == b"v"


# --- hashes and identifiers ---


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("TagA", 2598919), ("TagB", 2598920), ("payment", -786681338),
     ("polygenelubricants", -(1 << 31)), ("é", 0xE9), ("🌍", 31 * 0xD83C + 0xDF0D),
     ("TopicTest-0", 1247014820), ("\ud800", 0xD800)],
)  # fmt: skip
def test_java_hash_is_javas(codec: Any, text: str, hashed: int) -> None:
    assert codec.java_hash(text) == hashed


def test_tags_code_of_no_tag_is_zero(codec: Any) -> None:
    assert codec.tags_code(None) == codec.tags_code("") == 0
    assert codec.tags_code("payment") == -786681338


def test_index_hash_is_never_negative() -> None:
    assert index_hash("TopicTest#k1") == 2746024
    assert index_hash("TopicTest#0A000001000000000000000000000001") == 426785963
    assert index_hash("polygenelubricants") == 0


def test_delay_topic_entries_carry_the_delivery_time() -> None:
    levels = {1: 1000, 2: 5000, 3: 10_000, 18: 7_200_000}
    delay = b"SCHEDULE_TOPIC_XXXX"
    tagged = encode_properties({"TAGS": "TagA", "DELAY": "3"})
    assert queue_tags_code(delay, tagged, 1700000001532, levels) == 0x18BCFE5950C
    assert queue_tags_code(b"T", tagged, 1700000001532, levels) == 2598919
    for level, wait_ms in (("18", 7_200_000), ("25", 7_200_000), ("4", 1000)):
        properties = encode_properties({"DELAY": level})
        assert queue_tags_code(delay, properties, 5, levels) == 5 + wait_ms
    for level in ("0", "-1", "soon"):
        properties = encode_properties({"TAGS": "TagA", "DELAY": level})
        assert queue_tags_code(delay, properties, 5, levels) == 2598919
    assert queue_tags_code(delay, encode_properties({"DELAY": "2"}), 5, {}) == 1005
    assert queue_tags_code(delay, encode_properties({"TAGS": "TagA"}), 5, levels) == 2598919


def test_offset_message_id_names_host_and_offset() -> None:
    host = pack_host("192.168.1.10", 10911)
    assert offset_message_id(host, 348) == "C0A8010A00002A9F000000000000015C"
    assert parse_offset_message_id("C0A8010A00002A9F000000000000015C") == (host, 348)
    wide = pack_host("::1", 29911)
    assert len(offset_message_id(wide, 7)) == 56
    assert parse_offset_message_id(offset_message_id(wide, 7)) == (wide, 7)


@pytest.mark.parametrize(
    "text", ["", "C0A8", "G" * 32, "C0A8010A00002A9F0000 0000000015C ", "0" * 40]
)
def test_text_that_is_no_offset_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset_message_id(text)


def test_hosts_round_trip_and_mapped_ipv4_is_ipv4() -> None:
    assert unpack_host(pack_host("10.0.0.1", 40000)) == ("10.0.0.1", 40000)
    assert pack_host("::ffff:10.0.0.1", 1) == pack_host("10.0.0.1", 1)
    for wrong in (("nowhere", 1), ("10.0.0.1", 65536), ("10.0.0.1", -1)):
        with pytest.raises(ValueError, match=r"nowhere|port"):
            pack_host(*wrong)
    with pytest.raises(ValueError, match="8 or 20"):
        unpack_host(bytes(9))


# --- batches ---


def test_batch_example_is_split(codec: Any) -> None:
    first, second = codec.split_batch(EXAMPLE_BATCH)
    assert (first.flag, bytes(first.body), second.flag, bytes(second.body)) == (7, b"a1", 0, b"b22")
    assert codec.decode_properties(first.properties) == {
        "KEYS": "k1",
        "WAIT": "true",
        "TAGS": "TagA",
    }
    assert second.properties == b"WAIT\x01true\x02TAGS\x01TagB\x02"


def test_batch_cut_anywhere_but_between_messages_is_illegal(codec: Any) -> None:
    for end in range(len(EXAMPLE_BATCH)):
        if end == 0x34:
            assert len(codec.split_batch(EXAMPLE_BATCH[:end])) == 1
        else:
            with pytest.raises(MessageIllegal, match="batch"):
                codec.split_batch(EXAMPLE_BATCH[:end])


@pytest.mark.parametrize("at", [16, 22])
def test_negative_lengths_in_a_batch_are_illegal(codec: Any, at: int) -> None:
    body = bytearray(EXAMPLE_BATCH)
    body[at] = 0xFF
    with pytest.raises(MessageIllegal, match=r"of -\d+ bytes"):
        codec.split_batch(body)


def test_properties_are_joined_with_exactly_one_separator() -> None:
    assert join_properties(b"a\x011", b"b\x012\x02") == b"a\x011\x02b\x012\x02"
    assert join_properties(b"a\x011\x02", b"b\x012\x02") == b"a\x011\x02b\x012\x02"
    assert join_properties(b"", b"b\x012\x02") == b"b\x012\x02"
    assert join_properties(b"a\x011", b"") == b"a\x011"


def test_magics_are_the_published_ones() -> None:
    magics = [magic & 0xFFFFFFFF for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)]
    assert magics == [0xDAA320A7, 0xDAA320AB, 0xCBD43194]


def test_record_beyond_two_gigabytes_is_too_large() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(MessageTooLarge):
        record_size(Draft("T", 0, Huge(b"x")))


def test_batch_bodies_are_put_together_as_they_fall_apart(codec: Any) -> None:
    items = codec.split_batch(EXAMPLE_BATCH)
    assert codec.split_batch(join_batch(items)) == items


@pytest.mark.parametrize("host", ["10.9.9.1", "2001:db8::1"])
def test_ids_of_a_batch_are_those_of_its_records(host: str) -> None:
    packed = pack_host(host, 10911)
    for offsets in ([], [7], [0, 1 << 40, (1 << 63) - 1]):
        ids = [offset_message_id(packed, offset) for offset in offsets]
        assert offset_message_ids(packed, offsets) == ",".join(ids)
