"""C-21: every queue as a log that only grows, every setting as a register, put to a linearizability checker.

A send appends. What was answered did so between its beginning and its answer, at the place that the answer names; what
was never answered did so at any later time, or never. A reader sees what lies below the end. What lies there when
nobody sends any more is all that the log ever held, but what the mode may lose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from tandemmq.chaos.checking.findings import LINEARIZABILITY, Findings
from tandemmq.chaos.checking.linear import FOREVER, matters
from tandemmq.chaos.checking.lines import OK, Admin, Seen, Send
from tandemmq.chaos.checking.onequeue import QueueHistory, said
from tandemmq.chaos.checking.porcupine import (
    ILLEGAL,
    LEGAL,
    LOG,
    READ,
    REGISTER,
    WHOLE,
    WRITE,
    Porcupine,
    Question,
)
from tandemmq.chaos.faults.fault import Unsupported

#: Operations of one question, where a queue can be cut so: memory grows with their square.
STRETCH: Final = 2_000


class Operation(NamedTuple):
    """row: as Question has it. place: of a queue's operation, the last position that it wrote or read."""

    row: tuple[int, ...]
    of: Send | Seen | Admin
    place: int = 0

    @property
    def called_ns(self) -> int:
        return self.row[0]

    @property
    def returned_ns(self) -> int:
        return self.row[1]

    @property
    def order(self) -> tuple[int, int]:
        """Where it comes in a queue's log: who reads a position, behind who wrote it."""
        return self.place, self.row[2]


@dataclass(slots=True)
class Orders:
    """Asks about one object after the other. doubts: what was not answered."""

    porcupine: Porcupine
    findings: Findings
    doubts: list[str] = field(default_factory=list)
    ended: bool = False  # by itself: nobody answers any more

    def queue(self, history: QueueHistory, declared: frozenset[str]) -> None:
        """declared: may be missing by the promises of the mode."""
        for question, operations in queue_questions(history, declared):
            self._ask(f"queue {history.queue}", question, operations)

    def settings(self, settings: Mapping[str, Sequence[Admin]]) -> None:
        for key, history in settings.items():
            self._ask(f"setting {key}", *setting_question(history))

    def _ask(self, what: str, question: Question, operations: Sequence[Operation]) -> None:
        if self.ended:
            return
        self.findings.saw(LINEARIZABILITY, len(operations))
        try:
            answer = self.porcupine.ask(question)
        except Unsupported as problem:
            self.ended = True
            self.doubts.append(f"{LINEARIZABILITY}: no answer on {what}: {problem}")
            return
        if answer.result == ILLEGAL:
            # Of a queue, number len(operations) is the last reading: it lacks what is not there, and has what is.
            left = [operations[at].of for at in answer.left or () if at < len(operations)]
            self.findings.add(
                LINEARIZABILITY, f"no order explains {what}: {answer.fits} of {len(question.operations)} operations "
                "are the most that one explains", _began_ns(left[0]) if left else 0, tuple(map(_said, left)),
            )  # fmt: skip
        elif answer.result != LEGAL:
            self.doubts.append(
                f"{LINEARIZABILITY}: no answer on {what} in time, {len(operations)} operations"
            )


def setting_question(history: Sequence[Admin]) -> tuple[Question, list[Operation]]:
    """All that was done to one setting, whose first value nobody knows."""
    numbers: dict[str, int] = {}
    operations = [
        Operation(
            (
                each.began_ns,
                each.ended_ns if each.outcome == OK else FOREVER,
                WRITE if each.action == "write" else READ,
                -1,
                numbers.setdefault(each.value, len(numbers)),
            ),
            each,
        )
        for each in history
        if matters(each)
    ]
    return Question(REGISTER, [each.row for each in operations]), operations


