"""What the clients were told of each message: the book that a seed is judged by."""

from __future__ import annotations

from dataclasses import dataclass, field
from socket import inet_ntoa

from tandemmq.cluster.client import SendResult
from tandemmq.storage import parse_offset_message_id


@dataclass(slots=True)
class OwnPart:
    """The application's own part of a transaction.

    committed     what it came to; None: it is not decided yet
    confirmed_us  when the broker said that the end is safe, 0 before
    """

    committed: bool | None = None
    confirmed_us: int = 0


@dataclass(slots=True)
class Sent:
    """One message.

    level    its delay level; due_ms: no host's wall clock may be before that when a timed one comes, 0: it is none
    acked_us when its producer heard that it is stored, 0 before; of a transaction, its half message
    offset   in the log, of the same; epoch: of the reign that stored it; broker: its address
    part     what a transaction came to; None: it is in none
    place    (queue, offset) where consumers first saw it
    """

    number: int
    asked_us: int
    level: int = 0
    due_ms: int = 0
    acked_us: int = 0
    offset: int = -1
    epoch: int = 0
    broker: str = ""
    queue: tuple[int, int] = (-1, -1)
    part: OwnPart | None = None
    place: tuple[int, int] | None = None
    delivered: int = 0
    failed_once: bool = False

    @property
    def expected(self) -> bool:
        """Whether it was promised to come."""
        return bool(self.acked_us) and (self.part is None or self.part.committed is True)

    @property
    def waits(self) -> bool:
        """Whether it was in the log for longer than until its consumer had it."""
        return bool(self.level or self.due_ms or self.part or self.failed_once)


@dataclass(slots=True)
class Book:
    """Every message."""

    sent: dict[int, Sent] = field(default_factory=dict)
    refused: int = 0
    acked_us: int = 0  # the last time
    deliveries: int = 0

    def new(self, now_us: int) -> Sent:
        sent = Sent(len(self.sent) + 1, now_us)
        self.sent[sent.number] = sent
        return sent

    def by_body(self, body: bytes) -> Sent | None:
        """The message with this body; None: nobody sent it."""
        return self.sent.get(int(body)) if body.isdigit() else None

    def stored(self, sent: Sent, result: SendResult, now_us: int) -> None:
        """A broker said so."""
        sent.acked_us = self.acked_us = now_us
        host, sent.offset = parse_offset_message_id(result.offset_message_id)
        sent.broker = inet_ntoa(host[:4])
        sent.queue = (result.queue.queue_id, result.queue_offset)
        sent.epoch = result.epoch

    @property
    def acked(self) -> list[Sent]:
        return [each for each in self.sent.values() if each.acked_us]

    @property
    def missing(self) -> list[Sent]:
        """Promised, and not come."""
        return [each for each in self.sent.values() if each.expected and not each.delivered]
