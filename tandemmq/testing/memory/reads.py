"""What a broker does for consumers: groups, positions, locks, and pulls that wait for messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode
from tandemmq.cluster.remoting.headers import (
    ConsumerListHeader,
    PullHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.cluster.sql92.tokens import ExpressionRefused
from tandemmq.testing.memory.log import READABLE
from tandemmq.testing.memory.sends import RETRY
from tandemmq.testing.memory.server import State
from tandemmq.testing.memory.wires import Handle, MemoryWire

COMMITS: Final = 1  # bits of a pull's sysFlag
SUSPENDS: Final = 2
LOOKED_AT_MAX: Final = 1_024  # entries that one pull with a filter looks at

Wanted = Callable[[Mapping[str, str]], bool]


class Reads:
    """Handlers of requests about groups and queues."""

    def __init__(self, state: State) -> None:
        self._state = state

    def table(self) -> dict[int, Handle]:
        return {
            RequestCode.HEART_BEAT: self.handle_heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.handle_unregister_client,
            RequestCode.CHECK_CLIENT_CONFIG: self.handle_check_client_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.handle_get_consumer_list_by_group,
            RequestCode.LOCK_BATCH_MQ: self.handle_lock_batch_mq,
            RequestCode.UNLOCK_BATCH_MQ: self.handle_unlock_batch_mq,
            RequestCode.QUERY_CONSUMER_OFFSET: self.handle_query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.handle_update_consumer_offset,
            RequestCode.GET_MAX_OFFSET: self.handle_get_max_offset,
            RequestCode.GET_MIN_OFFSET: self.handle_get_min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.handle_search_offset_by_timestamp,
            RequestCode.VIEW_MESSAGE_BY_ID: self.handle_view_message_by_id,
            RequestCode.PULL_MESSAGE: self.handle_pull_message,
            RequestCode.LITE_PULL_MESSAGE: self.handle_pull_message,
        }

    # Groups

    def handle_heart_beat(self, request: Command, wire: MemoryWire) -> Command:
        """Who a client is; the others of a group hear of a new one."""
        told = json.loads(bytes(request.body or b"{}"))
        client_id, members = str(told["clientID"]), self._state.members
        for each in told.get("producerDataSet") or ():
            members.produces(each["groupName"], wire, client_id)
        for each in told.get("consumerDataSet") or ():
            group = each["groupName"]
            self._state.log.topic(RETRY + group, 1)
            if members.joined(group, wire, client_id):
                members.notify(group)
        return request.reply()

    def handle_unregister_client(self, request: Command, wire: MemoryWire) -> Command:
        """A client leaves a group."""
        header = UnregisterClientHeader.of(request)
        self._state.members.forget(wire, header.consumer_group or "", header.producer_group or "")
        return request.reply()

    def handle_check_client_config(self, request: Command, wire: MemoryWire) -> Command:
        """Whether a subscription can be filtered by."""
        told = json.loads(bytes(request.body or b"{}"))["subscriptionData"]
        if told.get("expressionType") == "SQL92":
            try:
                compile_expression(told["subString"])
            except ExpressionRefused as refused:
                return request.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(refused))
        return request.reply()

    def handle_get_consumer_list_by_group(self, request: Command, wire: MemoryWire) -> Command:
        """Client ids of a group."""
        group = ConsumerListHeader.of(request).consumer_group
        found = self._state.members.consumers(group)
        if not found:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.reply(body=json.dumps({"consumerIdList": found}).encode())

    def handle_lock_batch_mq(self, request: Command, wire: MemoryWire) -> Command:
        """Queues for one member alone, until it lets go of them or leaves."""
        told, locks = json.loads(bytes(request.body or b"{}")), self._state.members.locks
        owner = told["clientId"]
        granted = [
            queue
            for queue in told["mqSet"]
            if locks.setdefault(_place(told, queue), owner) == owner
        ]
        return request.reply(body=json.dumps({"lockOKMQSet": granted}).encode())

    def handle_unlock_batch_mq(self, request: Command, wire: MemoryWire) -> Command:
        """Others may have them."""
        told, locks = json.loads(bytes(request.body or b"{}")), self._state.members.locks
        for queue in told["mqSet"]:
            if locks.get(_place(told, queue)) == told["clientId"]:
                del locks[_place(told, queue)]
        return request.reply()

    # Positions

    def handle_query_consumer_offset(self, request: Command, wire: MemoryWire) -> Command:
        """What a group has committed; 0 where it has nothing: every queue is young, its first message still there."""
        header = QueryConsumerOffsetHeader.of(request)
        place = (header.consumer_group, header.topic, header.queue_id)
        offset = self._state.members.offsets.get(place, 0)
        return request.reply(ext={"offset": str(offset)})

    def handle_update_consumer_offset(self, request: Command, wire: MemoryWire) -> Command:
        """Commit."""
        header = UpdateConsumerOffsetHeader.of(request)
        if header.queue_id is None or header.commit_offset is None:
            return request.reply(ResponseCode.INVALID_PARAMETER, "queue id or offset is missing")
        place = (header.consumer_group, header.topic, header.queue_id)
        self._state.members.offsets[place] = header.commit_offset
        return request.reply()

    def handle_get_max_offset(self, request: Command, wire: MemoryWire) -> Command:
        """Where the next message goes."""
        header = QueueHeader.of(request)
        self._state.log.release(self._state.now_ms())
        queue = self._state.log.queues[header.topic, header.queue_id]
        return request.reply(ext={"offset": str(len(queue))})

    def handle_get_min_offset(self, request: Command, wire: MemoryWire) -> Command:
        """Nothing is ever deleted."""
        return request.reply(ext={"offset": "0"})

    def handle_search_offset_by_timestamp(self, request: Command, wire: MemoryWire) -> Command:
        """The first message stored then or later."""
        header = SearchOffsetHeader.of(request)
        found = self._state.log.offset_at(header.topic, header.queue_id, header.timestamp)
        return request.reply(ext={"offset": str(found)})

    def handle_view_message_by_id(self, request: Command, wire: MemoryWire) -> Command:
        """One record by its place in the log."""
        found = self._state.log.by_offset.get(ViewMessageHeader.of(request).offset)
        if found is None:
            return request.reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return request.reply(body=found.record)

    # Pulls

    def handle_pull_message(
        self, request: Command, wire: MemoryWire
    ) -> Command | Awaitable[Command]:
        """Messages, or what is answered where there are none, perhaps later."""
        header = PullHeader.of(request)
        topic = self._state.log.topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please!"
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & READABLE:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            return request.reply(ResponseCode.NO_PERMISSION, remark)
        try:
            wanted = _wanted(header)
        except ExpressionRefused as refused:
            return request.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(refused))
        if header.sys_flag & COMMITS:
            place = (header.consumer_group, header.topic, header.queue_id)
            self._state.members.offsets[place] = header.commit_offset
        return self._pull(request, header, wanted)

    async def _pull(self, request: Command, header: PullHeader, wanted: Wanted) -> Command:
        state = self._state
        loop = asyncio.get_running_loop()
        until_s = loop.time()
        if header.sys_flag & SUSPENDS:
            until_s += header.suspend_timeout_millis / 1000
        while True:
            with state.lock:
                state.log.release(state.now_ms())
                answer = self._look(request, header, wanted)
                left_s = until_s - loop.time()
                if answer.code != ResponseCode.PULL_NOT_FOUND or left_s <= 0:
                    return answer
                due_ms = state.log.next_due_ms()
                arrived = state.arrivals.watch()
            if due_ms is not None:
                left_s = min(left_s, max(0.001, (due_ms - state.now_ms()) / 1000))
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await arrived.wait()

    def _look(self, request: Command, header: PullHeader, wanted: Wanted) -> Command:
        queue = self._state.log.queues[header.topic, header.queue_id]
        offset = header.queue_offset
        if not 0 <= offset <= len(queue):
            answer = _pulled(
                request, ResponseCode.PULL_OFFSET_MOVED, min(max(offset, 0), len(queue)), len(queue)
            )
            answer.remark = "OFFSET_OVERFLOW_BADLY" if offset > 0 else "OFFSET_TOO_SMALL"
            return answer
        if offset == len(queue):
            return _pulled(request, ResponseCode.PULL_NOT_FOUND, offset, len(queue))
        found: list[bytes] = []
        for entry in queue[offset : offset + LOOKED_AT_MAX]:
            if len(found) == header.max_msg_nums:
                break
            offset = entry.queue_offset + 1
            if wanted(entry.properties):
                found.append(entry.record)
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
        return _pulled(request, code, offset, len(queue), b"".join(found))


def _pulled(request: Command, code: int, following: int, end: int, body: bytes = b"") -> Command:
    ext = {
        "nextBeginOffset": str(following), "minOffset": "0", "maxOffset": str(end),
        "suggestWhichBrokerId": "0",
    }  # fmt: skip
    return request.reply(code, ext=ext, body=body or None)


def _wanted(header: PullHeader) -> Wanted:
    """What a pull selects by. Raises ExpressionRefused."""
    text = (header.subscription or "*").strip()
    if header.expression_type == "SQL92":
        expression = compile_expression(text)
        return expression.matches
    if text in ("", "*"):
        return lambda properties: True
    tags = {part.strip() for part in text.split("||")}
    return lambda properties: properties.get("TAGS") in tags


def _place(told: Mapping[str, Any], queue: Mapping[str, Any]) -> tuple[str, str, int]:
    return told["consumerGroup"], queue["topic"], queue["queueId"]
