"""A store out of a backup: log, tables, and everything that is derived from the log.

It belongs to no group of replicas: without epochs, identity and numbers of processes it begins a life of its own, alone
or as the first of a new group. How it comes to its place as a whole: staging.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq import __version__
from tandemmq.backup.chain import increments_for
from tandemmq.backup.errors import BackupDamaged, BackupError, NoBackup
from tandemmq.backup.manifest import Layout, Manifest, Piece, SavedTable
from tandemmq.backup.places import Place
from tandemmq.backup.progress import Report
from tandemmq.backup.shelf import path_of, read_checked, read_table
from tandemmq.backup.staging import move, refuse_what_is_there, staging, sync_whole
from tandemmq.backup.tables import (
    Queues,
    cut_progress,
    delay_progress,
    known_deletions,
    with_groups,
    with_queues,
)
from tandemmq.replication.audit.source import segment_name
from tandemmq.storage import (
    MessageStore,
    StorageConfig,
    fastjson,
    fsync_directory,
    jsonfile,
    load_checkpoint,
    open_store,
    scan,
)

RECEIPT: Final = "restored.json"
SETTINGS: Final = "restored.conf"
SPARE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """Up to where: a log offset, a store time in milliseconds, or, with neither, everything."""

    offset: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class Restored:
    """What was made. notes: what is other than it was, in words."""

    into: str
    chain: str
    increment: int
    cluster: str
    broker: str
    start: int
    end: int
    until_ms: int  # store time of the last message, 0 for none
    topics: int = 0
    queues: int = 0
    settings: str = ""
    notes: list[str] = field(default_factory=list)


def restore(
    place: Place, chain: Sequence[Manifest], into: Path, point: Point, *, as_broker: str = "",
    watched: Callable[[int], Report],
) -> Restored:  # fmt: skip
    """Make a store of a chain's log up to a point. `into` must be empty, or not there.

    as_broker  brokerName in the settings that are written beside the log; default: as it was
    Raises BackupError (nothing is left that looks whole), StorageError, OSError.
    """
    into = into.absolute()
    refuse_what_is_there(into)
    with staging(into) as staged:
        try:
            made = _Making(place, chain, staged, point, watched).run(into, as_broker)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BackupError(
                    f"{into.parent} is full ({problem.strerror}): free space there, and run this again"
                ) from problem
            raise
        move(staged, into)
    return made


class _Making:
    """One store in the making."""

    def __init__(
        self, place: Place, chain: Sequence[Manifest], staged: Path, point: Point,
        watched: Callable[[int], Report],
    ) -> None:  # fmt: skip
        self._place, self._chain, self._staged, self._point = place, chain, staged, point
        self._watched = watched
        self._layout: Layout = chain[-1].layout
        self._notes: list[str] = []

    def run(self, into: Path, as_broker: str) -> Restored:
        chain, last = self._chain, self._chain[-1]
        end = self._write_log()
        covering, before = increments_for(chain, end)
        self._write_names(covering, end)
        with open_store(self._config()) as store:
            self._check_log(store, end)
            queues = _ends(store)
            until_ms = store.last_store_ms
            deleted_before = before if before is not None else covering
            self._write_tables(covering, deleted_before, before, queues, end)
        self._vouch_for_the_log(until_ms)
        made = Restored(
            str(into), last.chain, (before or covering).number, last.cluster, as_broker or last.group,
            chain[0].start, end, until_ms, len(queues), sum(map(len, queues.values())),
            str(into / SETTINGS), self._notes,
        )  # fmt: skip
        self._leave_word(made, into)
        return made

    # --- the log ---

    def _write_log(self) -> int:
        """Every piece up to the point, checked; the log's end."""
        pieces = [(manifest, piece) for manifest in self._chain for piece in manifest.pieces]
        wanted = self._wanted(pieces)
        total = sum(piece.end - piece.start for _, piece in wanted)
        self._make_sure_it_fits(wanted)
        report = self._watched(total)
        directory = self._staged / "commitlog"
        directory.mkdir()
        for manifest, piece in wanted:
            self._write_piece(directory, manifest, piece, report)
        end = self._chain[0].start
        if wanted:
            end = self._cut(directory, wanted[-1][1])
            if end == self._chain[0].start:
                raise NoBackup("the first message of the backup lies behind that point")
        for file in directory.iterdir():
            sync_whole(file, self._layout.segment_bytes)
        fsync_directory(directory)
        return end

    def _wanted(self, pieces: list[tuple[Manifest, Piece]]) -> list[tuple[Manifest, Piece]]:
        start, stop = self._chain[0].start, self._chain[-1].end
        offset, until_ms = self._point.offset, self._point.until_ms
        if offset is not None:
            if not start <= offset <= stop:
                raise NoBackup(
                    f"offset {offset} is not in chain {self._chain[0].chain}, which holds [{start}, {stop})"
                )
            if pieces and offset == start:
                raise NoBackup(f"nothing lies below {offset}, where the backup's log begins")
            return [each for each in pieces if each[1].start < offset]
        if until_ms is not None:
            first = next((p.first_store_ms for _, p in pieces if p.first_store_ms), 0)
            if first > until_ms:
                raise NoBackup(
                    f"the backup's first message was stored at {_time_text(first)}, later than that:"
                    " see tandem backup list"
                )
            # store times never go back, so what begins behind the first later one is later
            count = next(
                (n for n, (_, p) in enumerate(pieces) if p.first_store_ms > until_ms), len(pieces)
            )
            return pieces[:count]
        return pieces

    def _make_sure_it_fits(self, wanted: list[tuple[Manifest, Piece]]) -> None:
        segments = {piece.start // self._layout.segment_bytes for _, piece in wanted}
        needed = len(segments) * self._layout.segment_bytes + SPARE_BYTES
        found = os.statvfs(self._staged)
        free = found.f_bavail * found.f_frsize
        if free < needed:
            raise BackupError(
                f"the store needs {needed >> 20} MiB, {self._staged.parent} has {free >> 20} MiB:"
                " restore onto a larger disk"
            )

    def _write_piece(
        self, directory: Path, manifest: Manifest, piece: Piece, report: Report
    ) -> None:
        segment = piece.start - piece.start % self._layout.segment_bytes
        at = piece.start - segment
        path = path_of(manifest, piece.file)
        with open(directory / segment_name(segment), "r+b" if at else "xb", buffering=0) as file:
            for data in read_checked(self._place, path, piece.end - piece.start, piece.sha256):
                view = memoryview(data)
                while view:
                    count = os.pwrite(file.fileno(), view, at)
                    at += count
                    view = view[count:]
                report(len(data))

    def _cut(self, directory: Path, last: Piece) -> int:
        """Cut the last segment behind the last whole record that is wanted; where that ends."""
        segment = last.start - last.start % self._layout.segment_bytes
        path = directory / segment_name(segment)
        if self._point.offset is None and self._point.until_ms is None:
            return last.end
        with (
            open(path, "r+b") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            end = self._boundary(view, last.end - segment, segment)
        if end < last.end:
            os.truncate(path, end - segment)
            if end == segment:
                path.unlink()
        return end

    def _boundary(self, view: mmap.mmap, filled: int, segment: int) -> int:
        offset, until_ms = self._point.offset, self._point.until_ms
        reached = 0
        for head in scan(memoryview(view), 0, filled):
            if head.blank:
                return (
                    segment + filled if filled == self._layout.segment_bytes else segment + reached
                )
            if offset is not None and segment + head.position + head.size > offset:
                break
            if until_ms is not None and head.store_ms > until_ms:
                break
            reached = head.position + head.size
        return segment + reached

    # --- what stands beside it ---

    def _config(self) -> StorageConfig:
        layout, root = self._layout, str(self._staged)
        usual = StorageConfig(root=root)
        return StorageConfig(
            root=root,
            segment_bytes=layout.segment_bytes,
            queue_segment_bytes=layout.queue_file_bytes or usual.queue_segment_bytes,
            index_enabled=bool(layout.index_slots),  # else the broker makes it, at its first start
            index_slots=layout.index_slots or usual.index_slots,
            index_entries=layout.index_entries or usual.index_entries,
            delay_levels=layout.delay_levels or usual.delay_levels,
        )

    def _check_log(self, store: MessageStore, end: int) -> None:
        reached = min(store.end, store.dispatched)
        if store.end != end or reached != end:
            raise BackupDamaged(
                f"the log of the backup has no record at {reached}, it should go on to {end}: it was damaged at its"
                f" broker. --until {reached} restores what lies in front"
            )

    def _vouch_for_the_log(self, last_ms: int) -> None:
        """The store never flushed a log that it found there, and its checkpoint vouches for what it flushed: we did."""
        path = self._staged / "checkpoint"
        checkpoint = load_checkpoint(path)
        checkpoint.physic_ms = last_ms
        jsonfile.write_atomically(path, checkpoint.encode())

    def _write_names(self, covering: Manifest, end: int) -> None:
        """What recovery has to know before it derives queues."""
        table = self._table(covering, "deletedTopics.json")
        if table:
            jsonfile.save(
                self._staged / "config" / "deletedTopics.json", known_deletions(table, end)
            )

    def _write_tables(
        self, covering: Manifest, older: Manifest, before: Manifest | None, queues: Queues, end: int
    ) -> None:
        config = self._staged / "config"
        topics, made = with_queues(
            self._table(covering, "topics.json"), self._table(older, "topics.json"), queues
        )
        jsonfile.save(config / "topics.json", topics)
        if made:
            self._notes.append(
                f"topics that no table of the backup knew were made with perm 6: {', '.join(made)}"
            )
        groups = "subscriptionGroup.json"
        jsonfile.save(
            config / groups, with_groups(self._table(covering, groups), self._table(older, groups))
        )
        progress, moved = cut_progress(
            self._table(before or covering, "consumerOffset.json"), queues, later=before is None
        )
        jsonfile.save(config / "consumerOffset.json", progress)
        when = _time_text((before or covering).began_ms)
        self._notes.append(
            f"consumers go on where they were at {when}"
            + (", later than the point" if before is None else "")
            + (f"; {moved} positions were moved back to what there is" if moved else "")
        )
        self._write_delays(end)

    def _write_delays(self, end: int) -> None:
        name = "delayOffset.json"
        saved = [
            (each.end, table)
            for each in reversed(self._chain)
            if (table := self._table(each, name))
        ]
        found = delay_progress(saved, end)
        if found is not None:
            jsonfile.save(self._staged / "config" / name, found)
        elif saved:
            self._notes.append(
                "no progress of delay levels is as old as the point: every delayed message that the log has"
                " is delivered again"
            )

    def _table(self, manifest: Manifest, name: str) -> dict[str, Any]:
        saved: SavedTable | None = manifest.table(name)
        if saved is None:
            return {}
        try:
            found = fastjson.loads(read_table(self._place, manifest, saved))
        except ValueError as problem:
            raise BackupDamaged(
                f"{path_of(manifest, saved.file)} is no JSON: {problem}"
            ) from problem
        return found if isinstance(found, dict) else {}

    def _leave_word(self, made: Restored, into: Path) -> None:
        """Settings that start a broker on it, and where it came from."""
        layout = self._layout
        lines = [
            f"# tandem restore, from {self._place.name}: namesrvAddr and addresses are missing",
            f"brokerClusterName={made.cluster}", f"brokerName={made.broker}", "brokerId=0",
            "brokerRole=ASYNC_MASTER", f"storePathRootDir={into}",
            f"storePathCommitLog={into / 'commitlog'}",
            f"mappedFileSizeCommitLog={layout.segment_bytes}",
        ]  # fmt: skip
        if layout.queue_file_bytes:
            lines.append(f"mappedFileSizeConsumeQueue={layout.queue_file_bytes}")
        if layout.index_slots and layout.index_entries:
            lines += [f"maxHashSlotNum={layout.index_slots}", f"maxIndexNum={layout.index_entries}"]
        if layout.delay_levels:
            lines.append(f"messageDelayLevel={layout.delay_levels}")
        jsonfile.write_atomically(
            self._staged / SETTINGS, "".join(f"{line}\n" for line in lines).encode()
        )
        receipt = {
            **msgspec.to_builtins(made), "from": self._place.name, "version": __version__,
            "restoredMs": time.time_ns() // 1_000_000, "epochs": self._chain[-1].epochs,
        }  # fmt: skip
        jsonfile.save(self._staged / RECEIPT, receipt)
        fsync_directory(self._staged)


def _ends(store: MessageStore) -> Queues:
    found: dict[str, dict[int, int]] = {}
    for queue in store.queues:
        found.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
    return found


def _time_text(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
