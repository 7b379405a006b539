"""Which names topics and groups may have, and which of them belong to the server itself."""

from __future__ import annotations

import re
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_MARKS_TOPIC: Final = "rmq_sys_timer_marks"  # ours

TOPIC_CHARACTERS_MAX: Final = 127
RETRY_TOPIC_CHARACTERS_MAX: Final = 255
GROUP_CHARACTERS_MAX: Final = 120

#: topics no broker lets an administrator change
SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        "RMQ_SYS_TRACE_TOPIC",
        OP_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

#: topics no client may send to
SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TIMER_TOPIC,
        TIMER_MARKS_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)

#: groups that exist on every broker
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"


def is_legal(name: str) -> bool:
    """Whether a name of a topic or group has the characters of one, however long it is."""
    return _ALLOWED(name) is not None


def check_topic_name(name: str) -> str | None:
    """What is wrong with a topic name, in RocketMQ's words; None when it may be used.

    The alphabet has no dot and no slash, so a checked name never leaves the store's directory (INV-14).
    """
    if not name or name.isspace():
        return "The specified topic is blank."
    if _ALLOWED(name) is None:
        return f"The specified topic contains illegal characters, allowing only {_ALLOWED_TEXT}"
    limit = TOPIC_CHARACTERS_MAX
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        limit = RETRY_TOPIC_CHARACTERS_MAX
    if len(name) > limit:
        return "The specified topic is longer than topic max length."
    return None


def check_group_name(name: str) -> str | None:
    """What is wrong with a group name; None when it may be used."""
    if not name or name.isspace():
        return "The specified group is blank."
    if _ALLOWED(name) is None:
        return f"The specified group contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if len(name) > GROUP_CHARACTERS_MAX:
        return "The specified group is longer than group max length."
    return None


def retry_topic(group: str) -> str:
    """Where messages of a group go that it could not consume."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where messages of a group end that it could not consume at all."""
    return DLQ_PREFIX + group
