"""One request or response: header fields, ext fields and body, to and from the bytes of one frame.

Two header forms, told apart by the frame's type byte: a JSON object, and a binary one:

    offset  size  field
    0       2     code, int16
    2       1     language
    3       2     version, int16
    5       4     opaque, int32
    9       4     flag, int32: bit 0 response, bit 1 oneway
    13      4     R, then R bytes of remark; 0 = none
    17+R    4     E, then E bytes of ext fields: int16 size, key, int32 size, value; repeated

Reading is as tolerant as the original: numbers and booleans as ext values, code and opaque as
numeric text, language as name, number or nonsense, unknown and missing members.
Source: docs/formats.md "Frame"; RocketMQ's RemotingCommand, RocketMQSerializable.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from tandemmq.cluster.remoting.codes import (
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    UNWRAPPED_BINARY_CODES,
    VERSION,
    LanguageCode,
)
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import DEFAULT_LIMITS, Buffer, FrameLimits

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1
_NESTING_MAX: Final = 32  # a header is two levels deep; more is an attack on the parser's stack

# fastjson skips a comma that separates nothing ({"code":105,,}); strings are matched to be kept, an
# unterminated one up to the end. Possessive (++, *+): nothing is tried twice, so this is linear.
_IDLE_COMMA: Final = re.compile(r'("(?:[^"\\]++|\\.)*+"?)|,(?=\s*[,}\]])', re.DOTALL)

_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]


class _JsonHead(msgspec.Struct, gc=False):
    """The members of a JSON header as nearly every client writes them."""

    code: _Int32 = 0
    language: str = "JAVA"
    version: _Int32 = 0
    opaque: _Int32 = 0
    flag: _Int32 = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None


_decode_head: Final = msgspec.json.Decoder(_JsonHead, strict=False).decode
_decode_any: Final = msgspec.json.Decoder().decode
_encode_json: Final = msgspec.json.Encoder().encode

_PREFIX: Final = struct.Struct(">II")
_BINARY_HEAD: Final = struct.Struct(">hBhiii")  # up to and including the remark's size
_SIZE16: Final = struct.Struct(">H")
_SIZE32: Final = struct.Struct(">i")

_LANGUAGE_BYTES: Final = {code: name.encode() for code, name in LANGUAGE_NAMES.items()}
_OTHER: Final = int(LanguageCode.OTHER)
_PYTHON: Final = int(LanguageCode.PYTHON)
_JAVA: Final = int(
    LanguageCode.JAVA
)  # what responses call themselves: every client was tested with it


@dataclass(slots=True)
class Command:
    """A request, or the response to one.

    opaque   signed 32 bits, chosen by the requester and mirrored by the response
    flag     RESPONSE_FLAG, ONEWAY_FLAG
    ext      header fields, all text; None and {} mean the same to a reader
    body     None when there is none; decode() never makes an empty one
    binary   which header form it came in, or goes out in
    """

    code: int
    ext: dict[str, str] | None = None
    body: bytes | memoryview | None = None
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = _PYTHON
    version: int = VERSION
    binary: bool = False

    @property
    def oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview | None = None,
    ) -> Command:
        """The response to this request, in its own header form (INV-12).

        The response to a oneway request keeps ONEWAY_FLAG, and Connection.send drops it: no path
        answers one.
        """
        return Command(
            code,
            ext,
            body,
            self.opaque,
            RESPONSE_FLAG | (self.flag & ONEWAY_FLAG),
            remark,
            _JAVA,
            VERSION,
            self.binary,
        )

    def encode(self) -> bytes:
        """The whole frame."""
        body = self.body
        if body is None:
            return self.encode_head(0)
        return b"".join((self.encode_head(len(body)), body))

    def encode_head(self, body_bytes: int) -> bytes:
        """The frame up to its body, for a body of that size that the caller writes itself."""
        header = self._binary_header() if self.binary else self._json_header()
        size = len(header)
        word = size | 0x01000000 if self.binary else size
        return _PREFIX.pack(4 + size + body_bytes, word) + header

    def _json_header(self) -> bytes:
        ext = b'"extFields":%b,' % _json_bytes(self.ext) if self.ext is not None else b""
        remark = b'"remark":%b,' % _json_bytes(self.remark) if self.remark is not None else b""
        return (
            b'{"code":%d,%b"flag":%d,"language":"%b","opaque":%d,%b'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            self.code,
            ext,
            self.flag,
            _LANGUAGE_BYTES.get(self.language, b"OTHER"),
            self.opaque,
            remark,
            self.version,
        )

    def _binary_header(self) -> bytes:
        remark = self.remark.encode("utf-8", "replace") if self.remark else b""
        parts: list[bytes] = []
        for key, value in (self.ext or {}).items():
            key_bytes = key.encode("utf-8", "replace")
            value_bytes = value.encode("utf-8", "replace")
            parts += (
                _SIZE16.pack(len(key_bytes)),
                key_bytes,
                _SIZE32.pack(len(value_bytes)),
                value_bytes,
            )
        ext = b"".join(parts)
        code = ((self.code + 0x8000) & 0xFFFF) - 0x8000  # 16 bits: the POP family's codes wrap
        head = _BINARY_HEAD.pack(
            code, self.language & 0xFF, self.version, self.opaque, self.flag, len(remark)
        )
        return b"".join((head, remark, _SIZE32.pack(len(ext)), ext))

    @classmethod
    def decode(cls, frame: Buffer, limits: FrameLimits = DEFAULT_LIMITS) -> Command:
        """Read one whole frame, length word included, as split() found it. The body is copied.

        Raises PeerBrokeProtocol when the header cannot be read or breaks a limit.
        """
        view = memoryview(frame)
        if len(view) < 8:
            raise PeerBrokeProtocol(f"a frame of {len(view)} bytes")
        length, header_word = _PREFIX.unpack_from(view)
        head_end = 8 + (header_word & 0xFFFFFF)
        if length + 4 != len(view) or head_end > len(view):
            raise PeerBrokeProtocol(
                f"frame of {len(view)} bytes says length {length}, header end {head_end}"
            )
        body = bytes(view[head_end:]) if len(view) > head_end else None
        kind = header_word >> 24
        if kind == 0:
            return _from_json(view[8:head_end], body, limits)
        if kind == 1:
            return _from_binary(bytes(view[8:head_end]), body, limits)
        raise PeerBrokeProtocol(f"unknown header serialization {kind}")


def _json_bytes(value: dict[str, str] | str | None) -> bytes:
    try:
        return _encode_json(value)
    except UnicodeEncodeError:  # a lone surrogate, say from a file name in an error text
        if isinstance(value, dict):
            return _encode_json({_clean(key): _clean(text) for key, text in value.items()})
        return _encode_json(_clean(value or ""))


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _from_json(header: memoryview, body: bytes | None, limits: FrameLimits) -> Command:
    try:
        head = _decode_head(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = _tolerant_head(bytes(header))
    ext = head.extFields
    if ext:
        if len(ext) > limits.ext_fields_max:
            raise PeerBrokeProtocol(f"{len(ext)} ext fields, more than {limits.ext_fields_max}")
        if len(header) > limits.key_bytes_max:  # no key is longer than its header
            _check_keys(ext, limits)
    language = LANGUAGE_CODES.get(head.language)
    if language is None:
        language = _language_code(head.language)
    return Command(
        head.code, ext, body, head.opaque, head.flag, head.remark, language, head.version, False
    )


def _check_keys(ext: dict[str, str], limits: FrameLimits) -> None:
    # UTF-8 needs at most four bytes per character: short keys need no encoding to be judged
    if max(map(len, ext)) * 4 > limits.key_bytes_max:
        for key in ext:
            if len(key.encode("utf-8", "replace")) > limits.key_bytes_max:
                raise PeerBrokeProtocol(f"ext key longer than {limits.key_bytes_max} bytes")


def _language_code(text: str) -> int:
    """Name in any case, or ordinal as text; anything else is OTHER, as an unknown byte is."""
    code = LANGUAGE_CODES.get(text.upper())
    if code is None and text.isascii() and text.isdigit() and int(text[:4]) in LANGUAGE_NAMES:
        code = int(text[:4])
    return _OTHER if code is None else code


def _tolerant_head(header: bytes) -> _JsonHead:
    """A header with numbers in ext fields, nulls, an ordinal language or bytes not UTF-8."""
    _check_nesting(header)
    text = header.decode("utf-8", "replace")
    try:
        try:
            members = _decode_any(text)
        except msgspec.DecodeError:
            members = _decode_any(_IDLE_COMMA.sub(lambda found: found[1] or "", text))
    except (msgspec.DecodeError, RecursionError) as problem:
        raise PeerBrokeProtocol(f"JSON header cannot be read: {problem}") from None
    if not isinstance(members, dict):
        raise PeerBrokeProtocol("JSON header is not an object")
    ext = members.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise PeerBrokeProtocol("extFields is not an object")
    language = members.get("language")
    remark = members.get("remark")
    return _JsonHead(
        code=_int32(members, "code"),
        language="JAVA" if language is None else _text(language),
        version=_int32(members, "version"),
        opaque=_int32(members, "opaque"),
        flag=_int32(members, "flag"),
        remark=None if remark is None else _text(remark),
        extFields=None
        if ext is None
        else {key: _text(value) for key, value in ext.items() if value is not None},
    )


def _check_nesting(header: bytes) -> None:
    """Refuse brackets nested deeper than any header is, before the parser's stack sees them."""
    opened = header.count(b"{") + header.count(b"[")
    if opened <= _NESTING_MAX:
        return
    depth = 0
    in_text = escaped = False
    for byte in header:
        if in_text:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_text = False
        elif byte == 0x22:
            in_text = True
        elif byte in b"{[":
            depth += 1
            if depth > _NESTING_MAX:
                raise PeerBrokeProtocol(f"JSON header nested deeper than {_NESTING_MAX}")
        elif byte in b"}]":
            depth -= 1


