"""Small files that survive a crash: write beside, fsync, rename; JSON files keep one older
generation.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.storage import fastjson
from tandemmq.storage.directories import fsync_directory, make_directory
from tandemmq.storage.errors import CorruptFile

BAK_SUFFIX: Final = ".bak"
PRETTY_BYTES_MAX: Final = (
    256 << 10
)  # larger tables are for tools, and lines would cost as much as all the rest


def load(path: str | Path) -> dict[str, Any] | None:
    """The object in a JSON file, or its previous generation; None when there is nothing to load.

    Falls back to `path`.bak when the file is missing, empty or unreadable (a crash between Java's
    rename and rewrite leaves only the .bak). Raises CorruptFile when neither can be read but one of
    them has content: an unreadable file never counts as an empty one.
    Source: RocketMQ's ConfigManager.
    """
    path = Path(path)
    problem = ""
    for candidate in (path, path.with_name(path.name + BAK_SUFFIX)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        if not data.strip(b" \t\r\n\0"):
            continue  # created, but the content never reached the disk
        try:
            value = fastjson.loads(data)
        except ValueError as error:
            problem = problem or f"{candidate}: {error}"
            continue
        if isinstance(value, dict):
            return value
        problem = problem or f"{candidate}: expected a JSON object, found {type(value).__name__}"
    if problem:
        raise CorruptFile(problem)
    return None


def save(path: str | Path, value: dict[str, Any] | bytes, *, mode: int | None = None) -> None:
    """Replace the file by `value` as JSON; the former content becomes `path`.bak. Raises OSError.

    value   bytes: it is encoded already
    mode    permissions of the file, 0o600 where it holds secrets; None: as the process makes files
    At every moment the file or its .bak is whole, and once this returns the new content is on the
    disk.
    """
    path = Path(path)
    make_directory(path.parent)
    data = value if isinstance(value, bytes) else fastjson.dumps(value)
    if len(data) <= PRETTY_BYTES_MAX:
        data = msgspec.json.format(data, indent=1)
    write_keeping_previous(path, data, mode=mode)


def write_keeping_previous(path: str | Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a small file; its former content becomes `path`.bak. As save(). Raises OSError."""
    path = os.fspath(path)
    fresh = _write_beside(path, data, mode)
    try:
        if _holds_something(path):
            # A second name for the old content, moved over .bak: neither name is ever missing.
            link = path + ".old"
            _remove(link)
            os.link(path, link)
            os.replace(link, path + BAK_SUFFIX)
        os.replace(fresh, path)
    except OSError:
        _remove(fresh)
        raise
    fsync_directory(os.path.dirname(path) or os.curdir)


def write_atomically(path: str | Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a small file so that a crash leaves either the old or the new content. Raises
    OSError.
    """
    path = os.fspath(path)
    fresh = _write_beside(path, data, mode)
    try:
        os.replace(fresh, path)
    except OSError:
        _remove(fresh)
        raise
    fsync_directory(os.path.dirname(path) or os.curdir)


def _write_beside(path: str, data: bytes, mode: int | None) -> str:
    fresh = path + ".new"
    try:
        with open(fresh, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # before there is anything to read
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _remove(fresh)
        raise
    return fresh


def _holds_something(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
