"""Commands to bytes and back, in both header forms, and what odd clients write."""

from __future__ import annotations

import struct
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.remoting.codes import (
    UNWRAPPED_BINARY_CODES,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import FrameLimits

int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def json_frame(header: bytes | str, body: bytes = b"") -> bytes:
    data = header.encode() if isinstance(header, str) else header
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header) | 1 << 24) + header + body


def binary_header(
    ext: bytes = b"", code: int = 105, language: int = 0, flag: int = 0, remark: bytes = b""
) -> bytes:
    head = struct.pack(">hBhiii", code, language, 479, 5, flag, len(remark))
    return head + remark + struct.pack(">i", len(ext)) + ext


def entry(key: bytes, value: bytes) -> bytes:
    return struct.pack(">H", len(key)) + key + struct.pack(">i", len(value)) + value


@given(
    st.builds(
        Command,
        code=st.integers(0, 32767),
        ext=st.none() | st.dictionaries(keys, texts.filter(bool), min_size=1, max_size=5),
        body=st.none() | st.binary(min_size=1, max_size=100),
        opaque=int32,
        flag=st.sampled_from([0, 1, 2]),
        remark=st.none() | texts.filter(bool),
        language=st.sampled_from([int(each) for each in LanguageCode]),
        version=st.integers(0, 32767),
        binary=st.booleans(),
    )
)
def test_decode_is_the_inverse_of_encode(command: Command) -> None:
    if command.binary and not command.flag & 1 and command.code in UNWRAPPED_BINARY_CODES:
        command.code = 1  # those stand for codes beyond 16 bits
    assert Command.decode(command.encode()) == command


def test_worked_json_frame_of_the_specification_is_read_and_its_header_is_standard_json() -> None:
    frame = bytes.fromhex(
        "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70"
        "696354657374227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a"
        "312c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a"
        "3437397d"
    )
    command = Command.decode(frame)
    assert command == Command(
        105, {"topic": "TopicTest"}, opaque=1, language=LanguageCode.JAVA, version=479
    )
    assert command.encode() == frame  # members in Java's order, so even the bytes agree


def test_worked_binary_frames_of_the_specification_agree_byte_for_byte() -> None:
    query = bytes.fromhex(
        "0000002d0100002900690001df0000000100000000000000000000001400"
        "05746f70696300000009546f70696354657374"
    )
    answer = bytes.fromhex(
        "0000003901000035000300"
        "01df0000000500000001"
        "00000020207265717565737420747970652039393939206e6f7420737570706f72746564"
        "00000000"
    )
    assert Command.decode(query) == Command(
        105, {"topic": "TopicTest"}, opaque=1, language=0, binary=True
    )
    assert Command.decode(query).encode() == query
    asked = Command(9999, opaque=5, binary=True)
    assert asked.reply(3, " request type 9999 not supported").encode() == answer


def test_control_characters_of_properties_are_escaped_in_json() -> None:
    frame = Command(310, {"i": "KEYS\x01k1\x02"}).encode()
    assert b"KEYS\\u0001k1\\u0002" in frame


def test_every_ext_value_goes_out_as_a_json_string() -> None:
    header = Command(0, {"queueId": "0"}).encode()[8:]
    assert msgspec.json.decode(header)["extFields"] == {"queueId": "0"}


def test_a_lone_surrogate_in_our_own_text_becomes_a_question_mark() -> None:
    for binary in (False, True):
        got = Command.decode(Command(1, {"a": "x\ud800"}, remark="\udcffy", binary=binary).encode())
        assert (got.ext, got.remark) == ({"a": "x?"}, "?y")


def test_reply_mirrors_serialization_and_request_id_and_reports_a_real_version() -> None:
    # INV-12
    for binary in (False, True):
        reply = Command(34, opaque=-7, binary=binary).reply(0)
        assert (reply.binary, reply.opaque, reply.flag) == (binary, -7, RESPONSE_FLAG)
        assert reply.version == VERSION == 479


def test_reply_to_a_oneway_request_stays_marked_so_that_nobody_sends_it() -> None:
    request = Command(15, flag=ONEWAY_FLAG)
    assert request.oneway
    assert request.reply().flag == RESPONSE_FLAG | ONEWAY_FLAG


