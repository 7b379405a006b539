"""The values that applications see: messages out, messages in, queues and send results."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import force_setattr, replace

from tandemmq.cluster.client.errors import MessageRefused

TOPIC_LENGTH_MAX: Final = 127
DERIVED_TOPIC_LENGTH_MAX: Final = 255  # %RETRY% and %DLQ% carry a group name behind the prefix
GROUP_LENGTH_MAX: Final = 120
PROPERTIES_BYTES_MAX: Final = 32_767  # the store keeps the length in a signed short
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

SEND_FORBIDDEN: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip

#: Names that RocketMQ gives a meaning; applications reach those through arguments of Message, or
# not at all.
RESERVED_PROPERTIES: Final = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "CLUSTER", "PGROUP", "TRAN_MSG",
        "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "MIN_OFFSET", "MAX_OFFSET",
        "CONSUME_START_TIME", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
        "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE", "MSG_REGION", "TRACE_ON", "POP_CK",
        "POP_CK_OFFSET", "1ST_POP_TIME", "DUP_INFO", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "EXTEND_UNIQ_INFO",
    }
)  # fmt: skip

TIMER_PROPERTIES: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS")
DELAY_S_MAX: Final = 1e12

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


# These are msgspec structs, not dataclasses: a million of them per second costs a fifth of the time.


class MessageQueue(
    msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True, rename="camel"
):
    """One queue of a topic on one broker group.

    Sorts as RocketMQ's clients sort: topic, broker name, queue id.

    Example:
        await producer.send(message, queue=MessageQueue("Orders", "broker-a", 3))
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class _Payload(msgspec.Struct, frozen=True):
    topic: str
    body: bytes


NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_legal_topics: set[str] = set()  # names that passed check_topic; a process uses few
_LEGAL_TOPICS_MAX: Final = 10_000


