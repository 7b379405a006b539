"""How log lines look and where they go; nothing else configures logging."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

import msgspec

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
MESSAGE_CHARACTERS_MAX: Final = 4_000

#: what would let a peer's text begin a line of its own, or drive a terminal
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class _TextLines(logging.Formatter):
    """One line per record, whatever text of a peer's is in it; only tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if len(text) > MESSAGE_CHARACTERS_MAX:
            text = f"{text[:MESSAGE_CHARACTERS_MAX]}... ({len(text)} characters)"
        if not text.isprintable():
            text = text.translate(_CONTROLS)
        record.message = text
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """One JSON object per line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def setup_logging(level: str = "INFO", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Send every logger's lines of `level` and above to `stream` (stderr), and only there."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_JsonLines() if json else _TextLines(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class OncePer:
    """True at most once in so many seconds: keeps a misbehaving peer from filling the log.

    suppressed   how many times it said False since it last said True
    """

    __slots__ = ("_monotonic", "_next", "_seconds", "suppressed")

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._next = float("-inf")
        self.suppressed = 0

    def __call__(self) -> bool:
        now = self._monotonic()
        if now < self._next:
            self.suppressed += 1
            return False
        self._next = now + self._seconds
        return True

    def warning(self, log: logging.Logger, text: str, *values: object) -> None:
        """log.warning(text, *values), unless one was written within the last seconds."""
        if self():
            log.warning(text + " suppressed=%d", *values, self.suppressed)
            self.suppressed = 0


def once_per(seconds: float) -> OncePer:
    """A limiter for one kind of line: `if odd(): log.warning(...)`, or `odd.warning(log, ...)`."""
    return OncePer(seconds)
