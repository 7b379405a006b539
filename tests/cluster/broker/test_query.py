"""QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from messagekit import UNIQUE, Kit, open_kit

from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Owner, decode


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        kit.send(b"one", i=f"KEYS\x01red blue\x02UNIQ_KEY\x01{UNIQUE}\x02")
        kit.clock.pass_ms(1_000)
        kit.send(b"two", i="KEYS\x01blue\x02UNIQ_KEY\x01OTHER\x02")
        kit.dispatch()
        yield kit


def query(kit: Kit, key: str, count: int = 10, **more: str) -> Command:
    ext = {
        "topic": "T",
        "key": key,
        "maxNum": str(count),
        "beginTimestamp": "0",
        "endTimestamp": str(kit.clock.now_ms() + 1_000),
        "_UNIQUE_KEY_QUERY": "false",
        **more,
    }
    answer = kit.ask(Command(12, ext, opaque=4))
    assert answer is not None
    return answer


def bodies(answer: Command) -> set[bytes]:
    found = set()
    at, data = 0, bytes(answer.body or b"")
    while at < len(data):
        record = decode(data, at)
        found.add(record.body)
        at += record.size
    return found


def test_messages_are_found_by_each_of_their_keys(kit: Kit) -> None:
    assert bodies(query(kit, "red")) == {b"one"}
    answer = query(kit, "blue")
    assert bodies(answer) == {b"one", b"two"}
    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext is not None
    assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert int(answer.ext["indexLastUpdatePhyoffset"]) == kit.records()[1].physical_offset


def test_messages_are_found_by_their_unique_id_whatever_count_is_asked(kit: Kit) -> None:
    assert bodies(query(kit, UNIQUE, 0, _UNIQUE_KEY_QUERY="true")) == {b"one"}


def test_a_key_that_nobody_has_is_not_found(kit: Kit) -> None:
    answer = query(kit, "green")
    assert (answer.code, answer.body) == (22, None)
    assert answer.remark == "can not find message, maybe time range not correct"
    assert answer.ext == {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}


def test_a_message_is_seen_by_its_place(kit: Kit) -> None:
    second = kit.records()[1]
    answer = kit.ask(Command(33, {"offset": str(second.physical_offset), "topic": "T"}))
    assert answer is not None and (answer.code, answer.ext) == (0, None)
    assert bodies(answer) == {b"two"}


def test_what_is_not_confirmed_is_not_shown_by_its_id_either(kit: Kit) -> None:
    first, second = kit.records()[:2]
    kit.store.belong_to(Owner(confirmed=lambda: second.physical_offset + second.size - 1))
    for record, code in ((first, 0), (second, 1)):
        answer = kit.ask(Command(33, {"offset": str(record.physical_offset), "topic": "T"}))
        assert answer is not None and answer.code == code


@pytest.mark.parametrize("offset", ["123456789", "-8", "1"])
def test_a_place_without_a_message_is_not_found(kit: Kit, offset: str) -> None:
    answer = kit.ask(Command(33, {"offset": offset}))
    assert answer is not None
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


def test_a_query_without_its_fields_is_refused(kit: Kit) -> None:
    for code in (12, 33):
        answer = kit.ask(Command(code, {"topic": "T"}))
        assert answer is not None and answer.code == 1
