"""Somebody who sends or consumes until told to stop: a program of its own, so that it can be killed and frozen.

python traffic.py send NAMESRV TOPIC            20 messages a second, on and on, whatever is answered
python traffic.py consume NAMESRV TOPIC GROUP   everything, from now on
python traffic.py fail NAMESRV TOPIC GROUP      nothing: each message is given up on
"""

from __future__ import annotations

import asyncio
import signal
import sys

from tandemmq import ClientError, Message, Producer, PushConsumer, ReceivedMessage, StartFrom

PAUSE_S = 0.05


async def main(role: str, namesrv: str, topic: str, group: str = "") -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if role == "send":
        async with Producer("traffic", namesrv=namesrv, timeout_ms=2_000) as producer:
            while not stop.is_set():
                try:
                    await producer.send(Message(topic, b"x" * 300))
                except ClientError as problem:
                    print(f"not sent: {problem}", flush=True)
                await asyncio.sleep(PAUSE_S)
        return

    async def handle(message: ReceivedMessage) -> None:
        if role == "fail":
            raise ValueError("nobody can consume this")

    consumer = PushConsumer(
        group, handle, namesrv=namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST,
        reconsume_times_max=0 if role == "fail" else None,
    )  # fmt: skip
    async with consumer:
        print("consuming", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
