"""The three ways of a send - compiled, readable, long - give the same answers and the same log."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messagekit import FakeClock, FakeConnection, Kit, decode_frames, java_frame, open_kit, send_ext

from cluster.broker import sendpath
from cluster.remoting.command import Command
from cluster.remoting.errors import PeerBrokeProtocol
from cluster.remoting.frame import bytes_needed
from storage import COMPILED, FlushMode

UNIQUE_CHARS = "0123456789ABCDEF"


def compiled_path() -> Any:
    """The compiled send path; a build without it must say so by skipping, never by passing."""
    module = pytest.importorskip("cluster.broker._sendpath", exc_type=ImportError)
    if not COMPILED:
        pytest.skip("the compiled send path needs the compiled codec")
    return module.SendPath


class Never:
    """A send path that takes nothing: the long way only."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        self.messages = 0

    def process(self, view: memoryview, start: int, end: int, connection: Any) -> int:
        return start


Outcome = tuple[list[tuple[Any, ...]], bytes, bool]


def run(kit: Kit, path: Any, chunks: list[bytes], connection: FakeConnection) -> Outcome:
    """Feed chunks of whole frames as the server does: what was answered, the log, and whether the peer broke."""
    broken = False
    for chunk in chunks:
        connection.active_ms = kit.clock.monotonic_ms()
        view = memoryview(bytearray(chunk))  # writable and transient, as the receive buffer is
        try:
            at = 0
            while at < len(view):
                at = path.process(view, at, len(view), connection)
                if at >= len(view):
                    break
                size = bytes_needed(view, at, len(view) - at)
                if at + size > len(view):
                    break
                request = Command.decode(view[at : at + size])
                handler = kit.table.get(request.code)
                answer = handler(request, connection) if handler else request.reply(3)
                if answer is not None:
                    assert isinstance(answer, Command)
                    connection.send(answer)
                at += size
        except PeerBrokeProtocol:
            broken = True
        view[:] = bytes(len(view))  # whoever kept a slice of it has zeros now
        kit.clock.pass_ms(7)
        if broken:
            break
    if kit.acks.waiting:
        kit.store.flush_log(0)
        kit.acks.reached(kit.store.flushed)
    answers = [
        (a.code, a.opaque, a.flag, a.remark, a.ext, a.binary, a.language, a.version)
        for a in sorted(decode_frames(connection.written), key=lambda a: a.opaque)
    ]
    log = bytes(kit.store.log.read(0, kit.store.end) or b"")
    return answers, log, broken


def outcome_of(kind: Any, root: Path, chunks: list[bytes], **config: Any) -> tuple[Outcome, int]:
    with open_kit(root, FakeClock(), **config) as kit:
        kit.topic("T", 4)
        kit.topic("Multi", 2, topic_filter_type="MULTI_TAG")
        kit.topic("One", 1)
        kit.topic("Ordered", 2, order=True)
        path = kit.send_path(kind)
        return run(kit, path, chunks, FakeConnection()), path.messages


KINDS: list[Callable[[], Any]] = [compiled_path, lambda: sendpath.SendPath]


def assert_alike(tmp_path: Path, chunks: list[bytes], **config: Any) -> list[int]:
    """How many messages each of the short paths took."""
    expected, _ = outcome_of(Never, tmp_path / "long", chunks, **config)
    taken = []
    for number, kind in enumerate(KINDS):
        found, messages = outcome_of(kind(), tmp_path / f"short{number}", chunks, **config)
        assert found[0] == expected[0]
        assert found[1] == expected[1]
        assert found[2] == expected[2]
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


