"""At least once, by chance: whatever a loss leaves of the log is delivered, delayed or not (INV-41, INV-42).

A whole broker, with power cuts as a disk allows them: the log as far as it was flushed, small files as they
were saved. Each rule is also switched off, and that must be found: a check that finds nothing checks nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from brokerkit import Asker

from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Draft, decode, encode_properties, pack_host

HOST = pack_host("127.0.0.1", 10911)
ROUNDS = 40
RUNS = itertools.count(1)
PULL, QUERY, COMMIT = 11, 14, 15
FOUND, MOVED = 0, 21


def dispatch(asker: Asker) -> None:
    while asker.broker.store.dispatch(10_000):
        pass


def stored(asker: Asker, topic: str) -> Iterator[bytes]:
    """Bodies of a topic's messages in the log, in order."""
    log = asker.broker.store.log
    at = log.start
    while at < log.end:
        view = log.record_at(at)
        if view is None:  # a blank: on to the next file
            at += (1 << 20) - at % (1 << 20)
            continue
        record = decode(view)
        if record.topic == topic:
            yield record.body
        at += record.size


class Delays:
    """Messages are parked, delivered and saved; now and then the power goes."""

    def __init__(self, asker: Asker, seed: int) -> None:
        self.asker = asker
        self.rng = random.Random(seed)
        self.run_number = next(RUNS)
        self.parked = 0

    def park(self) -> None:
        self.parked += 1
        properties = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
        self.asker.broker.store.put(
            Draft("SCHEDULE_TOPIC_XXXX", 0, b"%d.%d" % (self.run_number, self.parked), encode_properties(properties),
                  born_host=HOST, store_host=HOST)
        )  # fmt: skip

    def pass_time(self) -> None:
        self.asker.clock.advance(self.rng.randrange(1_000, 2_000))
        dispatch(self.asker)
        self.asker.broker.schedule.step()
        dispatch(self.asker)

    async def save(self) -> None:
        await self.asker.broker.schedule.file.saved()

    def power_cut(self) -> None:
        """The log as far as it was flushed, and the file as it is; nothing that was in memory."""
        store, schedule = self.asker.broker.store, self.asker.broker.schedule
        dispatch(self.asker)  # a start derives all there is; a cut in place would not
        store.belong_to(dataclasses.replace(store.owner, cut=None))
        store.truncate(store.flushed)
        schedule.offsets.clear()
        schedule.load()

    async def run(self) -> None:
        store = self.asker.broker.store
        for _ in range(ROUNDS):
            match self.rng.randrange(10):
                case 0 | 1 | 2:
                    self.park()
                case 3 | 4 | 5:
                    self.pass_time()
                case 6:
                    store.flush_log()
                case 7 | 8:
                    await self.save()
                case _:
                    self.power_cut()
        store.flush_log()
        for _ in range(3):
            self.asker.clock.advance(2_000)
            self.pass_time()

    def undelivered(self) -> set[bytes]:
        return set(stored(self.asker, "SCHEDULE_TOPIC_XXXX")) - set(stored(self.asker, "T"))


@pytest.mark.parametrize("seed", range(5))
async def test_every_delayed_message_that_is_left_is_delivered(asker: Asker, seed: int) -> None:
    for turn in range(6):
        delays = Delays(asker, seed * 100 + turn)
        await delays.run()
        assert delays.undelivered() == set()


async def test_progress_that_neither_waits_for_its_log_nor_goes_with_it_would_be_found(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker.broker.schedule.file.rests = None
    monkeypatch.setattr(asker.broker.schedule, "cut", lambda end: None)
    for seed in range(30):
        delays = Delays(asker, seed)
        await delays.run()
        if delays.undelivered():
            return
    raise AssertionError("a planted bug was not found")


class Readers:
    """A group of one, which carries its position; the end of its queue is lost now and then."""

    def __init__(self, asker: Asker, seed: int) -> None:
        self.asker = asker
        self.rng = random.Random(seed)
        self.run_number = next(RUNS)
        self.sent = 0
        self.position = 0
        self.consumed: set[bytes] = set()
        self.ends: list[int] = []  # of records, in the log
        asker.broker.topics.create_for_send("T", "TBW102", 1)

    def put(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self.sent += 1
            self.asker.put("T", body=b"%d.%d" % (self.run_number, self.sent))
            self.ends.append(self.asker.broker.store.end)

    async def pull(self) -> bool:
        """Whether there was anything to do."""
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": self.position,
            "maxMsgNums": 3, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        request = Command(PULL, {key: str(value) for key, value in fields.items()}, opaque=7)
        peer: Any = self.asker.connection
        answer = self.asker.broker.table[PULL](request, peer)
        if answer is None:
            answer = Command.decode(memoryview(peer.written.pop()))
        assert isinstance(answer, Command)
        at = int((answer.ext or {})["nextBeginOffset"])
        if answer.code == FOUND:
            view = memoryview(bytes(answer.body or b""))
            while view:
                record = decode(view[: int.from_bytes(view[:4], "big")])
                self.consumed.add(record.body)
                view = view[record.size :]
        elif answer.code != MOVED:
            return False
        self.position = at
        if answer.code == MOVED:
            await self.commit()  # as clients do
        return True

    async def commit(self) -> None:
        await self.asker.ask(
            COMMIT, consumerGroup="G", topic="T", queueId=0, commitOffset=self.position
        )

    async def restart(self) -> None:
        answer = await self.asker.ask(QUERY, consumerGroup="G", topic="T", queueId=0)
        self.position = int((answer.ext or {}).get("offset", "0"))

    def lose(self) -> None:
        store = self.asker.broker.store
        keep = self.rng.randrange(max(0, len(self.ends) - 8), len(self.ends) + 1)
        del self.ends[keep:]
        store.truncate(self.ends[-1] if self.ends else self.start)
        self.asker.broker.lost("by chance")

    async def run(self) -> None:
        await self.asker.heartbeat("G", "T")
        self.start = self.asker.broker.store.end
        self.position = self.asker.broker.store.max_offset("T", 0)
        await self.commit()
        for _ in range(ROUNDS):
            match self.rng.randrange(10):
                case 0 | 1 | 2:
                    self.put()
                case 3 | 4 | 5:
                    await self.pull()
                case 6 | 7:
                    await self.commit()
                case 8:
                    await self.restart()
                case _:
                    self.lose()
        while await self.pull():
            pass

    def skipped(self) -> set[bytes]:
        mine = b"%d." % self.run_number
        return {body for body in stored(self.asker, "T") if body.startswith(mine)} - self.consumed


@pytest.mark.parametrize("seed", range(5))
async def test_every_message_that_is_left_or_comes_later_reaches_the_group(
    asker: Asker, seed: int
) -> None:
    for turn in range(6):
        readers = Readers(asker, seed * 100 + turn)
        await readers.run()
        assert readers.skipped() == set()


@pytest.mark.parametrize("planted", ["nobody is moved", "every commit is taken"])
async def test_a_reader_that_stays_beyond_the_cut_would_be_found(
    asker: Asker, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, found = ("target", None) if planted == "nobody is moved" else ("beyond", False)
    monkeypatch.setattr(asker.broker.cuts, name, lambda *_, **__: found)
    for seed in range(30):
        readers = Readers(asker, seed)
        await readers.run()
        if readers.skipped():
            return
    raise AssertionError("a planted bug was not found")