def _int32(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if value is None or value == "":
        return 0
    try:
        number = int(value) if isinstance(value, (int, float)) else int(str(value)[:12])
    except (ValueError, OverflowError):
        raise PeerBrokeProtocol(f"{name} is not a number") from None
    if not _INT32_MIN <= number <= _INT32_MAX:
        raise PeerBrokeProtocol(f"{name} does not fit 32 bits")
    return number


def _text(value: Any) -> str:
    """An ext value as text: numbers in decimal, booleans in lower case, structures as JSON."""
    if isinstance(value, str):
        return value
    return _encode_json(value).decode()


def _from_binary(header: bytes, body: bytes | None, limits: FrameLimits) -> Command:
    size = len(header)
    if size < 21:
        raise PeerBrokeProtocol(f"binary header of {size} bytes")
    code, language, version, opaque, flag, remark_size = _BINARY_HEAD.unpack_from(header)
    position = 17 + remark_size
    if remark_size < 0 or position + 4 > size:
        raise PeerBrokeProtocol(f"remark of {remark_size} bytes in a header of {size}")
    remark = header[17:position].decode("utf-8", "replace") if remark_size else None
    (ext_size,) = _SIZE32.unpack_from(header, position)
    position += 4
    end = position + ext_size
    if ext_size < 0 or end > size:
        raise PeerBrokeProtocol(f"ext fields of {ext_size} bytes in a header of {size}")
    ext: dict[str, str] | None = {} if ext_size else None
    count = 0
    while position < end:
        if position + 2 > end:
            raise PeerBrokeProtocol("ext fields end inside a key's size")
        key_end = position + 2 + ((header[position] << 8) | header[position + 1])
        if key_end + 4 > end:
            raise PeerBrokeProtocol("ext fields end inside a key or a value's size")
        if key_end - position - 2 > limits.key_bytes_max:
            raise PeerBrokeProtocol(f"ext key longer than {limits.key_bytes_max} bytes")
        value_end = key_end + 4 + int.from_bytes(header[key_end : key_end + 4])
        if value_end > end:
            raise PeerBrokeProtocol("ext fields end inside a value")
        count += 1
        if count > limits.ext_fields_max:
            raise PeerBrokeProtocol(f"more than {limits.ext_fields_max} ext fields")
        if value_end > key_end + 4 and ext is not None:  # an empty value is an absent one
            key = header[position + 2 : key_end].decode("utf-8", "replace")
            ext[key] = header[key_end + 4 : value_end].decode("utf-8", "replace")
        position = value_end
    if not flag & RESPONSE_FLAG:
        code = UNWRAPPED_BINARY_CODES.get(code & 0xFFFF, code)
    if language not in LANGUAGE_NAMES:
        language = _OTHER
    return Command(code, ext, body, opaque, flag, remark, language, version, True)
