"""Text to number as Java reads it: the values of properties are texts, and filters compare them with numbers."""

from __future__ import annotations

import math
import re
from typing import Final

INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1

_INTEGER: Final = re.compile(r"[+-]?\d+")
_LAST_UNIT: Final = "\uffff"  # Java reads UTF-16 units: a digit beyond them is none
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)"
)
_HEX: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+))[pP]([+-]?[0-9]+)[fFdD]?"
)
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what String.trim takes away
_EXPONENT_MAX: Final = 1 << 20  # beyond it a number of 32 KiB is zero or infinite anyway


class NoNumber(ValueError):
    """A text that Java would not read as the number asked for."""


def java_integer(text: str, least: int, greatest: int) -> int:
    """Integer.valueOf and Long.valueOf: a sign and decimal digits of any script, no blanks."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)  # most are like this
    if _INTEGER.fullmatch(text) is None or max(text) > _LAST_UNIT:
        raise NoNumber(f"{text[:40]!r} is not a whole number")
    digits = text.lstrip("+-").lstrip("0")  # Python reads at most 4300 digits
    number = int(digits or "0") if len(digits) < 4_000 else 1 << 64
    if text[0] == "-":
        number = -number
    if not least <= number <= greatest:
        raise NoNumber(f"{text[:40]!r} is beyond {least}..{greatest}")
    return number


def java_int(text: str) -> int:
    """Integer.valueOf: 32 bits."""
    return java_integer(text, INT_MIN, INT_MAX)


def java_long(text: str) -> int:
    """Long.valueOf: 64 bits."""
    return java_integer(text, LONG_MIN, LONG_MAX)


def java_double(text: str) -> float:
    """Double.valueOf: blanks around it, NaN, Infinity, hexadecimal and a trailing f or d are allowed."""
    trimmed = text.strip(_BLANKS)
    found = _DECIMAL.fullmatch(trimmed)
    if found is not None:
        return float(trimmed.rstrip("fFdD") if found[1] else trimmed)
    hexadecimal = _HEX.fullmatch(trimmed)
    if hexadecimal is None:
        raise NoNumber(f"{text[:40]!r} is not a number")
    exponent = max(-_EXPONENT_MAX, min(int(hexadecimal[2][:20]), _EXPONENT_MAX))
    try:
        return float.fromhex(f"{hexadecimal[1]}p{exponent}")
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


def compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: -0.0 is less than 0.0, NaN is the greatest and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(math.copysign(1, left) - math.copysign(1, right))
    return math.isnan(left) - math.isnan(right)
