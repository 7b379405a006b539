"""Message traces as RocketMQ's tools read them: who sent a message, who consumed it, and how that ended. No I/O.

A record is fields joined by 0x01 and ended by 0x02; a trace message holds several, and has the ids and keys of the
messages they speak of as its keys. Source: RocketMQ's TraceDataEncoder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tandemmq.cluster.client.message import Message, ReceivedMessage

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
NORMAL, HALF, COMMITTED, DELAYED = 0, 1, 2, 3  # of RocketMQ's MessageType
CONSUMED, RAISED, FAILED = 0, 2, 4  # of its ConsumeReturnType
NOTHING: Final = (
    "null"  # as Java writes what is not there; an empty last field would break its reader
)

RECORDS_MAX: Final = 16_384  # waiting; further ones are dropped
BODY_BYTES_MAX: Final = 128_000  # of one trace message, as RocketMQ's clients write at most
KEYS_BYTES_MAX: Final = 8_192  # each key is an entry of the broker's index


class TraceRecord(NamedTuple):
    """text  with its end mark. keys  by which it is found"""

    text: str
    keys: tuple[str, ...]


class Attempt(NamedTuple):
    """One message that was sent, as far as its broker's answer told.

    broker      address
    region, offset_id  "" when the broker did not answer
    half        whether it is the half message of a transaction
    """

    unique_id: str
    offset_id: str
    broker: str
    region: str
    began_ms: int
    cost_ms: int
    ok: bool
    half: bool = False


class TransactionEnd(NamedTuple):
    """What a producer says of a transaction, by itself or to a broker that asks.

    broker  address
    state   RocketMQ's word for it
    """

    unique_id: str
    transaction_id: str
    broker: str
    region: str
    told_ms: int
    state: str
    asked: bool


def sent_record(group: str, message: Message, attempt: Attempt) -> TraceRecord:
    """A Pub record."""
    kind = HALF if attempt.half else DELAYED if message.delay_level else NORMAL
    fields = (
        "Pub",
        attempt.began_ms,
        attempt.region,
        group,
        message.topic,
        attempt.unique_id,
        message.tags or NOTHING,
        " ".join(message.keys) or NOTHING,
        attempt.broker,
        len(message.body),
        attempt.cost_ms,
        kind,
        attempt.offset_id,
        str(attempt.ok).lower(),
    )
    return TraceRecord(_joined(fields), (attempt.unique_id, *message.keys))


def ended_record(group: str, message: Message, end: TransactionEnd) -> TraceRecord:
    """An EndTransaction record."""
    fields = (
        "EndTransaction",
        end.told_ms,
        end.region or NOTHING,
        group,
        message.topic,
        end.unique_id,
        message.tags or NOTHING,
        " ".join(message.keys) or NOTHING,
        end.broker,
        COMMITTED,
        end.transaction_id,
        end.state,
        str(end.asked).lower(),
    )
    return TraceRecord(_joined(fields), (end.unique_id, *message.keys))


def before_record(
    group: str, message: ReceivedMessage, request_id: str, now_ms: int
) -> TraceRecord:
    """A SubBefore record: a listener is about to be called. request_id: of the call, its SubAfter has it, too."""
    fields = (
        "SubBefore",
        now_ms,
        message.properties.get("MSG_REGION", NOTHING),
        group,
        request_id,
        message.message_id,
        message.reconsume_times,
        " ".join(message.keys) or NOTHING,
    )
    return TraceRecord(_joined(fields), (message.message_id, *message.keys))


def after_record(
    group: str, message: ReceivedMessage, request_id: str, now_ms: int, cost_ms: int, outcome: int
) -> TraceRecord:
    """A SubAfter record. outcome: CONSUMED, RAISED, FAILED."""
    fields = (
        "SubAfter",
        request_id,
        message.message_id,
        cost_ms,
        str(outcome == CONSUMED).lower(),
        " ".join(message.keys) or NOTHING,
        outcome,
        now_ms,
        group,
    )
    return TraceRecord(_joined(fields), (message.message_id, *message.keys))


def _joined(fields: Iterable[object]) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


class TraceBuffer:
    """Records that wait to be sent: at most RECORDS_MAX. May be filled by other threads.

    dropped  records for which there was no room, or whose message no broker took
    """

    def __init__(self) -> None:
        self._waiting: deque[TraceRecord] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, records: Sequence[TraceRecord]) -> None:
        """Keep them, or drop them: whoever is traced never waits."""
        if len(self._waiting) + len(records) > RECORDS_MAX:
            self.dropped += len(records)
        else:
            self._waiting.extend(records)

    def next_message(self, topic: str) -> tuple[Message, int]:
        """The next trace message and how many records it holds; not for an empty buffer."""
        texts: list[str] = []
        keys: dict[str, None] = {}
        body_bytes = keys_bytes = 0
        while self._waiting:
            record = self._waiting[0]
            # What has a blank in it cannot be a key: an id that an application made, or another client.
            mine = [key for key in record.keys if key and len(key.split()) == 1]
            text_bytes = len(record.text.encode(errors="replace"))
            more_bytes = sum(
                len(key.encode(errors="replace")) + 1 for key in mine if key not in keys
            )
            if texts and (
                body_bytes + text_bytes > BODY_BYTES_MAX or keys_bytes + more_bytes > KEYS_BYTES_MAX
            ):
                break
            self._waiting.popleft()
            texts.append(record.text)
            keys.update(dict.fromkeys(mine))
            body_bytes += text_bytes
            keys_bytes += more_bytes
        return Message(topic, "".join(texts).encode(errors="replace"), keys=keys), len(texts)
