"""How log lines look and where they go; nothing else configures logging."""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Final, TextIO

import msgspec

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
JOURNAL_FORMAT: Final = "%(levelname)-7s %(name)s %(message)s"  # the journal has the time
MESSAGE_CHARACTERS_MAX: Final = 4_000
FILE_BYTES: Final = 64 << 20  # then the next file is begun
FILES: Final = 8  # that are kept beside the one that is written
KEY_SILENT_MS: Final = 60_000  # a client is named again for the same request when so long is over
KEYS_MAX: Final = 100  # named in that time; of what comes above only the number is said

#: what would let a peer's text begin a line of its own, or drive a terminal
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
#: each place of a value in a line's phrase, with its key where it has one
_PLACES: Final = re.compile(r"(?:([A-Za-z_]\w*)=)?%(?:(%)|[-#0 +]*[\d.]*[a-zA-Z])")
_PRIORITIES: Final = (  # of syslog, as the journal reads them in front of a line
    (logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6),
)  # fmt: skip


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


class _JournalLines(_TextLines):
    """The same for systemd's journal, which takes each line's priority from its head."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class _JsonLines(logging.Formatter):
    """One JSON object per line, for log collectors.

    event   the constant phrase of the line, the same for all its values: what to count and to search by
    fields  its key=value pairs, numbers as numbers
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "event": _event(record),
            "fields": dict(_fields(record)),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _event(record: logging.LogRecord) -> str:
    phrase = str(record.msg)
    first = next((each.start() for each in _PLACES.finditer(phrase) if each[2] is None), None)
    return phrase[:first].strip() or phrase


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    values = record.args if isinstance(record.args, tuple) else ()
    places = [each[1] for each in _PLACES.finditer(str(record.msg)) if each[2] is None]
    if len(places) != len(values):
        return  # a line that counts otherwise: its message has everything
    for key, value in zip(places, values, strict=True):
        if key is not None:
            yield key, value if isinstance(value, bool | int | float) else str(value)


def setup_logging(
    level: str = "INFO", *, json: bool = False, stream: TextIO | None = None,
    file: Path | None = None, file_bytes: int = FILE_BYTES, files: int = FILES,
) -> None:  # fmt: skip
    """Send every logger's lines of `level` and above to `stream` (stderr), or to `file`, and only there.

    file  renamed to file.1 when it has file_bytes, which becomes file.2 and so on: so many are kept
    Raises OSError when the file cannot be opened. A disk that is full later costs lines, and nothing else.
    """
    out = stream if stream is not None else sys.stderr
    handler: logging.Handler
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=file_bytes, backupCount=files, encoding="utf-8"
        )
    else:
        handler = logging.StreamHandler(out)
    if json:
        handler.setFormatter(_JsonLines())
    elif file is None and is_journal(out):
        handler.setFormatter(_JournalLines(JOURNAL_FORMAT))
    else:
        handler.setFormatter(_TextLines(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def is_journal(stream: TextIO) -> bool:
    """Whether systemd's journal reads this stream. Source: systemd.exec(5), JOURNAL_STREAM."""
    told = os.environ.get("JOURNAL_STREAM", "")
    if not told:
        return False
    try:
        about = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False  # closed, or no file
    return told == f"{about.st_dev}:{about.st_ino}"


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


class OnceEach:
    """True once for each key in a minute, and for KEYS_MAX of them: names clients, whatever they send.

    suppressed   how many times it said False between the last two times that it said True
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._until_ms = 0
        self._known: set[Hashable] = set()
        self._left_out = 0
        self.suppressed = 0

    def __call__(self, key: Hashable) -> bool:
        now_ms = self._monotonic_ms()
        if now_ms >= self._until_ms:
            self._until_ms = now_ms + KEY_SILENT_MS
            self._known.clear()
        if key in self._known or len(self._known) >= KEYS_MAX:
            self._left_out += 1
            return False
        self._known.add(key)
        self.suppressed, self._left_out = self._left_out, 0
        return True


def once_per(seconds: float) -> OncePer:
    """A limiter for one kind of line: `if odd(): log.warning(...)`, or `odd.warning(log, ...)`."""
    return OncePer(seconds)
