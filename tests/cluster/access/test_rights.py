"""cluster/access/rights.py: which rule decides."""

from __future__ import annotations

import itertools

import pytest

from tandemmq.cluster.access.rights import (
    Action,
    Need,
    PolicyKind,
    ResourceKind,
    Rule,
    Rules,
    merged,
    read_resource,
    read_rule,
)

TOPIC = ResourceKind.TOPIC
HOST = "127.0.0.1"


def rule(resource: str, decision: str, *actions: str, sources: tuple[str, ...] = ()) -> Rule:
    return read_rule(resource, actions or ("Pub",), sources, decision)


def need(name: str | None, *actions: Action, kind: ResourceKind = TOPIC) -> Need:
    return Need(kind, name, frozenset(actions or (Action.PUB,)))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (["Topic:abc* Allow", "Topic:abcdef Deny"], False),
        (["Topic:abc* Deny", "Topic:abcdef Allow"], True),
        (["Topic:a* Deny", "Topic:abc* Allow"], True),
        (["Topic:a* Allow", "Topic:abc* Deny"], False),
        (["Topic:* Deny", "Topic:a* Allow"], True),
        (["* Deny", "Topic:* Allow"], True),
        (["* Allow", "Topic:* Deny"], False),
        (["* Allow", "Group:* Deny"], True),
    ],
)
def test_the_longest_name_decides_in_any_order(rules: list[str], allowed: bool) -> None:
    for order in itertools.permutations(rules):
        custom = tuple(rule(*text.split()) for text in order)
        assert (Rules(custom).refusal(need("abcdef"), HOST) is None) is allowed


def test_deny_comes_first_among_equals() -> None:
    for order in itertools.permutations(("Allow", "Deny")):
        rules = Rules(tuple(rule("Topic:a", decision) for decision in order))
        assert rules.refusal(need("a"), HOST) == "the decision is deny."


def test_custom_hides_default_only_where_it_is_about_the_action() -> None:
    """The decisions that were seen on 5.3.3."""
    hidden = Rules((rule("Topic:abc*", "Allow"),), (rule("Topic:abcdef", "Deny"),))
    assert hidden.refusal(need("abcdef"), HOST) is None
    shown = Rules((rule("Topic:abcdef", "Deny", "Sub"),), (rule("Topic:*", "Allow"),))
    assert shown.refusal(need("abcdef"), HOST) is None
    assert shown.refusal(need("abcdef", Action.SUB), HOST) == "the decision is deny."
    assert Rules().refusal(need("abcdef"), HOST) == "no matched policies."


def test_any_of_the_actions_that_a_request_takes_is_enough() -> None:
    get = Rules((rule("Topic:t", "Allow", "Get"),))
    assert get.refusal(need("t", Action.SUB, Action.GET), HOST) is None
    assert get.refusal(need("t", Action.SUB), HOST) is not None
    everything = Rules((rule("*", "Allow", "All"),))
    assert everything.refusal(need(None, Action.LIST), HOST) is None
    assert Rules((rule("Topic:t*", "Allow", "All"),)).refusal(need(None, Action.LIST), HOST)


@pytest.mark.parametrize(
    ("source", "host", "meant"),
    [
        ("10.0.0.0/8", "10.1.2.3", True), ("10.0.0.0/8", "127.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True), ("::1", "::1", True), ("::/0", "127.0.0.1", False),
        ("0.0.0.0/0", "::1", False), ("::ffff:10.0.0.1", "10.0.0.1", True),
    ],
)  # fmt: skip
def test_sources_are_compared_with_their_family(source: str, host: str, meant: bool) -> None:
    rules = Rules((rule("Topic:t", "Allow", sources=(source,)),))
    assert (rules.refusal(need("t"), host) is None) is meant


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("*", "*"), ("Any:x", "*"), ("topic:*", "Topic:*"), ("TOPIC:a*b*", "Topic:a*"),
        ("Group:abc*f", "Group:abc*f"), ("Cluster:c", "Cluster:c"),
    ],
)  # fmt: skip
def test_resources_are_read_as_rocketmq_reads_them(text: str, shown: str) -> None:
    found = read_resource(text)
    assert found is not None and found.text == shown


@pytest.mark.parametrize("text", ["", None, "Topic", "Queue:x", "x", ":x"])
def test_what_is_no_resource_is_none(text: str | None) -> None:
    assert read_resource(text) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, ["Pub"], [], "Allow"), "The resource is null."),
        (("Topic:t", ["Foo"], [], "Allow"), "The actions is empty."),
        (("Topic:t", ["Pub", "any"], [], "Allow"), "The actions can not be Any."),
        (("Topic:t", ["Pub"], ["10.0.0.*"], "Allow"), "The source ip is invalid."),
        (("Topic:t", ["Pub"], [" "], "Allow"), "The source ip is empty."),
        (("Topic:t", ["Pub"], [], "Maybe"), "The decision is null or illegal."),
        (("Topic:t", ["Pub"], [], None), "The decision is null or illegal."),
    ],
)
def test_a_rule_that_is_none_is_refused_in_rocketmqs_words(given: tuple, words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError) as caught:
        read_rule(*given)
    assert str(caught.value) == words


def test_a_rule_for_the_same_resource_takes_the_place_of_the_former() -> None:
    first, other, second = (
        rule("Topic:a", "Allow"),
        rule("Topic:b", "Deny"),
        rule("Topic:a", "Deny"),
    )
    assert merged([first, other], [second]) == [second, other]
    rules = Rules().having(PolicyKind.DEFAULT, [first])
    assert rules.policies_json() == [
        {
            "policyType": "Default",
            "entries": [{"actions": ["Pub"], "decision": "Allow", "resource": "Topic:a"}],
        }
    ]
