"""What is known of a cluster, what stands out in it, and its story: values made of admin answers."""

from __future__ import annotations

from consolekit import MASTER, NOW_MS, SLAVE, group, seen, status

from tandemmq.cluster.client import (
    BrokerMembers,
    EpochHistory,
    EpochRange,
    MessageQueue,
    ReceivedMessage,
    ReplicaState,
    SlaveState,
    TopicSettings,
)
from tandemmq.console.seen import delayed, servers, snapshot, story
from tandemmq.console.seen.findings import findings


def test_members_are_put_together_from_name_server_controller_and_themselves() -> None:
    found = group()
    assert [(each.broker_id, each.role, each.in_sync, each.lag_bytes) for each in found.members] == [
        (1, "master", True, None), (2, "slave", True, 1_000)
    ]  # fmt: skip
    master = found.members[0]
    assert (master.put_per_second, master.get_per_second, master.disk_ratio) == (12.5, 4.0, 0.3)
    assert [each.broker_id for each in found.successors] == [2]
    assert (found.epoch, found.set_epoch, found.controlled) == (3, 5, True)


def test_a_member_that_does_not_answer_is_silent_and_cannot_lead_next() -> None:
    found = group({MASTER: status("SYNC_MASTER", 5_000), SLAVE: "refused"})
    assert [(each.role, each.problem) for each in found.members] == [
        ("master", ""),
        ("silent", "refused"),
    ]
    assert found.successors == ()


def test_a_group_that_elects_has_members_that_wait() -> None:
    found = group({MASTER: "refused", SLAVE: status("SLAVE", 4_000)}, master=None, in_sync=(1,))
    assert found.master is None
    assert {each.role for each in found.members} == {"silent", "waiting"}


def test_members_that_only_the_controller_knows_are_shown_too() -> None:
    known = group()
    registered = {"broker-a": BrokerMembers("broker-a", "C", {})}
    assert len(known.members) == 2
    (alone,) = servers.groups_of(registered, {}, {}, {})
    assert alone.members == () and not alone.controlled


def test_without_a_controller_the_master_says_who_follows() -> None:
    members = {"broker-a": BrokerMembers("broker-a", "C", {0: MASTER, 1: SLAVE})}
    statuses = {
        MASTER: {"commitLogMaxOffset": "100", "brokerActive": "true"},
        SLAVE: {"commitLogMaxOffset": "90", "brokerActive": "false"},
    }  # as RocketMQ says it
    link = SlaveState("10.0.0.2:33", 90, 10, True, 0, 0)
    state = ReplicaState(True, 100, 1, (link,), "", 0, 0, 0, 0, 0)
    (found,) = servers.groups_of(members, statuses, {}, {MASTER: state})
    assert [(each.role, each.in_sync, each.lag_bytes) for each in found.members] == [
        ("master", True, None), ("slave", True, 10)
    ]  # fmt: skip


def test_topics_are_summed_over_brokers_and_sorted_by_what_they_are_for() -> None:
    tables = {
        "a": {"Orders": TopicSettings("Orders", 4, 4), "%DLQ%g": TopicSettings("%DLQ%g", 1, 1)},
        "b": {"Orders": TopicSettings("Orders", 8, 2, 4), "C": TopicSettings("C"),
              "SCHEDULE_TOPIC_XXXX": TopicSettings("S")},
    }  # fmt: skip
    found = {each.name: each for each in snapshot.topics_of(tables, frozenset({"C"}))}
    orders = found["Orders"]
    assert (orders.brokers, orders.read_queues, orders.write_queues, orders.perm) == (2, 12, 6, 4)
    assert {name: each.kind for name, each in found.items()} == {
        "Orders": "normal", "%DLQ%g": "dead letters", "C": "system", "SCHEDULE_TOPIC_XXXX": "system",
    }  # fmt: skip


def test_a_cluster_that_is_well_has_no_findings() -> None:
    assert findings(seen(), NOW_MS) == ()


