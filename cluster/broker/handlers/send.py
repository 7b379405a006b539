"""SEND_MESSAGE (10, 310) and SEND_BATCH_MESSAGE (320): messages from producers into the log.

This is the readable, complete path. sendpath.py and _sendpath.pyx take the common case out of its
hands and must give the same answers and the same bytes
(tests/cluster/broker/test_sendpath_twins.py). Source: RocketMQ's SendMessageProcessor.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tandemmq.cluster.broker.errors import (
    BrokerBusy,
    InvalidParameter,
    NoSuchGroup,
    NoSuchTopic,
    NotPermitted,
    NotYetServing,
    RequestMalformed,
    TransactionsNotServed,
)
from tandemmq.cluster.broker.reading.locks import QueueLocks
from tandemmq.cluster.broker.replies import FAQ, REFUSALS, no_such_topic, refusal
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.sending.acks import UNSETTLED, at_once
from tandemmq.cluster.broker.sending.delay import DelayLevels, delay_level
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.timers.door import TimerDoor
from tandemmq.cluster.broker.transactions import records
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.remoting.codes import VERSION_V3_4_9, RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import SendHeader
from tandemmq.storage import (
    BatchMalformed,
    Clock,
    Draft,
    FlushFailed,
    MessageIllegal,
    MessageStore,
    SysFlag,
    get_property,
    join_properties,
    offset_message_id,
    offset_message_ids,
    takes_queue_offset,
)

log = logging.getLogger(__name__)

TOPIC_UNIT: Final = 1  # topicSysFlag bits of topics made by a send in unit mode
TOPIC_UNIT_SUBSCRIPTION: Final = 2
BATCH_TOPIC_CHARACTERS_MAX: Final = 127
WAIT_MS_MAX: Final = (
    200  # RocketMQ's waitTimeMillsInSendQueue: what waited longer is refused, its sender retries
)


@dataclass(slots=True, eq=False)
class SendHandler:
    """Stores what producers send and says where it lies.

    store_host  the address clients know us by, packed: part of every record and of every message id
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    locks: QueueLocks
    release: Release
    standing: Standing
    ids: messages.UniqueIds
    transactions: Transactions
    store_host: bytes
    clock: Clock
    rng: random.Random
    timers: TimerDoor
    #: ext fields of every answer, refusals included
    marks: Mapping[str, str] = field(init=False)
    _levels: DelayLevels = field(init=False)
    _added: bytes = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.marks = {"TRACE_ON": str(config.trace_on).lower(), "MSG_REGION": config.region}
        self._levels = DelayLevels(config.storage.delay_levels)
        self._added = messages.broker_properties(config.region, config.cluster, config.trace_on)

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle_send_message,
            RequestCode.SEND_MESSAGE_V2: self.handle_send_message_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_send_batch_message,
        }

    def handle_send_message(
        self, request: Command, connection: Connection
    ) -> Command | Awaitable[Command | None] | None:
        """One message or, when the header says so, a batch; the code does not decide which."""
        refused = self.standing.refusal()
        if refused is not None and refused.wait_ms != 0:
            if request.body is not None:
                request.body = bytes(request.body)  # the next read takes its place
            settled = self.standing.changes.settled(refused.wait_ms)
            return self._when_settled(settled, request, connection)
        return self._handle(request, connection)

    async def _when_settled(
        self, settled: asyncio.Future[None], request: Command, connection: Connection
    ) -> Command | None:
        """A planned change of role, or a start: take it when that is over, or refuse it then."""
        await asyncio.wait((settled,))
        answer = self._handle(request, connection, paused=True)
        return await answer if isinstance(answer, Awaitable) else answer

    def _handle(
        self, request: Command, connection: Connection, *, paused: bool = False
    ) -> Command | Awaitable[Command] | None:
        try:
            header = SendHeader.of(request)
            if request.body is None:
                raise RequestMalformed("the message has no body")
        except REFUSALS as error:
            return refusal(request, error)
        try:
            made = self.topics.get(header.topic) is None
            topic = self.checked_topic(header, connection, paused=paused)
            send = self._send_batch if header.batch else self._send_one
            answer = send(request, header, topic, connection)
            told = self.topics.announced() if made and answer is not None else None
            return answer if told is None or answer is None else _after(told, answer)
        except FlushFailed as error:
            # The write failed, and what of it the log has is not known: neither stored nor refused.
            # The process ends now, and the connection with it.
            log.error("send not answered: its write failed why=%s", error)
            return None
        except RequestMalformed as error:  # where RocketMQ fails with an exception, without marks
            return refusal(request, error)
        except REFUSALS as error:
            return refusal(request, error, self.marks)

    handle_send_message_v2 = handle_send_message
    handle_send_batch_message = handle_send_message

    # -- whether and where
    # ----------------------------------------------------------------------------------

    def checked_topic(
        self, header: SendHeader, connection: Connection, *, paused: bool
    ) -> TopicConfig:
        """The topic of a message that may be taken now, made if need be. Raises what replies.REFUSALS holds."""
        self._check_serving(connection, paused)
        topic = self._topic(header)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise InvalidParameter(
                f"request queueId[{header.queue_id}] is illegal, {described(topic)}"
                f" Producer: {connection.peer[0]}:{connection.peer[1]}"
            )
        return topic

    def _check_serving(self, connection: Connection, paused: bool) -> None:
        refused = self.standing.refusal()
        if refused is not None:
            raise refused.why
        # Requests queue up in no place but the received bytes behind a slow one, say one that
        # rolled the log.
        waited_ms = self.clock.monotonic_ms() - connection.active_ms
        if waited_ms >= WAIT_MS_MAX and not paused:
            raise BrokerBusy(
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
                f" period in queue: {waited_ms}ms, size of queue: 0"
            )
        if self.release.acks.full:
            raise BrokerBusy("[OVERLOAD]system busy, start flow control for a while")
        opens_ms = self.config.accept_sends_from_ms
        if opens_ms > self.clock.now_ms():
            opens = datetime.fromtimestamp(opens_ms / 1000).isoformat(" ", "milliseconds")
            raise NotYetServing(f"broker unable to service, until {opens}")

    def _topic(self, header: SendHeader) -> TopicConfig:
        """The topic of a send, made if need be. The order of checks is RocketMQ's."""
        name = header.topic
        topic = self.topics.get(name)
        if topic is not None and topic.order and not self.config.permission & names.PERM_WRITE:
            raise NotPermitted(
                f"the broker[{self.config.advertised_host}] sending message is forbidden"
            )
        problem = self.topics.check_topic_name(name)
        if problem is not None:
            raise InvalidParameter(problem)
        if name in names.SEND_FORBIDDEN_TOPICS:
            raise NotPermitted(f"Sending message to topic[{name}] is forbidden.")
        if topic is not None:
            return topic
        retry = name.startswith(names.RETRY_PREFIX)
        sys_flag = (TOPIC_UNIT_SUBSCRIPTION if retry else TOPIC_UNIT) if header.unit_mode else 0
        topic = self.topics.create_for_send(
            name, header.default_topic, header.default_topic_queue_nums, sys_flag
        )
        if topic is None and retry:
            topic = self.topics.create_for_retry(name, 1)
        if topic is None:
            raise no_such_topic(name)
        return topic

    def _queue(self, header: SendHeader, topic: TopicConfig) -> int:
        if header.queue_id >= 0:
            return header.queue_id
        if topic.write_queue_nums <= 0:
            raise InvalidParameter(f"topic[{topic.topic_name}] has no queue to write to")
        return self.rng.randrange(topic.write_queue_nums)

    # -- one message
    # ----------------------------------------------------------------------------------------

    def _send_one(
        self, request: Command, header: SendHeader, topic: TopicConfig, connection: Connection
    ) -> Command | None:
        queue_id = self._queue(header, topic)
        properties = messages.without(encoded(header.properties), messages.STRIPPED)
        draft = self._draft(request, header, topic, queue_id, properties, connection)
        dead = self._is_dead(request, header)
        if dead:
            self._to_dead_letters(draft)
        unique_id = get_property(draft.properties, b"UNIQ_KEY")
        if unique_id is None:
            unique_id = self.ids.next().encode()
            draft.properties = join_properties(
                draft.properties, messages.property_bytes(messages.UNIQ_KEY, unique_id.decode())
            )
        draft.properties = join_properties(draft.properties, self._added)
        waits = waits_for_safety(draft.properties)
        real_topic = draft.topic
        half, out_ms = self._settle_kind(draft, header.producer_group)
        placed = self.release.put(draft)
        if half:
            self.transactions.began(placed.offset, placed.queue_offset)
        recall = None
        if out_ms is not None:
            recall = self.timers.recall_handle(
                real_topic, out_ms, unique_id.decode("utf-8", "replace")
            )
        return self._acknowledge(
            request,
            connection,
            {
                "queueId": str(queue_id),
                "transactionId": unique_id.decode("utf-8", "replace"),
                "msgId": offset_message_id(self.store_host, placed.offset),
                **self.marks,
                **self._safety(waits),
                "queueOffset": str(placed.queue_offset),
                **({} if recall is None else {"recallHandle": recall}),
            },
            placed.end,
            waits,
        )

    def _draft(
        self,
        request: Command,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
        properties: bytes,
        connection: Connection,
    ) -> Draft:
        assert request.body is not None
        multi = SysFlag.MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0
        return Draft(
            topic=topic.topic_name,
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag | multi,
            born_ms=header.born_timestamp,
            born_host=connection.peer_host,
            store_host=self.store_host,
            reconsume_times=header.reconsume_times,
        )

    def _is_dead(self, request: Command, header: SendHeader) -> bool:
        """Whether a message for a retry topic was tried often enough, or its group is orderly."""
        if not header.topic.startswith(names.RETRY_PREFIX):
            return False
        name = header.topic.removeprefix(names.RETRY_PREFIX)
        group = self.groups.find(name)
        if group is None:
            raise NoSuchGroup(f"subscription group not exist, {name} {FAQ}")
        tries_max = group.retry_max_times
        if request.version >= VERSION_V3_4_9 and header.max_reconsume_times is not None:
            tries_max = header.max_reconsume_times
        return header.reconsume_times > tries_max or self.locks.any_held(
            name, self.clock.monotonic_ms()
        )

    def _to_dead_letters(self, draft: Draft) -> None:
        topic = self.topics.create_for_retry(
            names.dlq_topic(draft.topic.removeprefix(names.RETRY_PREFIX)), 1
        )
        if topic is None:
            raise NoSuchTopic(f"topic[{draft.topic}] has no dead letter topic")
        draft.topic = topic.topic_name
        draft.queue_id = 0
        draft.properties = join_properties(
            draft.properties, messages.property_bytes(messages.DELAY, "-1")
        )

    def _settle_kind(self, draft: Draft, producer_group: str) -> tuple[bool, int | None]:
        """Tell ordinary messages from half, delayed and timed ones, and park the last two; whether it is a half, and a
        timed one's slot."""
        level = delay_level(draft.properties)
        half = (get_property(draft.properties, b"TRAN_MSG") or b"").lower() == b"true"
        if half and draft.reconsume_times > 0 and level > 0:
            draft.sys_flag &= (
                ~SysFlag.TRANSACTION_MASK
            )  # a retried message: its transaction is long over
        elif half:
            self._make_half(draft, producer_group, level)
            return True, None
        elif not takes_queue_offset(draft.sys_flag):
            # Stored like this it would be acknowledged and never delivered.
            raise MessageIllegal(
                f"sysFlag {draft.sys_flag} says half message, property TRAN_MSG does not"
            )
        if level > 0:
            self._levels.park(draft, level)
            return False, None
        return False, self.timers.park(draft)

    def _make_half(self, draft: Draft, producer_group: str, level: int) -> None:
        if self.config.transactions_rejected:
            raise TransactionsNotServed(
                f"the broker[{self.config.advertised_host}] sending transaction message"
                " is forbidden"
            )
        if level > 0 or any(
            get_property(draft.properties, name.encode()) for name in messages.TIMER_PROPERTIES
        ):  # RocketMQ parks the half message, and throws it away when it is due
            raise MessageIllegal("a transactional message can be neither delayed nor timed")
        if self.transactions.full:
            raise BrokerBusy("[OVERLOAD]too many transactions are pending, try later")
        records.make_half(draft, producer_group)

    # -- batches
    # --------------------------------------------------------------------------------------------

    def _send_batch(
        self, request: Command, header: SendHeader, topic: TopicConfig, connection: Connection
    ) -> Command | None:
        if len(topic.topic_name) > BATCH_TOPIC_CHARACTERS_MAX:
            raise MessageIllegal(f"message topic length too long {len(topic.topic_name)}")
        if topic.topic_name.startswith(names.RETRY_PREFIX):
            raise MessageIllegal(f"batch request does not support retry group {topic.topic_name}")
        queue_id = self._queue(header, topic)
        own = encoded(header.properties)
        envelope = self._draft(
            request, header, topic, queue_id, join_properties(own, self._added), connection
        )
        self._check_batch(envelope)
        try:
            placed = self.release.put_batch(envelope)
        except BatchMalformed as error:
            raise RequestMalformed(str(error)) from error
        ext = {"queueId": str(queue_id)}
        unique_id = get_property(own, b"UNIQ_KEY")
        if unique_id is not None:
            ext["transactionId"] = unique_id.decode("utf-8", "replace")
        ext["msgId"] = offset_message_ids(self.store_host, placed.offsets)
        waits = waits_for_safety(own)
        ext |= self.marks
        ext |= self._safety(waits)
        ext["queueOffset"] = str(placed.first_queue_offset)
        return self._acknowledge(request, connection, ext, placed.end, waits)

    def _check_batch(self, envelope: Draft) -> None:
        if (
            envelope.sys_flag & SysFlag.TRANSACTION_MASK
            or delay_level(envelope.properties) > 0
            or any(get_property(envelope.properties, n.encode()) for n in messages.TIMER_PROPERTIES)
        ):
            raise MessageIllegal("a batch can be neither transactional nor delayed")

    # -- answering
    # ------------------------------------------------------------------------------------------

    def _safety(self, waits: bool) -> dict[str, str]:
        """What the answer says of a stored message's safety, as far as it is known now."""
        if self.standing.holds_answers and waits:
            return UNSETTLED
        return at_once(self.standing.epoch)

    def _acknowledge(
        self, request: Command, connection: Connection, ext: dict[str, str], end: int, waits: bool
    ) -> Command | None:
        """The answer of a stored send, now or when the disk has the log up to `end`."""
        if request.oneway:
            return None
        answer = request.reply(ext=ext)
        if self.standing.holds_answers and waits:
            self.release.hold(end, connection, answer)
            return None
        return answer


def encoded(properties: str | None) -> bytes:
    """A header's property string as it is stored; what UTF-8 cannot say becomes '?', as in Java."""
    return (properties or "").encode("utf-8", "replace")


def waits_for_safety(properties: bytes) -> bool:
    """Whether the sender wants its answer only when the message is safe: WAIT absent or true."""
    wait = get_property(properties, b"WAIT")
    return wait is None or wait.lower() == b"true"


def described(topic: TopicConfig) -> str:
    """A topic's settings as RocketMQ prints them in remarks."""
    perm = "".join(
        letter if topic.perm & bit else "-"
        for letter, bit in (
            ("R", names.PERM_READ),
            ("W", names.PERM_WRITE),
            ("X", names.PERM_INHERIT),
        )
    )
    attributes = ", ".join(f"{key}={value}" for key, value in topic.attributes.items())
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums},"
        f" writeQueueNums={topic.write_queue_nums}, perm={perm},"
        f" topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag},"
        f" order={str(topic.order).lower()}, attributes={{{attributes}}}]"
    )


async def _after(told: Awaitable[None], answer: Command) -> Command:
    """The answer to the message that made a topic: its reader may ask for the route next."""
    await told
    return answer
