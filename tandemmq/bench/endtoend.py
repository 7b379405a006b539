"""How long a message takes from its send to a listener, while so many a second are sent."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

from tandemmq.cluster.client import (
    ClientConfig,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.command.load import percentile

GROUP: Final = "TANDEM_BENCH"
SETTLE_S: Final = 60.0  # until the consumer has its queues, and read what former runs left
LATE_S: Final = 10.0  # what has not come by then does not come
_SENT: Final = "sent"  # property: perf_counter of the send, of this process


async def end_to_end(
    config: ClientConfig, topic: str, size_bytes: int, rate: float, seconds: float
) -> dict[str, Any]:
    """Latencies in ms, and how many messages did not come. The topic must be there. Raises ClientError."""
    run = f"{time.time_ns():x}"
    wanted = max(1, int(rate * seconds))
    body = b"x" * size_bytes
    arrivals = _Arrivals(run, wanted)
    consumer = PushConsumer(
        f"{GROUP}_{run}", arrivals.take, config=config, subscribe={topic: "*"}, start=StartFrom.LAST
    )
    async with Producer(GROUP, config=config) as producer, consumer:
        await arrivals.pass_what_is_old(producer, topic)
        began_s = time.perf_counter()
        under_way = []
        for number in range(wanted):
            due_s = began_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            properties = {"bench": run, _SENT: repr(time.perf_counter())}
            under_way.append(producer.send(Message(topic, body, properties=properties)))
        took_s = time.perf_counter() - began_s
        await asyncio.gather(*under_way)
        with suppress(TimeoutError):  # what is missing is counted
            async with asyncio.timeout(LATE_S):
                await arrivals.whole.wait()
    latencies_s = arrivals.latencies_s
    ordered = sorted(latencies_s)
    names = (("p50", 50.0), ("p99", 99.0), ("p999", 99.9))
    return {
        "size_bytes": size_bytes,
        "per_second": round(wanted / took_s),
        "count": wanted,
        "missing": max(0, wanted - len(ordered)),
        "latency_ms": {
            **{name: round(percentile(ordered, each) * 1000, 3) for name, each in names},
            "max": round(ordered[-1] * 1000, 3) if ordered else 0.0,
        },
    }


class _Arrivals:
    """What reaches the listener."""

    def __init__(self, run: str, wanted: int) -> None:
        self.latencies_s: list[float] = []
        self.whole = asyncio.Event()
        self._run = run
        self._wanted = wanted
        self._marks_left = 0
        self._passed = asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        now_s = time.perf_counter()
        if message.properties.get("bench") != self._run:
            return
        sent = message.properties.get(_SENT)
        if sent is None:
            self._marks_left -= 1
            if not self._marks_left:
                self._passed.set()
            return
        self.latencies_s.append(now_s - float(sent))
        if len(self.latencies_s) >= self._wanted:
            self.whole.set()

    async def pass_what_is_old(self, producer: Producer, topic: str) -> None:
        """Send a mark to each queue and wait for all: what lay in front of them is read by then."""
        queues = await producer.queues(topic)
        self._marks_left = len(queues)
        mark = Message(topic, b"mark", properties={"bench": self._run})
        for queue in queues:
            await producer.send(mark, queue=queue)
        async with asyncio.timeout(SETTLE_S):
            await self._passed.wait()
