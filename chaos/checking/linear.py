"""C-16: whether reads and writes of one register can be put in an order that explains them (Wing and Gong, Lowe).

An operation takes effect somewhere between its beginning and its end; one whose outcome is unknown at any later
time, or never. The search tries what could come next and remembers (what is done, value) that led nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tandemmq.chaos.checking.lines import Admin

OPEN_MAX: Final = 60  # operations under way at once: beyond it the search is given up
STEPS_MAX: Final = 2_000_000
FOREVER: Final = 1 << 62


class TooManyAtOnce(Exception):
    """No answer within the bounds of the search."""


def linearizable(operations: Iterable[Admin], initial: str | None = None) -> bool:
    """Whether an order explains all. initial: the value before; None: any. Raises TooManyAtOnce."""
    relevant = [each for each in operations if matters(each)]
    relevant.sort(key=lambda each: each.began_ns)
    ends = [each.ended_ns if each.outcome == "ok" else FOREVER for each in relevant]
    return _search(relevant, ends, initial)


def matters(operation: Admin) -> bool:
    """Whether it says anything. Refused ones did nothing; a read without an answer says nothing."""
    return operation.outcome == "ok" or (
        operation.outcome == "info" and operation.action == "write"
    )


def _search(operations: Sequence[Admin], ends: Sequence[int], initial: str | None) -> bool:
    """Depth first over (first not done, later ones done, value)."""
    count = len(operations)
    must = [end != FOREVER for end in ends]
    seen: set[tuple[int, frozenset[int], str | None]] = set()
    stack: list[tuple[int, frozenset[int], str | None]] = [(0, frozenset(), initial)]
    steps = 0
    while stack:
        first, done, value = stack.pop()
        while first < count and first in done:
            done -= {first}
            first += 1
        left = [at for at in range(first, count) if must[at] and at not in done]
        if not left:
            return True
        state = (first, done, value)
        if state in seen:
            continue
        seen.add(state)
        steps += 1
        if steps > STEPS_MAX:
            raise TooManyAtOnce(f"no order found in {STEPS_MAX} steps")
        soonest_end = min(ends[at] for at in left[: OPEN_MAX + 1])
        under_way = 0
        for at in range(first, count):
            if at in done:
                continue
            operation = operations[at]
            if operation.began_ns > soonest_end:
                break
            if must[at]:
                under_way += 1
                if under_way > OPEN_MAX:
                    raise TooManyAtOnce(f"more than {OPEN_MAX} operations at once")
            if operation.action == "write" or value is None or operation.value == value:
                stack.append((first, done | {at}, operation.value))
    return False
