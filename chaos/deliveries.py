"""A consumer group that reads through a whole run: its members are our asyncio client, and commit as it does.

What it was given goes into the journal; the verdict asks whether every message of the final log was among it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self

from tandemmq.chaos.checking.lines import Delivered
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.traffic import CHURN_TOPIC, DELAYED_TOPIC, DELAYS_S, PROBE_TOPIC, TOPIC
from tandemmq.cluster.client import ClientConfig, PushConsumer, ReceivedMessage, StartFrom

GROUP: Final = "ChaosReaders"
SUBSCRIBED: Final = frozenset({TOPIC, PROBE_TOPIC, DELAYED_TOPIC})  # and promised all of it
MEMBERS: Final = 2
LOOK_AGAIN_MS: Final = 1000  # for routes and for members: a campaign is over within minutes
LATE_S: Final = 1.5  # what the last delayed message may take beyond its delay
QUIET_S: Final = 0.5
STALLED_S: Final = 12.0  # without a delivery: what is missing then does not come


def watchful(name_server: str, instance_name: str) -> ClientConfig:
    """Of a client that looks often for routes and members."""
    return ClientConfig(
        name_server, instance_name, route_interval_ms=LOOK_AGAIN_MS, heartbeat_interval_ms=LOOK_AGAIN_MS
    )  # fmt: skip


class Readers:
    """The members, from the beginning of the run until drained()."""

    def __init__(
        self, name_server: str, journal: Journal, members: int = MEMBERS, group: str = GROUP
    ) -> None:
        self._journal = journal
        self._group = group
        journal.expected = SUBSCRIBED
        self._last_s = time.monotonic()
        self._members = [self._member(name_server, number) for number in range(members)]

    def _member(self, name_server: str, number: int) -> PushConsumer:
        async def take(message: ReceivedMessage) -> None:
            self._last_s = time.monotonic()
            self._journal.delivered(
                Delivered(
                    message.topic, message.queue.queue_id, message.queue_offset,
                    message.message_id, number, time.monotonic_ns(),
                )
            )  # fmt: skip

        topics = dict.fromkeys(sorted(SUBSCRIBED | {CHURN_TOPIC}), "*")
        config = watchful(name_server, f"reader-{number}")
        return PushConsumer(
            self._group, take, subscribe=topics, start=StartFrom.FIRST, config=config
        )

    async def __aenter__(self) -> Self:
        for member in self._members:
            await member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(each.stop() for each in self._members))

    async def drained(self) -> None:
        """Wait, once nobody sends any more, until what was acknowledged has come, or nothing comes any more.

        Whether all did is for the verdict to say.
        """
        began_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            idle_s = now_s - max(self._last_s, began_s)
            due = now_s - began_s > max(DELAYS_S) + LATE_S
            if due and idle_s > (STALLED_S if self._journal.undelivered else QUIET_S):
                return
            await asyncio.sleep(0.05)
