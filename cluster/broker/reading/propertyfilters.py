"""SQL92 over a message's properties: compiled once, and judged from their encoded form."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tandemmq.cluster.broker.errors import SubscriptionUnparsable
from tandemmq.cluster.sql92.grammar import Expression, compile_expression
from tandemmq.cluster.sql92.tokens import CHARACTERS_MAX, ExpressionRefused
from tandemmq.storage import Selector, decode_properties, get_property

#: compiled filters that are kept, refusals included: those of the consumers that pull, as a rule
FILTERS_KEPT: Final = 512
#: messages that a pull judges by a filter of at most CHEAP_TERMS; of a larger one it judges fewer in the same time
JUDGED_MAX: Final = 800
CHEAP_TERMS: Final = 32
#: bytes of properties times parts of the filter that a pull judges: a part costs some 20 ns for each byte at worst
PARTS_BYTES_MAX: Final = 4 << 20
#: properties that are looked for one by one: beyond, reading all of a message's takes no longer
NAMES_SOUGHT_MAX: Final = 6


def selector_of(expression: str) -> Selector:
    """What an expression selects. Raises SubscriptionUnparsable, which says where and why it is refused."""
    found = _compiled(expression[: CHARACTERS_MAX + 1])  # cut, it is refused as well
    if isinstance(found, ExpressionRefused):
        raise SubscriptionUnparsable(f"the SQL92 expression is refused {found}")
    return found


@lru_cache(maxsize=FILTERS_KEPT)
def _compiled(text: str) -> Selector | ExpressionRefused:
    try:
        expression = compile_expression(text)
    except ExpressionRefused as refused:
        return refused
    terms = expression.term_count
    return Selector(
        matches=_judge(expression),
        judged_max=JUDGED_MAX // max(1, terms // CHEAP_TERMS),
        judged_bytes_max=min(Selector().judged_bytes_max, PARTS_BYTES_MAX // terms),
    )


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
