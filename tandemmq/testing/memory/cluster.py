"""A cluster that is a few dictionaries: the client's own code talks to it, without sockets, disk or processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from tandemmq.cluster.client import ReceivedMessage
from tandemmq.cluster.client.reaching.inside import SERVERS
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import pack_host
from tandemmq.testing.memory.log import Entry, Log
from tandemmq.testing.memory.names import Names, Topics
from tandemmq.testing.memory.reads import Reads
from tandemmq.testing.memory.sends import DLQ, Sends
from tandemmq.testing.memory.server import BROKER, Server, State
from tandemmq.testing.memory.wires import MemoryWire

#: RocketMQ's messageDelayLevel
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_numbers = itertools.count(1)


class MemoryCluster:
    """Name server and broker in this process. Producers and consumers are the real ones; only `namesrv` differs.

    delay_levels  messageDelayLevel: what a level means. Nobody has to wait for it: advance() the time

    What it has: topics, queues, tags and SQL92, groups that share queues, orderly and broadcasting consumers, retries
    and dead letters, delay and timers, transactions, requests and replies, several event loops and threads.
    What it has not: disks, replicas, retention, access control, and most of Admin. Asked for those it refuses.

    Example:
        with MemoryCluster() as cluster:
            async with Producer("shop", namesrv=cluster.namesrv) as producer:
                await producer.send(Message("Orders", b"17"))
            assert [each.body for each in cluster.messages("Orders")] == [b"17"]
    """

    def __init__(self, *, delay_levels: str = DELAY_LEVELS) -> None:
        number = next(_numbers)
        self.namesrv = f"memory-{number}:9876"
        self._ahead_ms = 0
        host = pack_host("127.0.0.1", 10911)
        self._state = State(Log(host, delay_levels), self._now_ms)
        address = f"memory-{number}:10911"
        broker = Server(address, self._state, {
            **Sends(self._state).table(), **Reads(self._state).table(), **Topics(self._state).table(),
        })  # fmt: skip
        names = Server(self.namesrv, self._state, Names(self._state, address).table())
        self._servers = {each.address: each for each in (names, broker)}

    def start(self) -> Self:
        """From now on clients reach it at `namesrv`."""
        for server in self._servers.values():
            SERVERS[server.address] = lambda table, server=server: MemoryWire(server, table)  # type: ignore[misc]
            server.down = False
        return self

    def stop(self) -> None:
        """Nobody reaches it any more."""
        for server in self._servers.values():
            server.down = True
            SERVERS.pop(server.address, None)
        self._state.arrivals.tell()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Inside, no server answers: what does the application do?

        Example:
            with cluster.outage(), pytest.raises(ClientError):
                await producer.send(message)
        """
        for server in self._servers.values():
            server.down = True
        try:
            yield
        finally:
            for server in self._servers.values():
                server.down = False

    # Time

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """Let so much time pass here: what waits for it is delivered. The clients' clocks stay as they are.

        Example: cluster.advance(3600)
        """
        if seconds < 0:
            raise ValueError(f"time passes forwards only, got {seconds} s")
        with self._state.lock:
            self._ahead_ms += round(seconds * 1000)
            self._state.log.release(self._now_ms())
            self._state.arrivals.tell()

    # What is there

    def create_topic(self, topic: str, queue_count: int = 4) -> str:
        """Make a topic, or change its number of queues; its name."""
        with self._state.lock:
            self._state.log.topic(topic).queue_count = queue_count
        return topic

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Everything that was sent to a topic, in the order in which it was stored; without what waits for its time."""
        with self._state.lock:
            self._state.log.release(self._now_ms())
            return [_shown(entry) for entry in self._state.log.messages(topic)]

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """What a group failed on too often."""
        return self.messages(DLQ + group)

    @property
    def waiting(self) -> int:
        """Messages that wait for their time: delayed ones, and those that failed and come again."""
        with self._state.lock:
            self._state.log.release(self._now_ms())
            return self._state.log.waiting

    @property
    def open_transactions(self) -> int:
        """Half messages without an end."""
        with self._state.lock:
            return len(self._state.log.halves)

    def check_transactions(self) -> int:
        """Ask a producer of each open transaction how it ended, as brokers do after a while; how many were asked."""
        asked = 0
        with self._state.lock:
            for half in self._state.log.halves.values():
                producer = self._state.members.producer(half.properties.get("PGROUP", ""))
                if producer is not None:
                    producer.push(_question(half))
                    asked += 1
        return asked

    def lag(self, group: str, topic: str) -> int:
        """Messages of a topic that a group has not committed; consumers commit every five seconds and at their stop."""
        with self._state.lock:
            counts = {
                place[1]: len(q) for place, q in self._state.log.queues.items() if place[0] == topic
            }
            offsets = self._state.members.offsets
            return sum(count - offsets.get((group, topic, q), 0) for q, count in counts.items())


def _shown(entry: Entry) -> ReceivedMessage:
    (found,) = read_records(entry.record, BROKER, 0)
    return found


def _question(half: Entry) -> Command:
    """CHECK_TRANSACTION_STATE."""
    told = {
        "tranStateTableOffset": "0",
        "commitLogOffset": str(half.offset),
        "msgId": half.properties.get("UNIQ_KEY", ""),
        "transactionId": half.properties.get("UNIQ_KEY", ""),
        "topic": half.topic,
        "bname": BROKER,
    }
    return Command(RequestCode.CHECK_TRANSACTION_STATE, told, half.record)
