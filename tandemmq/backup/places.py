"""Where backups lie: a directory of this machine, or what pyarrow opens by URI (arrow.py).

Paths are relative to the place, with "/" between names. A file that is being written is no part of a backup before a
manifest names it, so only manifests must appear whole: publish().
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from tandemmq.backup.errors import BackupError, NoBackup
from tandemmq.storage import fsync_directory, make_directory

CHUNK_BYTES: Final = 4 << 20

Write = Callable[[memoryview], object]


class Listed(NamedTuple):
    """One name in a directory of a place."""

    name: str
    directory: bool
    size: int


class Place(Protocol):
    """Everything raises OSError for what cannot be read or written."""

    name: str

    def listing(self, path: str) -> list[Listed]:
        """What is in a directory, by name; nothing where there is none."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """The bytes of a file, in order. Raises FileNotFoundError."""

    def writing(self, path: str) -> AbstractContextManager[Write]:
        """A new file, durable when the body is through; directories above it are made."""

    def publish(self, path: str, data: bytes) -> None:
        """A small file that appears as a whole, and only where there is none. Raises FileExistsError."""

    def remove(self, path: str) -> None:
        """A directory with everything in it."""

    def alone(self, path: str) -> AbstractContextManager[bool]:
        """Hold a directory against other writers; whether the place can. Raises BackupError while one is at it."""


class LocalPlace:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def listing(self, path: str) -> list[Listed]:
        try:
            with os.scandir(self._root / path) as entries:
                found = [
                    Listed(each.name, each.is_dir(), each.stat().st_size)
                    for each in entries
                    if not each.name.endswith(_UNFINISHED) and each.name != _LOCK
                ]
        except FileNotFoundError:
            return []
        return sorted(found)

    def chunks(self, path: str) -> Iterator[bytes]:
        with open(self._root / path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while data := file.read(CHUNK_BYTES):
                yield data

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Write]:
        target = self._root / path
        make_directory(target.parent)
        with open(target, "xb", buffering=0) as file:

            def write(data: memoryview) -> None:
                while data:  # a raw file may take a part
                    data = data[file.write(data) :]

            yield write
            os.fsync(file.fileno())
        fsync_directory(target.parent)

    def publish(self, path: str, data: bytes) -> None:
        target = self._root / path
        make_directory(target.parent)
        beside = target.with_name(f"{target.name}.{os.getpid()}{_UNFINISHED}")
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(beside, target)  # unlike a rename it replaces nothing
        finally:
            beside.unlink(missing_ok=True)
        fsync_directory(target.parent)

    def remove(self, path: str) -> None:
        shutil.rmtree(self._root / path)
        fsync_directory((self._root / path).parent)

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[bool]:
        directory = self._root / path
        make_directory(directory)
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(
                    f"another backup writes to {directory} right now: let it end, then run this again"
                ) from None
            yield True
        finally:
            os.close(descriptor)


_UNFINISHED: Final = ".unfinished"
_LOCK: Final = "lock"


def open_place(text: str, *, reading: bool = False) -> Place:
    """A directory, file://, or a URI that pyarrow opens. reading: it must be there.

    Raises BackupError: nothing of that name, pyarrow is missing, or it does not know the URI.
    """
    if "://" in text and urlsplit(text).scheme != "file":
        from tandemmq.backup.arrow import ArrowPlace  # its package is an extra

        return ArrowPlace(text)
    root = Path(unquote(urlsplit(text).path) if "://" in text else text).absolute()
    if root.exists() and not root.is_dir():
        raise BackupError(f"{root} is not a directory")
    if reading and not root.is_dir():
        raise NoBackup(f"there is no directory {root}")
    return LocalPlace(root)
