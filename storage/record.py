"""One message as bytes: encode, decode, scan. The readable form; _record.pyx is the same, compiled.

A record (docs/formats.md "Record"), big-endian and signed; B and S are 8 bytes (IPv4) or 20 (IPv6),
n is 1 or 2:

    size int | magic int | body CRC int | queue id int | flag int | queue offset long | physical
    offset long sys flag int | born ms long | born host B | store ms long | store host S | reconsume
    times int prepared offset long | body length int, body | topic length n, topic | properties
    length short, properties

Cost per 1 KiB message: one struct pack, one CRC pass over the body, four slice copies, no copy of
the body but the last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeAlias

from tandemmq.storage.errors import (
    BatchMalformed,
    CorruptRecord,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
)

try:
    from isal.isal_zlib import crc32
except ImportError:  # same sums, five times slower
    from zlib import crc32

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)  # the same record with a two-byte topic length
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)  # "the rest of this file is unused"

BLANK_BYTES: Final = 8  # size and magic; this much stays free behind every record
PROPERTIES_BYTES_MAX: Final = 32_767
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 32_767
RECORD_BYTES_MIN: Final = 91  # V1, IPv4 twice, nothing in it
RECORD_BYTES_MAX: Final = (1 << 31) - 1
CRC_MASK: Final = 0x7FFFFFFF
DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
NO_HOST: Final = bytes(8)  # 0.0.0.0:0


class SysFlag:
    """Bits of a record's sys flag."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_MASK: Final = 0xC
    PREPARED: Final = 0x4
    COMMIT: Final = 0x8
    ROLLBACK: Final = 0xC
    BORN_V6: Final = 0x10
    STORE_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700


def takes_queue_offset(sys_flag: int) -> bool:
    """Whether a record counts in its queue: half messages and rolled-back ones do not, and carry queue offset 0."""
    return sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.COMMIT)


def has_queue_entry(sys_flag: int) -> bool:
    """Whether a record gets an entry in its consume queue: an inner batch counts in its queue and gets none."""
    return takes_queue_offset(sys_flag) and not sys_flag & SysFlag.INNER_BATCH


def has_index_entries(sys_flag: int) -> bool:
    """Whether a record can be found by its keys."""
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.ROLLBACK


_HOST_FLAGS: Final = SysFlag.BORN_V6 | SysFlag.STORE_V6
_SIZE_MAGIC: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
#: size, magic, crc (all three ignored), flag, body length
_BATCH_ITEM: Final = struct.Struct(">iiiii")


def _fixed(born_bytes: int, store_bytes: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born_bytes}sq{store_bytes}siqi")


#: everything in front of the body, by (sys flag & (BORN_V6 | STORE_V6)) >> 4
_FIXED: Final = (_fixed(8, 8), _fixed(20, 8), _fixed(8, 20), _fixed(20, 20))


@dataclass(slots=True)
class Draft:
    """A message before it has a place in the log.

    properties  the encoded string (encode_properties), copied as it is
    born_host, store_host  4 or 16 address bytes and 4 port bytes (pack_host); their lengths set
                           sys_flag's V6 bits
    again  it was stored before, for another place: maxMessageSize, which may be less by now, was kept to then
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = NO_HOST
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record. Offsets are the ones stored in it; where it really lies is the reader's
    knowledge."""

    size: int
    version: int  # 1 or 2
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def property_map(self) -> dict[str, str]:
        return decode_properties(self.properties)


class Head(NamedTuple):
    """What scan() tells of one record without touching its body. Of a blank only position and size
    mean something."""

    position: int  # in the scanned view
    size: int  # of a blank: bytes to the end of the view
    blank: bool
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_ms: int
    tags_code: int  # hash of TAGS; queue_tags_code() knows the delay topic's exception
    properties: bytes


class BatchItem(NamedTuple):
    """One message of a client's batch body."""

    flag: int
    body: memoryview
    properties: bytes


# --- sizes and writing ----------------------------------------------------------------------------


def topic_bytes(draft: Draft) -> bytes:
    topic = draft.topic.encode("utf-8", "replace")  # a lone surrogate becomes '?', as in Java
    if len(topic) > TOPIC_BYTES_MAX:
        raise MessageIllegal(f"topic is {len(topic)} bytes, at most {TOPIC_BYTES_MAX} fit a record")
    return topic


def checked_size(draft: Draft, topic_size: int, body_size: int, properties_size: int) -> int:
    if properties_size > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"properties are {properties_size} bytes, at most {PROPERTIES_BYTES_MAX} fit a record"
        )
    hosts = len(draft.born_host), len(draft.store_host)
    if hosts[0] not in (8, 20) or hosts[1] not in (8, 20):
        raise ValueError(f"hosts must be 8 or 20 bytes, got {hosts[0]} and {hosts[1]}")
    topic_field = topic_size + (1 if topic_size <= TOPIC_BYTES_MAX_V1 else 2)
    size = 74 + hosts[0] + hosts[1] + body_size + topic_field + properties_size
    if size > RECORD_BYTES_MAX:
        raise MessageTooLarge(
            f"record would be {size} bytes, at most {RECORD_BYTES_MAX} fit its size field"
        )
    return size


