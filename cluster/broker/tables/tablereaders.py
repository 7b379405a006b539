"""Which slaves have which state of this master's tables: a change that an administrator made is answered when they
have it, as a message of a synchronous master is.

A slave of ours asks for topics and groups again as soon as it has them, naming the state that it has kept; the
master lets it wait until there is another. So the next question for a table says that the last answer arrived. Stock
slaves copy every 10 s and say nothing: nobody waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from tandemmq.cluster.broker.errors import NotMaster
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.logs import once_per
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

HOLD_MS: Final = 3_000  # how long a slave's question waits for a change
SHARED_MS: Final = 3_000  # how long a change waits for slaves
HERE_MS: Final = 10_000  # a slave without a controller that did not ask for so long is not there


class TableReaders:
    """The slaves of ours that follow tables, and what they have.

    standing  whose slaves they are
    files     by request code, the tables that they follow
    """

    def __init__(self, standing: Standing, files: Mapping[int, SavedFile], clock: Clock) -> None:
        self._standing = standing
        self._files = dict(files)
        self._clock = clock
        self._has: dict[int, dict[int, int]] = {}  # broker id -> request code -> generation
        self._lives: dict[int, int] = {}  # broker id -> incarnation of the process that said so
        self._asked_ms: dict[int, int] = {}
        self._noted: list[asyncio.Future[None]] = []
        self._waited = self._waits
        self._deposed_ms = -SHARED_MS
        self._kept_out_ms: dict[
            tuple[int, int], int
        ] = {}  # process -> since when it has the log alone
        self._complaining = once_per(30)
        standing.changes.watch(self._role_changed)
        standing.follows = self.up_to_date

    def _role_changed(self, role: Role) -> None:
        if self._waited and role is Role.SLAVE:
            self._deposed_ms = self._clock.monotonic_ms()
        self._waited = role is Role.SYNC_MASTER
        self._has.clear()
        self._kept_out_ms.clear()
        self._asked_ms.clear()
        self.release_all()

    def release_all(self) -> None:
        """Nobody waits any longer, neither slaves for changes nor changes for slaves."""
        for file in self._files.values():
            file.release()
        self._wake()

    def has(self, reader: int, incarnation: int, code: int, generation: int) -> None:
        """A slave has a state of a table; -1: none that we know."""
        if self._lives.get(reader) != incarnation:
            self._lives[reader] = incarnation
            self._has.pop(reader, None)  # of another process, perhaps on another disk
        self._asked_ms[reader] = self._clock.monotonic_ms()
        self._has.setdefault(reader, {})[code] = generation
        self._wake()

    def up_to_date(self, reader: int, incarnation: int) -> bool:
        """Whether this process has every table as it is now. INV-43: who is to count among those
        that a change waits for has all changes that did not wait for it."""
        now_ms = self._clock.monotonic_ms()
        wanted = {code: file.generation for code, file in self._files.items()}
        if self._lives.get(reader) == incarnation and not self._lacks(reader, wanted):
            self._kept_out_ms.pop((reader, incarnation), None)
            return True
        if now_ms - self._kept_out_ms.setdefault((reader, incarnation), now_ms) >= HERE_MS:
            self._complaining.warning(
                log, "slave has the log but does not copy our tables, so it is not in the set: "
                "can it reach the address that we announce? broker=%d", reader,
            )  # fmt: skip
        return False

    def _lacks(self, reader: int, wanted: Mapping[int, int]) -> bool:
        has = self._has.get(reader, {})
        return any(has.get(code, -1) < generation for code, generation in wanted.items())

    def _wake(self) -> None:
        for waiting in self._noted:
            if not waiting.done():
                waiting.set_result(None)
        self._noted.clear()

    @property
    def _waits(self) -> bool:
        return self._standing.role is Role.SYNC_MASTER

    async def share(self) -> str | None:
        """Wait until the slaves that count have every table as it is now; a remark when some do not.

        INV-43: where sends wait for slaves, so does the answer to a change of topics or groups.
        Raises NotMaster when another master may have been elected without it.
        """
        if not self._waits:
            # The change may be of just before: the master of now was elected without it.
            deposed = self._waited and self._standing.role is Role.SLAVE  # and not told of it yet
            if deposed or self._clock.monotonic_ms() - self._deposed_ms < SHARED_MS:
                raise NotMaster("another broker became the master, it may not have this change")
            return None
        wanted = {code: file.generation for code, file in self._files.items()}
        began_ms = self._clock.monotonic_ms()
        while missing := self._missing(wanted):
            left_ms = began_ms + SHARED_MS - self._clock.monotonic_ms()
            if left_ms <= 0:
                return self._unshared(missing)
            waiting = asyncio.get_running_loop().create_future()
            self._noted.append(waiting)
            await asyncio.wait((waiting,), timeout=left_ms / 1000)
            if not self._waits:
                raise NotMaster("another broker became the master, it may not have this change")
        return None

    def _missing(self, wanted: Mapping[int, int]) -> frozenset[int]:
        members = self._standing.in_sync
        if members is None:
            members = self._here()
        else:
            members -= self._standing.stock_slaves - self._has.keys()
        return frozenset(each for each in members if self._lacks(each, wanted))

    def _here(self) -> frozenset[int]:
        """Slaves that followed tables a moment ago, of a master that has slaves."""
        if not self._standing.slaves():
            return frozenset()
        since_ms = self._clock.monotonic_ms() - HERE_MS
        return frozenset(reader for reader, at_ms in self._asked_ms.items() if at_ms >= since_ms)

    def _unshared(self, missing: frozenset[int]) -> str:
        """They did not take it in time. Raises NotMaster."""
        refused = self._standing.refusal()
        if refused is not None and isinstance(refused.why, NotMaster):
            raise NotMaster("this broker may not be the master any more, the change may be undone")
        names = ",".join(map(str, sorted(missing)))
        log.warning("change of a table is answered though slaves do not have it brokers=%s", names)
        return f"done here, but not known to have reached the slaves {names} within {SHARED_MS} ms"
