"""The stock mqadmin, old and new, prints about our servers what it prints about RocketMQ's."""

from __future__ import annotations

import json
import re
import time

import pytest
from clients import Clients, texts

from tandemmq.chaos.asking import routed
from tandemmq.chaos.processes import wait_until

pytestmark = pytest.mark.parametrize(
    "driver", [("4.9.7", "json"), ("5.3.3", "json")], indirect=True, ids="-".join
)


def table(printed: str) -> list[list[str]]:
    """The words of each line that is no heading."""
    lines = printed.splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def fields(printed: str, separator: str = ":") -> dict[str, str]:
    """`key : value` lines."""
    pairs = [line.split(separator, 1) for line in printed.splitlines() if separator in line]
    return {key.strip(): value.strip() for key, value in pairs}


def admin(clients: Clients, command: str, *arguments: str) -> str:
    """What the command prints; an exception that it prints is a failure."""
    printed = clients.driver.mqadmin(command, *arguments, "-n", clients.cluster.name_server)
    assert "Exception" not in printed, printed
    return printed


def topic_option(clients: Clients, topic: str) -> list[str]:
    """4.x tools end the process when queryMsgById is given a topic, 5.x ones when it is not."""
    return [] if clients.driver.version.startswith("4.") else ["-t", topic]


@pytest.fixture
def filled(clients: Clients) -> tuple[str, list[dict[str, str]]]:
    """A topic of four queues with twelve messages, and the answers to their sends."""
    topic = clients.topic()
    messages = [
        {"body": f"body {i}", "keys": f"key{i} {topic}", "tags": f"T{i % 2}"} for i in range(12)
    ]
    sent = clients.send(topic, messages)
    clients.wait_stored(topic, 12)
    return topic, sent


def test_cluster_list_shows_the_broker_with_its_address_and_version(clients: Clients) -> None:
    stock = getattr(clients.cluster.broker, "version", None)
    if (clients.driver.version, stock) == ("4.9.7", "5.3.3"):
        pytest.skip("the stock 5.3.3 broker renamed the statistic that the 4.9.7 tool asks for")
    (row,) = [r for r in table(admin(clients, "clusterList")) if r[1] == "broker-a"]
    broker = clients.cluster.broker
    assert row[:4] == [broker.cluster, "broker-a", "0", broker.address]
    assert re.fullmatch(r"V[45]_\d+_\d+", row[4])
    more = [r for r in table(admin(clients, "clusterList", "-m")) if r[1] == "broker-a"]
    assert more and all(number.isdigit() for number in more[0][2:6])


