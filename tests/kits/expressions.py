"""Random SQL92 filters and properties to judge by them, legal ones and others, from a seed."""

from __future__ import annotations

import random
from typing import Final

NAMES: Final = ("a", "b", "$c", "missing", "TAGS", "In_", "falsey")
TEXTS: Final = (
    "'x'", "''", "'it''s'", "'abc'", "'3'", "'-7.5'", "'true'", "'värde'", "'b'", "'NaN'", "' 5'", "'--'", "'日本'",
)  # fmt: skip
NUMBERS: Final = (
    "0", "1", "3", "5", "10", "007", "2147483647", "2147483648", "9223372036854775807", "5l",
    "5L", "3000000000L", "1.5", "3.", ".5", "5e0", "5.E1", "1e-320", "00.5", "3.0", "1.7976931348623157e308",
    "4.9e-324", "9007199254740993",
)  # fmt: skip
NO_NUMBERS: Final = ("9223372036854775808", "0L", "1e400", "0.0", ".0", "5e", "2e-324")
VALUES: Final = (
    "x", "abc", "it's", "3", "5", "10", "-7.5", "1.5", "0", "-0", "-0.0", "0.0", "+5", " 5", "5 ", "true", "TRUE",
    "false", "NaN", "-NaN", "Infinity", "-Infinity", "1e400", "0x1p3", "0X.8P-2f", "5d", "5f", "5L", "5_0", "٣",
    "２", "𝟓", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "1.", ".5", ".", "1e", "1e5", "inf", "nan", "värde", "日本語", "\t5\x1f", "\xa05", "-",
    "9007199254740993", "9007199254740992.0", "000000000000000000000000005", "0x1p99999", "0x0p99999", "1e-400", "0x5",
    "3000000000", "\x005", "1E+2", "+-5", "5e0", "3.0",
)  # fmt: skip
GARBAGE: Final = (
    "~", "!=", '"x"', "'", "/*", "*/", "--", "-- c\n", "/* c */", "/***/", "(", ")", ",", ";", "NOT", "IS", "LIKE 'x'",
    "ESCAPE", "%", "=", "<>", "NULL", "é", "\x00", "\x0b", "\xa0", "ı", "\u212a", "x", "5", "AND", "1 + 1", "a.b", "@",
    "<", "==", "BETWEEN", "IN", "IN ()", "IN (5)", "#", "\\", "::", "?",
)  # fmt: skip
BLANKS: Final = (
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\t",
    "\f",
    "\r\n",
    " /* c */ ",
    " -- c\n",
    "/*'*/",
)


class Expressions:
    """Draws from one `random.Random`, so that a seed says all."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def expression(self) -> str:
        """Mostly one that is allowed; every third is damaged in one or two places."""
        text = self._either(self._random.choice((1, 2, 2, 3, 4)))
        for _ in range(self._random.choice((0, 0, 0, 0, 1, 2))):
            text = self._damaged(text)
        return text

    def properties(self) -> dict[str, str]:
        pick = self._random
        return {
            name: pick.choice(VALUES)
            for name in NAMES
            if name != "missing" and pick.random() < 0.75
        }

    def _damaged(self, text: str) -> str:
        pick, at = self._random, self._random.randrange(len(text) + 1)
        match pick.randrange(4):
            case 0:
                return text[:at] + text[at + 1 :]
            case 1:
                return text[:at]
            case 2:
                return text[:at] + " " + pick.choice(GARBAGE) + " " + text[at:]
            case _:
                return text + pick.choice(BLANKS) + pick.choice(GARBAGE)

    def _keyword(self, word: str) -> str:
        written = self._random.choice((word, word, word.lower(), word.title()))
        return self._blank() + written + self._blank()

    def _blank(self) -> str:
        return self._random.choice(BLANKS)

    def _either(self, depth: int) -> str:
        pick = self._random
        count = pick.choice((1, 1, 2, 3)) if depth else 1
        word = pick.choice(("AND", "OR"))
        return self._keyword(word).join(self._condition(depth) for _ in range(count))

    def _condition(self, depth: int) -> str:
        pick = self._random
        left = self._operand(depth)
        match pick.randrange(12):
            case 0 | 1 | 2:
                sign = pick.choice(("=", "<>", ">", ">=", "<", "<="))
                return (
                    left
                    + pick.choice(("", " "))
                    + sign
                    + pick.choice(("", " "))
                    + self._operand(depth)
                )
            case 3 | 4:
                sign = pick.choice(("=", "<>", ">", ">=", "<", "<="))
                return f"{pick.choice(NAMES)} {sign} {self._number()}"
            case 5:
                return (
                    left
                    + self._keyword("IS")
                    + pick.choice(("", self._keyword("NOT")))
                    + self._keyword("NULL")
                )
            case 6 | 7:
                between = pick.choice(("", self._keyword("NOT"))) + self._keyword("BETWEEN")
                return left + between + self._bound() + self._keyword("AND") + self._bound()
            case 8:
                texts = ",".join(pick.choice(TEXTS) for _ in range(pick.choice((1, 2, 6))))
                return (
                    pick.choice((left, "a"))
                    + pick.choice(("", self._keyword("NOT")))
                    + f" IN ({texts})"
                )
            case 9 | 10:
                word = self._keyword(pick.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
                return left + pick.choice(("", self._keyword("NOT"))) + word + pick.choice(TEXTS)
            case _:
                return left if pick.random() < 0.3 else pick.choice(NAMES)

    def _bound(self) -> str:
        return self._operand(0) if self._random.random() < 0.3 else self._number()

    def _number(self) -> str:
        drawn = NO_NUMBERS if self._random.random() < 0.04 else NUMBERS
        return self._random.choice(("", "", "-", "+", "- ")) + self._random.choice(drawn)

    def _operand(self, depth: int) -> str:
        pick = self._random
        match pick.randrange(18):
            case 0:
                return pick.choice(("TRUE", "false", "NULL"))
            case 1:
                return pick.choice(TEXTS)
            case 2 | 3:
                return self._number()
            case 4 if depth:
                return "(" + self._either(depth - 1) + ")"
            case 5 if depth:
                return self._keyword("NOT") + self._condition(depth - 1)
            case 6 if depth:
                return pick.choice(("+", "-", "- ", "NOT ")) + self._operand(depth - 1)
            case 7 if depth:
                return "(" + self._operand(depth - 1) + ")"
            case _:
                return pick.choice(NAMES)
