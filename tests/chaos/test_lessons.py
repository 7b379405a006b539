"""docs/lessons.md: every lesson names its tests, and a run in which it happened would be called by the ids it says.

That the tests exist is held by tests/architecture/test_docs.py, for every document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from wronghistories import (
    LAST,
    MIDDLE,
    Lines,
    calm,
    change,
    changed_without_cause,
    cut,
    drop,
    held,
    history,
    hole,
    judge,
    late_master,
    long_after,
    outage,
)

from tandemmq.chaos.checking.findings import INVALID, UNKNOWN
from tandemmq.chaos.checking.lines import (
    FAIL,
    INFO,
    Block,
    Commit,
    Delivered,
    Derived,
    Event,
    Route,
    Send,
)
from tandemmq.chaos.checking.made import GROUP, MS, TIMED, TOPIC, unique_id

PAGE: Final = Path(__file__).parents[2] / "docs" / "lessons.md"
CITED: Final = re.compile(r"`(tests/[\w/.-]+(?:::\w+)?)`")
#: no checker's: it shows that the run did not come to its end
NO_END: Final = "unknown"


class Lesson(NamedTuple):
    there: str
    wrong: str
    here: str
    shown_by: str
    found_as: str


def lessons() -> list[Lesson]:
    """The rows of the tables about others; the last table is about planted bugs."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").partition("planted bugs\n")[0].splitlines():
        cells = [each.strip() for each in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] not in ("there", "---"):
            found.append(Lesson(*cells))
    return found


def unanswered(found: Lines, number: int) -> None:
    """The send of a message that was read was not acknowledged: it was not confirmed."""
    change(found, Send, {"unique_id": unique_id(0, number)}, outcome=INFO, queue_offset=-1)


def read_and_gone(found: Lines) -> None:
    cut(found, 300)
    unanswered(found, 310)


def beyond_the_end(found: Lines) -> None:
    found.append(Commit(GROUP, TOPIC, 0, 4000, "b:1", 60_000 * MS))


def progress_lost(found: Lines) -> None:
    calm(found)
    found.append(Commit(GROUP, TOPIC, 0, 0, "b:1", 60_000 * MS))


def without_entries(found: Lines) -> None:
    hole(found, MIDDLE, replica="replica 1")
    found.append(Derived("replica 1", "the queue lacks what the log has"))


def old_master_shown(found: Lines) -> None:
    found.append(Route("names:1", "broker-a", 1, 9000 * MS))


def rolled_back_given(found: Lines) -> None:
    found.append(Delivered(TIMED, 0, 4, unique_id(500, 90), 0, 9000 * MS, "", GROUP))


def committed_lost(found: Lines) -> None:
    drop(found, Delivered, topic=TIMED, queue_offset=0)


def timed_lost(found: Lines) -> None:
    drop(found, Delivered, topic=TIMED, queue_offset=3)


def stored_twice(found: Lines) -> None:
    held(found, 51, unique_ids=unique_id(0, 50), hashes=unique_id(0, 50)[16:])


def wrong_place_told(found: Lines) -> None:
    change(found, Send, {"unique_id": unique_id(0, MIDDLE)}, queue_offset=0)


def forked(found: Lines) -> None:
    held(found, MIDDLE, replica="replica 1", unique_ids=unique_id(0, MIDDLE + 1))
    change(found, Block, {"replica": "replica 1", "start": 0}, digest="another's")


def rotten(found: Lines) -> None:
    held(found, MIDDLE, replica="replica 1", hashes="00" * 8)
    cut(found, LAST - 99)


def one_lost_in_calm(found: Lines) -> None:
    calm(found)
    hole(found, MIDDLE)


def not_drained(found: Lines) -> None:
    found[:] = [
        line for line in found if not (isinstance(line, Event) and line.fields["what"] == "drained")
    ]


def offset_given_twice(found: Lines) -> None:
    change(found, Send, {"unique_id": unique_id(0, 61)}, queue_offset=60)


SYMPTOMS: Final[dict[str, Callable[[Lines], None]]] = {
    each.__name__: each
    for each in (
        read_and_gone, beyond_the_end, progress_lost, without_entries, old_master_shown,
        changed_without_cause, rolled_back_given, committed_lost, timed_lost, stored_twice, wrong_place_told, forked,
        rotten, one_lost_in_calm, not_drained, offset_given_twice, late_master,
    )
}  # fmt: skip
SYMPTOMS |= {
    "lost": lambda found: cut(found, LAST - 99),
    "refused": lambda found: outage(found, 20, 160, FAIL),
    "given_twice": long_after,
}

#: what only one lesson says -> how a run shows it
SHOWN: Final[dict[str, str]] = {
    "#1155": "lost", "#5663": "lost", "#7689": "offset_given_twice", "#7017": "late_master", "#6662": "read_and_gone",
    "#8239": "beyond_the_end", "#6703": "not_drained", "#1434": "without_entries", "#678": "without_entries",
    "#3401": "progress_lost", "#331": "refused", "#6316": "old_master_shown", "#9689": "refused", "#9942": "forked",
    "#4800": "changed_without_cause", "#7709": "committed_lost", "EndTransactionProcessor": "given_twice",
    "TransactionalOpBatchService": "given_twice", "#8311": "committed_lost", "#7923": "timed_lost",
    "#8405": "refused", "DefaultMappedFile.flush": "lost", "#3511": "refused", "Kafka 0.8": "lost",
    "KIP-101": "forked", "KIP-279": "forked", "KIP-966": "lost", "KIP-570": "late_master",
    "tried again inside": "stored_twice", "aborted transactions": "rolled_back_given", "came stale": "lost",
    "healthy cluster": "one_lost_in_calm", "offset 0 was told": "wrong_place_told",
    "consumers got stuck": "not_drained",
    "131,418": "lost", "679,153": "rotten", "NATS 2.10.22": "lost", "RabbitMQ": "lost", "etcd 3.4.3": "late_master",
    "etcd 3.5.0": "without_entries", "PostgreSQL, fsync": "lost", "loop_wait": "late_master",
    "watchdog": "late_master", "failsafe": "refused",
}  # fmt: skip


def shown(lesson: Lesson) -> str:
    (symptom,) = {
        name for said, name in SHOWN.items() if re.search(rf"{re.escape(said)}(?!\d)", lesson.there + lesson.wrong)
    }  # fmt: skip
    return symptom


def test_every_lesson_is_shown_by_tests_and_would_be_found() -> None:
    found = lessons()
    assert len(found) == len(SHOWN)
    assert {shown(lesson) for lesson in found} == SYMPTOMS.keys()
    for lesson in found:
        assert CITED.search(lesson.shown_by), lesson.there


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_run_in_which_it_happened_is_called_as_the_page_says(
    symptom: str, tmp_path: Path
) -> None:
    of_it = [lesson for lesson in lessons() if shown(lesson) == symptom]
    lines = history()
    SYMPTOMS[symptom](lines)
    judgement = judge(lines, tmp_path)
    for lesson in of_it:
        if lesson.found_as == NO_END:
            assert judgement.word == UNKNOWN
            continue
        assert judgement.word == INVALID
        assert set(lesson.found_as.split(", ")) <= judgement.counts.keys(), lesson.there
