"""cluster/broker/tables/lives.py: a topic deleted and made again is read from its new beginning (INV-42)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from brokerkit import Asker, FakeConnection, TwoClocks

from tandemmq.cluster.broker.reading.longpoll import TICK_MS
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.tables.lives import KEEP_MS
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import decode

PULL, QUERY, COMMIT, CREATE, MAX, DELETE = 11, 14, 15, 17, 30, 215
FOUND, NO_TOPIC, RETRY, MOVED = 0, 17, 20, 21
SUSPEND, IN_PULL = 2, 4


class Reader:
    """One consumer of queue T-0 of a broker, which carries its position."""

    def __init__(self, asker: Asker, group: str = "G") -> None:
        self.asker = asker
        self.group = group
        self.connection = FakeConnection()
        self.position = 0
        self.consumed: list[bytes] = []
        self.moved = 0

    async def ask(self, flags: int = IN_PULL) -> Command | None:
        fields = {
            "consumerGroup": self.group, "topic": "T", "queueId": 0,
            "queueOffset": self.position, "maxMsgNums": 32, "sysFlag": flags, "commitOffset": 0,
            "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
            "expressionType": "TAG",
        }  # fmt: skip
        request = Command(PULL, {key: str(value) for key, value in fields.items()}, opaque=7)
        peer: Any = self.connection
        answer = self.asker.broker.table[PULL](request, peer)
        if answer is None and self.connection.written:
            answer = Command.decode(memoryview(self.connection.written.pop()))
        assert answer is None or isinstance(answer, Command)
        return answer

    async def pull(self) -> int:
        """The answer's code; what it says is done, as clients do it."""
        answer = await self.ask()
        assert answer is not None
        at = int((answer.ext or {}).get("nextBeginOffset", "0"))
        if answer.code == FOUND:
            self.consumed += bodies(bytes(answer.body or b""))
            self.position = at
        elif answer.code == MOVED:
            self.moved += 1
            self.position = at
            await self.commit()
        return int(answer.code)

    async def read_on(self) -> None:
        while await self.pull() in (FOUND, MOVED):
            pass

    async def commit(self, offset: int | None = None) -> Command:
        at = self.position if offset is None else offset
        return await self.asker.ask(
            COMMIT, consumerGroup=self.group, topic="T", queueId=0, commitOffset=at,
            connection=self.connection,
        )  # fmt: skip

    def committed(self) -> int:
        return self.asker.broker.offsets.committed(self.group, "T", 0)