def test_findings_name_what_is_at_risk_the_worst_first() -> None:
    broken = group(
        {MASTER: status("SYNC_MASTER", 5_000, commitLogDiskRatio="0.9", alarms="flush takes 9 s"), SLAVE: "refused"},
        in_sync=(1,),
    )  # fmt: skip
    said = findings(seen(brokers=(broken,)), NOW_MS)
    assert [each.severity for each in said] == sorted(
        (each.severity for each in said), key=lambda one: one != "bad"
    )
    text = "\n".join(each.what for each in said)
    for words in (
        "does not answer: refused",
        "90 % full",
        "flush takes 9 s",
        "only its master holds",
    ):
        assert words in text
    headless = findings(seen(brokers=(group(master=None),)), NOW_MS)
    assert not any(
        "no master" in each.what for each in headless
    )  # the old one leads until it hears otherwise
    silent = group({MASTER: "refused", SLAVE: status("SLAVE", 4_000)}, master=None)
    assert any("has no master" in each.what for each in findings(seen(brokers=(silent,)), NOW_MS))
    assert any(
        "No name server answers" in each.what for each in findings(seen(problem="refused"), NOW_MS)
    )
    assert any("old" in each.what for each in findings(seen(), NOW_MS + 60_000))


def test_a_failover_is_told_step_by_step() -> None:
    before = group()
    gone = group({MASTER: "refused", SLAVE: status("SLAVE", 4_000)}, master=None)
    after = group(
        {MASTER: "refused", SLAVE: status("SYNC_MASTER", 4_000)}, master=2, in_sync=(2,), epoch=4
    )
    back = group(
        {MASTER: status("SLAVE", 4_000), SLAVE: status("SYNC_MASTER", 4_000)}, master=2, epoch=4
    )
    texts = []
    for one, other in ((before, gone), (gone, after), (after, back)):
        texts += [each.text for each in story.happened([one], [other], NOW_MS)]
    assert texts == [
        f"no master: 1 ({MASTER}) led; sends are refused until another does",
        f"1 ({MASTER}) does not answer: refused",
        f"2 ({SLAVE}) leads in epoch 4",
        f"1 ({MASTER}) left the sync-state-set",
        f"1 ({MASTER}) answers again, as slave",
        f"1 ({MASTER}) is in sync",
    ]
    assert story.happened([before], [before], NOW_MS) == [] == story.happened([], [before], NOW_MS)
    assert [each.text for each in story.happened([before], [], NOW_MS)] == [
        "broker-a is gone: no member of it is registered any more"
    ]


def test_reigns_are_listed_newest_first_and_the_last_one_lasts() -> None:
    history = EpochHistory(
        "C", "broker-a", 1, 300, (EpochRange(1, 0, 100), EpochRange(2, 100, 300))
    )
    found = story.reigns_of({"broker-a": history}, {("broker-a", 1): NOW_MS})
    assert [(each.epoch, each.end_offset, each.first_ms) for each in found] == [
        (2, None, None),
        (1, 100, NOW_MS),
    ]


def _message(store_ms: int, message_id: str = "id", **properties: str) -> ReceivedMessage:
    queue = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 8)
    return ReceivedMessage(
        queue.topic, b"x", queue, 0, message_id, "", properties, 0, 0, store_ms, "", "", 0, 0, 0
    )


def test_delayed_messages_are_due_by_level_and_timed_ones_by_their_slot() -> None:
    assert delayed.level_ms("1s 2m 1h 1d") == [1_000, 120_000, 3_600_000, 86_400_000]
    assert delayed.level_ms("nonsense") == delayed.level_ms(delayed.LEVELS)
    assert delayed.undelivered(
        {"scheduleMessageOffset_9": "3,9", "scheduleMessageOffset_1": "4,4", "x": "1"}
    ) == {9: (3, 9)}
    (one,) = delayed.of_level([_message(1_000, REAL_TOPIC="Orders")], 9, 300_000)
    assert (one.due_ms, one.topic, one.how) == (301_000, "Orders", "level 9")
    timed = [
        _message(0, "a", TIMER_OUT_MS="5000"), _message(0, "a", TIMER_OUT_MS="5000"),  # put back on its way
        _message(0, "b", TIMER_OUT_MS="10"), _message(0, "c", TIMER_OUT_MS="9000", TIMER_DEL_UNIQKEY="a"),
        _message(0, "d"),
    ]  # fmt: skip
    assert [(each.due_ms, each.message.message_id) for each in delayed.of_timer(timed, 1_000)] == [
        (5_000, "a")
    ]
