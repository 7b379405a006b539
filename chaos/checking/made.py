"""Correct histories, made up: what the checkers are tested with, and measured by.

A history has producers, two replicas, a reader, a group of two members, a failover by kill -9 and everything that the
twenty checkers look at. Nothing in it is random: two of the same size are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.chaos.checking.judging import DRAINED_EVENT, RUN_EVENT
from tandemmq.chaos.checking.lines import (
    FAIL,
    INFO,
    OK,
    Admin,
    Audit,
    Block,
    Commit,
    Delivered,
    Derived,
    EpochFile,
    Event,
    Extent,
    Holding,
    Line,
    Lookup,
    Route,
    Seen,
    Send,
    Taken,
    encode_line,
)

MS: Final = 1_000_000
STRETCH: Final = 32  # messages of one pull
CHUNK: Final = 500  # messages of one line of the final read
SIZE: Final = 256
GROUP: Final = "Readers"
TOPIC: Final = "Orders"
TIMED: Final = "Timed"
MASTERS: Final = ("a:1", "b:1")
REPLICAS: Final = ("replica 0", "replica 1")


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Size of a history. messages: in each queue; the master is killed in the middle of them."""

    queues: int = 2
    messages: int = 400
    interval_ns: int = 10 * MS  # between two sends to one queue

    @property
    def kill_ns(self) -> int:
        return self.messages // 2 * self.interval_ns

    @property
    def end_ns(self) -> int:
        return self.messages * self.interval_ns + 3_000 * MS


def unique_id(queue: int, number: int) -> str:
    body_hash = hashlib.blake2b(f"{queue}/{number}".encode(), digest_size=8).hexdigest()
    return f"{queue:04x}{number:012x}{body_hash}"


def lines(made: MadeUp) -> Iterator[Line]:
    """All of it, in the order in which a run writes it."""
    run = {"mode": "S0", "delayed": [TIMED], "group": GROUP, "read": [TOPIC, TIMED]}
    yield Event({"what": RUN_EVENT, "at_ns": 0} | run)
    for queue in range(made.queues):
        for member in (queue % 2,):
            yield Taken(GROUP, TOPIC, queue, member, 0)
    yield from _fault(made)
    for number in range(made.messages):
        for queue in range(made.queues):
            yield from _message(made, queue, number)
        if number == made.messages // 2:
            yield from _unclear(made)
        if (number + 1) % STRETCH == 0 or number + 1 == made.messages:
            for queue in range(made.queues):
                first = number - number % STRETCH
                ids = tuple(unique_id(queue, each) for each in range(first, number + 1))
                at_ns = (number + 1) * made.interval_ns
                yield Seen(
                    TOPIC, queue, first, ids, MASTERS[1], at_ns, tuple(each[16:] for each in ids)
                )
                yield Commit(GROUP, TOPIC, queue, number + 1, MASTERS[0], at_ns)
    yield from _special(made)
    yield Event({"what": DRAINED_EVENT, "at_ns": made.end_ns})
    yield from _final(made)
    yield from _others(made)


def _fault(made: MadeUp) -> Iterator[Line]:
    common = {"what": "fault", "number": 1, "kind": "kill"}
    says = {"says": "kill -9 of replica 0", "victim": "replica 0"}
    yield Event({**common, "phase": "start", "at_ns": made.kill_ns, **says})
    yield Event({**common, "phase": "effect", "at_ns": made.kill_ns + MS, "evidence": "it is gone"})
    yield Event({**common, "phase": "heal", "at_ns": made.kill_ns + 500 * MS})
    yield Event(
        {**common, "phase": "healed", "at_ns": made.kill_ns + 900 * MS, "evidence": "it answers"}
    )


def _message(made: MadeUp, queue: int, number: int) -> Iterator[Line]:
    began_ns = number * made.interval_ns + queue
    second = began_ns > made.kill_ns
    send = Send(
        unique_id(queue, number), TOPIC, queue, queue, number, 1, began_ns, began_ns + 2 * MS, OK, 0,
        MASTERS[second], number, (number * made.queues + queue) * SIZE, 1 + second, 2, 0, SIZE,
    )  # fmt: skip
    yield send
    yield Delivered(
        TOPIC,
        queue,
        number,
        send.unique_id,
        queue % 2,
        began_ns + 4 * MS,
        send.unique_id[16:],
        GROUP,
    )


