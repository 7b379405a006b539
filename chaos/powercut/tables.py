"""A replica's small files, and a controller's: their writers as they ship, beside a store that goes on.

Each file is one of the values that may be found: what was last confirmed as saved, or what is being saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from tandemmq.chaos.powercut.judge import Violation, judge
from tandemmq.chaos.powercut.workload import QUEUES, TOPIC, Expected, HandClock, Workload, config_of
from tandemmq.cluster.broker.reading.members import ConsumerMembers
from tandemmq.cluster.broker.sending.delay import DelayLevels, DelaySchedule
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing import lineage, parting
from tandemmq.cluster.broker.standing.identity import IdentityFiles
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.standing.suspicion import SuspectMark
from tandemmq.cluster.broker.tables.cuts import Cuts
from tandemmq.cluster.broker.tables.lives import Lives
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.resting import Resting
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.controller import store as controller
from tandemmq.replication import EpochHistory, GroupRecord
from tandemmq.replication.keeping import EpochFile
from tandemmq.storage import FlushMode, MessageStore, jsonfile

GROUP: Final = "Group"
LEVELS: Final = 4
#: kept by SavedFile, and promised nothing about
PLAIN: Final = ("topics", "subscriptionGroup")


class Alone:
    """The standing of a master that waits for nobody."""

    role = Role.ASYNC_MASTER

    def slaves(self) -> list[Any]:
        return []


class Tables(Workload):
    """A replica in the life of its group: reigns, progress, suspicion, its tables, and its controller's records."""

    WEIGHTS: ClassVar = {
        "put": 8, "dispatch": 4, "flush_log": 4, "flush_queues": 1, "consume": 6, "delay": 6, "plain": 3,
        "readers": 2, "reign": 3, "cut": 3, "suspicion": 2, "decide": 3, "identify": 1, "word": 1,
        "kill": 1, "restart": 2,
    }  # fmt: skip

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._processes = 0
        self._records: dict[str, GroupRecord] = {}
        self._suspect = SuspectMark(config_of(self.root), self._boot_id)
        self._epochs = EpochFile(self.root / "epochFileCheckpoint")
        self._history = EpochHistory()
        self._versions = dict.fromkeys(PLAIN, 0)
        self._files = {name: self._plain_file(name) for name in PLAIN}

    def _plain_file(self, name: str) -> SavedFile:
        path = self.root / "config" / f"{name}.json"
        return SavedFile(path, lambda: {"version": self._versions[name]})

    @contextlib.contextmanager
    def _saving(self, name: str, value: object) -> Iterator[None]:
        """The file may be as before or as it will be; when done only the latter."""
        files = self.expected.files
        files[name] = [*files.get(name, [None])[-1:], value]
        yield
        files[name] = [value]

    def _open(self) -> None:
        self._look_suspect()
        super()._open()
        store = self.store
        self._processes += 1
        with self._saving("lineage", self._processes):
            lineage.succeed(self.root, self._processes)
        resting = Resting(store, cast(Standing, Alone()), self._flush_to)
        self._offsets = OffsetTable(self.root / "config" / "consumerOffset.json", self.clock)
        levels = DelayLevels("1s 5s 10s 30s")
        path = self.root / "config" / "delayOffset.json"
        self._schedule = DelaySchedule(store, store.put, levels, path, self.clock)
        self._cuts = Cuts(
            self.root / "config" / "queueCuts.json", self._offsets, ConsumerMembers(),
            Lives(store, self.clock), self.clock,
        )  # fmt: skip
        for table in (self._offsets, self._schedule, self._cuts):
            table.load()
        self._offsets.file.rests = self._schedule.file.rests = resting
        kept = self._history.cut(store.end + 1)
        with self._saving("epochs", kept):
            if self._epochs.load(store.end) != kept:
                raise Violation(f"{kept} was saved, and is not what is found")
        self._history = kept

    def _look_suspect(self) -> None:
        """A process that was killed leaves no mark, and whether everything was on the disk counts once."""
        with self._saving("stopped", False):
            self._suspect.look()

    def _close(self, *, clean: bool) -> None:
        if clean:
            self._dispatch(self.store)
            self._flush_log(self.store)
            with self._saving("stopped", True):
                self._suspect.stopped()
        super()._close(clean=clean)

    async def _flush_to(self, end: int) -> None:
        self._flush_log(self.store)

    # --- steps ---

    def _consume(self, store: MessageStore) -> None:
        """Groups come to the end of what they see, which may not be on the disk."""
        for queue_id in range(QUEUES):
            self._offsets.commit(GROUP, TOPIC, queue_id, store.max_offset(TOPIC, queue_id))
        self._save_progress("offsets", self._offsets.file, self._committed())

    def _committed(self) -> dict[int, int]:
        return self._offsets.queues(GROUP, TOPIC)

    def _delay(self, store: MessageStore) -> None:
        """What was due lies in the log, and the levels are that much further."""
        reached = {
            level: self._schedule.offsets.get(level, 0) + self._rng.randrange(3)
            for level in range(1, LEVELS + 1)
        }
        version = DataVersion(counter=self._rng.randrange(1 << 30))
        self._schedule.adopt(reached, version, store.end)
        self._save_progress("delays", self._schedule.file, dict(reached))

    def _save_progress(self, name: str, file: SavedFile, value: object) -> None:
        """Saved when the log on which it rests is on the disk, else not at all."""
        if not file.unsaved:
            return
        if self._rng.random() < 0.3:
            self._flush_log(self.store)
        before = self.expected.files.get(name, [None])
        with self._saving(name, value):
            file.save()
        if file.unsaved:
            self.expected.files[name] = before

    def _plain(self, store: MessageStore) -> None:
        name = self._rng.choice(PLAIN)
        self._versions[name] += 1
        self._files[name].changed()
        with self._saving(name, self._versions[name]):
            self._files[name].save()

    def _readers(self, store: MessageStore) -> None:
        """Readers may stand beyond the ends of their queues."""
        ends = {(TOPIC, queue_id): self._rng.randrange(100) for queue_id in range(QUEUES)}
        self._cuts.begin(ends, "drawn")
        with self._saving("readers", self._cuts.to_json()["queueEnds"]):
            self._cuts.file.save()

    def _reign(self, store: MessageStore) -> None:
        """Another epoch begins here, of a log that is on the disk."""
        self._flush_log(store)
        history = self._history.begin(self._history.last + self._rng.choice((1, 2)), store.end)
        with self._saving("epochs", history):
            self._epochs.save(history)
        self._history = history

    def _suspicion(self, store: MessageStore) -> None:
        there = not self._suspect.there
        with self._saving("suspect", there):
            if there:
                self._suspect.make("drawn")
            else:
                self._suspect.clear()

    def _decide(self, store: MessageStore) -> None:
        """A controller writes down what it decided."""
        name = self._rng.choice("abc")
        record = self._records.get(name, GroupRecord("cluster", name))
        self._records[name] = GroupRecord("cluster", name, epoch=record.epoch + 1)
        records = {each.name: each.epoch for each in self._records.values()}
        with self._saving("records", records):
            controller.save(_controller_file(self.root), self._records.values())

    def _identify(self, store: MessageStore) -> None:
        """A new store applies for an id, and is told that it has it."""
        files = _identity_files(self.root)
        if files.load() is None:
            wanted = files.want(7, "here;1")
            with self._saving("identity", 7):
                files.confirm(wanted)

    def _word(self, store: MessageStore) -> None:
        """An operator's word is good for one cut."""
        with self._saving("word", True):
            parting.word_of(store).touch()
            jsonfile.write_atomically(parting.word_of(store), b"")
        with self._saving("word", False):
            parting.take_back(store)

    def _set_aside(self, store: MessageStore, end: int) -> None:
        super()._set_aside(store, end)
        self.expected.returning = True
        self._epochs.cutting(end)

    def _after_cut(self, store: MessageStore) -> None:
        """Progress goes back with the log, and so do the reigns."""
        super()._after_cut(store)
        history = self._history.cut(store.end)
        with self._saving("epochs", history):
            self._epochs.save(history)
        self._history = history
        self._offsets.limit(store.max_offset)
        self._schedule.cut(store.end)
        self._flush_log(store)
        self._save_progress("offsets", self._offsets.file, self._committed())
        self._save_progress("delays", self._schedule.file, dict(self._schedule.offsets))
        self.expected.returning = False


