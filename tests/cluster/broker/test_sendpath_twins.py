"""The three ways of a send - compiled, readable, long - give the same answers and the same log."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from messagekit import (
    UNIQUE,
    FakeClock,
    FakeConnection,
    Kit,
    decode_frames,
    java_frame,
    open_kit,
    send_ext,
)

from tandemmq.cluster.broker.sending import sendpath
from tandemmq.cluster.broker.sending.acks import Overdue
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import bytes_needed
from tandemmq.storage import COMPILED, FlushFailed, FlushMode, StoreNotWritable

INPUTS = 20_000
UNIQUE_CHARS = "0123456789ABCDEF"


try:
    from tandemmq.cluster.broker.sending._sendpath import SendPath as CompiledSendPath
except ImportError:  # built without a compiler
    CompiledSendPath = None

#: the short paths that this build has; the compiled one writes through the compiled codec only
KINDS: list[Any] = [sendpath.SendPath]
if CompiledSendPath is not None and COMPILED:
    KINDS.append(CompiledSendPath)
needs_compiled = pytest.mark.skipif(len(KINDS) < 2, reason="built without a compiler")


class Never:
    """A send path that takes nothing: the long way only."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        self.messages = 0

    def process(self, view: memoryview, start: int, end: int, connection: Any) -> int:
        return start


Answers = list[tuple[Any, ...]]


def serve(
    kit: Kit, path: Any, chunks: list[bytes], connection: FakeConnection
) -> tuple[Answers, bool]:
    """Feed chunks of frames as the server does: the answers, and whether the peer broke protocol."""
    broken = False
    for chunk in chunks:
        connection.active_ms = kit.clock.monotonic_ms()
        view = memoryview(bytearray(chunk))  # writable and transient, as the receive buffer is
        try:
            _serve_chunk(kit, path, view, connection)
        except PeerBrokeProtocol:
            broken = True
            break
        finally:
            view[:] = bytes(len(view))  # whoever kept a slice of it has zeros now
            kit.clock.pass_ms(7)
    if kit.acks.waiting:
        kit.store.flush_log(0)
        kit.acks.reached(kit.store.flushed, 1, 1)
    answers = [
        (a.code, a.opaque, a.flag, a.remark, a.ext, a.binary, a.language, a.version)
        for a in sorted(decode_frames(connection.written), key=lambda a: a.opaque)
    ]
    return answers, broken


def _serve_chunk(kit: Kit, path: Any, view: memoryview, connection: FakeConnection) -> None:
    at = 0
    while at < len(view):
        at = path.process(view, at, len(view), connection)
        if at >= len(view):
            return
        size = bytes_needed(view, at, len(view) - at)
        if at + size > len(view):
            return
        request = Command.decode(view[at : at + size])
        handler = kit.table.get(request.code)
        answer = handler(request, connection) if handler else request.reply(3)
        if answer is not None:
            assert isinstance(answer, Command)
            connection.send(answer)
        at += size


Outcome = tuple[Answers, bool, bytes]


def outcome_of(kind: Any, root: Path, chunks: list[bytes], **config: Any) -> tuple[Outcome, int]:
    with open_kit(root, FakeClock(), **config) as kit:
        kit.topic("T", 4)
        kit.topic("Multi", 2, topic_filter_type="MULTI_TAG")
        kit.topic("One", 1)
        kit.topic("Ordered", 2, order=True)
        path = kit.send_path(kind)
        answers, broken = serve(kit, path, chunks, FakeConnection())
        records = b"".join(records_from(kit, 0))
        return (answers, broken, records), path.messages


def assert_alike(tmp_path: Path, chunks: list[bytes], **config: Any) -> list[int]:
    """How many messages each of the short paths took."""
    expected, _ = outcome_of(Never, tmp_path / "long", chunks, **config)
    taken = []
    for number, kind in enumerate(KINDS):
        found, messages = outcome_of(kind, tmp_path / f"short{number}", chunks, **config)
        assert found[0] == expected[0]
        assert found[1:] == expected[1:]
        taken.append(messages)
    return taken


