"""The compiled inner loops do what their readable forms do, on every input, damaged ones included."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.cluster.client import BrokerAnswerBroken, Message, MessageQueue, fast, hot
from tandemmq.cluster.client.fast import SendHead, peek_opaque
from tandemmq.cluster.remoting import Command
from tandemmq.storage import Draft, encode, encode_properties, pack_host

compiled = pytest.importorskip("tandemmq.cluster.client._fast")

QUEUE = MessageQueue("Topic", "broker-a", 3)
TEXT = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1
)
HOSTS = st.sampled_from([pack_host("10.0.0.1", 10911), pack_host("::1", 9)])


@pytest.mark.skipif(bool(os.environ.get("TANDEM_PURE_PYTHON")), reason="TANDEM_PURE_PYTHON is set")
def test_the_compiled_form_is_in_use_where_it_was_built() -> None:
    assert hot.COMPILED
    assert hot.send_frame is compiled.send_frame


@pytest.mark.parametrize("unit_mode", [False, True])
def test_send_head_is_cut_where_the_numbers_go(unit_mode: bool) -> None:
    head = SendHead("PG", QUEUE, unit_mode)
    assert len(head.parts) == 6
    assert head.parts[0].endswith(b'"f":"')
    assert head.parts[4].endswith(b'"opaque":')


MESSAGES = st.builds(
    lambda body, tags, keys, properties, flag, delay, wait: Message(
        "Topic", body, tags=tags, keys=keys, properties=properties, flag=flag, delay_level=delay,
        wait_stored=wait,
    ),
    st.binary(min_size=1, max_size=300),
    st.none() | TEXT.filter(lambda tags: "|" not in tags and not any(map(str.isspace, tags))),
    st.lists(st.text("abcé😀-", min_size=1), max_size=3),
    st.dictionaries(TEXT.map(lambda text: "p" + text), TEXT, max_size=4),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 18),
    st.booleans(),
)  # fmt: skip


@given(
    MESSAGES,
    st.integers(1, (1 << 31) - 1),
    st.integers(0, 1 << 45),
    st.sampled_from([0, 0x301]),
    st.text("0123456789ABCDEF", min_size=1, max_size=32),
)
@settings(max_examples=150, deadline=None)
def test_frames_are_the_same_bytes(
    message: Message, opaque: int, born_ms: int, sys_flag: int, unique_id: str
) -> None:
    head = SendHead("PG", QUEUE, False)
    arguments = (head, opaque, born_ms, sys_flag, unique_id, message, message.body)
    frame = compiled.send_frame(*arguments)
    assert frame == fast.send_frame(*arguments)
    command = Command.decode(frame)
    assert command.body == message.body
    assert command.opaque == opaque


@pytest.mark.parametrize("size", [100, 1_300, 8_000, 32_000, 32_700, 33_000, 70_000])
def test_long_properties_are_sent_or_left_alike(size: int) -> None:
    message = Message("Topic", b"x", properties={"name": "\n" * size})
    arguments = (SendHead("PG", QUEUE, False), 7, 1, 0, "ID", message, b"x")
    frame = compiled.send_frame(*arguments)
    assert frame == fast.send_frame(*arguments)
    assert (frame is None) == (size > 32_700)


def test_text_that_utf8_cannot_carry_is_left() -> None:
    message = Message("Topic", b"x", tags="\ud800")
    arguments = (SendHead("PG", QUEUE, False), 7, 1, 0, "ID", message, b"x")
    assert compiled.send_frame(*arguments) is None
    assert fast.send_frame(*arguments) is None


def waiting(*opaques: int) -> dict[int, Any]:
    return {each: SimpleNamespace(queue=QUEUE, unique_id=f"U{each}") for each in opaques}


def stored(opaque: int, **more: str) -> Command:
    ext = {
        "msgId": "0A0000010000",
        "queueId": "3",
        "queueOffset": "12345678901",
        "transactionId": f"U{opaque}",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        **more,
    }
    return Command(310, {}, None, opaque).reply(0, None, ext)


Scan = Callable[..., tuple[int, list[tuple[Any, Any]]]]
both = pytest.mark.parametrize("scan", [fast.scan_sends, compiled.scan_sends])


@both
def test_answers_to_sends_are_read_up_to_the_first_that_is_not_whole(scan: Scan) -> None:
    frames = [stored(5).encode(), stored(6, queueId="9").encode(), stored(7).encode()]
    data = memoryview(b"".join(frames))
    entries = waiting(5, 6, 7)
    stop, settled = scan(data, 0, len(data) - 1, entries)
    assert stop == len(frames[0]) + len(frames[1])
    assert [entry for entry, _ in settled] == [entries[5], entries[6]]
    first, second = (result for _, result in settled)
    assert first.ok
    assert (first.message_id, first.offset_message_id) == ("U5", "0A0000010000")
    assert (first.queue, second.queue.queue_id) == (QUEUE, 9)
    assert first.queue_offset == 12345678901
    assert (first.transaction_id, first.region_id) == ("U5", "DefaultRegion")
    assert list(entries) == [5, 6, 7]  # the caller removes them


@both
@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"epoch": "0000000007", "copies": "2", "durable": "1"}, (7, 2, 1)),
        ({"copies": "3"}, (0, 3, 0)),
        ({"epoch": "", "copies": "two", "durable": "-1"}, (0, 0, 0)),
        ({"epoch": "12345678901", "copies": "9" * 10, "durable": "1.0"}, (0, 9_999_999_999, 0)),
    ],
)
def test_an_answer_says_how_safe_its_message_is(
    scan: Scan, said: dict[str, str], found: tuple[int, ...]
) -> None:
    frame = stored(5, **said).encode()
    _, [(_, result)] = scan(memoryview(frame), 0, len(frame), waiting(5))
    assert (result.epoch, result.copies, result.durable) == found


def odd(change: Callable[[Command], None]) -> bytes:
    answer = stored(5)
    change(answer)
    return answer.encode()


@both
@pytest.mark.parametrize(
    "frame",
    [
        odd(lambda answer: setattr(answer, "code", 10)),
        odd(lambda answer: setattr(answer, "opaque", 99)),
        odd(lambda answer: setattr(answer, "flag", 0)),
        odd(lambda answer: setattr(answer, "binary", True)),
        odd(lambda answer: (answer.ext or {}).pop("queueOffset")),
        odd(lambda answer: (answer.ext or {}).update(queueId="three")),
        odd(lambda answer: setattr(answer, "ext", None)),
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{}}",
    ],
)
def test_anything_else_is_left_where_it_is(scan: Scan, frame: bytes) -> None:
    assert scan(memoryview(frame), 0, len(frame), waiting(5)) == (0, [])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_answers_are_read_alike_or_left(data: st.DataObject) -> None:
    frame = bytearray(stored(5, epoch="0000000007", copies="2", durable="1").encode())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(4, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    entries = waiting(5)
    ours = compiled.scan_sends(memoryview(bytes(frame)), 0, len(frame), entries)
    theirs = fast.scan_sends(memoryview(bytes(frame)), 0, len(frame), entries)
    assert ours in ((0, []), theirs)


@pytest.mark.parametrize("binary", [False, True])
def test_opaque_is_found_in_a_response_and_not_in_a_request(binary: bool) -> None:
    answer = stored(77, note='"opaque":5,"flag":0')
    answer.binary = binary
    frame = answer.encode()
    assert peek_opaque(memoryview(frame), 0, len(frame)) == 77
    answer.flag = 0
    frame = answer.encode()
    assert peek_opaque(memoryview(frame), 0, len(frame)) is None


DRAFTS = st.builds(
    lambda topic, queue_id, body, properties, host, store, reconsumed, compressed: Draft(
        topic, queue_id, body, encode_properties(properties), 5, compressed, 1_700_000_000_000,
        host, store, reconsumed,
    ),
    st.sampled_from(["Topic", "%RETRY%CG", "Tøpic"]),
    st.integers(0, 3),
    st.binary(max_size=200),
    st.dictionaries(
        st.sampled_from(["UNIQ_KEY", "CLUSTER", "TAGS", "KEYS", "WAIT", "RETRY_TOPIC", "own"]) | TEXT,
        TEXT,
    ),
    HOSTS,
    HOSTS,
    st.integers(0, 20),
    st.sampled_from([0, 0, 0, 1, 0x301, 0x201]),
)  # fmt: skip


@given(st.lists(DRAFTS, max_size=5))
@settings(max_examples=120, deadline=None)
def test_records_are_the_same_messages(drafts: list[Draft]) -> None:
    body = b"".join(
        encode(draft, place, 1_000 + place, 1_700_000_000_500) for place, draft in enumerate(drafts)
    )
    ours = compiled.read_records(body, "broker-a", 9)
    assert ours == fast.read_records(body, "broker-a", 9)
    assert len(ours) == len(drafts)


@given(st.lists(DRAFTS, min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_records_are_refused_or_read_alike(
    drafts: list[Draft], data: st.DataObject
) -> None:
    body = bytearray(
        b"".join(encode(each, place, place, 1_700_000_000_500) for place, each in enumerate(drafts))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])

    def outcome(read: Callable[..., Any]) -> object:
        try:
            return read(cut, "broker-a", 9)
        except BrokerAnswerBroken as problem:
            return str(problem)

    assert outcome(compiled.read_records) == outcome(fast.read_records)


@given(
    st.lists(st.integers(-1, 60) | st.integers(-(1 << 31), (1 << 31) - 1), max_size=8),
    st.integers(-30, 30),
)
def test_records_begin_where_their_sizes_say(sizes: list[int], more: int) -> None:
    data = b"".join(
        (each & 0xFFFFFFFF).to_bytes(4, "big") + bytes(max(0, min(each, 60) - 4)) for each in sizes
    )
    data = data[: len(data) + more] if more < 0 else data + bytes(more)
    starts = compiled.record_starts(data)
    assert starts == fast.record_starts(data)
    assert starts == sorted(set(starts)) and starts[-1] <= len(data)


def test_whole_records_end_where_the_data_does() -> None:
    data = b"".join(size.to_bytes(4, "big") + bytes(size - 4) for size in (91, 28, 300))
    assert compiled.record_starts(data) == fast.record_starts(data) == [0, 91, 119, 419]
    assert compiled.record_starts(data[:-1]) == fast.record_starts(data[:-1]) == [0, 91, 119]
