"""One increment: copied beside the running broker, and part of the backup only when its manifest is there.

INV-71: a manifest is published when every file that it names is durable, and after the source was asked once more
whether its log is still the one that was copied.

Progress is read first and names are read last: so no position lies behind the log's end, and no message is without its
topic.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tandemmq import __version__
from tandemmq.backup.chain import Anew, Continue, Refuse, Seen, decide
from tandemmq.backup.errors import BackupError, SourceBroken
from tandemmq.backup.manifest import (
    TAIL_BYTES,
    Manifest,
    Piece,
    SavedTable,
    Tail,
    digest,
    encode,
    seal_of,
)
from tandemmq.backup.places import Place
from tandemmq.backup.progress import Report
from tandemmq.backup.shelf import Shelf, group_directory, read_shelf
from tandemmq.backup.source import TABLES_OF_NAMES, TABLES_OF_PROGRESS, Source
from tandemmq.replication.audit.source import segment_name


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run added. why: why it began a chain; "" when it continued one."""

    manifest: Manifest
    why: str

    @property
    def copied_bytes(self) -> int:
        return self.manifest.end - self.manifest.start


def take(
    source: Source, place: Place, *, full: bool = False, watched: Callable[[int], Report]
) -> Taken:
    """Add one increment to the newest chain of the source's group, or begin another chain.

    full     begin another chain in any case
    watched  called with the bytes that will be copied; what it returns, with every few of them
    Raises BackupError, AuditError, OSError. What a failed run copied is removed, or by the next one.
    """
    began_ms = time.time_ns() // 1_000_000
    directory = group_directory(source.group)
    with place.alone(directory) as alone:
        shelf = read_shelf(place, directory)
        _remove_leftover(place, shelf, everything=alone)
        last = None if full else shelf.newest()
        why = "asked for with --full" if full else _decided(source, last)
        chain = chain_name(began_ms, max([*shelf.chains, *shelf.damaged], default=""))
        run = _Run(source, place, began_ms, chain, last if not why else None)
        return Taken(run.copy(watched), why)


def _decided(source: Source, last: Manifest | None) -> str:
    """Why another chain must begin; "" to continue. Raises BackupError."""
    seen = source.look()
    tail = source.holds(last.tail) if last is not None and last.tail is not None else None
    match decide(last, seen, tail):
        case Refuse(why):
            raise BackupError(f"{source.name}: {why}")
        case Anew(why):
            return why
        case Continue():
            return ""


def _remove_leftover(place: Place, shelf: Shelf, *, everything: bool) -> None:
    """What runs that died left. Where nothing keeps other runs away: only what can be nobody's any more."""
    for path in shelf.leftover:
        _, chain, *run = path.split("/")
        known = shelf.chains.get(chain)
        passed = bool(known and run and int(run[0][:8]) <= known[-1].number)
        if everything or passed:
            place.remove(path)


