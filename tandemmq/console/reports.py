"""Reports in a directory: which there are, and the bytes of one. Nothing outside the directory is ever given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tandemmq.console.pages.others import Report

SUFFIXES: Final = {
    ".html": "text/html",
    ".json": "text/plain",
    ".jsonl": "text/plain",
    ".txt": "text/plain",
    ".md": "text/plain",
    ".log": "text/plain",
}
REPORTS_MAX: Final = 500
DEPTH_MAX: Final = 3
SEEN_MAX: Final = 20_000  # entries looked at; a directory of stores has many
BYTES_MAX: Final = 32 << 20


def listed(directory: Path) -> list[Report]:
    """The newest reports. Raises OSError for a directory that cannot be read. [thread]"""
    found: list[Report] = []
    seen = 0
    waiting: list[tuple[Path, int]] = [(directory, 0)]
    while waiting and seen < SEEN_MAX:
        at, depth = waiting.pop()
        try:
            entries = list(os.scandir(at))
        except OSError:
            if at == directory:
                raise
            continue  # one that only others may read
        for entry in entries:
            seen += 1
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < DEPTH_MAX:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.is_file(follow_symlinks=False) and Path(entry.name).suffix in SUFFIXES:
                known = entry.stat(follow_symlinks=False)
                path = Path(entry.path).relative_to(directory).as_posix()
                found.append(Report(path, known.st_size, known.st_mtime_ns // 1_000_000))
    found.sort(key=lambda each: -each.written_ms)
    return found[:REPORTS_MAX]


def read(directory: Path, path: str) -> tuple[bytes, str] | None:
    """(content, its type) of a report, None for what is none. Raises OSError. [thread]"""
    wanted = directory / path
    kind = SUFFIXES.get(wanted.suffix)
    parts = Path(path).parts
    if kind is None or Path(path).is_absolute() or not parts or ".." in parts:
        return None
    if any(part.startswith(".") for part in parts) or "\0" in path:
        return None
    if not wanted.resolve().is_relative_to(directory.resolve()) or not wanted.is_file():
        return None
    if wanted.stat().st_size > BYTES_MAX:
        return None
    return wanted.read_bytes(), kind