# -- streams ----------------------------------------------------------------------------------


def unique_id(rng: random.Random) -> str:
    return "".join(rng.choices(UNIQUE_CHARS, k=32))


ODD_PROPERTIES = [
    "",
    "TAGS\x01x",
    "DELAY\x013\x02",
    "DELAY\x010\x02",
    "DELAY\x01x\x02",
    "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01false\x02",
    "TIMER_DELAY_MS\x015\x02",
    "TIMER_OUT_MS\x015\x02",
    "POP_CK\x011 2\x02",
    "__CRC32#\x01123\x02",
    "INNER_NUM\x012\x02",
    "WAIT\x01false\x02",
    "WAIT\x01TRUE\x02",
    "WAIT\x01\x02",
    "UNIQ_KEY\x01\x02",
    "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02",
    "UNIQ_KEY\x01quote\"d\x02",
    "UNIQ_KEY\x01ä\x02",
    "\x02\x02\x01\x02A\x01\x02",
    "CLUSTER\x01forged\x02MSG_REGION\x01x",
    "KEYS\x01" + "k" * 5_000 + "\x02",
    "KEYS\x01" + "k" * 32_600 + "\x02",
    "KEYS\x01日本語 ключ 🙂\x02",
    "KEYS\x01tab\there \\ / \" \x7f\x02",
    "XUNIQ_KEY\x01no\x02",
    "A\x01DELAY\x011\x02",
]  # fmt: skip

ODD_FIELDS: list[dict[str, str | None]] = [
    {"e": "9"},
    {"e": "3"},
    {"e": "04"},
    {"e": "-0"},
    {"e": "+1"},
    {"e": " 1"},
    {"e": "1.0"},
    {"e": "1e0"},
    {"e": ""},
    {"e": "2147483648"},
    {"e": None},
    {"b": None},
    {"b": ""},
    {"b": "NoSuch", "c": "NoTemplate"},
    {"b": "Fresh"},
    {"b": "../x"},
    {"b": "T" * 128},
    {"b": "Tä"},
    {"b": "Multi", "e": "1"},
    {"b": "Ordered"},
    {"b": "One", "e": "-1"},
    {"b": "SCHEDULE_TOPIC_XXXX"},
    {"b": "%RETRY%G", "j": "1"},
    {"b": "%DLQ%G"},
    {"f": "1"},
    {"f": str(0x301)},
    {"f": "4"},
    {"f": "8"},
    {"f": "12"},
    {"f": "16"},
    {"f": "x"},
    {"g": "-5"},
    {"g": "9223372036854775807"},
    {"g": "9223372036854775808"},
    {"g": None},
    {"h": "-2147483648"},
    {"h": "true"},
    {"j": "5"},
    {"j": ""},
    {"j": None},
    {"k": "true"},
    {"k": "1"},
    {"k": None},
    {"l": "3"},
    {"m": "true"},
    {"m": "1"},
    {"m": None},
    {"i": None},
    {"n": None},
    {"ns": "name", "nsd": "true", "ReqT": "0"},
    {"a": None},
    {"a": "grüppe"},
    {"d": None},
    {"d": "zero"},
]


def odd_ext(rng: random.Random) -> dict[str, str]:
    ext: dict[str, str | None] = dict(
        send_ext("T", f"UNIQ_KEY\x01{unique_id(rng)}\x02TAGS\x01t\x02")
    )
    ext["e"] = str(rng.randrange(4))
    if rng.random() < 0.5:
        ext.update(rng.choice(ODD_FIELDS))
    if rng.random() < 0.5 and ext["i"] is not None:
        odd = rng.choice(ODD_PROPERTIES)
        ext["i"] = ext["i"] + odd if rng.random() < 0.7 else odd + ext["i"]
    return {name: value for name, value in ext.items() if value is not None}


V1_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


