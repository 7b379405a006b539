"""What must hold between a history and what a broker serves. Pure: no I/O, no clock.

Each checker yields a sentence per violation; none at all means that everything holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tandemmq.chaos.checking.lines import Send

Queue = tuple[str, int]  # topic, queue id


class Served(NamedTuple):
    """One message as a pull returned it. place: address of its broker and offset in the log, as it says itself.
    body_hash: of the body that came (tandemmq.chaos.load)."""

    queue_offset: int
    unique_id: str
    place: tuple[str, int]
    body_hash: str


class QueueContents(NamedTuple):
    """What one queue served from `read_from` to its end, and the bounds the broker names."""

    read_from: int
    min_offset: int
    max_offset: int
    messages: list[Served]


def check_acknowledged(
    acknowledged: Iterable[Send], served: Mapping[Queue, QueueContents]
) -> Iterator[str]:
    """Every acknowledged message is readable at its acknowledged queue offset, with its body.

    Messages in front of what was read (QueueContents.read_from) are not looked at.
    """
    by_place = {
        (queue, message.queue_offset): message
        for queue, contents in served.items()
        for message in contents.messages
    }
    for ack in acknowledged:
        queue = (ack.topic, ack.queue_id)
        contents = served.get(queue)
        if contents is None:
            yield f"acknowledged in round {ack.round}, but its queue is not served: {ack}"
            continue
        if ack.queue_offset < contents.read_from:
            continue
        found = by_place.get((queue, ack.queue_offset))
        if found is None:
            yield (
                f"LOST: acknowledged in round {ack.round}, queue ends at {contents.max_offset}: "
                f"{ack}"
            )
        elif found.unique_id != ack.unique_id:
            yield f"REPLACED by {found.unique_id}: {ack}"
        elif found.place != (ack.broker, ack.offset):
            yield f"MOVED in the log to {found.place}: {ack}"


def check_queues(served: Mapping[Queue, QueueContents]) -> Iterator[str]:
    """Queue offsets are contiguous, no message comes twice, every body is what was sent."""
    seen: dict[str, tuple[Queue, int]] = {}
    for queue, contents in served.items():
        if contents.min_offset != 0:
            yield f"queue {queue} begins at {contents.min_offset}, nothing was ever deleted"
        wanted = range(contents.read_from, contents.max_offset)
        offsets = [message.queue_offset for message in contents.messages]
        if offsets != list(wanted):
            yield f"queue {queue} serves {_gaps(offsets)}, not {wanted.start}..{wanted.stop - 1}"
        for message in contents.messages:
            place = (queue, message.queue_offset)
            before = seen.setdefault(message.unique_id, place)
            if before != place:
                yield f"REPEATED: {message.unique_id} at {before} and at {place}"
            if not message.unique_id.endswith(message.body_hash):
                yield (
                    f"DAMAGED: body of {message.unique_id} at {place} has hash {message.body_hash}"
                )


def _gaps(offsets: list[int]) -> str:
    """The runs of offsets, shortly."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][1] + 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    shown = ", ".join(f"{first}..{last}" for first, last in runs[:10])
    return shown + (", ..." if len(runs) > 10 else "") if runs else "nothing"
