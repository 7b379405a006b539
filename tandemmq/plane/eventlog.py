"""The last events with their ids, and who waits for the next: nobody slow holds up others or fills the memory. Core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tandemmq.plane.changes import Event

KEPT_MAX: Final = 1_000  # for who was away for a moment
WAITING_MAX: Final = 256  # for one reader; then it begins anew


def encoded(event: Event, number: str) -> bytes:
    """As server-sent events are written. Source: the HTML standard, 9.2."""
    data = msgspec.json.encode(event.data)  # one line: JSON has no raw line ends
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (number.encode(), event.name.encode(), data)


class Reader:
    """One who listens. anew: it must be told everything, for it was too slow for what changed.

    wake   called when there is something for it
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[bytes] = deque()
        self.anew = False

    def put(self, event: bytes) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.clear()
            self.anew = True
        if not self.anew:
            self._waiting.append(event)
        self._wake()

    def take(self) -> list[bytes]:
        """All that waits, once."""
        found = list(self._waiting)
        self._waiting.clear()
        return found


class EventLog:
    """Events since `name` was given: ids of an earlier log are unknown here.

    name   of letters and digits, unlike that of any other log
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._kept: deque[bytes] = deque(maxlen=KEPT_MAX)
        self._readers: set[Reader] = set()

    @property
    def last_id(self) -> str:
        return f"{self._name}-{self._count}"

    @property
    def readers(self) -> int:
        return len(self._readers)

    def add(self, event: Event) -> None:
        """Everybody who listens gets it."""
        self._count += 1
        line = encoded(event, self.last_id)
        self._kept.append(line)
        for reader in self._readers:
            reader.put(line)

    def join(self, reader: Reader, last_id: str | None) -> None:
        """From now on it gets what comes; first what came after last_id, if that is known, else everything anew."""
        missed = None if last_id is None else self._after(last_id)
        self._readers.add(reader)
        if missed is None:
            reader.anew = True
        else:
            for line in missed:
                reader.put(line)

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def _after(self, last_id: str) -> Iterator[bytes] | None:
        name, _, number = last_id.rpartition("-")
        if name != self._name or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        missed = self._count - int(number)
        if not 0 <= missed <= min(len(self._kept), WAITING_MAX):
            return None
        return iter(list(self._kept)[len(self._kept) - missed :])
