"""cluster/broker/watching/latencies.py: every message is counted, few commits are timed when there are many."""

from __future__ import annotations

import asyncio
from typing import Any

from brokerkit import Asker, FakeConnection

from tandemmq.cluster.broker.watching.latencies import (
    CLOSE_NS,
    EVERY_MAX,
    FAR_NS,
    Latencies,
    Pace,
    Timed,
)
from tandemmq.cluster.remoting.command import Command
from tandemmq.replication import Mode
from tandemmq.storage import Draft, pack_host

HOST = pack_host("127.0.0.1", 10911)


def test_of_commits_in_quick_succession_few_are_timed_and_of_rare_ones_all() -> None:
    pace, now_ns = Pace(), FAR_NS
    for _ in range(20):
        pace.timed(now_ns)
        now_ns += CLOSE_NS - 1
    assert pace.every == EVERY_MAX
    pace.timed(now_ns + FAR_NS)
    assert pace.every == 1, "a slow one is not missed when there is nothing else"


def test_a_timed_commit_stands_for_those_since_the_one_before() -> None:
    latencies = Latencies(Mode.S0)
    latencies.answered(Timed(0, 0, messages=640, commits=64), latencies.held)
    assert (latencies.send.count, latencies.held.count) == (640, 64)
    assert [labels for labels, _ in latencies.waits()] == [("slave",), ("disk",)]
    assert latencies.on_disk.count == 0, "it waited for a slave"


async def put(asker: Asker, count: int) -> None:
    """Messages by the long way, each released and answered by itself."""
    broker = asker.broker
    connection: Any = FakeConnection()
    for number in range(count):
        placed = broker.release.put(Draft("T", 0, b"x", store_host=HOST))
        broker.release.hold(placed.end, connection, Command(310, opaque=number).reply())
        await asyncio.sleep(0)
        broker.acks.reached(broker.store.end, 1, 0)


async def test_messages_are_counted_whether_their_commit_was_timed_or_not(asker: Asker) -> None:
    asker.broker.topics.create_for_send("T", "TBW102", 1)
    await put(asker, 300)
    await asyncio.sleep(2 * FAR_NS / 1e9)
    for _ in range(2 * EVERY_MAX):  # the last of them is timed again
        await put(asker, 1)
    stored = asker.broker.store.stats.appended_messages
    counted = asker.broker.latencies.send.count
    assert stored - EVERY_MAX <= counted <= stored
    assert asker.broker.latencies.send.sum > 0


async def test_slaves_of_no_group_of_ours_do_not_fill_memory(asker: Asker) -> None:
    latencies = asker.broker.latencies
    for number in range(1_000):
        latencies.round_trip(f"10.0.0.{number}", 100)
    assert len(latencies.round_trips) == 64
