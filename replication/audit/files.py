"""The files beside a log (consume queues, index, progress) as an audit reads them, wherever they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tandemmq.storage import jsonfile

_STEP_BYTES: Final = 128 << 10
_ZEROS: Final = bytes(_STEP_BYTES)


class QueueFiles(NamedTuple):
    """The files of one consume queue."""

    topic: bytes
    queue_id: int
    files: list[tuple[int, int]]  # (start byte, size), by start
    max_offset: int = -1  # behind its last entry; -1: the files must tell


class StoreFiles(Protocol):
    """One store's files beside the log. Paths are relative to the store: `index/20240101000000000`.

    Everything raises OSError or AuditIncomplete when what is there cannot be read.
    """

    name: str

    def queues(self) -> tuple[list[QueueFiles], list[str]]:
        """Every consume queue, and paths that do not belong there."""

    def indexes(self) -> list[tuple[str, int]]:
        """(name, size) of each index file, oldest first."""

    def read(self, path: str, size: int, at: int) -> bytes:
        """The bytes of a file at a position: fewer where it ends, none where it is gone."""

    def used_bytes(self, path: str, size: int) -> int:
        """Up to where a file holds anything but zeros."""

    def table(self, name: str) -> dict[str, Any]:
        """A JSON file of config/; empty when there is none. Raises CorruptFile."""


class LocalFiles:
    """A store directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def queues(self) -> tuple[list[QueueFiles], list[str]]:
        found: list[QueueFiles] = []
        strays: list[str] = []
        directory = self._root / "consumequeue"
        for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.is_dir() and queue.name.isdigit():
                    files = sorted(_numbered(queue, strays))
                    found.append(QueueFiles(os.fsencode(topic.name), int(queue.name), files))
        return found, strays

    def indexes(self) -> list[tuple[str, int]]:
        directory = self._root / "index"
        files = sorted(directory.iterdir()) if directory.is_dir() else []
        return [(path.name, path.stat().st_size) for path in files if path.name.isdigit()]

    def read(self, path: str, size: int, at: int) -> bytes:
        descriptor = os.open(self._root / path, os.O_RDONLY)
        try:
            parts = []
            while size > 0:
                data = os.pread(descriptor, min(size, 8 << 20), at)
                if not data:
                    break
                parts.append(data)
                at += len(data)
                size -= len(data)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(descriptor)

    def used_bytes(self, path: str, size: int) -> int:
        with open(self._root / path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            for start, end in reversed(list(_data_runs(descriptor, size))):
                while end > start:
                    first = max(start, end - _STEP_BYTES)
                    data = os.pread(descriptor, end - first, first)
                    if data != _ZEROS[: len(data)]:  # stripping byte by byte costs 6 s a GB
                        return first + len(data.rstrip(b"\0"))
                    end = first
        return 0

    def table(self, name: str) -> dict[str, Any]:
        return jsonfile.load(self._root / "config" / name) or {}


def _numbered(directory: Path, strays: list[str]) -> Iterator[tuple[int, int]]:
    for file in directory.iterdir():
        if len(file.name) == 20 and file.name.isdigit():
            yield int(file.name), file.stat().st_size
        else:
            strays.append(str(file))


def _data_runs(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data; holes are skipped."""
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as problem:
            if problem.errno != errno.ENXIO:
                raise
            return
        yield start, at
