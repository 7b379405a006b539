"""What an expression's parts evaluate to: one function per part, made once, with RocketMQ's rules and quirks.

Of every part is known what it may be (a number, a text, a truth value) before a message is seen, because properties
are texts: which conversion a comparison needs is chosen when it is made. Any part may be unknown (None).

Source: RocketMQ's ComparisonExpression, LogicExpression, UnaryExpression, ConstantExpression.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.cluster.sql92.numerals import compare_doubles, java_double, java_int, java_long

Properties = Mapping[str, str]
Value = bool | int | float | str | None
Evaluate = Callable[[Properties], Value]
Holds = Callable[[Any, Any], bool]  # one of Python's six comparisons
Test = Callable[[Any, Any], bool]  # of two known values. Raises NotComparable, NoNumber


class NotAllowed(ValueError):
    """Parts that cannot stand together. The grammar says where."""


class NotComparable(ValueError):
    """Two values of a message that RocketMQ fails to compare: the whole expression is not true of it."""


class Kind(enum.Enum):
    """What a part is if it is not unknown. INT and LONG are Java's: a text beside them must fit."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    TEXT = "text"
    TRUTH = "truth"
    NULL = "null"


_NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of an expression.

    evaluate   what it is of one message's properties. Raises NotComparable, NoNumber
    depth      how many parts lie within one another, this one included
    condition  it may stand where a condition is wanted
    constant   its value is `value`, whatever the message
    name       of the property that it is
    """

    evaluate: Evaluate
    kind: Kind
    depth: int = 1
    condition: bool = False
    constant: bool = False
    value: Value = None
    name: str | None = None


# -- leaves ----------------------------------------------------------------------------------------


def literal(value: Value, kind: Kind) -> Term:
    """A number, a text, TRUE, FALSE or NULL."""
    condition = kind in (Kind.TRUTH, Kind.NULL)
    return Term(lambda properties: value, kind, condition=condition, constant=True, value=value)


def variable(name: str) -> Term:
    """A property's text; unknown where the message does not have it."""

    return Term(operator.methodcaller("get", name), Kind.TEXT, name=name)


# -- truth -----------------------------------------------------------------------------------------


def condition(term: Term) -> Term:
    """The part as a condition. A property is one that is never true: its value is a text.

    Raises NotAllowed.
    """
    if term.condition:
        return term
    if term.name is None:
        raise NotAllowed("a condition is needed here, not a value")
    evaluate = term.evaluate
    return _condition(lambda properties: None if evaluate(properties) is None else False, term)


def both(terms: Sequence[Term]) -> Term:
    """AND: false as soon as one is, unknown when one is and none is false."""
    parts = [condition(term).evaluate for term in terms]

    def evaluate(properties: Properties) -> Value:
        answer: Value = True
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            if value is None:
                answer = None
        return answer

    return _condition(evaluate, *terms)


def either(terms: Sequence[Term]) -> Term:
    """OR: true as soon as one is, unknown when one is and none is true."""
    parts = [condition(term).evaluate for term in terms]

    def evaluate(properties: Properties) -> Value:
        answer: Value = False
        for part in parts:
            value = part(properties)
            if value is True:
                return True
            if value is None:
                answer = None
        return answer

    return _condition(evaluate, *terms)


def negation(term: Term) -> Term:
    """NOT: what is unknown stays so."""
    part = condition(term).evaluate

    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else not value

    return _condition(evaluate, term)


def minus(term: Term) -> Term:
    """The negative number. Of anything else it is unknown; so is that of a property, which is a text."""
    part = term.evaluate
    if term.kind in _NUMBERS:
        return Term(lambda properties: -part(properties), term.kind, term.depth + 1)  # type: ignore[operator]

    def evaluate(properties: Properties) -> Value:
        part(properties)  # it may fail, and then so does the whole
        return None

    return Term(evaluate, Kind.NULL, term.depth + 1)


# -- comparisons -----------------------------------------------------------------------------------


def equal(left: Term, right: Term) -> Term:
    """=: two unknowns are equal, an unknown on the left is unknown, one on the right false. Raises NotAllowed."""
    for term in (left, right):
        if term.constant and term.value is None:
            raise NotAllowed("NULL is compared by IS NULL only")
    if left.constant and right.constant and left.condition and not right.condition:
        raise NotAllowed("TRUE and FALSE are not compared with a number or a text")
    test = _test(left.kind, operator.eq, right.kind)
    return _condition(_of_both(left, test, right, missing=False), left, right)


def is_null(term: Term) -> Term:
    """IS NULL: true or false, never unknown."""
    part = term.evaluate
    return _condition(lambda properties: part(properties) is None, term)


