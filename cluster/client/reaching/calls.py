"""The client's requests, one function each: header fields out, answers checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tandemmq.cluster.client.errors import BrokerAnswerBroken, BrokerRefused
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.reaching.connections import subject
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, Command

_to_json = msgspec.json.Encoder(order="sorted").encode  # as fastjson writes


class Caller(Protocol):
    """Whoever can reach an address: tandemmq.cluster.client.reaching.connections.Connections."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send and await the answer."""

    async def oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Send without an answer."""


async def call(
    caller: Caller,
    address: str,
    command: Command,
    timeout_ms: int,
    accepted: Collection[int] = (ResponseCode.SUCCESS,),
) -> Command:
    """Send a request; BrokerRefused unless the answer's code is one of `accepted`."""
    answer = await caller.request(address, command, timeout_ms)
    if answer.code not in accepted:
        raise BrokerRefused(answer.code, answer.remark, address, subject(command))
    return answer


def field(answer: Command, name: str, address: str) -> str:
    """A header field that the answer must carry. Raises BrokerAnswerBroken."""
    value = (answer.ext or {}).get(name)
    if value is None:
        raise BrokerAnswerBroken(f"the answer {answer.code} of {address} lacks {name}")
    return value


def number(answer: Command, name: str, address: str) -> int:
    """A header field that must be a number. Raises BrokerAnswerBroken."""
    text = field(answer, name, address)
    try:
        return int(text)
    except ValueError:
        raise BrokerAnswerBroken(
            f"the answer of {address} has {name}={text!r}, not a number"
        ) from None


def count_of(text: str | None) -> int:
    """A number that only our brokers add to an answer; 0 where there is none."""
    if text is None or len(text) > 10 or not text.isascii() or not text.isdigit():
        return 0
    return int(text)


def _queue_fields(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}


async def heartbeat(caller: Caller, address: str, body: bytes, timeout_ms: int) -> None:
    """HEART_BEAT: tell a broker who we are, which groups we carry and what they subscribe to."""
    await call(caller, address, Command(RequestCode.HEART_BEAT, body=body), timeout_ms)


async def check_client(
    caller: Caller,
    address: str,
    client_id: str,
    group: str,
    subscription: Mapping[str, object],
    timeout_ms: int,
) -> None:
    """CHECK_CLIENT_CONFIG: would this broker filter by that subscription? Raises BrokerRefused."""
    body = _to_json({"clientId": client_id, "group": group, "subscriptionData": subscription})
    await call(caller, address, Command(RequestCode.CHECK_CLIENT_CONFIG, body=body), timeout_ms)


async def unregister(
    caller: Caller,
    address: str,
    client_id: str,
    producer_group: str | None,
    consumer_group: str | None,
    timeout_ms: int,
) -> None:
    """UNREGISTER_CLIENT: leave a group at once instead of when the broker notices."""
    ext = {"clientID": client_id}
    if producer_group:
        ext["producerGroup"] = producer_group
    if consumer_group:
        ext["consumerGroup"] = consumer_group
    await call(caller, address, Command(RequestCode.UNREGISTER_CLIENT, ext), timeout_ms)


async def group_members(caller: Caller, address: str, group: str, timeout_ms: int) -> list[str]:
    """GET_CONSUMER_LIST_BY_GROUP: client ids as this broker knows them.

    Raises BrokerRefused while it knows none.
    """
    command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    answer = await call(caller, address, command, timeout_ms)
    try:
        members = msgspec.json.decode(answer.body or b"{}")["consumerIdList"]
    except (msgspec.DecodeError, KeyError, TypeError) as problem:
        raise BrokerAnswerBroken(
            f"the member list of {address} does not parse: {problem!r}"
        ) from problem
    return [str(member) for member in members]


async def query_offset(
    caller: Caller, address: str, group: str, queue: MessageQueue, timeout_ms: int
) -> int | None:
    """QUERY_CONSUMER_OFFSET: the committed queue offset, None when the group has none."""
    ext = {"consumerGroup": group, **_queue_fields(queue)}
    accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    answer = await call(
        caller, address, Command(RequestCode.QUERY_CONSUMER_OFFSET, ext), timeout_ms, accepted
    )
    return (
        None if answer.code == ResponseCode.QUERY_NOT_FOUND else number(answer, "offset", address)
    )


async def commit_offset(
    caller: Caller,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    timeout_ms: int,
    *,
    oneway: bool,
) -> None:
    """UPDATE_CONSUMER_OFFSET: all before `offset` is consumed. oneway: do not await the answer."""
    ext = {"consumerGroup": group, **_queue_fields(queue), "commitOffset": str(offset)}
    command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    if oneway:
        command.flag = ONEWAY_FLAG
        await caller.oneway(address, command, timeout_ms)
    else:
        await call(caller, address, command, timeout_ms)


