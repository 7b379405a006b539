"""What a core decides about its own log besides appending: set aside, cut, remember the reigns. Shell.

Each of these is durable when its effect counts as performed; the disk is waited for off the loop's thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Final

from tandemmq.replication.epochs import OFFSET_MAX, Epoch, EpochHistory, encode_epochs, read_epochs
from tandemmq.replication.errors import CorruptEpochFile
from tandemmq.replication.feed import EffectFailed, Feed
from tandemmq.replication.slave import AppendFailed, NoRoom, PersistHistory, SetAside, Truncate
from tandemmq.storage import Cut, MessageStore, jsonfile, make_directory, setaside

log = logging.getLogger(__name__)

CUTTING_SUFFIX: Final = ".cutting"
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class EpochFile:
    """epochFileCheckpoint, and its previous generation beside it. Source: RocketMQ's EpochFileCache.

    epochFileCheckpoint.cutting is there from before the log is cut until the history is known to agree, where it does
    not yet: its one line says where the log is to end. So a history that reaches beyond its log tells a cut from a log
    that was lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cutting = path.with_name(path.name + CUTTING_SUFFIX)

    def load(self, log_end: int, *, same_boot: bool = True) -> EpochHistory:
        """Whose reigns a log that ends at log_end has seen. Blocking.

        same_boot  False after a power cut: then a reign that had not begun to write is forgotten,
                   as it was when nothing of it had become durable
        A history that reaches beyond the log, which a crash in the middle of a cut leaves, is
        brought in line on the disk at once: other bytes will be written there.
        Raises CorruptEpochFile, OSError.
        """
        found = self._read()
        kept = found.cut(log_end + 1 if same_boot else log_end)
        if kept is not found:
            log.warning(
                "epochs behind the log's end forgotten end=%d last=%d kept=%d",
                log_end, found.last, kept.last,
            )  # fmt: skip
            self.save(kept)
        self._cutting.unlink(missing_ok=True)
        return kept

    def _read(self) -> EpochHistory:
        try:
            return read_epochs(*(_content(each) for each in (self._path, self._previous)))
        except CorruptEpochFile as problem:
            raise CorruptEpochFile(f"{self._path}: {problem}") from problem

    def beyond(self, log_end: int) -> Epoch | None:
        """INV-37 The last reign, when it begins behind a log that nobody was cutting there. Before load(). Blocking.

        Raises CorruptEpochFile, OSError.
        """
        last = self._read().at(OFFSET_MAX)
        if last is None or last.start <= log_end:
            return None
        cut = _content(self._cutting)
        meant = cut is not None and cut.strip().isdigit() and int(cut[:20]) <= log_end
        return None if meant else last

    def cutting(self, end: int) -> None:
        """The log is about to be cut at `end`; durable when done. [thread] Raises OSError.

        A history that begins nothing behind it stays, and nobody would take the mark away: it would explain
        whatever that log loses later.
        """
        try:
            last = self._read().at(OFFSET_MAX)
        except CorruptEpochFile as problem:
            log.warning("history not looked at before a cut end=%d why=%s", end, problem)
        else:
            if last is None or last.start <= end:
                return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        jsonfile.write_atomically(self._cutting, b"%d\n" % end)

    @property
    def _previous(self) -> Path:
        return self._path.with_name(self._path.name + jsonfile.BAK_SUFFIX)

    def save(self, history: EpochHistory) -> None:
        """Replace it; durable when done. [thread] Raises OSError."""
        make_directory(self._path.parent)
        jsonfile.write_keeping_previous(self._path, encode_epochs(history))
        self._cutting.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


async def cut_log(store: MessageStore, end: int) -> None:
    """Cut a store at `end`, while nobody appends; durable when done, and the loop goes on meanwhile.

    Raises OSError, StoreIsFull, FlushFailed; the store is then not to be used any more.
    """
    cut = Cut(store, end)
    try:
        await asyncio.to_thread(cut.prepare)
        cut.make()
        await asyncio.to_thread(cut.flush)
    finally:
        cut.end()
    await asyncio.to_thread(store.flush_queues, 0)  # so that a restart finds a queue state


class LogKeeping:
    """Performs SetAside, Truncate and PersistHistory for a feed.

    What fails here is final: a log that may not be cut because the disk has no room for what would
    be lost is better left alone, by a process that ends, than followed on. But where a full disk
    keeps a reign from being noted, its bytes are not appended, as if they had no room themselves.
    """

    def __init__(self, feed: Feed, store: MessageStore, epochs: EpochFile) -> None:
        self._store = store
        self._epochs = epochs
        self._root = Path(store.config.root)
        feed.register(SetAside, self._set_aside)
        feed.register(Truncate, self._truncate)
        feed.register(PersistHistory, self._persist)

    async def _set_aside(self, effect: SetAside) -> None:
        ranges = setaside.file_ranges(self._store.log, effect.start, effect.end)
        kept = await asyncio.to_thread(
            setaside.keep, self._root, ranges, effect.start, effect.epoch
        )
        log.warning(
            "log parted from the master's, set aside records=%d from=%d to=%d epoch=%d file=%s",
            kept.records, kept.start, kept.end, kept.epoch, kept.path,
        )  # fmt: skip

    async def _truncate(self, effect: Truncate) -> None:
        await asyncio.to_thread(self._epochs.cutting, effect.end)
        await cut_log(self._store, effect.end)

    async def _persist(self, effect: PersistHistory) -> None:
        try:
            await asyncio.to_thread(self._epochs.save, effect.history)
        except OSError as problem:
            if problem.errno not in NO_ROOM or effect.no_room is NoRoom.END:
                raise
            log.warning("epoch file not written why=%s so=%s", problem, effect.no_room.value)
            if effect.no_room is NoRoom.REFUSE:
                raise EffectFailed(AppendFailed(self._store.end, str(problem))) from problem
