"""What a person must look at, said once and not with every try."""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.storage import Clock

log = logging.getLogger(__name__)

AGAIN_MS: Final = 600_000  # what still holds is said again
CHANGED_MS: Final = 30_000  # and sooner when it is something else by now


class Alarms:
    """One reason per thing that is wrong; GET_BROKER_RUNTIME_INFO and tandem_alarms show them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[str, tuple[str, int]] = {}  # about what -> (reason, when it was logged)

    def raise_(self, about: str, reason: str) -> None:
        now_ms = self._clock.monotonic_ms()
        before, said_ms = self._said.get(about, ("", now_ms - AGAIN_MS))
        if now_ms - said_ms >= (AGAIN_MS if before == reason else CHANGED_MS):
            said_ms = now_ms
            log.error("a person must act why=%s", reason)
        self._said[about] = (reason, said_ms)

    def clear(self, about: str) -> None:
        if self._said.pop(about, None) is not None:
            log.info("no longer wrong about=%s", about)

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self._said.values()]
