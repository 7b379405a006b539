"""Bodies from outside are read as RocketMQ's serializer reads them, within bounds."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import pytest

from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.headers import Int32, Int64


class Inner(msgspec.Struct, rename="camel"):
    name: str = ""


class Outer(msgspec.Struct, rename="camel"):
    text: str = "default"
    number: Int32 = 7
    long_number: Int64 = 8
    flag: bool = True
    kind: Annotated[str, bodies.enum_of("LAST", "FIRST", "ALWAYS")] = "ALWAYS"
    inner: Inner | None = None
    inners: list[Inner] | None = None
    numbers: list[Int32] = []
    table: dict[str, str] = {}
    numbered: dict[int, str] = {}


@pytest.mark.parametrize(
    ("member", "sent", "value"),
    [
        ("number", '"5"', 5), ("number", '"1,000"', 1000), ("number", '"5.0"', 5), ("number", "5.7", 5),
        ("number", "true", 1), ("number", "5e3", 5000), ("number", "null", 7), ("number", '""', 7),
        ("number", '"null"', 7), ("longNumber", '"-99999999999"', -99999999999), ("flag", "0", False),
        ("flag", "1", True), ("flag", '"FALSE"', False), ("flag", '"F"', False), ("flag", "2", False),
        ("flag", "null", True), ("text", "1.50", "1.50"), ("text", "5e3", "5E+3"), ("text", "true", "true"),
        ("text", '{"a":[1.50,null,"x"],"b":null}', '{"a":[1.50,null,"x"]}'), ("text", "null", "default"),
        ("kind", "0", "LAST"), ("kind", "1", "FIRST"), ("kind", '"first"', "FIRST"), ("kind", '"nope"', "ALWAYS"),
        ("kind", '""', "ALWAYS"), ("inner", '""', None), ("inner", "[]", None), ("inners", "null", None),
        ("inners", '[null,{"name":5},""]', [{"name": "5"}]), ("inners", '{"name":"a"}', [{"name": "a"}]),
        ("numbers", '["1",null,2.9,true]', [1, 2, 1]), ("table", '{"a":1,"b":null,c:[2]}', {"a": "1", "c": "[2]"}),
        ("numbered", '{0:"a","1":"b"}', {0: "a", 1: "b"}), ("unknown", '{"a":[]}', None),
    ],
)  # fmt: skip
def test_a_member_is_read_as_fastjson_reads_it(member: str, sent: str, value: Any) -> None:
    read = msgspec.to_builtins(bodies.read(Outer, f'{{"{member}":{sent}}}'.encode()))
    assert read.get(member) == value


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"number":"x"}', "Expected a number, got 'x' - at `$.number`"),
        ('{"number":"2147483648"}', "Expected `int` <= 2147483647 - at `$.number`"),
        ('{"number":1e999999999}', "a number does not fit 64 bits - at `$.number`"),
        ('{"longNumber":"5.0"}', "Expected a number, got '5.0' - at `$.longNumber`"),
        ('{"flag":"yes"}', "Expected a boolean, got 'yes' - at `$.flag`"),
        ('{"kind":3}', "Expected one of LAST, FIRST, ALWAYS, got 3 - at `$.kind`"),
        ('{"kind":true}', "Expected one of LAST, FIRST, ALWAYS, got True - at `$.kind`"),
        ('{"inners":[{"name":"a"},5]}', "Expected an object, got 5 - at `$.inners[1]`"),
        ('{"inner":[1]}', "Expected an object, got an array - at `$.inner`"),
        ('{"table":[]}', "Expected an object, got an array - at `$.table`"),
        ("null", "it holds nothing"),
        ("", "JSON: expected a value at character 0, found the end"),
        ('{"number":5', "JSON: expected ',' or '}' at character 11, found the end"),
    ],
)
def test_the_rest_is_refused_and_the_reason_names_the_place(body: str, why: str) -> None:
    with pytest.raises(bodies.BodyUnreadable) as caught:
        bodies.read(Outer, body.encode())
    assert str(caught.value) == why


def test_references_are_followed_even_from_exact_json() -> None:
    body = b'{"inner":{"name":"a"},"inners":[{"$ref":"$.inner"}]}'
    assert bodies.read(Outer, body).inners == [Inner("a")]
    assert bodies.read(Outer, body.replace(b"$ref", b"\\u0024ref")).inners == [Inner("a")]


def test_a_small_body_makes_no_large_work() -> None:
    lists = '"a0":[1,1]' + "".join(
        f',"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 30)
    )
    began = time.process_time()
    with pytest.raises(bodies.BodyUnreadable, match=r"more than \d+ values"):
        bodies.read(Outer, f'{{{lists},"text":{{"$ref":"$.a29"}}}}'.encode())
    assert time.process_time() - began < 1


def test_a_body_beyond_its_size_is_refused() -> None:
    with pytest.raises(bodies.BodyUnreadable, match="it has 10 bytes, more than 9"):
        bodies.read(Outer, b'{"text":1}', bytes_max=9)
