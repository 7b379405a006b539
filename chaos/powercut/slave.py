"""A slave's store: its log is a master's bytes, in pieces that end anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from tandemmq.chaos.powercut.workload import HandClock, Place, Workload, Written, config_of
from tandemmq.storage import MessageStore, Owner, open_store

PIECE_BYTES_MAX: Final = 5_000


class Slave(Workload):
    """Follows the log of a master that loses nothing: its store is elsewhere."""

    WEIGHTS: ClassVar = {
        "receive": 14, "dispatch": 4, "flush_log": 6, "flush_queues": 3, "flush_checkpoint": 3, "next_segment": 2,
        "confirm": 4, "cut": 1, "retain": 1, "restart": 1, "kill": 1,
    }  # fmt: skip

    def __init__(
        self, place: Place, weights: dict[str, int] | None = None, master: Master | None = None
    ) -> None:
        super().__init__(place, weights)
        self.master = master
        self._confirmed = 0

    def run(self, steps: int) -> None:
        with self._quiet():
            self.master = Master(self.root.parent.parent / "master", self._written)
        try:
            super().run(steps)
        finally:
            with self._quiet():
                self.master.close()

    def successor(self, place: Place) -> Slave:
        weights = {**self.weights, "cut": 0}  # the master is not its alone
        return Slave(place, weights, self.master)

    def _open(self) -> None:
        super()._open()
        self._confirmed = min(self._confirmed, self.store.end)
        self.store.belong_to(Owner(confirmed=lambda: self._confirmed))

    def _receive(self, store: MessageStore) -> None:
        assert self.master is not None
        self._running()
        with self._quiet():
            for _ in range(self._rng.choice((0, 1, 3, 12))):
                size = self._rng.choice((10, 100, 400, 1500))
                self.master.put(*self._drawn_queue(), size)
        behind = self.master.end - store.end
        stop = store.end + (self._rng.randrange(behind) + 1 if behind else 0)
        while store.end < stop:
            size = self._rng.randrange(1, PIECE_BYTES_MAX)
            store.append_raw(self.master.piece(store.end, min(stop - store.end, size)), store.end)
            self._note_whole(store)

    def _note_whole(self, store: MessageStore) -> None:
        assert self.master is not None
        log = self.expected.logs[-1]
        log += [each for each in self.master.log[len(log) :] if each.end <= store.end]

    def _confirm(self, store: MessageStore) -> None:
        """The master says that the set has so much of it."""
        ends = [each.end for each in self.expected.logs[-1] if each.end > self._confirmed]
        if ends:
            self._confirmed = self._rng.choice(ends)

    def _after_cut(self, store: MessageStore) -> None:
        """Another master goes on from there."""
        assert self.master is not None
        self._confirmed = min(self._confirmed, store.end)
        with self._quiet():
            self.master.cut(store.end)

    def _cut_follows(self, store: MessageStore, lost: list[Written]) -> None:
        self._receive(store)


class Master:
    """The log that a slave gets."""

    def __init__(self, root: Path, write: Callable[[MessageStore, str, int, int], Written]) -> None:
        self.log: list[Written] = []
        self._write = write
        self._boot_id = root.with_name("master-boot")
        self._boot_id.write_text("one")
        self._opened = open_store(config_of(root), HandClock(), self._boot_id)
        self.store = self._opened.__enter__()

    @property
    def end(self) -> int:
        return self.store.end

    def put(self, topic: str, queue_id: int, size: int) -> None:
        self.log.append(self._write(self.store, topic, queue_id, size))

    def piece(self, offset: int, size: int) -> bytes:
        """Bytes of the log from an offset on, of one file."""
        segment = self.store.log.run.find(offset)
        assert segment is not None
        position = offset - segment.start
        return bytes(segment.read(position, min(size, segment.wrote - position)))

    def cut(self, end: int) -> None:
        while self.store.dispatch():
            pass
        self.store.truncate(end)
        self.log = [each for each in self.log if each.end <= end]

    def close(self) -> None:
        self._opened.__exit__(None, None, None)
