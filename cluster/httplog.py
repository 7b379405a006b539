"""What an HTTP port of ours logs about requests: of what strangers send wrongly one line now and then, without content.

Without this aiohttp logs a traceback for each, with the request's bytes in it: who reaches the port can fill the disk.
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tandemmq.cluster.logs import once_per

ODD_LOG_S: Final = 10
#: what a peer can cause by what it sends, or by going away
THEIRS: Final = (HttpProcessingError, web.RequestPayloadError, ConnectionError)


class _PeersFaults(logging.Filter):
    """Passes one record in ODD_LOG_S seconds of each kind; what peers cause loses traceback and content."""

    def __init__(self) -> None:
        super().__init__()
        self._malformed = once_per(ODD_LOG_S)
        self._failed = once_per(ODD_LOG_S)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, THEIRS):
            return self._failed()  # our bug: once with its traceback is enough
        if not self._malformed():
            return False
        record.msg = "malformed HTTP request refused kind=%s suppressed=%d"
        record.args = (type(error).__name__, self._malformed.suppressed)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._malformed.suppressed = 0
        return True


def http_logger(name: str) -> logging.Logger:
    """For the `logger` of an AppRunner; one for each port, so that none hides another's lines."""
    found = logging.getLogger(f"{__name__}.{name}")
    if not found.filters:
        found.addFilter(_PeersFaults())
    return found
