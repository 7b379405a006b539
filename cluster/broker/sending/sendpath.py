"""The short path of a send: from a frame's bytes to the log's, for ordinary messages only.

The readable form; _sendpath.pyx is the same, compiled. A frame is taken when it is one plain
message (code 310) to a topic that Admission knows, and nothing about it is special; every other
frame is left to handlers/send.py. In doubt a frame is left: the long way gives the right answer to
anything.

Cost per 1 KiB message: one JSON decode into a struct, one record write, one %-template; about 8 us.
"""

from __future__ import annotations

import random
import re
import struct
from typing import Annotated, Final, NamedTuple

import msgspec

from tandemmq.cluster.broker.handlers.send import waits_for_safety
from tandemmq.cluster.broker.sending.acks import Safety, at_once
from tandemmq.cluster.broker.sending.admission import Admission, AdmittedTopic
from tandemmq.cluster.broker.sending.messages import broker_properties
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.frame import FrameLimits
from tandemmq.storage import (
    Draft,
    MessageStore,
    QueueTail,
    StorageError,
    join_properties,
)

PROPERTIES_LEFT: Final = (
    b"DELAY\x01",
    b"TRAN_MSG\x01",
    b"TIMER_",
    b"POP_CK",
    b"__CRC32#",
    b"INNER_",
)
"""Where one of these stands in the properties, name or not, the message goes the long way."""

_LEFT: Final = re.compile(b"|".join(map(re.escape, PROPERTIES_LEFT))).search  # half of six searches

SYS_FLAGS_TAKEN: Final = 0x701  # compressed, and how
JAVA_SEND: Final = b'{"code":310,'  # how Java, and our own client, begin the header of a send

_PREFIX: Final = struct.Struct(">II")
_PREFIX_CODE: Final = struct.Struct(">II8xI")  # and what stands where Java writes the code
_JAVA_CODE: Final = int.from_bytes(JAVA_SEND[8:12], "big")
_BINARY_HEAD: Final = struct.Struct(">hBhiii")
_BINARY_SEND: Final = b"\x01\x36"  # code 310 at the start of a binary header
_BINARY_ANSWER: Final = struct.Struct(">iiii")  # opaque, flag, remark size, ext size
_SIZE16: Final = struct.Struct(">H")
_SIZE32: Final = struct.Struct(">I")
_INT32_MAX: Final = (1 << 31) - 1

