"""What a group wants of a topic, as its members say it in heartbeats and pulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tandemmq.cluster.remoting.headers import Int32, Int64
from tandemmq.storage import EVERYTHING, Selector, java_hash

ALL = "*"


class SubscriptionData(msgspec.Struct, rename="camel"):
    """A subscription as it travels. Source: RocketMQ's SubscriptionData."""

    topic: str = ""
    sub_string: str | None = None
    tags_set: list[str] | None = None
    code_set: list[Int32] | None = None
    sub_version: Int64 = 0
    class_filter_mode: bool = False
    expression_type: str | None = "TAG"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic that a group subscribes to.

    selector    what the broker filters by, if that is by tag; else parse_filter says it
    sub_version the member's clock when it last changed its subscription, ms
    """

    topic: str
    expression: str = ALL
    expression_type: str = "TAG"
    sub_version: int = 0
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    class_filter_mode: bool = False
    selector: Selector = EVERYTHING

    @property
    def is_tag(self) -> bool:
        return self.expression_type == "TAG"

    @staticmethod
    def of(
        topic: str, expression: str | None, expression_type: str | None, version: int = 0
    ) -> Subscription:
        """The subscription that a tag expression or a filter text stands for."""
        return Subscription.from_wire(
            SubscriptionData(
                topic, sub_string=expression, expression_type=expression_type, sub_version=version
            )
        )

    @staticmethod
    def from_wire(data: SubscriptionData) -> Subscription:
        kind = (data.expression_type or "TAG").upper()
        expression = data.sub_string or ""
        if kind == "TAG":
            expression = expression.strip() or ALL
        tags: tuple[str, ...] = ()
        codes: tuple[int, ...] = ()
        selector = EVERYTHING
        if kind == "TAG" and expression != ALL and not data.class_filter_mode:
            tags = tuple(split_tags(expression))
            hashes = list(map(java_hash, tags))
            # Members hash their tags themselves, and the Rust client hashes them with their
            # blanks: take both.
            selector = Selector(frozenset(hashes).union(data.code_set or ()))
            codes = tuple(data.code_set or hashes)
        return Subscription(
            data.topic,
            expression,
            kind,
            data.sub_version,
            tags,
            codes,
            data.class_filter_mode,
            selector,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": list(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def split_tags(expression: str) -> list[str]:
    """The tags of `TagA || TagB`, without blanks and empty parts."""
    return [tag for part in expression.split("||") if (tag := part.strip())]
