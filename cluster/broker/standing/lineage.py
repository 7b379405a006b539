"""Which processes had this store: what tells the store of a replica from a copy of it.

Each process that opens the store writes itself down before it registers, and names to the controller who was before it.
A snapshot that was restored, and a clone, know nothing of the process that registered last (INV-38). The file `lineage`
in the store's root, so that whoever copies the log copies it too:

    line   content
    1      incarnation, decimal, of the last process that heard that it is registered; of the oldest while none did
    2...   of the others, oldest first
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from tandemmq.storage import jsonfile

log = logging.getLogger(__name__)

FILE_NAME: Final = "lineage"
#: remembered. The first line stays however many starts reach no controller: without the process that registered last
#: the replica would be taken for a copy of itself
PROCESSES_MAX: Final = 32
INCARNATION_MAX: Final = (1 << 63) - 1
AGAIN_S: Final = 1.0


def succeed(root: Path, incarnation: int) -> tuple[int, ...]:
    """Write ourselves down; who was before us, () where nothing is known. Durable when done. Blocking. Raises OSError.

    A store of an earlier release, or one that is new, has no such file.
    """
    kept = _limited((*_read(root / FILE_NAME), incarnation))
    _write(root, kept)
    return kept[:-1]


def registered(root: Path, incarnation: int) -> None:
    """A controller took us: from now on it asks for us. Durable when done. Blocking. Raises OSError."""
    before = _read(root / FILE_NAME)
    if before[:1] != (incarnation,):
        first, others = before[:1], before[1:]
        others = tuple(each for each in others if each != incarnation)
        _write(root, (incarnation, *others, *first)[:PROCESSES_MAX])


class Registered:
    """Remembers that this process is registered, beside whatever else goes on. run() until cancelled."""

    def __init__(self, root: Path, incarnation: int) -> None:
        self._root = root
        self._incarnation = incarnation
        self._heard = asyncio.Event()

    def heard(self) -> None:
        self._heard.set()

    async def run(self) -> None:
        await self._heard.wait()
        while True:
            try:
                await asyncio.to_thread(registered, self._root, self._incarnation)
                return
            except OSError as problem:
                log.warning("registration not remembered path=%s why=%s", self._root, problem)
                await asyncio.sleep(AGAIN_S)


def _limited(processes: tuple[int, ...]) -> tuple[int, ...]:
    if len(processes) <= PROCESSES_MAX:
        return processes
    return (processes[0], *processes[1 - PROCESSES_MAX :])


def _write(root: Path, processes: tuple[int, ...]) -> None:
    content = "".join(f"{each}\n" for each in processes)
    jsonfile.write_atomically(root / FILE_NAME, content.encode())


def _read(path: Path) -> tuple[int, ...]:
    try:
        lines = path.read_bytes().split()
    except FileNotFoundError:
        return ()
    if not all(line.isdigit() and 0 < int(line[:20]) <= INCARNATION_MAX for line in lines):
        log.warning("file ignored path=%s why=not one process a line", path)
        return ()
    return _limited(tuple(int(line) for line in lines))
