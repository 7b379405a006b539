"""Text for people: tables, and colours and refreshing only where a terminal shows them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_COLOUR_CODE = re.compile(r"\x1b\[\d+m")
_CLEAR = "\x1b[H\x1b[2J"


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in a colour when the stream is a terminal and NO_COLOR is not set."""
    out = sys.stdout if stream is None else stream
    if not out.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell, two blanks between them."""
    cells = [list(head), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(_width(row[place]) for row in cells) for place in range(len(head))]
    lines = [
        "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([coloured(lines[0], "bold"), *lines[1:]])


def _width(cell: str) -> int:
    """Columns that the text takes on the screen, its colours none."""
    return len(_COLOUR_CODE.sub("", cell))


def refresh(text: str) -> None:
    """Show text in place of the last one on a terminal; elsewhere below it."""
    print((_CLEAR if sys.stdout.isatty() else "") + text, flush=True)


class Progress:
    """One line on stderr that is written over; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = 0
        self._live = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Write over the line."""
        if self._live:
            print(f"\r{text.ljust(self._shown)}", end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._live and self._shown:
            print(f"\r{' ' * self._shown}\r", end="", file=sys.stderr, flush=True)
            self._shown = 0
