"""Which member of its group a consumer reads from next, and what a slave never says to one.

Source: RocketMQ's PullMessageProcessor. RocketMQ estimates what is in memory; here the kernel is
asked, and the estimate stands in for it where it does not tell.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from tandemmq.cluster.broker.errors import BrokerError
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.standing import Standing, slave_refusal
from tandemmq.cluster.broker.tables.groups import GroupConfig
from tandemmq.storage import Clock, GetResult, GetStatus, MessageStore, PageCache, hot_bytes

#: a reader so near the log's end is a reader of the master: the kernel keeps what was just written
NEAR_BYTES: Final = 64 << 20
#: the log is asked about in pieces of this size, so far ahead of the reader: further than any
#: read-ahead of the kernel, so what the reader's own last read pulled in does not count
PIECE_BYTES: Final = 4 << 20
AHEAD_BYTES: Final = 32 << 20
RESIDENT_MIN: Final = 0.5  # of a piece; below, reading on here means waiting for the disk
ASK_AGAIN_MS: Final = 1_000
PIECES_MAX: Final = 1_024
#: a reader that came back is not sent away again for so long, whatever brought it back
STAY_MS: Final = 60_000
#: a reader that does not find its place anywhere is held here: longer than a pull is held
LOST_MS: Final = 35_000
REMEMBERED_MAX: Final = 10_000

#: the reader is somewhere where this log has nothing
_ELSEWHERE: Final = frozenset(
    {
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_TOO_SMALL,
    }
)


class Recent:
    """What happened less than keep_ms ago; at most REMEMBERED_MAX of them, the oldest go first."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._noted: dict[Hashable, int] = {}  # in the order of their times

    def __contains__(self, key: Hashable) -> bool:
        return key in self._noted

    def forget_old(self, now_ms: int) -> None:
        noted = self._noted
        while noted:
            oldest = next(iter(noted))
            if now_ms - noted[oldest] < self._keep_ms and len(noted) <= REMEMBERED_MAX:
                return
            del noted[oldest]

    def note(self, key: Hashable, now_ms: int) -> bool:
        """Note it as of now; whether it was noted before."""
        self.forget_old(now_ms)
        known = self._noted.pop(key, None) is not None
        self._noted[key] = now_ms
        return known


class SlaveReads:
    """The rule of redirection. Counts what it did: sent_away, lost.

    near_bytes  a reader that is at most so far behind the log's end stays where it is
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        standing: Standing,
        clock: Clock,
        *,
        near_bytes: int = NEAR_BYTES,
        page_cache: PageCache | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._standing = standing
        self._clock = clock
        self._hot_bytes = hot_bytes(store.config)
        self.near_bytes = min(near_bytes, self._hot_bytes)
        self._page_cache = page_cache or PageCache()
        self._pieces: dict[int, tuple[int, float | None]] = {}
        self._sent = Recent(STAY_MS)
        self._lost = Recent(LOST_MS)
        self.sent_away = 0
        self.lost = 0

    def refusal(self) -> BrokerError | None:
        """Why no pull is served here at all; None when they are."""
        if not self._config.slave_read_enabled and self._is_slave:
            return slave_refusal()
        return None

    @property
    def _is_slave(self) -> bool:
        return self._standing.role is Role.SLAVE

    # -- positions that a slave does not have ------------------------------------------

    def stays(self, status: GetStatus) -> bool:
        """Whether a consumer keeps its position though this log has nothing there.

        A slave may be behind its master, or have begun later: it never moves a consumer (code 21).
        """
        return status in _ELSEWHERE and self._is_slave and not self._config.offset_checked_in_slave

    @property
    def may_lack_the_end(self) -> bool:
        """Whether this was the master, and readers from beyond its end may come from one that it has not heard of."""
        return not self._is_slave and not self._standing.unsucceeded

    def waits(self, reader: Hashable, offset: int) -> bool:
        """Whether a consumer that must look elsewhere waits here instead.

        It was sent to the master a moment ago and came back: there is none, or none that it can
        reach. Sent again at once, it would come again at once.
        """
        self.lost += 1
        return self._lost.note((reader, offset), self._clock.monotonic_ms())

    # -- where to read next ------------------------------------------------------------

    def next_broker(self, group: GroupConfig, reader: Hashable, found: GetResult) -> int:
        """The id of the broker that the reader should ask next. reader: who it is, and its queue."""
        if not self._config.slave_read_enabled:
            return 0
        if self._reads_from_disk(reader, found):
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _reads_from_disk(self, reader: Hashable, found: GetResult) -> bool:
        """Whether this reader belongs on a slave."""
        offset = found.last_physical
        if offset < 0:
            return False  # nothing was looked at
        behind = self._store.end - offset
        if behind <= self.near_bytes:
            return False
        if self._is_slave:
            # Not whether *our* pages are warm: its own reads warm them, and it would be sent to and
            # fro. It stays until the master must have warm pages for it.
            return behind > (self.near_bytes if self._tells else self._hot_bytes)
        if self._cold(offset, behind) and self._standing.readable_elsewhere(offset):
            return self._send_away(reader)
        return False

    @property
    def _tells(self) -> bool:
        return self._hot_bytes > 0 and self._page_cache.tells

    def _cold(self, offset: int, behind: int) -> bool:
        resident = self._resident(offset) if self._hot_bytes else None
        return behind > self._hot_bytes if resident is None else resident < RESIDENT_MIN

    def _send_away(self, reader: Hashable) -> bool:
        now_ms = self._clock.monotonic_ms()
        self._sent.forget_old(now_ms)
        if reader in self._sent:
            return False  # it was sent and is here again: the slave did not want it
        self._sent.note(reader, now_ms)
        self.sent_away += 1
        return True

    def _resident(self, offset: int) -> float | None:
        """The part of the log ahead of `offset` that is in memory; None: not told."""
        now_ms = self._clock.monotonic_ms()
        ahead = min(offset + AHEAD_BYTES, self._store.end - 1)
        piece = ahead - ahead % PIECE_BYTES
        known = self._pieces.get(piece)
        if known is not None and now_ms - known[0] < ASK_AGAIN_MS:
            return known[1]
        file = self._store.file_range(piece, PIECE_BYTES)
        if file is None:
            return None
        resident = self._page_cache.resident(file.path, file.position, file.size)
        if len(self._pieces) >= PIECES_MAX:
            self._pieces.clear()
        self._pieces[piece] = (now_ms, resident)
        return resident
