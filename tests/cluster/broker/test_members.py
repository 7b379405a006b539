"""cluster/broker/reading/members.py: who is connected."""

from __future__ import annotations

import dataclasses
from typing import Any

from brokerkit import FakeConnection

from tandemmq.cluster.broker.reading.members import (
    GROUPS_MAX,
    ConsumerMembers,
    GroupClient,
    GroupMembers,
    Heartbeat,
    ProducerMembers,
)
from tandemmq.cluster.broker.reading.subscriptions import Subscription


def member(connection: Any, client_id: str = "c", seen_ms: int = 0) -> GroupClient:
    return GroupClient(connection, client_id, 0, 479, seen_ms, seen_ms)


def beat(who: GroupClient, *topics: str | Subscription, model: str = "CLUSTERING") -> Heartbeat:
    wanted = [topic if isinstance(topic, Subscription) else Subscription(topic) for topic in topics]
    return Heartbeat(who, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", wanted)


class Heard:
    """Consumer members, and the groups they reported as changed."""

    def __init__(self) -> None:
        self.members = ConsumerMembers()
        self.groups: list[str] = []
        self.members.on_change = self._hear

    def _hear(self, group: GroupMembers) -> None:
        self.groups.append(group.name)

    def take(self) -> list[str]:
        taken, self.groups = self.groups, []
        return taken


def test_first_heartbeat_is_a_change_and_the_same_again_is_none() -> None:
    heard = Heard()
    connection = FakeConnection()
    assert heard.members.register("G", beat(member(connection), "T"))
    assert heard.take() == ["G"]
    assert not heard.members.register("G", beat(member(connection), "T"))
    assert heard.take() == []
    assert heard.members.client_ids("G") == ["c"]


def test_topics_that_come_or_go_are_changes_and_newer_versions_are_not() -> None:
    heard = Heard()
    who = member(FakeConnection())
    heard.members.register("G", beat(who, Subscription("T", "A", sub_version=1)))
    heard.take()
    assert heard.members.register("G", beat(who, Subscription("T", "A", sub_version=1), "U"))
    assert heard.members.register("G", beat(who, Subscription("T", "A", sub_version=1)))
    assert heard.take() == ["G", "G"]
    assert not heard.members.register("G", beat(who, Subscription("T", "B", sub_version=2)))
    assert not heard.members.register("G", beat(who, Subscription("T", "C", sub_version=1)))
    group = heard.members.group("G")
    assert group is not None
    assert group.subscriptions["T"].expression == "B", "an older version never replaces a newer one"


def test_closed_connection_leaves_every_group_and_the_rest_is_told() -> None:
    heard = Heard()
    one, two = FakeConnection(), FakeConnection()
    for name in ("G", "H"):
        heard.members.register(name, beat(member(one, "c1"), "T"))
    heard.members.register("G", beat(member(two, "c2"), "T"))
    heard.take()
    heard.members.connection_closed(one)
    assert heard.take() == ["G"]
    assert heard.members.client_ids("G") == ["c2"]
    assert heard.members.group("H") is None
    heard.members.connection_closed(one)
    assert heard.take() == []


def test_member_that_left_by_request_is_not_missed_again() -> None:
    heard = Heard()
    connection = FakeConnection()
    heard.members.register("G", beat(member(connection), "T"))
    assert heard.members.unregister("G", connection)
    assert not heard.members.unregister("G", connection)
    heard.members.connection_closed(connection)
    assert heard.take() == ["G"]
    assert len(heard.members) == 0


def test_reconnecting_client_is_one_member() -> None:
    members = ConsumerMembers()
    old, new = FakeConnection(), FakeConnection()
    members.register("G", beat(member(old, "same"), "T"))
    members.register("G", beat(member(new, "same"), "T"))
    assert members.client_ids("G") == ["same"], (
        "a client listed twice would share queues with itself"
    )
    found = members.find("G", "same")
    assert found is not None and found.connection is new


def test_silent_members_expire_and_the_rest_is_told() -> None:
    heard = Heard()
    silent, lively = FakeConnection(), FakeConnection()
    heard.members.register("G", beat(member(silent, "s", seen_ms=0), "T"))
    heard.members.register("G", beat(member(lively, "l", seen_ms=100_000), "T"))
    heard.take()
    assert heard.members.expire(120_000, 120_000) == []
    assert heard.members.expire(120_001, 120_000) == [silent]
    assert heard.take() == ["G"]
    assert heard.members.client_ids("G") == ["l"]


def test_groups_of_a_topic_are_those_that_subscribe() -> None:
    members = ConsumerMembers()
    members.register("G", beat(member(FakeConnection()), "T", "U"))
    members.register("H", beat(member(FakeConnection()), "U"))
    assert members.subscribers("U") == ["G", "H"]
    assert members.subscribers("T") == ["G"]


def test_producer_is_found_by_its_id_until_it_left_its_last_group() -> None:
    producers = ProducerMembers()
    connection: Any = FakeConnection()
    for name in ("P", "Q"):
        producers.register(name, member(connection, "p1"))
    producers.unregister("P", connection)
    assert producers.by_client_id("p1") is connection
    producers.connection_closed(connection)
    assert producers.by_client_id("p1") is None
    assert len(producers) == 0


def test_old_connection_of_a_producer_does_not_take_the_new_one_with_it() -> None:
    producers = ProducerMembers()
    old: Any = FakeConnection()
    new: Any = FakeConnection()
    producers.register("P", member(old, "p1"))
    producers.register("P", member(new, "p1"))
    producers.connection_closed(old)
    assert producers.by_client_id("p1") is new


def test_picks_go_round_the_open_connections() -> None:
    producers = ProducerMembers()
    connections: list[Any] = [FakeConnection() for _ in range(3)]
    for connection in connections:
        producers.register("P", member(connection, str(connection.id)))
    connections[0].closed = True
    picked = {producers.pick("P", "T") for _ in range(4)}
    assert picked == set(connections[1:])
    assert producers.pick("Unknown", "T") is None


def test_of_a_group_those_are_picked_who_may_send_to_the_topic() -> None:
    """Else anybody who says that he is of the group is shown its half messages."""
    asked = []

    def may_send(user: str, host: str, topic: str) -> bool:
        asked.append((host, topic))
        return user == "shop"

    producers = ProducerMembers(may_send)
    owner: Any = FakeConnection()
    other: Any = FakeConnection()
    producers.register("P", dataclasses.replace(member(owner, "a"), user="shop"))
    producers.register("P", dataclasses.replace(member(other, "b"), user="evil"))
    assert {producers.pick("P", "T") for _ in range(4)} == {owner}
    assert set(asked) == {(owner.peer[0], "T")}
    owner.closed = True
    assert producers.pick("P", "T") is None


def test_a_client_id_stays_with_its_user_while_that_one_is_connected() -> None:
    """Else replies go to whoever says somebody else's id."""
    producers = ProducerMembers()
    owner: Any = FakeConnection()
    again: Any = FakeConnection()
    thief: Any = FakeConnection()
    producers.register("P", dataclasses.replace(member(owner, "a"), user="shop"))
    producers.register("P", dataclasses.replace(member(thief, "a"), user="evil"))
    assert producers.by_client_id("a") is owner
    producers.register("P", dataclasses.replace(member(again, "a"), user="shop"))
    assert producers.by_client_id("a") is again  # as after a break that only the client noticed
    producers.connection_closed(thief)
    assert producers.by_client_id("a") is again
    again.closed = True
    producers.register("P", dataclasses.replace(member(thief, "a"), user="evil"))
    assert producers.by_client_id("a") is thief


def test_silent_producers_expire() -> None:
    producers = ProducerMembers()
    silent: Any = FakeConnection()
    producers.register("P", member(silent, "p1", seen_ms=0))
    assert producers.expire(120_001, 120_000) == [silent]
    assert producers.group("P") == []


def test_one_connection_is_in_so_many_producer_groups_and_leaves_them_quickly() -> None:
    producers = ProducerMembers()
    connection = FakeConnection()
    told = [producers.register(f"P{n}", member(connection, "p1")) for n in range(GROUPS_MAX + 1)]
    assert told == [True] * GROUPS_MAX + [False]
    assert producers.register("P0", member(connection, "p1"))
    producers.connection_closed(connection)
    assert len(producers) == 0
    assert producers.by_client_id("p1") is None


def test_a_client_that_changes_its_id_leaves_nothing_behind() -> None:
    producers = ProducerMembers()
    connection = FakeConnection()
    producers.register("A", member(connection, "first"))
    producers.register("B", member(connection, "first"))
    producers.register("A", member(connection, "second"))
    assert producers.by_client_id("first") is connection
    producers.register("B", member(connection, "second"))
    assert producers.by_client_id("first") is None
    producers.connection_closed(connection)
    assert producers.by_client_id("second") is None
