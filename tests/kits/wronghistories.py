"""Histories that are wrong on purpose: what is done to the lines of a made-up one, which is right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandemmq.chaos.checking.findings import Judgement
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.lines import (
    Delivered,
    Event,
    Extent,
    Holding,
    Line,
    Seen,
    Send,
    encode_line,
)
from tandemmq.chaos.checking.made import GROUP, MASTERS, MS, TOPIC, MadeUp, lines, unique_id

MADE = MadeUp(queues=2, messages=400)
LAST = MADE.messages - 1
MIDDLE = 50
STRANGER = unique_id(9, 9)
Lines = list[Line]
Kind = TypeVar("Kind", bound=Line)
Change = Callable[[Lines], None]


def judge(found: Sequence[Line], directory: Path, asked: Sequence[str] | None = None) -> Judgement:
    path = directory / "history.jsonl"
    path.write_bytes(b"".join(encode_line(each) + b"\n" for each in found))
    return judge_history(path, asked)


def each(found: Lines, kind: type[Kind], **fields: object) -> list[tuple[int, Kind]]:
    """(place, line) of a kind whose fields are these."""
    return [
        (at, line)
        for at, line in enumerate(found)
        if isinstance(line, kind) and all(getattr(line, k) == v for k, v in fields.items())
    ]


def change(history: Lines, kind: type[Kind], where: dict[str, object], /, **fields: Any) -> None:
    """Replace fields of every line of a kind that is meant."""
    meant = each(history, kind, **where)
    assert meant, (kind, where)
    for at, line in meant:
        history[at] = msgspec.structs.replace(line, **fields)


def drop(found: Lines, kind: type[Kind], **where: object) -> None:
    meant = {at for at, _ in each(found, kind, **where)}
    assert meant, (kind, where)
    found[:] = [line for at, line in enumerate(found) if at not in meant]


def held(
    found: Lines, number: int, queue: int = 0, replica: str | None = None, **fields: Any
) -> None:
    """Another message, log offset or body at a queue offset of the final read."""
    for at, line in each(found, Holding, topic=TOPIC, queue_id=queue):
        if replica in (None, line.replica) and line.first <= number < line.first + len(
            line.unique_ids
        ):
            at_item, values = number - line.first, {}
            for name, value in fields.items():
                items = getattr(line, name)
                values[name] = (*items[:at_item], value, *items[at_item + 1 :])
            found[at] = msgspec.structs.replace(line, **values)


def cut(
    found: Lines, end: int, queue: int = 0, replica: str | None = None, topic: str = TOPIC
) -> None:
    """The final read ends earlier."""
    for at, line in each(found, Holding, topic=topic, queue_id=queue):
        if replica in (None, line.replica):
            keep = max(0, end - line.first)
            found[at] = Holding(
                topic, queue, line.replica, line.first, line.unique_ids[:keep], line.offsets[:keep], line.hashes[:keep]
            )  # fmt: skip
    for at, extent in each(found, Extent, topic=topic, queue_id=queue):
        if replica in (None, extent.replica):
            found[at] = msgspec.structs.replace(extent, end=end)


def hole(found: Lines, number: int, queue: int = 0, replica: str | None = None) -> None:
    """One message is missing from the final read, its bounds stay."""
    for at, line in each(found, Holding, topic=TOPIC, queue_id=queue):
        if replica in (None, line.replica) and line.first <= number < line.first + len(
            line.unique_ids
        ):
            i = number - line.first
            front = Holding(
                TOPIC,
                queue,
                line.replica,
                line.first,
                line.unique_ids[:i],
                line.offsets[:i],
                line.hashes[:i],
            )
            found[at] = front
            found.append(
                Holding(
                    TOPIC, queue, line.replica, number + 1, line.unique_ids[i + 1 :], line.offsets[i + 1 :],
                    line.hashes[i + 1 :],
                )
            )  # fmt: skip


def swap(found: Lines, one: int, two: int) -> None:
    """Two messages of queue 0 lie in each other's place everywhere, acknowledgements included."""
    a, b = unique_id(0, one), unique_id(0, two)
    for at, line in enumerate(found):
        if isinstance(line, Holding | Seen) and line.topic == TOPIC and line.queue_id == 0:
            ids = tuple({a: b, b: a}.get(each, each) for each in line.unique_ids)
            found[at] = msgspec.structs.replace(
                line, unique_ids=ids, hashes=tuple(each[16:] for each in ids)
            )
    places = {a: two, b: one}
    for at, line in enumerate(found):
        if isinstance(line, Send) and line.unique_id in places:
            number = places[line.unique_id]
            found[at] = msgspec.structs.replace(line, queue_offset=number, offset=number * 2 * 256)
        elif isinstance(line, Delivered) and line.unique_id in places:
            number = places[line.unique_id]
            other = b if line.unique_id == a else a
            found[at] = msgspec.structs.replace(line, unique_id=other, body_hash=other[16:])


def again(found: Lines, after_ns: int, **fields: Any) -> None:
    """The last message is given to the group once more."""
    at, given = each(found, Delivered, unique_id=unique_id(0, LAST), group=GROUP)[0]
    found.insert(at + 1, msgspec.structs.replace(given, at_ns=given.at_ns + after_ns, **fields))


def long_after(found: Lines) -> None:
    """As again(), and once more when faults and rebalances are long over."""
    again(found, 20_000 * MS)
    again(found, 40_000 * MS)


def late_master(found: Lines) -> None:
    """The old master acknowledges a send that began after the new one had acknowledged."""
    change(found, Send, {"unique_id": unique_id(0, 350)}, epoch=1, broker=MASTERS[0])


def sends(found: Lines, unique_ids: Collection[str], **fields: Any) -> None:
    """Replace fields of the sends of all of these."""
    for at, line in enumerate(found):
        if isinstance(line, Send) and line.unique_id in unique_ids:
            found[at] = msgspec.structs.replace(line, **fields)


def outage(found: Lines, first: int, last: int, outcome: str) -> None:
    """Nothing is acknowledged between two numbers of queue 1."""
    unique_ids = {unique_id(1, number) for number in range(first, last)}
    sends(found, unique_ids, outcome=outcome, code=-2)


def changed_without_cause(found: Lines) -> None:
    """What was acknowledged first came from an older reign, and nothing ended it."""
    unique_ids = {unique_id(queue, number) for queue in (0, 1) for number in range(60)}
    sends(found, unique_ids, epoch=0)


def calm(found: Lines) -> None:
    """Without its fault."""
    found[:] = [
        line for line in found if not (isinstance(line, Event) and line.fields["what"] == "fault")
    ]


@functools.cache
def _right() -> Lines:
    return list(lines(MADE))


def history() -> Lines:
    """A right one, to be changed: lines are immutable, only the list is new."""
    return list(_right())