_ORDERS: Final[Mapping[str, Holds]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def order(left: Term, sign: str, right: Term) -> Term:
    """>, >=, < and <= of numbers; two texts are read as such. Unknown where a side is. Raises NotAllowed."""
    for term in (left, right):
        if term.condition or (term.constant and term.kind not in _NUMBERS):
            raise NotAllowed(f"only numbers and properties are compared by {sign}")
    holds = _ORDERS[sign]
    texts = left.kind is right.kind is Kind.TEXT
    test = (
        _doubles(java_double, holds, java_double) if texts else _test(left.kind, holds, right.kind)
    )
    return _condition(_of_both(left, test, right, missing=None), left, right)


def _of_both(left: Term, test: Test, right: Term, *, missing: bool | None) -> Evaluate:
    """What a comparison is of one message. missing: its value where only the left side is known; where equality is
    asked (False), two unknown sides are equal."""
    left_value, right_value, constant = left.evaluate, right.evaluate, right.value

    def evaluate_beside_constant(properties: Properties) -> Value:
        one = left_value(properties)
        return None if one is None else test(one, constant)

    def evaluate(properties: Properties) -> Value:
        one = left_value(properties)
        if one is None and missing is None:
            return None  # RocketMQ does not look at the right side then, which may fail
        other = right_value(properties)
        if one is None:
            return True if other is None else None
        return missing if other is None else test(one, other)

    return evaluate if constant is None else evaluate_beside_constant


def between(term: Term, low: Term, high: Term) -> Term:
    """Both ends included. Raises NotAllowed, also for two constants of which the first is greater."""
    found = both((order(term, ">=", low), order(term, "<=", high)))
    nothing = _test(high.kind, operator.lt, low.kind)
    if low.constant and high.constant and nothing(high.value, low.value):
        raise NotAllowed(f"BETWEEN {low.value} AND {high.value} contains nothing")
    return found


def not_between(term: Term, low: Term, high: Term) -> Term:
    """Outside of both ends. Raises NotAllowed."""
    return either((order(term, "<", low), order(term, ">", high)))


def one_of(term: Term, texts: Collection[str], wanted: bool) -> Term:
    """IN, and NOT IN where `wanted` is False. Raises NotAllowed."""
    if term.name is None:
        raise NotAllowed("only a property is looked for by IN")
    name, listed = term.name, frozenset(texts)

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in listed) is wanted

    return _condition(evaluate, term)


_FINDS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
#: in a longer value a longer text is looked for by a regular expression: `in` takes a step for each pair of characters
#: at worst
SHORT_CHARACTERS_MAX: Final = 16
SHORT_VALUE_CHARACTERS_MAX: Final = 256


def _finder(word: str, text: str) -> Callable[[str], object]:
    finds = _FINDS[word]
    if word != "CONTAINS" or len(text) <= SHORT_CHARACTERS_MAX:
        return lambda value: finds(value, text)
    pattern: re.Pattern[str] | None = None

    def find(value: str) -> object:
        nonlocal pattern
        if len(value) <= SHORT_VALUE_CHARACTERS_MAX:
            return text in value
        if (
            pattern is None
        ):  # made when wanted: it takes longer than all else that a filter is made of
            pattern = re.compile(re.escape(text))
        return pattern.search(value)

    return find


def search(term: Term, word: str, text: str, wanted: bool) -> Term:
    """CONTAINS, STARTSWITH and ENDSWITH, and their NOT where `wanted` is False.

    False, and so is its NOT, where there is no text to look in or for.
    """
    if not text:
        return _condition(lambda properties: False, term)
    part, find = term.evaluate, _finder(word, text)

    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return isinstance(value, str) and bool(find(value)) is wanted

    return _condition(evaluate, term)


# -- conversions -----------------------------------------------------------------------------------

_READERS: Final[Mapping[Kind, Callable[[str], Any]]] = {
    Kind.INT: java_int,
    Kind.LONG: java_long,
    Kind.DOUBLE: java_double,
    Kind.TRUTH: lambda text: text.lower() == "true",
}


def _test(left: Kind, holds: Holds, right: Kind) -> Test:
    """How RocketMQ compares two known values of these kinds."""
    if left is Kind.TRUTH and right is Kind.TEXT:
        return _fail
    if (left is Kind.TRUTH or right is Kind.TRUTH) and left is not right and left is not Kind.TEXT:
        never = holds(-1, 0)  # "less", whatever they are
        return lambda one, other: never
    read_left = _READERS.get(right) if left is Kind.TEXT else None
    read_right = _READERS.get(left) if right is Kind.TEXT else None
    if Kind.DOUBLE in (left, right):
        return _doubles(read_left or float, holds, read_right or float)
    if read_left is not None:
        return lambda one, other: holds(read_left(one), other)
    if read_right is not None:
        return lambda one, other: holds(one, read_right(other))
    return holds


def _doubles(
    read_left: Callable[[Any], float], holds: Holds, read_right: Callable[[Any], float]
) -> Test:
    return lambda one, other: holds(compare_doubles(read_left(one), read_right(other)), 0)


def _fail(one: Value, other: Value) -> bool:
    raise NotComparable("TRUE or FALSE on the left of a text")


def _condition(evaluate: Evaluate, *parts: Term) -> Term:
    return Term(evaluate, Kind.TRUTH, 1 + max(part.depth for part in parts), condition=True)