def queue_questions(
    history: QueueHistory, declared: frozenset[str]
) -> Iterator[tuple[Question, list[Operation]]]:
    """All that was done to one queue, stretch by stretch. None of a queue that the broker itself puts messages into."""
    if any(send.due_ns or send.fate for send in history.sends.values()):
        return
    start, end = history.extents[history.replica]
    reference = history.reference()
    numbers: dict[str, int] = {}
    content = [
        numbers.setdefault(reference[at].unique_id, len(numbers)) if at in reference else -1
        for at in range(start, end)
    ]
    apart = len(numbers) == len(content) - content.count(
        -1
    )  # else a message has more than one place
    operations = [
        *_appends(history, start, end, numbers, content, declared),
        *_reads(history.seen, start, numbers, declared),
    ]
    operations.sort(key=lambda each: each.order)
    if not operations and not content:
        return
    begin, asked = start, 0
    for stretch in _stretches(operations, cut=apart):
        asked += len(stretch)
        until = end if asked == len(operations) else min(stretch[-1].place + 1, end)
        first = min([begin, *(each.row[3] for each in stretch if each.row[2] == READ)])
        rows = [each.row for each in stretch]
        rows.append((FOREVER, FOREVER, WHOLE, -1))
        yield Question(LOG, rows, content[first - start : until - start], first, begin), stretch
        begin = until


def _appends(
    history: QueueHistory,
    start: int,
    end: int,
    numbers: dict[str, int],
    content: Sequence[int],
    declared: frozenset[str],
) -> Iterator[Operation]:
    """Sends that took effect, or say so."""
    copies = Counter(content)
    places = {number: at for at, number in enumerate(content, start)}
    for unique_id, send in history.sends.items():
        number = numbers.get(unique_id, -1)
        stored = copies[number] if number >= 0 else 0
        acknowledged = send.outcome == OK
        deleted = 0 <= send.queue_offset < start  # with the head of the log
        if not stored and (not acknowledged or deleted or unique_id in declared):
            continue
        if stored and not history.attempts[unique_id]:
            continue  # refused: nothing put it there
        if not stored:
            number = numbers[unique_id] = len(numbers)
        ended_ns, at = (send.ended_ns, send.queue_offset) if acknowledged else (FOREVER, -1)
        place = places.get(number, send.queue_offset if acknowledged else end)
        yield Operation((send.began_ns, ended_ns, WRITE, at, number), send, place)
        for _ in range(1, min(stored, history.attempts[unique_id])):
            yield Operation((0, FOREVER, WRITE, -1, number), send, place)  # when is not kept


def _reads(
    seen: Iterable[Seen], start: int, numbers: dict[str, int], declared: frozenset[str]
) -> Iterator[Operation]:
    """What readers saw. Each asks again when it has its answer, so that an answer began no earlier than the last."""
    asked_ns: dict[int, int] = {}
    for each in sorted(seen, key=lambda each: each.at_ns):
        began_ns = asked_ns.get(each.reader, 0)
        asked_ns[each.reader] = each.at_ns
        first, unique_ids = each.first, each.unique_ids
        if first < start:  # since deleted with the head of the log
            first, unique_ids = start, unique_ids[start - first :]
        gone = [at for at, unique_id in enumerate(unique_ids) if unique_id in declared]
        unique_ids = unique_ids[: gone[0]] if gone else unique_ids
        if unique_ids:
            values = [numbers.setdefault(each, len(numbers)) for each in unique_ids]
            row = (began_ns, each.at_ns, READ, first, *values)
            yield Operation(row, each, first + len(unique_ids) - 1)


def _stretches(operations: Sequence[Operation], *, cut: bool) -> Iterator[list[Operation]]:
    """Cut where an order of the whole is one of the parts, one after the other, and the other way round.

    That is so where nobody in front began after somebody behind had ended, and who is behind works on later positions.
    """
    begun_ns = list(accumulate((each.called_ns for each in operations), max))
    ended_ns = list(accumulate((each.returned_ns for each in reversed(operations)), min))[::-1]
    first = 0
    for at in range(1, len(operations)):
        if (
            cut
            and at - first >= STRETCH
            and operations[at - 1].place < operations[at].place
            and begun_ns[at - 1] <= ended_ns[at]
        ):
            yield list(operations[first:at])
            first = at
    yield list(operations[first:])


def _began_ns(operation: Send | Seen | Admin) -> int:
    return operation.at_ns if isinstance(operation, Seen) else operation.began_ns


def _said(operation: Send | Seen | Admin) -> str:
    match operation:
        case Send():
            return said(operation)
        case Seen():
            return (
                f"read of {len(operation.unique_ids)} from {operation.first} on from {operation.broker}, "
                f"t={operation.at_ns}"
            )
        case Admin():
            return (
                f"{operation.action} {operation.value} {operation.outcome} by client {operation.client}, "
                f"t={operation.began_ns}..{operation.ended_ns}"
            )