def odd_json(rng: random.Random, code: int, ext: dict[str, Any], opaque: int, flag: int) -> bytes:
    """A JSON header as some client might spell it."""
    if rng.random() < 0.1:
        ext = {key: int(value) if value.isdigit() else value for key, value in ext.items()}
    head: dict[str, Any] = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": rng.choice(["JAVA", "GO", "PYTHON"]),
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    match rng.randrange(12):
        case 0:
            head["remark"] = None
        case 1:
            head["remark"] = "hello"
        case 2:
            head["unknown"] = {"a": [1, 2]}
        case 3:
            items = list(head.items())
            rng.shuffle(items)
            head = dict(items)
        case 4:
            del head["flag" if flag == 0 else "language"]
        case 5:
            head["code"] = str(code)
        case _:
            pass
    separators = (", ", " : ") if rng.random() < 0.1 else (",", ":")
    return json.dumps(head, separators=separators, ensure_ascii=rng.random() < 0.5).encode()


def odd_frame(rng: random.Random, opaque: int) -> bytes:
    ext = odd_ext(rng)
    code = rng.choice([310, 310, 310, 320, 10, 10])
    if code == 10:
        ext = {V1_NAMES.get(name, name): value for name, value in ext.items()}
    flag = rng.choice([0, 0, 0, 0, 2])
    body = rng.randbytes(rng.choice([0, 1, 17, 300, 1_000]))
    if rng.random() < 0.4:
        return Command(code, ext, body or None, opaque, flag, binary=True).encode()
    header = odd_json(rng, code, ext, opaque, flag)
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def odd_chunks(seed: int, frames: int) -> list[bytes]:
    rng = random.Random(seed)
    chunks, chunk = [], b""
    for opaque in range(1, frames + 1):
        chunk += odd_frame(rng, opaque)
        if rng.random() < 0.1:
            chunks.append(chunk)
            chunk = b""
    return [*chunks, chunk]


# -- tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_streams_of_ordinary_and_odd_sends_end_alike(tmp_path: Path, seed: int) -> None:
    taken = assert_alike(tmp_path, odd_chunks(seed, 150))
    assert min(taken) > 10


def test_the_same_holds_while_answers_wait_for_the_disk(tmp_path: Path) -> None:
    taken = assert_alike(tmp_path, odd_chunks(99, 200), storage={"flush_mode": FlushMode.SYNC})
    assert min(taken) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_staged_is_held_before_another_put_commits_it(tmp_path: Path, kind: Any) -> None:
    with open_kit(tmp_path, FakeClock(), storage={"flush_mode": FlushMode.SYNC}) as kit:
        kit.topic("T")
        soon: list[Callable[[], None]] = []
        path = kit.send_path(kind, soon.append)
        connection = FakeConnection()
        connection.active_ms = kit.clock.monotonic_ms()
        kit.send()  # makes the log
        frame = Command(310, send_ext(), b"x", opaque=5).encode()
        assert path.process(memoryview(frame), 0, len(frame), connection) == len(frame)
        kit.send()  # the long way, in the same turn of the loop
        kit.acks.reached(kit.store.end, 1, 1)
        assert [answer.opaque for answer in decode_frames(connection.written)] == [5]
        for call in soon:
            call()
        assert not kit.acks.waiting and len(kit.records()) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("binary", [False, True])
def test_answers_that_wait_say_the_truth_whatever_was_expected(
    tmp_path: Path, kind: Any, binary: bool
) -> None:
    with open_kit(tmp_path, FakeClock(), storage={"flush_mode": FlushMode.SYNC}) as kit:
        kit.topic("T")
        kit.send()  # makes the log
        path = kit.send_path(kind)
        kit.acks.give_up(Overdue(ResponseCode.SYSTEM_ERROR, 1, 0))
        for epoch, copies, durable in [(3, 1, 1), (3, 2, 1), (3, 2, 2), (4, 2, 2), (4, 1, 1)]:
            kit.acks.epoch = epoch
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            request = Command(310, send_ext(), b"x", opaque=5, binary=binary).encode()
            frames = request * 3
            assert path.process(memoryview(frames), 0, len(frames), connection) == len(frames)
            kit.acks.reached(kit.store.end, copies, durable)
            kit.clock.pass_ms(2_000)
            for answer in decode_frames(connection.written):
                assert answer.code == 0 and answer.binary is binary and answer.ext is not None
                said = [int(answer.ext[name]) for name in ("epoch", "copies", "durable")]
                assert said == [epoch, copies, durable]
            assert len(decode_frames(connection.written)) == 3