def test_topic_list_names_every_topic_and_its_groups(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, _ = filled
    listed = admin(clients, "topicList").split()
    assert topic in listed
    assert "TBW102" in listed
    group = clients.fresh("ListGroup")
    consumer = clients.push(topic, group=group)
    clients.driver.wait_messages(consumer, 12)
    clients.stop(consumer)  # writes its offsets
    with_groups = table(admin(clients, "topicList", "-c"))
    assert [clients.cluster.broker.cluster, topic, group] in with_groups


def test_topic_route_shows_queues_and_addresses(clients: Clients) -> None:
    topic = clients.topic(queues=3)
    route = admin(clients, "topicRoute", "-t", topic)
    broker = clients.cluster.broker
    queues = json.loads(re.sub(r"{\s*0:", '{"0":', route))
    assert queues["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
    assert queues["brokerDatas"][0]["cluster"] == broker.cluster
    (queue_data,) = queues["queueDatas"]
    assert (queue_data["readQueueNums"], queue_data["writeQueueNums"]) == (3, 3)
    assert (queue_data["perm"], queue_data["brokerName"]) == (6, broker.broker_name)


def test_topic_status_shows_offsets_and_times_of_each_queue(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, _ = filled
    printed = admin(clients, "topicStatus", "-t", topic)
    rows = [r for r in table(printed) if r[0] == "broker-a"]
    assert [r[:4] for r in rows] == [["broker-a", str(q), "0", "3"] for q in range(4)]
    today = time.strftime("%Y-%m-%d")
    assert {r[4] for r in rows} == {today}


def test_update_topic_creates_and_changes_topics(clients: Clients) -> None:
    topic = clients.fresh("AdminTopic")
    broker = clients.cluster.broker
    printed = admin(clients, "updateTopic", "-b", broker.address, "-t", topic, "-r", "3", "-w", "2")
    assert f"create topic to {broker.address} success." in printed
    wait_until(lambda: routed(clients.cluster.name_server, topic), 10, f"route of {topic}")
    route = admin(clients, "topicRoute", "-t", topic)
    assert '"readQueueNums":3' in route and '"writeQueueNums":2' in route
    command = ["updateTopic", "-c", broker.cluster, "-t", topic, "-r", "5", "-w", "5", "-p", "4"]
    assert "success." in admin(clients, *command)
    wait_until(
        lambda: '"readQueueNums":5' in admin(clients, "topicRoute", "-t", topic),
        10,
        "changed route",
    )
    assert '"perm":4' in admin(clients, "topicRoute", "-t", topic)


def test_consumer_progress_shows_how_far_a_group_is(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, _ = filled
    group = clients.fresh("ProgressGroup")

    def rows() -> list[list[str]]:
        printed = table(admin(clients, "consumerProgress", "-g", group))
        return [r for r in printed if r[0] == topic]

    consumer = clients.push(topic, group=group)
    clients.driver.wait_messages(consumer, 12)

    def has_written() -> bool:
        arguments = ("consumerProgress", "-g", group, "-n", clients.cluster.name_server)
        printed = clients.driver.mqadmin(*arguments)
        if "Exception" in printed:  # 4.x, of a group that has written nothing
            return False
        return [int(r[5]) for r in table(printed) if r[0] == topic] == [0] * 4

    # every 5 s; when it stops, it may not have counted the last one yet
    wait_until(has_written, 20, "it has written its offsets", every_s=0.3)
    clients.stop(consumer)
    clients.send(topic, ["behind"] * 4)
    clients.wait_stored(topic, 16)
    wait_until(lambda: sum(int(r[5]) for r in rows()) == 4, 15, "four behind")
    assert [r[1:6] for r in rows()] == [["broker-a", str(q), "4", "3", "1"] for q in range(4)]
    printed = admin(clients, "consumerProgress", "-g", group)
    assert re.search(r"Diff Total: *4\b", printed), printed
    summary = [r for r in table(admin(clients, "consumerProgress")) if r[0] == group]
    assert summary and summary[0][-1] == "4"


def test_consumer_connection_shows_members_and_subscriptions(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("ConnectedGroup")
    clients.push(topic, group=group, expression="A || B")
    printed = admin(clients, "consumerConnection", "-g", group)
    rows = table(printed)
    assert [topic, "A", "||", "B"] in rows
    assert [f"%RETRY%{group}", "*"] in rows
    version = "V" + clients.driver.version.replace(".", "_")
    assert [row[2:] for row in rows if "@" in row[0]] == [["JAVA", version]]
    values = fields(printed)
    assert values["ConsumeType"] == "CONSUME_PASSIVELY"
    assert values["MessageModel"] == "CLUSTERING"
    assert values["ConsumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"


def test_broker_status_prints_the_runtime_table(clients: Clients) -> None:
    status = fields(admin(clients, "brokerStatus", "-b", clients.cluster.broker.address))
    for key in (
        "bootTimestamp", "commitLogMaxOffset", "commitLogMinOffset", "dispatchBehindBytes",
        "putTps", "getTotalTps", "msgPutTotalTodayNow", "runtime", "earliestMessageTimeStamp",
        "commitLogDiskRatio", "consumeQueueDiskRatio", "putMessageDistributeTime",
        "sendThreadPoolQueueSize", "brokerVersionDesc", "startAcceptSendRequestTimeStamp",
    ):  # fmt: skip
        assert key in status, key
    assert int(status["commitLogMaxOffset"]) > 0
    assert int(status["bootTimestamp"]) <= time.time() * 1000


def test_a_message_is_shown_by_its_offset_id_and_its_unique_id(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, sent = filled
    for command in (
        ["queryMsgById", "-i", sent[5]["offsetMsgId"], *topic_option(clients, topic)],
        ["queryMsgByUniqueKey", "-t", topic, "-i", sent[5]["msgId"]],
    ):
        shown = fields(admin(clients, *command))
        assert shown["Topic"] == topic, command
        assert shown["Tags"] == "[T1]"
        assert f"key5 {topic}" in shown["Keys"].replace(",", "").replace("[", "").replace("]", "")
        assert shown["Queue ID"] == str(sent[5]["queueId"])
        assert shown["Queue Offset"] == str(sent[5]["queueOffset"])
        assert shown["Store Host"] == clients.cluster.broker.address
        assert shown["Reconsume Times"] == "0"


def test_messages_are_listed_by_key(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, sent = filled
    wait_until(
        lambda: len(table(admin(clients, "queryMsgByKey", "-t", topic, "-k", topic))) == 12, 15,
        "all twelve carry the topic's name as a key",
    )  # fmt: skip
    rows = table(admin(clients, "queryMsgByKey", "-t", topic, "-k", "key7"))
    expected = [sent[7]["msgId"], str(sent[7]["queueId"]), str(sent[7]["queueOffset"])]
    assert [r[:3] for r in rows] == [expected]


def test_a_message_is_shown_by_its_queue_offset(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, sent = filled
    last = sent[11]
    shown = fields(
        admin(
            clients, "queryMsgByOffset", "-t", topic, "-b", "broker-a",
            "-i", str(last["queueId"]), "-o", str(last["queueOffset"]),
        )
    )  # fmt: skip
    assert shown["OffsetID"] in (last["offsetMsgId"], last["msgId"])
    assert shown["Queue Offset"] == str(last["queueOffset"])


def test_print_msg_prints_every_message(
    clients: Clients, filled: tuple[str, list[dict[str, str]]]
) -> None:
    topic, sent = filled
    printed = admin(clients, "printMsg", "-t", topic, "-d", "true")
    assert sorted(re.findall(r"BODY: (body \d+)", printed)) == sorted(
        f"body {i}" for i in range(12)
    )
    assert all(answer["msgId"] in printed for answer in sent)
    some = admin(clients, "printMsg", "-t", topic, "-s", "T1", "-d", "true")
    assert len(re.findall(r"BODY: (body \d+)", some)) == 6
    assert texts(clients.stored(topic))
