"""What a core decides about its own log besides appending: set aside, cut, remember the reigns. Shell.

Each of these is durable when its effect counts as performed; the disk is waited for off the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from replication.epochs import EpochHistory, encode_epochs, read_epochs
from replication.errors import CorruptEpochFile
from replication.feed import Feed
from replication.slave import PersistHistory, SetAside, Truncate
from storage import Cut, MessageStore, jsonfile, setaside

log = logging.getLogger(__name__)


class EpochFile:
    """epochFileCheckpoint, and its previous generation beside it. Source: RocketMQ's EpochFileCache."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, log_end: int, *, same_boot: bool = True) -> EpochHistory:
        """Whose reigns a log that ends at log_end has seen. Blocking.

        same_boot  False after a power cut: then a reign that had not begun to write is forgotten,
                   as it was when nothing of it had become durable
        A history that reaches beyond the log, which a crash in the middle of a cut leaves, is
        brought in line on the disk at once: other bytes will be written there.
        Raises CorruptEpochFile, OSError.
        """
        try:
            found = read_epochs(*(_content(each) for each in (self._path, self._previous)))
        except CorruptEpochFile as problem:
            raise CorruptEpochFile(f"{self._path}: {problem}") from problem
        kept = found.cut(log_end + 1 if same_boot else log_end)
        if kept is not found:
            log.warning(
                "epochs behind the log's end forgotten end=%d last=%d kept=%d",
                log_end, found.last, kept.last,
            )  # fmt: skip
            self.save(kept)
        return kept

    @property
    def _previous(self) -> Path:
        return self._path.with_name(self._path.name + jsonfile.BAK_SUFFIX)

    def save(self, history: EpochHistory) -> None:
        """Replace it; durable when done. [thread] Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        jsonfile.write_keeping_previous(self._path, encode_epochs(history))


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
    be lost is better left alone, by a process that ends, than followed on.
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
        await cut_log(self._store, effect.end)

    async def _persist(self, effect: PersistHistory) -> None:
        await asyncio.to_thread(self._epochs.save, effect.history)