def test_the_same_holds_where_the_log_rolls_often(tmp_path: Path) -> None:
    rng = random.Random(5)
    chunks = [
        b"".join(
            java_frame(
                310,
                send_ext("T", f"UNIQ_KEY\x01{unique_id(rng)}\x02"),
                rng.randbytes(rng.randrange(1, 900)),
                n,
            )
            for n in range(start, start + 40)
        )
        for start in range(1, 400, 40)
    ]
    taken = assert_alike(tmp_path, chunks, storage={"segment_bytes": 1 << 14})
    assert min(taken) > 350


def test_ordinary_sends_are_taken_by_both_short_paths(tmp_path: Path) -> None:
    json_form = b"".join(
        java_frame(310, send_ext("T"), b"body", n, flag=n % 2 * 2) for n in range(1, 21)
    )
    binary = b"".join(
        Command(310, send_ext("T"), b"body", n, binary=True).encode() for n in range(21, 41)
    )
    # The very first finds no file yet: making one is the long way's business.
    assert assert_alike(tmp_path, [json_form, binary]) == [39] * len(KINDS)


@needs_compiled
def test_the_compiled_path_takes_the_first_header_form_too(tmp_path: Path) -> None:
    ext = {V1_NAMES[name]: value for name, value in send_ext("T").items()}
    first = java_frame(310, send_ext("T"), b"makes the file", 1)
    chunk = java_frame(10, ext, b"body", 2) + Command(10, ext, b"body", 3, binary=True).encode()
    assert assert_alike(tmp_path, [first, chunk])[1] == 2


class Trio:
    """The three ways side by side over stores that stay open: every frame must change all of them alike."""

    def __init__(self, kits: list[Kit]) -> None:
        self.kits = kits
        self.paths = [kit.send_path(kind) for kit, kind in zip(kits, ways(), strict=True)]
        self.connections = [FakeConnection() for _ in kits]
        for kit in kits:
            kit.topic("T", 4)
            kit.store.log.roll()
            kit.store.flush_log(0)

    def feed(self, chunk: bytes) -> None:
        outcomes = []
        for kit, path, connection in zip(self.kits, self.paths, self.connections, strict=True):
            start = kit.store.end
            answers, broken = serve(kit, path, [chunk], connection)
            connection.written = b""
            records = [record.tobytes() for record in records_from(kit, start)]
            outcomes.append((answers, broken, records, kit.store.end))
        for outcome in outcomes[1:]:
            assert outcome == outcomes[0]


def ways() -> list[Any]:
    return [Never, *KINDS]


def records_from(kit: Kit, start: int) -> Iterator[memoryview]:
    size = kit.config.storage.segment_bytes
    while start < kit.store.end:
        record = kit.store.log.record_at(start)
        if record is None:  # a blank
            start += size - start % size
        else:
            yield record
            start += len(record)


SCRAPS = [
    b'"',
    b"\\",
    b"\\u0001",
    b"\\u00e9",
    b"\\ud800",
    b"{}",
    b"{",
    b"}",
    b",",
    b":",
    b"\x00",
    b"\xff",
]
SCRAPS += [
    b" ",
    b"\n",
    b"1",
    b"-",
    b"null",
    b"\xc3\xa4",
    b"\xed\xa0\x80",
    b"\x01",
    b"\x02",
    b'"e":"1",',
]


