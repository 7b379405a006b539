"""Servers that refuse, stall, close or babble: our client's errors name address, topic and remedy, in time."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandemmq import (
    BrokerRefused,
    ClientConfig,
    ClientError,
    Message,
    MessageQueue,
    MessageRefused,
    NoNameServer,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    StartFrom,
)
from tandemmq.cluster.client.consuming import offsets, pull_consumer
from tandemmq.cluster.client.reaching import instance
from tandemmq.cluster.remoting import Command, RequestCode

pytestmark = pytest.mark.system

TIMEOUT_MS = 400
SLACK_S = 1.0  # of a machine with other things to do
HOST = "127.0.0.1"
Script = Callable[[Command, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server of both roles: routes lead to itself, and `script` answers what it likes."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.route_address = ""
        self.topics = {"T"}
        self.connections = 0
        self.deaf = False
        self._tls = tls
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._tls)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        try:
            while True:
                head = await reader.readexactly(4)
                command = Command.decode(head + await reader.readexactly(int.from_bytes(head)))
                if self.deaf:
                    continue
                match command.code:
                    case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                        writer.write(self._route(command).encode())
                    case RequestCode.HEART_BEAT | RequestCode.UNREGISTER_CLIENT:
                        writer.write(command.reply().encode())
                    case _:
                        await self.script(command, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went away
        finally:
            writer.close()

    def _route(self, command: Command) -> Command:
        if (command.ext or {})["topic"] not in self.topics:
            return command.reply(17, "No topic route info in name server")
        addresses = {"0": self.route_address or self.address}
        queue = {"brokerName": "broker-x", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        broker = {"brokerName": "broker-x", "cluster": "C", "brokerAddrs": addresses}
        return command.reply(
            body=json.dumps({"queueDatas": [queue], "brokerDatas": [broker]}).encode()
        )


async def stall(command: Command, writer: asyncio.StreamWriter) -> None:
    """Say nothing."""


async def close(command: Command, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def half(then_close: bool) -> Script:
    async def script(command: Command, writer: asyncio.StreamWriter) -> None:
        answer = command.reply(
            0, None, {"msgId": "0A", "queueId": "0", "queueOffset": "1"}
        ).encode()
        writer.write(answer[: len(answer) // 2])
        await writer.drain()
        if then_close:
            writer.close()

    return script


def saying(data: bytes) -> Script:
    async def script(command: Command, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return script


def answering(code: int, remark: str | None = None, **ext: str) -> Script:
    async def script(command: Command, writer: asyncio.StreamWriter) -> None:
        writer.write(command.reply(code, remark, ext or None).encode())

    return script


async def other_opaque(command: Command, writer: asyncio.StreamWriter) -> None:
    command.opaque += 10_000
    writer.write(command.reply().encode())


NO_ANSWER: dict[str, Script] = {
    "stalls": stall,
    "closes": close,
    "closes in the middle of a frame": half(then_close=True),
    "stalls in the middle of a frame": half(then_close=False),
    "babbles": saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "claims a frame of 2 GiB": saying(b"\x7f\xff\xff\xff\x00\x00\x00\x10"),
    "answers somebody else": other_opaque,
    "answers without the fields": answering(0),
    "answers nonsense in the fields": answering(0, msgId="x", queueId="three", queueOffset="-"),
}


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    async with Scripted(script) as server:
        yield server
    await asyncio.sleep(0)
    assert not instance._shared.get(asyncio.get_running_loop())
    assert not [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]


def config(server: Scripted) -> ClientConfig:
    return ClientConfig(server.address, call_timeout_ms=TIMEOUT_MS)


async def failure(work: Awaitable[object], seconds: float = TIMEOUT_MS / 1000) -> ClientError:
    """What it raised, within its time."""
    began = time.monotonic()
    with pytest.raises(ClientError) as caught:
        await work
    assert time.monotonic() - began < seconds + SLACK_S
    return caught.value


@pytest.mark.parametrize("way", NO_ANSWER)
async def test_send_to_a_broken_broker_fails_in_its_time_and_says_where(way: str) -> None:
    async with (
        scripted(NO_ANSWER[way]) as server,
        Producer("PG", config=config(server), timeout_ms=TIMEOUT_MS) as producer,
    ):
        for _ in range(2):  # the second one may take the fast way
            problem = await failure(producer.send(Message("T", b"x")))
            assert isinstance(problem, SendFailed)
            assert server.address in str(problem.causes[0])
            assert "Topic: T" in str(problem)
        batch = await failure(producer.send_batch([Message("T", b"x")]))
        assert server.address in str(batch)
        assert producer.in_flight == 0
        # and the client is not broken by it
        server.script = answering(0, msgId="0A", queueId="0", queueOffset="7")
        assert (await producer.send(Message("T", b"x"))).queue_offset == 7
        server.script = NO_ANSWER[way]
        assert isinstance(await failure(producer.send(Message("T", b"x"))), SendFailed)


@pytest.mark.parametrize("way", NO_ANSWER)
async def test_consumers_of_a_broken_broker_say_so_and_stop_in_time(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "CALL_TIMEOUT_MS", TIMEOUT_MS)
    monkeypatch.setattr(offsets, "QUERY_TIMEOUT_MS", TIMEOUT_MS)

    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError("there is no message")

    queue = MessageQueue("T", "broker-x", 0)
    async with scripted(NO_ANSWER[way]) as server:
        async with PullConsumer("CG", config=config(server)) as puller:
            problem = await failure(puller.max_offset(queue))
            assert server.address in str(problem)
            for work in (puller.assign([queue]), puller.committed(queue)):
                problem = await failure(work)
                assert server.address in str(problem)
                assert str(queue) in str(problem)
        consumer = PushConsumer(
            "CG", handle, config=config(server), subscribe={"T": "*"}, start=StartFrom.FIRST
        )
        began = time.monotonic()
        async with consumer:
            assert all(held.topic != "T" for held in consumer.assignment)
        assert time.monotonic() - began < 4 * TIMEOUT_MS / 1000 + SLACK_S


@pytest.mark.parametrize(
    ("code", "remark", "remedy"),
    [
        (16, "the broker[broker-x] sending message is forbidden", "permission"),
        (17, "topic[T] not exist", "updateTopic"),
        (13, "message body size over max value", "maxMessageSize"),
        (3, " request type 310 not supported", "older than this client"),
        (14, "service not available now, maybe disk full", "disk"),
        (14, "this broker is no longer the master", "Another broker of its group has taken over"),
        (29, "request queueId[9] is illegal", "fewer queues"),
        (26, "subscription group [CG] does not exist", "updateSubGroup"),
        (1, "AclException: No accessKey is configured", "Credentials"),
        (215, None, "fewer requests"),
    ],
)
async def test_refusal_names_address_topic_and_remedy(
    code: int, remark: str | None, remedy: str
) -> None:
    async with (
        scripted(answering(code, remark)) as server,
        Producer("PG", config=config(server), retries=0) as producer,
    ):
        problem = await failure(producer.send(Message("T", b"x")))
        assert isinstance(problem, BrokerRefused)
        assert (problem.code, problem.address, problem.topic) == (code, server.address, "T")
        for part in (f"CODE: {code}", remark or "no remark", server.address, "topic T", remedy):
            assert part in str(problem)


async def test_unknown_topic_is_named_with_what_to_do() -> None:
    async with (
        scripted(stall) as server,
        Producer("PG", config=config(server)) as producer,
        PullConsumer("CG", config=config(server)) as puller,
    ):
        problem = await failure(producer.send(Message("Unknown", b"x")))
        assert isinstance(problem, NoRoute)
        assert "No route info of this topic: Unknown" in str(problem)
        assert "create the topic" in str(problem)
        problem = await failure(puller.queues("Unknown"))
        assert "Unknown" in str(problem)


@pytest.mark.parametrize("way", ["refuses", "stalls"])
async def test_name_server_that_is_away_or_silent_is_named(way: str) -> None:
    async with scripted(stall) as server:
        server.deaf = True
        address = server.address if way == "stalls" else f"{HOST}:9"
        away = ClientConfig(address, call_timeout_ms=TIMEOUT_MS)
        async with Producer("PG", config=away) as producer:
            problem = await failure(producer.send(Message("T", b"x")))
        assert isinstance(problem, NoNameServer)
        assert address in str(problem)
        assert "Is one running there" in str(problem)


async def test_broker_whose_address_leads_nowhere_is_named() -> None:
    async with scripted(stall) as server:
        server.route_address = f"{HOST}:9"
        async with Producer("PG", config=config(server), retries=0) as producer:
            problem = await failure(producer.send(Message("T", b"x")))
        for part in (f"{HOST}:9", "topic T", "brokerIP1"):
            assert part in str(problem)


async def test_what_can_be_refused_here_is_refused_before_anything_is_sent() -> None:
    async with scripted(stall) as server, Producer("PG", config=config(server)) as producer:
        problem = await failure(producer.send(Message("T", b"x" * (4 << 20) + b"x")))
        assert isinstance(problem, MessageRefused)
        for part in ("T", "4194304", "body_bytes_max"):
            assert part in str(problem)
        assert server.connections == 0
    for topic in ("", "with blank", "ä", "x" * 128):
        with pytest.raises(MessageRefused, match="topic"):
            Message(topic, b"x")


def certificate(directory: Path, days_from: int, days_to: int) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, valid between two days from today; and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=days_from))
        .not_valid_after(now + datetime.timedelta(days=days_to))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), False
        )
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = directory / "cert.pem", directory / "key.pem"
    cert_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path


@pytest.mark.parametrize("valid", [True, False], ids=["valid", "expired"])
async def test_tls_works_and_an_expired_certificate_is_named(tmp_path: Path, valid: bool) -> None:
    cert, key = certificate(tmp_path, -10, 10 if valid else -1)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    script = answering(0, msgId="0A", queueId="0", queueOffset="7")
    async with Scripted(script, server_side) as server:
        secured = ClientConfig(server.address, tls=trusting, call_timeout_ms=2_000)
        async with Producer("PG", config=secured) as producer:
            if valid:
                results = [await producer.send(Message("T", b"x")) for _ in range(3)]
                assert [result.queue_offset for result in results] == [7, 7, 7]
                return
            problem = await failure(producer.send(Message("T", b"x")), 2)
        for part in (server.address, "certificate", "expired", "dates"):
            assert part in str(problem)
