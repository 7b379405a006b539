"""A user's program: a script."""

from __future__ import annotations

from tandemmq import Message, ReceivedMessage, SendResult, Sql92, StartFrom
from tandemmq.blocking import Producer, consume

with Producer("shop", namesrv="127.0.0.1:9876") as producer:
    result: SendResult = producer.send("Orders", b"17", tags="created")
    other: SendResult = producer.send(Message("Orders", b"18"), ordering_key="a")
    many: list[SendResult] = producer.send_many(Message("Orders", b"%d" % n) for n in range(3))
    print(
        result.queue_offset + other.queue_offset,
        len(many),
        producer.request(Message("P", b"1")).body.decode(),
    )


def bodies() -> list[bytes]:
    message: ReceivedMessage
    found: list[bytes] = []
    for message in consume("report", {"Orders": Sql92("a > 1")}, start=StartFrom.FIRST, count=3):
        found.append(message.body)
    return found


print(bodies())