def _controller_file(root: Path) -> Path:
    return root.parent / "controller" / controller.FILE_NAME


def _identity_files(root: Path) -> IdentityFiles:
    return IdentityFiles(root / "brokerIdentity", "cluster", GROUP)


def judge_tables(root: Path, boot_id: Path, expected: Expected, *, thorough: bool = True) -> int:
    """As judge(), and every small file is read by its reader: each is what was saved last, or what was being saved;
    and no progress is of more than the log has. The log's end. Raises as judge()."""
    offsets = OffsetTable(root / "config" / "consumerOffset.json", HandClock())
    offsets.load()
    delays = jsonfile.load(root / "config" / "delayOffset.json") or {}
    reached = {int(level): offset for level, offset in delays.get("offsetTable", {}).items()}
    _judge_found(expected, _found(root, offsets, reached))
    _judge_suspicion(root, boot_id, expected)
    end = judge(root, boot_id, expected, thorough=thorough)
    _judge_reigns(root, expected, end)
    if not expected.returning:  # else a broker that starts takes back what is too much
        if delays.get("restsOn", 0) > end:
            raise Violation(
                f"delay progress rests on {delays['restsOn']}, the log ends at {end} (INV-41)"
            )
        for queue_id, offset in offsets.queues(GROUP, TOPIC).items():
            there = [
                each.queue_offset
                for each in expected.logs[-1]
                if each.end <= end and each.queue == (TOPIC, queue_id)
            ]
            if offset > max(there, default=-1) + 1:
                raise Violation(
                    f"queue {queue_id} is consumed up to {offset}, it has {there[-1:]} (INV-41)"
                )
    return end


