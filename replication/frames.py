"""Replication wire frames: bytes <-> events, in three dialects.

CLASSIC (DefaultHAService; no handshake)
    slave -> master   8  int64   everything below is in the slave's log
    master -> slave  12  int64 offset, int32 body size, then the body; size 0 is a heartbeat

AUTO_SWITCH (AutoSwitchHAService; int32 state first: 1 handshake, 2 transfer)
    slave -> master  16  state 1, int16 from last file, int16 learner, int64 replica id
                     12  state 2, int64 received
    master -> slave  20  state 1, int32 body size = 12 n, int64 end, int32 last epoch; n x (int32 epoch, int64 start)
                     36  state 2, int32 body size, int64 offset, int32 epoch, int64 epoch start, int64 confirmed; body

EXTENDED (ours, both directions)
     0  4  magic "TMQ1": no state of RocketMQ's, so neither side can take one dialect for the other
     4  1  kind
     5  1  flags: 1 body is lz4
     6  2  H, size of the head
     8  4  B, size of the body as sent
    12  4  CRC-32C of bytes 0 to 12, head and body
    16  H  head, a fixed structure per kind; then B bytes of body

A slave offers EXTENDED with the value 0x54 in the upper byte of its handshake's first flag, which a stock master
compares with 1 and so ignores. A master that takes the offer answers with a Challenge, else with a Greeting.

All integers big-endian. Bodies are views into what was read: copy what must outlive the buffer.
Whatever bytes arrive, readers yield events or raise PeerBrokeProtocol, nothing else.
Source: docs/formats.md "Replication stream"; RocketMQ's DefaultHAConnection, AutoSwitchHAConnection,
AutoSwitchHAClient; ours: docs/decisions/0004-failover-protocol.md.
"""

from __future__ import annotations

import enum
import itertools
import struct
from dataclasses import dataclass
from typing import Final

import lz4.block
import msgspec

from tandemmq.replication.config import FRAME_BODY_BYTES_MAX
from tandemmq.replication.epochs import ENTRIES_MAX, EPOCH_MAX, NO_OFFSET, Epoch, EpochHistory
from tandemmq.replication.errors import PeerBrokeProtocol
from tandemmq.replication.joinedcrc import crc32c, joined_crc

Buffer = bytes | bytearray | memoryview

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
NO_PROOF: Final = bytes(PROOF_BYTES)
NAME_BYTES_MAX: Final = 512  # cluster#group
REASON_BYTES_MAX: Final = 1024

_LONG: Final = struct.Struct(">q")
_CLASSIC: Final = struct.Struct(">qi")
_STATE: Final = struct.Struct(">i")
_HANDSHAKE: Final = struct.Struct(">iHHq")
_REPORT: Final = struct.Struct(">iq")
_GREETING: Final = struct.Struct(">iiqi")
_ENTRY: Final = struct.Struct(">iq")
_TRANSFER: Final = struct.Struct(">iiqiqq")

_FRAME: Final = struct.Struct(">4sBBHII")
_MAGIC: Final = b"TMQ1"
_OFFER: Final = 0x5400
_HELLO: Final = struct.Struct(
    ">qqiBB2x16s32s"
)  # id, incarnation, epoch, version, options, nonce, proof
_WELCOME: Final = struct.Struct(">iqqq32s")  # epoch, start, end, confirmed, proof
_PROGRESS: Final = struct.Struct(">qqi")  # received, flushed, epoch of the last byte
_EXTENDED_TRANSFER: Final = struct.Struct(">qiqq")  # offset, epoch, epoch start, confirmed

_HANDSHAKING: Final = 1
_TRANSFERRING: Final = 2
_FLAG_LZ4: Final = 1
_OPTION_FROM_LAST_FILE: Final = 1
_OPTION_LEARNER: Final = 2
_OPTION_LZ4: Final = 4
VERSION: Final = 1


class Dialect(enum.Enum):
    """How the two ends of one connection talk."""

    CLASSIC = "classic"
    AUTO_SWITCH = "auto-switch"
    EXTENDED = "extended"


# --- events, slave -> master ---


class Handshake(msgspec.Struct, frozen=True):
    """AUTO_SWITCH: who connects."""

    replica: int
    from_last_file: bool = False
    learner: bool = False
    offers_extension: bool = False


