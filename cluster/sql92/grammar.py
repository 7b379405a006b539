"""From an expression's text to a function of a message's properties.

The grammar, lowest binding first; words in any case:

    either     := both { OR both }
    both       := equality { AND equality }
    equality   := comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison := unary { (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text {, text} )
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary      := (+ | - | NOT) unary | literal | property | ( either )

Source: RocketMQ's SelectorParser.jj, whose parser of 5.3.3 tests/compat/test_java_filters.py holds this one against.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tandemmq.cluster.sql92 import terms
from tandemmq.cluster.sql92.numerals import (
    INT_MAX,
    LONG_MAX,
    NoNumber,
    java_double,
    java_integer,
)
from tandemmq.cluster.sql92.terms import Kind, NotAllowed, Properties, Term, Value
from tandemmq.cluster.sql92.tokens import (
    FLOAT,
    INTEGER,
    TEXT,
    WORD,
    ExpressionRefused,
    Tokens,
)

#: parts within one another: each costs frames of Python's stack, here and when a message is judged
DEPTH_MAX: Final = 50
#: parts in all: each costs some 0.1 us for each message that is judged
TERMS_MAX: Final = 512

_SIGNS: Final = (">", ">=", "<", "<=")
_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_CONSTANTS: Final[dict[str, tuple[Value, Kind]]] = {
    "TRUE": (True, Kind.TRUTH),
    "FALSE": (False, Kind.TRUTH),
    "NULL": (None, Kind.NULL),
}


class Expression:
    """A filter: whether a message has the wanted properties.

    term_count  parts that it is made of, which is what a judgement costs
    names       of the properties that it looks at
    """

    __slots__ = ("_evaluate", "names", "term_count")

    def __init__(self, root: Term, term_count: int, names: Iterable[str]) -> None:
        self.term_count = term_count
        self.names = tuple(names)
        self._evaluate = root.evaluate

    def evaluate(self, properties: Properties) -> Value:
        """True, False, or None for unknown. Raises ValueError where RocketMQ fails to compare."""
        return self._evaluate(properties)

    def matches(self, properties: Properties) -> bool:
        """Whether it is true of a message; what cannot be compared is not."""
        try:
            return self._evaluate(properties) is True
        except (NoNumber, terms.NotComparable):
            return False


def compile_expression(text: str) -> Expression:
    """The filter that a text stands for. Raises ExpressionRefused, which says where and why."""
    tokens = Tokens(text)
    parser = _Parser(tokens)
    try:
        root = terms.condition(parser.either(DEPTH_MAX))
    except (NotAllowed, NoNumber) as problem:
        raise ExpressionRefused(tokens.taken_position, str(problem)) from None
    return Expression(root, parser.term_count, parser.names)


class _Parser:
    """Recursive descent. `room`: how many parentheses and signs may still be opened."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.term_count = 0
        self.names: dict[str, None] = {}

    def either(self, room: int) -> Term:
        left = self._both(room)
        if self._tokens.next.kind != "OR":
            return left
        found = [terms.condition(left)]
        while self._tokens.accept("OR"):
            found.append(terms.condition(self._both(room)))
        return self._made(terms.either(found))

    def _both(self, room: int) -> Term:
        left = self._equality(room)
        if self._tokens.next.kind != "AND":
            return left
        found = [terms.condition(left)]
        while self._tokens.accept("AND"):
            found.append(terms.condition(self._equality(room)))
        return self._made(terms.both(found))

    def _equality(self, room: int) -> Term:
        tokens = self._tokens
        left = self._comparison(room)
        while True:
            if tokens.accept("="):
                left = terms.equal(left, self._comparison(room))
            elif tokens.accept("<>"):
                left = terms.negation(terms.equal(left, self._comparison(room)))
            elif tokens.accept("IS"):
                negated = tokens.accept("NOT")
                tokens.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = terms.negation(terms.is_null(left)) if negated else terms.is_null(left)
            else:
                return left
            self._made(left)

    def _comparison(self, room: int) -> Term:
        tokens = self._tokens
        left = self._unary(room)
        while True:
            sign = tokens.next.kind
            if sign in _SIGNS:
                tokens.take()
                left = self._made(terms.order(left, sign, self._unary(room)))
                continue
            wanted = not tokens.accept("NOT")
            word = tokens.next.kind
            if word in _SEARCHES:
                tokens.take()
                left = terms.search(left, word, self._text(), wanted)
            elif tokens.accept("BETWEEN"):
                low = self._unary(room)
                tokens.expect("AND", "AND")
                high = self._unary(room)
                between = terms.between if wanted else terms.not_between
                left = between(left, low, high)
            elif tokens.accept("IN"):
                left = terms.one_of(left, self._texts(), wanted)
            elif wanted:
                return left
            else:
                raise tokens.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            self._made(left)

    def _unary(self, room: int) -> Term:
        tokens = self._tokens
        if not room:
            raise ExpressionRefused(
                tokens.next.position, f"more than {DEPTH_MAX} parts lie within one another"
            )
        if tokens.accept("+"):
            return self._unary(room - 1)
        if tokens.accept("-"):
            return self._made(terms.minus(self._unary(room - 1)))
        if tokens.accept("NOT"):
            return self._made(terms.negation(self._unary(room - 1)))
        if tokens.accept("("):
            inner = self.either(room - 1)
            tokens.expect(")", "AND, OR, a comparison or )")
            return inner
        return self._made(self._leaf())

    def _leaf(self) -> Term:
        tokens = self._tokens
        kind, text, position = tokens.next
        if kind in _CONSTANTS:
            tokens.take()
            return terms.literal(*_CONSTANTS[kind])
        if kind == WORD:
            tokens.take()
            self.names[text] = None
            return terms.variable(text)
        if kind == TEXT:
            return terms.literal(self._text(), Kind.TEXT)
        if kind == INTEGER:
            tokens.take()
            whole = java_integer(text.rstrip("lL"), 0, LONG_MAX)
            return terms.literal(whole, Kind.INT if whole <= INT_MAX else Kind.LONG)
        if kind == FLOAT:
            number = java_double(text)
            if number in (0.0, math.inf):  # RocketMQ means to refuse what a double cannot hold
                raise ExpressionRefused(
                    position, f"{text[:40]} is zero, or beyond a double's range"
                )
            tokens.take()
            return terms.literal(number, Kind.DOUBLE)
        raise tokens.unexpected("a property, a number, a text or (")

    def _texts(self) -> list[str]:
        tokens = self._tokens
        tokens.expect("(", "(")
        found = [self._text()]
        while tokens.accept(","):
            found.append(self._text())
        tokens.expect(")", ", or )")
        return found

    def _text(self) -> str:
        written = self._tokens.expect(TEXT, "a text in single quotes").text
        return written[1:-1].replace("''", "'")

    def _made(self, term: Term) -> Term:
        self.term_count += 1
        if term.depth > DEPTH_MAX or self.term_count > TERMS_MAX:
            raise NotAllowed(
                f"more than {DEPTH_MAX} parts lie within one another, or more than {TERMS_MAX} side by side"
            )
        return term