def _found(root: Path, offsets: OffsetTable, reached: dict[int, int]) -> dict[str, object]:
    lines = (
        (root / lineage.FILE_NAME).read_text().split()
        if (root / lineage.FILE_NAME).exists()
        else []
    )
    identity = _identity_files(root).load()
    _identity_files(root).wanted()
    records = controller.load(_controller_file(root))
    readers = jsonfile.load(root / "config" / "queueCuts.json") or {}
    found: dict[str, object] = {
        "offsets": offsets.queues(GROUP, TOPIC) or None,
        "delays": reached or None,
        "lineage": int(lines[-1]) if lines else None,
        "identity": identity.replica if identity is not None else None,
        "records": {each.name: each.epoch for each in records} or None,
        "readers": readers.get("queueEnds"),
        "word": (root / parting.WORD_NAME).exists(),
        "stopped": (root / "stopped").exists(),
        "suspect": (root / "suspect").exists(),
    }
    for name in PLAIN:
        table = jsonfile.load(root / "config" / f"{name}.json") or {}
        found[name] = table.get("version")
    return found


def _judge_found(expected: Expected, found: dict[str, object]) -> None:
    for name, value in found.items():
        may = expected.files.get(name, [None])
        if (value or None) not in [each or None for each in may]:
            raise Violation(f"{name}: {value} was found, not one of {may}")


def _judge_suspicion(root: Path, boot_id: Path, expected: Expected) -> None:
    stopped = expected.files.get("stopped", [None])
    if expected.running is None or len(stopped) > 1:
        return
    mark = SuspectMark(config_of(root), boot_id)
    before = mark.there
    mark.look()
    lost = expected.running is FlushMode.ASYNC and not stopped[0]
    if mark.there is not (before or lost):
        raise Violation(
            f"it ran with {expected.running.value}, and is a suspect: {mark.there} (INV-39)"
        )


def _judge_reigns(root: Path, expected: Expected, end: int) -> None:
    file = EpochFile(root / "epochFileCheckpoint")
    if (beyond := file.beyond(end)) is not None:
        raise Violation(f"reign {beyond} begins behind the log, which ends at {end} (INV-37)")
    history = file.load(end, same_boot=False)
    may = [each or EpochHistory() for each in expected.files.get("epochs", [None])]
    if history not in [each.cut(end) for each in may]:
        raise Violation(f"epochs: {history} was found, not one of {may}")
