"""Each sync of storage is needed: left out, a power cut shows it, and by the name of what it broke.

A sync that no cut misses is either not needed, and then has no place in the code, or the workload and the judge of
tandemmq.chaos.powercut do not see what it is for. So a new sync gets a line here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tandemmq.chaos.powercut.campaign import Manner, campaign
from tandemmq.storage.checkpoint import RunningMark
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.cutting import Cut
from tandemmq.storage.keyindex import KeyIndex
from tandemmq.storage.segment import Segment
from tandemmq.storage.segments import SegmentRun

CUTS_MAX: Final = 1_500

Patch = pytest.MonkeyPatch


def not_called(*arguments: Any) -> None:
    """In the place of a sync."""


class OsWithout:
    """The module os, of which one call does nothing."""

    def __init__(self, call: str) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return not_called if name == self._call else getattr(os, name)


def leave_out(target: str) -> Callable[[Patch], None]:
    """A function of storage, by module and name, that only syncs."""
    return lambda patch: patch.setattr(f"tandemmq.storage.{target}", not_called)


def leave_out_call(module: str, call: str) -> Callable[[Patch], None]:
    """What one module of storage has of os."""
    return lambda patch: patch.setattr(f"tandemmq.storage.{module}.os", OsWithout(call))


def zeros_of_queues(patch: Patch) -> None:
    zero = ConsumeQueue._zero_behind_end

    def zero_behind_end(self: ConsumeQueue) -> None:
        before = self._cleared
        zero(self)
        self._cleared = before

    patch.setattr(ConsumeQueue, "_zero_behind_end", zero_behind_end)


def names_of_queue_files_that_went(patch: Patch) -> None:
    remove = ConsumeQueue._remove_files

    def remove_files(self: ConsumeQueue, first: int) -> None:
        before = self._new_names
        remove(self, first)
        self._new_names = before

    patch.setattr(ConsumeQueue, "_remove_files", remove_files)


def zeros_that_found_no_descriptor(patch: Patch) -> None:
    patch.setattr(SegmentRun, "cut_unflushed", property(lambda self: False))


def zeros_of_a_file_cut_empty(patch: Patch) -> None:
    def flush(self: SegmentRun, target: int | None = None) -> int:
        for segment in list(self.segments):
            wanted = target is None or segment.start < target
            if wanted and segment.flushed < segment.size:
                segment.flush()
        return self.flushed

    patch.setattr(SegmentRun, "flush", flush)


def queue_state_that_is_forgotten(patch: Patch) -> None:
    def forget(path: Path) -> None:
        path.unlink(missing_ok=True)

    patch.setattr("tandemmq.storage.durability.forget_queue_state", forget)


def mark_that_is_taken_back(patch: Patch) -> None:
    def clear(self: RunningMark) -> None:
        for name in ("abort", "bootid", "flushmode"):
            (self.root / name).unlink(missing_ok=True)

    patch.setattr(RunningMark, "clear", clear)


def log_files_that_go(patch: Patch) -> None:
    def unlink(self: Segment) -> None:
        self.path.unlink(missing_ok=True)

    patch.setattr(Segment, "unlink", unlink)


def log_after_a_cut(patch: Patch) -> None:
    patch.setattr(Cut, "flush", not_called)


def log_that_recovery_cut(patch: Patch) -> None:
    patch.setattr(CommitLog, "truncate", CommitLog.cut)


def queues_before_their_state(patch: Patch) -> None:
    def flush(self: ConsumeQueues, pages_min: int = 0) -> bool:
        return True

    patch.setattr(ConsumeQueues, "flush", flush)


def index_before_its_time(patch: Patch) -> None:
    def flush(self: KeyIndex) -> int:
        return self._files[-1].header.end_ms if self._files else 0

    patch.setattr(KeyIndex, "flush", flush)


PUTS: Final = {"put": 12, "dispatch": 6, "flush_log": 4, "flush_queues": 4, "flush_checkpoint": 3}
CUTTING: Final = {**PUTS, "put": 6, "cut": 6, "kill": 1, "restart": 1}
RETAINING: Final = {"put": 6, "dispatch": 2, "flush_log": 2, "retain": 5, "cut": 5}
KILLING: Final = {**PUTS, "kill": 6}
FORKING: Final = {"put": 1, "fork": 1}
#: so few cuts that there are files of queues to go
STATING: Final = {"put": 8, "dispatch": 4, "flush_queues": 6, "cut": 2, "flush_log": 4}
#: what is kept was on the disk already, so that only what is cut off can be missed
CUTTING_FLUSHED: Final = {**CUTTING, "flush_log": 16}


def of(weights: dict[str, int], **others: Any) -> Manner:
    return Manner(slaves=0, tables=0, weights=weights, few=True, moments=0.1, **others)


HARD: Final = {"thorough_every": 1, "any_order_every": 1}


class Left(NamedTuple):
    """A sync that is left out, how power is cut then, and what must be said of it."""

    patch: Callable[[Patch], None]
    said: str
    manner: Manner = of(PUTS)


SYNCS: Final = {
    "names of new queue files": Left(leave_out("consumequeues.sync_directories"), "queue", of(RETAINING)),
    "names of queue files that went": Left(names_of_queue_files_that_went, "queue", of(STATING, steps=120, **HARD)),
    "zeros of queues": Left(zeros_of_queues, "queue", of(CUTTING)),
    "queues before their state": Left(queues_before_their_state, "queue"),
    "log after a cut": Left(log_after_a_cut, "INV-9", of(CUTTING_FLUSHED)),
    "log that recovery cut": Left(log_that_recovery_cut, "was on the disk", of(KILLING)),
    "zeros that found no descriptor": Left(zeros_that_found_no_descriptor, "INV-9", of(CUTTING)),
    "zeros of a file cut empty": Left(zeros_of_a_file_cut_empty, "INV-9", of(CUTTING)),
    "queue state that is forgotten": Left(queue_state_that_is_forgotten, "queue", of(FORKING)),
    "mark that is taken back": Left(mark_that_is_taken_back, "closed in order", of({"put": 1, "restart": 1})),
    "log files that go": Left(log_files_that_go, "NotAStore", of(CUTTING, any_order_every=1)),
    "index": Left(leave_out_call("keyindex", "fdatasync"), "key", of(PUTS, thorough_every=1)),
    "index before its time": Left(index_before_its_time, "key", of(PUTS, thorough_every=1)),
    "names of index files": Left(leave_out("keyindex.fsync_directory"), "key", of(CUTTING, **HARD)),
    "set aside": Left(leave_out_call("setaside", "fsync"), "set aside", of(CUTTING)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every cut is recovered from, in several lines."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("sync", SYNCS)
def test_power_cuts_miss_the_sync_of(sync: str, monkeypatch: Patch) -> None:
    left = SYNCS[sync]
    left.patch(monkeypatch)
    outcome = campaign(0, CUTS_MAX, findings_max=1, manner=left.manner)
    assert outcome.findings, f"{outcome.cuts} cuts did not find it"
    assert left.said in outcome.findings[0].problem
