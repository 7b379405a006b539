"""How far ahead a range is asked for: by messages, by bytes, and not at all where guesses are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.cluster.client.consuming.ahead import AHEAD_BYTES, AHEAD_MAX, PullsAhead

END = 1_000_000


class Pull:
    def __init__(self, channel: object, offset: int) -> None:
        self.channel, self.offset = channel, offset


class Asked:
    """Pulls that were asked for, and those that nobody waits for any more."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.forgotten: list[int] = []
        self.channel: Any = object()
        self.ahead = PullsAhead(self._ask, lambda pull: self.forgotten.append(pull.offset))  # type: ignore[attr-defined]

    def _ask(self, channel: Any, offset: int) -> Any:
        self.offsets.append(offset)
        return Pull(channel, offset)

    def read(self, answers: int, count: int, size: int, offset: int = 0) -> int:
        """That many answers of `count` messages and `size` bytes; the offset behind them."""
        for _ in range(answers):
            self.ahead.take(self.channel, offset, END)
            self.ahead.learn(count, size)
            offset += count
        return offset


@pytest.mark.parametrize(
    ("size", "most"),
    [(100, AHEAD_MAX), (40_000, AHEAD_MAX), (256 << 10, AHEAD_BYTES >> 18), (8 << 20, 1)],
)
def test_no_more_bytes_are_under_way_than_allowed_and_one_answer_at_least(
    size: int, most: int
) -> None:
    asked = Asked()
    offset = asked.read(200, 32, size)
    under_way = len([each for each in asked.offsets if each >= offset])
    assert most // 2 <= under_way <= most
    assert not asked.forgotten
    assert sorted(set(asked.offsets)) == asked.offsets, "nothing is asked for twice"


def test_answers_that_become_large_are_asked_for_less_far_ahead() -> None:
    asked = Asked()
    offset = asked.read(100, 32, 1_000)
    offset = asked.read(100, 32, 1 << 20, offset)
    assert len([each for each in asked.offsets if each >= offset]) <= 2
    assert not asked.forgotten


def test_a_shorter_answer_ends_the_guessing() -> None:
    asked = Asked()
    offset = asked.read(50, 32, 1_000)
    under_way = [each for each in asked.offsets if each >= offset + 32]
    asked.read(1, 7, 1_000, offset)
    assert asked.forgotten == under_way
