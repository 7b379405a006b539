"""What an expression of a subscription or a pull selects: which entries of a queue, which of their messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tandemmq.cluster.broker.errors import FilterNotServed, SubscriptionUnparsable
from tandemmq.cluster.broker.reading.subscriptions import ALL, split_tags
from tandemmq.cluster.sql92.grammar import Expression, compile_expression
from tandemmq.cluster.sql92.tokens import CHARACTERS_MAX, ExpressionRefused
from tandemmq.storage import EVERYTHING, Selector, decode_properties, get_property, java_hash

SQL92: Final = "SQL92"

#: compiled filters that are kept, refusals included: those of the consumers that pull, as a rule
FILTERS_KEPT: Final = 512
#: messages that a pull judges by a filter of at most CHEAP_TERMS; of a larger one it judges fewer in the same time
JUDGED_MAX: Final = 800
CHEAP_TERMS: Final = 32
#: properties that are looked for one by one: beyond, reading all of a message's takes no longer
NAMES_SOUGHT_MAX: Final = 6


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
    found = _compiled((expression or "")[: CHARACTERS_MAX + 1])  # cut, it is refused as well
    if isinstance(found, ExpressionRefused):
        raise SubscriptionUnparsable(f"the SQL92 expression is refused {found}")
    return found


@lru_cache(maxsize=FILTERS_KEPT)
def _compiled(text: str) -> Selector | ExpressionRefused:
    try:
        expression = compile_expression(text)
    except ExpressionRefused as refused:
        return refused
    dearness = max(1, expression.term_count // CHEAP_TERMS)
    return Selector(matches=_judge(expression), judged_max=JUDGED_MAX // dearness)


def _judge(expression: Expression) -> Callable[[bytes], bool]:
    """Judges encoded properties; where the expression names few of them, only these are looked for."""
    matches = expression.matches
    if len(expression.names) > NAMES_SOUGHT_MAX:
        return lambda properties: matches(decode_properties(properties))
    sought = [(name, name.encode()) for name in expression.names]

    def judge(properties: bytes) -> bool:
        found = {}
        for name, key in sought:
            value = get_property(properties, key)
            if value is not None:
                found[name] = str(value, "utf-8", "replace")
        return matches(found)

    return judge
