"""Resources, actions and policies, and which entry of a policy decides. Core.

A user has at most one set of rules; of its two policies Default counts only where no entry of Custom is about what is
asked. Source: RocketMQ's org.apache.rocketmq.auth.authorization; the order of entries is that of the releases after
5.3.3, where the longest prefix wins and Deny comes first among equals.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tandemmq.replication.door import Network


class AccessRefused(Exception):
    """A request that access control answers: with this code and this remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class Action(enum.IntEnum):
    """What is done to a resource; numbers are RocketMQ's."""

    ALL = 1
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceKind(enum.IntEnum):
    """Of what a resource is; numbers are RocketMQ's."""

    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5

    @property
    def shown(self) -> str:
        return self.name.capitalize()


class Reach(enum.IntEnum):
    """How a rule's resource names what it is about. The larger number is the stronger rule."""

    EVERYTHING = 0
    KIND = 1
    PREFIX = 2
    LITERAL = 3


class Decision(enum.Enum):
    """What a rule says."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyKind(enum.Enum):
    """Custom is looked at first, Default where it says nothing."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


_ACTIONS: Final = {action.name: action for action in Action}
_KINDS: Final = {kind.name: kind for kind in ResourceKind}
Actions = frozenset[Action]


class Need(NamedTuple):
    """What a request does: to pass, one of these actions on this resource must be allowed.

    name   None: on all of the kind, which only rules for all of them allow
    """

    kind: ResourceKind
    name: str | None
    actions: Actions

    @property
    def text(self) -> str:
        """As refusals name the resource."""
        return f"{self.kind.shown}:{'*' if self.name is None else self.name}"


class RuledResource(NamedTuple):
    """What a rule is about. name: the literal, or the prefix without its star."""

    kind: ResourceKind
    reach: Reach
    name: str = ""

    @property
    def text(self) -> str:
        if self.reach is Reach.EVERYTHING:
            return "*"
        star = "" if self.reach is Reach.LITERAL else "*"
        return f"{self.kind.shown}:{self.name}{star}"

    def matches(self, need: Need) -> bool:
        if self.reach is Reach.EVERYTHING:
            return True
        if self.kind is not need.kind:
            return False
        if self.reach is Reach.KIND:
            return True
        if need.name is None:
            return False
        if self.reach is Reach.LITERAL:
            return need.name == self.name
        return need.name.startswith(self.name)


class Rule(NamedTuple):
    """One entry of a policy. sources: where the request may come from, as written; none: from everywhere."""

    resource: RuledResource
    actions: Actions
    sources: tuple[str, ...]
    decision: Decision

    def is_about(self, need: Need, host: str) -> bool:
        if Action.ALL not in self.actions and self.actions.isdisjoint(need.actions):
            return False
        return self.resource.matches(need) and (not self.sources or _is_from(host, self.sources))

    @property
    def strength(self) -> tuple[int, int, bool]:
        """Of two rules about the same need the one with the larger strength decides."""
        resource = self.resource
        return resource.reach, len(resource.name), self.decision is Decision.DENY

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "actions": [action.name.capitalize() for action in sorted(self.actions)],
            "decision": self.decision.value,
            "resource": self.resource.text,
        }
        return {**shown, "sourceIps": list(self.sources)} if self.sources else shown


class Rules(NamedTuple):
    """The policies of one user."""

    custom: tuple[Rule, ...] = ()
    default: tuple[Rule, ...] = ()

    def refusal(self, need: Need, host: str) -> str | None:
        """How a refusal of this need ends; None where it is allowed."""
        for rules in self:
            strongest = max(
                (rule for rule in rules if rule.is_about(need, host)),
                key=lambda rule: rule.strength,
                default=None,
            )
            if strongest is not None:
                return None if strongest.decision is Decision.ALLOW else "the decision is deny."
        return "no matched policies."

    def of(self, kind: PolicyKind) -> tuple[Rule, ...]:
        return self.custom if kind is PolicyKind.CUSTOM else self.default

    def having(self, kind: PolicyKind, rules: Iterable[Rule]) -> Rules:
        """The same with one policy replaced."""
        if kind is PolicyKind.CUSTOM:
            return Rules(tuple(rules), self.default)
        return Rules(self.custom, tuple(rules))

    def policies_json(self, wanted: str = "") -> list[dict[str, Any]]:
        """The policies that have rules; with `wanted` only rules whose resource has that in its text."""
        found = []
        for kind in PolicyKind:
            entries = [r.to_json() for r in self.of(kind) if wanted in r.resource.text]
            if entries:
                found.append({"entries": entries, "policyType": kind.value})
        return found


# -- from texts


def read_resource(text: str | None) -> RuledResource | None:
    """What "Topic:abc*" names; None where that is nothing."""
    if not text:
        return None
    if text == "*":
        return RuledResource(ResourceKind.ANY, Reach.EVERYTHING)
    kind_text, _, name = text.partition(":")
    kind = _KINDS.get(kind_text.upper())
    if kind is None or not name:
        return None
    if kind is ResourceKind.ANY:
        return RuledResource(ResourceKind.ANY, Reach.EVERYTHING)
    if name == "*":
        return RuledResource(kind, Reach.KIND)
    if name.endswith("*"):
        return RuledResource(kind, Reach.PREFIX, name.partition("*")[0])
    return RuledResource(kind, Reach.LITERAL, name)


def read_rule(
    resource: str | None,
    actions: Iterable[str] | None,
    sources: Iterable[str] | None,
    decision: str | None,
) -> Rule:
    """A rule from its texts. Raises ValueError with RocketMQ's words."""
    found = read_resource(resource)
    if found is None:
        raise ValueError("The resource is null.")
    words = [word.strip().upper() for word in actions or ()]
    if "ANY" in words:
        raise ValueError("The actions can not be Any.")
    known = frozenset(_ACTIONS[word] for word in words if word in _ACTIONS)
    if not known:
        raise ValueError("The actions is empty.")
    places = tuple(sources or ())
    for place in places:
        if not place.strip():
            raise ValueError("The source ip is empty.")
        if _network(place.strip()) is None:
            raise ValueError("The source ip is invalid.")
    for each in Decision:
        if decision is not None and decision.lower() == each.value.lower():
            return Rule(found, known, tuple(place.strip() for place in places), each)
    raise ValueError("The decision is null or illegal.")


def read_policy_kind(text: str | None) -> PolicyKind:
    """Custom unless it says Default."""
    return PolicyKind.DEFAULT if (text or "").lower() == "default" else PolicyKind.CUSTOM


def merged(rules: Sequence[Rule], fresh: Iterable[Rule]) -> list[Rule]:
    """Rules with others put in: one for a resource that has one takes its place."""
    by_resource = {rule.resource: rule for rule in rules}
    by_resource.update((rule.resource, rule) for rule in fresh)
    return list(by_resource.values())


# -- where a request comes from


def _is_from(host: str, places: Iterable[str]) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return any(address in network for place in places if (network := _network(place)) is not None)


def _network(place: str) -> Network | None:
    """An address or a network of either family; an IPv4 one that is written as IPv6 is IPv4."""
    try:
        network = ipaddress.ip_network(place, strict=False)
    except ValueError:
        return None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}", strict=False)
    return network
