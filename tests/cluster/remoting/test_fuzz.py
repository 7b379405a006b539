"""Whatever bytes arrive, a parser yields commands or raises PeerBrokeProtocol, and nothing else.

The seed is new on every run and named on failure; TANDEM_FUZZ_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from framekit import FrameSplitter

from tandemmq.cluster.nameserver.registration import read_topics
from tandemmq.cluster.nameserver.routes import RegistrationRefused
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol

INPUTS = 20_000
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b",",
    b":",
    b"\\u00",
    b"\\ud800",
    b"1e999",
    b"null",
    b"\xc3",
    b'{"a":',
    b"99999999999999999999",
]

REGISTER_BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":5,'
    b'"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{"TopicTest":{"attributes":{},'
    b'"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest",'
    b'"topicSysFlag":0,"writeQueueNums":8}},"topicQueueMappingInfoMap":{"T":{"currIdMap":{0:1}}}}}'
)


def inflated() -> bytes:
    def text(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    version = b'{"counter":5,"stateVersion":0,"timestamp":1700000000000}'
    line = b'TopicTest 8 8 6 SINGLE_TAG {"message.type":"NORMAL"}'
    return text(version) + struct.pack(">i", 1) + text(line) + text(b"[]") + struct.pack(">i", 0)


def mutate(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(out)) if out else 0
        match rng.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + rng.randint(1, 20)]
            case 2:
                out[at:at] = rng.choice(INTERESTING)
            case 3:
                out[at : at + 4] = rng.choice(INTERESTING)
            case 4:
                out[at:at] = out[at : at + rng.randint(1, 40)]
            case _:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(out)


def seeds(binary: bool) -> list[bytes]:
    commands = [
        Command(105, {"topic": "TopicTest"}, opaque=1, binary=binary),
        Command(310, {key: f"{key}\x01ü" for key in "abcdefghijklmn"}, b"hello", binary=binary),
        Command(0, {"offset": "1"}, flag=1, remark="FOUND", binary=binary),
        Command(34, None, b"{}", binary=binary),
    ]
    return [command.encode() for command in commands]


def fuzz(
    parse: Callable[[bytes], object],
    make: Callable[[random.Random], bytes],
    *allowed: type[Exception],
) -> int:
    """Feed INPUTS inputs; how many were accepted. Fails on any exception that is not allowed."""
    seed = int(os.environ.get("TANDEM_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
    rng = random.Random(seed)
    accepted = 0
    for number in range(INPUTS):
        data = make(rng)
        try:
            parse(data)
            accepted += 1
        except allowed:
            continue
        except BaseException as problem:
            problem.add_note(f"TANDEM_FUZZ_SEED={seed} input {number}: {data[:400].hex()}")
            raise
    return accepted


def framed(header: bytes, kind: int) -> bytes:
    return struct.pack(">II", 4 + len(header), len(header) | kind << 24) + header


@pytest.mark.fuzz
def test_frame_splitter_yields_frames_or_breaks() -> None:
    whole = seeds(False) + seeds(True)

    def make(rng: random.Random) -> bytes:
        return mutate(b"".join(rng.choices(whole, k=rng.randint(1, 4))), rng)

    def parse(data: bytes) -> None:
        splitter = FrameSplitter()
        total = 0
        for start in range(0, len(data), 37):
            total += sum(map(len, splitter.feed(data[start : start + 37])))
        assert total + splitter.pending_bytes == len(data)

    assert 0 < fuzz(parse, make, PeerBrokeProtocol) < INPUTS


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", [0, 1], ids=["json", "binary"])
def test_header_yields_a_command_or_breaks(kind: int) -> None:
    headers = []
    for frame in seeds(bool(kind)):
        size = int.from_bytes(frame[5:8])
        headers.append(frame[8 : 8 + size])

    def make(rng: random.Random) -> bytes:
        return mutate(rng.choice(headers), rng)

    def parse(data: bytes) -> None:
        command = Command.decode(framed(data, kind))
        again = Command.decode(command.encode())
        assert (again.code & 0xFFFF, again.opaque) == (command.code & 0xFFFF, command.opaque)

    assert 0 < fuzz(parse, make, PeerBrokeProtocol) < INPUTS


@pytest.mark.fuzz
@pytest.mark.parametrize("form", ["json", "inflated", "deflated"])
def test_register_body_yields_topics_or_is_refused(form: str) -> None:
    deflated = zlib.compress(inflated())

    def make(rng: random.Random) -> bytes:
        if form == "json":
            return mutate(REGISTER_BODY, rng)
        if form == "inflated":
            return zlib.compress(mutate(inflated(), rng), 1)
        return mutate(deflated, rng)

    def parse(data: bytes) -> None:
        read_topics(data, sender_version=479, compressed=form != "json")

    # adler32 and the deflate stream catch nearly every damage to the compressed bytes
    assert 0 <= fuzz(parse, make, RegistrationRefused) < INPUTS
