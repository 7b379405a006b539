"""The short path of a pull gives the answers of the long one, byte for byte, and leaves what is not ordinary."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokerkit import Asker
from messagekit import UNIQUE, FakeConnection, Kit, java_frame, open_kit

from tandemmq.cluster.broker.reading import pullpath, shortpulls
from tandemmq.cluster.broker.reading.members import GroupClient, Heartbeat
from tandemmq.cluster.broker.reading.shortpulls import COMPILED
from tandemmq.cluster.broker.reading.shortpulls import PullPath as Picked
from tandemmq.cluster.broker.reading.subscriptions import Subscription
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import GetStatus
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.residency import Residency

SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1
HIGH_BYTES = 1 << 20

Process = Callable[["Peer", bytes], int]


class Peer(FakeConnection):
    """What the short path needs of a connection besides."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, int, bool]] = []

    def write(self, data: bytes | memoryview) -> None:
        super().write(data)
        self.queued_bytes = len(self.written)

    def heard(self, language: int, version: int, *, binary: bool, count: int = 1) -> None:
        self.noted += [(language, version, binary)] * count


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


TURNS: list[Any] = [pullpath.in_turns, *([shortpulls.in_turns] if COMPILED else [])]
KINDS: list[Any] = [pullpath.PullPath, *([Picked] if COMPILED else [])]


@pytest.fixture(params=KINDS, ids=["readable", "compiled"][: len(KINDS)])
def process(kit: Kit, request: pytest.FixtureRequest) -> Process:
    """Show a short path of either kind a chunk, somewhere in a buffer: where it stopped."""
    path = request.param(kit.pulls, HIGH_BYTES)

    def process(peer: Peer, chunk: bytes) -> int:
        view = memoryview(b"before" + chunk + b"behind")
        stopped: int = path.process(view, 6, 6 + len(chunk), peer)
        return stopped - 6

    return process


@pytest.mark.parametrize("code", [11, 361])
def test_what_is_found_is_answered_byte_for_byte_as_by_the_long_way(
    kit: Kit, process: Process, code: int
) -> None:
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
                assert process(peer, frame) == len(frame), ext
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


def test_both_ways_count_alike(kit: Kit, process: Process) -> None:
    frame = java_frame(11, fields(), b"")
    kit.table[11](Command.decode(frame), Peer())
    once = (kit.stats.get_found, kit.stats.transferred, kit.pulls._took.count)
    assert process(Peer(), frame) == len(frame)
    assert (kit.stats.get_found, kit.stats.transferred, kit.pulls._took.count) == tuple(
        2 * each for each in once
    )
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "BROKER_GET_NUMS"):
        ((_, value),) = kit.stats.values(name)
        assert value % 2 == 0, name
    (waits,) = kit.stats._items["GROUP_GET_LATENCY"].values()
    assert waits.calls == 2


def test_a_pull_that_may_wait_waits_and_is_woken(kit: Kit, process: Process) -> None:
    peer = Peer()
    frame = java_frame(11, fields(queueOffset=30), b"", opaque=9)
    assert process(peer, frame) == len(frame)
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
    kit: Kit, process: Process, what: str, frame: Callable[[], bytes]
) -> None:
    peer = Peer()
    ordinary = java_frame(11, fields(queueOffset=50), b"")
    assert process(peer, ordinary + frame() + ordinary) == len(ordinary), what
    assert len(peer.noted) == 1
    assert kit.offsets.pulled("G", "T", 0) == 30
    assert kit.stats.get_missed == 1
    assert kit.stats.get_found == 0


def test_nothing_is_taken_while_there_is_no_room_to_wait(kit: Kit, process: Process) -> None:
    kit.pulls.held.count_max = 0
    peer = Peer()
    frame = java_frame(11, fields(queueOffset=30, sysFlag=SUBSCRIPTION | SUSPEND | COMMIT), b"")
    assert process(peer, frame) == 0
    assert kit.offsets.pulled("G", "T", 0) == -1
    answer = kit.table[11](Command.decode(frame), peer)
    assert isinstance(answer, Command)
    assert answer.code == 2


