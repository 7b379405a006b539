"""PULL_MESSAGE and LITE_PULL_MESSAGE."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from messagekit import UNIQUE, FakeConnection, Kit, open_kit

from tandemmq.cluster.broker.handlers.pull import CODES
from tandemmq.cluster.broker.reading.members import GroupClient, Heartbeat
from tandemmq.cluster.broker.reading.subscriptions import Subscription
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Fetch, GetStatus, decode
from tandemmq.storage.residency import Residency
from tandemmq.storage.segment import Segment

SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        yield kit


def pull(
    kit: Kit,
    connection: FakeConnection | None = None,
    *,
    code: int = 11,
    binary: bool = False,
    flag: int = 0,
    **fields: str | int,
) -> Command | None:
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **{name: str(value) for name, value in fields.items()},
    }
    return kit.ask(Command(code, ext, opaque=6, binary=binary, flag=flag), connection)


def fill(kit: Kit, *tags: str, queue: int = 0) -> None:
    for number, tag in enumerate(tags):
        text = f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01{tag}\x02" if tag else f"UNIQ_KEY\x01{UNIQUE}\x02"
        kit.send(b"%d" % number, e=str(queue), i=text)
    kit.dispatch()


def bodies(answer: Command | None) -> list[bytes]:
    assert answer is not None
    found = []
    at, data = 0, bytes(answer.body or b"")
    while at < len(data):
        record = decode(data, at)
        found.append(record.body)
        at += record.size
    return found


def heartbeat(
    kit: Kit, subscription: Subscription, connection: FakeConnection, model: str = "CLUSTERING"
) -> None:
    member = GroupClient(connection, "client", 0, 479, 0, 0)
    kit.members.register(
        "G",
        Heartbeat(member, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", [subscription]),
    )


# -- what is found --------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("code", [11, 361])
def test_found_messages_come_with_the_four_offsets_and_the_flags(
    kit: Kit, code: int, binary: bool
) -> None:
    kit.topic("Unit", topic_sys_flag=1)
    fill(kit, "a", "b", "c")
    group = kit.groups.find("G")
    assert group is not None
    group.group_sys_flag = 2
    answer = pull(kit, code=code, binary=binary, queueOffset=1)
    assert answer is not None
    assert (answer.code, answer.remark, answer.opaque, answer.binary) == (0, "FOUND", 6, binary)
    assert answer.ext == {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "2",
        "nextBeginOffset": "3",
        "maxOffset": "3",
        "minOffset": "0",
        "topicSysFlag": "0",
    }
    assert bodies(answer) == [b"1", b"2"]
    assert kit.connection.writes == 4  # three sends and one answer: the answer is one write


def test_the_body_is_the_log_byte_for_byte(kit: Kit) -> None:
    fill(kit, "a", "b")
    answer = pull(kit)
    assert answer is not None
    assert answer.body == bytes(kit.store.log.read(0, kit.store.end))


def test_a_pull_brings_no_more_than_was_asked(kit: Kit) -> None:
    fill(kit, "a", "b", "c")
    answer = pull(kit, maxMsgNums=2)
    assert bodies(answer) == [b"0", b"1"]
    assert answer is not None and answer.ext is not None and answer.ext["nextBeginOffset"] == "2"


def test_tags_of_the_pulls_own_expression_select(kit: Kit) -> None:
    fill(kit, "a", "b", "", "a", "c")
    assert bodies(pull(kit, subscription="a || c")) == [b"0", b"3", b"4"]
    answer = pull(kit, subscription="none")
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.remark, answer.body) == (20, "NO_MATCHED_MESSAGE", None)
    assert answer.ext["nextBeginOffset"] == "5"


def test_tags_of_the_groups_heartbeat_select(kit: Kit) -> None:
    fill(kit, "a", "b", "a")
    heartbeat(kit, Subscription.of("T", "a", "TAG", 7), kit.connection)
    assert bodies(pull(kit, sysFlag=0, subVersion=7)) == [b"0", b"2"]
    assert bodies(pull(kit, sysFlag=0, subVersion=0)) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (2, 19, "OFFSET_OVERFLOW_ONE", "2"),
        (9, 21, "OFFSET_OVERFLOW_BADLY", "2"),
        (-1, 21, "OFFSET_TOO_SMALL", "0"),
    ],
)
def test_an_offset_outside_the_queue_is_told_where_to_go_on(
    kit: Kit, offset: int, code: int, status: str, next_offset: str
) -> None:
    fill(kit, "a", "b")
    answer = pull(kit, queueOffset=offset)
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.remark) == (code, status)
    assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (next_offset, "2")


def test_a_master_that_may_have_a_successor_moves_nobody_who_comes_from_beyond_its_end(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that reader has of the successor and has not consumed it would drop."""
    fill(kit, "a", "b")
    monkeypatch.setattr(ClassicMaster, "unsucceeded", property(lambda standing: False))
    answer = pull(kit, queueOffset=9)
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "9")
    assert bodies(pull(kit, queueOffset=0)) == [b"0", b"1"]


