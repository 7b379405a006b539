"""A replication stream as bytes: the simulator's messages through the real codec, in randomly cut chunks."""

from __future__ import annotations

import random
import struct
from typing import Any

from msgspec import structs

from tandemmq.chaos.sim.network import Message
from tandemmq.replication.frames import (
    Challenge,
    Dialect,
    Hello,
    MasterFrameReader,
    Report,
    SlaveFrameReader,
    Transfer,
    Welcome,
    encode_master_frame,
    encode_slave_frame,
    history_of,
)
from tandemmq.replication.proofs import refuse_hello, slave_proof

SECRET = b"the simulator's secret"
_CHALLENGE = Challenge(b"0123456789abcdef")


class Codec:
    """One end of one connection."""

    def __init__(self, *, slave_side: bool, rng: random.Random) -> None:
        self.slave_side = slave_side
        self.rng = rng
        self._left = b""
        self._reader: Any = (
            MasterFrameReader(Dialect.EXTENDED)
            if slave_side
            else SlaveFrameReader(Dialect.EXTENDED)
        )

    def encode(self, message: Message) -> list[bytes]:
        data = self._encode(message)
        chunks = []
        while data:
            size = self.rng.randint(1, max(40, len(data)))
            chunks.append(data[:size])
            data = data[size:]
        return chunks

    def _encode(self, message: Message) -> bytes:
        kind = message[0]
        if kind == "hello":
            _, replica, incarnation, epoch, learner = message
            hello = Hello("sim", "a", replica, incarnation, epoch, learner=learner)
            hello = structs.replace(hello, proof=slave_proof(SECRET, _CHALLENGE, hello))
            return encode_slave_frame(hello, Dialect.EXTENDED)
        if kind == "report":
            return encode_slave_frame(Report(*message[1:]), Dialect.EXTENDED)
        if kind == "welcome":
            _, epoch, entries, start, end = message
            return encode_master_frame(
                Welcome(epoch, start, end, 0, history_of(entries)), Dialect.EXTENDED
            )
        _, offset, cells, epoch, epoch_start, confirmed = message
        body = struct.pack(f">{len(cells)}q", *cells)
        frame = Transfer(offset, body, epoch, epoch_start, confirmed)
        return encode_master_frame(frame, Dialect.EXTENDED, compressed=self.rng.random() < 0.2)

    def decode(self, chunk: bytes) -> list[Message]:
        data = self._left + chunk
        frames, consumed = self._reader.read(memoryview(data), 0, len(data))
        self._left = data[consumed:]
        return [self._message(frame) for frame in frames]

    def _message(self, frame: Any) -> Message:
        if isinstance(frame, Hello):
            problem = refuse_hello(frame, _CHALLENGE, cluster="sim", group="a", secret=SECRET)
            assert problem is None, problem
            return ("hello", frame.replica, frame.incarnation, frame.epoch, frame.learner)
        if isinstance(frame, Report):
            return ("report", frame.received, frame.flushed, frame.epoch)
        if isinstance(frame, Welcome):
            return ("welcome", frame.epoch, frame.history.entries, frame.start, frame.end)
        cells = list(struct.unpack(f">{len(frame.body) // 8}q", frame.body))
        return ("frame", frame.offset, cells, frame.epoch, frame.epoch_start, frame.confirmed)