def write_record(
    view: memoryview | bytearray,
    position: int,
    size: int,
    topic: bytes,
    draft: Draft,
    flag: int,
    body: bytes | memoryview,
    properties: bytes,
    prepared_offset: int,
    queue_offset: int,
    physical_offset: int,
    store_ms: int,
) -> None:
    """Write one record of `size` bytes at view[position:]. Numbers that do not fit raise before a
    byte is written."""
    host_flags = SysFlag.BORN_V6 if len(draft.born_host) == 20 else 0
    if len(draft.store_host) == 20:
        host_flags |= SysFlag.STORE_V6
    wide_topic = len(topic) > TOPIC_BYTES_MAX_V1
    try:
        fixed = _FIXED[host_flags >> 4].pack(
            size,
            MAGIC_V2 if wide_topic else MAGIC_V1,
            crc32(body) & CRC_MASK,
            draft.queue_id,
            flag,
            queue_offset,
            physical_offset,
            (draft.sys_flag & ~_HOST_FLAGS) | host_flags,
            draft.born_ms,
            draft.born_host,
            store_ms,
            draft.store_host,
            draft.reconsume_times,
            prepared_offset,
            len(body),
        )
    except struct.error as error:
        raise MessageIllegal(f"a number of the message does not fit its field: {error}") from error
    at = position + len(fixed)
    view[position:at] = fixed
    end = at + len(body)
    view[at:end] = body
    tail = (_SHORT.pack(len(topic)) if wide_topic else bytes((len(topic),))) + topic
    at, end = end, end + len(tail)
    view[at:end] = tail
    _SHORT.pack_into(view, end, len(properties))
    view[end + 2 : position + size] = properties


def record_size(draft: Draft) -> int:
    """Bytes that draft will take in the log. Raises PropertiesTooLarge, MessageIllegal,
    MessageTooLarge."""
    return checked_size(draft, len(topic_bytes(draft)), len(draft.body), len(draft.properties))


def encode(draft: Draft, queue_offset: int, physical_offset: int, store_ms: int) -> bytes:
    """The record's bytes: V1, or V2 when the topic is longer than 127 bytes.

    Raises PropertiesTooLarge, MessageIllegal (a number out of its field's range), MessageTooLarge.
    """
    topic = topic_bytes(draft)
    size = checked_size(draft, len(topic), len(draft.body), len(draft.properties))
    record = bytearray(size)
    write_record(
        record, 0, size, topic, draft, draft.flag, draft.body, draft.properties,
        draft.prepared_offset, queue_offset, physical_offset, store_ms,
    )  # fmt: skip
    return bytes(record)


# --- reading --------------------------------------------------------------------------------------


#: size to body length, in the record's order
_Fixed: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int
]  # fmt: skip


class _Fields(NamedTuple):
    fixed: _Fixed
    body: tuple[int, int]  # [start, end) of each in the view
    topic: tuple[int, int]
    properties: tuple[int, int]


def _corrupt(position: int, size: int, why: str) -> CorruptRecord:
    return CorruptRecord(f"record at {position}, {size} bytes: {why}", position, size)


def _fields(view: Bytes, position: int, size: int, magic: int, crc_checked: bool) -> _Fields:
    """Take a whole record apart. Negative body and properties lengths count as empty, as in
    RocketMQ."""
    end = position + size
    if size < RECORD_BYTES_MIN:
        raise _corrupt(position, size, "shorter than any record")
    (sys_flag,) = _INT.unpack_from(view, position + 36)
    layout = _FIXED[(sys_flag & _HOST_FLAGS) >> 4]
    body_start = position + layout.size
    if body_start > end:
        raise _corrupt(position, size, "shorter than its hosts need")
    fixed = layout.unpack_from(view, position)
    body_end = body_start + max(0, fixed[14])
    length_bytes = 1 if magic == MAGIC_V1 else 2
    topic_start = body_end + length_bytes
    if topic_start > end:
        raise _corrupt(position, size, "body length beyond its end")
    topic_bytes = int.from_bytes(view[body_end:topic_start], "big", signed=True)
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end:
        raise _corrupt(position, size, "topic length beyond its end")
    properties_start = topic_end + 2
    properties_end = properties_start + max(0, _SHORT.unpack_from(view, topic_end)[0])
    if properties_end != end:
        raise _corrupt(position, size, "lengths do not add up")
    if crc_checked and body_end > body_start:
        with memoryview(view) as whole, whole[body_start:body_end] as body:
            if crc32(body) & CRC_MASK != fixed[2]:
                raise _corrupt(position, size, "body checksum is wrong")
    return _Fields(fixed, (body_start, body_end), (topic_start, topic_end), (properties_start, end))