# ---- what clients write


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            '{"code":30,"extFields":{"queueId":0,"committed":true,"x":-1.5,"n":null}}',
            Command(30, {"queueId": "0", "committed": "true", "x": "-1.5"}, language=0, version=0),
        ),
        ('{"code":"30","opaque":"12","flag":"0"}', Command(30, opaque=12, language=0, version=0)),
        (
            '{"code":30,"language":"COBOL","foo":[1,{"a":2}]}',
            Command(30, language=LanguageCode.OTHER, version=0),
        ),
        ('{"code":30,"language":9}', Command(30, language=LanguageCode.GO, version=0)),
        ('{"code":30,"language":"go"}', Command(30, language=LanguageCode.GO, version=0)),
        ('{"code":30,"language":99}', Command(30, language=LanguageCode.OTHER, version=0)),
        (
            '{"code":30,"language":null,"remark":null,"extFields":null}',
            Command(30, language=0, version=0),
        ),
        ("{}", Command(0, language=0, version=0)),
        ('{"code":105,,}', Command(105, language=0, version=0)),
        ('{"code":1,"remark":",,]"}', Command(1, remark=",,]", language=0, version=0)),
        ('{"code":1,"opaque":-2147483648}', Command(1, opaque=-(2**31), language=0, version=0)),
        (' { "code" : 1 , "extFields" : { } } ', Command(1, {}, language=0, version=0)),
        (
            '{"code":1,"extFields":{"a":{"b":[1]}}}',
            Command(1, {"a": '{"b":[1]}'}, language=0, version=0),
        ),
    ],
)
def test_json_headers_as_clients_write_them(header: str, expected: Command) -> None:
    assert Command.decode(json_frame(header)) == expected


def test_the_javascript_client_sends_numbers_and_the_cpp_client_digits_for_booleans() -> None:
    javascript = (
        '{"code":310,"flag":0,"language":"JAVA","opaque":3,"version":121,'
        '"extFields":{"a":"PG","b":"T","d":4,"e":0,"k":false,"m":false,"g":1700000000000}}'
    )
    cpp = '{"code":10,"extFields":{"queueId":3,"batch":"1","unitMode":"0","Signature":""}}'
    got = Command.decode(json_frame(javascript, b"hi"))
    assert got.ext is not None and got.body == b"hi" and got.version == 121
    assert (got.ext["d"], got.ext["m"], got.ext["g"]) == ("4", "false", "1700000000000")
    assert Command.decode(json_frame(cpp)).ext == {
        "queueId": "3",
        "batch": "1",
        "unitMode": "0",
        "Signature": "",
    }


def test_bytes_that_are_no_utf8_are_replaced_as_java_does() -> None:
    got = Command.decode(json_frame(b'{"code":1,"remark":"a\xffb"}'))
    assert got.remark == "a�b"
    got = Command.decode(binary_frame(binary_header(entry(b"k", b"a\xffb"))))
    assert got.ext == {"k": "a�b"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"1",
        b'"x"',
        b"null",
        b"{",
        b'{"code":105',
        b'{"code":[]}',
        b'{"code":"x"}',
        b'{"code":1e99}',
        b'{"code":4294967296}',
        b'{"opaque":2147483648}',
        b'{"extFields":[]}',
        b'{"extFields":7}',
        b"{" * 50_000,
        b'{"a":' * 20_000,
        b"[" * 100_000,
        b'{"extFields":' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
        b'"' + b'\\"' * 60_000,
        b"," * 120_000,
        b"\xff\xfe",
        b'{"code":NaN}',
        b"{\x00}",
    ],
)
def test_a_json_header_that_cannot_be_read_breaks_the_protocol(header: bytes) -> None:
    with pytest.raises(PeerBrokeProtocol):
        Command.decode(json_frame(header))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(20),
        b'{"code":105,"flag":0,"language":"JAVA","opaque":1}',
        binary_header()[:-1],
        binary_header()[:13] + struct.pack(">i", 100) + bytes(8),  # remark beyond the header
        binary_header()[:13] + struct.pack(">i", -1) + bytes(8),
        binary_header()[:17] + struct.pack(">i", 1),  # ext beyond the header
        binary_header()[:17] + struct.pack(">i", -4) + bytes(8),
        binary_header(b"\x00"),  # ends inside a key's size
        binary_header(b"\x00\x05abc"),  # inside a key
        binary_header(b"\x00\x01a\x00\x00"),  # inside a value's size
        binary_header(b"\x00\x01a\x00\x00\x00\x05abc"),  # inside a value
        binary_header(b"\x00\x01a\xff\xff\xff\xff"),  # negative value size
    ],
)
def test_a_binary_header_that_cannot_be_read_breaks_the_protocol(header: bytes) -> None:
    with pytest.raises(PeerBrokeProtocol):
        Command.decode(binary_frame(header))