def test_an_empty_queue_is_not_found_at_its_start_and_moved_behind_it(kit: Kit) -> None:
    answers = [pull(kit, queueOffset=0), pull(kit, queueOffset=3)]
    assert [(a.code, a.remark) for a in answers if a] == [
        (19, "NO_MESSAGE_IN_QUEUE"),
        (21, "NO_MESSAGE_IN_QUEUE"),
    ]


def test_every_status_of_the_store_has_a_code() -> None:
    assert set(CODES) == set(GetStatus)


# -- side effects ---------------------------------------------------------------------------


def test_progress_in_the_pull_is_committed_once_whatever_comes_of_it(kit: Kit) -> None:
    fill(kit, "a", "b")
    pull(kit, queueOffset=2, sysFlag=SUBSCRIPTION | COMMIT | SUSPEND, commitOffset=2)
    assert kit.offsets.committed("G", "T", 0) == 2
    kit.offsets.commit("G", "T", 0, 1)
    fill(kit, "c")  # wakes the held pull: its second pass commits nothing
    assert len(kit.connection.take()) == 1
    assert kit.offsets.committed("G", "T", 0) == 1
    assert kit.offsets.pulled("G", "T", 0) == 3


def test_without_the_flag_nothing_is_committed(kit: Kit) -> None:
    pull(kit, commitOffset=5)
    assert kit.offsets.committed("G", "T", 0) == -1


def test_a_reset_by_an_administrator_is_told_once(kit: Kit) -> None:
    fill(kit, "a", "b", "c")
    kit.offsets.assign_reset("G", "T", 0, 1)
    answer = pull(kit, queueOffset=3)
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "1")
    assert answer.ext["maxOffset"] == "3"
    assert bodies(pull(kit, queueOffset=1)) == [b"1", b"2"]


def test_pulls_are_counted(kit: Kit) -> None:
    fill(kit, "a", "b")
    pull(kit)
    pull(kit, queueOffset=2)
    assert (kit.stats.get_found, kit.stats.transferred, kit.stats.get_missed) == (1, 2, 1)


# -- refusals, in RocketMQ's order ----------------------------------------------------------


def test_an_unreadable_broker_refuses_first(tmp_path: Path) -> None:
    with open_kit(tmp_path, permission=2) as kit:
        answer = pull(kit, topic="NoSuch")
        assert answer is not None and (answer.code, answer.ext) == (16, {"forbiddenType": "1"})
        assert answer.remark == "the broker[10.9.9.1] pulling message is forbidden"


def test_lite_pulls_can_be_switched_off(tmp_path: Path) -> None:
    with open_kit(tmp_path, lite_pull_enabled=False) as kit:
        kit.topic("T")
        answers = [pull(kit, code=361), pull(kit, code=11)]
        assert [answer.code for answer in answers if answer] == [16, 19]


def test_a_group_that_may_not_exist_is_refused(tmp_path: Path) -> None:
    with open_kit(tmp_path, auto_create_group=False) as kit:
        answer = pull(kit, topic="NoSuch")
        assert answer is not None and (answer.code, answer.ext) == (26, {})