class Report(msgspec.Struct, frozen=True):
    """What the slave holds: acknowledgement and heartbeat. CLASSIC and AUTO_SWITCH know only `received`.

    received  everything below is in the slave's log
    flushed   everything below is on its disk; None where the dialect does not say
    epoch     EXTENDED: who wrote the slave's last byte, 0 for an empty log
    """

    received: int
    flushed: int | None = None
    epoch: int = 0


class Hello(msgspec.Struct, frozen=True):
    """EXTENDED: who connects, and the proof that it knows the secret."""

    cluster: str
    group: str
    replica: int
    incarnation: int  # of the slave's process: a restarted one is another
    epoch: int  # the highest the slave has heard of: an older master must refuse itself
    from_last_file: bool = False
    learner: bool = False
    compressed: bool = False
    nonce: bytes = bytes(NONCE_BYTES)
    proof: bytes = NO_PROOF
    version: int = VERSION


SlaveFrame = Handshake | Report | Hello

# --- events, master -> slave ---


class Greeting(msgspec.Struct, frozen=True):
    """AUTO_SWITCH: the master's history and end. `last_epoch` is -1 for none."""

    end: int
    last_epoch: int
    entries: tuple[Epoch, ...]


class Challenge(msgspec.Struct, frozen=True):
    """EXTENDED: the offer is taken; prove who you are."""

    nonce: bytes


class Welcome(msgspec.Struct, frozen=True):
    """EXTENDED: the greeting, with what a stock one lacks."""

    epoch: int  # the master's, which the history's last entry need not be the whole truth about
    start: int  # of the retained log
    end: int
    confirmed: int
    history: EpochHistory
    proof: bytes = NO_PROOF


class RefusalFrame(msgspec.Struct, frozen=True):
    """EXTENDED: why the connection closes."""

    reason: str


class Transfer(msgspec.Struct, frozen=True):
    """Bytes of the log, or with an empty body a heartbeat. CLASSIC knows only offset and body.

    body         of one reign and of one file; it may begin and end inside a record
    epoch        who wrote the body; epoch_start is where that reign began
    confirmed    the master's confirm offset
    """

    offset: int
    body: Buffer = b""
    epoch: int = 0
    epoch_start: int = 0
    confirmed: int = 0


MasterFrame = Greeting | Challenge | Welcome | RefusalFrame | Transfer


class _Kind(enum.IntEnum):
    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSAL = 4
    PROGRESS = 5
    TRANSFER = 6


_HEAD_BYTES: Final = {
    _Kind.CHALLENGE: NONCE_BYTES,
    _Kind.HELLO: _HELLO.size,
    _Kind.WELCOME: _WELCOME.size,
    _Kind.REFUSAL: 0,
    _Kind.PROGRESS: _PROGRESS.size,
    _Kind.TRANSFER: _EXTENDED_TRANSFER.size,
}
_BODY_BYTES_MAX: Final = {
    _Kind.CHALLENGE: 0,
    _Kind.HELLO: NAME_BYTES_MAX,
    _Kind.WELCOME: ENTRIES_MAX * _ENTRY.size,
    _Kind.REFUSAL: REASON_BYTES_MAX,
    _Kind.PROGRESS: 0,
    _Kind.TRANSFER: FRAME_BODY_BYTES_MAX,
}
_KINDS: Final = {int(kind): kind for kind in _Kind}
_FROM_SLAVE: Final = frozenset({_Kind.HELLO, _Kind.PROGRESS})
_FROM_MASTER: Final = frozenset(_Kind) - _FROM_SLAVE

# --- encoding ---


def _sealed(kind: _Kind, head: bytes, body: Buffer = b"", flags: int = 0) -> bytes:
    """Prefix and head of an EXTENDED frame; the body follows as it is."""
    front = _FRAME.pack(_MAGIC, kind, flags, len(head), len(body), 0)[:12]
    crc = crc32c(head, crc32c(front))
    if body:
        crc = crc32c(body, crc)
    return front + crc.to_bytes(4, "big") + head


def _entries(entries: tuple[Epoch, ...]) -> bytes:
    return b"".join(_ENTRY.pack(entry.number, entry.start) for entry in entries)


