"""`python -m bench.audit`: what an audit costs, against reading the same bytes once.

Makes a store of --gib GiB and a damaged copy in --directory (kept for the next time), then prints:
level 1 per core-second, a whole local audit against readinto of the same bytes, and with --spark the same
audit on Spark, from a cold start and warm. Processor seconds are of this process and, for Spark, of the
JVM and its Python workers; wall times depend on what else the machine does, so the load is printed, too.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.accounting import describe_machine
from tandemmq.audit import sparkling
from tandemmq.replication.audit.blocks import digest_replica
from tandemmq.replication.audit.kernels import COMPILED
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import Options, Outcome, audit
from tandemmq.replication.audit.stores import open_replica
from tandemmq.storage import Draft, StorageConfig, encode_properties, open_store, pack_host

SEGMENT_BYTES = 128 << 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    print(describe_machine(arguments.directory))
    print(f"load {os.getloadavg()[0]:.1f}, compiled kernel: {COMPILED}")
    master, slave = _pair(arguments.directory, int(arguments.gib * (1 << 30)))
    rounds = range(arguments.rounds)
    once = min(_cpu(partial(_read, master, slave))[0] for _ in rounds)
    size = _bytes(master) + _bytes(slave)
    print(f"read once (readinto, 1 MiB): {size / 1e9:.2f} GB in {once:.2f} CPU s")
    _level_one(master, arguments.directory, rounds)
    places = {"master": str(master), "slave": str(slave)}
    for levels in ((1, 2), (1, 2, 3)):
        options = Options(levels=levels)
        costs = [_cpu(partial(audit, places, LocalEngine(2), options)) for _ in rounds]
        cpu, wall = min(cost[0] for cost in costs), min(cost[1] for cost in costs)
        outcome = costs[0][2]
        print(
            f"local engine, levels {levels}: {cpu:.2f} CPU s = {cpu / once:.1f} x read once,"
            f" {wall:.2f} s wall; {_found(outcome)}"
        )
    if arguments.spark:
        _spark(places, rounds)
    return 0


def _found(outcome: object) -> str:
    assert isinstance(outcome, Outcome)
    return f"{len(outcome.divergences)} divergences, {outcome.run.records_checked} records checked"


def _cpu(act: Callable[[], object]) -> tuple[float, float, object]:
    """(processor seconds, wall seconds, result)"""
    before, begin = _used(), time.monotonic()
    result = act()
    return _used() - before, time.monotonic() - begin, result


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _level_one(master: Path, directory: Path, rounds: range) -> None:
    """16 GiB of segments: the store's own files under eight ranges of names, so they stay in memory."""
    wide = directory / "wide" / "commitlog"
    if not wide.exists():
        wide.mkdir(parents=True)
        files = sorted((master / "commitlog").iterdir())
        for number in range((16 << 30) // SEGMENT_BYTES):
            os.link(files[number % len(files)], wide / f"{number * SEGMENT_BYTES:020d}")
    replica = open_replica(wide, "wide")
    end = replica.segments[-1].end
    costs = [_cpu(lambda: digest_replica(replica, 0, end, 1)) for _ in rounds]
    replica.close()
    cpu = min(cost[0] for cost in costs)
    print(
        f"level 1 over {end / (1 << 30):.0f} GiB, warm: {end / cpu / 1e9:.2f} GB/s per core-second"
    )


def _spark(places: dict[str, str], rounds: range) -> None:
    before, begin = _family_cpu(), time.monotonic()
    engine = sparkling.spark_engine("local[2]", "c1", places)
    outcome = audit(places, engine, Options())
    cold = time.monotonic() - begin
    print(
        f"Spark local[2], cold start to verdict: {cold:.1f} s wall, {_family_cpu() - before:.1f} CPU s"
        f" (load {os.getloadavg()[0]:.1f}); {_found(outcome)}"
    )
    for levels in ((1, 2), (1, 2, 3)):
        costs = []
        for _ in rounds:
            before, begin = _family_cpu(), time.monotonic()
            audit(places, engine, Options(levels=levels))
            costs.append((time.monotonic() - begin, _family_cpu() - before))
        wall, cpu = min(costs)
        print(f"Spark warm, levels {levels}: {wall:.2f} s wall, {cpu:.2f} CPU s")


def _family_cpu() -> float:
    """Processor seconds of this process and all that descend from it."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(words[1])
            used[int(entry.name)] = sum(map(int, words[11:15])) / TICKS_PER_SECOND
    mine = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return sum(used.get(pid, 0.0) for pid in mine)


def _bytes(store: Path) -> int:
    return sum(file.stat().st_size for file in (store / "commitlog").iterdir())


def _read(*stores: Path) -> None:
    buffer = memoryview(bytearray(1 << 20))
    for store in stores:
        for path in sorted((store / "commitlog").iterdir()):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _pair(directory: Path, size: int) -> tuple[Path, Path]:
    """A store of `size` bytes and a copy with seventeen faults."""
    master, slave = directory / "master", directory / "slave"
    if not slave.exists():
        print(f"making {size / (1 << 30):.1f} GiB in {directory}")
        _write(master, size)
        shutil.copytree(master, slave)
        _damage(slave)
    return master, slave


def _write(root: Path, size: int) -> None:
    config = StorageConfig(root=str(root), segment_bytes=SEGMENT_BYTES, index_enabled=False)
    rng = random.Random(1)
    host = pack_host("10.0.0.1", 10_911)
    noise = rng.randbytes(1 << 20)
    with open_store(config) as store:
        number = 0
        while store.end < size - SEGMENT_BYTES // 2:
            length = min(8000, int(rng.lognormvariate(6.7, 0.6)))
            start = rng.randrange(len(noise) - length)
            properties = encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA"})
            draft = Draft(
                f"Topic{number % 20}", number // 20 % 8, noise[start : start + length], properties,
                born_ms=1_700_000_000_000 + number, born_host=host, store_host=host,
            )  # fmt: skip
            store.put(draft)
            number += 1
            if number % 4000 == 0:
                while store.dispatch():
                    pass
            if store.log.next_segment_needed():
                store.prepare_next_segment()


def _damage(root: Path) -> None:
    """Flips, holes and garbage in seventeen places, one of them over 1.5 MiB."""
    rng = random.Random(2)
    files = sorted((root / "commitlog").iterdir())[:-1]
    for number in range(17):
        with open(files[number % len(files)], "r+b") as file:
            file.seek(rng.randrange(8 << 20, SEGMENT_BYTES - (8 << 20)))
            if number == 3:
                file.write(bytes(1_572_864))
            elif number % 3 == 0:
                file.write(rng.randbytes(65_536))
            elif number % 3 == 1:
                file.write(bytes(4096))
            else:
                file.write(rng.randbytes(1))


if __name__ == "__main__":
    raise SystemExit(main())
