"""A user's mistakes, each of which a type checker must find."""

from __future__ import annotations

from tandemmq import Message, Producer
from tandemmq.blocking import consume
from tandemmq.testing import TandemCluster

Message("Orders", "text")  # a body is bytes
Producer("shop", timeout="3 s")  # no such option
TandemCluster(replicas=3)  # one or two
for message in consume("report", 17):  # a topic
    message.nonsense  # noqa: B018 - no such attribute