def encode_slave_frame(frame: SlaveFrame, dialect: Dialect) -> bytes:
    """A slave's frame, to be written in one piece: a stock master misreads a handshake that arrives in two."""
    match frame:
        case Handshake():
            first = (_OFFER if frame.offers_extension else 0) | frame.from_last_file
            return _HANDSHAKE.pack(_HANDSHAKING, first, frame.learner, frame.replica)
        case Report():
            flushed = frame.received if frame.flushed is None else frame.flushed
            return encode_report(frame.received, flushed, frame.epoch, dialect)
        case Hello():
            head, body = hello_parts(frame)
            return _sealed(_Kind.HELLO, head, body) + body


def encode_report(received: int, flushed: int, epoch: int, dialect: Dialect) -> bytes:
    """A Report, for who sends one per batch and has no other use for the frame."""
    if dialect is Dialect.CLASSIC:
        return _LONG.pack(received)
    if dialect is Dialect.AUTO_SWITCH:
        return _REPORT.pack(_TRANSFERRING, received)
    return _sealed(_Kind.PROGRESS, _PROGRESS.pack(received, flushed, epoch))


def hello_parts(hello: Hello) -> tuple[bytes, bytes]:
    """Head and body of a Hello: everything it says, and so what its proof covers (with NO_PROOF in place)."""
    options = (
        (_OPTION_FROM_LAST_FILE if hello.from_last_file else 0)
        | (_OPTION_LEARNER if hello.learner else 0)
        | (_OPTION_LZ4 if hello.compressed else 0)
    )
    head = _HELLO.pack(
        hello.replica, hello.incarnation, hello.epoch, hello.version, options, hello.nonce,
        hello.proof,
    )  # fmt: skip
    return head, f"{hello.cluster}#{hello.group}".encode()


def welcome_parts(welcome: Welcome) -> tuple[bytes, bytes]:
    """Head and body of a Welcome, as hello_parts()."""
    head = _WELCOME.pack(
        welcome.epoch, welcome.start, welcome.end, welcome.confirmed, welcome.proof
    )
    return head, _entries(welcome.history.entries)


def encode_classic_head(offset: int, size: int) -> bytes:
    """As encode_transfer_head(), of a CLASSIC transfer."""
    return _CLASSIC.pack(offset, size)


def encode_transfer_head(
    frame: Transfer,
    dialect: Dialect,
    *,
    body_bytes: int | None = None,
    body_crc: int | None = None,
) -> bytes:
    """What precedes the body on the wire, so that the body can be written from the log without a copy.

    body_bytes  size of the body when frame.body is empty because the kernel will send it (sendfile)
    body_crc    its CRC-32C then; EXTENDED only
    """
    size = len(frame.body) if body_bytes is None else body_bytes
    if dialect is Dialect.CLASSIC:
        return encode_classic_head(frame.offset, size)
    if dialect is Dialect.AUTO_SWITCH:
        return _TRANSFER.pack(
            _TRANSFERRING, size, frame.offset, frame.epoch, frame.epoch_start, frame.confirmed
        )
    head = _EXTENDED_TRANSFER.pack(frame.offset, frame.epoch, frame.epoch_start, frame.confirmed)
    if body_crc is not None:
        front = _FRAME.pack(_MAGIC, _Kind.TRANSFER, 0, len(head), size, 0)[:12]
        crc = joined_crc(crc32c(head, crc32c(front)), body_crc, size)
        return front + crc.to_bytes(4, "big") + head
    assert size == len(frame.body), "a body without a checksum must be there"
    return _sealed(_Kind.TRANSFER, head, frame.body)


def encode_master_frame(frame: MasterFrame, dialect: Dialect, *, compressed: bool = False) -> bytes:
    """A master's frame, body included. `compressed` applies to EXTENDED transfers and costs a copy."""
    match frame:
        case Greeting():
            body = _entries(frame.entries)
            return _GREETING.pack(_HANDSHAKING, len(body), frame.end, frame.last_epoch) + body
        case Transfer() if compressed and frame.body:
            assert dialect is Dialect.EXTENDED
            squeezed: bytes = lz4.block.compress(bytes(frame.body), store_size=True)
            if len(squeezed) >= len(frame.body):
                return encode_transfer_head(frame, dialect) + bytes(frame.body)
            head = _EXTENDED_TRANSFER.pack(
                frame.offset, frame.epoch, frame.epoch_start, frame.confirmed
            )
            return _sealed(_Kind.TRANSFER, head, squeezed, _FLAG_LZ4) + squeezed
        case Transfer():
            return encode_transfer_head(frame, dialect) + bytes(frame.body)
        case Challenge():
            return _sealed(_Kind.CHALLENGE, frame.nonce)
        case Welcome():
            head, body = welcome_parts(frame)
            return _sealed(_Kind.WELCOME, head, body) + body
        case RefusalFrame():
            body = frame.reason.encode()[:REASON_BYTES_MAX]
            return _sealed(_Kind.REFUSAL, b"", body) + body


