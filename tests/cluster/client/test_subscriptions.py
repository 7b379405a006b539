"""Tag expressions as brokers and clients read them."""

from __future__ import annotations

import pytest

from tandemmq.cluster.client.consuming.subscriptions import parse_subscription
from tandemmq.cluster.client.errors import MessageRefused


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_star_and_empty_want_everything(expression: str) -> None:
    subscription = parse_subscription("T", expression, 5)
    assert subscription.wants(None)
    assert subscription.wants("any")
    assert subscription.as_json()["subString"] == "*"
    assert subscription.as_json()["codeSet"] == []


def test_tags_are_trimmed_and_hashed_as_java_does() -> None:
    subscription = parse_subscription("T", "TagA ||  TagB||", 5)
    assert subscription.as_json() == {
        "topic": "T",
        "subString": "TagA ||  TagB||",
        "tagsSet": ["TagA", "TagB"],
        "codeSet": [2598919, 2598920],
        "subVersion": 5,
        "classFilterMode": False,
        "expressionType": "TAG",
    }


def test_tag_texts_decide_because_hashes_collide() -> None:
    subscription = parse_subscription("T", "Aa", 5)  # "Aa" and "BB" have one Java hash
    assert subscription.wants("Aa")
    assert not subscription.wants("BB")
    assert not subscription.wants(None)


def test_expression_without_a_tag_is_refused() -> None:
    with pytest.raises(MessageRefused, match="names no tag"):
        parse_subscription("T", " || ", 5)
