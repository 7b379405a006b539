"""The answer of a pull that found messages: what Command.encode_head() writes of it, at a fifth of its price."""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import GetStatus

_PREFIX: Final = struct.Struct(">II")
_NUMBERS: Final = (
    "suggestWhichBrokerId", "groupSysFlag", "nextBeginOffset", "maxOffset", "minOffset", "topicSysFlag",
)  # fmt: skip
_OPAQUE: Final = 123454321


def ext_of(*numbers: int) -> dict[str, str]:
    """The ext fields of a pull's answer, in RocketMQ's order: see _NUMBERS."""
    return {name: str(number) for name, number in zip(_NUMBERS, numbers, strict=True)}


def json_pieces() -> list[bytes]:
    """What stands around the numbers of a JSON header, and around the opaque, which comes behind them."""
    request = Command(0, opaque=_OPAQUE)
    marks = {name: "NUMBER" for name in _NUMBERS}
    header = request.reply(0, GetStatus.FOUND.name, marks).encode_head(0)[8:]
    pieces = header.replace(b"%d" % _OPAQUE, b"NUMBER").split(b"NUMBER")
    assert len(pieces) == len(_NUMBERS) + 2, header
    return pieces


_JSON: Final = b"%d".join(piece.replace(b"%", b"%%") for piece in json_pieces())


def found_head(
    request: Command,
    body_bytes: int,
    suggested: int,
    group_sys_flag: int,
    next_offset: int,
    max_offset: int,
    min_offset: int,
    topic_sys_flag: int,
) -> bytes:
    """The frame up to its body, for a request that is not one-way."""
    if request.binary:
        ext = ext_of(suggested, group_sys_flag, next_offset, max_offset, min_offset, topic_sys_flag)
        return request.reply(0, GetStatus.FOUND.name, ext).encode_head(body_bytes)
    header = _JSON % (
        suggested, group_sys_flag, next_offset, max_offset, min_offset, topic_sys_flag, request.opaque,
    )  # fmt: skip
    return _PREFIX.pack(4 + len(header) + body_bytes, len(header)) + header
