"""The short path of a pull gives the answers of the long one, byte for byte, and leaves what is not ordinary."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker
from messagekit import UNIQUE, FakeConnection, Kit, java_frame, open_kit

from tandemmq.cluster.broker.reading.pullpath import PullPath, in_turns
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import GetStatus

SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1
HIGH_BYTES = 1 << 20


class Peer(FakeConnection):
    """What the short path needs of a connection besides."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, int, bool]] = []

    @property
    def queued_bytes(self) -> int:
        return len(self.written)

    def heard(self, language: int, version: int, *, binary: bool) -> None:
        self.noted.append((language, version, binary))


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 3)
        for number in range(60):
            text = f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01{'abc'[number % 3]}\x02"
            kit.send(b"%d" % number * 40, e=str(number % 2), i=text)
        kit.dispatch()
        yield kit


def fields(**changes: Any) -> dict[str, str]:
    found = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION | SUSPEND, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG", **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value is not None}


def path(kit: Kit) -> PullPath:
    return PullPath(kit.pulls.pull, HIGH_BYTES)


def process(kit: Kit, peer: Peer, chunk: bytes) -> int:
    at: int = path(kit).process(memoryview(chunk), 0, len(chunk), peer)  # type: ignore[arg-type]
    return at


@pytest.mark.parametrize("code", [11, 361])
def test_what_is_found_is_answered_byte_for_byte_as_by_the_long_way(kit: Kit, code: int) -> None:
    rng = random.Random(5)
    found = 0
    for number in range(300):
        ext = fields(
            queueId=rng.randrange(3),
            queueOffset=rng.choice([0, 0, 3, 29, 30, 31, 77, -1]),
            maxMsgNums=rng.choice([1, 5, 32]),
            subscription=rng.choice(["*", "", "a", "a || b", "none"]),
            sysFlag=SUBSCRIPTION | rng.choice([0, COMMIT]),
            commitOffset=rng.randrange(30),
            expressionType=rng.choice(["TAG", None, "tag"]),
            bname=rng.choice([None, "broker-a"]),
        )
        frame = java_frame(code, ext, b"", opaque=rng.randrange(-(1 << 31), 1 << 31))
        ways: list[tuple[bytes, Any, Any]] = []
        for short in (False, True):
            peer = Peer()
            kit.offsets.forget_group("G")
            if short:
                assert process(kit, peer, frame) == len(frame), ext
                assert peer.noted == [(0, 479, False)]
            else:
                answer = kit.table[code](Command.decode(frame), peer)
                if answer is not None:
                    peer.send(answer)
            ways.append(
                (peer.written, kit.offsets.pulled_in("G", "T"), kit.offsets.queues("G", "T"))
            )
        assert ways[0] == ways[1], (number, ext)
        (decoded,) = peer.answers()
        found += decoded.remark == GetStatus.FOUND.name
    assert found > 50


def test_both_ways_count_alike(kit: Kit) -> None:
    frame = java_frame(11, fields(), b"")
    kit.table[11](Command.decode(frame), Peer())
    once = (kit.stats.get_found, kit.stats.transferred, kit.pulls._took.count)
    assert process(kit, Peer(), frame) == len(frame)
    assert (kit.stats.get_found, kit.stats.transferred, kit.pulls._took.count) == tuple(
        2 * each for each in once
    )
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY", "BROKER_GET_NUMS"):
        ((_, value),) = kit.stats.values(name)
        assert value % 2 == 0, name


def test_a_pull_that_may_wait_waits_and_is_woken(kit: Kit) -> None:
    peer = Peer()
    frame = java_frame(11, fields(queueOffset=30), b"", opaque=9)
    assert process(kit, peer, frame) == len(frame)
    assert not peer.written
    assert kit.pulls.held.count == 1
    kit.send(b"new", e="0")
    kit.dispatch()
    (answer,) = peer.answers()
    assert (answer.opaque, answer.code, answer.ext and answer.ext["nextBeginOffset"]) == (
        9,
        0,
        "31",
    )