def test_a_chunk_that_asks_for_too_much_waits_for_its_answers_to_leave(
    kit: Kit, process: Process
) -> None:
    frame = java_frame(11, fields(), b"")
    peer = Peer()
    chunk = frame * 500
    stopped = process(peer, chunk)
    assert HIGH_BYTES < len(peer.written) < HIGH_BYTES + 20_000
    assert 0 < stopped < len(chunk)
    assert stopped % len(frame) == 0
    assert len(peer.answers()) == len(peer.noted) == stopped // len(frame)


@pytest.mark.parametrize(
    "special", ["nothing", "a reset", "a cut", "a closed broker", "cold", "resident", "far"]
)
def test_a_chunk_is_answered_alike_whatever_is_special(
    kit: Kit, process: Process, monkeypatch: pytest.MonkeyPatch, special: str
) -> None:
    """Several groups, tags that members registered, and what happens between the pulls of a chunk."""
    for group, tags in (("G", "a"), ("H", "a || c")):
        heard = GroupClient(Peer(), "client", 0, 479, 0, 0)
        of = [Subscription.of("T", tags, "TAG", 5)]
        kit.members.register(group, Heartbeat(heard, "CONSUME_PASSIVELY", "CLUSTERING", "", of))
    kernel: Any = Kernel(1.0 if special == "resident" else 0.0)
    if special in ("cold", "resident"):
        monkeypatch.setattr(kit.store.reader, "_hot_bytes", 2_000)
        kit.store.reader.residency = Residency(kit.clock, kernel)
    if special in ("resident", "far"):
        monkeypatch.setattr(kit.pulls._slave_reads, "near_bytes", 1_000)
        monkeypatch.setattr(kit.pulls._slave_reads, "next_broker", lambda group, reader, found: 1)
    rng = random.Random(6)
    asked = [
        fields(
            consumerGroup=rng.choice("GHI"), queueId=rng.randrange(2), queueOffset=rng.choice([0, 1, 5, 28, 30]),
            subscription=rng.choice([None, "*", "b"]), sysFlag=rng.choice([0, SUBSCRIPTION, SUBSCRIPTION | COMMIT]),
            subVersion=rng.choice([0, 5, 6]), commitOffset=rng.randrange(9), maxMsgNums=rng.choice([1, 3, 32]),
        )
        for _ in range(80)
    ]  # fmt: skip
    if special == "a closed broker":
        msgspec.structs.force_setattr(kit.config, "permission", 2)
    frames = [java_frame(11, ext, b"", opaque=number) for number, ext in enumerate(asked)]
    ways = []
    for short in (False, True):
        for group in "GHI":
            kit.offsets.forget_group(group)
            if special == "a reset":
                msgspec.structs.force_setattr(kit.config, "server_side_reset", True)
                kit.offsets.assign_reset(group, "T", 0, 7)
        if special == "a cut":
            kit.pulls._cuts.begin({("T", 0): 3}, "a test")
        peer = Peer()
        left = 0
        rest = b"".join(frames)
        while rest:
            at = process(peer, rest) if short else 0
            rest = rest[at:]
            if rest:  # as dispatch() does
                size = 4 + int.from_bytes(rest[:4], "big")
                answer = kit.table[11](Command.decode(rest[:size]), peer)
                if isinstance(answer, Command):
                    peer.send(answer)
                elif answer is not None:
                    answer.close()  # type: ignore[union-attr]
                    peer.send(
                        Command(
                            0, opaque=Command.decode(rest[:size]).opaque, flag=1, remark="waits"
                        )
                    )
                left += 1
                rest = rest[size:]
        answers = {
            each.opaque: (each.code, each.remark, each.ext, each.body) for each in peer.answers()
        }
        progress = [kit.offsets.queues(group, "T") for group in "GHI"]
        ways.append((answers, progress, [kit.offsets.pulled_in(group, "T") for group in "GHI"]))
    assert len(ways[0][0]) == len(frames)
    assert ways[0] == ways[1]
    remarks = {remark for _, remark, _, _ in ways[0][0].values()}
    if special in ("nothing", "far", "resident"):
        assert "FOUND" in remarks
        assert left < 40, "the others are taken"
    if special == "cold":
        assert "waits" in remarks
    if special == "far":
        found = [ext for code, _, ext, _ in ways[0][0].values() if code == 0]
        assert "1" in {ext["suggestWhichBrokerId"] for ext in found if ext}


