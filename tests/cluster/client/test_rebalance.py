"""Allocation: everybody computes the same shares, no queue is left out or taken twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.client.consuming.rebalance import allocate_averagely, plan
from tandemmq.cluster.client.message import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", number) for number in range(count)]


def share(count: int, members: int, place: int) -> list[int]:
    ids = [f"c{number}" for number in range(members)]
    return [queue.queue_id for queue in allocate_averagely(queues(count), ids, f"c{place}")]


def test_eight_queues_for_three_members_are_three_three_two() -> None:
    assert [share(8, 3, place) for place in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_fifth_member_of_four_queues_gets_nothing() -> None:
    assert [share(4, 5, place) for place in range(5)] == [[0], [1], [2], [3], []]


def test_member_that_the_broker_does_not_list_gets_nothing() -> None:
    assert allocate_averagely(queues(4), ["c0"], "other") == ()


@given(st.integers(0, 64), st.integers(1, 20))
def test_every_queue_has_exactly_one_owner(count: int, members: int) -> None:
    taken = [number for place in range(members) for number in share(count, members, place)]
    assert taken == list(range(count))


@given(st.integers(0, 64), st.integers(1, 20))
def test_shares_differ_by_one_queue_at_most(count: int, members: int) -> None:
    sizes = [len(share(count, members, place)) for place in range(members)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_plan_names_what_to_add_and_what_to_give_up() -> None:
    change = plan("T", queues(4), ["c1", "c0"], "c0", [MessageQueue("T", "a", 3)])
    assert change is not None
    assert [queue.queue_id for queue in change.added] == [0, 1]
    assert [queue.queue_id for queue in change.removed] == [3]


def test_plan_leaves_queues_of_other_topics_alone() -> None:
    other = MessageQueue("Other", "a", 0)
    change = plan("T", queues(1), ["c0"], "c0", [other, MessageQueue("T", "a", 0)])
    assert change is not None
    assert not change


@pytest.mark.parametrize(("count", "members"), [(0, ["c0"]), (4, [])])
def test_without_queues_or_members_the_assignment_stays(count: int, members: list[str]) -> None:
    assert plan("T", queues(count), members, "c0", queues(2)) is None


def test_order_and_duplicates_of_the_lists_do_not_matter() -> None:
    straight = plan("T", queues(5), ["c0", "c1"], "c1", [])
    mixed = plan("T", queues(5)[::-1], ["c1", "c0", "c1"], "c1", [])
    assert straight == mixed