#: what a header's text may hold at any place, as it lies in the frame: the compiled form reads eight bytes at a time
MARKS = [b"\\n", b"\\u0041", b'\\"', b"\\\\", b"\xc3\xa4", b"\xf0\x9f\x99\x82", b"\x7f", b" "]
BROKEN_MARKS = [b"\x1f", b"\x00", b"\x80", b'"', b"\\x"]


def with_mark(before: int, mark: bytes, after: int) -> bytes:
    plain = java_frame(
        310, send_ext(properties=f"KEYS\x01MARK\x02UNIQ_KEY\x01{UNIQUE}\x02"), b"body"
    )
    header_size = int.from_bytes(plain[4:8], "big")
    header = plain[8 : 8 + header_size].replace(b"MARK", b"k" * before + mark + b"k" * after)
    body = plain[8 + header_size :]
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def test_a_mark_is_seen_at_every_place_of_a_word(tmp_path: Path) -> None:
    frames = [
        with_mark(at, mark, after) for mark in MARKS for at in range(17) for after in (0, 1, 9)
    ]
    # the first one opens the log, the long way
    assert assert_alike(tmp_path, [b"".join(frames)]) == [len(frames) - 1] * len(KINDS)


@pytest.mark.parametrize("mark", BROKEN_MARKS)
@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 9])
def test_a_broken_text_is_left_wherever_it_breaks(tmp_path: Path, mark: bytes, at: int) -> None:
    sound = with_mark(at, b" ", 9)
    assert assert_alike(tmp_path, [sound + sound + with_mark(at, mark, 9)]) == [1] * len(KINDS)


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """A sound frame with a few wounds, mostly in its header, mostly with lengths that still fit."""
    found = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(8, len(found))
        match rng.randrange(4):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                del found[at : at + rng.randint(1, 9)]
            case 2:
                found[at:at] = rng.choice(SCRAPS)
            case _:
                found[at:at] = found[at : at + rng.randint(1, 40)]
    if len(found) < 16:
        return frame
    if rng.random() < 0.8:
        found[5:8] = (len(found) - 8 - rng.randint(1, 4)).to_bytes(3, "big")
    found[0:4] = (len(found) - 4).to_bytes(4, "big")
    return bytes(found)


def lets_the_broker_choose(chunk: bytes) -> bool:
    """Whether damage made the queue id negative: any queue will do."""
    try:
        found = Command.decode(memoryview(chunk)[: bytes_needed(chunk, 0, len(chunk))])
        return int((found.ext or {}).get("e", 0)) < 0
    except (PeerBrokeProtocol, ValueError):
        return False


