"""Bytes no client of ours would send: each gets the answer the protocol names or a closed connection.

Nothing else changes: no topic, no file, no other connection's waiting time, little memory.
"""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from raw_wire import (
    HEART_BEAT,
    PULL,
    SEND,
    Load,
    Wire,
    binary_frame,
    bodies,
    count_lines,
    files_below,
    framed,
    json_frame,
    memory_bytes,
    producing,
    pull_ext,
    send_ext,
    send_one,
    topic_names,
)

from tandemmq.chaos.asking import answers
from tandemmq.chaos.processes import ServerProcess
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.remoting.codes import RequestCode

pytestmark = pytest.mark.system

SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED, ILLEGAL = 0, 1, 3, 13
LOCK, UNLOCK, REGISTER = 41, 42, 103
MEMORY_GROWTH_MAX = 100 << 20
# Longer than any of these could take on a shared machine; what they once did took minutes.
PAUSE_S_MAX = 1.5
SEND_CODES = {10, 310, 320, 325}


@dataclass(frozen=True)
class Servers:
    name_server: NameServer
    broker: Broker
    directory: Path

    def all(self) -> list[tuple[ServerProcess, str]]:
        return [(each, each.address) for each in (self.name_server, self.broker)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("hostile")
    with (
        NameServer(directory / "names").start() as name_server,
        Broker(
            directory / "broker",
            name_server.address,
            settings={"mappedFileSizeCommitLog": 256 << 20},
        ).start() as broker,
    ):
        send_one(broker.address, "Known")
        yield Servers(name_server, broker, directory)
        for server in (broker, name_server):
            assert server.alive, server.tail()
            assert "Traceback" not in server.output(), server.tail()


@pytest.fixture
def unharmed(servers: Servers) -> Iterator[Load]:
    """A producer beside the test, whose longest wait is bounded; and state that does not change."""
    topics = topic_names(servers.broker.address) | {"Beside"}
    memory = {process.name: memory_bytes(process) for process, _ in servers.all()}
    with producing(servers.broker.address, "Beside") as load:
        outside = {path for path in files_below(servers.directory) if "/store" not in path}
        yield load
    assert load.problem is None, load.problem
    assert not load.refused
    assert max(load.seconds) < PAUSE_S_MAX, "another connection had to wait"
    assert topic_names(servers.broker.address) == topics
    assert outside == {path for path in files_below(servers.directory) if "/store" not in path}
    for process, address in servers.all():
        assert answers(address)
        assert memory_bytes(process) - memory[process.name] < MEMORY_GROWTH_MAX, process.name


def prefix(length: int, word: int) -> bytes:
    return struct.pack(">iI", length, word)


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(64),
    "two GiB": prefix(2**31 - 1, 100),
    "negative": prefix(-1, 100),
    "too short": prefix(3, 0),
    "just above the limit": prefix(16 * 1024 * 1024 + 1, 100),
    "header longer than frame": prefix(100, 97) + bytes(96),
    "header above its limit": prefix(200_000, 150_000) + bytes(200_000),
    "unknown serialization": prefix(10, 0x07000002) + b"{}abcd",
    "header is no JSON": framed(b"\xff\xfe{]"),
    "header is a list": framed(b"[1,2]"),
    "deep header": framed(b'{"code":10,"x":' + b"[" * 60_000 + b"]" * 60_000 + b"}"),
    "deep ext": framed(b'{"code":10,"extFields":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001),
    "escapes without end": framed(b'{"code":10,"a":"' + b'\\"' * 60_000 + b"\\"),
    "commas": framed(b'{"code":10,' + b"," * 120_000 + b"}]"),
    "huge integer": framed(b'{"code":' + b"9" * 100_000 + b"}"),
    "code beyond 32 bits": framed(b'{"code":99999999999999}'),
    "300 ext fields": framed(
        json.dumps({"code": 10, "extFields": {f"k{n}": "v" for n in range(300)}}).encode()
    ),
    "long ext key": framed(json.dumps({"code": 10, "extFields": {"k" * 300: "v"}}).encode()),
    "binary cut short": framed(b"\0\x0a\0\1", kind=1),
    "binary sizes lie": framed(
        struct.pack(">hBhiii", 10, 0, 1, 1, 0, 2**31 - 1) + b"x" * 40, kind=1
    ),
    "binary ext lies": framed(
        struct.pack(">hBhiiii", 10, 0, 1, 1, 0, 0, 8) + b"\xff\xff\xff\xff\x7f\xff\xff\xff", kind=1
    ),
}


def test_garbage_closes_its_connection_and_nothing_else(servers: Servers, unharmed: Load) -> None:
    lines = {
        process.name: count_lines(process, "peer broke protocol") for process, _ in servers.all()
    }
    began = time.monotonic()
    for process, address in servers.all():
        for name, data in GARBAGE.items():
            with Wire(address) as wire:
                wire.send(data)
                assert wire.ended(), f"{process.name} keeps a connection after {name}"
    seconds = time.monotonic() - began
    for process, _ in servers.all():
        new = count_lines(process, "peer broke protocol") - lines[process.name]
        assert 1 <= new <= 2 + seconds / 10, f"{process.name} wrote {new} lines"


def test_random_bytes_close_or_wait_and_never_answer_success(
    servers: Servers, unharmed: Load
) -> None:
    rng = random.Random(7)
    for _, address in servers.all():
        for _ in range(150):
            with Wire(address, timeout_s=0.05) as wire:
                size = rng.choice((1, 4, 7, 8, 9, 50, 5_000))
                try:
                    wire.send(rng.randbytes(size))
                    answer = wire.read()
                except (OSError, TimeoutError):
                    continue
                raise AssertionError(answer)


@pytest.mark.parametrize("binary", [False, True])
def test_a_frame_cut_at_any_byte_changes_nothing(
    servers: Servers, unharmed: Load, binary: bool
) -> None:
    address = servers.broker.address
    before = bodies(address, "Known")
    frame = (binary_frame if binary else json_frame)(SEND, send_ext("Known"), b"never whole")
    for size in range(1, len(frame), 5):
        with Wire(address) as wire:
            wire.send(frame[:size])
    assert bodies(address, "Known") == before
    with Wire(address) as wire:  # and byte by byte it is one message
        for at in range(len(frame)):
            wire.send(frame[at : at + 1])
        assert wire.read().code == SUCCESS
    assert len(bodies(address, "Known")) == len(before) + 1


def test_announced_bytes_cost_no_memory(servers: Servers, unharmed: Load) -> None:
    wires = [Wire(address) for _, address in servers.all() for _ in range(200)]
    for wire in wires:  # 400 frames of 16 MiB begin, and none goes on
        wire.send(prefix(16 * 1024 * 1024 - 4, 50) + b"{")
    time.sleep(0.3)
    for wire in wires:
        wire.close()


def test_unknown_codes_are_answered_and_the_connection_goes_on(
    servers: Servers, unharmed: Load
) -> None:
    known = {int(code) for code in RequestCode}
    rng = random.Random(3)
    codes = [rng.randrange(-(2**31), 2**31) for _ in range(500)] + list(range(-300, 2_000))
    for _, address in servers.all():
        with Wire(address) as wire:
            for code in codes:
                if code not in known:
                    answer = wire.request(json_frame(code, {}, b"body"))
                    assert answer.code == NOT_SUPPORTED
                    assert answer.remark == f" request type {code} not supported"


def test_every_code_survives_missing_and_senseless_fields(servers: Servers, unharmed: Load) -> None:
    """No header field, no body; then every field there is with a value that makes no sense."""
    names = (
        "topic", "consumerGroup", "producerGroup", "group", "groupName", "queueId", "queueOffset", "offset",
        "b", "e", "g", "h", "timestamp", "maxNum", "beginTimestamp", "endTimestamp", "key", "index", "count",
        "msgId", "j", "i", "c", "d",
    )  # fmt: skip
    frames: list[Callable[[int], bytes]] = [
        json_frame,
        lambda code: json_frame(code, {}, b"null"),
        lambda code: json_frame(code, dict.fromkeys(names, "-9223372036854775809"), b"[]"),
        lambda code: json_frame(code, dict.fromkeys(names, "\0" + "x" * 40), b'{"a":'),
        lambda code: binary_frame(code, dict.fromkeys(names, "1e999"), b"\xff" * 100),
    ]
    allowed = {int(code) for code in RequestCode} - {int(RequestCode.DELETE_EXPIRED_COMMITLOG)}
    for process, address in servers.all():
        failures = count_lines(process, "request failed")
        for code in sorted(allowed):
            for make in frames:
                with Wire(address, timeout_s=5) as wire:
                    wire.send(make(code & 0x7FFF))
                    try:
                        answer = wire.read()
                    except ConnectionError:
                        continue
                    if code in SEND_CODES:
                        assert answer.code != SUCCESS
        assert count_lines(process, "request failed") == failures, (
            f"{process.name} met bytes it did not expect:\n{process.tail()}"
        )


def heartbeat(**members: object) -> bytes:
    return json.dumps({"clientID": "c", **members}).encode()


ESCAPES = b'{"x":' + b"[" * 70 + b'"' + b'\\"' * 400_000
BOMBS = {
    "deep": b'{"x":' + b"[" * 500_000,
    "deep objects": b'{"x":' * 200_000,
    "escapes without end": ESCAPES,
    "escapes within 64 KiB": ESCAPES[:65_000],
    "huge integer": b'{"x":' + b"9" * 2_000_000 + b"}",
    "references": b'{"a":[1],'
    + b",".join(
        b'"b%d":[{"$ref":"$.%s"},{"$ref":"$.%s"}]' % (n, *(2 * (b"b%d" % (n - 1) if n else b"a",)))
        for n in range(60)
    )
    + b"}",
    "cycle": b'{"a":{"$ref":"$"}}',
    "NaN": b'{"x":NaN,"y":Infinity}',
    "no UTF-8": b'{"x":"\xff\xfe"}' * 10,
    "not an object": b"[" + b"1," * 200_000 + b"1]",
}
BODY_CODES = {
    "broker": [34, 41, 42, 46, 17, 200, 222, 25, 225, 307],
    "name server": [103, 322, 217, 318],
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_json_bombs_are_refused_while_others_are_served(
    servers: Servers, unharmed: Load, bomb: str
) -> None:
    for process, address in servers.all():
        codes = BODY_CODES["name server" if process is servers.name_server else "broker"]
        with Wire(address, timeout_s=30) as wire:
            for code in codes:
                ext = {
                    "brokerName": "b",
                    "clusterName": "c",
                    "brokerAddr": "127.0.0.1:1",
                    "brokerId": "0",
                }
                answer = wire.request(json_frame(code, {"topic": "Bomb/", **ext}, BOMBS[bomb]))
                assert answer.code != NOT_SUPPORTED or code not in (34, 41, 103)
                assert len(answer.remark) < 1_000


def test_a_heartbeat_and_a_lock_that_name_too_much_are_refused_whole(
    servers: Servers, unharmed: Load
) -> None:
    groups = [{"groupName": f"P{n}"} for n in range(400_000)]
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in range(200_000)]
    consumer = {
        "groupName": "G",
        "subscriptionDataSet": [{"topic": f"T{n}"} for n in range(100_000)],
    }
    with Wire(servers.broker.address, timeout_s=30) as wire:
        for code, body in (
            (HEART_BEAT, heartbeat(producerDataSet=groups)),
            (HEART_BEAT, heartbeat(consumerDataSet=[consumer])),
            (HEART_BEAT, heartbeat(clientID="c" * 100_000)),
            (LOCK, json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": queues}).encode()),
            (UNLOCK, json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": queues}).encode()),
        ):
            answer = wire.request(json_frame(code, {}, body))
            assert answer.code not in (SUCCESS, NOT_SUPPORTED), answer.remark


def test_a_small_registration_that_inflates_to_millions_of_topics_is_refused(
    servers: Servers, unharmed: Load
) -> None:
    line = b"T 1 1 6 SINGLE_TAG {}"
    count = 500_000
    text = struct.pack(">i", 2) + b"{}" + struct.pack(">i", count)
    text += (struct.pack(">i", len(line)) + line) * count + struct.pack(">i", 0)
    ext = {
        "brokerName": "bomb", "clusterName": "c", "brokerAddr": "127.0.0.1:1", "brokerId": "0",
        "haServerAddr": "", "compressed": "true",
    }  # fmt: skip
    with Wire(servers.name_server.address, timeout_s=30) as wire:
        for body in (zlib.compress(text, 9), zlib.compress(bytes(100 << 20), 9)):
            answer = wire.request(json_frame(REGISTER, ext, body))
            assert answer.code == SYSTEM_ERROR
            assert "topics" in answer.remark or "inflates" in answer.remark
        assert b"bomb" not in wire.request(json_frame(106)).body


@pytest.mark.parametrize(
    ("ext", "size"),
    [
        ({}, 4 * 1024 * 1024 + 1),
        ({}, 12 * 1024 * 1024),
        ({"properties": "K\x01" + "v" * 32_800 + "\x02"}, 10),
        ({"topic": "Known", "batch": "true"}, 5 * 1024 * 1024),
    ],
)
def test_oversized_messages_and_properties_are_refused_and_not_stored(
    servers: Servers, unharmed: Load, ext: dict[str, str], size: int
) -> None:
    address = servers.broker.address
    before = bodies(address, "Known")
    with Wire(address) as wire:
        answer = wire.request(json_frame(SEND, send_ext("Known") | ext, b"\0" * size))
        assert answer.code in (ILLEGAL, SYSTEM_ERROR), answer
        assert answer.remark
        assert wire.request(json_frame(SEND, send_ext("Known", 1), b"ok")).code == SUCCESS
    assert bodies(address, "Known") == before


def test_answers_nobody_asked_for_and_oneway_garbage_are_dropped(
    servers: Servers, unharmed: Load
) -> None:
    for _, address in servers.all():
        with Wire(address) as wire:
            for opaque in range(500):
                wire.send(json_frame(0, {}, b"x", opaque=opaque, flag=1))  # a response
                wire.send(json_frame(SEND, {"topic": "../x"}, b"x", flag=2))
                wire.send(json_frame(9_999, {}, b"x", flag=2))
            answer = wire.request(json_frame(9_998, opaque=77))
            assert answer.code == NOT_SUPPORTED
            assert answer.header["opaque"] == 77, "the first thing that was answered"


def test_hundreds_of_pulls_at_once_come_at_the_readers_pace(
    servers: Servers, unharmed: Load
) -> None:
    address = servers.broker.address
    with Wire(address, timeout_s=20) as wire:
        for _ in range(300):
            wire.request(json_frame(SEND, send_ext("Known", 2), b"y" * 8_000))
        frame = json_frame(PULL, pull_ext("Known", 0, 2))
        wire.send(frame * 600)
        time.sleep(0.5)  # 150 MB were asked for, and nothing is read yet
        assert memory_bytes(servers.broker) < 200 << 20
        for _ in range(600):
            assert len(wire.read().body) > 200_000


def test_one_large_message_for_hundreds_of_held_pulls_is_not_copied_for_each(
    servers: Servers, unharmed: Load
) -> None:
    address = servers.broker.address
    with Wire(address) as wire:
        assert wire.request(json_frame(SEND, send_ext("Known", 3), b"first")).code == SUCCESS
        wire.send(json_frame(PULL, pull_ext("Known", 1, 3, sysFlag="6")) * 600)
        time.sleep(0.3)
        with Wire(address) as sender:
            large = bytes(4 * 1024 * 1024)
            assert sender.request(json_frame(SEND, send_ext("Known", 3), large)).code == SUCCESS
        assert wire.ended(), "2.4 GB of answers is more than one connection gets"
    assert memory_bytes(servers.broker) < 200 << 20
