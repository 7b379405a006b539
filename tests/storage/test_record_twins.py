"""record.py and _record.pyx agree on every input, damaged ones included."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tandemmq.storage.record as readable
import tandemmq.storage.tail
from tandemmq.storage.errors import CorruptRecord, MessageIllegal
from tandemmq.storage.record import Draft, encode_properties

compiled = pytest.importorskip(
    "tandemmq.storage._record", reason="TANDEM_PURE_PYTHON: see conftest.py"
)

EXAMPLES = settings(max_examples=300, deadline=None)

ints = st.integers(-(1 << 31) - 1, 1 << 31)
longs = st.integers(-(1 << 63) - 1, 1 << 63)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20) | st.binary()
names = st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=8)
entries = st.lists(
    st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"\x01v\x02", b"\xff", b"\xe4\xbd", b"a"])
    | st.binary(max_size=3)
).map(b"".join)
drafts = st.builds(
    Draft,
    topic=st.text(max_size=140),
    queue_id=ints,
    body=st.binary(max_size=200),
    properties=entries | st.dictionaries(names, names, max_size=4).map(encode_properties),
    flag=ints,
    sys_flag=ints,
    born_ms=longs,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=ints,
    prepared_offset=longs,
)
good_drafts = st.builds(
    Draft,
    topic=st.text(max_size=140),
    queue_id=st.integers(0, 9),
    body=st.binary(max_size=100),
    properties=entries,
    sys_flag=st.integers(0, 1023),
    born_host=st.sampled_from([bytes(8), bytes(20)]),
    store_host=st.sampled_from([bytes(8), bytes(20)]),
)


def outcome(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call returns, or what it raises: class, and place where one is told."""
    try:
        result = function(*arguments, **named)
        return list(result) if hasattr(result, "__next__") else result
    except CorruptRecord as error:
        return CorruptRecord, str(error), error.position, error.size
    except (MessageIllegal, ValueError) as error:
        return type(error)


def both(name: str, *arguments: Any, **named: Any) -> Any:
    expected = outcome(getattr(readable, name), *arguments, **named)
    assert outcome(getattr(compiled, name), *arguments, **named) == expected
    return expected


@EXAMPLES
@given(drafts | good_drafts, longs, longs, longs)
def test_encoded_records_are_equal(draft: Draft, queue_offset: int, offset: int, ms: int) -> None:
    both("encode", draft, queue_offset, offset, ms)


def damaged(record: bytes, damage: list[tuple[int, int]], cut: int) -> bytes:
    data = bytearray(record)
    for at, value in damage:
        data[at % len(data)] = value
    return bytes(data[: len(data) - cut])


damage_lists = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)


@EXAMPLES
@given(good_drafts, damage_lists, st.integers(0, 3), st.integers(-1, 2), st.booleans())
def test_decoded_records_are_equal(
    draft: Draft, damage: list[tuple[int, int]], cut: int, position: int, crc_checked: bool
) -> None:
    data = damaged(readable.encode(draft, 1, 2, 3), damage, cut)
    both("decode", data, position, crc_checked=crc_checked)
    both("decode", data, crc_checked=crc_checked)


@EXAMPLES
@given(
    st.lists(good_drafts, max_size=4),
    damage_lists,
    st.binary(max_size=12),
    st.booleans(),
    st.data(),
)
def test_scanned_heads_are_equal(
    drafts: list[Draft],
    damage: list[tuple[int, int]],
    rest: bytes,
    crc_checked: bool,
    data: st.DataObject,
) -> None:
    blank = bytes.fromhex("00000008cbd43194") if len(rest) % 2 else b""
    records = [readable.encode(draft, 1, 2, 3) for draft in drafts]
    log = damaged(b"".join(records) + blank + rest + b"\0", damage, 0)
    both("scan", log, 0, len(log), crc_checked=crc_checked)
    start = data.draw(st.integers(-1, len(log)))
    both("scan", log, start, data.draw(st.integers(-1, len(log) + 1)), crc_checked=crc_checked)


@EXAMPLES
@given(st.binary(max_size=300))
def test_any_bytes_scan_and_decode_alike(data: bytes) -> None:
    both("scan", data, 0, len(data))
    both("decode", data)
    both("split_batch", data)
    both("decode_properties", data)


@EXAMPLES
@given(entries, st.sampled_from(["TAGS", "a", "KEYS", "é"]) | names)
def test_properties_are_found_alike(properties: bytes, name: str) -> None:
    found = both("decode_properties", properties)
    value = both("get_property", properties, name.encode("utf-8", "replace"))
    if name in found and "\ufffd" not in name and "?" not in name:
        assert value is not None and value.decode("utf-8", "replace") == found[name]


