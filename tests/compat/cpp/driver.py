"""Sends and consumes with the C++ client inside PyPI's `rocketmq`; run with its directory on the path.

    driver.py NAME_SERVERS TOPIC COUNT

One consumer each that shares, that gets everything and that reads in order. Prints a line of JSON per message sent and
per message received but probes, and ends when each consumer has got everything, or WAIT_S after the last was sent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.ffi import MessageModel

WAIT_S = 30
PROBE = "probe"
CONSUMERS = {
    "clustering": (False, MessageModel.CLUSTERING),
    "broadcasting": (False, MessageModel.BROADCASTING),
    "orderly": (True, MessageModel.CLUSTERING),
}


def main(name_servers: str, topic: str, count: int) -> None:
    got: dict[str, set[str]] = {name: set() for name in CONSUMERS}
    printing = threading.Lock()

    def tell(**line: object) -> None:
        with printing:
            print(json.dumps(line), flush=True)

    def receiver(name: str):  # type: ignore[no-untyped-def]
        def receive(message) -> None:  # type: ignore[no-untyped-def]
            body = message.body.decode()
            if body != PROBE:
                tell(consumer=name, body=body, tags=message.tags.decode())
            got[name].add(body)  # last: when all is there the process ends

        return receive

    producer = Producer(f"P_{topic}")
    producer.set_namesrv_addr(name_servers)
    producer.start()

    def send(body: str, tags: str) -> None:
        message = Message(topic)
        message.set_tags(tags)
        message.set_body(body)
        producer.send_sync(message)

    send(PROBE, "A")  # makes the topic
    kept: list[PushConsumer] = []  # one that is dropped stops
    for name, (orderly, model) in CONSUMERS.items():
        consumer = PushConsumer(f"C_{topic}_{name}", orderly, model)
        consumer.set_instance_name(name)
        consumer.set_namesrv_addr(name_servers)
        consumer.subscribe(topic, receiver(name), "A || B")
        consumer.start()
        kept.append(consumer)
    deadline = time.monotonic() + WAIT_S
    # one that gets everything begins at the end of each queue, and does not say when it has begun
    while not all(got.values()) and time.monotonic() < deadline:
        send(PROBE, "A")
        time.sleep(0.1)
    for number in range(count):
        send(f"body {number}", "A" if number % 2 else "B")
        tell(sent=f"body {number}")
    deadline = time.monotonic() + WAIT_S
    while any(len(each) <= count for each in got.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.stdout.flush()
    os._exit(0)  # its threads take seconds to stop


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