def test_a_group_that_may_not_consume_is_refused(kit: Kit) -> None:
    group = kit.groups.find("G")
    assert group is not None
    group.consume_enable = False
    answer = pull(kit, topic="NoSuch")
    assert answer is not None and (answer.code, answer.ext) == (16, {"forbiddenType": "2"})


def test_an_unknown_topic_is_refused_in_rocketmqs_words(kit: Kit) -> None:
    answer = pull(kit, topic="EdgeNope")
    assert answer is not None and (answer.code, answer.ext) == (17, {})
    assert answer.remark == (
        "topic[EdgeNope] not exist, apply first please! \n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


def test_a_topic_that_may_not_be_read_is_refused(kit: Kit) -> None:
    kit.topic("Hidden", perm=2)
    answer = pull(kit, topic="Hidden", queueId=99)
    assert answer is not None and (answer.code, answer.ext) == (16, {"forbiddenType": "3"})


@pytest.mark.parametrize("queue", [-1, 4, 77])
def test_a_queue_that_the_topic_lacks_is_refused(kit: Kit, queue: int) -> None:
    answer = pull(kit, queueId=queue)
    assert answer is not None and (answer.code, answer.ext) == (29, {})
    assert answer.remark == (
        f"queueId[{queue}] is illegal, topic:[T] topicConfig.readQueueNums:[4]"
        " consumer:[/10.9.9.3:48932]"
    )


def test_an_expression_of_separators_alone_is_refused(kit: Kit) -> None:
    answer = pull(kit, subscription="||")
    assert answer is not None and answer.code == 23


def test_a_pull_without_expression_needs_a_registered_member(kit: Kit) -> None:
    answer = pull(kit, sysFlag=0)
    assert answer is not None and answer.code == 24
    assert (answer.remark or "").startswith("the consumer's group info not exist\nSee https://")


def test_a_pull_without_expression_needs_its_topic_among_the_subscriptions(kit: Kit) -> None:
    heartbeat(kit, Subscription.of("U", "*", "TAG", 7), kit.connection)
    answer = pull(kit, sysFlag=0)
    assert answer is not None and answer.code == 24
    assert (answer.remark or "").startswith("the consumer's subscription not exist")


def test_a_pull_ahead_of_its_heartbeat_gets_every_tag(kit: Kit) -> None:
    """Which tags its member wants now we do not know; the member selects again."""
    fill(kit, "a", "b")
    heartbeat(kit, Subscription.of("T", "a", "TAG", 7), kit.connection)
    assert bodies(pull(kit, sysFlag=0, subVersion=7)) == [b"0"]
    assert bodies(pull(kit, sysFlag=0, subVersion=8)) == [b"0", b"1"]


def test_a_pull_ahead_of_its_heartbeat_by_another_filter_is_told_to_wait(kit: Kit) -> None:
    heartbeat(kit, Subscription.of("T", "*", "TAG", 7), kit.connection)
    answer = pull(kit, sysFlag=0, subVersion=8, expressionType="SQL92")
    assert answer is not None
    assert (answer.code, answer.remark) == (25, "the consumer's subscription not latest")


def test_broadcasting_can_be_forbidden_to_a_group(kit: Kit) -> None:
    group = kit.groups.find("G")
    assert group is not None
    group.consume_broadcast_enable = False
    heartbeat(kit, Subscription.of("T", "*", "TAG", 7), kit.connection, "BROADCASTING")
    answer = pull(kit, sysFlag=0)
    assert answer is not None and (answer.code, answer.ext) == (16, {"forbiddenType": "4"})


async def test_a_topic_can_be_forbidden_to_a_group(kit: Kit) -> None:
    heartbeat(kit, Subscription.of("T", "*", "TAG", 7), kit.connection)
    await kit.groups.set_readable("G", "T", False)
    answer = pull(kit, sysFlag=0)
    assert answer is not None and (answer.code, answer.ext) == (16, {"forbiddenType": "5"})


def test_sql_filters_are_refused(kit: Kit) -> None:
    answer = pull(kit, expressionType="SQL92", subscription="a > 3")
    assert answer is not None and answer.code == 1
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"
    heartbeat(kit, Subscription.of("T", "a > 3", "SQL92", 7), kit.connection)
    answer = pull(kit, sysFlag=0)
    assert answer is not None and answer.code == 1


def test_unregistered_pull_consumers_can_be_refused(tmp_path: Path) -> None:
    with open_kit(tmp_path, pull_consumers_rejected=True) as kit:
        kit.topic("T")
        refused, exempt = pull(kit), pull(kit, consumerGroup="CID_RMQ_SYS_X")
        assert refused is not None and refused.code == 24
        assert exempt is not None and exempt.code == 19


def test_a_missing_field_is_refused(kit: Kit) -> None:
    answer = kit.ask(Command(11, {"topic": "T", "consumerGroup": "G"}))
    assert answer is not None and answer.code == 1


# -- waiting --------------------------------------------------------------------------------

WAITING = SUBSCRIPTION | SUSPEND


def test_a_pull_at_the_end_waits_for_the_next_message(kit: Kit) -> None:
    connection = FakeConnection()
    assert pull(kit, connection, sysFlag=WAITING) is None
    fill(kit, "a", queue=1)
    assert connection.take() == []
    fill(kit, "a")
    (answer,) = connection.take()
    assert (answer.code, answer.opaque, bodies(answer)) == (0, 6, [b"0"])
    fill(kit, "b")
    assert connection.take() == []


def test_a_waiting_pull_is_woken_by_its_tags_only(kit: Kit) -> None:
    connection = FakeConnection()
    pull(kit, connection, sysFlag=WAITING, subscription="b")
    fill(kit, "a")
    assert connection.take() == []
    fill(kit, "b")
    (answer,) = connection.take()
    assert bodies(answer) == [b"0"]
    assert answer.ext is not None and answer.ext["nextBeginOffset"] == "2"


def test_the_sweep_moves_a_pull_past_messages_it_does_not_want(kit: Kit) -> None:
    connection = FakeConnection()
    pull(kit, connection, sysFlag=WAITING, subscription="b")
    fill(kit, "a")
    kit.pulls.held.sweep()
    (answer,) = connection.take()
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")


def test_a_waiting_pull_is_answered_not_found_when_its_time_is_up(kit: Kit) -> None:
    connection = FakeConnection()
    pull(kit, connection, sysFlag=WAITING, suspendTimeoutMillis=15000)
    kit.clock.pass_ms(14_999)
    kit.pulls.held.expire(kit.clock.monotonic_ms())
    assert connection.take() == []
    kit.clock.pass_ms(501)
    kit.pulls.held.expire(kit.clock.monotonic_ms())
    (answer,) = connection.take()
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext is not None and answer.ext["nextBeginOffset"] == "0"


def test_with_long_polling_off_pulls_wait_for_a_second(tmp_path: Path) -> None:
    with open_kit(tmp_path, long_polling_enabled=False) as kit:
        kit.topic("T")
        assert pull(kit, sysFlag=WAITING) is None
        kit.clock.pass_ms(1_500)
        kit.pulls.held.expire(kit.clock.monotonic_ms())
        assert len(kit.connection.take()) == 1


def test_only_pulls_that_found_nothing_new_wait(kit: Kit) -> None:
    fill(kit, "a", "b")
    for offset, code in ((9, 21), (0, 20)):
        answer = pull(kit, sysFlag=WAITING, subscription="none", queueOffset=offset)
        assert answer is not None and answer.code == code


def test_the_second_pass_checks_everything_again(kit: Kit) -> None:
    connection = FakeConnection()
    pull(kit, connection, sysFlag=WAITING)
    kit.topics._topics.pop("T")
    kit.pulls.held.release_all()
    (answer,) = connection.take()
    assert answer.code == 17


def test_pulls_of_a_closed_connection_are_forgotten(kit: Kit) -> None:
    connection = FakeConnection()
    pull(kit, connection, sysFlag=WAITING)
    connection.close()
    fill(kit, "a")
    assert connection.written == b""
    assert kit.pulls.held.count == 0


def test_a_pull_that_finds_no_room_to_wait_is_told_so(kit: Kit) -> None:
    kit.pulls.held.count_max = 1
    assert pull(kit, sysFlag=WAITING) is None
    answer = pull(kit, sysFlag=WAITING)
    assert answer is not None and answer.code == 2


# -- filters of properties ------------------------------------------------------------------


@pytest.fixture
def filtering(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path, property_filter_enabled=True) as kit:
        kit.topic("T", 4)
        yield kit


def price(kit: Kit, *prices: int, padding: int = 0, **properties: str) -> None:
    """Messages with this property each; the body is the price."""
    more = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    more += f"pad\x01{'x' * padding}\x02" if padding else ""
    for each in prices:
        kit.send(b"%d" % each, e="0", i=f"UNIQ_KEY\x01{UNIQUE}\x02price\x01{each}\x02{more}")
    kit.dispatch()


def sql(expression: str, **fields: str | int) -> dict[str, str | int]:
    return {"expressionType": "SQL92", "subscription": expression, **fields}


def test_a_pull_gets_the_messages_that_its_filter_takes_and_moves_past_the_others(
    filtering: Kit,
) -> None:
    price(filtering, 5, 50, 7, 70, 9)
    answer = pull(filtering, **sql("price > 40 AND UNIQ_KEY IS NOT NULL"))
    assert bodies(answer) == [b"50", b"70"]
    assert answer is not None and answer.ext is not None
    assert answer.ext["nextBeginOffset"] == "5"
    answer = pull(filtering, **sql("price > 400"))
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext["nextBeginOffset"] == "5"


def test_a_heartbeats_filter_is_used_whatever_type_the_pull_names(filtering: Kit) -> None:
    price(filtering, 5, 50)
    heartbeat(filtering, Subscription.of("T", "price > 40", "SQL92", 7), filtering.connection)
    for kind in ("SQL92", "TAG"):  # the Go client's pulls say TAG
        assert bodies(pull(filtering, sysFlag=0, subVersion=7, expressionType=kind)) == [b"50"]


@pytest.mark.parametrize("expression", ["price > 'x'", "", "(" * 10_000])
def test_a_filter_that_does_not_compile_is_refused_and_lets_nothing_through(
    filtering: Kit, expression: str
) -> None:
    price(filtering, 5)
    answer = pull(filtering, **sql(expression))
    assert answer is not None and answer.code == 23 and answer.body is None
    assert (answer.remark or "").startswith("the SQL92 expression is refused at character ")
    heartbeat(filtering, Subscription.of("T", expression, "SQL92", 7), filtering.connection)
    answer = pull(filtering, sysFlag=0)
    assert answer is not None and answer.code == 27 and answer.body is None
    assert "consumer filter data is not exist" in (answer.remark or "")
    assert "at character " in (answer.remark or "")


def test_one_pull_judges_a_bounded_number_of_messages_fewer_by_a_large_filter(
    filtering: Kit,
) -> None:
    price(filtering, *range(900))
    for expression, judged in (
        ("price > 5000", 800),
        (" OR ".join(["price > 5000"] * 60), 160),
        (" OR ".join(["price > 5000"] * 120), 72),
    ):
        answer = pull(filtering, **sql(expression))
        assert answer is not None and answer.ext is not None and answer.code == 20
        assert answer.ext["nextBeginOffset"] == str(judged)


def test_one_pull_judges_a_bounded_size_of_properties(filtering: Kit) -> None:
    price(filtering, *range(60), padding=30_000)
    answer = pull(filtering, **sql("price > 5000"))
    assert answer is not None and answer.ext is not None and answer.code == 20
    assert answer.ext["nextBeginOffset"] == "35"  # the first beyond 1 MiB


def test_a_waiting_pull_is_woken_by_the_first_message_that_its_filter_takes(
    filtering: Kit,
) -> None:
    connection = FakeConnection()
    waiting = sql("price > 40", sysFlag=SUBSCRIPTION | SUSPEND)
    assert pull(filtering, connection, **waiting) is None
    price(filtering, 5, 6)
    price(filtering, 7)
    assert connection.take() == []
    price(filtering, 50)
    (answer,) = connection.take()
    assert (answer.code, bodies(answer)) == (0, [b"50"])
    assert answer.ext is not None and answer.ext["nextBeginOffset"] == "4"


def test_a_waiting_pull_moves_past_what_its_filter_does_not_take(filtering: Kit) -> None:
    connection = FakeConnection()
    waiting = sql("price > 40", sysFlag=SUBSCRIPTION | SUSPEND)
    assert pull(filtering, connection, **waiting) is None
    price(filtering, 5, 6)
    filtering.pulls.held.sweep()
    (answer,) = connection.take()
    assert answer.code == 20
    assert answer.ext is not None and answer.ext["nextBeginOffset"] == "2"


def test_messages_that_come_again_are_filtered_only_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    retries = {"topic": "%RETRY%G", "expressionType": "SQL92", "subscription": "price > 0"}
    for asked, expected in ((False, [b"5", b"50"]), (True, [b"50"])):
        with open_kit(
            tmp_path / str(asked), property_filter_enabled=True, retries_filtered=asked
        ) as kit:
            kit.topic("%RETRY%G", 1)
            heartbeat(kit, Subscription.of("T", "price > 40", "SQL92", 7), kit.connection)
            for each in (b"5", b"50"):
                text = f"UNIQ_KEY\x01{UNIQUE}\x02price\x01{each.decode()}\x02RETRY_TOPIC\x01T\x02"
                kit.send(each, b="%RETRY%G", e="0", i=text)
            kit.dispatch()
            assert bodies(pull(kit, **retries)) == expected
            assert bodies(pull(kit, topic="%RETRY%G")) == [b"5", b"50"]


# -- what is not in memory ------------------------------------------------------------------


async def test_old_messages_are_read_by_a_thread_once_for_all_who_want_them(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        part = 0.0

        def resident(self, path: Path, start: int, size: int) -> float:
            return self.part

    fill(kit, *"abcdef")
    reader = kit.store.reader
    monkeypatch.setattr(reader, "_hot_bytes", 100)
    kernel: Any = Kernel()
    reader.residency = Residency(kit.clock, kernel)
    threads = []

    def run(fetch: Fetch) -> None:
        threads.append(threading.current_thread())
        kernel.part = 1.0

    monkeypatch.setattr(Fetch, "run", run)
    monkeypatch.setattr(Segment, "pread", lambda *_: pytest.fail("the loop waited for the disk"))
    ext = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "3",
        "sysFlag": str(SUBSCRIPTION), "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    first, second, gone = (FakeConnection() for _ in range(3))
    waiting = [
        kit.table[11](Command(11, dict(ext), opaque=number), connection)
        for number, connection in enumerate((first, second, gone))
    ]
    assert not first.written
    assert kit.offsets.pulled("G", "T", 0) == -1, "nothing has happened yet"
    gone.close()
    assert await asyncio.gather(*waiting) == [None, None, None]  # type: ignore[arg-type]
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    assert first.rooms == second.rooms == 1, "large answers of tasks wait until there is room"
    for connection in (first, second):
        (answer,) = connection.take()
        assert bodies(answer) == [b"0", b"1", b"2"]
    assert not gone.written
    assert kit.pulls._fetches._running == {}


async def test_a_disk_that_fails_to_give_old_messages_is_an_error_of_that_pull(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(kit, *"abc")
    monkeypatch.setattr(kit.store.reader, "_hot_bytes", 10)

    class Cold:
        def resident(self, path: Path, start: int, size: int) -> float:
            return 0.0

    def fails(fetch: Fetch) -> None:
        raise OSError(5, "Input/output error")

    cold: Any = Cold()
    kit.store.reader.residency = Residency(kit.clock, cold)
    monkeypatch.setattr(Fetch, "run", fails)
    ext = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "3",
        "sysFlag": str(SUBSCRIPTION), "subscription": "*",
    }  # fmt: skip
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            await kit.table[11](Command(11, dict(ext)), kit.connection)  # type: ignore[misc]
    assert kit.pulls._fetches._running == {}

    def is_gone(fetch: Fetch) -> None:
        raise FileNotFoundError(fetch.path)

    monkeypatch.setattr(Fetch, "run", is_gone)
    assert await kit.table[11](Command(11, dict(ext)), kit.connection) is None  # type: ignore[misc]
    assert len(bodies(kit.connection.take()[0])) == 3, (
        "it is for the second look to say what is there"
    )