@EXAMPLES
@given(st.text() | st.lists(st.sampled_from("\ud83c\udf0da")).map("".join))
def test_hashes_are_equal(text: str) -> None:
    both("java_hash", text)
    both("tags_code", text)


@EXAMPLES
@given(st.binary(max_size=12) | st.lists(st.sampled_from([b"\xf0\x9f", b"\x8c", b"\xed\xa0"])))
def test_tags_of_malformed_text_hash_alike(tags: bytes | list[bytes]) -> None:
    value = tags if isinstance(tags, bytes) else b"".join(tags)
    record = readable.encode(Draft("T", 0, b"", b"TAGS\x01" + value), 0, 0, 0)
    both("scan", record, 0, len(record))


batch_elements = st.tuples(ints, st.binary(max_size=40), entries)


def batch_body(elements: list[tuple[int, bytes, bytes]]) -> bytes:
    parts = []
    for flag, body, properties in elements:
        head = [22 + len(body) + len(properties), 0, 0, flag, len(body)]
        parts += [(number & 0xFFFFFFFF).to_bytes(4, "big") for number in head]
        parts += [body, len(properties).to_bytes(2, "big"), properties]
    return b"".join(parts)


@EXAMPLES
@given(st.lists(batch_elements, max_size=4), damage_lists, st.integers(0, 3))
def test_batches_split_alike(
    elements: list[tuple[int, bytes, bytes]], damage: list[tuple[int, int]], cut: int
) -> None:
    both("split_batch", damaged(batch_body(elements) + b"\0", damage, 1))
    both("split_batch", damaged(batch_body(elements) + b"\0\0\0", damage, cut))


operations = st.lists(
    st.tuples(st.just("append"), good_drafts | drafts, longs, longs)
    | st.tuples(
        st.just("append_batch"),
        good_drafts | drafts,
        st.lists(batch_elements) | st.binary(max_size=80),
        longs,
    )
    | st.tuples(st.just("append_raw"), st.binary(max_size=300))
    | st.tuples(st.just("write_blank"))
    | st.tuples(st.just("commit"))
    | st.tuples(st.just("close")),
    max_size=8,
)


@EXAMPLES
@given(operations, st.integers(0, 700), st.integers(0, 20))
def test_tails_write_alike(script: list[tuple[Any, ...]], limit: int, position: int) -> None:
    def run(codec: Any) -> tuple[bytes, list[Any]]:
        file = os.memfd_create("segment")
        os.ftruncate(file, limit)
        tail = codec.LogTail()
        results = [outcome(tail.open, file, 4096, position, limit)]
        for name, *arguments in script:
            if name == "append_batch":
                envelope, elements, ms = arguments
                body = elements if isinstance(elements, bytes) else batch_body(elements)
                arguments = [replace(envelope, body=body), 7, ms]
            results.append((name, outcome(getattr(tail, name), *arguments)))
            results.append((tail.position, tail.committed, tail.limit, tail.end))
            results.append((tail.last_store_ms, tail.committed_ms, tail.failure))
            results.append(os.pread(file, limit, 0))
        tail.close()
        written = os.pread(file, limit, 0)
        os.close(file)
        return written, results

    assert run(tandemmq.storage.tail) == run(compiled)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_20000_new_inputs_raise_only_what_is_documented() -> None:
    seed = random.SystemRandom().getrandbits(64)
    rng = random.Random(seed)
    pieces = [b"TAGS", b"KEYS", b"\x01", b"\x02", b"\xff\xe4", bytes.fromhex("daa320a7")]
    for number in range(20_000):
        draft = Draft(
            rng.choice(["T", "é" * 70, "x" * 127, "y" * 128]),
            rng.getrandbits(31),
            rng.randbytes(rng.choice([0, 1, 63, 64, 65, rng.randrange(2000)])),
            b"".join(rng.choices(pieces, k=rng.randrange(12))),
            born_host=bytes(rng.choice([8, 20])),
            store_host=bytes(rng.choice([8, 20])),
        )
        record = readable.encode(draft, number, number, number)
        data = bytearray(record + rng.choice([b"", bytes(8), record]))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(min(len(data), rng.choice([100, len(data)])))
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        data = data[: len(data) - rng.choice([0, 0, 0, rng.randrange(20)])]
        try:
            both("scan", data, 0, len(data), crc_checked=bool(number % 2))
            both("decode", data, crc_checked=bool(number % 2))
            both("decode_properties", data)
            both("get_property", bytes(data), rng.choice([b"TAGS", b"KEYS", b"x"]))
            element = (rng.getrandbits(8), bytes(data), draft.properties)
            body = bytearray(batch_body([element] * rng.randrange(4)) + rng.randbytes(number % 3))
            if body:
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            both("split_batch", body)
        except BaseException as error:
            error.add_note(f"seed {seed}, input {number}")
            raise
