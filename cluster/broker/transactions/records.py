"""Half, op and committed messages as RocketMQ stores them. Source: its TransactionalMessageBridge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.transactions.halves import Birth, Half
from tandemmq.storage import (
    PROPERTIES_BYTES_MAX,
    Draft,
    PropertiesTooLarge,
    Record,
    SysFlag,
    decode_properties,
    encode,
    encode_properties,
    get_property,
)

HALF_QUEUE: Final = 0
GROUP: Final = "CID_RMQ_SYS_TRANS"  # whose progress in both topics says what is over
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
ORIGIN: Final = "TRAN_PREPARED_QUEUE_OFFSET"
#: the longest that copied() adds: two names, two ends each, an offset, a count
COPY_ADDS_BYTES: Final = len(ORIGIN) + len(CHECK_TIMES) + 4 + 19 + 10
IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"

_OP_TAG: Final = b"d"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"


def make_half(draft: Draft, group: str) -> None:
    """Turn a message into a half message. group: of its producer, for a client that does not say it.

    Raises PropertiesTooLarge.
    """
    properties = decode_properties(draft.properties)
    properties.setdefault(PRODUCER_GROUP, group)
    properties[TRANSACTION_ID] = properties[messages.UNIQ_KEY]
    properties[messages.REAL_TOPIC] = draft.topic
    properties[messages.REAL_QID] = str(draft.queue_id)
    for name in (CHECK_TIMES, ORIGIN):  # a client's own would make it a copy of something
        properties.pop(name, None)
    draft.properties = encode_properties(properties)
    if len(draft.properties) > PROPERTIES_BYTES_MAX - COPY_ADDS_BYTES:
        # Stored, it could not be put again, and would be given up before its producer was asked once.
        raise PropertiesTooLarge(
            f"properties are {len(draft.properties)} bytes, of a half message at most"
            f" {PROPERTIES_BYTES_MAX - COPY_ADDS_BYTES}"
        )
    draft.sys_flag &= ~SysFlag.TRANSACTION_MASK
    draft.topic = names.HALF_TOPIC
    draft.queue_id = HALF_QUEUE


def half_of(
    record: Record, queue_offset: int, offset: int, *, now_ms: int, monotonic_ms: int,
    timeout_ms: int, kept_ms: int,
) -> Half:  # fmt: skip
    """What is to be known of a half message that is stored at these offsets.

    now_ms, monotonic_ms  what both clocks say
    timeout_ms  transactionTimeOut; kept_ms: the longest that a producer may ask to be left alone

    The age of a first copy is by our own clock. When the first copy of a copy was stored nobody knows: its producer's
    clock says when it was born.
    """
    properties = record.property_map
    checks = _number(properties.get(CHECK_TIMES)) or 0
    resumed = properties.get(CHECK_TIMES) == "0"  # by an operator: a transaction anew
    origin = None if resumed else _number(properties.get(ORIGIN))
    is_copy = checks > 0 or origin is not None
    stored_ms = monotonic_ms - max(0, now_ms - record.store_ms)
    began_ms = min(stored_ms, monotonic_ms - (now_ms - record.born_ms)) if is_copy else stored_ms
    immunity_ms = immunity_of(record, timeout_ms, kept_ms)
    end_ms = None if immunity_ms is None else began_ms + max(immunity_ms, timeout_ms)
    wait_ms = timeout_ms if immunity_ms is None else immunity_ms
    return Half(
        queue_offset=queue_offset,
        offset=offset,
        origin=queue_offset if origin is None else origin,
        topic=properties.get(messages.REAL_TOPIC, ""),
        checks=checks,
        began_ms=began_ms,
        stored_ms=stored_ms,
        ask_ms=began_ms + wait_ms,
        end_ms=end_ms,
    )


def immunity_of(record: Record, timeout_ms: int, kept_ms: int) -> int | None:
    """How long its producer wants to be left alone; None when it does not say."""
    text = get_property(record.properties, IMMUNITY)
    if text is None:
        return None
    seconds = _number(text.decode("utf-8", "replace"))
    return timeout_ms if seconds is None else min(seconds * 1000, kept_ms)


def birth_of(record: Record) -> Birth:
    """What a half message, its copies and what is committed of it have in common."""
    unique_id = get_property(record.properties, b"UNIQ_KEY") or b""
    return unique_id, record.born_ms, record.born_host


def unique_id_of(record: Record) -> str:
    return (get_property(record.properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")


def group_of(record: Record) -> str:
    return (get_property(record.properties, b"PGROUP") or b"").decode("utf-8", "replace")


def committed(record: Record, offset: int) -> Draft | None:
    """The message that consumers get. None without a sound place. offset: of the half in the log."""
    topic = get_property(record.properties, b"REAL_TOPIC")
    queue_id = _number(
        (get_property(record.properties, b"REAL_QID") or b"").decode("ascii", "replace")
    )
    if not topic or queue_id is None:
        return None
    draft = messages.again(record)
    draft.topic, draft.queue_id = topic.decode("utf-8", "replace"), queue_id
    draft.sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.COMMIT
    draft.prepared_offset = offset
    return draft


def copied(record: Record, half: Half, checks: int) -> Draft:
    """The same half message once more. RocketMQ forgets its flag and how often it was retried; this does not."""
    properties = record.property_map
    properties[ORIGIN] = str(half.origin)
    if checks:
        properties[CHECK_TIMES] = str(checks)
    draft = messages.again(record)
    draft.properties = encode_properties(properties)
    return draft


def resumed(record: Record) -> Draft:
    """A half message anew, of one that was given up."""
    properties = record.property_map
    properties.pop(ORIGIN, None)
    properties[CHECK_TIMES] = "0"
    draft = messages.again(record)
    draft.topic, draft.queue_id = names.HALF_TOPIC, HALF_QUEUE
    draft.properties = encode_properties(properties)
    return draft


def given_up(record: Record) -> Draft:
    """The message where operators find those that nobody answered for."""
    draft = messages.again(record)
    draft.topic, draft.queue_id = GIVEN_UP_TOPIC, 0
    return draft


def checked(
    record: Record, draft: Draft, queue_offset: int, offset: int, now_ms: int
) -> bytes | None:
    """Body of a check: the copy that was just put, under its real topic. None without a sound place."""
    real = committed(record, 0)
    if real is None:
        return None
    real.sys_flag = record.sys_flag
    real.properties = draft.properties
    return encode(real, queue_offset, offset, now_ms)


def op_message(half_offsets: Iterable[int], store_host: bytes, now_ms: int) -> Draft:
    """Notes the end of these."""
    return Draft(
        topic=names.OP_TOPIC,
        queue_id=HALF_QUEUE,
        body=b"".join([b"%d," % each for each in half_offsets]),
        properties=_OP_PROPERTIES,
        born_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )


def offsets_of(record: Record) -> list[int]:
    """The half messages an op message names: one, as RocketMQ 4 wrote it, or several."""
    if get_property(record.properties, b"TAGS") != _OP_TAG:
        return []
    found = (_number(part) for part in record.body.decode("ascii", "replace").split(","))
    return [each for each in found if each is not None]


def _number(text: str | None) -> int | None:
    """A number that is not negative and fits a record's field."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)