def bodies(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    while view:
        record = decode(view[: int.from_bytes(view[:4], "big")])
        yield record.body
        view = view[record.size :]


async def make(asker: Asker) -> None:
    answer = await asker.ask(
        CREATE, topic="T", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
        topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    assert answer.code == 0, answer.remark


async def delete(asker: Asker) -> None:
    answer = await asker.ask(DELETE, topic="T")
    assert answer.code == 0, answer.remark


def put(asker: Asker, life: int, count: int) -> list[bytes]:
    sent = [b"%d.%d" % (life, number) for number in range(count)]
    for body in sent:
        asker.put("T", body=body)
    return sent


async def read_a_life(asker: Asker, count: int = 200) -> Reader:
    """A reader that has consumed all of the topic's first life, and committed it."""
    await make(asker)
    put(asker, 1, count)
    reader = Reader(asker)
    await asker.heartbeat("G", "T", connection=reader.connection)
    await reader.read_on()
    await reader.commit()
    assert reader.position == reader.committed() == count
    reader.consumed.clear()
    return reader


async def begin_anew(asker: Asker) -> None:
    await delete(asker)
    await make(asker)


@pytest.mark.parametrize("count", [5, 200, 300])
async def test_a_running_reader_gets_all_of_a_topics_next_life(asker: Asker, count: int) -> None:
    """INV-42. It holds 200; the next life begins at 0, and may end before that, at it or behind it."""
    reader = await read_a_life(asker)
    await begin_anew(asker)
    sent = put(asker, 2, count)
    await reader.read_on()
    assert reader.consumed == sent
    assert reader.moved == 1


async def test_a_reader_that_asks_before_anything_is_sent_gets_it_all(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await begin_anew(asker)
    await reader.pull()
    sent = put(asker, 2, 7)
    await reader.read_on()
    assert reader.consumed == sent


async def test_each_life_is_a_cut_of_its_own(asker: Asker) -> None:
    reader = await read_a_life(asker)
    for life in range(2, 6):
        await begin_anew(asker)
        reader.consumed.clear()
        sent = put(asker, life, 40 - 5 * life)
        await reader.read_on()
        await reader.commit()
        assert reader.consumed == sent, life
    assert reader.moved == 4


async def test_progress_of_the_former_life_that_comes_late_is_not_taken(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await begin_anew(asker)
    put(asker, 2, 300)
    assert (await reader.commit(190)).code == 0
    assert reader.committed() == -1
    await reader.ask()  # that it is moved gets lost, or is not done yet
    await reader.commit(195)
    assert reader.committed() == -1
    await reader.pull()
    await reader.commit(195)
    assert reader.committed() == 0
    await reader.pull()
    await reader.commit()
    assert reader.committed() == 32


async def test_a_pull_that_waits_in_the_former_life_waits_no_longer(
    asker: Asker, clock: TwoClocks
) -> None:
    reader = await read_a_life(asker)
    assert await reader.ask(IN_PULL | SUSPEND) is None
    await begin_anew(asker)
    put(asker, 2, 3)
    clock.advance(TICK_MS)
    asker.broker.pulls.held.expire(clock.monotonic_ms())
    (answer,) = reader.connection.sent
    assert (answer.code, (answer.ext or {})["nextBeginOffset"]) == (MOVED, "0")


async def test_a_deletion_is_a_cut_for_the_next_process_too(asker: Asker, clock: TwoClocks) -> None:
    reader = await read_a_life(asker)
    await begin_anew(asker)
    sent = put(asker, 2, 300)
    asker.broker.load()
    await reader.read_on()
    assert reader.consumed == sent


async def test_readers_are_believed_an_hour_after_the_first_message_of_a_life(
    asker: Asker, clock: TwoClocks
) -> None:
    """Not after the deletion: a reader of a topic that is gone waits for it, however long."""
    reader = await read_a_life(asker)
    await delete(asker)
    clock.advance(3 * KEEP_MS)
    await make(asker)
    sent = put(asker, 2, 300)
    clock.advance(KEEP_MS - 1)
    assert await reader.pull() == MOVED
    stranger = Reader(asker, "H")
    stranger.position = 200
    clock.advance(1)
    assert await stranger.pull() == FOUND
    await reader.read_on()
    assert reader.consumed == sent


async def test_other_topics_are_not_looked_at(asker: Asker) -> None:
    await read_a_life(asker)
    await begin_anew(asker)
    assert asker.broker.cuts.concerns("T")
    assert not asker.broker.cuts.concerns("Other")


# --- a slave, and the master that it becomes ---


async def following(asker: Asker) -> None:
    broker = asker.broker
    await broker.standing.changes.tell(Role.SLAVE)
    broker.standing.role = Role.SLAVE  # type: ignore[misc, assignment]


def deleted_on_the_master(asker: Asker, life: int, count: int) -> list[bytes]:
    """As a slave sees it: the log goes on with the next life, the tables say that the former is deleted."""
    broker = asker.broker
    below = broker.store.end
    broker.store.burials.follow({"T": below}, 0)
    broker.offsets.forget_topic("T")
    return put(asker, life, count)


async def test_a_slave_sends_readers_of_a_former_life_to_the_master_first(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await following(asker)
    sent = deleted_on_the_master(asker, 2, 300)
    assert await reader.pull() == RETRY
    assert await reader.pull() == MOVED, "there is none"
    await reader.read_on()
    assert reader.consumed == sent
    assert reader.moved == 1


async def test_a_slave_believes_whom_the_master_sends_back(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await following(asker)
    deleted_on_the_master(asker, 2, 300)
    assert await reader.pull() == RETRY
    reader.position = 64  # the master had moved it, and given it that
    await reader.pull()
    reader.position = 200  # and gave it more
    await reader.read_on()
    assert (reader.position, reader.moved) == (300, 0)


async def test_a_slave_takes_no_progress_of_a_former_life(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await following(asker)
    deleted_on_the_master(asker, 2, 300)
    assert (await reader.commit(200)).code == 0
    assert reader.committed() == -1
    assert asker.broker.offsets.ahead == {}


async def test_a_slave_that_is_made_master_moves_readers_of_a_former_life(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await following(asker)
    sent = deleted_on_the_master(asker, 2, 300)
    asker.broker.standing.role = Role.ASYNC_MASTER  # type: ignore[misc, assignment]
    await asker.broker.standing.changes.tell(Role.ASYNC_MASTER)
    await reader.read_on()
    assert reader.consumed == sent


async def test_a_deletion_that_is_taken_back_moves_nobody(asker: Asker) -> None:
    reader = await read_a_life(asker)
    await following(asker)
    deleted_on_the_master(asker, 2, 0)
    asker.broker.store.burials.follow({"T": 0}, 0)
    while asker.broker.store.dispatch(10_000):
        pass
    reader.position = 150
    await reader.read_on()
    assert (reader.moved, len(reader.consumed)) == (0, 50)


# --- by chance ---


async def live_by_chance(asker: Asker, seed: int) -> set[bytes]:
    """Lives of random length with two members that hand the queue to each other; what nobody consumed of them."""
    rng = random.Random(seed)
    await make(asker)
    members = [Reader(asker) for _ in range(2)]
    for number, each in enumerate(members):
        await asker.heartbeat("G", "T", client_id=f"c{number}", connection=each.connection)
    owner, skipped = members[0], set[bytes]()
    for life in range(8):
        sent = set(put(asker, life, rng.randrange(60)))
        for _ in range(rng.randrange(12)):
            match rng.randrange(6):
                case 0:
                    await owner.commit()
                case 1:  # the queue goes to the other, which asks where the group is
                    await owner.commit()
                    owner = members[owner is members[0]]
                    answer = await asker.ask(QUERY, consumerGroup="G", topic="T", queueId=0)
                    owner.position = int((answer.ext or {}).get("offset", "0"))
                case 2:
                    await members[0].commit(
                        rng.randrange(60)
                    ) if life and rng.random() < 0.2 else None
                case _:
                    await owner.pull()
        while await owner.pull() in (FOUND, MOVED):
            pass
        consumed = {body for each in members for body in each.consumed}
        skipped |= sent - consumed
        if rng.random() < 0.7:
            await owner.commit()
        await begin_anew(asker)
    await delete(asker)
    return skipped


@pytest.mark.parametrize("seed", range(8))
async def test_every_message_of_every_life_reaches_the_group(asker: Asker, seed: int) -> None:
    assert await live_by_chance(asker, seed) == set()


@pytest.mark.parametrize("planted", ["nobody is moved", "every commit is taken"])
async def test_a_reader_that_stays_in_a_former_life_would_be_found(
    asker: Asker, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, found = ("target", None) if planted == "nobody is moved" else ("beyond", False)
    monkeypatch.setattr(asker.broker.cuts, name, lambda *_, **__: found)
    for seed in range(20):
        if await live_by_chance(asker, seed):
            return
    raise AssertionError("a planted bug was not found")


async def test_who_asks_for_an_end_vouches_for_nobody_else_on_that_host(asker: Asker) -> None:
    """The next life is just as long as the former when a tool looks at it."""
    reader = await read_a_life(asker, 5)
    await begin_anew(asker)
    sent = put(asker, 2, 5)
    await asker.ask(MAX, topic="T", queueId=0)
    await reader.read_on()
    assert reader.consumed == sent
