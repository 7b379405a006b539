"""An expression's words, read one at a time: what stands behind a whole expression is never looked at, as in RocketMQ.

Source: RocketMQ's SelectorParser.jj.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: the most that one expression may be long: a hundred times what people write
CHARACTERS_MAX: Final = 16_384

KEYWORDS: Final = frozenset(
    (
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    )
)

WORD: Final = "name"
INTEGER: Final = "integer"
FLOAT: Final = "number"
TEXT: Final = "text"
END: Final = "end"

#: a comment of one line counts only with its line end, a comment in a comment not at all
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*(?:[^*]|\*(?!/))*\*/)*")
_TOKEN: Final = re.compile(
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<number>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<text>'(?:''|[^'])*')"
    r"|(?P<symbol><>|>=|<=|[=<>(),+-])"
)


class ExpressionRefused(ValueError):
    """An expression that cannot be a filter. position: characters before the place, 0-based."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at character {position + 1}: {reason}")
        self.position = position
        self.reason = reason


class Token(NamedTuple):
    """kind: WORD, INTEGER, FLOAT, TEXT, END, or a keyword or symbol itself. text: as it is written."""

    kind: str
    text: str
    position: int


class Tokens:
    """The words of one expression; `next` is the one that is looked at. Raises ExpressionRefused."""

    def __init__(self, expression: str) -> None:
        if len(expression) > CHARACTERS_MAX:
            raise ExpressionRefused(CHARACTERS_MAX, f"it has more than {CHARACTERS_MAX} characters")
        self._expression = expression
        self._position = 0
        self.taken_position = 0  # of the last word that was taken
        self.next = self._read()

    def take(self) -> Token:
        """The next word; the one behind it is read, and refused where there is none."""
        token = self.next
        self.taken_position = token.position
        self.next = self._read()
        return token

    def accept(self, kind: str) -> bool:
        """Take the next word if it is of this kind."""
        if self.next.kind != kind:
            return False
        self.take()
        return True

    def expect(self, kind: str, what: str) -> Token:
        """Take the next word, which must be of this kind."""
        if self.next.kind != kind:
            raise self.unexpected(what)
        return self.take()

    def unexpected(self, what: str) -> ExpressionRefused:
        token = self.next
        found = "the end" if token.kind == END else repr(token.text[:40])
        return ExpressionRefused(token.position, f"expected {what}, found {found}")

    def _read(self) -> Token:
        text = self._expression
        skipped = _SKIPPED.match(text, self._position)
        assert skipped is not None  # it matches the empty text
        at = skipped.end()
        if at == len(text):
            self._position = at
            return Token(END, "", at)
        found = _TOKEN.match(text, at)
        if found is None:
            raise ExpressionRefused(at, f"{text[at : at + 10]!r} begins no word")
        self._position = found.end()
        kind, word = found.lastgroup, found[0]
        if kind == "symbol":
            return Token(word, word, at)
        if kind == WORD and word.upper() in KEYWORDS:
            return Token(word.upper(), word, at)
        assert kind is not None  # a match has one of the groups
        return Token(kind, word, at)