@pytest.mark.fuzz
def test_damaged_frames_end_alike(tmp_path: Path) -> None:
    seed = int(os.environ.get("TANDEM_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
    rng = random.Random(seed)
    sound = [
        java_frame(310, send_ext("T"), b"body", 1),
        Command(310, send_ext("T"), b"body", 1, binary=True).encode(),
        *(odd_frame(rng, 1) for _ in range(40)),
    ]
    after = java_frame(310, send_ext("T"), b"next", 2)
    with ExitStack() as stack:
        kits = [
            stack.enter_context(open_kit(tmp_path / str(n), auto_create_topic=False))
            for n in range(len(ways()))
        ]
        trio = Trio(kits)
        for number in range(INPUTS):
            chunk = damaged(rng, rng.choice(sound)) + after
            if lets_the_broker_choose(chunk):
                continue  # each way draws its queue from a source of its own
            try:
                trio.feed(chunk)
            except BaseException as problem:
                problem.add_note(f"TANDEM_FUZZ_SEED={seed} input {number}: {chunk[:400].hex()}")
                raise
        assert trio.paths[1].messages > INPUTS / 20  # the damage must not stop everything


def test_a_frame_that_is_not_whole_stays_where_it_is(tmp_path: Path) -> None:
    frame = java_frame(310, send_ext("T"), b"body", 1)
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T")
            path = kit.send_path(kind)
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            kit.store.log.roll()
            for cut in range(len(frame)):
                view = memoryview(frame + frame[:cut])
                assert path.process(view, 0, len(view), connection) == len(frame)
            assert path.messages == len(frame)
            assert connection.writes == len(frame)


def test_a_changed_topic_is_asked_for_anew(tmp_path: Path) -> None:
    frame = memoryview(java_frame(310, send_ext("T", e="3"), b"body", 1))
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 4)
            kit.store.log.roll()
            path = kit.send_path(kind)
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            assert path.process(frame, 0, len(frame), connection) == len(frame)
            topic = kit.topics.get("T")
            assert topic is not None
            topic.read_queue_nums = topic.write_queue_nums = 2
            kit.topics.permission_changed()
            assert path.process(frame, 0, len(frame), connection) == 0


def test_deleted_queues_begin_anew_for_the_short_paths_too(tmp_path: Path) -> None:
    frame = memoryview(java_frame(310, send_ext("T"), b"body", 1))
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 4)
            kit.store.log.roll()
            path = kit.send_path(kind)
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            path.process(frame, 0, len(frame), connection)
            kit.dispatch()
            kit.store.delete_topic("T")
            path.process(frame, 0, len(frame), connection)
            kit.dispatch()
            assert kit.records()[-1].queue_offset == 0
            assert kit.store.max_offset("T", 0) == 1


def test_what_the_store_refuses_the_short_paths_leave_to_the_long_way(tmp_path: Path) -> None:
    frame = memoryview(java_frame(310, send_ext("T"), b"body", 1))
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 4)
            kit.store.log.roll()
            path = kit.send_path(kind)
            connection = FakeConnection()
            size = len(frame)
            two = memoryview(bytes(frame) * 2)
            connection.active_ms = kit.clock.monotonic_ms() - 200  # the first held up the second
            assert path.process(two, size, 2 * size, connection) == size
            connection.active_ms += 1
            assert path.process(two, size, 2 * size, connection) == 2 * size
            kit.store.flags.writable = False
            assert path.process(frame, 0, size, connection) == 0
            kit.store.flags.writable = True
            assert path.process(frame, 0, size, connection) == size
            kit.store.stats.appended_messages += 500_000  # dispatch is behind
            while path.messages < 5_000 and path.process(frame, 0, size, connection) == size:
                pass
            assert path.messages < 2_000


def test_the_answers_of_a_chunk_are_one_write(tmp_path: Path) -> None:
    chunk = memoryview(b"".join(java_frame(310, send_ext("T"), b"body", n) for n in range(1, 301)))
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 4)
            kit.store.log.roll()
            path = kit.send_path(kind)
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            assert path.process(chunk, 0, len(chunk), connection) == len(chunk)
            assert connection.writes == 1
            assert [answer.opaque for answer in connection.answers()] == list(range(1, 301))
            assert kit.store.stats.appended_messages == 300


def test_a_message_without_a_queue_goes_to_one_of_the_write_queues(tmp_path: Path) -> None:
    chunk = memoryview(
        b"".join(java_frame(310, send_ext("T", e="-1"), b"body", n) for n in range(1, 101))
    )
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 3)
            kit.store.log.roll()
            path = kit.send_path(kind)
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            path.process(chunk, 0, len(chunk), connection)
            assert {record.queue_id for record in kit.records()} == {0, 1, 2}


@needs_compiled
def test_both_short_paths_have_the_same_methods() -> None:
    readable, compiled = (
        [name for name in dir(kind) if not name.startswith("_") and name != "messages"]
        for kind in KINDS
    )
    assert readable == compiled == ["process"]


# --- released together ---


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__module__)
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Staging]:
    """A send path whose chunks are released when told."""
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        kit.store.log.roll()
        yield Staging(kit, request.param)


