"""Requests that wait for a reply: which there are, and what a reply is. No I/O.

A request is a message with an id of its own (CORRELATION_ID) and the client id of whoever waits
(REPLY_TO_CLIENT). Source: RocketMQ's RequestFutureHolder, ClientRemotingProcessor, MessageUtil.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import msgspec
from msgspec.structs import force_setattr, replace

from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.cluster.client.message import Message, ReceivedMessage
from tandemmq.cluster.client.records import body_of
from tandemmq.cluster.remoting import Command
from tandemmq.storage import decode_properties

log = logging.getLogger(__name__)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What a consumer answered to a request.

    body             as the replier gave it (decompressed)
    properties       everything sent with it, RocketMQ's own names included
    born_ms, store_ms  wall time when the replier sent it and when the broker passed it on, milliseconds since 1970
    born_host, store_host  "ip:port" of the replier and of the broker that passed it on
    flag             the replier's number

    Example:
        reply = await producer.request(Message("Prices", b"17"))
        print(reply.body.decode())
    """

    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    store_ms: int
    born_host: str
    store_host: str
    flag: int


class AwaitedReplies:
    """The requests of one client that wait, by correlation id. Their number is bounded by who makes them."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    @property
    def count(self) -> int:
        """Requests without a reply yet."""
        return len(self._waiting)

    @contextmanager
    def expected(self, correlation_id: str) -> Iterator[asyncio.Future[Reply]]:
        """The future of a reply; outside the block nobody waits for it any more."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        try:
            yield future
        finally:
            del self._waiting[correlation_id]

    def take(self, push: Command) -> None:
        """PUSH_REPLY_MESSAGE_TO_CLIENT: give the reply to whoever waits for it.

        One for nobody is dropped: it came too late, or was pushed twice. Raises ValueError when it cannot be read.
        """
        ext = push.ext or {}
        properties = decode_properties(ext.get("properties", "").encode())
        correlation_id = properties.get("CORRELATION_ID", "")
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            log.info(
                "reply that nobody waits for correlation_id=%s replier=%s",
                correlation_id,
                ext.get("bornHost"),
            )
            return
        sys_flag = int(ext.get("sysFlag") or 0)
        future.set_result(
            Reply(
                body_of(bytes(push.body or b""), sys_flag, ext.get("topic", ""), 0),
                properties,
                int(ext.get("bornTimestamp") or 0),
                int(ext.get("storeTimestamp") or 0),
                ext.get("bornHost", ""),
                ext.get("storeHost", ""),
                int(ext.get("flag") or 0),
            )
        )


def as_request(message: Message, correlation_id: str, client_id: str, timeout_ms: int) -> Message:
    """The message as a request: with RocketMQ's names for who waits, and for how long."""
    asked = replace(message)
    own = {
        **message.properties,
        "CORRELATION_ID": correlation_id,
        "REPLY_TO_CLIENT": client_id,
        "TTL": str(timeout_ms),
    }
    force_setattr(asked, "properties", MappingProxyType(own))
    return asked


def as_reply(
    request: ReceivedMessage, body: bytes, properties: Mapping[str, str], flag: int
) -> Message:
    """The message that answers a request, for the reply topic of its cluster.

    Raises MessageRefused when it is no request, or body or properties break a rule.
    """
    asked = request.properties
    names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
    missing = [name for name in (*names, "CLUSTER") if name not in asked]
    if missing:
        raise MessageRefused(
            f"message {request.message_id} of {request.topic} is no request: it has no "
            f"{', no '.join(missing)}; only what producer.request() sent can be replied to"
        )
    reply = Message(reply_topic(asked["CLUSTER"]), body, properties=properties, flag=flag)
    marks = {"MSG_TYPE": "reply", **{name: asked[name] for name in names}}
    force_setattr(reply, "properties", MappingProxyType({**properties, **marks}))
    return reply


def reply_topic(cluster: str) -> str:
    """The topic that a cluster's replies go through."""
    return f"{cluster}_REPLY_TOPIC"
