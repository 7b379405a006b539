"""REGISTER_BROKER's body: three dialects of "my topics and their generation", and its limits.

Compressed form, a zlib stream; lengths are int32 big-endian:

    length, text   DataVersion as JSON
    int32          number of topics, each: length, "name reads writes perm filter attributes"
    length, text   filter servers as JSON
    int32          number of static mappings (senders from 5.0 on), each: length, JSON

Source: RocketMQ's RegisterBrokerBody.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from tandemmq.cluster.nameserver.routes import DataVersion, RegistrationRefused, TopicLine
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import VERSION_V3_0_11

INFLATED_BYTES_MAX: Final = 64 << 20
TOPICS_MAX: Final = 300_000  # of one broker; a broker makes 100,000 by itself at most
_ZLIB_FIRST_BYTE: Final = 0x78
_INT32: Final = struct.Struct(">i")


class BodyUnreadable(RegistrationRefused):
    """The body is no registration in any dialect."""


@dataclass(frozen=True, slots=True)
class Topics:
    """What a body says."""

    version: DataVersion = field(default_factory=DataVersion)
    lines: dict[str, TopicLine] = field(default_factory=dict)
    has_static_topics: bool = False


class _Wrapper(msgspec.Struct, rename="camel"):
    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicLine] | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper | None = None


_Kind = TypeVar("_Kind", _Wrapper, _Body)


def check_crc(body: bytes | memoryview | None, crc: int) -> None:
    """Raise RegistrationRefused when the sender's CRC is not the body's; 0 means unchecked."""
    if crc and zlib.crc32(body or b"") & 0x7FFFFFFF != crc:
        raise RegistrationRefused("crc32 not match")


def read_topics(
    body: bytes | memoryview | None, *, sender_version: int, compressed: bool = False
) -> Topics:
    """The topics in a registration's body; none, at generation 0, without a body.

    compressed   what the request says; a zlib stream is recognized without it, because Java brokers
                 compress and say they did not
    Raises BodyUnreadable.
    """
    if not body:
        return Topics()
    if is_compressed(body, compressed):
        return _read_inflated(_inflate(body))
    if sender_version < VERSION_V3_0_11:
        return _from_wrapper(_decode(body, _Wrapper))
    return _from_wrapper(_decode(body, _Body).topic_config_serialize_wrapper)


def is_compressed(body: bytes | memoryview | None, said_so: bool) -> bool:
    """Whether a body is to be inflated: a few KiB may hold millions of topics."""
    return bool(body) and (said_so or body[0] == _ZLIB_FIRST_BYTE)  # type: ignore[index]


def _from_wrapper(wrapper: _Wrapper | None) -> Topics:
    if wrapper is None:
        return Topics()
    if len(wrapper.topic_config_table or {}) > TOPICS_MAX:
        raise BodyUnreadable(f"register body has more than {TOPICS_MAX} topics")
    return Topics(
        wrapper.data_version or DataVersion(),
        wrapper.topic_config_table or {},
        bool(wrapper.topic_queue_mapping_info_map),
    )


def _decode(body: bytes | memoryview, kind: type[_Kind]) -> _Kind:
    """Of a Java broker's static topics the keys are bare integers."""
    try:
        return bodies.read(kind, body)
    except bodies.BodyUnreadable as problem:
        raise BodyUnreadable(f"register body cannot be read: {problem}"[:200]) from None


def _inflate(body: bytes | memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as problem:
        raise BodyUnreadable(f"register body cannot be inflated: {problem}") from None
    if stream.unconsumed_tail:
        raise BodyUnreadable(f"register body inflates to more than {INFLATED_BYTES_MAX} bytes")
    if not stream.eof:
        raise BodyUnreadable("register body's zlib stream ends early")
    return inflated


def _read_inflated(data: bytes) -> Topics:
    try:
        version_text, position = _text_at(data, 0)
        version = bodies.read(DataVersion, version_text)
        (count,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 <= count <= min(len(data) // 4, TOPICS_MAX):
            raise BodyUnreadable(f"register body says {count} topics")
        lines: dict[str, TopicLine] = {}
        for _ in range(count):
            text, position = _text_at(data, position)
            # the last part, attributes as JSON, is not the name server's business
            name, reads, writes, perm = text.decode().split(" ", 5)[:4]
            lines[name] = msgspec.convert(
                {"readQueueNums": reads, "writeQueueNums": writes, "perm": perm},
                TopicLine,
                strict=False,
            )
        _, position = _text_at(data, position)  # filter servers: extinct
        has_static_topics = position + 4 <= len(data) and _INT32.unpack_from(data, position)[0] > 0
    except (struct.error, ValueError, RecursionError) as problem:
        raise BodyUnreadable(f"register body cannot be read: {problem}"[:200]) from None
    return Topics(version, lines, has_static_topics)


def _text_at(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT32.unpack_from(data, position)
    start = position + 4
    if not 0 <= size <= len(data) - start:
        raise BodyUnreadable(f"register body has a text of {size} bytes at {position}")
    return data[start : start + size], start + size
