"""What a consumer wants of a topic, as the broker and the client filter it: by tags, or by properties."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.cluster.sql92.tokens import ExpressionRefused
from tandemmq.storage import java_hash


@dataclass(frozen=True, slots=True)
class Sql92:
    """Subscribe by properties: what an SQL92 expression is true of. The broker judges, so that nothing else comes.

    Brokers need enablePropertyFilter=true; else start() raises BrokerRefused. docs/howto/filter.md has the language.

    Raises MessageRefused for what is no expression, with the place and the reason.

    Example:
        PushConsumer("billing", handle, subscribe={"Orders": Sql92("amount > 100 AND region IN ('eu', 'us')")})
    """

    expression: str

    def __post_init__(self) -> None:
        try:
            compile_expression(self.expression)
        except ExpressionRefused as refused:
            raise MessageRefused(
                f"SQL92 filter {self.expression[:200]!r} is refused {refused}"
            ) from None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic with its expression. version: wall ms of its making; the newest wins.

    tags             the only ones that are wanted; none where all are, or where the broker judges
    expression_type  as it travels: TAG, SQL92
    """

    topic: str
    expression: str
    tags: frozenset[str]
    version: int
    expression_type: str = "TAG"

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
            "expressionType": self.expression_type,
        }


def parse_subscription(topic: str, expression: str | Sql92, version: int) -> Subscription:
    """Build a Subscription from `*`, `TagA`, `TagA || TagB` or an Sql92.

    Raises MessageRefused for an expression without a tag.
    """
    if isinstance(expression, Sql92):
        return Subscription(topic, expression.expression, frozenset(), version, "SQL92")
    text = expression.strip()
    if text in ("", "*"):
        return Subscription(topic, "*", frozenset(), version)
    tags = [part.strip() for part in text.split("||") if part.strip()]
    if not tags:
        raise MessageRefused(
            f"subscription {expression!r} of {topic} names no tag; write * or TagA || TagB"
        )
    return Subscription(topic, text, frozenset(tags), version)