def decode(view: Bytes, position: int = 0, *, crc_checked: bool = True) -> Record:
    """The record at view[position:]; bytes behind it are ignored. Raises CorruptRecord for anything
    else."""
    room = len(view) - position
    if position < 0 or room < BLANK_BYTES:
        raise CorruptRecord(f"no record at {position}: {max(0, room)} bytes left", position)
    size, magic = _SIZE_MAGIC.unpack_from(view, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"no record at {position}: magic {magic & 0xFFFFFFFF:#010x}", position)
    if size > room:
        raise CorruptRecord(f"record at {position}, {size} bytes: only {room} bytes left", position)
    fixed, body, topic, properties = _fields(view, position, size, magic, crc_checked)
    return Record(
        size,
        1 if magic == MAGIC_V1 else 2,
        *fixed[2:14],
        bytes(view[body[0] : body[1]]),
        str(view[topic[0] : topic[1]], "utf-8", "replace"),
        bytes(view[properties[0] : properties[1]]),
    )


def scan(view: Bytes, start: int, end: int, *, crc_checked: bool = False) -> Iterator[Head]:
    """Yield the head of each whole record in view[start:end], in order; a blank ends the walk.

    view    one segment's bytes up to the segment's end, so that a blank's size is right
    start   position of a record boundary in the view; end is exclusive
    Stops without error at the first byte that is not a record: after a crash the tail is garbage by
    design. Raises CorruptRecord (with position and size) when a record is whole but wrong: lengths
    that do not add up, or, with crc_checked, a wrong checksum. What that means is the caller's
    decision. Heads own their bytes. Source: docs/formats.md "Record".
    """
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"scan of [{start}, {end}) in {len(view)} bytes")
    position = start
    while end - position >= BLANK_BYTES:
        size, magic = _SIZE_MAGIC.unpack_from(view, position)
        if magic == MAGIC_BLANK:
            yield Head(position, len(view) - position, True, b"", 0, 0, 0, 0, 0, 0, b"")
            return
        if magic not in (MAGIC_V1, MAGIC_V2) or size > end - position:
            return
        fixed, _, topic, properties_range = _fields(view, position, size, magic, crc_checked)
        properties = bytes(view[properties_range[0] : properties_range[1]])
        yield Head(
            position,
            size,
            False,
            bytes(view[topic[0] : topic[1]]),
            fixed[3],
            fixed[5],
            fixed[6],
            fixed[7],
            fixed[10],
            _hash_of_tags(get_property(properties, b"TAGS")),
            properties,
        )
        position += size


# --- properties -----------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """name 0x01 value 0x02 for each entry, in the mapping's order, with the final 0x02 as RocketMQ
    5 writes it."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    return text.encode("utf-8", "replace")


def decode_properties(properties: Bytes) -> dict[str, str]:
    """The entries; later duplicates win. Entries without a name or without a value are ignored, as
    in RocketMQ."""
    found = {}
    for entry in str(properties, "utf-8", "replace").split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            found[name] = value
    return found


