"""Allocations and the hash selector give what the Java classes of RocketMQ 5.3.3 and 4.9.7 gave."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tandemmq.cluster.client import (
    Message,
    MessageQueue,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_hash,
    allocate_by_machine_room,
    allocate_fixed,
    allocate_nearby,
    at_random,
    by_key,
    by_machine_room,
)
from tandemmq.cluster.client.consuming.rebalance import Allocation
from tandemmq.cluster.client.errors import MessageRefused

GOLDEN = Path(__file__).parents[2] / "golden" / "client" / "allocations.jsonl.xz"
LINES = [json.loads(line) for line in lzma.decompress(GOLDEN.read_bytes()).splitlines()]

# the programs that made the golden lines use these rooms: tests/compat/java/Allocations.java
STRATEGIES: Mapping[str, Allocation] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "MACHINE_ROOM": allocate_by_machine_room("room1", "room3"),
    "MACHINE_ROOM_NEARBY-AVG": allocate_nearby(
        allocate_averagely,
        lambda broker: broker.split("@")[0] if "@" in broker else "room0",
        lambda client: f"room{int(client[-1]) % 3}",
    ),
    "CONSISTENT_HASH": allocate_by_hash,
}


def queues(texts: list[str]) -> list[MessageQueue]:
    parts = [text.rpartition(":") for text in texts]
    return [MessageQueue("T", broker, int(number)) for broker, _, number in parts]


def clients(count: int) -> list[str]:
    return sorted(f"10.0.0.{i + 1}@{100 + i * 7}#{i}" for i in range(count))


def check_line(line: Mapping[str, Any]) -> None:
    if "key" in line:
        chosen = by_key(line["key"])(queues(line["queues"]), Message("T", b"x"))
        assert [chosen] == queues(line["chosen"]), line
        return
    allocate = STRATEGIES[line["strategy"]]
    mine = allocate(queues(line["queues"]), clients(line["clients"]), line["own"])
    assert list(mine) == queues(line["mine"]), line


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategy_gives_what_the_java_class_gave(strategy: str) -> None:
    lines = [line for line in LINES if line.get("strategy") == strategy]
    assert len(lines) > 100
    for line in lines:
        check_line(line)


def test_keys_go_to_the_queues_that_the_java_selector_chose() -> None:
    lines = [line for line in LINES if "key" in line]
    assert len(lines) == 40
    for line in lines:
        check_line(line)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_member_that_the_broker_does_not_know_gets_nothing(strategy: str) -> None:
    everything = queues(["room1@b:0", "room1@b:1", "room2@c:0"])
    assert not STRATEGIES[strategy](everything, clients(2), "stranger")


def test_fixed_queues_are_read_and_the_retry_topic_is_shared() -> None:
    fixed = allocate_fixed([MessageQueue("T", "a", 1)])
    assert fixed(queues(["a:0", "a:1"]), ["one", "two"], "one") == (MessageQueue("T", "a", 1),)
    retries = [MessageQueue("%RETRY%G", "a", 0), MessageQueue("%RETRY%G", "b", 0)]
    assert list(fixed(retries, ["one", "two"], "one")) == retries[:1]


def test_machine_room_selector_takes_near_queues_in_turn_and_says_when_there_are_none() -> None:
    everything = queues(["room1@b:0", "room1@b:1", "room2@c:0"])
    select = by_machine_room("room1")
    message = Message("T", b"x")
    taken = [select(everything, message) for _ in range(4)]
    assert taken == [*everything[:2], *everything[:2]]
    with pytest.raises(MessageRefused, match=r"no queue in room9.*room@name"):
        by_machine_room("room9")(everything, message)


def test_random_selector_reaches_every_queue() -> None:
    everything = queues(["a:0", "a:1", "a:2"])
    select = at_random()
    assert {select(everything, Message("T", b"x")) for _ in range(200)} == set(everything)
