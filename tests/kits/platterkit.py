"""The smallest disk that can lose power: a file is what it was when it was last synced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


class Platter:
    """What a disk holds of files below a directory: the content that each had when it was last synced.

    Names and lengths count as durable at once: tandemmq.chaos.powercut models those, too.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._synced: dict[tuple[int, int], bytes] = {}
        for name in ("fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            sync(descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                    self._synced[found.st_dev, found.st_ino] = file.read()

        return noted

    def cut_power(self) -> None:
        """Once nobody has the files open: take back what was never synced."""
        for path in sorted(self._root.rglob("*")):
            if path.is_file():
                found = path.stat()
                synced = self._synced.get((found.st_dev, found.st_ino), b"")
                path.write_bytes(synced.ljust(found.st_size, b"\0"))
