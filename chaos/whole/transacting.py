"""The load's transactions: committed, rolled back, or left to the broker to ask about, by any producer of the group."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.whole.book import Book, OwnPart, Sent
from tandemmq.cluster.client import (
    ClientError,
    Message,
    Producer,
    ReceivedMessage,
    TransactionState,
)

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster

TOPIC: Final = "Orders"
PART_S: Final = 0.05  # the application's own part takes so long at most
COMMITTED: Final = 0.65  # of them
TOLD: Final = 0.6  # of them, by their own producer; for the others the broker asks


class Transacting:
    """Transactions over one book, which is the application's own database, so to say: every producer reads it."""

    def __init__(self, cluster: WholeCluster, book: Book) -> None:
        self._cluster = cluster
        self._book = book
        self._began: dict[int, int] = {}  # message -> number of its producer

    async def one(self, producer: Producer, number: int, sent: Sent) -> None:
        """From its half message to its end, whatever that is."""
        cluster, stage = self._cluster, self._cluster.stage
        draw = stage.chance
        committed, told = draw.random() < COMMITTED, draw.random() < TOLD
        sent.part = part = OwnPart()
        self._began[sent.number] = number
        message = Message(TOPIC, b"%d" % sent.number, keys=str(sent.number))
        transaction = producer.transaction(message)
        try:
            async with transaction:
                self._book.stored(sent, transaction.result, stage.now_us)
                cluster.judge.acknowledged(sent)
                await asyncio.sleep(draw.uniform(0, PART_S))
                part.committed = committed
                stage.note("decided", sent.number, committed, told)
                if not told:
                    transaction.unknown()
                elif not committed:
                    transaction.rollback()
        except ClientError as problem:
            part.committed = False  # it was never told that the transaction began
            self._book.refused += 1
            stage.note("not begun", sent.number, type(problem).__name__, problem)
            return
        if transaction.confirmed:
            part.confirmed_us = stage.now_us
            stage.note("ended", sent.number)
            if committed and cluster.epoch > sent.epoch:
                stage.mark("committed across a failover")

    async def check(self, number: int, message: ReceivedMessage) -> TransactionState:
        """What producer `number` answers when a broker asks."""
        stage, sent = self._cluster.stage, self._book.by_body(message.body)
        assert sent is not None and sent.part is not None, f"asked about {message.body!r}"
        committed = sent.part.committed
        stage.note("asked", sent.number, committed)
        stage.mark("check-back")
        if self._began[sent.number] != number:
            stage.mark("check-back at another producer")
        if committed is None:
            return TransactionState.UNKNOWN
        if self._cluster.epoch > sent.epoch:
            stage.mark("check-back across a failover")
        return TransactionState.COMMIT if committed else TransactionState.ROLLBACK
