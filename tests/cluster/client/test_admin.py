"""What Admin asks whom, and what it makes of the answers; a table of answers stands for the servers."""

from __future__ import annotations

from typing import Any, cast

import pytest
from adminkit import FIRST, MASTER, OTHER, SECOND, SLAVE, Answer, Servers

from tandemmq.cluster.client import (
    Admin,
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    ClientConfig,
    GroupSettings,
    MessageQueue,
    MessageRefused,
    NoRoute,
    NotRunning,
    TopicSettings,
    UnknownCluster,
)
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def admin(servers: Servers) -> Admin:
    made = Admin(f"{FIRST};{SECOND}")
    made._instance = cast(Any, servers)
    return made


async def test_outside_async_with_it_says_how_to_use_it() -> None:
    with pytest.raises(NotRunning, match="async with Admin"):
        await Admin(FIRST).topics()


def test_config_and_its_parts_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        Admin(FIRST, config=ClientConfig(FIRST))
    with pytest.raises(ValueError, match="timeout_ms"):
        Admin(FIRST, timeout_ms=0)


async def test_cluster_knows_members_masters_and_which_clusters_there_are(admin: Admin) -> None:
    assert await admin.brokers() == {"a": {0: MASTER, 1: SLAVE}, "b": {0: OTHER}}
    assert await admin.masters("C1") == {"a": MASTER}
    with pytest.raises(UnknownCluster, match="there is C1, C2") as caught:
        await admin.cluster("C3")
    assert caught.value.known == ("C1", "C2")


async def test_without_a_master_nothing_is_ordered(admin: Admin, servers: Servers) -> None:
    entry = {"brokerAddrs": {"1": SLAVE}, "brokerName": "a", "cluster": "C1"}
    servers.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = (0, {"brokerAddrTable": {"a": entry}})
    with pytest.raises(BrokerUnreachable, match="no master"):
        await admin.create_topic("T")
    assert servers.to(RequestCode.UPDATE_AND_CREATE_TOPIC) == []


async def test_a_topic_goes_to_every_master_with_all_its_settings(
    admin: Admin, servers: Servers
) -> None:
    settings = TopicSettings("T", 3, 2, 4, True, 1, attributes={"k": "v", "gone": None})
    assert await admin.put_topic(settings) == [MASTER, OTHER]
    assert servers.to(RequestCode.UPDATE_AND_CREATE_TOPIC) == [MASTER, OTHER]
    assert servers.fields(RequestCode.UPDATE_AND_CREATE_TOPIC)[0] == {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2",
        "perm": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "1", "order": "true",
        "attributes": "+k=v,-gone",
    }  # fmt: skip
    await admin.create_topic("T", cluster="C2")
    assert servers.to(RequestCode.UPDATE_AND_CREATE_TOPIC)[2:] == [OTHER]


async def test_bad_names_are_refused_before_anything_is_sent(
    admin: Admin, servers: Servers
) -> None:
    with pytest.raises(MessageRefused, match="illegal"):
        await admin.create_topic("no.dots")
    with pytest.raises(MessageRefused, match="illegal"):
        await admin.put_group(GroupSettings("no.dots"))
    with pytest.raises(MessageRefused, match="blank"):
        await admin.delete_topic(" ")
    assert servers.requests == []


async def test_deleting_a_topic_reaches_masters_then_every_name_server(
    admin: Admin, servers: Servers
) -> None:
    await admin.delete_topic("T", cluster="C1")
    assert servers.to(RequestCode.DELETE_TOPIC_IN_BROKER) == [MASTER]
    assert servers.to(RequestCode.DELETE_TOPIC_IN_NAMESRV) == [FIRST, SECOND]
    assert servers.to(RequestCode.DELETE_KV_CONFIG) == [FIRST, SECOND]
    codes = [code for _, code, _ in servers.requests]
    assert codes.index(RequestCode.DELETE_TOPIC_IN_BROKER) < codes.index(
        RequestCode.DELETE_TOPIC_IN_NAMESRV
    )