# --- decoding ---


@dataclass(slots=True)
class SlaveFrameReader:
    """What a master reads from one slave. Set `dialect` to EXTENDED after sending a Challenge."""

    dialect: Dialect

    def read(self, view: memoryview, start: int, end: int) -> tuple[list[SlaveFrame], int]:
        """The whole frames in view[start:end], and where the first partial one begins.

        Raises PeerBrokeProtocol; frames before the broken one are lost with the connection.
        """
        if self.dialect is Dialect.CLASSIC:
            reports, size = read_classic_reports(view[start:end])
            return [*reports], start + size
        frames: list[SlaveFrame] = []
        while (found := self._next(view, start, end)) is not None:
            frame, start = found
            frames.append(frame)
            if isinstance(frame, Handshake) and frame.offers_extension:
                break  # what follows is in the dialect of our answer
        return frames, start

    def _next(self, view: memoryview, at: int, end: int) -> tuple[SlaveFrame, int] | None:
        if self.dialect is Dialect.EXTENDED:
            whole = _extended(view, at, end, _FROM_SLAVE)
            return None if whole is None else (_slave_frame(whole), whole.end)
        if end - at < _STATE.size:
            return None
        (state,) = _STATE.unpack_from(view, at)
        if state == _TRANSFERRING:
            if end - at < _REPORT.size:
                return None
            return Report(_position(_REPORT.unpack_from(view, at)[1])), at + _REPORT.size
        if state != _HANDSHAKING:
            raise PeerBrokeProtocol(f"a slave does not send state {state}")
        if end - at < _HANDSHAKE.size:
            return None
        _, first, learner, replica = _HANDSHAKE.unpack_from(view, at)
        offer, from_last_file = first & 0xFF00, first & 0xFF
        if offer not in (0, _OFFER) or from_last_file > 1 or learner > 1:
            raise PeerBrokeProtocol(f"handshake flags {first:#x} {learner:#x}")
        if replica <= 0:
            raise PeerBrokeProtocol(f"replica id {replica}")
        frame = Handshake(replica, bool(from_last_file), bool(learner), offer == _OFFER)
        return frame, at + _HANDSHAKE.size


@dataclass(slots=True)
class MasterFrameReader:
    """What a slave reads from its master. An AUTO_SWITCH reader turns EXTENDED at the first such frame.

    offers   whether our handshake offered EXTENDED: without an offer such a frame breaks the protocol
    """

    dialect: Dialect
    offers: bool = False

    def read(self, view: memoryview, start: int, end: int) -> tuple[list[MasterFrame], int]:
        """The whole frames in view[start:end], and where the first partial one begins.

        Transfer bodies are slices of the view. Raises PeerBrokeProtocol.
        """
        frames: list[MasterFrame] = []
        while start < end:
            if self.dialect is Dialect.CLASSIC:
                found = _classic_transfer(view, start, end)
            else:
                found = self._next(view, start, end)
            if found is None:
                break
            frame, start = found
            frames.append(frame)
        return frames, start

    def needed(self, view: memoryview, start: int, end: int) -> int:
        """How many bytes from `start` the frame there takes, as far as it is known: the buffer must hold that.

        Raises PeerBrokeProtocol when the frame announces more than it may be.
        """
        if self.dialect is Dialect.CLASSIC:
            if end - start < _CLASSIC.size:
                return _CLASSIC.size
            return int(_CLASSIC.size + _body_size(_CLASSIC.unpack_from(view, start)[1]))
        if end - start < 12:
            return 12
        if bytes(view[start : start + 4]) == _MAGIC:
            head, body = struct.unpack_from(">HI", view, start + 6)
            return int(_FRAME.size + head + _body_size(body))
        state, body = struct.unpack_from(">ii", view, start)
        return int((_GREETING.size if state == _HANDSHAKING else _TRANSFER.size) + _body_size(body))

    def _next(self, view: memoryview, at: int, end: int) -> tuple[MasterFrame, int] | None:
        if self.dialect is Dialect.AUTO_SWITCH:
            if end - at < _STATE.size:
                return None
            if not self.offers or bytes(view[at : at + 4]) != _MAGIC:
                return _auto_switch_frame(view, at, end)
            self.dialect = Dialect.EXTENDED
        whole = _extended(view, at, end, _FROM_MASTER)
        return None if whole is None else (_master_frame(whole), whole.end)


