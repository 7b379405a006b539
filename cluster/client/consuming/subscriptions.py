"""Tag expressions: what a consumer wants of a topic, as the broker and the client filter it."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.storage import java_hash


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic with its tag expression. version: wall ms of its making; the newest wins."""

    topic: str
    expression: str
    tags: frozenset[str]
    version: int

    def wants(self, tags: str | None) -> bool:
        """Compare tag texts: the broker compares 32-bit hashes only, and two tags may share one."""
        return not self.tags or (tags is not None and tags in self.tags)

    def as_json(self) -> dict[str, object]:
        """SubscriptionData as it travels in heartbeats. Source: RocketMQ's class."""
        return {
            "topic": self.topic,
            "subString": self.expression,
            "tagsSet": sorted(self.tags),
            "codeSet": sorted(java_hash(tag) for tag in self.tags),
            "subVersion": self.version,
            "classFilterMode": False,
            "expressionType": "TAG",
        }


def parse_subscription(topic: str, expression: str, version: int) -> Subscription:
    """Build a Subscription from `*`, `TagA` or `TagA || TagB`.

    Raises MessageRefused for an expression without a tag.
    """
    text = expression.strip()
    if text in ("", "*"):
        return Subscription(topic, "*", frozenset(), version)
    tags = [part.strip() for part in text.split("||") if part.strip()]
    if not tags:
        raise MessageRefused(
            f"subscription {expression!r} of {topic} names no tag; write * or TagA || TagB"
        )
    return Subscription(topic, text, frozenset(tags), version)