ODD: list[tuple[str, Callable[[], bytes]]] = [
    ("an unknown field", lambda: java_frame(11, fields(more="x"), b"")),
    ("a number that is none", lambda: java_frame(11, fields(queueId="zero"), b"")),
    ("a missing field", lambda: java_frame(11, fields(queueOffset=None), b"")),
    ("a one-way pull", lambda: java_frame(11, fields(), b"", flag=2)),
    ("a response", lambda: java_frame(11, fields(), b"", flag=1)),
    ("a body", lambda: java_frame(11, fields(), b"body")),
    ("another code", lambda: java_frame(31, fields(), b"")),
    ("a long header", lambda: java_frame(11, fields(subscription="x" * 2_000), b"")),
    ("a binary header", lambda: Command(11, fields(), None, binary=True).encode()),
    ("a header that breaks off", lambda: java_frame(11, fields(), b"")[:-3]),
    ("an unknown topic", lambda: java_frame(11, fields(topic="none"), b"")),
    ("a queue that is not there", lambda: java_frame(11, fields(queueId=3), b"")),
    ("an expression of nothing", lambda: java_frame(11, fields(subscription="||"), b"")),
    ("a filter", lambda: java_frame(11, fields(expressionType="SQL92", subscription="a = 1"), b"")),
    ("no registered member", lambda: java_frame(11, fields(sysFlag=0), b"")),
    ("nothing", lambda: b"\0\0\0\4\0\0\0\0"),
]


@pytest.mark.parametrize(("what", "frame"), ODD, ids=[what for what, _ in ODD])
def test_what_is_not_ordinary_is_left_and_nothing_has_happened(
    kit: Kit, what: str, frame: Callable[[], bytes]
) -> None:
    peer = Peer()
    ordinary = java_frame(11, fields(queueOffset=50), b"")
    assert process(kit, peer, ordinary + frame() + ordinary) == len(ordinary), what
    assert len(peer.noted) == 1
    assert kit.offsets.pulled("G", "T", 0) == 30
    assert kit.stats.get_missed == 1
    assert kit.stats.get_found == 0


def test_nothing_is_taken_while_there_is_no_room_to_wait(kit: Kit) -> None:
    kit.pulls.held.count_max = 0
    peer = Peer()
    frame = java_frame(11, fields(queueOffset=30, sysFlag=SUBSCRIPTION | SUSPEND | COMMIT), b"")
    assert process(kit, peer, frame) == 0
    assert kit.offsets.pulled("G", "T", 0) == -1
    answer = kit.table[11](Command.decode(frame), peer)
    assert isinstance(answer, Command)
    assert answer.code == 2


def test_a_chunk_that_asks_for_too_much_waits_for_its_answers_to_leave(kit: Kit) -> None:
    frame = java_frame(11, fields(), b"")
    peer = Peer()
    chunk = frame * 500
    stopped = process(kit, peer, chunk)
    assert HIGH_BYTES < len(peer.written) < HIGH_BYTES + 20_000
    assert 0 < stopped < len(chunk)
    assert stopped % len(frame) == 0


def test_two_paths_take_turns_until_neither_takes_anything() -> None:
    asked: list[str] = []

    def takes(letter: str) -> Any:
        def process(view: memoryview, start: int, end: int, connection: Any) -> int:
            asked.append(letter)
            while start < end and chr(view[start]) == letter:
                start += 1
            return start

        return process

    chunk = memoryview(b"aabxab")
    both = in_turns(takes("a"), takes("b"))
    connection: Any = Peer()
    assert both(chunk, 0, 6, connection) == 3
    assert both(chunk, 4, 6, connection) == 6
    assert asked == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("guarded", [False, True])
async def test_the_fast_port_and_a_guarded_broker_have_no_short_pulls(
    make_broker: Any, guarded: bool
) -> None:
    def takes(asker: Asker, port: int) -> bool:
        frame = java_frame(11, fields(topic="BenchmarkTest", queueOffset=9), b"")
        chunk = asker.broker.listening[port].endpoint.chunk
        assert chunk is not None
        peer: Any = Peer()
        return chunk(memoryview(frame), 0, len(frame), peer) == len(frame)

    asked = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"rootpw12"}',
    }
    asker = make_broker(**asked if guarded else {})
    assert (takes(asker, 0), takes(asker, 1)) == (not guarded, False)
