"""What the next start finds after a power cut, and what it had to find."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tandemmq.chaos.powercut.workload import TOPIC, Expected, HandClock, Queue, Written, config_of
from tandemmq.storage import (
    BLANK_SIZE,
    ConsumeQueue,
    Draft,
    FlushMode,
    MessageStore,
    RunningMark,
    inspect_store,
    jsonfile,
    load_checkpoint,
    open_store,
    setaside,
)

LATER_MS: Final = 1_900_000_000_000
KEYS_FOUND_MAX: Final = 64


class Violation(Exception):
    """A promise or an invariant is broken. Seed and cut replay it."""


def judge(root: Path, boot_id: Path, expected: Expected, *, thorough: bool = True) -> int:
    """Open what a power cut left, and compare. The log's end that was found. Raises Violation, and what storage
    raises when it cannot open it.

    thorough  also look every message up by its key, go on, stop in order, and have the files inspected: as much
              work again
    """
    _judge_small_files(root, boot_id, expected)
    checkpoint = load_checkpoint(root / "checkpoint") if root.exists() else None
    with open_store(config_of(root), HandClock(LATER_MS), boot_id) as store:
        log = _same_log(store, expected)
        if checkpoint is not None:
            late = [
                each
                for each in log
                if each.store_ms <= checkpoint.physic_ms and each.end > store.end
            ]
            if late:
                raise Violation(
                    f"the checkpoint vouches for {checkpoint.physic_ms}, {late[0].offset} is not there (INV-10)"
                )
            if checkpoint.confirmed > store.end:
                raise Violation(
                    f"the checkpoint calls {checkpoint.confirmed} confirmed, the log ends at {store.end} (INV-37)"
                )
        there = [each for each in log if each.end <= store.end]
        _judge_queues(store, there, expected)
        end = store.end
        if not thorough:
            store.close(clean=False)
            return end
        _judge_index(store, there, expected)
        store.put(Draft(TOPIC, 0, b"goes on", b""))
    report = inspect_store(root)
    if not report.sound:
        raise Violation("; ".join(report.problems))
    return end


def _same_log(store: MessageStore, expected: Expected) -> list[Written]:
    """The expected log that was found. What is promised is there, and nothing else than was written there."""
    problem = ""
    for log in expected.logs:
        problem = _differs(store, log, expected.promised)
        if not problem:
            return log
    raise Violation(problem)


def _differs(store: MessageStore, log: list[Written], promised: int) -> str:
    end, start = store.end, store.log.start
    reached = start
    for each in log:
        if each.offset < start:
            continue
        if each.end > end:
            if each.end <= promised:
                return f"message at {each.offset} was on the disk up to {promised}, the log ends at {end}"
            break
        found = store.log.record_at(each.offset)
        if found is None or found != each.data:
            return f"another message at {each.offset} (INV-9)"
        reached = each.end
    if log and start > log[-1].offset and promised > start:
        return f"the log starts at {start}"
    if end > reached and (end % store.config.segment_bytes or not log):
        return f"the log ends at {end}, {reached} was expected (INV-9)"
    return ""


def _judge_queues(store: MessageStore, log: list[Written], expected: Expected) -> None:
    """Each queue holds what the log says and nothing else. Where a topic was just being deleted, as before or after
    that; raises what was wrong with the latter."""
    problem = ""
    for buried in expected.buried:
        wanted: dict[Queue, list[Written]] = {
            (each.topic, each.queue_id): [] for each in store.queues
        }
        for each in log:
            if each.offset >= buried.get(each.topic, 0):
                wanted.setdefault(each.queue, []).append(each)
        found = (_queue_differs(store, queue, all_) for queue, all_ in wanted.items())
        problem = next(filter(None, found), "")
        if not problem:
            return
    raise Violation(problem)


def _queue_differs(store: MessageStore, name: Queue, wanted: list[Written]) -> str:
    """wanted: every message it ever had, also those that the log does not have any more"""
    topic, queue_id = name
    queue = store.queues.get(topic, queue_id)
    there = [each for each in wanted if each.offset >= store.log.start]
    again = wanted and store.next_offset(topic, queue_id) <= wanted[-1].queue_offset
    if queue is None:
        return f"queue {name} is gone" if there or again else ""
    for each in there:
        entry = queue.entry(each.queue_offset)
        if entry is None or entry[:2] != (each.offset, len(each.data)):
            return (
                f"queue {name} has {entry} at {each.queue_offset}, not {each.offset} (INV-4, INV-5)"
            )
    lowest, end = queue.min_offset, queue.max_offset
    if end - lowest > len(there) and (strays := _entries(queue, lowest, end) - len(there)):
        return f"queue {name} has {strays} entries of messages that the log does not have (INV-6)"
    if again:
        return f"queue {name} gives {wanted[-1].queue_offset} away again (INV-5)"
    return ""


def _entries(queue: ConsumeQueue, lowest: int, end: int) -> int:
    """How many messages its entries speak of."""
    entries = (queue.entry(each) for each in range(lowest, end))
    return sum(entry is not None and entry[1] != BLANK_SIZE for entry in entries)


def _judge_index(store: MessageStore, log: list[Written], expected: Expected) -> None:
    assert store.index is not None
    for each in log:
        if each.offset < store.log.start or not expected.lives(each):
            continue
        found, _, _ = store.index.query(each.topic, each.key, KEYS_FOUND_MAX, 0, LATER_MS)
        if each.offset not in found:
            raise Violation(
                f"key {each.key} does not lead to {each.offset}, but to {found} (INV-6)"
            )


def _judge_small_files(root: Path, boot_id: Path, expected: Expected) -> None:
    oldest, newest = expected.tables
    table = jsonfile.load(root / "config" / "table.json")
    version = int(table["version"]) if table is not None else 0
    if not oldest <= version <= newest:
        raise Violation(f"the table is of version {version}, saved were {oldest} to {newest}")
    listed = {each.path.name: each.path for each in setaside.listed(root)}
    for name, content in expected.aside.items():
        if name not in listed or listed[name].read_bytes() != content:
            raise Violation(f"{name} is gone, or is not what was set aside")
    if expected.running is None and not expected.closed:
        return
    mark = RunningMark(root, boot_id)
    if mark.unclean is expected.closed:
        said = "a broker ran here" if expected.running else "the store was closed in order"
        raise Violation(f"no mark says that {said} (INV-11)")
    if expected.running and mark.flushed is not (expected.running is FlushMode.SYNC):
        raise Violation(f"the mark does not say that it ran with {expected.running.value} (INV-39)")
