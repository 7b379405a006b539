"""The short path of a pull's header: from a frame's bytes to what PullHandler answers by, in one step.

A frame is taken when its header is JSON as Java and our own client begin it, with fields that are known, and what it
asks for is granted or may wait; every other frame is left to Connection.dispatch, which also is where refusals are
counted. In doubt a frame is left: the long way gives the right answer to anything.

The readable form; _pullpath.pyx is the same, compiled, and has more of the way behind it in C.

Cost per pull beside the reading: one JSON decode into two structs. The long way makes a dict first, and a header of it.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

import msgspec

from tandemmq.cluster.broker.replies import REFUSALS
from tandemmq.cluster.remoting.codes import LANGUAGE_CODES
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import ChunkHandler, Connection
from tandemmq.cluster.remoting.headers import Int32, PullHeader
from tandemmq.storage import Fetch

HEADER_BYTES_MAX: Final = 2_048

_PREFIX_CODE: Final = struct.Struct(">II8xI")  # and what stands where Java writes the code
#: what that is in `{"code":11,"extFields"` and `{"code":361,"extFields"`
_JAVA_CODES: Final = frozenset(int.from_bytes(code) for code in (b'11,"', b"361,"))
_PULLS: Final = frozenset({11, 361})


class Pulls(Protocol):
    """PullHandler, as far as the readable form asks it."""

    def pull(
        self, request: Command, header: PullHeader, connection: Connection
    ) -> Command | Fetch | None: ...


class _Fields(PullHeader, gc=False, forbid_unknown_fields=True):
    """All that stock clients write; a header with others is left."""

    bname: str | None = None
    lo: str | None = None
    ns: str | None = None
    nsd: str | None = None
    oway: str | None = None
    request_source: str | None = None
    proxy_froward_client_id: str | None = None  # RocketMQ's spelling


class _Head(msgspec.Struct, gc=False):
    code: Int32
    extFields: _Fields
    flag: Int32 = 0
    language: str = "JAVA"
    opaque: Int32 = 0
    version: Int32 = 0


#: what cannot be read here, what is refused, and what the disk does not give: the long way answers that, too
_LEFT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError, *REFUSALS)
_decode: Final = msgspec.json.Decoder(_Head, strict=False).decode


class PullPath:
    """A ChunkHandler: takes ordinary pulls off the front of a chunk.

    output_high_bytes  after so much output the rest of a chunk waits, as in Connection
    """

    def __init__(self, handler: Pulls, output_high_bytes: int) -> None:
        self._pull = handler.pull
        self._output_high_bytes = output_high_bytes

    def process(self, view: memoryview, start: int, end: int, connection: Connection) -> int:
        """Answer the ordinary pulls at the front of view[start:end]; where the first other frame starts."""
        # Also at first: asked again at once, as in_turns() does, it would take one more, and so all of the chunk.
        while connection.queued_bytes <= self._output_high_bytes and not connection.closed:
            if end - start < _PREFIX_CODE.size:
                break
            length, header_bytes, code = _PREFIX_CODE.unpack_from(view, start)
            stop = start + 4 + length
            if (
                code not in _JAVA_CODES
                or length != 4 + header_bytes  # a body, or a binary header
                or stop > end
                or header_bytes > HEADER_BYTES_MAX
            ):
                break
            try:
                head = _decode(view[start + 8 : stop])
                language = LANGUAGE_CODES.get(head.language)
                if head.flag or language is None or head.code not in _PULLS:
                    break
                request = Command(
                    head.code, None, None, head.opaque, 0, None, language, head.version, False
                )
                answer = self._pull(request, head.extFields, connection)
            except _LEFT:
                break
            if answer is not None:
                if isinstance(answer, Fetch):
                    break
                connection.send(answer)
            connection.heard(language, head.version, binary=False)
            start = stop
        return start


def in_turns(first: ChunkHandler, then: ChunkHandler) -> ChunkHandler:
    """Each takes what it can, until neither takes anything."""

    def process(view: memoryview, start: int, end: int, connection: Connection) -> int:
        while True:
            begin = start
            start = first(view, start, end, connection)
            if start < end:
                start = then(view, start, end, connection)
            if start == begin or start >= end or connection.closed:
                return start

    return process