def get_property(properties: bytes, name: bytes) -> bytes | None:
    """One value out of the encoded string, without building the map. The last duplicate wins; name
    is not empty."""
    key = name + b"\x01"
    search_end = len(properties)
    while (at := properties.rfind(key, 0, search_end)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            value_start = at + len(key)
            value_end = properties.find(b"\x02", value_start)
            if value_end < 0:
                value_end = len(properties)
            if value_end > value_start:
                return properties[value_start:value_end]
        search_end = at
    return None


# --- hashes and identifiers -----------------------------------------------------------------------


def java_hash(text: str) -> int:
    """Java's String.hashCode: signed 32 bits over UTF-16 units."""
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result


def tags_code(tags: str | None) -> int:
    """What a queue entry says of a tag: its Java hash, 0 for none."""
    return java_hash(tags) if tags else 0


@lru_cache(maxsize=4096)  # tags repeat; hashing one costs 1 us, finding it here 0.06
def _hash_of_tags(tags: bytes | None) -> int:
    return java_hash(tags.decode("utf-8", "replace")) if tags else 0


def queue_tags_code(
    topic: bytes, properties: bytes, store_ms: int, delay_ms_by_level: Mapping[int, int]
) -> int:
    """The tags code of a record's queue entry: the tag's hash, or the delivery time in the delay
    topic.

    Levels above the table's highest count as the highest; a level missing from the table delivers
    after 1 s.
    """
    if topic == DELAY_TOPIC and (text := get_property(properties, b"DELAY")) is not None:
        try:
            level = int(text)
        except ValueError:
            level = 0  # never written by a broker; the tag is the best we know
        if level > 0:
            level = min(level, max(delay_ms_by_level, default=level))
            return store_ms + delay_ms_by_level.get(level, 1000)
    return _hash_of_tags(get_property(properties, b"TAGS"))


def index_hash(key: str) -> int:
    """The key index's hash of "topic#key": not negative, 31 bits."""
    value = abs(java_hash(key))
    return value if value <= CRC_MASK else 0  # |-2**31| is negative in Java; there 0 is used


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id that names a record's place: 32 hex digits (IPv4) or 56 (IPv6)."""
    return (store_host + _LONG.pack(physical_offset)).hex().upper()


def offset_message_ids(store_host: bytes, offsets: Sequence[int]) -> str:
    """The ids of several records, comma between them: a batch's answer."""
    host = store_host.hex().upper()
    places = struct.pack(f">{len(offsets)}q", *offsets).hex(",", 8).upper()
    return host + places.replace(",", "," + host) if offsets else ""


def parse_offset_message_id(message_id: str) -> tuple[bytes, int]:
    """(store host, physical offset) of an offset message id. Raises ValueError."""
    raw = bytes.fromhex(message_id)
    if len(message_id) not in (32, 56) or len(raw) * 2 != len(message_id):
        raise ValueError(f"not an offset message id: {message_id[:64]!r}")
    return raw[:-8], _LONG.unpack_from(raw, len(raw) - 8)[0]


def pack_host(ip: str, port: int) -> bytes:
    """Address bytes and port as records hold them: 8 bytes, or 20 for IPv6. Raises ValueError."""
    address = ip_address(ip)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # a dual-stack socket's peer; Java stores 4 bytes too
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"port must be 0 to 65535, got {port}")
    return address.packed + _INT.pack(port)


def unpack_host(host: bytes) -> tuple[str, int]:
    """(address, port) of a packed host. Raises ValueError."""
    if len(host) not in (8, 20):
        raise ValueError(f"a host is 8 or 20 bytes, got {len(host)}")
    return str(ip_address(bytes(host[:-4]))), _INT.unpack_from(host, len(host) - 4)[0]


# --- batches --------------------------------------------------------------------------------------


def split_batch(body: Bytes) -> list[BatchItem]:
    """The messages of a client's batch body; their bodies are views into it. Raises BatchMalformed.

    Each: size int, magic int, crc int (RocketMQ ignores these three), flag int, body length int,
    body, properties length short, properties. Source: docs/formats.md "Batch body".
    """
    view = memoryview(body)
    end = len(view)
    items = []
    at = 0
    while at < end:
        if end - at < _BATCH_ITEM.size:
            raise BatchMalformed(f"batch element at {at}: {end - at} bytes left for its head")
        _, _, _, flag, body_bytes = _BATCH_ITEM.unpack_from(view, at)
        body_start = at + _BATCH_ITEM.size
        body_end = body_start + body_bytes
        if body_bytes < 0 or body_end + 2 > end:
            raise BatchMalformed(
                f"batch element at {at}: body of {body_bytes} bytes, {end - body_start} left"
            )
        (properties_bytes,) = _SHORT.unpack_from(view, body_end)
        at_next = body_end + 2 + properties_bytes
        if properties_bytes < 0 or at_next > end:
            raise BatchMalformed(
                f"batch element at {at}: properties of {properties_bytes} bytes, "
                f"{end - body_end - 2} left"
            )
        items.append(
            BatchItem(flag, view[body_start:body_end], bytes(view[body_end + 2 : at_next]))
        )
        at = at_next
    if not items:
        raise BatchMalformed("batch holds no message")
    return items


def join_batch(items: Iterable[BatchItem]) -> bytes:
    """The batch body of these messages: what split_batch() takes apart."""
    parts: list[Bytes] = []
    for item in items:
        size = _BATCH_ITEM.size + len(item.body) + _SHORT.size + len(item.properties)
        parts += [_BATCH_ITEM.pack(size, 0, 0, item.flag, len(item.body)), item.body]
        parts += [_SHORT.pack(len(item.properties)), item.properties]
    return b"".join(parts)


def batch_bytes(envelope: Draft) -> int:
    """Bytes of the log that the messages of an envelope's body take. Raises what split_batch() and encode() raise."""
    topic = topic_bytes(envelope)
    return sum(
        checked_size(
            envelope, len(topic), len(item.body), len(join_properties(item.properties, envelope.properties))
        )
        for item in split_batch(envelope.body)
    )  # fmt: skip


def join_properties(own: bytes, envelope: bytes) -> bytes:
    """A batch element's stored properties: its own, then the envelope's, with exactly one 0x02 at
    the joint."""
    if own and envelope and own[-1] != 2:
        return own + b"\x02" + envelope
    return own + envelope