@pytest.fixture
def same_ids(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ids that the broker makes depend on nothing but their number."""
    monkeypatch.setattr("cluster.broker.messages.os.getpid", lambda: 1)
    yield


# -- tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_streams_of_ordinary_and_odd_sends_end_alike(
    tmp_path: Path, same_ids: None, seed: int
) -> None:
    taken = assert_alike(tmp_path, odd_chunks(seed, 150))
    assert min(taken) > 10


def test_the_same_holds_while_answers_wait_for_the_disk(tmp_path: Path, same_ids: None) -> None:
    taken = assert_alike(tmp_path, odd_chunks(99, 200), storage={"flush_mode": FlushMode.SYNC})
    assert min(taken) > 10


def test_the_same_holds_where_the_log_rolls_often(tmp_path: Path, same_ids: None) -> None:
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
    assert assert_alike(tmp_path, [json_form, binary]) == [39, 39]


def test_the_compiled_path_takes_the_first_header_form_too(tmp_path: Path) -> None:
    ext = {V1_NAMES[name]: value for name, value in send_ext("T").items()}
    first = java_frame(310, send_ext("T"), b"makes the file", 1)
    chunk = java_frame(10, ext, b"body", 2) + Command(10, ext, b"body", 3, binary=True).encode()
    assert assert_alike(tmp_path, [first, chunk])[0] == 2


@given(data=st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_frames_end_alike(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        frame = bytearray(java_frame(310, send_ext("T"), b"body", 1))
    else:
        frame = bytearray(Command(310, send_ext("T"), b"body", 1, binary=True).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(8, len(frame) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "double"])):
            case "change":
                frame[at] = data.draw(st.integers(0, 255))
            case "cut":
                del frame[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                frame[at:at] = data.draw(
                    st.sampled_from(
                        [
                            b'"',
                            b"\\",
                            b"\\u0001",
                            b"\\ud800",
                            b"{}",
                            b",",
                            b"\x00",
                            b"\xff",
                            b" ",
                            b"1",
                        ]
                    )
                )
            case "double":
                frame[at:at] = frame[at : at + data.draw(st.integers(1, 40))]
    header = int.from_bytes(frame[5:8], "big")
    if data.draw(
        st.booleans()
    ):  # keep the lengths right, so that the damage lies in the header only
        header = max(1, len(frame) - 8 - 4)
        frame[5:8] = header.to_bytes(3, "big")
    frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
    sound = java_frame(310, send_ext("T"), b"next", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster.broker.messages.os.getpid", lambda: 1)
        assert_alike(tmp_path_factory.mktemp("damaged"), [bytes(frame) + sound])


def test_a_frame_that_is_not_whole_stays_where_it_is(tmp_path: Path) -> None:
    frame = java_frame(310, send_ext("T"), b"body", 1)
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T")
            path = kit.send_path(kind())
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
            path = kit.send_path(kind())
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
            path = kit.send_path(kind())
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
            path = kit.send_path(kind())
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms() - 200  # waited too long
            assert path.process(frame, 0, len(frame), connection) == 0
            connection.active_ms += 1
            kit.store.flags.writable = False
            assert path.process(frame, 0, len(frame), connection) == 0
            kit.store.flags.writable = True
            assert path.process(frame, 0, len(frame), connection) == len(frame)


def test_the_answers_of_a_chunk_are_one_write(tmp_path: Path) -> None:
    chunk = memoryview(b"".join(java_frame(310, send_ext("T"), b"body", n) for n in range(1, 301)))
    for number, kind in enumerate(KINDS):
        with open_kit(tmp_path / str(number)) as kit:
            kit.topic("T", 4)
            kit.store.log.roll()
            path = kit.send_path(kind())
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
            path = kit.send_path(kind())
            connection = FakeConnection()
            connection.active_ms = kit.clock.monotonic_ms()
            path.process(chunk, 0, len(chunk), connection)
            assert {record.queue_id for record in kit.records()} == {0, 1, 2}


def test_the_python_path_is_what_mypy_sees_and_both_have_the_same_methods() -> None:
    compiled = compiled_path()
    public = [name for name in dir(sendpath.SendPath) if not name.startswith("_")]
    assert public == [
        name for name in dir(compiled) if not name.startswith("_") and name != "messages"
    ]