def read_classic_reports(data: Buffer) -> tuple[list[Report], int]:
    """As SlaveFrameReader.read(), of a CLASSIC slave, which says nothing else."""
    end = len(data) - len(data) % _LONG.size
    return [Report(_position(each)) for (each,) in _LONG.iter_unpack(data[:end])], end


def _position(value: int) -> int:
    if value < 0:
        raise PeerBrokeProtocol(f"a slave reports position {value}")
    return value


def _body_size(size: int) -> int:
    if not 0 <= size <= FRAME_BODY_BYTES_MAX:
        raise PeerBrokeProtocol(f"transfer body of {size} bytes")
    return size


def _classic_transfer(view: memoryview, at: int, end: int) -> tuple[MasterFrame, int] | None:
    body = at + _CLASSIC.size
    if body > end:
        return None
    offset, size = _CLASSIC.unpack_from(view, at)
    stop = body + _body_size(size)
    if offset < 0:
        raise PeerBrokeProtocol(f"transfer at offset {offset}")
    return None if stop > end else (Transfer(offset, view[body:stop]), stop)


def _auto_switch_frame(view: memoryview, at: int, end: int) -> tuple[MasterFrame, int] | None:
    (state,) = _STATE.unpack_from(view, at)
    if state == _HANDSHAKING:
        if end - at < _GREETING.size:
            return None
        _, size, log_end, last_epoch = _GREETING.unpack_from(view, at)
        if size < 0 or size % _ENTRY.size or size > ENTRIES_MAX * _ENTRY.size:
            raise PeerBrokeProtocol(f"greeting with {size} bytes of epochs")
        body = at + _GREETING.size
        if end - body < size:
            return None
        entries = _decode_entries(view[body : body + size])
        if log_end < 0 or last_epoch < -1:
            raise PeerBrokeProtocol(f"greeting with end {log_end}, epoch {last_epoch}")
        return Greeting(log_end, last_epoch, entries), body + size
    if state != _TRANSFERRING:
        raise PeerBrokeProtocol(f"a master does not send state {state}")
    if end - at < _TRANSFER.size:
        return None
    _, size, offset, epoch, epoch_start, confirmed = _TRANSFER.unpack_from(view, at)
    _body_size(size)
    if offset < (NO_OFFSET if size == 0 else 0) or epoch_start < 0 or confirmed < 0:
        raise PeerBrokeProtocol(f"transfer at {offset}, epoch start {epoch_start}")
    body = at + _TRANSFER.size
    if end - body < size:
        return None
    found = Transfer(offset, view[body : body + size], epoch, epoch_start, confirmed)
    return found, body + size


def _decode_entries(body: memoryview) -> tuple[Epoch, ...]:
    entries = tuple(Epoch(*_ENTRY.unpack_from(body, at)) for at in range(0, len(body), _ENTRY.size))
    for before, after in itertools.pairwise(entries):
        if after.number <= before.number or after.start < before.start:
            raise PeerBrokeProtocol(f"epochs out of order: {before} {after}")
    if entries and (entries[0].number < 0 or entries[0].start < 0):
        raise PeerBrokeProtocol(f"epoch {entries[0]}")
    return entries


def history_of(entries: tuple[Epoch, ...]) -> EpochHistory:
    """Entries from the wire as a history: of reigns that start at one offset only the last one counts."""
    kept: list[Epoch] = []
    for entry in entries:
        if kept and kept[-1].start == entry.start:
            kept.pop()
        kept.append(entry)
    return EpochHistory(tuple(kept))


class _Whole(msgspec.Struct, frozen=True):
    """One EXTENDED frame whose checksum was right."""

    kind: _Kind
    head: bytes
    body: memoryview
    end: int


