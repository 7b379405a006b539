"""Bit rot: one bit of one file of a store is another one when its broker comes back after a crash.

What is derived must be made again, tables fall back to their former generation, and a record whose checksum fails is
cut off with what follows and copied from another replica. That nothing of it reaches anybody is for the checkers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from tandemmq.chaos.faults.fault import NoEffect
from tandemmq.chaos.faults.processes import ProcessFault
from tandemmq.chaos.groups import ReplicaProcess
from tandemmq.chaos.replicalogs import segments
from tandemmq.storage import CorruptRecord, Head, scan

Part = Literal["log", "queue", "index", "checkpoint", "epochs", "table", "mark"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
#: where each part lies below a store; of several files one is drawn
PATTERNS: Final = {
    "queue": ("consumequeue/*/*/*",), "index": ("index/*",), "checkpoint": ("checkpoint",),
    "epochs": ("epochFileCheckpoint",), "table": ("config/*.json",),
    "mark": ("abort", "bootid", "lock"),
}  # fmt: skip
#: how a broker says that it cut its log
CUT: Final = "log cut in front of later records"
WRITTEN_BYTES: Final = 1 << 20  # files are made longer than what is in them


def files_of(store: Path, part: Part) -> list[Path]:
    """The files of a part that hold something, in the order of their names."""
    found = [path for pattern in PATTERNS[part] for path in store.glob(pattern)]
    return sorted(path for path in found if path.is_file() and path.stat().st_size)


def place_in_log(store: Path, rng: random.Random) -> tuple[Path, int]:
    """(file, byte) within the body of a record of the last file that has any, which every recovery checks. Raises
    NoEffect."""
    for _, path in reversed(segments(store)):
        data = memoryview(path.read_bytes())
        heads: list[Head] = []
        with contextlib.suppress(CorruptRecord):  # what was under way when the broker was killed
            for head in scan(data, 0, len(data), crc_checked=False):
                if not head.blank:
                    heads.append(head)
        if heads:
            head = rng.choice(heads[len(heads) // 2 :])
            return path, head.position + head.size // 2
    raise NoEffect(f"no record is in {store}")


def place_in_file(paths: Sequence[Path], rng: random.Random) -> tuple[Path, int]:
    """(file, byte) where something is written: a byte that is not zero. Raises NoEffect."""
    for path in rng.sample(paths, len(paths)):
        content = path.read_bytes()[:WRITTEN_BYTES]
        written = [at for at, byte in enumerate(content) if byte]
        if written:
            return path, rng.choice(written)
    raise NoEffect("nothing is written in these files")


def flip(path: Path, at: int, bit: int) -> tuple[int, int]:
    """One bit of one byte; (byte before, byte now), the latter read again."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        before = file.read(1)[0]
        file.seek(at)
        file.write(bytes([before ^ 1 << bit]))
        file.seek(at)
        return before, file.read(1)[0]


class BitRot(ProcessFault):
    """kill -9, one bit flipped on the disk, and the broker started again when it is over."""

    kind = "rot"

    def __init__(
        self, replica: ReplicaProcess, address: str, part: Part, rng: random.Random
    ) -> None:
        super().__init__(replica, address)
        self.replica = replica
        self.part = part
        self._rng = rng

    def describe(self) -> str:
        return f"kill -9 of {self.story.victim}, and one bit of its {self.part} is another when it comes back"

    async def inject(self) -> str:
        await self.replica.kill()
        store = self.replica.store
        if self.part == "log":
            path, at = place_in_log(store, self._rng)
        elif paths := files_of(store, self.part):
            path, at = place_in_file(paths, self._rng)
        else:
            raise NoEffect(f"{store} has no {self.part} yet")
        before, now = flip(path, at, self._rng.randrange(8))
        return f"byte {at} of {path.relative_to(store)} was {before:#04x} and reads {now:#04x}"

    async def heal(self) -> str:
        again = await self.answering()
        if self.part != "log" or not self.story.seen_ns:
            return again
        if CUT not in self.replica.said():
            return f"{again}; it said nothing of a cut: the record was not read again"
        return f"{again}; it cut its log in front of the record and copies it anew"
