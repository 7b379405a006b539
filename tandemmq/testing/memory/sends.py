"""What a broker does with sends: store, delay, bury, pass replies on, and keep half messages until their end."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode
from tandemmq.cluster.remoting.headers import EndTransactionHeader, SendBackHeader, SendHeader
from tandemmq.cluster.remoting.recall import RecallHandle
from tandemmq.storage import (
    Draft,
    SysFlag,
    decode,
    decode_properties,
    encode_properties,
    offset_message_id,
    pack_host,
    split_batch,
)
from tandemmq.testing.memory.log import Placed, Topic
from tandemmq.testing.memory.server import BROKER, CLUSTER, State
from tandemmq.testing.memory.wires import Handle, MemoryWire

RETRY: Final = "%RETRY%"
DLQ: Final = "%DLQ%"
FIRST_RETRY_LEVEL: Final = 3  # each further one waits a level longer
BORN_HOST: Final = pack_host("127.0.0.1", 1)
COMMIT: Final = 8
ROLLBACK: Final = 12
ADDED: Final = {"MSG_REGION": "DefaultRegion", "CLUSTER": CLUSTER, "TRACE_ON": "true"}


class Sends:
    """Handlers of requests that bring messages."""

    def __init__(self, state: State) -> None:
        self._state = state

    def table(self) -> dict[int, Handle]:
        return {
            RequestCode.SEND_MESSAGE_V2: self.handle_send_message,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_send_batch_message,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle_send_reply_message,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.handle_consumer_send_msg_back,
            RequestCode.END_TRANSACTION: self.handle_end_transaction,
            RequestCode.RECALL_MESSAGE: self.handle_recall_message,
        }

    def handle_send_message(self, request: Command, wire: MemoryWire) -> Command:
        """One message: at once, later, half, or to the dead letters."""
        header = SendHeader.of(request)
        properties = decode_properties((header.properties or "").encode())
        topic, queue_id, refused = self._place(request, header)
        if refused is not None:
            return refused
        if topic.name.startswith(RETRY) and self._is_dead(header):
            topic, queue_id = self._dead_letters(topic.name.removeprefix(RETRY)), 0
            properties["DELAY"] = "-1"
        draft = self._draft(request, header, topic.name, queue_id, properties)
        now_ms = self._state.now_ms()
        if properties.get("TRAN_MSG") == "true" and not header.reconsume_times:
            placed = self._state.log.put_half(draft, now_ms)
        else:
            placed = self._state.log.put(draft, now_ms)
            self._state.arrivals.tell()
        return self._stored(request, header, placed, properties)

    def handle_send_batch_message(self, request: Command, wire: MemoryWire) -> Command:
        """Several messages, in one queue."""
        header = SendHeader.of(request)
        topic, queue_id, refused = self._place(request, header)
        if refused is not None:
            return refused
        log, now_ms = self._state.log, self._state.now_ms()
        entries = [
            log.append(
                replace(
                    self._draft(
                        request, header, topic.name, queue_id,
                        decode_properties(bytes(item.properties)),
                    ),
                    body=bytes(item.body), flag=item.flag,
                ),
                now_ms,
            )
            for item in split_batch(bytes(request.body or b""))
        ]  # fmt: skip
        self._state.arrivals.tell()
        ids = ",".join(
            offset_message_id(decode(each.record).store_host, each.offset) for each in entries
        )
        placed = {"queueId": str(queue_id), "queueOffset": str(entries[0].queue_offset)}
        return request.reply(ext={"msgId": ids, **placed, **_MARKS})

    def _place(self, request: Command, header: SendHeader) -> tuple[Topic, int, Command | None]:
        """The topic and queue of a send, or why there is none."""
        known = self._state.log.topics.get(header.topic)
        if known is None and header.topic.startswith(RETRY):
            known = self._state.log.topic(header.topic, 1)
        if known is None:
            known = self._state.log.topic(header.topic, max(1, header.default_topic_queue_nums))
        queue_id = header.queue_id if header.queue_id >= 0 else 0
        if queue_id >= known.queue_count:
            remark = f"request queueId[{queue_id}] is illegal, {known}"
            return known, 0, request.reply(ResponseCode.SYSTEM_ERROR, remark)
        return known, queue_id, None

    def _draft(
        self, request: Command, header: SendHeader, topic: str, queue_id: int,
        properties: dict[str, str],
    ) -> Draft:  # fmt: skip
        return Draft(
            topic, queue_id, bytes(request.body or b""),
            encode_properties({**properties, **ADDED}), header.flag, header.sys_flag,
            header.born_timestamp, BORN_HOST, reconsume_times=header.reconsume_times,
        )  # fmt: skip

    def _stored(
        self, request: Command, header: SendHeader, placed: Placed, properties: dict[str, str]
    ) -> Command:
        ext = {
            "msgId": placed.message_id,
            "queueId": str(placed.queue_id),
            "queueOffset": str(placed.queue_offset),
            "transactionId": properties.get("UNIQ_KEY", ""),
            **_MARKS,
        }
        if placed.due_ms and "DELAY" not in properties:
            handle = RecallHandle(
                header.topic, BROKER, str(placed.due_ms), properties.get("UNIQ_KEY", "")
            )
            ext["recallHandle"] = handle.encode()
        return request.reply(ext=ext)

    # What failed

    def _is_dead(self, header: SendHeader) -> bool:
        group = header.topic.removeprefix(RETRY)
        tries_max = 16 if header.max_reconsume_times is None else header.max_reconsume_times
        return header.reconsume_times > tries_max or self._state.members.is_orderly(group)

    def _dead_letters(self, group: str) -> Topic:
        return self._state.log.topic(DLQ + group, 1)

    def handle_consumer_send_msg_back(self, request: Command, wire: MemoryWire) -> Command:
        """A copy for later, or for the dead letters."""
        header = SendBackHeader.of(request)
        found = self._state.log.by_offset.get(header.offset)
        if found is None:
            remark = f"look message by offset failed, {header.offset}"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark)
        record = decode(found.record)
        tries_max = 16 if header.max_reconsume_times is None else header.max_reconsume_times
        dead = record.reconsume_times >= tries_max or header.delay_level < 0
        level = 0 if dead else header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        properties = dict(found.properties)
        properties.setdefault("RETRY_TOPIC", record.topic)
        properties.setdefault(
            "ORIGIN_MESSAGE_ID", offset_message_id(record.store_host, found.offset)
        )
        properties |= {"WAIT": "false", "DELAY": str(level)}
        topic = (
            self._dead_letters(header.group)
            if dead
            else self._state.log.topic(RETRY + header.group, 1)
        )
        again = Draft(
            topic.name, 0, record.body, encode_properties(properties), record.flag, record.sys_flag,
            record.born_ms, record.born_host, reconsume_times=record.reconsume_times + 1,
        )  # fmt: skip
        self._state.log.put(again, self._state.now_ms())
        self._state.arrivals.tell()
        return request.reply()

    # Replies

    def handle_send_reply_message(self, request: Command, wire: MemoryWire) -> Command:
        """To the client that waits for it; its producers are known by heartbeats."""
        header = SendHeader.of(request)
        properties = decode_properties((header.properties or "").encode())
        client_id = properties.get("REPLY_TO_CLIENT", "")
        requester = self._state.members.producer_named(client_id)
        if requester is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            return request.reply(ResponseCode.SYSTEM_ERROR, remark)
        told = {
            "topic": header.topic,
            "properties": header.properties or "",
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp),
            "flag": str(header.flag),
            "storeTimestamp": str(self._state.now_ms()),
            "bornHost": "127.0.0.1:1",
            "storeHost": wire.address,
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        requester.push(Command(code, told, bytes(request.body or b"")))
        placed = {"msgId": "0", "queueId": str(max(0, header.queue_id)), "queueOffset": "0"}
        return request.reply(ext={**placed, **_MARKS})

    # Transactions and timers

    def handle_end_transaction(self, request: Command, wire: MemoryWire) -> Command:
        """Deliver a half message, or forget it."""
        header = EndTransactionHeader.of(request)
        half = self._state.log.halves.get(header.commit_log_offset)
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            return request.reply()
        if half is None:
            remark = f"no half message at {header.commit_log_offset}: it was ended before"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark)
        del self._state.log.halves[half.offset]
        if header.commit_or_rollback == COMMIT:
            record = decode(half.record)
            whole = {k: v for k, v in half.properties.items() if k != "TRAN_MSG"}
            draft = Draft(
                half.topic, half.queue_id, record.body, encode_properties(whole), record.flag,
                record.sys_flag | SysFlag.COMMIT, record.born_ms, record.born_host,
                prepared_offset=half.offset,
            )  # fmt: skip
            self._state.log.append(draft, self._state.now_ms())
            self._state.arrivals.tell()
        return request.reply()

    def handle_recall_message(self, request: Command, wire: MemoryWire) -> Command:
        """A message that waits for its time is not delivered."""
        handle = RecallHandle.decode((request.ext or {}).get("recallHandle", ""))
        if not self._state.log.recall(handle.topic, handle.message_id):
            return request.reply(ResponseCode.ILLEGAL_OPERATION, "recall failed, it is too late")
        return request.reply(ext={"msgId": handle.message_id})


#: of every answer to a send; copies and durable: one, in memory
_MARKS: Final = {
    "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "epoch": "0", "copies": "1", "durable": "0",
}  # fmt: skip