class _Run:
    """The copy of one increment."""

    def __init__(
        self, source: Source, place: Place, began_ms: int, chain: str, last: Manifest | None
    ) -> None:
        """chain: what a new one is called. last: what is continued, None for a new chain"""
        self._source, self._place, self._last, self._began_ms = source, place, last, began_ms
        self._chain = last.chain if last is not None else chain
        self._number = last.number + 1 if last is not None else 1
        self._directory = f"{self._number:08d}-{secrets.token_hex(4)}"
        self._tail = b""  # the last bytes that were copied

    def copy(self, watched: Callable[[int], Report]) -> Manifest:
        try:
            manifest = self._copied(watched)
            self._check_source(manifest)
            self._publish(manifest)
            return manifest
        except BaseException as problem:
            with contextlib.suppress(OSError):  # the next run removes it
                self._place.remove(self._path() if self._last is not None else self._chain_path())
            if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BackupError(
                    f"{self._place.name} is full ({problem.strerror}): free space there; nothing was added"
                ) from problem
            raise

    def _chain_path(self) -> str:
        return f"{self._source.group}/{self._chain}"

    def _path(self, file: str = "") -> str:
        path = f"{self._chain_path()}/{self._directory}"
        return f"{path}/{file}" if file else path

    def _copied(self, watched: Callable[[int], Report]) -> Manifest:
        source, last = self._source, self._last
        tables = [*self._tables(TABLES_OF_PROGRESS)]
        seen = source.look_whole(last.end if last is not None else 0)
        start = last.end if last is not None else seen.start
        if seen.end < start:
            raise SourceBroken(f"{source.name} has less than it had a moment ago: run this again")
        report = watched(seen.end - start)
        pieces = tuple(self._pieces(start, seen, report))
        tables += self._tables(TABLES_OF_NAMES)
        tail = last.tail if last is not None else None
        if self._tail:
            tail = Tail(seen.end - len(self._tail), seen.end, digest(self._tail))
        return Manifest(
            number=self._number, chain=self._chain,
            previous=seal_of(last) if last is not None else "", directory=self._directory,
            cluster=seen.cluster, group=seen.group, broker_id=source.broker_id, role=source.role,
            source=source.name, version=__version__, began_ms=self._began_ms,
            ended_ms=time.time_ns() // 1_000_000, start=start, end=seen.end,
            layout=source.layout, pieces=pieces, tables=tuple(tables), tail=tail,
            epochs=tuple((each.number, each.start) for each in seen.epochs.entries),
        )  # fmt: skip

    def _pieces(self, start: int, seen: Seen, report: Report) -> Iterator[Piece]:
        size = seen.segment_bytes
        while start < seen.end:
            end = min(seen.end, start - start % size + size)
            file = f"{segment_name(start)}.log"
            hashed = hashlib.sha256()
            with self._place.writing(self._path(file)) as write:
                for view in self._source.chunks(start, end):
                    write(view)
                    hashed.update(view)
                    self._tail = (self._tail + bytes(view[-TAIL_BYTES:]))[-TAIL_BYTES:]
                    report(len(view))
            self._tail = self._tail[
                -min(TAIL_BYTES, end - start) :
            ]  # of one segment: readers ask so
            store_ms = self._source.first_store_ms(start)
            yield Piece(start, end, file, hashed.hexdigest(), store_ms)
            start = end

    def _tables(self, names: tuple[str, ...]) -> Iterator[SavedTable]:
        for name in names:
            data = self._source.table(name)
            if data is not None:
                with self._place.writing(self._path(name)) as write:
                    write(memoryview(data))
                yield SavedTable(name, name, len(data), digest(data))

    def _check_source(self, manifest: Manifest) -> None:
        """Raises SourceBroken unless the source's log still has what was copied, and as it was copied."""
        seen = self._source.look()
        tail = self._source.holds(manifest.tail) if manifest.tail is not None else None
        match decide(manifest, seen, tail):
            case Anew(why) | Refuse(why):
                raise SourceBroken(
                    f"{self._source.name} changed while it was copied ({why}): nothing was added, run this again"
                )

    def _publish(self, manifest: Manifest) -> None:
        path = f"{self._chain_path()}/{manifest.number:08d}.json"
        try:
            self._place.publish(path, encode(manifest))
        except FileExistsError:
            raise BackupError(
                f"another backup wrote increment {manifest.number} of {manifest.chain} meanwhile:"
                " nothing was added, run one at a time"
            ) from None


def chain_name(began_ms: int, newest: str) -> str:
    """What a chain is called that begins now, behind `newest` by name also where this machine's clock is behind."""
    if newest:
        latest = datetime.datetime.strptime(newest[:15], "%Y%m%dT%H%M%S").replace(
            tzinfo=datetime.UTC
        )
        began_ms = max(began_ms, int(latest.timestamp()) * 1000 + int(newest[15:18]) + 1)
    moment = datetime.datetime.fromtimestamp(began_ms // 1000, datetime.UTC)
    return f"{moment:%Y%m%dT%H%M%S}{began_ms % 1000:03d}Z-{secrets.token_hex(2)}"
