"""Directories whose names survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_directory(directory: str | Path) -> None:
    """Make names that appeared in or went from a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, as far as they are missing; durable when done.

    A file in a directory whose own name was never synced goes with it, however often the file was.
    Raises OSError.
    """
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        fsync_directory(each.parent)
