"""A replicated group as real processes under steady sends of our client: what several tests of one need."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tandemmq import ClientError, Message, Producer, SendStatus
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess, SeenGroup
from tandemmq.cluster.remoting import ConnectFailed
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import fastjson

TOPIC = "Failover"
PROBED = "Probed"
QUEUES = 4
LANES = 8


@dataclass(slots=True)
class Steady:
    """Lanes that send one message after the other, and what came of each."""

    producer: Producer
    acknowledged: list[tuple[float, str]] = field(default_factory=list)  # when, message id
    failed: list[tuple[float, str]] = field(default_factory=list)  # when, why
    unsafe: list[str] = field(default_factory=list)

    async def lane(self, number: int) -> None:
        for count in itertools.count():
            try:
                body = f"{number}-{count}".encode()
                result = await self.producer.send(Message(TOPIC, body, tags="t"))
            except ClientError as problem:
                self.failed.append((time.monotonic(), str(problem)))
                await asyncio.sleep(0.002)
                continue
            if result.status is SendStatus.SEND_OK:
                self.acknowledged.append((time.monotonic(), result.message_id))
            else:
                self.unsafe.append(result.message_id)
            await asyncio.sleep(0.002)

    def first_after(self, when: float) -> float | None:
        """Seconds from `when` until the first acknowledgement behind it."""
        return next((at - when for at, _ in self.acknowledged if at > when), None)

    def pause_after(self, when: float, until: float) -> float:
        """The longest time without an acknowledgement in between, in seconds."""
        times = [when, *(at for at, _ in self.acknowledged if when < at < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@asynccontextmanager
async def group_of(directory: Path, plan: GroupPlan) -> AsyncIterator[ReplicaGroup]:
    async with ReplicaGroup(directory, plan) as group:
        await group.start()
        await group.create_topic(TOPIC, QUEUES)
        yield group


@asynccontextmanager
async def sending(group: ReplicaGroup, *, retries: int = 0) -> AsyncIterator[Steady]:
    """retries 0: each message is sent once, so it may be in the log once at most."""
    async with Producer(
        "PG", namesrv=group.name_server_address, retries=retries, timeout_ms=15_000
    ) as producer:
        steady = Steady(producer)
        await eventually(lambda: routed(group), 10, "no route")
        lanes = [asyncio.create_task(steady.lane(number)) for number in range(LANES)]
        try:
            await eventually(lambda: done(len(steady.acknowledged) > 50), 10, "nothing is sent")
            yield steady
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)


async def done(holds: bool) -> bool:
    return holds


async def routed(group: ReplicaGroup) -> bool:
    addresses = await group.addresses(TOPIC)
    return addresses is not None and 0 in addresses


async def eventually(
    holds: Callable[[], object], within_s: float, what: str, *, every_s: float = 0.005
) -> None:
    deadline = time.monotonic() + within_s
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(every_s)


async def roles(group: ReplicaGroup) -> tuple[ReplicaProcess, ReplicaProcess, SeenGroup]:
    """Master and slave of a whole group."""
    view = await group.whole()
    assert view.master is not None
    master = group.replica_at(view.master)
    (slave,) = (each for each in group.replicas if each is not master)
    return master, slave, view


async def state(group: ReplicaGroup, replica: ReplicaProcess) -> dict[str, str]:
    """A broker's runtime table."""
    ask = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await group.pool.request(replica.address, ask, 3_000)
    table = fastjson.loads(bytes(answer.body or b"{}"))["table"]
    return {str(key): str(value) for key, value in table.items()}


def one_send() -> Command:
    ext = {
        "a": "PG", "b": PROBED, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, ext, b"probe")


async def writable(group: ReplicaGroup, replica: ReplicaProcess) -> float:
    """Send to this one replica, as fast as it answers, until it takes a message; when that was."""
    deadline = time.monotonic() + 10
    while True:
        try:
            answer = await group.pool.request(replica.address, one_send(), 3_000)
        except ConnectFailed as problem:
            answer = Command(ResponseCode.SYSTEM_ERROR, remark=str(problem))  # it is starting
        if answer.code == ResponseCode.SUCCESS:
            return time.monotonic()
        assert time.monotonic() < deadline, f"not writable: {answer.code} {answer.remark}"
        await asyncio.sleep(0.002)
