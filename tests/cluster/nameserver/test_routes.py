"""The route table's rules: who registers, who is merged, who disappears, what clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandemmq.cluster.nameserver.routes import (
    BROKER_TIMEOUT_MS,
    DataVersion,
    QueueData,
    Registered,
    Registration,
    RegistrationRefused,
    RouteTable,
    TopicLine,
    address_problem,
    name_problem,
)

NOW = 1_000_000
MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"


def version(counter: int, state: int = 0) -> DataVersion:
    return DataVersion(counter=counter, state_version=state, timestamp=1700000000000)


def asked(**given: Any) -> Registration:
    defaults: dict[str, Any] = {
        "cluster": "C", "name": "broker-a", "address": MASTER, "broker_id": 0,
        "ha_address": "10.0.0.1:10912", "acting_master": False, "version": version(1),
        "topics": {"T": TopicLine(4, 4, 6), "U": TopicLine(8, 8, 6)},
    }  # fmt: skip
    return Registration(**(defaults | given))


def slave(**given: Any) -> Registration:
    return asked(**({"address": SLAVE, "broker_id": 1, "ha_address": "10.0.0.2:10912"} | given))


def table_with(*registrations: Registration, **settings: bool) -> RouteTable:
    table = RouteTable(**settings)
    for number, registration in enumerate(registrations, start=1):
        table.register(registration, number, NOW)
    check_invariants(table)
    return table


def check_invariants(table: RouteTable) -> None:
    for name, group in table.groups.items():
        assert group.addresses, name
        assert name in table.clusters[group.cluster]
    for queues in table.topics.values():
        assert queues and set(queues) <= set(table.groups)
    for names in table.clusters.values():
        assert names <= set(table.groups)


def perms(table: RouteTable, topic: str) -> dict[str, int]:
    return {name: data.perm for name, data in table.topics.get(topic, {}).items()}


# ---- registration


def test_a_registered_master_is_routed_compactly_with_quoted_ids_and_sorted_members() -> None:
    table = table_with(asked(), slave())
    assert table.route_json("T") == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )


def test_an_unknown_topic_has_no_route() -> None:
    assert table_with(asked()).route_json("nope") is None
    assert RouteTable().route_json("T") is None


def test_a_single_topic_of_an_unknown_broker_is_refused_and_leaves_no_trace() -> None:
    table = RouteTable()
    with pytest.raises(RegistrationRefused, match=r"^register broker failed$"):
        table.register(asked(topics={"T": TopicLine()}), 1, NOW)
    assert (table.groups, table.clusters, table.topics, table.live) == ({}, {}, {}, {})


def test_a_single_topic_of_a_known_broker_is_merged_and_the_others_stay() -> None:
    table = table_with(asked())
    table.register(asked(topics={"New": TopicLine(2, 2, 6)}, version=version(2)), 1, NOW)
    assert list(table) == ["New", "T", "U"]


def test_a_single_topic_of_a_new_id_in_a_known_group_is_refused_too() -> None:
    table = table_with(asked())
    with pytest.raises(RegistrationRefused):
        table.register(slave(topics={"T": TopicLine()}), 2, NOW)
    assert table.groups["broker-a"].addresses == {0: MASTER}


def test_a_registration_without_topics_is_taken() -> None:
    table = table_with(asked(topics={}))
    assert table.groups["broker-a"].addresses == {0: MASTER}
    assert list(table) == []


def test_topics_change_only_with_a_new_version() -> None:
    table = table_with(asked())
    table.register(asked(topics={"T": TopicLine(9, 9, 4), "U": TopicLine()}), 1, NOW)
    assert table.topics["T"]["broker-a"].read_queue_nums == 4
    changed = {"T": TopicLine(9, 9, 4), "U": TopicLine()}
    table.register(asked(topics=changed, version=version(2)), 1, NOW)
    assert table.topics["T"]["broker-a"].read_queue_nums == 9


@pytest.mark.parametrize(
    "other",
    [DataVersion(0, 0, 1700000000000), DataVersion(1, 0, 1), DataVersion(1, 7, 1700000000000)],
)
def test_any_difference_in_the_version_counts_even_a_smaller_one(other: DataVersion) -> None:
    table = table_with(asked())
    changed = {"T": TopicLine(9, 9, 6), "U": TopicLine()}
    table.register(asked(topics=changed, version=other), 1, NOW)
    assert table.topics["T"]["broker-a"].read_queue_nums == 9


def test_a_topic_missing_at_the_same_version_is_added() -> None:
    table = table_with(asked())
    table.delete_topic("T")
    table.register(asked(), 1, NOW)
    assert "T" in table.topics


def test_topics_missing_from_a_registration_stay_unless_told_otherwise() -> None:
    fewer = asked(topics={"U": TopicLine(), "V": TopicLine()}, version=version(2))
    assert list(table_with(asked(), fewer)) == ["T", "U", "V"]
    assert list(table_with(asked(), fewer, topics_follow_registration=True)) == ["U", "V"]


def test_a_registration_of_a_part_takes_no_topic_away() -> None:
    """Of what changed, as brokers without enableSingleTopicRegister send it: nothing in it says that it is a part."""
    whole = {name: TopicLine() for name in ("SELF_TEST_TOPIC", "BenchmarkTest", "T", "U")}
    table = table_with(asked(topics=whole), topics_follow_registration=True)
    table.register(asked(topics={"New": TopicLine()}, version=version(2)), 1, NOW)
    assert list(table) == ["BenchmarkTest", "New", "SELF_TEST_TOPIC", "T", "U"]
    del whole["T"]
    table.register(asked(topics=whole, version=version(3)), 1, NOW)
    assert list(table) == ["BenchmarkTest", "SELF_TEST_TOPIC", "U"]


def test_a_slave_learns_where_its_master_is_and_does_not_touch_topics() -> None:
    table = table_with(asked())
    changed = {"T": TopicLine(99, 99, 6), "X": TopicLine()}
    answer = table.register(slave(topics=changed, version=version(9)), 2, NOW)
    assert answer == Registered("10.0.0.1:10912", MASTER)
    assert list(table) == ["T", "U"]
    assert table.topics["T"]["broker-a"].read_queue_nums == 4


def test_a_master_and_a_lonely_slave_are_told_nothing() -> None:
    assert RouteTable().register(asked(), 1, NOW) == Registered()
    assert RouteTable().register(slave(), 1, NOW) == Registered()


def test_the_smallest_slave_without_a_master_registers_topics() -> None:
    table = table_with(slave(acting_master=False))
    assert perms(table, "T") == {"broker-a": 6}
    acting = table_with(slave(acting_master=True))
    assert perms(acting, "T") == {"broker-a": 4}  # readable, never writable
    old = table_with(slave(acting_master=None))
    assert list(old) == []


def test_a_second_slave_is_not_the_prime_one() -> None:
    others = {"X": TopicLine(), "Y": TopicLine()}
    table = table_with(slave(), slave(address="10.0.0.3:10911", broker_id=2, topics=others))
    assert list(table) == ["T", "U"]


def test_a_slave_that_became_master_leaves_its_old_id() -> None:
    table = table_with(asked(), slave())
    table.unregister("C", "broker-a", MASTER)
    table.register(asked(address=SLAVE), 2, NOW)
    assert table.groups["broker-a"].addresses == {0: SLAVE}


def test_a_master_of_an_older_epoch_is_ignored() -> None:
    table = table_with(asked(version=version(1, state=5)))
    answer = table.register(asked(address="10.0.0.9:10911", version=version(7, state=4)), 9, NOW)
    assert answer == Registered()
    assert table.groups["broker-a"].addresses == {0: MASTER}
    assert table.version_of("C", "10.0.0.9:10911") is None


@pytest.mark.parametrize("state", [5, 6])
def test_a_master_from_a_new_address_takes_over_at_the_same_or_a_newer_epoch(state: int) -> None:
    table = table_with(asked(version=version(1, state=5)))
    moved = asked(address="10.0.0.9:10911", version=version(1, state=state))
    table.register(moved, 9, NOW)
    assert table.groups["broker-a"].addresses == {0: "10.0.0.9:10911"}


def test_a_broker_from_a_new_address_brings_its_topics_at_any_version() -> None:
    table = table_with(asked())
    moved = asked(address="10.0.0.9:10911", topics={"T": TopicLine(1, 1, 4), "U": TopicLine()})
    table.register(moved, 9, NOW)
    assert table.topics["T"]["broker-a"].read_queue_nums == 1


def test_zone_and_acting_master_are_told_to_clients() -> None:
    table = table_with(asked(zone="east", acting_master=True))
    route = table.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["zoneName"] == "east"
    assert route["brokerDatas"][0]["enableActingMaster"] is True
    table.register(asked(zone=None, acting_master=None), 1, NOW)
    assert b"zoneName" not in (table.route_json("T") or b"")


# ---- liveness


def test_a_broker_expires_when_silent_for_longer_than_its_timeout() -> None:
    table = table_with(asked(), slave(timeout_ms=10_000))
    assert table.expire(NOW + 10_000) == []
    assert table.expire(NOW + 10_001) == [(SLAVE, 2)]
    assert table.expire(NOW + BROKER_TIMEOUT_MS) == []
    assert table.expire(NOW + BROKER_TIMEOUT_MS + 1) == [(MASTER, 1)]
    assert (table.groups, table.topics, table.clusters, table.live) == ({}, {}, {}, {})


def test_a_sign_of_life_postpones_expiry_and_a_stranger_has_none() -> None:
    table = table_with(asked())
    assert table.touch("C", MASTER, NOW + 100_000)
    assert not table.touch("C", "10.9.9.9:1", NOW)
    assert not table.touch("other", MASTER, NOW)
    assert table.expire(NOW + 200_000) == []
    assert table.expire(NOW + 220_001) == [(MASTER, 1)]


def test_a_closed_connection_takes_its_broker_with_it_but_not_one_that_reconnected() -> None:
    table = table_with(asked(), slave())
    table.register(asked(), 7, NOW)  # the master came back on another connection
    assert table.connection_closed(1) == []
    assert table.connection_closed(2) == [SLAVE]
    assert table.groups["broker-a"].addresses == {0: MASTER}
    assert table.connection_closed(7) == [MASTER]
    check_invariants(table)


def test_topics_survive_their_master_as_long_as_a_slave_lives() -> None:
    table = table_with(asked(), slave())
    assert table.unregister("C", "broker-a", MASTER)
    assert b'"brokerAddrs":{"1":"10.0.0.2:10911"}' in (table.route_json("T") or b"")
    assert perms(table, "T") == {"broker-a": 6}
    assert table.unregister("C", "broker-a", SLAVE)
    assert list(table) == []


def test_a_group_of_acting_masters_without_a_master_becomes_read_only() -> None:
    table = table_with(asked(acting_master=True), slave(acting_master=True))
    table.unregister("C", "broker-a", MASTER)
    assert perms(table, "T") == {"broker-a": 4}


def test_other_brokers_keep_the_topic_of_one_that_left() -> None:
    topics = {"T": TopicLine(), "V": TopicLine()}
    other = asked(name="broker-b", address="10.0.0.5:10911", topics=topics)
    table = table_with(asked(), other)
    table.unregister("C", "broker-a", MASTER)
    assert list(table) == ["T", "V"]
    assert table.clusters == {"C": {"broker-b"}}
    check_invariants(table)


def test_unregistering_goes_by_address_and_ignores_strangers() -> None:
    table = table_with(asked())
    assert not table.unregister("C", "broker-a", "10.9.9.9:1")
    assert not table.unregister("C", "nobody", MASTER)
    assert table.groups["broker-a"].addresses == {0: MASTER}
    assert table.version_of("C", MASTER) is not None


def test_a_broker_restarted_under_another_name_leaves_the_old_one() -> None:
    table = table_with(asked(), asked(name="broker-b"))
    assert table.clusters == {"C": {"broker-b"}}
    assert perms(table, "T") == {"broker-b": 6}
    assert table.expire(NOW + BROKER_TIMEOUT_MS + 1) == [(MASTER, 2)]
    assert table.groups == {}


# ---- lists and tools


def test_lists_by_cluster_unit_and_system() -> None:
    flags = {"Unit": 1, "Sub": 2, "Both": 3}
    flagged = {name: TopicLine(topic_sys_flag=flag) for name, flag in flags.items()}
    table = table_with(asked(), asked(cluster="D", name="b", address="10.0.0.6:1", topics=flagged))
    assert table.topics_of_cluster("C") == ["T", "U"]
    assert table.topics_of_cluster("D") == ["Both", "Sub", "Unit"]
    assert table.topics_of_cluster("E") == []
    assert table.unit_topics(1) == ["Both", "Unit"]
    assert table.unit_topics(2) == ["Both", "Sub"]
    assert table.unit_topics(2, 1) == ["Sub"]
    assert table.any_address() == "10.0.0.6:1"
    assert RouteTable().any_address() is None


def test_cluster_and_member_group_bodies() -> None:
    table = table_with(asked(), slave())
    assert json.loads(table.cluster_json()) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": MASTER, "1": SLAVE}, "brokerName": "broker-a", "cluster": "C",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"C": ["broker-a"]},
    }  # fmt: skip
    assert json.loads(table.member_group_json("C", "broker-a"))["brokerMemberGroup"] == {
        "brokerAddrs": {"0": MASTER, "1": SLAVE}, "brokerName": "broker-a", "cluster": "C",
    }  # fmt: skip
    unknown = json.loads(table.member_group_json("C", "nobody"))["brokerMemberGroup"]
    assert unknown == {"brokerAddrs": {}, "brokerName": "nobody", "cluster": "C"}


def test_wiped_and_added_permissions_last_until_the_next_version() -> None:
    table = table_with(asked(topics={"T": TopicLine(perm=7), "U": TopicLine(perm=6)}))
    before = table.route_json("T")
    assert table.wipe_write_perm("broker-a") == 2
    assert (perms(table, "T"), perms(table, "U")) == ({"broker-a": 5}, {"broker-a": 4})
    assert table.route_json("T") != before
    assert table.add_write_perm("broker-a") == 2
    assert (perms(table, "T"), perms(table, "U")) == ({"broker-a": 6}, {"broker-a": 6})
    assert table.wipe_write_perm("nobody") == 0
    table.wipe_write_perm("broker-a")
    topics = {"T": TopicLine(perm=7), "U": TopicLine(perm=6)}
    table.register(asked(topics=topics), 1, NOW)
    assert perms(table, "T") == {"broker-a": 4}
    table.register(asked(topics=topics, version=version(2)), 1, NOW)
    assert table.route_json("T") == before


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    other = asked(cluster="D", name="broker-b", address="10.0.0.5:10911")
    table = table_with(asked(), other)
    table.delete_topic("T", "D")
    assert perms(table, "T") == {"broker-a": 6}
    table.delete_topic("T", "nowhere")
    table.delete_topic("U")
    assert list(table) == ["T"]
    table.delete_topic("U")
    check_invariants(table)


def test_a_topic_registered_alone_needs_all_its_brokers() -> None:
    table = table_with(asked())
    table.register_topic("X", [QueueData("broker-a", 6, 4, 0, 4), QueueData("nobody", 6, 4, 0, 4)])
    assert "X" not in table.topics
    table.register_topic("X", [QueueData("broker-a", 6, 4, 0, 4)])
    assert perms(table, "X") == {"broker-a": 6}


def test_the_answer_to_an_unchanged_question_is_the_same_bytes_until_something_changes() -> None:
    table = table_with(asked(), slave())
    first = table.route_json("T")
    table.register(asked(), 1, NOW + 30_000)
    table.register(slave(), 2, NOW + 30_000)
    table.touch("C", MASTER, NOW + 31_000)
    assert table.route_json("T") is first
    for change in (
        lambda: table.register(asked(topics={"T": TopicLine(5, 5)}, version=version(2)), 1, NOW),
        lambda: table.register(slave(address="10.0.0.7:1"), 2, NOW),
        lambda: table.unregister("C", "broker-a", "10.0.0.7:1"),
    ):
        before = table.route_json("T")
        change()
        assert table.route_json("T") != before


def test_the_order_of_an_ordered_topic_is_told_but_not_remembered() -> None:
    table = table_with(asked())
    ordered = json.loads(table.route_json("T", "broker-a:4") or b"")
    assert ordered["orderTopicConf"] == "broker-a:4"
    assert b"orderTopicConf" not in (table.route_json("T") or b"")
    assert table.route_json("nope", "broker-a:4") is None


@pytest.mark.parametrize("name", ["a", "%RETRY%g", "A-b_c|d", "host.example.com", "x" * 255])
def test_names_of_brokers_in_use_are_accepted(name: str) -> None:
    assert name_problem("broker", name) is None


@pytest.mark.parametrize("name", ["", "../etc", "a b", "ä", "a\n", "x" * 256, 'a"b', "a/b", "\x00"])
def test_other_names_are_described(name: str) -> None:
    assert "broker name" in (name_problem("broker", name) or "")


def test_addresses_must_be_host_and_port() -> None:
    for good in ("10.0.0.1:10911", "broker-1.svc:10911", "[::1]:10911", "::1:10911"):
        assert address_problem(good) is None
    for bad in ("", "host", "host:", "host:99999", "a b:1", "http://h:1", ":1", 'h":1', "h:1\n"):
        assert address_problem(bad)
