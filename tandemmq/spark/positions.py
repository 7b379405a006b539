"""Positions in queues: what options ask for, and the offsets that Spark keeps in its checkpoint, both as JSON.

A queue is named by topic and place, "broker-a:0"; all of a topic's positions stand together:
{"Orders": {"broker-a:0": 17, "broker-a:1": 20}}. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.spark.errors import OptionRefused

EARLIEST: Final = -2
LATEST: Final = -1
_NAMES: Final = {"earliest": EARLIEST, "latest": LATEST}


class QueueKey(NamedTuple):
    """One queue of a topic."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class Span(NamedTuple):
    """Queue offsets [start, end): what a queue holds, or what is read of it."""

    start: int
    end: int

    @property
    def rows(self) -> int:
        return max(0, self.end - self.start)


Offsets = dict[QueueKey, int]


@dataclass(frozen=True, slots=True)
class At:
    """A place in any queue: earliest, latest, an exact queue offset, or the first message of a time."""

    offset: int = LATEST
    time_ms: int | None = None

    @classmethod
    def named(cls, offset: int) -> At:
        return cls(offset)

    @classmethod
    def time(cls, time_ms: int) -> At:
        return cls(0, time_ms)

    def within(self, span: Span) -> int | None:
        """The queue offset in a queue that holds `span`; None: only its broker can tell. Not checked."""
        if self.time_ms is not None:
            return None
        if self.offset == EARLIEST:
            return span.start
        return span.end if self.offset == LATEST else self.offset


@dataclass(frozen=True)
class Positions:
    """Where to begin or end: in every queue alike, but for those that are named."""

    everywhere: At
    exact: Mapping[QueueKey, At] = field(default_factory=dict)

    def at(self, queue: QueueKey) -> At:
        return self.exact.get(queue, self.everywhere)


def parse_positions(text: str) -> Positions:
    """`earliest`, `latest`, or JSON of exact queue offsets; queues that the JSON does not name are refused later.

    Raises OptionRefused.
    """
    name = text.strip().lower()
    if name in _NAMES:
        return Positions(At.named(_NAMES[name]))
    try:
        offsets = offsets_from(json.loads(text))
    except ValueError as problem:
        raise OptionRefused(
            f"{text!r} is neither earliest, latest nor JSON such as "
            f'{{"Orders": {{"broker-a:0": 17}}}}: {problem}'
        ) from None
    if not offsets or any(offset < EARLIEST for offset in offsets.values()):
        raise OptionRefused(
            f"{text!r} must name queues, each with a queue offset, -2 (earliest) or -1 (latest)"
        )
    return Positions(At.named(EARLIEST), {queue: At(at) for queue, at in offsets.items()})


def offsets_from(tree: object) -> Offsets:
    """Queue offsets out of their JSON. Raises ValueError."""
    return dict(_walk(tree))


def _walk(tree: object) -> Iterator[tuple[QueueKey, int]]:
    if not isinstance(tree, dict):
        raise ValueError("an object of topics was expected")
    for topic, places in tree.items():
        if not isinstance(places, dict):
            raise ValueError(f"topic {topic} needs an object of queues")
        for place, offset in places.items():
            broker, colon, number = str(place).rpartition(":")
            if not colon or not broker or not number.isdigit():
                raise ValueError(f'a queue is named "broker-a:0", not {place!r}')
            if type(offset) is not int:
                raise ValueError(f"the queue offset of {place} must be a whole number")
            yield QueueKey(str(topic), broker, int(number)), offset


def offsets_tree(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Queue offsets as JSON's tree, always in the same order: Spark compares the text."""
    tree: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        tree.setdefault(queue.topic, {})[f"{queue.broker}:{queue.queue_id}"] = offsets[queue]
    return tree