def test_binary_habits_empty_value_is_absent_and_the_later_duplicate_wins() -> None:
    ext = entry(b"a", b"1") + entry(b"e", b"") + entry(b"a", b"2")
    got = Command.decode(binary_frame(binary_header(ext, language=77), b"body"))
    assert got.ext == {"a": "2"}
    assert got.language == LanguageCode.OTHER
    assert got.body == b"body"


def test_codes_beyond_16_bits_are_mapped_back_in_binary_requests_only() -> None:
    for code in RequestCode:
        got = Command.decode(Command(code, binary=True).encode())
        assert got.code == code, code.name
    response = Command(3442, flag=RESPONSE_FLAG, binary=True)
    assert Command.decode(response.encode()).code == 3442
    assert UNWRAPPED_BINARY_CODES[3442] == 200050
    assert UNWRAPPED_BINARY_CODES[3543] == 200151
    assert not set(UNWRAPPED_BINARY_CODES) & {int(code) for code in RequestCode}


@pytest.mark.parametrize("binary", [False, True])
def test_too_many_or_too_long_ext_fields_break_the_protocol(binary: bool) -> None:
    many = {f"k{number}": "v" for number in range(257)}
    with pytest.raises(PeerBrokeProtocol, match="256"):
        Command.decode(Command(1, many, binary=binary).encode())
    with pytest.raises(PeerBrokeProtocol, match="255"):
        Command.decode(Command(1, {"é" * 128: "v"}, binary=binary).encode())
    fits = {"é" * 127: "v", **{f"k{number}": "v" for number in range(255)}}
    assert Command.decode(Command(1, fits, binary=binary).encode()).ext == fits
    with pytest.raises(PeerBrokeProtocol):
        Command.decode(
            Command(1, {"a": "1", "b": "2"}, binary=binary).encode(), FrameLimits(ext_fields_max=1)
        )


def test_response_codes_are_those_the_java_client_knows() -> None:
    assert {
        code: int(ResponseCode[code])
        for code in (
            "SUCCESS",
            "SYSTEM_BUSY",
            "FLUSH_DISK_TIMEOUT",
            "TOPIC_NOT_EXIST",
            "PULL_OFFSET_MOVED",
            "INVALID_PARAMETER",
            "CONSUMER_NOT_ONLINE",
            "ILLEGAL_OPERATION",
            "GO_AWAY",
        )
    } == {
        "SUCCESS": 0,
        "SYSTEM_BUSY": 2,
        "FLUSH_DISK_TIMEOUT": 10,
        "TOPIC_NOT_EXIST": 17,
        "PULL_OFFSET_MOVED": 21,
        "INVALID_PARAMETER": 29,
        "CONSUMER_NOT_ONLINE": 206,
        "ILLEGAL_OPERATION": 604,
        "GO_AWAY": 1500,
    }


def test_a_header_of_escapes_without_an_end_is_refused_in_linear_time() -> None:
    # one such frame held up every connection for a minute and a half
    header = b'{"code":1,"a":"' + b'\\"' * 60_000 + b"\\"
    began = time.perf_counter()
    with pytest.raises(PeerBrokeProtocol):
        Command.decode(json_frame(header))
    assert time.perf_counter() - began < 5
