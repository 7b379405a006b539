"""What an expression of a subscription or a pull selects: which entries of a queue, which of their messages."""

from __future__ import annotations

from typing import Final

from tandemmq.cluster.broker.errors import FilterNotServed, SubscriptionUnparsable
from tandemmq.cluster.broker.reading.subscriptions import ALL, split_tags
from tandemmq.storage import EVERYTHING, Selector, java_hash

SQL92: Final = "SQL92"


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


def parse_filter(expression_type: str, expression: str | None, *, served: bool) -> Selector:
    """What a filter of properties selects, compiled once and remembered.

    Raises FilterNotServed unless they are `served`, and SubscriptionUnparsable, which says where and why, also for a
    type that is not SQL92.
    """
    if not served:
        kind = expression_type[:40]
        raise FilterNotServed(f"The broker does not support consumer to filter message by {kind}")
    if expression_type.upper() != SQL92:
        raise SubscriptionUnparsable(f"there is no filter of type {expression_type[:40]!r}")
    # Imported when wanted: most brokers see no such filter, and their start does not wait for its grammar.
    from tandemmq.cluster.broker.reading.propertyfilters import selector_of

    return selector_of(expression or "")
