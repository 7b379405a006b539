"""`tandem admin timers`: which messages wait for their delivery time, by hour and by topic."""

from __future__ import annotations

import asyncio

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    broker_or_cluster,
    hash_table,
    targets,
)
from tandemmq.command.times import clock_text


async def timers(call: Call) -> Shown:
    """61 to each broker. RocketMQ's tell of topics only."""
    addresses = await targets(call)
    found = await asyncio.gather(*(call.admin.timers(address) for address in addresses))
    answers = dict(zip(addresses, found, strict=True))
    hours = [
        [address, clock_text(hour_ms), count]
        for address, each in answers.items()
        for hour_ms, count in sorted(each.by_hour.items())
    ]
    topics = [
        [address, topic, count]
        for address, each in answers.items()
        for topic, count in sorted(each.by_topic.items())
    ]
    value = {
        address: {
            "byHour": {str(hour_ms): count for hour_ms, count in sorted(each.by_hour.items())},
            "byTopic": each.by_topic,
        }
        for address, each in answers.items()
    }
    text = hash_table(["Addr", "From", "Waiting"], hours)
    return Shown(value, f"{text}\n\n{hash_table(['Addr', 'Topic', 'Waiting'], topics)}")


COMMANDS = (
    asks(
        "timers", "messages that wait for their delivery time, by hour and topic",
        "timers -c TandemCluster", broker_or_cluster, timers, ours=True,
    ),
)  # fmt: skip
