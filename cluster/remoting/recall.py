"""The handle by which a producer recalls a timed message: URL-safe base64 of `v1 topic broker ms id`."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple


class RecallHandle(NamedTuple):
    """Which message a handle means, and where it waits. Source: RocketMQ's RecallMessageHandle.

    deliver_ms  a moment of the slot it waits in
    message_id  its unique id
    """

    topic: str
    broker_name: str
    deliver_ms: str
    message_id: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(" ".join(("v1", *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Raises ValueError for what is no handle, in RocketMQ's words."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, *items = raw.decode().split(" ")
        except (ValueError, binascii.Error):
            raise ValueError("recall handle is invalid") from None
        if version != "v1" or len(items) < 4 or not all(items[:4]):
            raise ValueError("recall handle is invalid")
        return cls(*items[:4])