class Staging:
    def __init__(self, kit: Kit, kind: Any) -> None:
        self.kit = kit
        self.due: list[Callable[[], None]] = []
        self.path = kit.send_path(kind, self.due.append)

    def take(self, connection: FakeConnection, *topics: str) -> None:
        chunk = b"".join(
            java_frame(310, send_ext(topic), b"body", n) for n, topic in enumerate(topics, 1)
        )
        connection.active_ms = self.kit.clock.monotonic_ms()
        self.path.process(memoryview(chunk), 0, len(chunk), connection)


def test_chunks_of_one_iteration_are_committed_and_answered_together(staging: Staging) -> None:
    store = staging.kit.store
    one, other = FakeConnection(), FakeConnection()
    staging.take(one, "T", "T")
    staging.take(other, "T")
    staging.take(one, "T")
    assert (len(staging.due), store.end, staging.kit.wakes) == (1, 0, 0)
    assert (one.writes, other.writes) == (0, 0), "nothing is committed yet"
    staging.due.pop()()
    assert staging.kit.wakes == 1 and store.stats.appended_messages == 4
    assert store.stats.appended_bytes == store.end
    assert [answer.opaque for answer in one.answers()] == [1, 2, 1]
    assert [answer.opaque for answer in other.answers()] == [1]
    assert len(staging.kit.records()) == 4
    staging.take(other, "T")
    assert len(staging.due) == 1, "the next iteration asks again"


def test_nothing_is_answered_once_the_log_refused_a_write(staging: Staging) -> None:
    connection = FakeConnection()
    staging.take(connection, "T")
    staging.due.pop()()
    assert connection.writes == 1
    end = staging.kit.store.end
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, staging.kit.store.log.run.segments[0]._descriptor)
    os.close(full)
    staging.take(connection, "T")
    with pytest.raises(FlushFailed):
        staging.due.pop()()
    staging.take(connection, "T")
    assert (connection.writes, staging.due) == (1, []), "refused from now on"
    assert staging.kit.store.end == end
    assert isinstance(staging.kit.store.refusal(), StoreNotWritable)
    with pytest.raises(FlushFailed):
        staging.kit.store.close()


def test_chunk_that_fails_half_way_leaves_nothing_staged(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = staging.kit.admission.topic

    def judge(name: str) -> Any:
        if name == "U":
            raise RuntimeError("cannot judge")
        return known(name)

    monkeypatch.setattr(staging.kit.admission, "topic", judge)
    connection = FakeConnection()
    with pytest.raises(RuntimeError, match="cannot judge"):
        staging.take(connection, "T", "U", "T")
    staging.due.pop()()
    assert staging.kit.store.log.tail.end == staging.kit.store.end > 0
    assert [record.queue_offset for record in staging.kit.records()] == [0]
    assert [answer.opaque for answer in connection.answers()] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_nobody_vouches_for_goes_the_long_way(tmp_path: Path, kind: Any) -> None:
    """The short paths read no signature: with access control none of its sends may pass them."""

    class Strangers:
        vouched = False

        def vouches(self, connection: Any) -> bool:
            return self.vouched

    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        kit.store.log.roll()
        kit.identities = strangers = Strangers()
        path, view = (
            kit.send_path(kind),
            memoryview(bytearray(java_frame(310, send_ext(), b"hello"))),
        )
        kit.connection.active_ms = kit.clock.monotonic_ms()
        assert path.process(view, 0, len(view), kit.connection) == 0
        assert kit.records() == []
        strangers.vouched = True
        assert path.process(view, 0, len(view), kit.connection) == len(view)
        assert [record.body for record in kit.records()] == [b"hello"]


def test_one_way_sends_are_committed_without_an_answer(staging: Staging) -> None:
    connection = FakeConnection()
    frame = java_frame(310, send_ext("T"), b"body", 1, flag=2)
    connection.active_ms = staging.kit.clock.monotonic_ms()
    staging.path.process(memoryview(frame), 0, len(frame), connection)
    staging.due.pop()()
    assert (connection.writes, len(staging.kit.records())) == (0, 1)
