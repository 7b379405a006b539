"""RECALL_MESSAGE (370), and what slaves and tools ask of timers (60, 61)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.broker.handlers.requests import Refused, dumps, refusing
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.timers import rules
from tandemmq.cluster.broker.timers.door import TimerDoor
from tandemmq.cluster.broker.timers.pending import PendingTimers
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import Header
from tandemmq.cluster.remoting.recall import RecallHandle
from tandemmq.storage import Clock, Draft, FlushFailed, MessageStore, encode_properties

RECALL_TAG: Final = "_RECALL_TAG_"
UNAVAILABLE: Final = "recall failed, broker service not available"


class RecallHeader(Header):
    """Header of RECALL_MESSAGE."""

    topic: str
    recall_handle: str
    producer_group: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TimerHandlers:
    """Source: RocketMQ's RecallMessageProcessor, AdminBrokerProcessor."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    topics: TopicTable
    release: Release
    standing: Standing
    door: TimerDoor
    pending: PendingTimers
    store_host: bytes

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.RECALL_MESSAGE: refusing(self.handle_recall_message),
            RequestCode.GET_TIMER_CHECK_POINT: refusing(self.handle_get_timer_check_point),
            RequestCode.GET_TIMER_METRICS: refusing(self.handle_get_timer_metrics),
        }

    def handle_recall_message(self, request: Command, connection: Connection) -> Command | None:
        """Puts a message that deletes the other, into the same slot. Answered when it is as safe as a send."""
        draft, handle = self._deleting(request, connection)
        try:
            placed = self.release.put(draft)
        except FlushFailed:
            return None  # what the log has of it is not known; the process ends now
        ext = {"MSG_REGION": self.config.region, "msgId": handle.message_id}
        answer = request.reply(ext=ext)
        if self.release.holds and not request.oneway:
            self.release.hold(placed.end, connection, answer)
            return None
        return answer

    def _deleting(self, request: Command, connection: Connection) -> tuple[Draft, RecallHandle]:
        header = RecallHeader.of(request)
        config, standing, code = self.config, self.standing, ResponseCode
        if not config.recall_enabled:
            raise Refused(code.NO_PERMISSION, "recall failed, operation is forbidden")
        if standing.role is Role.SLAVE:
            raise Refused(code.SLAVE_NOT_AVAILABLE, UNAVAILABLE)
        refused = standing.refusal()
        if refused is not None:
            raise refused.why
        now_ms = self.clock.now_ms()
        writable = config.permission & names.PERM_WRITE or config.recall_when_not_writable
        if config.accept_sends_from_ms > now_ms or not writable:
            raise Refused(code.SERVICE_NOT_AVAILABLE, UNAVAILABLE)
        if self.topics.get(header.topic) is None:
            raise Refused(
                code.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as error:
            raise Refused(code.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != header.topic:
            raise Refused(code.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.name:
            raise Refused(code.ILLEGAL_OPERATION, UNAVAILABLE)
        deliver_ms = rules.number({rules.DELIVER_MS: handle.deliver_ms}, rules.DELIVER_MS)
        if deliver_ms is None or not 0 < deliver_ms - now_ms < config.timer_max_delay_s * 1000:
            raise Refused(code.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        properties = {
            "TAGS": RECALL_TAG,
            rules.DEL_UNIQKEY: rules.delete_key(handle.topic, handle.message_id),
            messages.UNIQ_KEY: handle.message_id,
            rules.DELIVER_MS: str(deliver_ms),
            "BORN_TIMESTAMP": str(now_ms),
            "PGROUP": header.producer_group,
        }
        draft = Draft(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=encode_properties(properties),
            born_ms=now_ms,
            born_host=connection.peer_host,
            store_host=self.store_host,
        )
        if self.door.park(draft) is None:
            raise Refused(code.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return draft, handle

    def handle_get_timer_check_point(self, command: Command, connection: Connection) -> Command:
        if not self.config.timer_wheel_enabled:
            return command.reply(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return command.reply(body=self.pending.checkpoint().body())

    def handle_get_timer_metrics(self, command: Command, connection: Connection) -> Command:
        if not self.config.timer_wheel_enabled:
            return command.reply(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return command.reply(body=dumps(self.pending.metrics()))