_Int32 = Annotated[int, msgspec.Meta(ge=-_INT32_MAX - 1, le=_INT32_MAX)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Fields(msgspec.Struct, gc=False):
    """The ext fields of a send, letters as on the wire (RocketMQ's SendMessageRequestHeaderV2)."""

    a: str
    b: str
    c: str
    d: _Int32
    e: _Int32
    f: _Int32
    g: _Int64
    h: _Int32
    i: str = ""
    j: _Int32 = 0
    k: str = "false"
    l: str | None = None  # noqa: E741 - the wire's name
    m: str = "false"


class _Head(msgspec.Struct, gc=False):
    code: _Int32
    extFields: _Fields
    flag: _Int32 = 0
    opaque: _Int32 = 0
    version: _Int32 = 0


class _Known(NamedTuple):
    """What was learnt of a topic: None where its messages go the long way."""

    topic: AdmittedTopic | None
    draft: Draft
    tails: dict[int, QueueTail]


_decode_head: Final = msgspec.json.Decoder(_Head, strict=False).decode
_convert: Final = msgspec.convert


class SendPath:
    """A ChunkHandler: takes ordinary sends off the front of a chunk and stores them.

    A chunk is stored in the log's staging buffer, and released with what else came in: release.py.
    Nothing of the chunk itself is kept.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        admission: Admission,
        release: Release,
        *,
        store_host: bytes,
        rng: random.Random,
        limits: FrameLimits | None = None,
    ) -> None:
        self._store = store
        self._release = release
        self._staged = release.staged
        self._admission = admission
        self._acks = acks = release.acks
        self._store_host = store_host
        self._rng = rng
        self._limits = limits or FrameLimits()
        self._body_bytes_max = config.storage.body_bytes_max
        self._held = held = release.holds
        self._added = broker_properties(config.region, config.cluster, config.trace_on)
        self._config = config
        self._said = acks.expected
        self._answers = AnswerTemplates(config, store_host, self._said if held else None)
        self._generation = -1
        self._topics: dict[str, _Known] = {}
        self.messages = 0  # taken since the start

    def process(self, view: memoryview, start: int, end: int, connection: Connection) -> int:
        """Store the ordinary sends at the front of view[start:end]; where the first other starts."""
        if end - start < 8 or not self._admission.open(connection):
            return start
        if self._generation != self._admission.generation():
            self._forget_topics()
        if self._held and self._said is not self._acks.expected:
            self._said = self._acks.expected
            self._answers = AnswerTemplates(self._config, self._store_host, self._said)
        now_ms = self._store.clock.now_ms()
        answers: list[bytes] = []
        taken = self.messages
        try:
            return self._walk(view, start, end, connection, now_ms, answers)
        finally:  # also when it failed half-way: what is staged must become part of the log
            if self.messages > taken:
                self._staged.append((connection, b"".join(answers), self._said))
                if len(self._staged) == 1:
                    self._release.due()

    def _walk(
        self,
        view: memoryview,
        at: int,
        end: int,
        connection: Connection,
        now_ms: int,
        answers: list[bytes],
    ) -> int:
        while end - at >= _PREFIX_CODE.size:
            length, word, code = _PREFIX_CODE.unpack_from(view, at)
            frame_end = at + 4 + length
            header_end = at + 8 + (word & 0xFFFFFF)
            if (
                frame_end > end
                or header_end >= frame_end  # no body, or nonsense
                or length > self._limits.frame_bytes_max - 4
                or word & 0xFFFFFF > self._limits.header_bytes_max
            ):
                break
            serialization = word >> 24
            if serialization == 0 and code == _JAVA_CODE:
                head = _json_head(view[at + 8 : header_end])
            elif serialization == 1:
                head = _binary_head(view[at + 8 : header_end])
            else:
                break
            if head is None:
                break
            if not self._store_one(
                head, view[header_end:frame_end], connection, now_ms, serialization == 1, answers
            ):
                break
            self.messages += 1
            at = frame_end
        return at

    def _store_one(
        self,
        head: _Head,
        body: memoryview,
        connection: Connection,
        now_ms: int,
        binary: bool,
        answers: list[bytes],
    ) -> bool:
        """False when the message is not for us, and then nothing was written."""
        fields = head.extFields
        known = self._topics.get(fields.b) or self._learn(fields.b)
        topic = known.topic
        if topic is None or not _plain(head) or len(body) > self._body_bytes_max:
            return False
        queue_id = fields.e
        if queue_id >= topic.queues or topic.write_queues <= 0:
            return False
        properties = fields.i.encode("utf-8", "replace")
        unique_id = _unique_id(properties)
        if not unique_id.isalnum() or _special(properties):
            return False
        if self._held and not waits_for_safety(properties):
            return False
        if queue_id < 0:
            queue_id = self._rng.randrange(topic.write_queues)
        queue = known.tails.get(queue_id)
        if queue is None:
            queue = self._store.queue_tail(known.draft.topic, queue_id)
            known.tails[queue_id] = queue
        draft = known.draft  # used again and again: nobody keeps it
        draft.queue_id = queue_id
        draft.body = body
        draft.properties = join_properties(properties, self._added)
        draft.flag = fields.h
        draft.sys_flag = fields.f | topic.sys_flag_bits
        draft.born_ms = fields.g
        draft.born_host = connection.peer_host
        draft.reconsume_times = fields.j
        tail = self._store.log_tail
        queue_offset = queue.next_offset
        try:
            offset = tail.append(draft, queue_offset, now_ms)
        except StorageError:
            return False
        finally:
            draft.body = b""  # the receive buffer must not stay exported
        if offset < 0:  # the long way rolls the log
            return False
        queue.next_offset = queue_offset + 1
        if not head.flag:
            answers.append(
                self._answers.encode(binary, head.opaque, queue_id, unique_id, offset, queue_offset)
            )
        return True

    def _learn(self, name: str) -> _Known:
        found = self._topics[name] = _Known(
            self._admission.topic(name), Draft(name, 0, b"", store_host=self._store_host), {}
        )
        return found

    def _forget_topics(self) -> None:
        self._generation = self._admission.generation()
        self._topics.clear()


def _unique_id(properties: bytes) -> bytes:
    """The UNIQ_KEY of most messages; b"" for none, and for what get_property() must look at."""
    at = properties.rfind(b"UNIQ_KEY\x01")
    if at < 0 or (at and properties[at - 1] != 2):
        return b""
    end = properties.find(b"\x02", at)
    return properties[at + 9 : end] if end >= 0 else properties[at + 9 :]


def _special(properties: bytes) -> bool:
    """Whether one of PROPERTIES_LEFT stands in them. Only DELAY has no underscore, UNIQ_KEY has one."""
    if properties.count(b"_") == 1 and b"DELAY\x01" not in properties:
        return False
    return _LEFT(properties) is not None


def _plain(head: _Head) -> bool:
    """Whether a send's fields are those of an ordinary single message."""
    fields = head.extFields
    return (
        head.code == 310
        and head.flag in (0, 2)
        and not fields.f & ~SYS_FLAGS_TAKEN
        and fields.k in ("false", "true")
        and fields.l is None
        and fields.m == "false"
    )


def _json_head(header: memoryview) -> _Head | None:
    try:
        return _decode_head(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _binary_head(header: memoryview) -> _Head | None:
    """A binary header that is as Java writes it; None for any other."""
    size = len(header)
    if size < 21 or bytes(header[:2]) != _BINARY_SEND:
        return None
    code, _, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
    if remark_bytes or 21 + _SIZE32.unpack_from(header, 17)[0] != size:
        return None
    fields: dict[str, str] = {}
    at = 21
    try:
        while at < size:
            key_end = at + 2 + _SIZE16.unpack_from(header, at)[0]
            value_end = key_end + 4 + _SIZE32.unpack_from(header, key_end)[0]
            if value_end > size or value_end == key_end + 4:
                return None
            fields[str(header[at + 2 : key_end], "utf-8")] = str(
                header[key_end + 4 : value_end], "utf-8"
            )
            at = value_end
        if len(fields) > 32:
            return None
        return _Head(code, _convert(fields, _Fields, strict=False), flag, opaque, version)
    except (struct.error, UnicodeDecodeError, msgspec.ValidationError):
        return None


_SENTINELS: Final = (b"QUEUE-ID", b"UNIQUE-ID", b"MESSAGE-ID", b"QUEUE-OFFSET")
_OPAQUE: Final = 123454321


def answer_pieces(config: BrokerConfig, binary: bool, said: Safety | None) -> list[bytes]:
    """What stands between the varying values of a stored send's answer.

    Cut out of what Command.encode() writes, so that both say the same.

    said   the safety that answers speak of; None where they do not wait

    JSON, 6 pieces:    [0] queue id [1] unique id [2] message id [3] queue offset [4] opaque [5]
    binary, 6 pieces:  [0] opaque, flag, no remark, size of the rest, then four times: a piece, the
    value's size and
                       the value; [5] is empty
    """
    request = Command(310, opaque=_OPAQUE, binary=binary)
    ext = {
        "queueId": "QUEUE-ID",
        "transactionId": "UNIQUE-ID",
        "msgId": "MESSAGE-ID",
        "TRACE_ON": str(config.trace_on).lower(),
        "MSG_REGION": config.region,
        **(at_once(epoch=0) if said is None else said.ext()),
        "queueOffset": "QUEUE-OFFSET",
    }
    rest = request.reply(ext=ext).encode()[8:]
    pieces = []
    if binary:
        pieces.append(rest[:5])
        rest = rest[21:]
    for sentinel in _SENTINELS if binary else (*_SENTINELS, b"%d" % _OPAQUE):
        value = _SIZE32.pack(len(sentinel)) + sentinel if binary else sentinel
        piece, found, rest = rest.partition(value)
        assert found, sentinel
        pieces.append(piece)
    pieces.append(rest)
    return pieces


class AnswerTemplates:
    """The answers of stored sends, as Command.encode() writes them, at a tenth of its price."""

    def __init__(self, config: BrokerConfig, store_host: bytes, said: Safety | None) -> None:
        self._host = store_host.hex().upper().encode()
        escaped = [piece.replace(b"%", b"%%") for piece in answer_pieces(config, False, said)]
        values = (b"%d", b"%b", self._host + b"%016X", b"%d", b"%d", b"")
        self._json = b"".join([part for pair in zip(escaped, values, strict=True) for part in pair])
        self._binary_head, *self._binary, _ = answer_pieces(config, True, said)

    def encode(
        self,
        binary: bool,
        opaque: int,
        queue_id: int,
        unique_id: bytes,
        offset: int,
        queue_offset: int,
    ) -> bytes:
        """The whole frame. unique_id is letters and digits only."""
        if not binary:
            header = self._json % (queue_id, unique_id, offset, queue_offset, opaque)
            return _PREFIX.pack(4 + len(header), len(header)) + header
        values = (b"%d" % queue_id, unique_id, self._host + b"%016X" % offset, b"%d" % queue_offset)
        ext = b"".join(
            [
                part
                for piece, value in zip(self._binary, values, strict=True)
                for part in (piece, _SIZE32.pack(len(value)), value)
            ]
        )
        size = 21 + len(ext)
        return b"".join(
            (
                _PREFIX.pack(4 + size, 0x01000000 | size),
                self._binary_head,
                _BINARY_ANSWER.pack(opaque, 1, 0, len(ext)),
                ext,
            )
        )