def _extended(view: memoryview, at: int, end: int, allowed: frozenset[_Kind]) -> _Whole | None:
    if end - at < _FRAME.size:
        return None
    magic, number, flags, head_size, body_size, crc = _FRAME.unpack_from(view, at)
    if magic != _MAGIC:
        raise PeerBrokeProtocol(f"not an extended frame: {bytes(magic).hex()}")
    kind = _KINDS.get(number)
    if kind is None:
        raise PeerBrokeProtocol(f"unknown frame kind {number}")
    if kind not in allowed:
        raise PeerBrokeProtocol(f"{kind.name} from the wrong side")
    if head_size != _HEAD_BYTES[kind] or body_size > _BODY_BYTES_MAX[kind]:
        raise PeerBrokeProtocol(f"{kind.name} with {head_size} + {body_size} bytes")
    if flags & ~_FLAG_LZ4 or (flags and kind is not _Kind.TRANSFER):
        raise PeerBrokeProtocol(f"{kind.name} with flags {flags}")
    head_at = at + _FRAME.size
    body_at = head_at + head_size
    stop = body_at + body_size
    if end < stop:
        return None
    if crc32c(view[head_at:stop], crc32c(view[at : at + 12])) != crc:
        raise PeerBrokeProtocol(f"{kind.name} with a wrong checksum")
    head = bytes(view[head_at:body_at])
    body = view[body_at:stop]
    if flags & _FLAG_LZ4:
        body = _expanded(body)
    return _Whole(kind, head, body, stop)


def _expanded(body: memoryview) -> memoryview:
    size = int.from_bytes(body[:4], "little")
    if len(body) < 5 or not 0 < size <= FRAME_BODY_BYTES_MAX:
        raise PeerBrokeProtocol(f"compressed body that expands to {size} bytes")
    try:
        return memoryview(lz4.block.decompress(body))
    except lz4.block.LZ4BlockError as problem:
        raise PeerBrokeProtocol("compressed body that does not expand") from problem


def _slave_frame(whole: _Whole) -> SlaveFrame:
    if whole.kind is _Kind.PROGRESS:
        received, flushed, epoch = _PROGRESS.unpack(whole.head)
        if not 0 <= flushed <= received or epoch < 0:
            raise PeerBrokeProtocol(f"progress {received} flushed {flushed} epoch {epoch}")
        return Report(received, flushed, epoch)
    replica, incarnation, epoch, version, options, nonce, proof = _HELLO.unpack(whole.head)
    names = bytes(whole.body).decode("utf-8", "replace").split("#")
    if len(names) != 2 or replica <= 0 or incarnation < 0 or not 0 <= epoch <= EPOCH_MAX:
        raise PeerBrokeProtocol(f"hello of replica {replica} in {'#'.join(names)!r}, epoch {epoch}")
    return Hello(
        names[0], names[1], replica, incarnation, epoch,
        bool(options & _OPTION_FROM_LAST_FILE), bool(options & _OPTION_LEARNER), bool(options & _OPTION_LZ4),
        nonce, proof, version,
    )  # fmt: skip


def _master_frame(whole: _Whole) -> MasterFrame:
    if whole.kind is _Kind.TRANSFER:
        offset, epoch, epoch_start, confirmed = _EXTENDED_TRANSFER.unpack(whole.head)
        if min(offset, epoch, epoch_start, confirmed) < 0:
            raise PeerBrokeProtocol(f"transfer at {offset}, epoch {epoch} from {epoch_start}")
        return Transfer(offset, whole.body, epoch, epoch_start, confirmed)
    if whole.kind is _Kind.CHALLENGE:
        return Challenge(whole.head)
    if whole.kind is _Kind.REFUSAL:
        return RefusalFrame(bytes(whole.body).decode("utf-8", "replace"))
    epoch, start, log_end, confirmed, proof = _WELCOME.unpack(whole.head)
    if len(whole.body) % _ENTRY.size or not 0 <= start <= log_end or confirmed < 0 or epoch < 0:
        raise PeerBrokeProtocol(f"welcome of epoch {epoch}, log {start} to {log_end}")
    history = history_of(_decode_entries(whole.body))
    return Welcome(epoch, start, log_end, confirmed, history, proof)
