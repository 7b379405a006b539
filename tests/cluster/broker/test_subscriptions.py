"""cluster/broker/reading/subscriptions.py: which tags a subscription stands for."""

from __future__ import annotations

import pytest

from tandemmq.cluster.broker.reading.subscriptions import Subscription, SubscriptionData, split_tags
from tandemmq.storage import java_hash

TAG_A, TAG_B = java_hash("TagA"), java_hash("TagB")


def test_hashes_are_javas() -> None:
    assert (TAG_A, TAG_B) == (2598919, 2598920)


@pytest.mark.parametrize("expression", [None, "", "*", "  *  "])
def test_no_expression_means_every_message(expression: str | None) -> None:
    assert Subscription.of("T", expression, None).selector.tag_codes is None


def test_tags_are_hashed_without_their_blanks() -> None:
    found = Subscription.of("T", " TagA ||TagB || ", "tag")
    assert found.selector.tag_codes == {TAG_A, TAG_B}
    assert found.tags == ("TagA", "TagB")


def test_own_hashes_of_a_member_count_too() -> None:
    # The Rust client hashes "TagA " and " TagB"; the Java client would do with its own.
    wrong = [java_hash("TagA "), java_hash(" TagB")]
    data = SubscriptionData("T", "TagA || TagB", ["TagA ", " TagB"], wrong, 5)
    found = Subscription.from_wire(data)
    assert found.selector.tag_codes == {TAG_A, TAG_B, *wrong}
    assert found.to_json()["codeSet"] == wrong
    assert found.sub_version == 5


def test_filter_texts_are_not_tags() -> None:
    found = Subscription.of("T", "a > 1", "SQL92")
    assert not found.is_tag
    assert found.selector.tag_codes is None


def test_empty_parts_are_no_tags() -> None:
    assert split_tags("||A|| ||B||") == ["A", "B"]
