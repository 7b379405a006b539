"""Stock Java clients and tools with access keys, old and new, against a broker and a name server that ask for them."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_go_client import go_program

from tandemmq import java as stock
from tandemmq.chaos.asking import routed
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.access.signature import sign
from tandemmq.cluster.remoting import Command, open_channel
from tandemmq.java import Driver, DriverError, text_of

__all__ = ["go_program"]  # a fixture
DELAY_LEVELS = "1s 1s 1s " + " ".join(["1s"] * 15)
ROOT = ("root0001", "rootpw12")
SENDER = ("sender01", "senderpw")
READER = ("reader01", "readerpw")
PLAIN = """
accounts:
- {accessKey: root0001, secretKey: rootpw12, admin: true}
- {accessKey: sender01, secretKey: senderpw, topicPerms: [Orders=PUB]}
- {accessKey: reader01, secretKey: readerpw, topicPerms: [Orders=SUB], groupPerms: [Readers=SUB]}
"""
RULES = (
    (SENDER, "Topic:Orders", ["Pub"]),
    (READER, "Topic:Orders", ["Sub"]),
    (READER, "Group:Readers*", ["Sub"]),
)
_serial = itertools.count(1)


class Guarded(NamedTuple):
    """A cluster that asks for access keys. code: what its refusals have; words: of a wrong signature."""

    name_server: str
    broker: Broker
    code: int
    unsigned: str
    wrong: str


def keys(who: tuple[str, str]) -> dict[str, str]:
    return {"accessKey": who[0], "secretKey": who[1]}


def ask(address: str, code: int, body: object = None, **ext: str) -> Command:
    """One request of the Super user."""

    async def main() -> Command:
        host, _, port = address.rpartition(":")
        channel = await open_channel(host, int(port))
        try:
            command = Command(code, dict(ext), None if body is None else json.dumps(body).encode())
            sign(command, *ROOT)
            return await channel.request(command, 5_000)
        finally:
            channel.close()

    return asyncio.run(main())


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    settings: dict[str, object] = {
        "messageDelayLevel": DELAY_LEVELS,
        "autoCreateTopicEnable": "false",
    }
    if request.param == "1.0":
        path = directory / "plain_acl.yml"
        path.write_text(PLAIN)
        settings |= {"aclEnable": "true", "aclFile": path}
        says = (
            1,
            "AclException: No accessKey is configured",
            "AclException: Check signature failed",
        )
    else:
        settings |= {
            "authenticationEnabled": "true", "authorizationEnabled": "true",
            "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
            "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innerpw1"}',
        }  # fmt: skip
        says = (16, "username cannot be null.", "check signature failed.")
    names = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innerpw1"}',
    }
    settings |= {key: names[key] for key in names if key.startswith("inner")}
    with NameServer(directory, names) as name_server:
        name_server.start()
        with Broker(directory, name_server.address, settings=settings) as broker:
            broker.start()
            if request.param == "2.0":
                for who in (SENDER, READER):
                    body = {"username": who[0], "password": who[1]}
                    assert ask(broker.address, 3001, body, username=who[0]).code == 0
                for who, resource, actions in RULES:
                    subject = f"User:{who[0]}"
                    entry = {"resource": resource, "actions": actions, "decision": "Allow"}
                    acl = {"subject": subject, "policies": [{"entries": [entry]}]}
                    assert ask(broker.address, 3006, acl, subject=subject).code == 0
            yield Guarded(name_server.address, broker, *says)


@pytest.fixture(scope="module", params=[("4.9.7", "json"), ("5.3.3", "binary")], ids="-".join)
def signed(
    request: pytest.FixtureRequest,
    java: None,
    guarded: Guarded,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Driver]:
    """A JVM whose mqadmin signs as the Super user; its clients are given keys one by one."""
    version, serialization = request.param
    home = tmp_path_factory.mktemp("signed")
    with stock.Driver(version, serialization, guarded.name_server, home) as driver:
        (home / "conf" / "tools.yml").write_text("accessKey: root0001\nsecretKey: rootpw12\n")
        yield driver


def made(driver: Driver, guarded: Guarded, topic: str = "Orders") -> str:
    if not routed(guarded.name_server, topic):
        said = driver.mqadmin(
            "updateTopic", "-n", guarded.name_server, "-b", guarded.broker.address, "-t", topic,
            "-r", "2", "-w", "2",
        )  # fmt: skip
        assert "success" in said, said
        wait_until(lambda: routed(guarded.name_server, topic), 10, "route")
    return topic


def producer(driver: Driver, **options: Any) -> str:
    name = f"producer-{next(_serial)}"
    driver.call("producer.start", name=name, group="Senders", **options)
    return name


def send(driver: Driver, name: str, topic: str, *bodies: str) -> Any:
    messages = [{"body": body, "keys": f"key-{body}"} for body in bodies]
    return driver.call("send.sync", name=name, topic=topic, messages=messages)


def test_right_keys_send_consume_retry_query_and_administrate(
    signed: Driver, guarded: Guarded
) -> None:
    topic = made(signed, guarded)
    name = producer(signed, **keys(SENDER))
    group = "Readers"
    consumer = f"consumer-{next(_serial)}"
    signed.call(
        "push.start", name=consumer, topic=topic, group=group, failUntil=1, retryLevel=1,
        **{"from": "CONSUME_FROM_FIRST_OFFSET"}, **keys(READER),
    )  # fmt: skip
    mine = {f"m{next(_serial)}" for _ in range(4)}
    sent = send(signed, name, topic, *mine)
    assert all(each["status"] == "SEND_OK" for each in sent)
    signed.wait_for(
        lambda: mine <= {text_of(m) for m in signed.messages(consumer) if m["reconsumeTimes"] == 1},
        60, "every message again after a failure",
    )  # fmt: skip
    signed.call("push.stop", name=consumer)  # what it has done is committed then
    for arguments in (
        ("topicStatus", "-t", topic), ("clusterList",), ("queryMsgByKey", "-t", topic, "-k", f"key-{min(mine)}"),
        ("brokerStatus", "-b", guarded.broker.address), ("consumerProgress", "-g", group),
    ):  # fmt: skip
        said = signed.mqadmin(*arguments, "-n", guarded.name_server)
        assert "CODE:" not in said and "Exception" not in said, said


def test_wrong_or_no_keys_are_refused_with_rocketmqs_code(signed: Driver, guarded: Guarded) -> None:
    topic = made(signed, guarded)
    for options, words in (({}, guarded.unsigned), (keys((SENDER[0], "wrongpw1")), guarded.wrong)):
        name = producer(signed, **options)
        with pytest.raises(DriverError) as caught:
            send(signed, name, topic, "never")
        assert caught.value.code == guarded.code and words in str(caught.value), caught.value


def test_keys_without_rights_are_refused(signed: Driver, guarded: Guarded) -> None:
    made(signed, guarded)
    other = made(signed, guarded, "Others")
    for who, topic in ((SENDER, other), (READER, "Orders")):
        name = producer(signed, **keys(who))
        with pytest.raises(DriverError) as caught:
            send(signed, name, topic, "never")
        assert caught.value.code == guarded.code and f"opic:{topic}" in str(caught.value)
    consumer = f"consumer-{next(_serial)}"
    signed.call("push.start", name=consumer, topic="Orders", group="Foreign", **keys(SENDER))
    name = producer(signed, **keys(SENDER))
    send(signed, name, "Orders", "unread")
    with pytest.raises(stock.JavaFailed):
        signed.wait_messages(consumer, 1, timeout_s=3)


def test_mqadmin_without_rights_changes_neither_broker_nor_name_server(
    signed: Driver, guarded: Guarded
) -> None:
    made(signed, guarded)
    tools = signed.home / "conf" / "tools.yml"
    before = tools.read_text()
    tools.write_text("accessKey: sender01\nsecretKey: senderpw\n")
    try:
        for arguments in (
            ("updateTopic", "-b", guarded.broker.address, "-t", "Sneaked"),
            ("deleteTopic", "-c", "TestCluster", "-t", "Orders"),
            ("wipeWritePerm", "-b", guarded.broker.broker_name),
            ("updateKvConfig", "-s", "ns", "-k", "k", "-v", "v"),
        ):
            said = signed.mqadmin(*arguments, "-n", guarded.name_server)
            assert "CODE:" in said or "xception" in said, said
    finally:
        tools.write_text(before)
    assert routed(guarded.name_server, "Orders") and not routed(guarded.name_server, "Sneaked")


@pytest.mark.parametrize("guarded", ["2.0"], indirect=True)
@pytest.mark.parametrize("signed", [("5.3.3", "binary")], indirect=True, ids="-".join)
def test_mqadmin_manages_users_and_rules(signed: Driver, guarded: Guarded) -> None:
    """By commands that only 5.3 has, for ACL 2.0 alone."""

    def admin(*arguments: str) -> str:
        return signed.mqadmin(*arguments, "-n", guarded.name_server)

    at = ("-b", guarded.broker.address)
    assert "success" in admin("createUser", "-c", "TestCluster", "-u", "bob", "-p", "bob12345")
    assert "bob12345" in admin("listUser", *at)
    rule = (
        "-s",
        "User:bob",
        "-r",
        "Topic:b*,Group:*",
        "-a",
        "Pub,Sub",
        "-d",
        "Allow",
        "-i",
        "127.0.0.1",
    )
    assert "success" in admin("createAcl", *at, *rule)
    said = admin("listAcl", *at, "-s", "bob")
    assert "Topic:b*" in said and "[Pub, Sub]" in said and "127.0.0.1" in said
    narrower = ("-s", "User:bob", "-r", "Group:*", "-a", "Sub", "-d", "Deny")
    assert "success" in admin("updateAcl", *at, *narrower)
    said = admin("getAcl", *at, "-s", "User:bob")
    assert "[Pub, Sub]" in said and "[Sub]" in said and "Deny" in said
    to_itself = ("-f", guarded.broker.address, "-t", guarded.broker.address)
    assert "copy user of bob" in admin("copyUser", *to_itself, "-u", "bob")
    assert "copy acl of User:bob" in admin("copyAcl", *to_itself, "-s", "User:bob")
    assert admin("getAcl", *at, "-s", "User:bob") == said
    assert "success" in admin("deleteAcl", *at, "-s", "User:bob", "-r", "Topic:b*")
    assert "success" in admin("updateUser", *at, "-u", "bob", "-s", "disable")
    assert "disable" in admin("getUser", *at, "-u", "bob")
    assert "Topic:b*" not in admin("getAcl", *at, "-s", "User:bob")
    assert "success" in admin("deleteUser", *at, "-u", "bob")


@pytest.mark.parametrize("guarded", ["1.0"], indirect=True)
@pytest.mark.parametrize("signed", [("4.9.7", "json")], indirect=True, ids="-".join)
def test_mqadmin_manages_accounts_of_files(
    signed: Driver, guarded: Guarded, tmp_path: Path
) -> None:
    """By commands that only 4.9 has, for ACL 1.0 alone."""

    def admin(*arguments: str) -> str:
        return signed.mqadmin(*arguments, "-n", guarded.name_server)

    at = ("-b", guarded.broker.address)
    fresh = ("fresh001", "freshpw1")
    said = admin("updateAclConfig", *at, "-a", fresh[0], "-s", fresh[1], "-t", "Orders=PUB")
    assert "success" in said, said
    name = producer(signed, **keys(fresh))
    assert send(signed, name, made(signed, guarded), "of a fresh account")
    assert "TestCluster" in admin("clusterAclConfigVersion", *at)
    assert "success" in admin("deleteAclConfig", *at, "-a", fresh[0])
    name = producer(signed, **keys(fresh))
    with pytest.raises(DriverError, match="No acl config"):
        send(signed, name, "Orders", "never")


def test_the_go_client_signs_what_is_taken(go_program: Path, guarded: Guarded) -> None:
    if not routed(guarded.name_server, "Orders"):
        made_by = ask(
            guarded.broker.address,
            17,
            topic="Orders",
            readQueueNums="2",
            writeQueueNums="2",
            perm="6",
        )
        assert made_by.code == 0
        wait_until(lambda: routed(guarded.name_server, "Orders"), 10, "route")

    def act(
        do: str, who: tuple[str, str], group: str, count: int
    ) -> subprocess.CompletedProcess[str]:
        command = [
            str(go_program), "-do", do, "-namesrv", guarded.name_server, "-topic", "Orders", "-group", group,
            "-count", str(count), "-access", who[0], "-secret", who[1], "-wait", "20s",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    sent = act("send", SENDER, "GoSenders", 2)
    assert sent.returncode == 0 and '"ok":true' in sent.stdout, sent.stderr[-2000:]
    wrong = act("send", (SENDER[0], "wrongpw1"), "GoSenders", 1)
    assert wrong.returncode != 0 and ("ignature" in wrong.stderr), wrong.stderr[-2000:]
    got = act("push", READER, "Readers", 1)
    assert got.returncode == 0 and '"body"' in got.stdout, got.stderr[-2000:]
