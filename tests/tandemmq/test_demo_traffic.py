"""The demo's verdict: whatever is lost, made up or doubled without a reason ends it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.cluster.client import MessageQueue
from tandemmq.demo.traffic import DemoFailed, Place, Sent, Traffic, body_of, count, name_of

QUEUE = MessageQueue("Demo", "broker-a", 0)


def place(offset: int) -> Place:
    return QUEUE, offset


def traffic(sent: Iterable[Sent], delivered: dict[str, list[Place]]) -> Traffic:
    table = {each.name: each for each in sent}
    acknowledged = {each.name for each in table.values() if each.acknowledged}
    found = SimpleNamespace(sent=table, delivered=delivered, acknowledged=acknowledged)
    return cast(Traffic, cast(Any, found))


def ok(name: str, attempts: int = 1) -> Sent:
    return Sent(name, 1.0, 2.0, "broker-a", True, ["127.0.0.1:1"] * attempts)


def failed(name: str) -> Sent:
    return Sent(name, 1.0, 2.0, addresses=["127.0.0.1:1"] * 3)


def test_everything_once_is_counted() -> None:
    log = {"m0": [place(0)], "m1": [place(1)], "java 0": [place(2)]}
    found = count(traffic([ok("m0"), ok("m1")], dict(log)), log, ["java 0"])
    assert (found.sent, found.acknowledged, found.unknown) == (2, 2, 0)
    assert (found.stored_twice, found.repeats) == (0, 0)


@pytest.mark.parametrize("where", ["delivered", "stored"])
def test_acknowledged_message_that_is_gone_ends_the_demo(where: str) -> None:
    log, delivered = ({name: [place(n)] for n, name in enumerate(("m0", "m1"))} for _ in range(2))
    del (delivered if where == "delivered" else log)["m1"]
    with pytest.raises(DemoFailed, match=r"lacks acknowledged messages: 1, e\.g\. m1"):
        count(traffic([ok("m0"), ok("m1")], delivered), log, [])


@pytest.mark.parametrize("where", ["delivered", "stored"])
def test_message_that_nobody_sent_ends_the_demo(where: str) -> None:
    log, delivered = {"m0": [place(0)]}, {"m0": [place(0)]}
    (delivered if where == "delivered" else log)["ghost"] = [place(1)]
    with pytest.raises(DemoFailed, match=r"nobody sent: 1, e\.g\. ghost"):
        count(traffic([ok("m0")], delivered), log, [])


def test_failed_send_may_be_stored_or_not() -> None:
    log = {"m0": [place(0)], "m1": [place(1)]}
    found = count(traffic([ok("m0"), failed("m1"), failed("m2")], dict(log)), log, [])
    assert (found.acknowledged, found.unknown, found.unknown_stored) == (1, 2, 1)


def test_second_copy_needs_a_second_attempt() -> None:
    log = {"m0": [place(0), place(1)]}
    assert count(traffic([ok("m0", attempts=2)], dict(log)), log, []).stored_twice == 1
    with pytest.raises(DemoFailed, match=r"stored twice although sent once: 1, e\.g\. m0"):
        count(traffic([ok("m0", attempts=1)], dict(log)), log, [])
    java = {"m0": [place(0)], "java 0": [place(1), place(2)]}
    with pytest.raises(DemoFailed, match=r"although sent once: 1, e\.g\. java 0"):
        count(traffic([ok("m0")], dict(java)), java, ["java 0"])


def test_repeated_delivery_is_counted_and_one_from_elsewhere_ends_the_demo() -> None:
    log = {"m0": [place(0)]}
    assert count(traffic([ok("m0")], {"m0": [place(0)] * 3}), log, []).repeats == 2
    with pytest.raises(DemoFailed, match="m0 was delivered from"):
        count(traffic([ok("m0")], {"m0": [place(7)]}), log, [])


def test_names_travel_as_bodies_and_some_are_large() -> None:
    for name in ("message 0", "message 1", "message 500", "java 0"):
        assert name_of(body_of(name)) == name
    assert len(body_of("message 500")) == 50_000
    assert len(body_of("java 0")) == len("java 0")
