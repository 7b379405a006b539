"""How a store comes to its place as a whole: made beside it, moved at the end.

A process that dies in between leaves `.NAME.restoring`, which the next restore into the same place removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandemmq.backup.errors import BackupError
from tandemmq.storage import fsync_directory, make_directory

_LAST: Final = "commitlog"  # without it nothing looks like a store


def refuse_what_is_there(into: Path) -> None:
    """Raises BackupError unless `into` is an empty directory, or nothing."""
    if into.is_dir() and not into.is_symlink():
        known = {_staged_name(into), "lost+found"} if os.path.ismount(into) else set()
        if found := sorted(set(os.listdir(into)) - known):
            raise BackupError(
                f"{into} is not empty ({', '.join(found[:3])}): a store is restored into an empty directory,"
                " so name another or move this one away"
            )
    elif into.exists() or into.is_symlink():
        raise BackupError(f"{into} is not a directory")


def _staged_name(into: Path) -> str:
    return f".{into.name}.restoring"


@contextlib.contextmanager
def staging(into: Path) -> Iterator[Path]:
    """A directory on the same file system: beside the target, in it where it is a mount point."""
    within = into.is_dir() and os.path.ismount(into)
    make_directory(into.parent)
    staged = (into if within else into.parent) / _staged_name(into)
    staged.mkdir(exist_ok=True)
    descriptor = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another restore into {into} is at work") from None
        _empty(staged)  # of a restore that died
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    finally:
        os.close(descriptor)


def _empty(directory: Path) -> None:
    for each in directory.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


def move(staged: Path, into: Path) -> None:
    """The whole store by one rename; into a mount point name by name, the log last."""
    if staged.parent != into:
        os.rename(staged, into)  # also over an empty directory
        fsync_directory(into.parent)
        return
    for name in sorted(os.listdir(staged), key=lambda name: (name == _LAST, name)):
        os.rename(staged / name, into / name)
    fsync_directory(into)


def sync_whole(path: Path, size: int) -> None:
    """A segment gets its whole length, allocated and on the disk: a broker maps it, and writing to a hole that finds no
    space would kill it. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