async def test_what_a_master_remarks_on_a_change_it_made_is_kept(
    admin: Admin, servers: Servers
) -> None:
    """Not all of its slaves have it: if it dies now, the change may be gone."""

    def half_done(address: str, command: Command) -> Command:
        return command.reply(remark="not known to have reached 2" if address == OTHER else None)

    servers.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = half_done
    await admin.create_topic("T")
    assert admin.remarks == ((OTHER, "not known to have reached 2"),)
    servers.answers[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = lambda _, command: command.reply(
        body=b'{"groupList":[]}', remark="as ever"
    )
    await admin.topic_groups("T")
    assert len(admin.remarks) == 1, "others chat"


async def test_a_refusal_stops_the_rest_and_carries_code_and_words(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.DELETE_TOPIC_IN_BROKER] = (29, "system topic")
    with pytest.raises(BrokerRefused, match="system topic") as caught:
        await admin.delete_topic("T")
    assert (caught.value.code, caught.value.address) == (29, MASTER)
    assert servers.to(RequestCode.DELETE_TOPIC_IN_NAMESRV) == []


async def test_changing_a_permission_keeps_everything_else(admin: Admin, servers: Servers) -> None:
    servers.answers[RequestCode.GET_TOPIC_CONFIG] = (
        0, {"topicName": "T", "readQueueNums": 5, "writeQueueNums": 3, "perm": 6, "order": True},
    )  # fmt: skip
    assert await admin.set_topic_perm("T", 4, address=MASTER) == {MASTER: (6, 4)}
    (sent,) = servers.fields(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (sent["readQueueNums"], sent["writeQueueNums"]) == ("5", "3")
    assert (sent["perm"], sent["order"]) == ("4", "true")


async def test_an_old_broker_is_asked_for_its_whole_topic_table(
    admin: Admin, servers: Servers
) -> None:
    entry = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    servers.answers[RequestCode.GET_TOPIC_CONFIG] = (3, "request type 351 not supported")
    servers.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = (0, {"topicConfigTable": {"T": entry}})
    assert await admin.topic_settings("T", MASTER) == TopicSettings("T", 1, 1)
    assert await admin.topic_settings("U", MASTER) is None


async def test_queue_tables_of_all_brokers_are_one_in_either_json_dialect(
    admin: Admin, servers: Servers
) -> None:
    def stats(address: str, command: Command) -> tuple[int, Any]:
        name, quote = ("a", "") if address == MASTER else ("b", "")
        queue = f'{{"brokerName":"{name}","queueId":0,"topic":"T"}}'
        entry = '{"lastUpdateTimestamp":7,"maxOffset":10,"minOffset":4}'
        text = f'{{"offsetTable":{{{quote}{queue}{quote}:{entry}}},"topicPutTps":1.5}}'
        return 0, text.encode()

    servers.answers[RequestCode.GET_TOPIC_STATS_INFO] = stats
    found = await admin.topic_stats("T")
    assert list(found.queues) == [MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)]
    assert (found.message_count, found.put_per_second) == (12, 3.0)


@pytest.mark.parametrize(
    "body", [b"[]", b'{"offsetTable":{"x":1}}', b"\xff\x00", b'{"offsetTable":']
)
async def test_a_body_of_another_shape_is_the_brokers_fault(
    admin: Admin, servers: Servers, body: bytes
) -> None:
    servers.answers[RequestCode.GET_TOPIC_STATS_INFO] = (0, body)
    with pytest.raises(BrokerAnswerBroken, match=r"10\.0\.0"):
        await admin.topic_stats("T")


async def test_deleting_a_group_takes_its_retries_and_dead_letters(
    admin: Admin, servers: Servers
) -> None:
    await admin.delete_group("G", cluster="C1", offsets_too=True)
    (fields,) = servers.fields(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    assert fields == {"groupName": "G", "cleanOffset": "true", "removeOffset": "true"}
    topics = [each["topic"] for each in servers.fields(RequestCode.DELETE_TOPIC_IN_BROKER)]
    assert topics == ["%RETRY%G", "%DLQ%G"]
    assert len(servers.to(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 4


async def test_a_group_keeps_all_its_settings_over_the_wire(admin: Admin, servers: Servers) -> None:
    settings = GroupSettings(
        "G", consume_enable=False, orderly=True, retry_max_times=3, retry_policy={"type": "X"},
        slow_reader_broker_id=2, attributes={"a": "b"},
    )  # fmt: skip
    await admin.put_group(settings, MASTER)
    table = {"subscriptionGroupTable": {"G": servers.bodies[-1]}}
    servers.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = (0, table)
    assert await admin.group_settings("G", MASTER) == settings
    await admin.put_groups([settings, GroupSettings("H")], MASTER)
    assert [each["groupName"] for each in servers.bodies[-1]["groupConfigList"]] == ["G", "H"]


async def test_consumers_are_looked_for_on_every_broker_of_the_group(
    admin: Admin, servers: Servers
) -> None:
    member = {"clientId": "c", "clientAddr": "1.2.3.4:5", "language": "GO", "version": 317}

    def online(address: str, command: Command) -> tuple[int, Any]:
        return (206, "not online") if address == MASTER else (0, {"connectionSet": [member]})

    servers.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = online
    (found,) = (await admin.consumers("G")).connections
    assert (found.client_id, found.address, found.language) == ("c", "1.2.3.4:5", "GO")
    servers.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = (206, "not online")
    with pytest.raises(BrokerRefused) as caught:
        await admin.consumers("G")
    assert caught.value.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_group_without_a_retry_topic_is_looked_for_on_every_master(
    admin: Admin, servers: Servers
) -> None:
    del servers.routes["%RETRY%G"]
    await admin.progress("G")
    assert servers.to(RequestCode.GET_CONSUME_STATS) == [MASTER, OTHER]


def progress(broker_offset: int, consumer_offset: int) -> Answer:
    def answer(address: str, command: Command) -> tuple[int, Any]:
        name = "a" if address == MASTER else "b"
        queue = f'{{"brokerName":"{name}","queueId":0,"topic":"T"}}'
        entry = (
            f'{{"brokerOffset":{broker_offset},"consumerOffset":{consumer_offset},'
            '"lastTimestamp":5}'
        )
        return 0, f'{{"consumeTps":1.0,"offsetTable":{{{queue}:{entry}}}}}'.encode()

    return answer


async def test_progress_adds_up_over_brokers_and_old_ones_have_no_pull_offset(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.GET_CONSUME_STATS] = progress(10, 7)
    found = await admin.progress("G", "T")
    assert (found.behind, found.in_flight, found.consume_per_second) == (6, 0, 2.0)


async def test_a_reset_is_the_brokers_work(admin: Admin, servers: Servers) -> None:
    body = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:4}}'
    servers.answers[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = (0, body)
    assert await admin.reset("G", "T", None) == {MessageQueue("T", "a", 0): 4}
    asked = servers.fields(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert {each["timestamp"] for each in asked} == {"-1"}
    assert servers.to(RequestCode.UPDATE_CONSUMER_OFFSET) == []


@pytest.mark.parametrize(
    ("time_ms", "force", "expected"), [(None, True, 10), (1_000, True, 9), (1_000, False, 7)]
)
async def test_an_old_broker_with_nobody_online_is_reset_by_commits(
    admin: Admin, servers: Servers, time_ms: int | None, force: bool, expected: int
) -> None:
    servers.answers |= {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (206, "Consumer not online"),
        RequestCode.GET_CONSUME_STATS: progress(10, 7),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (0, {"~offset": "9"}),
    }
    found = await admin.reset("G", "T", time_ms, force=force)
    assert found == {MessageQueue("T", "a", 0): expected, MessageQueue("T", "b", 0): expected}
    commits = servers.fields(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert {each["commitOffset"] for each in commits} == {str(expected)}


async def test_other_refusals_of_a_reset_are_told(admin: Admin, servers: Servers) -> None:
    servers.answers[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = (26, "Group G not exist!")
    with pytest.raises(BrokerRefused, match="not exist"):
        await admin.reset("G", "T", 0)


async def test_a_position_that_was_never_committed_is_none_not_zero(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.QUERY_CONSUMER_OFFSET] = (22, "not found")
    assert await admin.committed("G", MessageQueue("T", "a", 0)) is None
    assert servers.fields(RequestCode.QUERY_CONSUMER_OFFSET)[0]["setZeroIfNotFound"] == "false"
    with pytest.raises(NoRoute, match="c does not have it"):
        await admin.committed("G", MessageQueue("T", "c", 0))


async def test_values_are_written_to_every_name_server_and_read_from_one(
    admin: Admin, servers: Servers
) -> None:
    await admin.put_order_conf("T", "a:4;b:4")
    assert servers.to(RequestCode.PUT_KV_CONFIG) == [FIRST, SECOND]
    servers.answers[RequestCode.GET_KV_CONFIG] = (0, {"~value": "a:4;b:4"})
    assert await admin.order_conf("T") == "a:4;b:4"
    servers.answers[RequestCode.GET_KV_CONFIG] = (22, "no such key")
    assert await admin.order_conf("T") is None
    servers.answers[RequestCode.GET_KVLIST_BY_NAMESPACE] = (22, "no such namespace")
    assert await admin.list_kv("N") == {}
    with pytest.raises(ValueError, match="broker:queues"):
        await admin.put_order_conf("T", "a=4")


async def test_a_statistic_that_counted_nothing_is_none(admin: Admin, servers: Servers) -> None:
    servers.answers[RequestCode.VIEW_BROKER_STATS_DATA] = (1, "The stats <X> not exist")
    assert await admin.broker_statistic(MASTER, "X", "T") is None
    window = {"sum": 3, "tps": 0.5, "avgpt": 1.0}
    servers.answers[RequestCode.VIEW_BROKER_STATS_DATA] = (0, {"statsMinute": window})
    found = await admin.broker_statistic(MASTER, "X", "T")
    assert found is not None and found.longest_sum == 3 and found.minute.per_second == 0.5


async def test_settings_come_as_properties_with_and_without_escapes(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.GET_BROKER_CONFIG] = (0, b"b=1s 5s\na=x\\:y\n")
    assert await admin.broker_config(MASTER) == {"a": "x:y", "b": "1s 5s"}
    servers.answers[RequestCode.GET_BROKER_CONFIG] = (0, b"home=C:\\users\n")  # no escape: \u
    assert await admin.broker_config(MASTER) == {"home": "C:\\users"}


async def test_an_id_that_is_no_place_finds_nothing(admin: Admin, servers: Servers) -> None:
    servers.answers[RequestCode.QUERY_MESSAGE] = (22, "can not find message")
    assert await admin.message_by_id("nonsense", "T") is None
    assert servers.to(RequestCode.QUERY_MESSAGE) == [MASTER, OTHER]
    assert servers.to(RequestCode.VIEW_MESSAGE_BY_ID) == []
    with pytest.raises(ValueError):
        await admin.message_by_offset_id("nonsense")
