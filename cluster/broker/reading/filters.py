"""Subscriptions that a pull brings along: which entries of a consume queue it wants."""

from __future__ import annotations

from tandemmq.cluster.broker.errors import SubscriptionUnparsable
from tandemmq.cluster.broker.reading.subscriptions import ALL, split_tags
from tandemmq.storage import EVERYTHING, Selector, java_hash


def is_tag_expression(expression_type: str | None) -> bool:
    """Whether a subscription of this type selects by tag; an absent or empty type does."""
    return not expression_type or expression_type.upper() == "TAG"


def parse_tags(expression: str | None) -> Selector:
    """What a pull's own expression selects: tags between `||`, blanks around them ignored.

    Raises SubscriptionUnparsable when separators are all there is.
    Source: RocketMQ's FilterAPI.
    """
    if not expression or expression == ALL:
        return EVERYTHING
    tags = split_tags(expression)
    if not tags:
        raise SubscriptionUnparsable("parse the consumer's subscription failed")
    return Selector(frozenset(map(java_hash, tags)))
