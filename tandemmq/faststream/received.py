"""A message that no broker stored, as one that was received: replies, and what the test broker hands over."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from tandemmq.cluster.client import MessageQueue, ReceivedMessage


def received(
    topic: str, body: bytes, properties: Mapping[str, str], *, reconsume_times: int = 0
) -> ReceivedMessage:
    """With an id of its own, and everything else as of a first message."""
    now_ms = time.time_ns() // 1_000_000
    identity = properties.get("UNIQ_KEY") or uuid.uuid4().hex.upper()
    return ReceivedMessage(
        topic=topic, body=body, queue=MessageQueue(topic, "test", 0), queue_offset=0, message_id=identity,
        offset_message_id=identity, properties=dict(properties), reconsume_times=reconsume_times,
        born_ms=now_ms, store_ms=now_ms, born_host="127.0.0.1:0", store_host="127.0.0.1:0",
        physical_offset=0, flag=0, sys_flag=0,
    )  # fmt: skip
