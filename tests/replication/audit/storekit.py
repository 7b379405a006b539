"""Whole stores for the audit's tests: written by our storage, or unpacked from what RocketMQ wrote."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import auditkit

from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import Options, Outcome, audit
from tandemmq.storage import Draft, StorageConfig, open_store
from tandemmq.storage.record import Head, scan

GOLDEN = Path(__file__).parents[2] / "golden" / "stores"
INDEX_SLOTS = 500


class TestClock:
    """Ten milliseconds pass between two looks."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 10
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


@dataclass(frozen=True)
class Place:
    """Where one record lies."""

    offset: int
    size: int
    head: Head
    body: tuple[int, int]  # log offsets

    @property
    def end(self) -> int:
        return self.offset + self.size


def write_store(
    root: Path,
    seed: int,
    count: int,
    *,
    segment_bytes: int = 65_536,
    fork_at: int | None = None,
    fork_seed: int = 0,
    body_bytes_max: int = 2000,
    draft: Callable[[random.Random, int], Draft] = auditkit.draft,
) -> Path:
    """Put `count` random messages; from message fork_at on those of another seed. Closed in order."""
    config = StorageConfig(
        root=str(root),
        segment_bytes=segment_bytes,
        queue_segment_bytes=2000,
        index_slots=INDEX_SLOTS,
        index_entries=20_000,
    )
    rng = random.Random(seed)
    with open_store(config, TestClock()) as store:
        for number in range(count):
            if number == fork_at:
                rng = random.Random(fork_seed)
            store.put(draft(rng, body_bytes_max))
            if number % 500 == 499:
                while store.dispatch():
                    pass
    return root


def unpack(name: str, directory: Path) -> Path:
    """A store that RocketMQ wrote."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / name


def index_slots_of(name: str) -> int:
    """maxHashSlotNum of a golden store; 0 for the default."""
    with (GOLDEN / f"{name}.jsonl").open(encoding="utf-8") as lines:
        slots: int = json.loads(next(lines))["settings"].get("maxHashSlotNum", 0)
    return slots


def places(root: Path) -> list[Place]:
    """Every record of a sound store, found with the store's own scanner."""
    found = []
    for file in sorted((root / "commitlog").iterdir()):
        data = file.read_bytes()
        start = int(file.name)
        for head in scan(data, 0, len(data)):
            if not head.blank:
                v6 = (head.sys_flag >> 4 & 1) + (head.sys_flag >> 5 & 1)
                body = start + head.position + 88 + 12 * v6
                length = int.from_bytes(data[body - start - 4 : body - start], "big", signed=True)
                found.append(
                    Place(start + head.position, head.size, head, (body, body + max(0, length)))
                )
    return found


def copy(root: Path, to: Path) -> Path:
    """A replica of a store; sparse files stay small."""
    shutil.copytree(root, to, copy_function=_copy_sparse)
    return to


def _copy_sparse(source: str, target: str) -> str:
    size = Path(source).stat().st_size
    with open(source, "rb") as reading, open(target, "wb") as writing:
        writing.truncate(size)
        at = 0
        while data := reading.read(1 << 20):
            if data.count(0) != len(data):
                writing.seek(at)
                writing.write(data)
            at += len(data)
    shutil.copystat(source, target)
    return target


class LogFiles:
    """Reads and overwrites bytes of a commitlog by log offset."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "commitlog"
        files = sorted(self.directory.iterdir())
        self.segment_bytes = max(file.stat().st_size for file in files)
        self.starts = [int(file.name) for file in files]

    def path(self, offset: int) -> Path:
        return self.directory / f"{offset - offset % self.segment_bytes:020d}"

    def read(self, start: int, end: int) -> bytes:
        with self.path(start).open("rb") as file:
            file.seek(start % self.segment_bytes)
            return file.read(end - start)

    def write(self, start: int, data: bytes) -> None:
        with self.path(start).open("r+b") as file:
            file.seek(start % self.segment_bytes)
            file.write(data)

    def flip(self, offset: int, bits: int = 1) -> None:
        self.write(offset, bytes([self.read(offset, offset + 1)[0] ^ bits]))


def run(master: Path, *replicas: Path, slots: int = INDEX_SLOTS, **options: object) -> Outcome:
    """Audit with the local engine."""
    named = {"master": str(master)}
    named |= {f"slave{n or ''}": str(path) for n, path in enumerate(replicas)}
    return audit(named, LocalEngine(), Options(index_slots=slots, **options))  # type: ignore[arg-type]
