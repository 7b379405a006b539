"""Namespaces: `name` as `namespace%name` on the wire, prefixes of retry and dead letters in front.

No I/O.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage

SEPARATOR: Final = "%"
_PREFIXES: Final = ("%RETRY%", "%DLQ%")
_SYSTEM_PREFIX: Final = "rmq_sys_"
_SYSTEM_NAMES: Final = frozenset(
    {
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "CLIENT_INNER_PRODUCER", "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "CID_ONS-HTTP-PROXY",
    }
)  # fmt: skip
_NAMESPACE: Final = re.compile(r"[a-zA-Z0-9_-]*")


def check_namespace(namespace: str) -> None:
    """Raise MessageRefused unless it is legal: letters, digits, `_` and `-`, or empty for none."""
    if not _NAMESPACE.fullmatch(namespace):
        raise MessageRefused(f"the namespace {namespace!r} may hold letters, digits, _ and - only")


def wrap(namespace: str, name: str) -> str:
    """The topic or group as brokers know it. Names of the system, and wrapped ones, stay.

    Example: wrap("test", "%RETRY%CG") == "%RETRY%test%CG"
    """
    if not namespace or not name:
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + SEPARATOR) or is_system(bare):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def unwrap(namespace: str, name: str) -> str:
    """The name as the application knows it.

    Example: unwrap("test", "test%Orders") == "Orders"
    """
    if not namespace:
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(namespace + SEPARATOR)


def shown_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue as the application knows it."""
    if not namespace:
        return queue
    return MessageQueue(unwrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def shown_message(namespace: str, message: ReceivedMessage) -> ReceivedMessage:
    """The message as the application knows it."""
    if not namespace:
        return message
    topic, queue = unwrap(namespace, message.topic), shown_queue(namespace, message.queue)
    return replace(message, topic=topic, queue=queue)


def is_system(name: str) -> bool:
    """True for names that brokers and tools share over all namespaces."""
    return name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIX)


def _split(name: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
