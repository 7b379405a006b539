"""Signatures of access keys, as brokers with access control compute them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from clientkit import NAME_SERVER, FakeCluster, ext
from timekit import run

from tandemmq.cluster.client import (
    BrokerRefused,
    ClientConfig,
    Credentials,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.cluster.remoting import Command, RequestCode

KEYS = Credentials("RocketMQ", "12345678")


@pytest.mark.parametrize(
    ("fields", "body", "signature"),
    [
        (
            {"topic": "TopicTest", "queueId": "0", "consumerGroup": "cg1"},
            None,
            "f+NyeWL6ZTnonR7SQ0rsxJTOg8I=",
        ),
        (None, b'{"clientID":"c1"}', "kwsNPItF/SSCzNWJ93IV9fe62yw="),
    ],
)
def test_signature_is_that_of_the_worked_examples(
    fields: dict[str, str] | None, body: bytes | None, signature: str
) -> None:
    command = Command(1, fields, body)
    KEYS.sign(command)
    assert ext(command)["AccessKey"] == "RocketMQ"
    assert ext(command)["Signature"] == signature
    KEYS.sign(command)  # a retry of the same command
    assert ext(command)["Signature"] == signature
    assert fields is None or "Signature" not in fields


def test_token_is_part_of_what_is_signed_and_secrets_are_not_shown() -> None:
    command = Command(1)
    keys = Credentials("RocketMQ", "12345678", "token")
    keys.sign(command)
    plain = Command(1)
    KEYS.sign(plain)
    assert ext(command)["SecurityToken"] == "token"
    assert ext(command)["Signature"] != ext(plain)["Signature"]
    assert "12345678" not in repr(keys)
    assert "token" not in repr(keys)


def test_empty_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="both be given"):
        Credentials("RocketMQ", "")


def test_every_request_is_signed(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    def check(command: Command) -> Command | None:
        fields = ext(command)
        copy = Command(command.code, {**fields}, command.body)
        KEYS.sign(copy)
        return (
            None
            if fields.get("Signature") == ext(copy)["Signature"]
            else command.reply(1, "bad signature")
        )

    broker.trouble = check
    config = ClientConfig(NAME_SERVER, credentials=KEYS)

    async def main() -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with (
            Producer("PG", config=config) as producer,
            PushConsumer("CG", handle, config=config, subscribe={"T": "*"}, start=StartFrom.FIRST),
        ):
            for _ in range(3):
                await producer.send(Message("T", b"x"))
            await producer.send_batch([Message("T", b"x")])
            await producer.send_oneway(Message("T", b"x"))
            while len(seen) < 5:  # noqa: ASYNC110 - time jumps
                await asyncio.sleep(0.1)

    run(main())
    codes = {each.code for each in broker.requests}
    assert {
        RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.UNREGISTER_CLIENT,
    } <= codes  # fmt: skip
    assert all("Signature" in ext(each) for each in broker.requests)


def test_refused_signature_says_what_to_check(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    broker.trouble = lambda command: command.reply(13, remark)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            with pytest.raises(BrokerRefused, match=r"Credentials\(") as caught:
                await producer.send(Message("T", b"x"))
            assert caught.value.remark == remark

    run(main())


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    given = {
        "TANDEM_ACCESS_KEY": "shop",
        "TANDEM_SECRET_KEY": "12345678",
        "TANDEM_SECURITY_TOKEN": "t",
    }
    assert Credentials.from_environment(given) == Credentials("shop", "12345678", "t")
    assert Credentials.from_environment({}) is None
    with pytest.raises(ValueError, match="TANDEM_SECRET_KEY"):
        Credentials.from_environment({"TANDEM_ACCESS_KEY": "shop"})
    path = tmp_path / "tools.yml"
    for text in (
        "# keys\naccessKey: shop\nsecretKey: 'a=b:c'\n",
        "AccessKey=shop\nSecretKey=a=b:c\n",
    ):
        path.write_text(text)
        assert Credentials.from_file(path) == Credentials("shop", "a=b:c")
    path.write_text("secretKey: hidden77\n")
    with pytest.raises(ValueError, match="must hold accessKey") as caught:
        Credentials.from_file(path)
    assert "hidden77" not in str(caught.value)
    with pytest.raises(OSError):
        Credentials.from_file(tmp_path / "absent")
