"""Expressions of pulls: tags, and filters of properties."""

from __future__ import annotations

import random

import pytest
from expressions import Expressions

from tandemmq.cluster.broker.errors import FilterNotServed, SubscriptionUnparsable
from tandemmq.cluster.broker.reading.filters import is_tag_expression, parse_filter, parse_tags
from tandemmq.cluster.broker.reading.propertyfilters import NAMES_SOUGHT_MAX
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.cluster.sql92.tokens import ExpressionRefused
from tandemmq.storage import EVERYTHING, decode_properties

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


def test_few_properties_are_sought_and_many_are_read_with_one_verdict() -> None:
    source = random.Random(7)
    drawn = Expressions(source)
    sought = judged = 0
    for _ in range(600):
        text = drawn.expression()
        try:
            expression = compile_expression(text)
        except ExpressionRefused:
            continue
        known = {name: value.replace("\x01", "") for name, value in drawn.properties().items()}
        pairs = [*known.items(), ("ba", "7"), ("a", ""), *known.items()]
        source.shuffle(pairs)
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
        wide = " OR ".join([*(f"n{each} = 'never there'" for each in range(7)), text])
        few, many = (parse_filter("SQL92", each, served=True).matches for each in (text, wide))
        assert few is not None and many is not None
        expected = expression.matches(decode_properties(encoded))
        assert few(encoded) is many(encoded) is expected
        sought += len(expression.names) <= NAMES_SOUGHT_MAX
        judged += expected
    assert sought > 200 and judged > 40


def test_a_compiled_filter_is_remembered_and_so_is_a_refusal() -> None:
    assert parse_filter("SQL92", "a > 1", served=True) is parse_filter(
        "sql92", "a > 1", served=True
    )
    for _ in range(2):
        with pytest.raises(SubscriptionUnparsable, match="refused at character 4"):
            parse_filter("SQL92", "a >", served=True)
    with pytest.raises(
        SubscriptionUnparsable, match="refused at character 16385: it has more than"
    ):
        parse_filter("SQL92", "a = 1 " + " " * 10_000_000 + "AND b = 1", served=True)
    with pytest.raises(SubscriptionUnparsable, match="no filter of type 'XPATH'"):
        parse_filter("XPATH", "a > 1", served=True)
    with pytest.raises(FilterNotServed, match="filter message by SQL92"):
        parse_filter("SQL92", "a > 1", served=False)


def test_the_more_a_filter_looks_for_the_fewer_bytes_it_is_given_at_once() -> None:
    """120 texts in properties of 30 KB each held up a whole broker for seconds, for one pull."""
    cheap = parse_filter("SQL92", "a CONTAINS 'x'", served=True)
    assert cheap.judged_bytes_max == 1 << 20
    searches = " OR ".join(f"a CONTAINS '{each}'" for each in range(120))
    dear = parse_filter("SQL92", searches, served=True)
    assert dear.judged_bytes_max * 120 <= 4 << 20
