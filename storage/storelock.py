"""The file `lock` of a store, as RocketMQ holds it: a record lock on its first byte."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandemmq.storage.errors import StoreLocked

#: struct flock of 64-bit Linux: type, whence, start, length, pid
_RECORD_LOCK: Final = struct.Struct("hhqqi4x")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold a store while the body runs. Raises StoreLocked, OSError."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # Record locks do not exclude a second opener in this process; this one does.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise StoreLocked(f"{root} is in use by another broker") from error
        os.pwrite(descriptor, b"lock", 0)
        yield
    finally:
        os.close(descriptor)


def is_in_use(root: Path) -> bool:
    """Whether another process, ours or RocketMQ's, holds a store; asks without taking the lock.

    Not for the process that holds it: a record lock goes with the first descriptor that is closed. Raises OSError.
    """
    try:
        descriptor = os.open(root / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        asked = _RECORD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, *_ = _RECORD_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
