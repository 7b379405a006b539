"""Replication frames: recorded streams of stock brokers, every cut, damaged bytes, secrets."""

from __future__ import annotations

import base64
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from newinputs import new_inputs

from tandemmq.replication.config import FRAME_BODY_BYTES_MAX
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.errors import PeerBrokeProtocol
from tandemmq.replication.frames import (
    NO_PROOF,
    Challenge,
    Dialect,
    Greeting,
    Handshake,
    Hello,
    MasterFrameReader,
    RefusalFrame,
    Report,
    SlaveFrameReader,
    Transfer,
    Welcome,
    encode_master_frame,
    encode_slave_frame,
    encode_transfer_head,
    history_of,
)
from tandemmq.replication.proofs import master_proof, refuse_hello, refuse_welcome, slave_proof

WIRE = Path(__file__).parents[1] / "golden" / "wire"
GOLDEN = {"ha-classic": Dialect.CLASSIC, "ha-autoswitch": Dialect.AUTO_SWITCH}


def golden_lines(name: str) -> list[dict[str, Any]]:
    with lzma.open(WIRE / f"{name}.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def golden_streams(name: str) -> Iterator[tuple[str, list[bytes]]]:
    """(direction, chunks as recorded) of each connection."""
    streams: dict[tuple[int, str], list[bytes]] = {}
    for line in golden_lines(name):
        if line["k"] == "bytes":
            streams.setdefault((line["c"], line["d"]), []).append(base64.b64decode(line["b"]))
    for (_, direction), chunks in streams.items():
        yield direction, chunks


def read_all(reader: Any, chunks: list[bytes]) -> list[Any]:
    """Feed chunks as a shell would: what is not consumed stays in front of the next chunk."""
    frames: list[Any] = []
    left = b""
    for chunk in chunks:
        data = left + chunk
        found, consumed = reader.read(memoryview(data), 0, len(data))
        frames += [
            replace(each, body=bytes(each.body)) if isinstance(each, Transfer) else each
            for each in found
        ]
        left = data[consumed:]
    assert left == b"", f"{len(left)} bytes of a frame are missing"
    return frames


def encoded(frame: Any, dialect: Dialect, direction: str) -> bytes:
    if direction == ">":
        return encode_slave_frame(frame, dialect)
    return encode_master_frame(frame, dialect)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_recorded_frame_decodes_and_encodes_back(name: str) -> None:
    dialect = GOLDEN[name]
    count = 0
    for direction, chunks in golden_streams(name):
        reader: Any = SlaveFrameReader(dialect) if direction == ">" else MasterFrameReader(dialect)
        frames = read_all(reader, chunks)
        count += len(frames)
        assert b"".join(encoded(frame, dialect, direction) for frame in frames) == b"".join(chunks)
    assert count == {"ha-classic": 283, "ha-autoswitch": 106}[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_frames_do_not_depend_on_how_tcp_cut_the_stream(name: str) -> None:
    rng = random.Random(5)
    dialect = GOLDEN[name]
    for direction, chunks in golden_streams(name):
        stream = b"".join(chunks)[:20_000]
        whole = None
        for size_max in (1, 7, 100, 4000):
            pieces, at = [], 0
            while at < len(stream):
                size = rng.randint(1, size_max)
                pieces.append(stream[at : at + size])
                at += size
            reader: Any = (
                SlaveFrameReader(dialect) if direction == ">" else MasterFrameReader(dialect)
            )
            frames, left = [], b""
            for piece in pieces:
                data = left + piece
                found, consumed = reader.read(memoryview(data), 0, len(data))
                frames += [encoded(each, dialect, direction) for each in found]
                left = data[consumed:]
            assert whole is None or frames == whole
            whole = frames


def test_recorded_auto_switch_frames_mean_what_the_recorder_says() -> None:
    lines = [line for line in golden_lines("ha-autoswitch") if line["k"] == "frame"]
    frames: dict[tuple[int, str], list[Any]] = {}
    streams: dict[tuple[int, str], list[bytes]] = {}
    for line in golden_lines("ha-autoswitch"):
        if line["k"] == "bytes":
            streams.setdefault((line["c"], line["d"]), []).append(base64.b64decode(line["b"]))
    for key, chunks in streams.items():
        reader: Any = (
            SlaveFrameReader(Dialect.AUTO_SWITCH)
            if key[1] == ">"
            else MasterFrameReader(Dialect.AUTO_SWITCH)
        )
        frames[key] = read_all(reader, chunks)
    assert len(lines) == sum(len(each) for each in frames.values())
    for line in lines:
        frame = frames[line["c"], line["d"]].pop(0)
        match frame:
            case Handshake():
                assert (frame.replica, frame.offers_extension) == (line["slaveId"], False)
            case Report():
                assert frame.received == line["ack"]
            case Greeting():
                assert [list(entry) for entry in frame.entries] == line["epochs"]
                assert (frame.end, frame.last_epoch) == (line["maxPhy"], line["lastEpoch"])
            case Transfer():
                assert (frame.offset, len(frame.body)) == (line["offset"], line["size"])
                assert (frame.epoch, frame.epoch_start) == (line["epoch"], line["epochStart"])
                assert frame.confirmed == line["confirm"]


def test_the_specifications_examples() -> None:
    handshake = encode_slave_frame(Handshake(3, True, True), Dialect.AUTO_SWITCH)
    assert handshake.hex() == "00000001000100010000000000000003"
    greeting = Greeting(12288, 5, (Epoch(1, 0), Epoch(2, 4096), Epoch(5, 10240)))
    assert encode_master_frame(greeting, Dialect.AUTO_SWITCH).hex() == (
        "0000000100000024000000000000300000000005"
        "000000010000000000000000"
        "000000020000000000001000"
        "000000050000000000002800"
    )
    assert (
        encode_transfer_head(
            Transfer(10240, bytes(181), 5, 10240, 10240), Dialect.AUTO_SWITCH
        ).hex()
        == "00000002000000b5000000000000280000000005000000000000280000000000000028"
        "00"
    )


HELLO = Hello("c", "broker-a", 2, 77, 5, compressed=True, nonce=b"n" * 16)
CHALLENGE = Challenge(b"m" * 16)
WELCOME = Welcome(6, 100, 500, 400, EpochHistory((Epoch(1, 0), Epoch(6, 300))))
EXTENDED_FRAMES = [
    (">", HELLO),
    (">", Report(500, 400, 6)),
    ("<", CHALLENGE),
    ("<", WELCOME),
    ("<", RefusalFrame("wrong secret")),
    ("<", Transfer(500, b"x" * 3000, 6, 300, 480)),
    ("<", Transfer(500, b"", 6, 300, 480)),
]


@pytest.mark.parametrize(("direction", "frame"), EXTENDED_FRAMES)
@pytest.mark.parametrize("compressed", [False, True])
def test_extended_frames_come_back(direction: str, frame: Any, compressed: bool) -> None:
    if direction == ">":
        data = encode_slave_frame(frame, Dialect.EXTENDED)
        reader: Any = SlaveFrameReader(Dialect.EXTENDED)
    else:
        data = encode_master_frame(frame, Dialect.EXTENDED, compressed=compressed)
        reader = MasterFrameReader(Dialect.EXTENDED)
    assert read_all(reader, [data[:5], data[5:17], data[17:]]) == [frame]


@pytest.mark.parametrize(("direction", "frame"), EXTENDED_FRAMES)
def test_any_flipped_bit_of_an_extended_frame_is_noticed(direction: str, frame: Any) -> None:
    if direction == ">":
        data = encode_slave_frame(frame, Dialect.EXTENDED)
    else:
        data = encode_master_frame(frame, Dialect.EXTENDED)
    for bit in range(min(len(data), 200) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        reader: Any = (
            SlaveFrameReader(Dialect.EXTENDED)
            if direction == ">"
            else MasterFrameReader(Dialect.EXTENDED)
        )
        try:
            found, _ = reader.read(memoryview(damaged), 0, len(damaged))
        except PeerBrokeProtocol:
            continue
        assert found == [], f"bit {bit}"  # it waits for bytes that a larger size announces


def castagnoli(data: bytes) -> int:
    """CRC-32C bit by bit; of b"123456789" it is E3069283 (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_of_our_frames_is_crc_32c() -> None:
    assert castagnoli(b"123456789") == 0xE3069283
    data = encode_master_frame(Transfer(4096, b"a body" * 50, 3, 0, 4096), Dialect.EXTENDED)
    assert int.from_bytes(data[12:16], "big") == castagnoli(data[:12] + data[16:])


def test_a_body_sent_by_the_kernel_is_checked_too() -> None:
    head = encode_transfer_head(
        Transfer(0, b"", 1, 0, 0), Dialect.EXTENDED, body_bytes=5, body_crc=crc32c(b"12345")
    )
    frames = read_all(MasterFrameReader(Dialect.EXTENDED), [head + b"12345"])
    assert frames == [Transfer(0, b"12345", 1, 0, 0)]


def test_an_offer_is_invisible_to_a_stock_master_and_seen_by_ours() -> None:
    data = encode_slave_frame(Handshake(2, True, False, True), Dialect.AUTO_SWITCH)
    assert len(data) == 16
    assert (
        data[:4] + data[6:] == encode_slave_frame(Handshake(2), Dialect.AUTO_SWITCH)[:4] + data[6:]
    )
    assert int.from_bytes(data[4:6], "big") not in (0, 1)
    assert read_all(SlaveFrameReader(Dialect.AUTO_SWITCH), [data]) == [
        Handshake(2, True, False, True)
    ]


def test_a_slave_that_offered_follows_the_master_into_the_extension() -> None:
    data = encode_master_frame(CHALLENGE, Dialect.EXTENDED)
    offering = MasterFrameReader(Dialect.AUTO_SWITCH, offers=True)
    assert read_all(offering, [data]) == [CHALLENGE]
    assert offering.dialect is Dialect.EXTENDED
    with pytest.raises(PeerBrokeProtocol):
        read_all(MasterFrameReader(Dialect.AUTO_SWITCH), [data])


def test_secrets_are_proved_in_both_directions() -> None:
    hello = replace(HELLO, proof=slave_proof(b"s", CHALLENGE, HELLO))
    ask = {"cluster": "c", "group": "broker-a"}
    assert refuse_hello(hello, CHALLENGE, secret=b"s", **ask) is None
    assert refuse_hello(hello, CHALLENGE, secret=b"t", **ask) == "wrong secret"
    assert refuse_hello(hello, Challenge(b"x" * 16), secret=b"s", **ask) == "wrong secret"
    assert refuse_hello(replace(hello, replica=3), CHALLENGE, secret=b"s", **ask) == "wrong secret"
    assert refuse_hello(HELLO, CHALLENGE, secret=b"s", **ask) == "wrong secret"
    assert refuse_hello(HELLO, CHALLENGE, secret=b"", **ask) is None
    problem = refuse_hello(hello, CHALLENGE, secret=b"s", cluster="c", group="broker-b")
    assert problem is not None and "broker-b" in problem
    welcome = replace(WELCOME, proof=master_proof(b"s", HELLO, WELCOME))
    assert refuse_welcome(welcome, HELLO, secret=b"s") is None
    assert refuse_welcome(replace(welcome, end=501), HELLO, secret=b"s") == "wrong secret"
    assert refuse_welcome(WELCOME, HELLO, secret=b"s") == "wrong secret"
    assert WELCOME.proof == NO_PROOF


@pytest.mark.parametrize(
    ("dialect", "data"),
    [
        (Dialect.CLASSIC, "0000000000000000ffffffff"),
        (Dialect.CLASSIC, "ffffffffffffffff00000000"),
        (Dialect.CLASSIC, "0000000000000000" + f"{FRAME_BODY_BYTES_MAX + 1:08x}"),
        (Dialect.AUTO_SWITCH, "00000003000000000000000000000000"),
        (Dialect.AUTO_SWITCH, "00000001" + "0000000d" + "00" * 12),
        (Dialect.AUTO_SWITCH, "00000002" + "00000001" + "ff" * 8 + "00" * 21),
    ],
)
def test_a_master_that_sends_nonsense_is_refused(dialect: Dialect, data: str) -> None:
    content = memoryview(bytes.fromhex(data))
    with pytest.raises(PeerBrokeProtocol):
        MasterFrameReader(dialect).read(content, 0, len(content))


def test_no_buffer_grows_because_of_an_announced_size() -> None:
    frame = bytearray(encode_master_frame(Transfer(0, b"x", 1, 0, 0), Dialect.EXTENDED))
    frame[8:12] = (FRAME_BODY_BYTES_MAX + 1).to_bytes(4, "big")
    reader = MasterFrameReader(Dialect.EXTENDED)
    with pytest.raises(PeerBrokeProtocol):
        reader.needed(memoryview(frame), 0, 16)
    whole = encode_master_frame(Transfer(0, b"x" * 99, 1, 0, 0), Dialect.EXTENDED)
    assert reader.needed(memoryview(whole), 0, 12) == len(whole)


def test_empty_reigns_of_a_stock_master_are_folded() -> None:
    assert history_of((Epoch(1, 0), Epoch(2, 0), Epoch(3, 70))).entries == (
        Epoch(2, 0),
        Epoch(3, 70),
    )


@given(st.binary(max_size=200), st.sampled_from(Dialect), st.booleans(), st.booleans())
def test_whatever_bytes_arrive_frames_or_a_refusal_come_out(
    data: bytes, dialect: Dialect, from_slave: bool, offers: bool
) -> None:
    reader: Any = SlaveFrameReader(dialect) if from_slave else MasterFrameReader(dialect, offers)
    try:
        frames, consumed = reader.read(memoryview(data), 0, len(data))
    except PeerBrokeProtocol:
        return
    assert 0 <= consumed <= len(data)
    assert frames or consumed == 0


@pytest.mark.fuzz
def test_twenty_thousand_damaged_streams_never_confuse_a_reader() -> None:
    rng = new_inputs()
    originals = [
        (dialect, direction, b"".join(chunks)[:3000])
        for name, dialect in GOLDEN.items()
        for direction, chunks in golden_streams(name)
    ]
    for direction in "<>":
        whole = b"".join(
            encoded(frame, Dialect.EXTENDED, way)
            for way, frame in EXTENDED_FRAMES
            if way == direction
        )
        originals.append((Dialect.EXTENDED, direction, whole))
    for _ in range(20_000):
        dialect, direction, stream = rng.choice(originals)
        data = bytearray(stream)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reader: Any = (
            SlaveFrameReader(dialect) if direction == ">" else MasterFrameReader(dialect, True)
        )
        try:
            reader.read(memoryview(data), 0, len(data))
        except PeerBrokeProtocol:
            continue
