"""Small stores to back up, and backups of them, without a broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tandemmq.backup.copying import Taken, take
from tandemmq.backup.manifest import Manifest
from tandemmq.backup.places import Place
from tandemmq.backup.progress import Report, silent
from tandemmq.backup.restoring import Point, Restored, restore
from tandemmq.backup.shelf import read_shelf
from tandemmq.backup.source import open_source
from tandemmq.replication.audit.live import Access
from tandemmq.storage import Draft, StorageConfig, decode, jsonfile, open_store

GROUP = "broker-a"
SEGMENT_BYTES = 16 << 10


class SteppingClock:
    """Each message is stored later than the one before."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        self.ms += 1_000
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def config_of(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=800, index_slots=100,
        index_entries=400,
    )  # fmt: skip


class StoppedStore:
    """A store that grows now and then; messages of two topics in two queues each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SteppingClock()
        self.bodies: list[bytes] = []
        self.stored_ms: list[int] = []  # of each

    def grow(self, count: int, *, progress: int | None = None, size: int = 600) -> int:
        """Its end, then. progress: what a group has consumed of queue 0 of Orders."""
        with open_store(config_of(self.root), self.clock) as store:
            for _ in range(count):
                number = len(self.bodies)
                body = b"%06d" % number + b"." * (number * 37 % size)
                topic = ("Orders", "Returns")[number % 2]
                store.put(Draft(topic, number // 2 % 2, body))
                self.bodies.append(body)
                self.stored_ms.append(store.last_store_ms)
            end = store.end
        config = self.root / "config"
        names = {"Orders": {"topicName": "Orders"}, "Returns": {"topicName": "Returns"}}
        jsonfile.save(config / "topics.json", {"topicConfigTable": names})
        jsonfile.save(config / "subscriptionGroup.json", {"subscriptionGroupTable": {}})
        if progress is not None:
            table = {"offsetTable": {"Orders@billing": {"0": progress}}}
            jsonfile.save(config / "consumerOffset.json", table)
        return end


def back_up(store: StoppedStore, place: Place, *, full: bool = False) -> Taken:
    return copy_of(store.root, place, full=full)


def copy_of(root: Path, place: Place, *, full: bool = False, report: Report = silent) -> Taken:
    with closing(open_source(str(root), Access(), group=GROUP)) as source:
        return take(source, place, full=full, watched=lambda total: report)


def chain_in(place: Place) -> list[Manifest]:
    (chain,) = read_shelf(place, GROUP).chains.values()
    return chain


def restored(
    place: Place, into: Path, point: Point | None = None, report: Report = silent
) -> Restored:
    return restore(place, chain_in(place), into, point or Point(), watched=lambda total: report)


def bodies_in(root: Path) -> list[bytes]:
    """Every message that consumers of a store are served, in the order they were put."""
    found = []
    with open_store(config_of(root)) as store:
        for queue in store.queues:
            for queue_offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(queue_offset)
                assert entry is not None
                record = store.record_at(entry[0])
                assert record is not None
                found.append(bytes(decode(bytes(record)).body))
    return sorted(found)