def _unclear(made: MadeUp) -> Iterator[Line]:
    """A send that was refused, and one whose answer never came: neither is there, and both may be so."""
    for outcome, code in ((FAIL, 14), (INFO, -2)):
        began_ns = made.kill_ns + 10 * MS
        yield Send(
            unique_id(0, made.messages + 100 + code), TOPIC, 0, 99, 0, 1, began_ns, began_ns + MS, outcome, code,
            MASTERS[0],
        )  # fmt: skip


def _special(made: MadeUp) -> Iterator[Line]:
    """Transactions that ended either way, and delayed messages: the first of the queue is what was committed."""
    for number, fate in enumerate(("commit", "rollback")):
        began_ns = number * made.interval_ns
        half = unique_id(500, 90 * number)
        yield Send(
            half, TIMED, 0, 51, number, 1, began_ns, began_ns + MS, OK, 0, MASTERS[0], fate=fate
        )
        if fate == "commit":
            yield Delivered(TIMED, 0, 0, half, 0, began_ns + 9 * MS, half[16:], GROUP)
    for number in range(1, 4):
        began_ns = number * made.interval_ns
        due_ns = began_ns + 1000 * MS
        timed = unique_id(500, number)
        yield Send(
            timed,
            TIMED,
            0,
            50,
            number,
            1,
            began_ns,
            began_ns + MS,
            OK,
            0,
            MASTERS[0],
            number,
            -1,
            1,
            due_ns=due_ns,
        )
        yield Delivered(TIMED, 0, number, timed, 0, due_ns + 20 * MS, timed[16:], GROUP)
    yield Taken(GROUP, TIMED, 0, 0, 0)


def _final(made: MadeUp) -> Iterator[Line]:
    """The final read of every queue on both replicas."""
    for replica in REPLICAS:
        for queue in range(made.queues):
            for first in range(0, made.messages, CHUNK):
                numbers = range(first, min(first + CHUNK, made.messages))
                ids = tuple(unique_id(queue, each) for each in numbers)
                offsets = tuple((each * made.queues + queue) * SIZE for each in numbers)
                yield Holding(
                    TOPIC, queue, replica, first, ids, offsets, tuple(each[16:] for each in ids)
                )
            yield Extent(TOPIC, queue, replica, 0, made.messages)
        ids = tuple(unique_id(500, number) for number in range(4))
        yield Holding(TIMED, 0, replica, 0, ids)
        yield Extent(TIMED, 0, replica, 0, len(ids))


def _others(made: MadeUp) -> Iterator[Line]:
    for replica in REPLICAS:
        for start in range(0, 3 << 20, 1 << 20):
            yield Block(replica, start, 1 << 20, f"digest of {start}")
        yield Derived(replica, "")
        second = (made.messages // 2 * made.queues + 1) * SIZE
        yield EpochFile(replica, ((1, 0), (2, second)), made.messages * made.queues * SIZE)
    yield Audit(False)
    for number in range(0, made.messages, max(1, made.messages // 5)):
        yield Lookup(TOPIC, 0, unique_id(0, number), "key", True, MASTERS[1])
    for number in range(6):
        began_ns = number * 100 * MS
        yield Admin("Orders.queues", "write", str(number), began_ns, began_ns + 10 * MS, OK)
        yield Admin(
            "Orders.queues", "read", str(number), began_ns + 20 * MS, began_ns + 30 * MS, OK, 1
        )
    for number in range(4):
        yield Route("names:1", "broker-a", 1 + number // 2, number * 1000 * MS)


def write(path: Path, made: MadeUp) -> int:
    """The history as a file; how many operations it has."""
    count = 0
    with path.open("wb") as file:
        for line in lines(made):
            file.write(encode_line(line) + b"\n")
            if isinstance(line, Seen):
                count += len(line.unique_ids)
            count += isinstance(line, Send | Delivered | Admin)
    return count
