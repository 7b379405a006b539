"""The judge of the campaign on transactions finds what it is there for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tandemmq.chaos.transactions import judge_transactions
from tandemmq.chaos.transactor import LATE_NS, TransactionBook

DECIDED = {"a": True, "b": False, "c": True}
S = 1_000_000_000


def judged(
    delivered: Mapping[str, int],
    ends: list[tuple[str, int]] | None = None,
    questions: list[tuple[str, int]] | None = None,
) -> list[str]:
    return list(judge_transactions(DECIDED, delivered, ends or [], questions or []))


def test_what_was_committed_is_there_once_and_nothing_else() -> None:
    assert judged({"a": 1, "c": 1}) == []


@pytest.mark.parametrize(
    ("delivered", "word"),
    [
        ({"a": 1}, "LOST c"),
        ({"a": 1, "b": 1, "c": 1}, "SEEN b"),
        ({"a": 2, "c": 1}, "TWICE a"),
        ({"a": 1, "c": 1, "d": 1}, "UNDECIDED d"),
    ],
)
def test_each_kind_of_harm_is_named(delivered: dict[str, int], word: str) -> None:
    (problem,) = judged(delivered)
    assert problem.startswith(word)


def test_a_question_long_after_a_confirmed_end_is_one_too_many() -> None:
    whole = {"a": 1, "c": 1}
    assert judged(whole, [("a", 5 * S)], [("a", 4 * S), ("a", 5 * S + LATE_NS), ("c", 9 * S)]) == []
    (problem,) = judged(whole, [("a", 5 * S)], [("a", 7 * S)])
    assert problem.startswith("ASKED a 2.0 s")


def test_who_writes_first_how_a_transaction_ended_has_the_last_word(tmp_path: Path) -> None:
    one, two = (TransactionBook(tmp_path / "book") for _ in range(2))
    assert one.decided("x") is None
    assert one.decide("x", committed=False, own=False) is False
    assert two.decide("x", committed=True, own=True) is False
    assert two.decided("x") is False and two.decisions() == {"x": False} and two.count() == 1
    one.close()
    two.close()
