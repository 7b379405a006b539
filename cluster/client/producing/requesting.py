"""A producer's requests: sent like other messages, by a client that every broker can push replies to."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tandemmq.cluster.client.errors import ClientError, NoReply, NotRunning
from tandemmq.cluster.client.message import Message, SendResult
from tandemmq.cluster.client.producing.replies import Reply, as_request, reply_topic
from tandemmq.cluster.client.reaching.instance import ClientInstance

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0  # while a reply is awaited: is every broker still connected?
MEETING_SHARE: Final = 4  # a request waits a quarter of its time for brokers that do not answer

#: begins the send of a request: message, timeout_ms -> its future
BeginSend = Callable[[Message, int], "asyncio.Future[SendResult]"]


class Requesting:
    """Requests of one producer, at most `count_max` at once; further ones wait for their turn."""

    def __init__(self, instance: ClientInstance, count_max: int) -> None:
        self._instance = instance
        self._turns = asyncio.Semaphore(count_max)
        self._under_way: set[asyncio.Future[Reply]] = set()
        self._quiet = asyncio.Event()
        self._meeting: asyncio.Task[None] | None = None

    async def ask(
        self, message: Message, wired_topic: str, timeout_ms: int, begin: BeginSend
    ) -> Reply:
        """Send the request and give the reply.

        wired_topic  as brokers know it
        Raises NoReply after timeout_ms, NotRunning when the producer is stopped meanwhile, and what the send raises.
        """
        sent: list[SendResult] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turns:
                await self._instance.publish_queues(wired_topic)  # its route names the clusters
                await self._meet(wired_topic, timeout_ms / 1000 / MEETING_SHARE)
                return await self._ask(message, wired_topic, timeout_ms, begin, sent)
        except TimeoutError:
            raise NoReply(message.topic, timeout_ms, sent[0] if sent else None) from None

    async def drain(self) -> None:
        """Wait until no request is under way: at most as long as each may take."""
        while self._under_way:
            self._quiet.clear()
            await self._quiet.wait()

    async def stop(self) -> None:
        """Give up what waits, and what is done in the background."""
        for reply in self._under_way:
            if not reply.done():
                reply.set_exception(NotRunning("the producer was stopped before the reply came"))
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.gather(self._meeting, return_exceptions=True)

    async def _ask(
        self,
        message: Message,
        wired_topic: str,
        timeout_ms: int,
        begin: BeginSend,
        sent: list[SendResult],
    ) -> Reply:
        """sent: gets the send's result."""
        correlation_id = str(uuid.uuid4())
        with self._instance.replies.expected(correlation_id) as reply:
            self._under_way.add(reply)
            sending = begin(
                as_request(message, correlation_id, self._instance.client_id, timeout_ms),
                timeout_ms,
            )
            try:
                either = asyncio.Event()  # asyncio.wait() does not take a SendFuture
                reply.add_done_callback(lambda _: either.set())
                sending.add_done_callback(partial(_settled, either))
                await either.wait()
                if not reply.done():
                    sent.append(sending.result())
                while not reply.done():
                    await asyncio.wait((reply,), timeout=LOOK_AGAIN_S)
                    if not reply.done():
                        await self._meet(wired_topic, 0)
                return reply.result()
            finally:
                if not reply.done():
                    sending.cancel()
                self._under_way.discard(reply)
                if not self._under_way:
                    self._quiet.set()

    async def _meet(self, wired_topic: str, wait_s: float) -> None:
        """Have every broker of the topic's clusters know this client: a replier may choose any of them.

        Those that do not answer within wait_s are met in the background; with 0 also those that did not before.
        """
        if self._meeting is None:
            strangers = self._instance.strangers(silent_too=not wait_s)
            if not strangers and not self._unknown_topics(wired_topic):
                return
            self._meeting = asyncio.create_task(
                self._introduce(wired_topic, strangers), name="meet brokers"
            )
            self._meeting.add_done_callback(self._met)
        await asyncio.wait((self._meeting,), timeout=wait_s)

    def _met(self, meeting: asyncio.Task[None]) -> None:
        self._meeting = None
        if not meeting.cancelled():
            meeting.result()  # _introduce() raises nothing

    def _unknown_topics(self, wired_topic: str) -> list[str]:
        """The reply topics of the topic's clusters whose routes are not known."""
        brokers = self._instance.brokers
        route = brokers.route(wired_topic)
        topics = [reply_topic(cluster) for cluster in route.clusters] if route is not None else []
        return [topic for topic in topics if brokers.route(topic) is None]

    async def _introduce(self, wired_topic: str, strangers: Sequence[str]) -> None:
        for topic in self._unknown_topics(wired_topic):
            try:
                await self._instance.publish_queues(topic)  # and kept up to date from now on
            except ClientError as problem:
                log.warning("route of replies not known topic=%s why=%s", topic, problem)
        await self._instance.heartbeat_to({*strangers, *self._instance.strangers()})


def _settled(either: asyncio.Event, sending: asyncio.Future[SendResult]) -> None:
    """The send is over. After a reply nobody looks at how, so that asyncio must not complain of it."""
    either.set()
    if not sending.cancelled():
        sending.exception()
