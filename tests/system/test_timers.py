"""Timed messages end to end: our client and broker as processes, restarts, `tandem admin timers`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from command_line import run
from inbox import Inbox, eventually

from tandemmq import BrokerRefused, Message, Producer, PushConsumer, StartFrom
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.remoting.recall import RecallHandle

pytestmark = pytest.mark.system
HOUR_MS: Final = 3_600_000
COUNTED_S: Final = 10


def timed_reader(inbox: Inbox, namesrv: str) -> PushConsumer:
    topics = {"Timed": "*"}
    return PushConsumer(
        "TimedReaders", inbox, namesrv=namesrv, subscribe=topics, start=StartFrom.FIRST
    )


def hour_of(recall_handle: str) -> str:
    """The key of byHour under which a message waits."""
    deliver_ms = int(RecallHandle.decode(recall_handle).deliver_ms)
    return str((deliver_ms - 1) // HOUR_MS * HOUR_MS)


async def shown_once(
    command: tuple[str, ...], wanted: Callable[[dict[str, int]], bool]
) -> dict[str, Any]:
    """What `tandem admin timers` says of the one broker, once its hours are as wanted."""
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(COUNTED_S):
            while not wanted(found.get("byHour", {})):
                ((found,),) = ((await asyncio.to_thread(run, *command, "--json")).json.values(),)
    except TimeoutError:
        raise AssertionError(f"not counted in {COUNTED_S} s: {found}") from None
    return found


async def test_timed_messages_survive_kill_and_restart_and_come_when_due(tmp_path: Path) -> None:
    settings = {"recallMessageEnable": "true", "mappedFileSizeCommitLog": 16 << 20}
    with (
        NameServer(tmp_path).start() as names,
        Broker(tmp_path, names.address, settings=settings) as broker,
    ):
        broker.start()
        inbox = Inbox()
        due: dict[bytes, float] = {}
        async with (
            Producer("TimedProducers", namesrv=names.address) as producer,
            timed_reader(inbox, names.address),
        ):
            await producer.send(Message("Timed", b"first"))
            for number in range(60):
                at = datetime.now(UTC) + timedelta(seconds=1 + number / 10)
                body = b"%d" % number
                due[body] = at.timestamp()
                message = Message("Timed", body, deliver_at=at)
                if number % 2:
                    message = Message("Timed", body, delay_s=1 + number / 10)
                assert (await producer.send(message)).recall_handle
            kept = await producer.send(Message("Timed", b"tomorrow", delay_s=86_400))
            gone = await producer.send(Message("Timed", b"never", delay_s=9))
            assert await producer.recall(gone) == gone.message_id
            with pytest.raises(BrokerRefused) as refused:
                await producer.send(Message("Timed", b"too far", delay_s=4 * 86_400))
            assert refused.value.code == 13
            timers = ("admin", "timers", "-b", broker.address, "-n", names.address)
            # A message counts when it has its place on the wheel, a tick after its send was answered.
            shown = await shown_once(
                timers, lambda found: found.get(hour_of(kept.recall_handle), 0) == 1
            )
            assert sum(shown["byHour"].values()) == shown["byTopic"]["Timed"]
            table = (await asyncio.to_thread(run, *timers)).out
            assert "#From" in table and "Timed" in table
            await asyncio.sleep(1)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await asyncio.sleep(2)
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.to_thread(broker.start)
            await eventually(lambda: len({m.body for m in inbox.messages}) >= 61, "all of them")
            await asyncio.sleep(max(0.0, max(due.values()) + 3 - time.time()))
            bodies = [m.body for m in inbox.messages]
            assert set(bodies) == {b"first", *due}
            for message in inbox.messages:
                if message.body in due:
                    assert message.store_ms >= due[message.body] * 1000 - 1, message.body
            stored = {m.queue_offset for m in inbox.messages}
            assert len({(m.queue, m.queue_offset) for m in inbox.messages}) == 61, stored
            assert await producer.recall(kept.recall_handle) == kept.message_id
