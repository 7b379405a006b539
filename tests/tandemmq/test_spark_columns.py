"""Batches made straight from stored records are those made of messages, on every input, damaged ones included."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq import ReceivedMessage
from tandemmq.cluster.client import BrokerAnswerBroken
from tandemmq.cluster.client.runs import RecordRun
from tandemmq.spark.errors import BodyNotText
from tandemmq.spark.shapes import COLUMNS
from tandemmq.storage import Draft, encode, encode_properties, pack_host

pytest.importorskip("pyarrow", reason="needs the spark extra")

from tandemmq.spark import columns
from tandemmq.spark.batches import Batches

COMPRESSED_ZLIB = 0x1 | (3 << 8)
HOSTS = [pack_host("10.0.0.1", 10911), pack_host("::1", 9)]
EPOCHS = [(0, 1), (900, 2), (1_500, 5)]


def record(
    number: int,
    body: bytes = b"x",
    properties: bytes | dict[str, str] = b"",
    *,
    topic: str = "Orders",
    host: bytes = HOSTS[0],
    packed: bool = False,
) -> bytes:
    """A stored record; properties as they stand in it, or by name."""
    raw = encode_properties(properties) if isinstance(properties, dict) else properties
    stored, flag = (zlib.compress(body), COMPRESSED_ZLIB) if packed else (body, 0)
    draft = Draft(topic, number % 4, stored, raw, 0, flag, 1_000 + number, host, host)
    return encode(draft, number, 100 * number, 2_000 + number)


def run_of(records: Sequence[bytes]) -> RecordRun:
    return RecordRun.of(b"".join(records), "broker-a", 99)


def both(*runs: RecordRun, text: bool = False, names: Sequence[str] = tuple(COLUMNS)) -> Any:
    """The batch made of records, after it was compared with the one that is made of messages."""
    batches = Batches(names, text=text)
    messages: list[ReceivedMessage] = [each for run in runs for each in run.decoded()]
    expected = batches.make(messages, EPOCHS)
    (batch,) = batches.of(iter(runs), EPOCHS)
    batch.validate(full=True)
    assert batch.to_pylist() == expected.to_pylist()
    return batch


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "größe"]) | st.text(
    "ab", min_size=1
)
RECORDS = st.builds(
    record,
    st.integers(0, 40),
    st.binary(max_size=300),
    st.dictionaries(NAMES, st.text("xy ü😀", min_size=1), max_size=6)
    | st.binary(max_size=30)
    | st.lists(st.sampled_from([b"a", b"KEYS", b"\x01", b"\x02", b"v"])).map(b"".join),
    topic=st.sampled_from(["Orders", "größe", "%RETRY%G"]),
    host=st.sampled_from(HOSTS),
    packed=st.booleans(),
)


@given(st.lists(st.lists(RECORDS, min_size=1, max_size=5), min_size=1, max_size=3))
@settings(max_examples=60)
def test_columns_are_those_of_the_messages(runs: list[list[bytes]]) -> None:
    both(*map(run_of, runs))


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone(name: str) -> None:
    both(run_of([record(n, properties={"KEYS": "k", "a": "b"}) for n in range(20)]), names=[name])


@pytest.mark.skipif(bool(os.environ.get("TANDEM_PURE_PYTHON")), reason="TANDEM_PURE_PYTHON is set")
@pytest.mark.parametrize(
    ("records", "taken"),
    [
        ([record(1, bytes(500), {"KEYS": "a b", "TAGS": "t", "größe": "ü"})], True),
        ([record(1, b"long" * 50, packed=True)], True),
        ([record(1, properties=b"a\x01b\x02a\x01c\x02")], False),
        ([record(1, properties=b"a\x01\xff\x02")], False),
        ([record(1, topic="T" * 200)], False),
    ],
    ids=["plain", "compressed", "a name twice", "no text", "second version"],
)  # fmt: skip
def test_compiled_form_takes_what_is_usual_and_leaves_the_rest(
    records: list[bytes], taken: bool
) -> None:
    assert columns.COMPILED
    run = run_of(records)
    schema = Batches(tuple(COLUMNS), text=False).schema
    assert (columns.batch_of([run], schema, ()) is not None) == taken
    both(run)


def test_part_of_an_answer_is_its_own_batch() -> None:
    run = run_of([record(n) for n in range(10)])
    assert both(run[3:7]).column("queue_offset").to_pylist() == [3, 4, 5, 6]
    assert [each.queue_offset for each in (run[0], run[-1])] == [0, 9]
    assert len(run[5:][1:]) == 4 and len(run[4:2]) == 0
    with pytest.raises(IndexError):
        run[10]


def test_body_that_is_no_text_is_named_by_its_place() -> None:
    run = run_of([record(1, "ü".encode()), record(2, b"\xff")])
    assert both(run[:1], text=True).column("body").to_pylist() == ["ü"]
    with pytest.raises(BodyNotText, match=r"Orders@broker-a:2 at queue offset 2 is not UTF-8"):
        list(Batches(("body",), text=True).of(iter([run])))


def test_damage_is_said_and_never_a_row() -> None:
    good = record(1, b"abc")
    for damaged in (good.replace(b"abc", b"abd"), good[:4] + b"\0\0\0\0" + good[8:]):
        with pytest.raises(BrokerAnswerBroken):
            list(Batches(("body",), text=False).of(iter([run_of([good, damaged])])))
    for cut in (good[:-1], good + b"\0\0", b"\0\0\0\0" + good):
        with pytest.raises(BrokerAnswerBroken):
            RecordRun.of(cut, "broker-a", 0)
