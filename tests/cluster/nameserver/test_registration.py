"""Registration bodies: three dialects, checksums, and limits on what a peer may inflate."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from tandemmq.cluster.nameserver import registration
from tandemmq.cluster.nameserver.registration import (
    INFLATED_BYTES_MAX,
    BodyUnreadable,
    Topics,
    check_crc,
    read_topics,
)
from tandemmq.cluster.nameserver.routes import DataVersion, RegistrationRefused, TopicLine

VERSION = DataVersion(counter=5, state_version=0, timestamp=1700000000000)
WRAPPER = {
    "dataVersion": {"counter": 5, "stateVersion": 0, "timestamp": 1700000000000},
    "topicConfigTable": {
        "TopicTest": {
            "attributes": {"message.type": "NORMAL"},
            "order": False,
            "perm": 6,
            "readQueueNums": 8,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "TopicTest",
            "topicSysFlag": 1,
            "writeQueueNums": 4,
        }
    },
}


def text(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def inflated(
    *, line: bytes = b'TopicTest 8 8 6 SINGLE_TAG {"a":"b c"}', mappings: int | None = 0
) -> bytes:
    version = text(json.dumps(WRAPPER["dataVersion"]).encode())
    tail = b"" if mappings is None else struct.pack(">i", mappings) + text(b"{}") * mappings
    return version + struct.pack(">i", 1) + text(line) + text(b"[]") + tail


def test_a_modern_body_is_read() -> None:
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": WRAPPER}).encode()
    assert read_topics(body, sender_version=479) == Topics(
        VERSION, {"TopicTest": TopicLine(8, 4, 6, 1)}
    )


def test_a_broker_older_than_3_0_11_sends_the_bare_wrapper() -> None:
    body = json.dumps(WRAPPER).encode()
    assert read_topics(body, sender_version=36).lines == {"TopicTest": TopicLine(8, 4, 6, 1)}
    assert read_topics(body, sender_version=37).lines == {}


def test_no_body_means_generation_zero_and_no_topics() -> None:
    assert read_topics(None, sender_version=479) == Topics()
    assert read_topics(b"{}", sender_version=479) == Topics()
    nothing = b'{"topicConfigSerializeWrapper":{"dataVersion":null,"topicConfigTable":null}}'
    assert read_topics(nothing, sender_version=479) == Topics()


def test_static_topics_have_bare_integer_keys_and_are_noticed() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":4}},'
        b'"topicQueueMappingInfoMap":{"S":{"bname":"b","currIdMap":{0:1,1:2}}}}}'
    )
    got = read_topics(body, sender_version=479)
    assert got.has_static_topics
    assert got.lines["T"].perm == 4


@pytest.mark.parametrize("said", [True, False])
def test_a_compressed_body_is_read_whether_or_not_the_header_admits_it(said: bool) -> None:
    body = zlib.compress(inflated())
    got = read_topics(body, sender_version=479, compressed=said)
    assert got == Topics(VERSION, {"TopicTest": TopicLine(8, 8, 6, 0)})


def test_the_specifications_inflated_example_has_these_sizes() -> None:
    line = b'TopicTest 8 8 6 SINGLE_TAG {"message.type":"NORMAL"}'
    assert len(line) == 0x34
    version = b'{"counter":5,"stateVersion":0,"timestamp":1700000000000}'
    assert len(version) == 56


def test_static_mappings_at_the_end_are_there_from_5_0_on() -> None:
    assert read_topics(zlib.compress(inflated(mappings=None)), sender_version=407).lines
    assert read_topics(zlib.compress(inflated(mappings=2)), sender_version=413).has_static_topics


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"7",
        b'{"topicConfigSerializeWrapper":[1]}',
        b'{"topicConfigSerializeWrapper":' * 5000,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":4294967296}}}}',
        b"\xff\xfe{}",
        zlib.compress(inflated())[:-3],
        b"\x78\x9cgarbage",
        zlib.compress(inflated(line=b"OnlyName")),
        zlib.compress(inflated(line=b"T x 8 6 SINGLE_TAG {}")),
        zlib.compress(b""),
        zlib.compress(struct.pack(">i", 1 << 30)),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(text(b"{}") + struct.pack(">i", 0x7FFFFFFF)),
    ],
)
def test_an_unreadable_body_is_refused_with_a_short_text(data: bytes) -> None:
    with pytest.raises(BodyUnreadable) as caught:
        read_topics(data, sender_version=479)
    assert 0 < len(str(caught.value)) <= 250


def test_a_bomb_is_not_inflated() -> None:
    squeezer = zlib.compressobj(9)
    part = bytes(1 << 20)
    bomb = b"".join(squeezer.compress(part) for _ in range((INFLATED_BYTES_MAX >> 20) + 1))
    bomb += squeezer.flush()
    assert len(bomb) < 1 << 20
    with pytest.raises(BodyUnreadable, match="inflates to more than"):
        read_topics(bomb, sender_version=479, compressed=True)


def test_the_checksum_covers_the_body_as_sent_and_zero_is_unchecked() -> None:
    check_crc(b"hello", 907060870)
    check_crc(b"hello", 0)
    check_crc(None, 0)
    with pytest.raises(RegistrationRefused, match=r"^crc32 not match$"):
        check_crc(b"hellO", 907060870)
    with pytest.raises(RegistrationRefused):
        check_crc(None, 907060870)


def test_a_small_body_does_not_become_millions_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 1)
    line = b"T 8 8 6 SINGLE_TAG {}"
    text = struct.pack(">i", len(line)) + line
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">i", 2) + text * 2 + struct.pack(">i", 0)
    with pytest.raises(BodyUnreadable, match="2 topics"):
        read_topics(zlib.compress(data), sender_version=479)
    plain = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{},"B":{}}}}'
    with pytest.raises(BodyUnreadable, match="more than 1 topics"):
        read_topics(plain, sender_version=479)