@pytest.mark.skipif(not COMPILED, reason="built without a compiler")
@pytest.mark.parametrize(
    "changes",
    [{}, {"sysFlag": SUBSCRIPTION | COMMIT}, {"sysFlag": 0}, {"queueOffset": 29, "bname": "broker-a"}],
    ids=["all", "with progress", "by registered tags", "the last one"],
)  # fmt: skip
def test_the_compiled_form_does_the_ordinary_ones_itself(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    of = [Subscription.of("T", "b", "TAG", 0)]
    heard = GroupClient(Peer(), "client", 0, 479, 0, 0)
    kit.members.register("G", Heartbeat(heard, "CONSUME_PASSIVELY", "CLUSTERING", "", of))
    kit.table[11](Command.decode(java_frame(11, fields(), b"")), Peer())  # makes the group

    def asked(header: memoryview) -> None:
        pytest.fail("the readable form was asked")

    monkeypatch.setattr(pullpath, "_decode", asked)
    peer: Any = Peer()
    frame = java_frame(11, fields(**changes), b"")
    path = Picked(kit.pulls, HIGH_BYTES)
    assert path.process(memoryview(frame * 3), 0, 3 * len(frame), peer) == 3 * len(frame)
    assert [each.remark for each in peer.answers()] == ["FOUND"] * 3
    assert peer.writes == 1


class Kernel:
    def __init__(self, part: float) -> None:
        self.part = part

    def resident(self, path: Path, start: int, size: int) -> float:
        return self.part


@pytest.mark.parametrize("in_turns", TURNS, ids=["readable", "compiled"][: len(KINDS)])
def test_two_paths_take_turns_until_neither_takes_anything(in_turns: Any) -> None:
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


@pytest.mark.parametrize("in_turns", TURNS, ids=["readable", "compiled"][: len(KINDS)])
def test_pulls_and_others_of_a_chunk_take_turns(kit: Kit, in_turns: Any) -> None:
    def others(view: memoryview, start: int, end: int, connection: Any) -> int:
        while bytes(view[start : start + 5]) == b"other":
            start += 5
        return start

    path = Picked(kit.pulls, HIGH_BYTES)
    frame = java_frame(11, fields(), b"")
    chunk = memoryview(frame * 2 + b"other" + frame + b"otherother" + frame[:-1])
    peer: Any = Peer()
    assert in_turns(path.process, others)(chunk, 0, len(chunk), peer) == len(chunk) - len(frame) + 1
    assert len(peer.answers()) == len(peer.noted) == 3
    assert in_turns(path.process, others)(memoryview(b"other"), 0, 5, peer) == 5


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=["readable", "compiled"][: len(KINDS)])
def test_turns_end_where_output_has_to_leave_first(kit: Kit, kind: int) -> None:
    """500 pulls in one chunk were answered by 90 MB at once, and who sent them was cut off for it."""
    chunk = java_frame(11, fields(), b"") * 500
    path = KINDS[kind](kit.pulls, HIGH_BYTES)
    both = TURNS[kind](path.process, lambda view, start, end, connection: start)
    peer: Any = Peer()
    assert 0 < both(memoryview(chunk), 0, len(chunk), peer) < len(chunk)
    assert HIGH_BYTES < len(peer.written) < HIGH_BYTES + 20_000


def test_what_the_disk_does_not_give_is_left_to_the_long_way(
    kit: Kit, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(queue: ConsumeQueue, queue_offset: int, count_max: int) -> Any:
        raise OSError(errno.EMFILE, "no descriptor")

    frame = java_frame(11, fields(), b"")
    peer = Peer()
    assert process(peer, frame) == len(frame)  # makes the group
    monkeypatch.setattr(ConsumeQueue, "window", fails)
    assert process(peer, frame) == 0
    assert len(peer.answers()) == len(peer.noted) == kit.stats.get_found == 1


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
