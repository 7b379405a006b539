"""RocketMQ's JSON dialect: what it writes is read, what is broken is a ValueError, nothing else happens."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from newinputs import new_inputs

from tandemmq.storage import fastjson
from tandemmq.storage.fastjson import _Reader

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"offsetTable":{"T2@g1":{0:12,1:5,3:7\n\t\t}\n\t}\n}', {"offsetTable": {"T2@g1": {"0": 12, "1": 5, "3": 7}}}),
        ("{-1:2}", {"-1": 2}),
        ('{"table":{3:1,4:9},}', {"table": {"3": 1, "4": 9}}),
        ("{'a':'it\\'s',b:[1,2,]}", {"a": "it's", "b": [1, 2]}),
        ("{a:true,b:null,c:false,$d:-1.5e3}", {"a": True, "b": None, "c": False, "$d": -1500.0}),
        ('{{"brokerName":"a","queueId":0,"topic":"T"}:7}', {'{"brokerName":"a","queueId":0,"topic":"T"}': 7}),
        ('{"a":{"x":[1]},"b":{"$ref":"$.a.x"}}', {"a": {"x": [1]}, "b": [1]}),
        ('[{"q":1},{"$ref":"$[0]"}]', [{"q": 1}, {"q": 1}]),
        ('{"a.b":5,"c":{"$ref":"$.a\\\\.b"}}', {"a.b": 5, "c": 5}),
        ('"\\ud83d\\ude00 \\x41 \\u00e9"', "😀 A é"),
        ('{x:"\\ud800"}', {"x": "\ufffd"}),
        ("\ufeff{1:1}", {"1": 1}),
        (b'{"a":1,"a":2}', {"a": 2}),
        ('{"a":[{"b":[1]},{"c":{"$ref":"$.a[0].b"}}]}', {"a": [{"b": [1]}, {"c": [1]}]}),
        ("{,x:1,,y:[,1,,],}", {"x": 1, "y": [1]}),
        ("/*a**/[1/* b */,//c\n2]//d", [1, 2]),
        ("[+5,1.,-2.,NULL,Null]", [5, 1.0, -2.0, None, None]),
        ('"\\0\\1\\7"', "\0\1\7"),
    ],
)  # fmt: skip
def test_dialect_is_read(text: str | bytes, value: Any) -> None:
    assert fastjson.loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "[1", "{1}", "{1:}", '{"a" 1}', "[1 2]", '"open', '"\\q"', '"\\u12"', "tru", "nulll", "NaN",
        "[Infinity]", "-", ".1", "1e999", "{} {}", "]", "[" * 65 + "]" * 65, "{a:" * 65, "9223372036854775808",
        "-9223372036854775809", "1" * 5000, "[" * 100_000, '{"$ref":"$"}', '{"a":{"$ref":"$"}}',
        '{"a":{"b":{"$ref":".."}}}', '{"a":{"$ref":"$.b"},"b":1}', '{"a":{"$ref":"$[0]"}}', '{"a":{"$ref":"$."}}',
        "\udcff", b"\xff", "/* 1", "{{{1:1}:1}:1}", "[1 /]", "True", "{'a':'b\"}",
    ],
)  # fmt: skip
def test_broken_text_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        fastjson.loads(text)


def test_references_cannot_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "NODES_MAX", 10_000)
    doubled = '"a0":[1,1]' + "".join(
        f',"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 40)
    )
    with pytest.raises(ValueError, match="more than 10000 values"):
        fastjson.loads("{" + doubled + "}")


def test_a_key_in_a_key_in_a_key_cannot_blow_up() -> None:
    with pytest.raises(ValueError, match="no object as a key within such a key"):
        fastjson.loads("{" * 60 + "1:1" + "}:1" * 59 + "}")


def test_references_cannot_repeat_texts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "REPEATED_CHARACTERS_MAX", 10_000)
    repeated = ",".join(['{"$ref":"$.a"}'] * 11)
    with pytest.raises(ValueError, match="repeat more than 10000 characters"):
        fastjson.loads('{"a":"' + "x" * 1000 + '","b":[' + repeated + "]}")


def test_exact_numbers_keep_how_they_are_written() -> None:
    read = fastjson.loads("[1.50,5e3,1e-8,7,123456789012345678901234567890]", exact_numbers=True)
    assert [str(each) for each in read] == [
        "1.50", "5E+3", "1E-8", "7", "123456789012345678901234567890",
    ]  # fmt: skip


def test_size_limit_is_named() -> None:
    with pytest.raises(ValueError, match="6 bytes is above the limit of 5"):
        fastjson.loads("[1,22]", bytes_max=5)


def test_integer_keys_are_written_quoted() -> None:
    assert fastjson.dumps({"offsetTable": {"T@g": {0: 12}}}) == b'{"offsetTable":{"T@g":{"0":12}}}'


@given(json_values)
def test_standard_json_reads_as_the_standard_reader_does(value: Any) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    text = json.dumps(value)
    if "\\ud" not in text:
        assert fastjson.loads(text) == json.loads(text)


@given(json_values)
def test_tolerant_reader_agrees_with_the_fast_one(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    assert fastjson._Reader(text).document() == fastjson.loads(text)


@pytest.mark.fuzz
def test_20_000_damaged_documents_are_read_or_refused() -> None:
    rng = new_inputs()
    seeds = [
        b'{"offsetTable":{"T2@g1":{0:12,1:5,3:7\n\t\t}\n\t},dataVersion:{"counter":1,"timestamp":1700000000000}}',
        b'{{"topic":"T","queueId":1}:{"$ref":"$.x"},"x":[1.5e3,-2,\'\\u0041\\n\',null,true]}',
        b'[[{"a":{"b":[1,{"$ref":"$[0][0].a"}]}}],"\xe2\x9c\x93"]',
    ]
    alphabet = b"{}[]:,\"'\\$ref.0123456789-+eE truefalsnu\x00\xff\xe2"
    read = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.choice(alphabet)
                case 1:
                    data.insert(at, rng.choice(alphabet))
                case 2:
                    del data[at]
                case 3:
                    data[at:at] = data[at : at + rng.randrange(40)]
        try:
            value = fastjson.loads(bytes(data))
        except ValueError:
            continue
        read += 1
        fastjson.dumps(value)
    assert 1000 < read < 19_000


def test_an_unterminated_string_of_escapes_is_judged_in_linear_time() -> None:
    # 400,000 escaped quotes: tried anew from each of them, this took an hour of the loop's thread
    began = time.perf_counter()
    with pytest.raises(ValueError):
        fastjson.loads(b"[" * 70 + b'"' + b'\\"' * 400_000)
    assert time.perf_counter() - began < 5


@given(
    st.lists(
        st.tuples(
            st.text('aé{}":,[]\\ ', max_size=4), st.integers(0, 3), st.text("T{}\"',", max_size=3)
        ),
        max_size=4,
    ),
    st.integers(-5, 5),
)
def test_maps_by_queue_are_read_as_the_tolerant_reader_reads_them(
    queues: list[tuple[str, int, str]], value: int
) -> None:
    """Those are quoted first, which is faster; names that look like JSON must not confuse that."""
    keys = [
        fastjson.dumps({"brokerName": broker, "queueId": number, "topic": topic})
        for broker, number, topic in queues
    ]
    entries = b",".join(b'%b:{"minOffset":%d,"note":%b}' % (key, value, key) for key in keys)
    data = b'{"offsetTable":{%b}}' % entries
    assert fastjson.loads(data) == _Reader(data.decode()).document()
