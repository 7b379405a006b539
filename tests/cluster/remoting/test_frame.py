"""Frames out of bytes: split, limits, and nothing allocated on a peer's word."""

from __future__ import annotations

import struct

import pytest
from framekit import FrameSplitter
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import (
    PREFIX_BYTES,
    FrameLimits,
    bytes_needed,
    split,
)

commands = st.builds(
    Command,
    code=st.integers(0, 1000),
    ext=st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=4),
    body=st.none() | st.binary(min_size=1, max_size=300),
    opaque=st.integers(-(2**31), 2**31 - 1),
    binary=st.booleans(),
)


@given(st.lists(commands, max_size=6), st.data())
def test_any_cutting_of_a_stream_yields_the_same_frames(
    sent: list[Command], data: st.DataObject
) -> None:
    frames = [command.encode() for command in sent]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    splitter = FrameSplitter()
    got = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in splitter.feed(stream[start:end])
    ]
    assert got == frames
    assert splitter.pending_bytes == 0


def test_split_reports_where_the_partial_frame_begins() -> None:
    first, second = Command(1).encode(), Command(2, body=b"x" * 50).encode()
    view = memoryview(b"??" + first + second[:-1])
    assert split(view, 2, len(view)) == ([(2, 2 + len(first))], 2 + len(first))


@pytest.mark.parametrize(
    ("length", "accepted"),
    [
        (-1, False),
        (0, False),
        (3, False),
        (4, True),
        (0x7FFFFFFF, False),
        (-(2**31), False),
        (16_777_212, True),
        (16_777_213, False),
    ],
)
def test_the_length_word_is_judged_as_soon_as_it_is_there(length: int, accepted: bool) -> None:
    word = struct.pack(">i", length)
    if accepted:
        assert bytes_needed(word, 0, 4) == PREFIX_BYTES
        assert bytes_needed(word + bytes(4), 0, 8) == 4 + length
    else:
        with pytest.raises(PeerBrokeProtocol, match=str(length)):
            bytes_needed(word, 0, 4)
        with pytest.raises(PeerBrokeProtocol, match=str(length)):
            bytes_needed(word + bytes(4), 0, 8)


@pytest.mark.parametrize(
    ("header_word", "what"),
    [
        (0x02000010, "serialization 2"),
        (0xFF000010, "serialization 255"),
        (0x00000FFD, "header of 4093"),
        (0x00FFFFFF, "header of 16777215"),
    ],
)
def test_the_header_word_is_judged_before_the_header_arrives(header_word: int, what: str) -> None:
    with pytest.raises(PeerBrokeProtocol, match=what):
        bytes_needed(struct.pack(">iI", 4096, header_word), 0, 8)


def test_a_header_above_its_limit_is_refused_although_the_frame_is_small_enough() -> None:
    prefix = struct.pack(">iI", 4 + 128 * 1024 + 1, 128 * 1024 + 1)
    with pytest.raises(PeerBrokeProtocol, match="131073"):
        bytes_needed(prefix, 0, 8)
    roomy = FrameLimits(header_bytes_max=1 << 20)
    assert bytes_needed(prefix, 0, 8, roomy) == 8 + 128 * 1024 + 1


def test_memory_grows_with_bytes_received_not_with_bytes_announced() -> None:
    # INV-13
    splitter = FrameSplitter()
    assert splitter.feed(struct.pack(">iI", 16_777_212, 64)) == []
    assert splitter.pending_bytes == 8


def test_the_limit_of_a_frame_is_a_setting() -> None:
    frame = Command(1, body=bytes(2000)).encode()
    with pytest.raises(PeerBrokeProtocol):
        FrameSplitter(FrameLimits(frame_bytes_max=1024)).feed(frame)
    assert FrameSplitter(FrameLimits(frame_bytes_max=4096)).feed(frame) == [frame]
