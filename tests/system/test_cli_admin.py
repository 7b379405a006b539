"""`tandem admin` against real servers: mqadmin's names and options, tables, JSON, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, run

from tandemmq.admin.absent import ABSENT
from tandemmq.admin.commands import COMMANDS, SECTIONS, admin_parser
from tandemmq.chaos.asking import routed
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Cluster:
    """One name server and one broker."""

    name_server: NameServer
    broker: Broker

    def run(self, *arguments: object) -> Done:
        return run(*arguments, "-n", self.name_server.address)

    def admin(self, *arguments: object) -> Done:
        done = self.run("admin", *arguments)
        assert done.code == 0, done.err
        return done

    def topic(self, name: str, queues: int = 2) -> str:
        self.admin("updateTopic", "-b", self.broker.address, "-t", name, "-r", queues, "-w", queues)
        wait_until(lambda: routed(self.name_server.address, name), 10, f"route of {name}")
        return name

    def send(self, topic: str, *arguments: object) -> dict[str, Any]:
        (sent,) = self.admin("sendMessage", "-t", topic, *arguments, "--json").json
        return dict(sent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("admin")
    with NameServer(directory) as name_server:
        name_server.start()
        with Broker(directory, name_server.address) as broker:
            yield Cluster(name_server, broker.start())


# What there is


def test_every_command_of_mqadmin_is_here_or_has_a_reason() -> None:
    assert not set(COMMANDS) & set(ABSENT)
    theirs = [each for each in COMMANDS.values() if not each.ours]
    assert len(theirs) + len(ABSENT) == 89  # of RocketMQ 5.3.3
    assert sum(len(commands) for _, commands in SECTIONS) == len(COMMANDS)  # none named twice
    listed = run("admin", "--list").out
    assert all(f"{name} " in listed for name in (*COMMANDS, *ABSENT))
    shown = run("admin", "--list", "--json").json
    assert (set(shown["here"]), shown["absent"]) == (set(COMMANDS), ABSENT)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_whose_example_it_understands(name: str) -> None:
    done = run("admin", name, "--help")
    assert done.code == 0
    assert f"example:\n  tandem admin {name}" in done.out
    assert "--namesrv" in done.out and "--json" in done.out
    admin_parser(COMMANDS[name]).parse_args(shlex.split(COMMANDS[name].example))


def test_unknown_absent_and_misspelt_commands_are_told_apart() -> None:
    for arguments, part in (
        (["admin", "nothing"], "not exist"),
        (["admin", "clusterlist"], "did you mean clusterList"),
        (["admin", "setConsumeMode", "-g", "x"], "POP"),
        (["admin"], "--list"),
        (["admin", "updateTopic", "-t", "T"], "required"),
        (["admin", "updateTopic", "-t", "T", "-c", "C", "-b", "B"], "not allowed"),
    ):
        done = run(*arguments)
        assert (done.code, part in done.err) == (ExitCode.USAGE, True), (arguments, done.err)


# Topics


def test_topics_are_made_changed_shown_and_deleted(cluster: Cluster) -> None:
    done = cluster.admin(
        "updateTopic", "-c", "TestCluster", "-t", "Made", "-r", 3, "-w", 2,
        "-a", "+message.type=FIFO",
    )  # fmt: skip
    assert f"create topic to {cluster.broker.address} success." in done.out
    wait_until(lambda: routed(cluster.name_server.address, "Made"), 10, "route of Made")
    assert "Made" in cluster.admin("topicList").out.split()
    route = cluster.admin("topicRoute", "-t", "Made", "--json").json
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 2, 6)
    head, row, total = cluster.admin("topicRoute", "-t", "Made", "-l").out.splitlines()
    assert head.split()[0] == "#ClusterName"
    assert row.split()[-3:] == ["3", "2", "6"] and total.startswith("Total:")
    assert cluster.admin("topicClusterList", "-t", "Made").out == "TestCluster\n"
    changed = cluster.admin("updateTopicPerm", "-t", "Made", "-p", 4, "-c", "TestCluster").out
    assert "from 6 to 4" in changed
    metadata = cluster.admin("exportMetadata", "-c", "TestCluster", "-t", "--json").json
    made = metadata["topicConfigTable"]["Made"]
    assert (made["perm"], made["readQueueNums"], made["attributes"]) == (
        4, 3, {"message.type": "FIFO"},
    )  # fmt: skip
    cluster.admin("deleteTopic", "-c", "TestCluster", "-t", "Made")
    assert "Made" not in cluster.admin("topicList", "--json").json
    assert cluster.run("admin", "topicStatus", "-t", "Made").code == ExitCode.UNREACHABLE


def test_topics_of_a_file_are_made(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    entry = {"topicName": "Listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    path.write_text(json.dumps([entry]))
    cluster.admin("updateTopicList", "-b", cluster.broker.address, "-f", path)
    wait_until(lambda: routed(cluster.name_server.address, "Listed"), 10, "route of Listed")
    for text, part in (
        ("{", "no JSON"),
        ("{}", "array"),
        ('[{"topicName": "X"}]', "readQueueNums"),
    ):
        path.write_text(text)
        done = cluster.run("admin", "updateTopicList", "-c", "TestCluster", "-f", path)
        assert (done.code, part in done.err) == (ExitCode.USAGE, True), done.err


def test_order_conf_is_set_shown_and_deleted(cluster: Cluster) -> None:
    order = ["updateOrderConf", "-t", "Ordered", "-m"]
    cluster.admin(*order, "put", "-v", "broker-a:2")
    assert "[broker-a:2]" in cluster.admin(*order, "get").out
    cluster.admin(*order, "delete")
    assert cluster.admin(*order, "get", "--json").json["order_conf"] is None
    assert cluster.run("admin", *order, "put").code == ExitCode.USAGE
    assert cluster.run("admin", *order, "put", "-v", "nonsense").code == ExitCode.FAILED


def test_queues_are_shared_as_the_default_allocation_does(cluster: Cluster) -> None:
    topic = cluster.topic("Shared", 3)
    shares = cluster.admin("allocateMQ", "-t", topic, "-i", "10.0.0.2,10.0.0.1", "--json").json
    counts = {client: len(queues) for client, queues in shares["result"].items()}
    assert counts == {"10.0.0.1": 2, "10.0.0.2": 1}


# Messages


def test_a_message_is_found_by_ids_key_and_place_with_what_became_of_it(cluster: Cluster) -> None:
    topic = cluster.topic("Found")
    sent = cluster.send(topic, "-p", "find me", "-k", "k1 k2", "-c", "A")
    by_key = ["admin", "queryMsgByKey", "-t", topic, "-k"]
    wait_until(lambda: cluster.run(*by_key, "k2", "--json").json, 10, "the key is indexed")
    assert cluster.run(*by_key, "other", "--json").json == []
    queries = [
        ["queryMsgById", "-t", topic, "-i", sent["message_id"]],
        ["queryMsgById", "-t", topic, "-i", sent["offset_message_id"]],
        ["queryMsgByUniqueKey", "-t", topic, "-i", sent["message_id"]],
        ["queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", sent["queue_id"], "-o", 0],
    ]
    for query in queries:
        (found,) = cluster.admin(*query, "--json").json
        assert (found["body"], found["keys"], found["tags"]) == ("find me", ["k1", "k2"], "A")
        assert found["message_id"] == sent["message_id"]
        text = cluster.admin(*query).out
        assert re.search(r"^Message Body: +find me$", text, re.MULTILINE)
        assert re.search(rf"^OffsetID: +{sent['offset_message_id']}$", text, re.MULTILINE)
    for query in (
        ["queryMsgById", "-t", topic, "-i", "00" * 16],
        ["queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", 0, "-o", 99],
    ):
        assert cluster.run("admin", *query).code == ExitCode.NOT_FOUND
    again = cluster.admin("queryMsgById", "-t", topic, "-i", sent["message_id"], "-s", "true")
    assert "SEND_OK" in again.out
    assert sent["message_id"] in again.out  # as mqadmin's: consumers can tell that they know it


def test_messages_are_printed_filtered_counted_and_located(cluster: Cluster) -> None:
    topic = cluster.topic("Printed")
    for number in range(4):
        cluster.send(topic, "-p", f"m{number}", "-c", "AB"[number % 2], "-b", "broker-a", "-i", 1)

    def bodies(*arguments: object) -> list[str]:
        return re.findall(r"BODY: (\w+)", cluster.admin(*arguments).out)

    wait_until(lambda: len(bodies("printMsg", "-t", topic)) == 4, 10, "messages are readable")
    assert bodies("printMsg", "-t", topic, "-s", "B || C") == ["m1", "m3"]
    assert bodies("printMsg", "-t", topic, "-b", "1h") == ["m0", "m1", "m2", "m3"]
    assert bodies("printMsg", "-t", topic, "-e", "1h") == []
    assert bodies("printMsg", "-t", topic, "-d", "false") == []
    assert bodies("consumeMessage", "-t", topic, "-c", 2) == ["m0", "m1"]
    assert bodies("consumeMessage", "-t", topic, "-b", "broker-a", "-i", 1, "-o", 3) == ["m3"]
    counted = cluster.admin(
        "printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", 1, "-p", "false", "-f", "true"
    )
    assert counted.rows == [["A", "2"], ["B", "2"]]
    lines = cluster.admin("printMsg", "-t", topic, "--json").out.splitlines()
    assert [json.loads(line)["queue_offset"] for line in lines] == [0, 1, 2, 3]
    (queue,) = cluster.admin("queryCq", "-t", topic, "-q", 1, "-i", 1, "-c", 2, "--json").json
    assert [entry["queue_offset"] for entry in queue["entries"]] == [1, 2]


def test_sends_are_timed(cluster: Cluster) -> None:
    topic = cluster.topic("Timed")
    assert len(cluster.admin("checkMsgSendRT", "-t", topic, "-a", 4, "--json").json["sends"]) == 4
    (row,) = cluster.admin("clusterRT", "-a", 2).rows
    assert (row[:2], row[3:]) == (["TestCluster", "broker-a"], ["2", "0"])
    assert "Avg RT:" in cluster.admin("sendMsgStatus", "-b", "broker-a", "-c", 2).out


# Groups


def test_groups_are_made_moved_shown_and_deleted(cluster: Cluster) -> None:
    topic = cluster.topic("Progress")
    for _ in range(3):
        cluster.send(topic, "-p", "x", "-b", "broker-a", "-i", 0)
    made = cluster.admin("updateSubGroup", "-c", "TestCluster", "-g", "G1", "-r", 3)
    assert "retryMaxTimes" in made.out and "=  3" in made.out
    config = cluster.admin("getConsumerConfig", "-g", "G1", "--json").json
    assert config["broker-a"]["retry_max_times"] == 3

    def behind(group: str) -> int:
        found = cluster.admin("consumerProgress", "-g", group, "-t", topic, "--json").json
        return int(found["behind"])

    reset = ["resetOffsetByTime", "-g", "G1", "-t", topic]
    assert cluster.admin(*reset, "-s", 0).rows == [["broker-a", "0", "0"], ["broker-a", "1", "0"]]
    wait_until(lambda: behind("G1") == 3, 10, "three messages wait")
    cluster.admin(*reset, "-s", "now", "-b", "broker-a", "-q", 0, "-o", 1)
    assert behind("G1") == 2
    cluster.admin("cloneGroupOffset", "-s", "G1", "-d", "G2", "-t", topic, "-o", "true")
    assert behind("G2") == 2
    cluster.admin("skipAccumulatedMessage", "-g", "G1", "-t", topic)
    assert behind("G1") == 0
    text = cluster.admin("consumerProgress", "-g", "G2", "-t", topic).out
    assert "Consume Diff Total: 2" in text
    assert cluster.run("admin", *reset, "-s", "yesterday").code == ExitCode.USAGE
    assert cluster.run("admin", *reset, "-s", 0, "-o", 1).code == ExitCode.USAGE
    cluster.admin("deleteSubGroup", "-c", "TestCluster", "-g", "G1", "-r", "true")
    assert cluster.run("admin", "getConsumerConfig", "-g", "G1").code == ExitCode.NOT_FOUND
    offline = cluster.run("admin", "consumerConnection", "-g", "G1")
    assert offline.code == ExitCode.FAILED and "206" in offline.err


# Servers


def test_cluster_and_broker_tell_about_themselves(cluster: Cluster) -> None:
    head, row = cluster.admin("clusterList").out.splitlines()
    assert head.startswith("#Cluster Name  #Broker Name  #BID  #Addr")
    assert row.split()[:5] == ["TestCluster", "broker-a", "0", cluster.broker.address, "V5_3_3"]
    (entry,) = cluster.admin("clusterList", "-m", "--json").json
    assert entry["answers"] is True and "putTps" in entry["status"]
    status = cluster.admin("brokerStatus", "-b", cluster.broker.address, "--json").json
    assert status[cluster.broker.address]["brokerVersionDesc"] == "V5_3_3"
    assert "#MasterAddr" in cluster.admin("haStatus", "-c", "TestCluster").out
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert cluster.admin(command, "-b", cluster.broker.address).out == "success\n"
    assert cluster.admin("producer", "-b", cluster.broker.address).code == 0


def test_settings_are_shown_changed_and_refused(cluster: Cluster) -> None:
    change = ["updateBrokerConfig", "-b", cluster.broker.address, "-k"]
    cluster.admin(*change, "fileReservedTime", "-v", 81)
    shown = cluster.admin("getBrokerConfig", "-b", cluster.broker.address).out
    assert re.search(r"^fileReservedTime +=  81$", shown, re.MULTILINE)
    refused = cluster.run("admin", *change, "brokerConfigPath", "-v", "x")
    assert refused.code == ExitCode.FAILED and "CODE: 16" in refused.err
    cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    settings = cluster.admin("getNamesrvConfig", "--json").json
    assert settings[cluster.name_server.address]["orderMessageEnable"] == "true"


def test_permissions_and_values_of_the_name_server_are_changed(cluster: Cluster) -> None:
    address = cluster.name_server.address
    assert cluster.admin("wipeWritePerm", "-b", "broker-a", "--json").json[address] > 0
    assert "OK, " in cluster.admin("addWritePerm", "-b", "broker-a").out
    cluster.admin("updateKvConfig", "-s", "N", "-k", "a", "-v", "b")
    cluster.admin("deleteKvConfig", "-s", "N", "-k", "a")


def test_exports_go_to_files(cluster: Cluster, tmp_path: Path) -> None:
    for command, name in (("exportConfigs", "configs"), ("exportMetrics", "metrics")):
        cluster.admin(command, "-c", "TestCluster", "-f", tmp_path / "out")
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())


def test_what_is_not_there_ends_with_a_code_that_says_so(cluster: Cluster) -> None:
    cases: list[tuple[list[object], ExitCode, str]] = [
        (["updateTopic", "-c", "Nowhere", "-t", "T"], ExitCode.NOT_FOUND, "TestCluster"),
        (["topicStatus", "-t", "Nowhere"], ExitCode.UNREACHABLE, "Nowhere"),
        (["updateTopic", "-c", "TestCluster", "-t", "no.dots"], ExitCode.FAILED, "illegal"),
        (["brokerStatus", "-b", "127.0.0.1:1"], ExitCode.UNREACHABLE, "127.0.0.1:1"),
        (["clusterList", "-i", "0"], ExitCode.USAGE, "above 0"),
        (["clusterList", "--ca", "/nonexistent.pem"], ExitCode.USAGE, "/nonexistent.pem"),
    ]
    for arguments, code, part in cases:
        done = cluster.run("admin", *arguments)
        assert (done.code, part in done.err) == (code, True), (arguments, done.err)


def test_a_silent_broker_is_shown_and_fails_the_list(cluster: Cluster, tmp_path: Path) -> None:
    with Broker(tmp_path, cluster.name_server.address, name="broker-z") as broker:
        broker.start()
        os.kill(broker.pid, signal.SIGSTOP)  # stays registered, answers nothing
        shown = cluster.run("admin", "clusterList")
        assert shown.code == ExitCode.UNREACHABLE
        assert "no answer" in shown.out and broker.address in shown.out


def test_half_an_access_key_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TANDEM_ACCESS_KEY", "shop")
    done = cluster.run("admin", "clusterList")
    assert (done.code, "TANDEM_SECRET_KEY" in done.err) == (ExitCode.USAGE, True)
