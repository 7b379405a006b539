"""Tag expressions of pulls."""

from __future__ import annotations

import pytest

from tandemmq.cluster.broker.errors import SubscriptionUnparsable
from tandemmq.cluster.broker.reading.filters import is_tag_expression, parse_tags
from tandemmq.storage import EVERYTHING

TAG_A, TAG_B, PAYMENT = 2598919, 2598920, -786681338  # Java's String.hashCode


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_an_empty_expression_selects_every_message(expression: str | None) -> None:
    assert parse_tags(expression) == EVERYTHING


def test_tags_stand_between_double_bars_with_blanks_around_them() -> None:
    assert parse_tags(" TagA ||TagB|| || payment").tag_codes == {TAG_A, TAG_B, PAYMENT}


def test_separators_alone_select_nothing_and_are_refused() -> None:
    with pytest.raises(SubscriptionUnparsable):
        parse_tags("|| ||")


def test_absent_and_empty_expression_types_mean_tags() -> None:
    assert [is_tag_expression(kind) for kind in (None, "", "TAG", "tag", "SQL92")] == [
        True,
        True,
        True,
        True,
        False,
    ]
