"""What long work says of itself on stderr: one line that changes on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

LINE_EVERY_S: Final = 10.0
SCREEN_EVERY_S: Final = 0.2

Report = Callable[[int], None]  # so many more bytes are done


def silent(count: int) -> None:
    """Says nothing."""


class Progress:
    """Bytes of one piece of work."""

    def __init__(
        self,
        what: str,
        total_bytes: int,
        out: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total = what, total_bytes
        self._out = out or sys.stderr
        self._now_s = now_s
        self._began_s = self._told_s = now_s()
        self._done = 0
        self._screen = self._out.isatty()
        self._shown = False

    def __call__(self, count: int) -> None:
        self._done += count
        now_s = self._now_s()
        if now_s - self._told_s >= (SCREEN_EVERY_S if self._screen else LINE_EVERY_S):
            self._told_s = now_s
            self._tell(now_s)

    def end(self) -> None:
        """Leave the screen's line."""
        if self._screen and self._shown:
            print(file=self._out)

    def _tell(self, now_s: float) -> None:
        rate = self._done / max(now_s - self._began_s, 1e-3)
        left_s = (self._total - self._done) / rate if rate else 0.0
        percent = 100 * self._done // self._total if self._total else 100
        text = (
            f"{self._what}: {size_text(self._done)} of {size_text(self._total)}, {percent} %,"
            f" {size_text(int(rate))}/s, {left_s:.0f} s left"
        )
        print(f"\r{text:<78}" if self._screen else text, end="" if self._screen else "\n",
              file=self._out, flush=True)  # fmt: skip
        self._shown = True


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
