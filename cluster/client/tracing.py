"""Writes the traces of one producer or consumer in the background: no send and no listener waits for them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tandemmq.cluster.client.errors import ClientError, MessageRefused
from tandemmq.cluster.client.hooks import ConsumeContext
from tandemmq.cluster.client.message import Message, SendResult, check_topic
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.traces import (
    CONSUMED,
    FAILED,
    RAISED,
    Attempt,
    TraceBuffer,
    TraceRecord,
    TransactionEnd,
    after_record,
    before_record,
    ended_record,
    sent_record,
)
from tandemmq.cluster.logs import once_per

if TYPE_CHECKING:
    from tandemmq.cluster.client.producing.pipeline import SendFuture
    from tandemmq.cluster.client.reaching.instance import ClientInstance

log = logging.getLogger(__name__)

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
SEND_TIMEOUT_MS: Final = 5_000
IN_FLIGHT_MAX: Final = 16  # trace messages
FLUSH_INTERVAL_S: Final = 0.5
STOP_S: Final = 3.0  # what is left at the end has so long


class TraceSender(Protocol):
    """The producer of trace messages: tandemmq.cluster.client.Producer without traces of its own."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def room(self) -> None: ...
    def send(self, message: Message) -> SendFuture: ...


class Tracer:
    """Traces of one producer, or, as a ConsumeHook, of one consumer. group: as the application knows it.

    Messages to and from the trace topic itself are not traced.
    """

    def __init__(self, group: str, topic: str) -> None:
        check_topic(topic)
        self.buffer = TraceBuffer()
        self._group = group
        self._topic = topic
        self._jobs = Jobs()
        self._sender: TraceSender | None = None
        self._lost = once_per(10)

    # Life

    async def start(self, sender: TraceSender) -> None:
        self._jobs = Jobs()
        self._sender = sender
        await sender.start()
        self._jobs.start(f"traces of {self._group}", self._write(sender))

    async def stop(self) -> None:
        """Send what is left, as long as STOP_S allow."""
        sender, self._sender = self._sender, None
        if sender is None:
            return
        try:
            await self._jobs.stop()
            async with asyncio.timeout(STOP_S):
                await asyncio.sleep(0)  # the callbacks of what ended just now come first
                await self._flush(sender)
                await sender.stop()
        except TimeoutError:
            self._dropped(len(self.buffer), "stopped before they were sent")
        finally:
            await sender.stop()

    async def _write(self, sender: TraceSender) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self._flush(sender)

    async def _flush(self, sender: TraceSender) -> None:
        if self.buffer.dropped:
            count, self.buffer.dropped = self.buffer.dropped, 0
            self._dropped(count, "more than can be kept or sent")
        while self.buffer:
            message, count = self.buffer.next_message(self._topic)
            await sender.room()
            sender.send(message).add_done_callback(partial(self._written, count))

    def _written(self, count: int, sending: asyncio.Future[SendResult]) -> None:
        if sending.cancelled():
            self._dropped(count, "stopped before they were sent")
        elif (problem := sending.exception()) is not None:
            self._dropped(count, str(problem))

    def _dropped(self, count: int, why: str) -> None:
        if count:
            self._lost.warning(log, "traces lost group=%s count=%d why=%s", self._group, count, why)

    # Sends

    def send_ended(self, instance: ClientInstance, sending: SendFuture) -> None:
        """A send is over: a record for each attempt. Each has the time of the whole send."""
        message = sending.message
        unique_id = getattr(sending, "unique_id", "")
        if message.topic == self._topic or sending.cancelled() or not unique_id:
            return  # a cancelled send's outcome is not known; what has no id was never sent
        cost_ms = int((asyncio.get_running_loop().time() - sending.began_s) * 1000)
        began_ms = instance.clock.now_ms() - cost_ms
        tried: Sequence[str] = getattr(sending, "tried", ())
        causes: Sequence[ClientError] = getattr(sending, "causes", ())
        failed_at = [name for name, _ in zip(tried, causes, strict=False)]
        problem = sending.exception()
        if problem is None:
            self.sent(instance, [message], sending.result(), began_ms, cost_ms)
        elif isinstance(problem, MessageRefused):
            return
        elif not failed_at and hasattr(sending, "queue"):
            failed_at = [sending.queue.broker_name]
        self.buffer.add(
            [
                sent_record(
                    self._group,
                    message,
                    Attempt(
                        unique_id,
                        "",
                        instance.brokers.master(name) or name,
                        "",
                        began_ms,
                        cost_ms,
                        ok=False,
                    ),
                )
                for name in failed_at
            ]
        )

    def sent(
        self,
        instance: ClientInstance,
        messages: Sequence[Message],
        result: SendResult,
        began_ms: int,
        cost_ms: int,
        *,
        half: bool = False,
    ) -> None:
        """A broker has stored a message, or those of a batch: a record for each. half: of a transaction."""
        if result.queue.topic == self._topic:
            return
        broker = instance.brokers.master(result.queue.broker_name) or result.queue.broker_name
        placed = result.offset_message_id.split(",")
        self.buffer.add(
            [
                sent_record(
                    self._group,
                    message,
                    Attempt(
                        unique_id,
                        placed[place] if place < len(placed) else "",
                        broker,
                        result.region_id,
                        began_ms,
                        cost_ms,
                        result.ok,
                        half,
                    ),
                )
                for place, (message, unique_id) in enumerate(
                    zip(messages, result.message_ids, strict=False)
                )
            ]
        )

    def half_failed(
        self,
        instance: ClientInstance,
        message: Message,
        unique_id: str,
        broker_name: str,
        began_ms: int,
        cost_ms: int,
    ) -> None:
        """A broker did not store a half message, or did not say so."""
        if message.topic == self._topic:
            return
        broker = instance.brokers.master(broker_name) or broker_name
        attempt = Attempt(unique_id, "", broker, "", began_ms, cost_ms, ok=False, half=True)
        self.buffer.add([sent_record(self._group, message, attempt)])

    def transaction_ended(self, message: Message, end: TransactionEnd) -> None:
        """A broker is told how a transaction ended, or will not be."""
        if message.topic != self._topic:
            self.buffer.add([ended_record(self._group, message, end)])

    # As a ConsumeHook; perhaps in a thread

    def before_consume(self, context: ConsumeContext) -> None:
        """The listener is about to be called."""
        traced = [
            message
            for message in context.messages
            if message.topic != self._topic and message.properties.get("TRACE_ON") != "false"
        ]
        if not traced:
            return
        request_id = uuid.uuid4().hex.upper()
        context.note["trace"] = (request_id, traced)
        self.buffer.add(
            [
                before_record(self._group, message, request_id, context.began_ms)
                for message in traced
            ]
        )

    def after_consume(self, context: ConsumeContext) -> None:
        """It returned or raised."""
        if "trace" not in context.note:
            return
        request_id, traced = context.note["trace"]
        each_ms = context.cost_ms // len(context.messages)
        outcome = CONSUMED if context.handled else FAILED
        if context.problem is not None:
            outcome = RAISED
        ended_ms = context.began_ms + context.cost_ms
        records: list[TraceRecord] = [
            after_record(self._group, message, request_id, ended_ms, each_ms, outcome)
            for message in traced
        ]
        self.buffer.add(records)
