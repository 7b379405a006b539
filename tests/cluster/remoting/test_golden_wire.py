"""Recorded connections of the original: every frame decodes, and encodes to the same again."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from framekit import FrameSplitter

from tandemmq.cluster.remoting.codes import LANGUAGE_NAMES, RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol

WIRE = Path(__file__).parents[2] / "golden" / "wire"
SESSIONS = sorted(
    path
    for path in WIRE.glob("*.jsonl.xz")
    if path.name.split(".")[0] not in ("ha-classic", "ha-autoswitch")
)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def frames(path: Path) -> Iterator[dict[str, Any]]:
    return (line for line in lines(path) if line["k"] == "frame")


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_all_recorded_sessions_are_here() -> None:
    assert len(SESSIONS) == 11


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.name.split(".")[0])
def test_every_recorded_frame_decodes_to_what_was_recorded_and_encodes_again(path: Path) -> None:
    count = 0
    for line in frames(path):
        if line.get("undecodable"):
            continue
        frame = base64.b64decode(line["b"])
        command = Command.decode(frame)
        ext = {key: as_text(value) for key, value in (line.get("ext") or {}).items()}
        if command.binary:
            ext = {key: value for key, value in ext.items() if value}  # empty means absent there
        assert command.code == int(line["code"]), line
        assert command.opaque == line["opaque"]
        assert command.flag == line["flag"]
        assert command.binary == (line["ser"] == "ROCKETMQ")
        assert command.version == line["ver"]
        if line["lang"] in LANGUAGE_NAMES.values():
            assert LANGUAGE_NAMES[command.language] == line["lang"]
        assert (command.remark or "")[:120] == (line.get("remark") or "")
        assert (command.ext or {}) == ext
        assert len(command.body or b"") == line["bodyLen"]
        if line["bodyLen"]:
            assert frame.endswith(bytes(command.body or b""))
        assert Command.decode(command.encode()) == command
        count += 1
    assert count > 0


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.name.split(".")[0])
def test_every_recorded_code_has_a_name(path: Path) -> None:
    requests = {
        line["code"]
        for line in frames(path)
        if "code" in line and "req" not in line and not line["flag"] & 1
    }
    answers = {line["code"] for line in frames(path) if "req" in line}
    unknown = {code for code in requests if isinstance(code, int)} - {int(c) for c in RequestCode}
    assert unknown <= {9998, 9999}  # made up for the edge cases
    assert answers <= {int(code) for code in ResponseCode}


def test_our_binary_form_of_a_recorded_binary_frame_has_the_same_size() -> None:
    for line in frames(WIRE / "b53-c53-binary.jsonl.xz"):
        frame = base64.b64decode(line["b"])
        ours = Command.decode(frame).encode()
        absent = sum(6 + len(key) for key, value in (line.get("ext") or {}).items() if value == "")
        assert len(ours) == len(frame) - absent  # only the order of the ext fields may differ


@pytest.mark.parametrize("session", ["b53-raw-edge", "b49-raw-edge"])
def test_malformed_frames_close_exactly_where_the_original_closed(session: str) -> None:
    path = WIRE / f"{session}.jsonl.xz"
    sent: dict[int, bytes] = {}
    cases: list[dict[str, Any]] = []
    for line in lines(path):
        if line["k"] in ("frame", "rest") and line["d"] == ">":
            sent[line["c"]] = sent.get(line["c"], b"") + base64.b64decode(line["b"])
        elif line["k"] == "case":
            cases.append(line)
    assert len(cases) == len(sent) >= 50
    closed = 0
    for case, number in zip(cases, sorted(sent), strict=True):
        try:
            for frame in FrameSplitter().feed(sent[number]):
                Command.decode(frame)
            broke = False
        except PeerBrokeProtocol:
            broke = True
        assert broke == case["closedByServer"], case["case"]
        closed += broke
    assert closed >= 9