async def max_offset(caller: Caller, address: str, queue: MessageQueue, timeout_ms: int) -> int:
    """GET_MAX_OFFSET: the queue offset that the next message will get."""
    command = Command(RequestCode.GET_MAX_OFFSET, _queue_fields(queue))
    return number(await call(caller, address, command, timeout_ms), "offset", address)


async def min_offset(caller: Caller, address: str, queue: MessageQueue, timeout_ms: int) -> int:
    """GET_MIN_OFFSET: the oldest queue offset that is still there."""
    command = Command(RequestCode.GET_MIN_OFFSET, _queue_fields(queue))
    return number(await call(caller, address, command, timeout_ms), "offset", address)


async def offset_for_time(
    caller: Caller, address: str, queue: MessageQueue, time_ms: int, timeout_ms: int
) -> int:
    """SEARCH_OFFSET_BY_TIMESTAMP: first queue offset stored at or after time_ms (ms since 1970)."""
    ext = {**_queue_fields(queue), "timestamp": str(time_ms), "boundaryType": "LOWER"}
    command = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
    return number(await call(caller, address, command, timeout_ms), "offset", address)


async def view_record(
    caller: Caller, address: str, broker_name: str, physical_offset: int, timeout_ms: int
) -> ReceivedMessage | None:
    """The message that begins at a CommitLog offset; None when none does. Raises as call(), BrokerAnswerBroken."""
    command = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
    none = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
    answer = await call(caller, address, command, timeout_ms, none)
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    return read_records(answer.body, broker_name, 0)[0]


class _Granted(msgspec.Struct):
    queues: set[MessageQueue] = msgspec.field(default_factory=set, name="lockOKMQSet")


async def lock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Collection[MessageQueue],
    timeout_ms: int,
) -> set[MessageQueue]:
    """LOCK_BATCH_MQ: the queues that the broker granted or renewed, for 60 s."""
    command = Command(RequestCode.LOCK_BATCH_MQ, body=_lock_body(group, client_id, queues))
    answer = await call(caller, address, command, timeout_ms)
    try:
        return bodies.read(_Granted, answer.body or b"{}").queues
    except bodies.BodyUnreadable as problem:
        raise BrokerAnswerBroken(
            f"the lock answer of {address} does not parse: {problem}"
        ) from problem


async def unlock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Collection[MessageQueue],
    timeout_ms: int,
) -> None:
    """UNLOCK_BATCH_MQ: others may have these queues now."""
    command = Command(RequestCode.UNLOCK_BATCH_MQ, body=_lock_body(group, client_id, queues))
    await call(caller, address, command, timeout_ms)


def _lock_body(group: str, client_id: str, queues: Collection[MessageQueue]) -> bytes:
    return to_json(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "mqSet": sorted(queues),
            "onlyThisBroker": False,
        }
    )


@dataclass(frozen=True, slots=True)
class SendBack:
    """A message that failed. delay_level 0: broker decides, -1: dead letters, else the level."""

    group: str
    queue: MessageQueue
    physical_offset: int
    offset_message_id: str
    topic: str
    delay_level: int
    reconsume_times_max: int
    unit_mode: bool = False


async def send_back(caller: Caller, address: str, what: SendBack, timeout_ms: int) -> None:
    """CONSUMER_SEND_MSG_BACK: the broker stores a copy in %RETRY%group, to be delivered later."""
    ext = {
        "offset": str(what.physical_offset),
        "group": what.group,
        "delayLevel": str(what.delay_level),
        "originMsgId": what.offset_message_id,
        "originTopic": what.topic,
        "unitMode": "true" if what.unit_mode else "false",
        "maxReconsumeTimes": str(what.reconsume_times_max),
        "bname": what.queue.broker_name,
    }
    await call(caller, address, Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext), timeout_ms)


async def recall_message(
    caller: Caller,
    address: str,
    group: str,
    topic: str,
    handle: str,
    broker_name: str,
    timeout_ms: int,
) -> str:
    """RECALL_MESSAGE: a message that waits for its time is not delivered; its unique id."""
    ext = {"producerGroup": group, "topic": topic, "recallHandle": handle, "bname": broker_name}
    answer = await call(caller, address, Command(RequestCode.RECALL_MESSAGE, ext), timeout_ms)
    return field(answer, "msgId", address)


def to_json(value: object) -> bytes:
    """Compact JSON for request bodies, members sorted as RocketMQ sorts them."""
    return _to_json(value)
