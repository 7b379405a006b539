"""Dead letters: sends some again, as docs/howto/dead-letters.md does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import (
    Admin,
    ClientConfig,
    ClientError,
    Message,
    MessageQueue,
    Producer,
)
from tandemmq.console.seen.snapshot import DLQ_PREFIX, RETRY_PREFIX

PRODUCER_GROUP: Final = "TANDEM_CONSOLE"
AGAIN_MAX: Final = 200  # at once
TO_GROUP, TO_TOPIC = "group", "topic"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a letter lies."""

    broker: str
    queue_id: int
    queue_offset: int

    @classmethod
    def read(cls, text: str) -> Place:
        """broker:queue:offset. Raises ValueError."""
        broker, queue, offset = text.rsplit(":", 2)
        if not broker or not queue.isdecimal() or not offset.isdecimal():
            raise ValueError(f"a letter's place is broker:queue:offset, got {text[:80]!r}")
        return cls(broker, int(queue), int(offset))

    def __str__(self) -> str:
        return f"{self.broker}:{self.queue_id}:{self.queue_offset}"


@dataclass(frozen=True, slots=True)
class SentAgain:
    """What became of one letter. where: the queue that has it now; problem: why it was not sent."""

    place: Place
    message_id: str = ""
    where: str = ""
    problem: str = ""


async def send_again(
    admin: Admin, config: ClientConfig, group: str, places: Sequence[Place], to: str
) -> list[SentAgain]:
    """Each letter once more, with the message_id it had. What cannot be sent is told, and ends nothing.

    to  TO_GROUP: only this group gets it, by its retry topic; TO_TOPIC: the topic it came from, so all its groups do
    Raises ClientError when the producer cannot start.
    """
    assert to in (TO_GROUP, TO_TOPIC), to
    found: list[SentAgain] = []
    async with Producer(PRODUCER_GROUP, config=config) as producer:
        for place in places:
            queue = MessageQueue(DLQ_PREFIX + group, place.broker, place.queue_id)
            try:
                letter = await admin.message_at(queue, place.queue_offset)
                if letter is None:
                    found.append(SentAgain(place, problem="it is not there any more"))
                    continue
                topic = RETRY_PREFIX + group if to == TO_GROUP else ""
                result = await producer.send(Message.again(letter, topic, same_id=True))
            except (ClientError, OSError) as problem:
                found.append(SentAgain(place, problem=str(problem) or repr(problem)))
                continue
            if result.ok:
                found.append(SentAgain(place, letter.message_id, str(result.queue)))
            else:
                found.append(SentAgain(place, letter.message_id, problem=result.status.name))
    return found