class Message(_Payload, frozen=True, kw_only=True):
    """A message to send. Immutable: it may be sent again, and by several tasks at once.

    topic        letters, digits, `%`, `|`, `-`, `_`; 127 characters at most (no dots)
    body         1 byte to the producer's body_bytes_max (4 MiB by default); never changed by
                 compression
    tags         one word that consumers filter by on the broker, or None; no blank, no "|"
    keys         business keys for look-ups: one text, or several in a list; none may hold a blank
    properties   your own names and values, text, neither empty; RocketMQ's reserved names are
                 refused
    flag         a number of 32 bits that is carried to the consumer unseen
    delay_level  0: at once; 1 to 18: the broker's delay table (1 s ... 2 h in the default table).
                 Brokers with a longer messageDelayLevel: set Message.delay_level_max before
    deliver_at   a datetime with a time zone: not before that, and within a second after it. Brokers take it up to their
                 timerMaxDelaySec ahead (3 days); a time that is over means at once
    delay_s      the same, seconds after the broker has the message; may be a fraction. One of the three
    wait_stored  False: the broker answers without waiting for its disk and its slaves
    unique_id    "": a new one for each send call. Give one to make your own retries recognisable

    Raises MessageRefused when a rule is broken, naming the value and what is allowed.

    Example:
        Message("Orders", b'{"id": 17}', tags="created", keys="order-17", properties={"source":
        "shop"})
    """

    #: levels that the brokers' messageDelayLevel has; RocketMQ's default table has 18
    delay_level_max: ClassVar[int] = 18

    tags: str | None = None
    keys: str | Iterable[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES
    flag: int = 0
    delay_level: int = 0
    deliver_at: datetime | None = None
    delay_s: float = 0.0
    wait_stored: bool = True
    unique_id: str = ""

    def __post_init__(self) -> None:
        if self.topic not in _legal_topics:
            _check_is_text("topic", self.topic)
            _check_topic_to_send(self.topic)
        if type(self.body) is not bytes or not self.body:
            force_setattr(self, "body", _checked_body(self.body))
        if self.keys != ():
            force_setattr(self, "keys", _checked_keys(self.keys))
        if self.tags is not None:
            _check_tags(self.tags)
        if self.unique_id:
            _check_text("unique_id", self.unique_id)
        if self.properties is not NO_PROPERTIES:
            checked = MappingProxyType(_checked_properties(self.properties))
            force_setattr(self, "properties", checked)
        if self.delay_level and not 0 <= self.delay_level <= Message.delay_level_max:
            raise MessageRefused(
                f"delay_level must be 0 (none) or a level of the broker's table, 1 to "
                f"{Message.delay_level_max}, got {self.delay_level}: a level is no number of "
                "seconds (3 is 10 s, 16 is 30 min, 18 is 2 h)"
            )
        if self.deliver_at is not None or self.delay_s:
            timer = {**self.properties, **_timer_property(self)}
            force_setattr(self, "properties", MappingProxyType(timer))
        if self.flag and not -(1 << 31) <= self.flag < 1 << 31:
            raise MessageRefused(f"flag must fit a signed number of 32 bits, got {self.flag}")

    def with_properties(self, more: Mapping[str, str]) -> Message:
        """A copy with these properties too. Raises MessageRefused."""
        own = {name: v for name, v in self.properties.items() if name not in TIMER_PROPERTIES}
        return replace(self, properties={**own, **more})

    @property
    def delayed(self) -> bool:
        """Whether it is to be delivered later."""
        return bool(self.delay_level or self.delay_s) or self.deliver_at is not None

    @classmethod
    def again(cls, received: ReceivedMessage, topic: str = "", *, same_id: bool = False) -> Message:
        """A copy of a message that was received, to send it anew: body, tags, keys, flag and own properties.

        topic    "": the one it was sent to first, also for a message from a dead-letter topic.
                 "%RETRY%group": that group alone gets it, under the topic it was sent to first
        same_id  consumers see the message_id it had, and can tell that they know it

        Example: await producer.send(Message.again(dead, same_id=True))
        """
        properties = received.properties
        own = {k: v for k, v in properties.items() if v and k not in RESERVED_PROPERTIES}
        origin = properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC")
        copy = cls(
            topic or origin or received.topic,
            received.body,
            properties=own,
            flag=received.flag,
            unique_id=received.message_id if same_id else "",
        )
        if origin and copy.topic.startswith(RETRY_PREFIX):
            force_setattr(copy, "properties", MappingProxyType({**own, "RETRY_TOPIC": origin}))
        # as they are: other clients let through what is refused here
        force_setattr(copy, "keys", received.keys)
        force_setattr(copy, "tags", received.tags)
        return copy

    def stored_properties(self, unique_id: str) -> dict[str, str]:
        """What goes into the record: own properties, and RocketMQ's names for the arguments."""
        stored = dict(self.properties)
        if self.tags:
            stored["TAGS"] = self.tags
        if self.keys:
            stored["KEYS"] = " ".join(self.keys)
        if self.delay_level:
            stored["DELAY"] = str(self.delay_level)
        stored["UNIQ_KEY"] = self.unique_id or unique_id
        stored["WAIT"] = "true" if self.wait_stored else "false"
        return stored


class SendStatus(enum.Enum):
    """How far a stored message got before the answer.

    Only SEND_OK is a promise; the others may stay or vanish.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message (or a batch) was stored.

    message_id         the client's unique id, what consumers see; a batch has several, joined by
                       ","
    offset_message_id  the broker's id: store address and CommitLog offset; a batch likewise
    queue_offset       entry number in the queue; of the first message for a batch
    transaction_id     what the broker returned, "" when nothing
    region_id          the broker's regionId, "" when nothing
    epoch              of the master that acknowledged; 0 without a controller. With the CommitLog
                       offset in offset_message_id it is the message's sequence id
    copies             brokers that had it then, the master included; 0: the broker does not say
    durable            how many of them had it on their disk
    recall_handle      of a message with a delivery time: what Producer.recall() takes; else ""

    Example:
        result = await producer.send(Message("Orders", b"17"))
        if result.ok: print(result.queue, result.queue_offset)
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region_id: str = ""
    epoch: int = 0
    copies: int = 0
    durable: int = 0
    recall_handle: str = ""

    @property
    def ok(self) -> bool:
        """True for SEND_OK: stored as the broker's configuration promises."""
        return self.status is SendStatus.SEND_OK

    @property
    def message_ids(self) -> tuple[str, ...]:
        """One id per message of a batch, in order; one element for a single message."""
        return tuple(self.message_id.split(","))


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a consumer gets it.

    topic            the topic it was sent to, also when it comes back through the group's retry
                     topic
    body             as its producer gave it (decompressed); the stored bytes when they do not
                     decompress
    queue            the queue it was read from (the retry topic's queue for a retry)
    queue_offset     entry number in that queue
    message_id       the producer's unique id; identical for all retries of one send: the key for
                     de-duplication
    offset_message_id  the broker's id of this copy
    reconsume_times  how often a consumer of this group has failed on it
    born_ms, store_ms  wall time of producer and broker, milliseconds since 1970
    born_host, store_host  "ip:port"
    properties       everything stored with it, RocketMQ's own names included
    sys_flag         RocketMQ's bits (compression, transaction, address kinds)

    Example:
        async def handle(message: ReceivedMessage) -> None:
            print(message.topic, message.tags, message.body.decode())
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    properties: Mapping[str, str]
    reconsume_times: int
    born_ms: int
    store_ms: int
    born_host: str
    store_host: str
    physical_offset: int
    flag: int
    sys_flag: int
    max_offset: int = (
        0  # of its queue when it was read: max_offset - queue_offset is how far behind we are
    )

    @property
    def tags(self) -> str | None:
        """The tag it was sent with, or None."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it was sent with."""
        return tuple(self.properties.get("KEYS", "").split())


def _timer_property(message: Message) -> dict[str, str]:
    """What asks the broker for the delivery time."""
    at, delay_s = message.deliver_at, message.delay_s
    if bool(message.delay_level) + (at is not None) + bool(delay_s) > 1:
        raise MessageRefused("delay_level, deliver_at and delay_s exclude each other: give one")
    if at is not None:
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise MessageRefused(
                f"deliver_at must be a datetime with a time zone, got {at!r}; "
                "e.g. datetime.now(UTC) + timedelta(hours=1)"
            )
        return {TIMER_PROPERTIES[0]: str(max(0, round(at.timestamp() * 1000)))}
    if not isinstance(delay_s, (int, float)) or not 0 <= delay_s < DELAY_S_MAX:
        raise MessageRefused(f"delay_s must be seconds, at least 0, got {delay_s!r}")
    return {TIMER_PROPERTIES[1]: str(max(1, round(delay_s * 1000)))}


def check_topic(topic: str) -> None:
    """Raise MessageRefused unless the topic name is legal."""
    longest = (
        DERIVED_TOPIC_LENGTH_MAX
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        else TOPIC_LENGTH_MAX
    )
    _check_name("topic", topic, longest)


def check_group(group: str) -> None:
    """Raise MessageRefused unless the group name is legal."""
    _check_name("group", group, GROUP_LENGTH_MAX)


def _check_name(what: str, name: str, length_max: int) -> None:
    if not name.strip():
        raise MessageRefused(f"The specified {what} is blank")
    if len(name) > length_max:
        raise MessageRefused(
            f"The specified {what} is longer than {what} max length {length_max}: {name!r}"
        )
    if not _NAME.fullmatch(name):
        raise MessageRefused(
            f"The specified {what}: {name}, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )


def _check_topic_to_send(topic: str) -> None:
    check_topic(topic)
    if topic in SEND_FORBIDDEN:
        raise MessageRefused(f"Sending message to topic[{topic}] is forbidden: the broker owns it.")
    if len(_legal_topics) < _LEGAL_TOPICS_MAX:
        _legal_topics.add(topic)


def _checked_keys(given: str | Iterable[str]) -> tuple[str, ...]:
    keys = (given,) if isinstance(given, str) else tuple(given)
    for key in keys:
        _check_text("keys", key)
        if not key or any(letter.isspace() for letter in key):
            raise MessageRefused(
                f"a key must be one word, got {key!r}; give several keys as a list"
            )
    return keys


def _check_tags(tags: str) -> None:
    _check_text("tags", tags)
    if "|" in tags or any(letter.isspace() for letter in tags):
        raise MessageRefused(
            f"tags must be one word without '|', which no consumer could filter by, got {tags!r}; "
            "a message has one tag, more go into properties"
        )


def _checked_body(body: Any) -> bytes:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise MessageRefused(
            f"the message body must be bytes, got {type(body).__name__}; encode text first"
        )
    if not len(body):
        raise MessageRefused("the message body length is zero")
    return bytes(body)


def _checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise MessageRefused(f"properties must be a mapping, got {type(properties).__name__}")
    for name, value in properties.items():
        _check_is_text("a property's name", name)
        _check_is_text(f"property {name}", value)
        if name in RESERVED_PROPERTIES:
            raise MessageRefused(f"The Property<{name}> is used by system, use another name")
        if not name or not value:
            raise MessageRefused(f"a property needs a name and a value, got {name!r}: {value!r}")
        _check_text("property name", name)
        _check_text(f"property {name}", value)
    return dict(properties)


def _check_is_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise MessageRefused(
            f"{what} must be text (str), got {type(text).__name__}: {text!r}; write it as str(...)"
        )


def _check_text(what: str, text: str) -> None:
    _check_is_text(what, text)
    if "\x01" in text or "\x02" in text:
        raise MessageRefused(f"{what} holds U+0001 or U+0002, which separate properties: {text!r}")
