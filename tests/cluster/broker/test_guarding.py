"""A broker with access control, asked over connections as clients ask it: the table of needs is the expectation."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, MakeBroker

from tandemmq.cluster.access import needs
from tandemmq.cluster.access.doorkeeper import super_keeper
from tandemmq.cluster.access.needs import BROKER, is_for_super, only_super
from tandemmq.cluster.access.rights import (
    Action,
    Decision,
    Need,
    Reach,
    ResourceKind,
    Rule,
    RuledResource,
    Rules,
)
from tandemmq.cluster.access.signature import AccessUser, sign, sign_own
from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.access.users import UserBody
from tandemmq.cluster.broker.access.guarding import Guarding, StoredFacts
from tandemmq.cluster.controller.config import ControllerConfig
from tandemmq.cluster.nameserver.config import NameServerConfig
from tandemmq.cluster.nameserver.kvconfig import KvConfig
from tandemmq.cluster.nameserver.server import NameServer
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.storage import SystemClock

ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"rootpw12"}',
}
FILLER = {
    "topic": "T", "b": "T", "group": "G", "a": "G", "consumerGroup": "G", "groupName": "G", "srcGroup": "G",
    "destGroup": "G2", "compareGroup": "G", "offset": "0", "commitLogOffset": "0", "queueId": "0", "e": "0",
    "msgId": "7F00000100002A9F0000000000000000", "producerGroup": "P",
}  # fmt: skip
BODIES = {
    RequestCode.HEART_BEAT: {
        "clientID": "c", "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]}],
    },
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "G", "mqSet": [{"topic": "T"}]},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "G", "mqSet": [{"topic": "T"}]},
    RequestCode.CHECK_CLIENT_CONFIG: {"group": "G", "subscriptionData": {"topic": "T"}},
    RequestCode.QUERY_ASSIGNMENT: {"consumerGroup": "G", "topic": "T"},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"consumerGroup": "G", "topic": "T"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "G"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "G"}]},
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T"}]},
    RequestCode.BATCH_ACK_MESSAGE: {"acks": [{"c": "G", "t": "T"}]},
}  # fmt: skip


class MemoryTransport(asyncio.Transport):
    """Keeps what a connection writes."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 40000)})
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    close = abort


class Client:
    """A connection to one of a broker's ports."""

    def __init__(self, asker: Asker, port: int = 0, host: str = "10.0.0.7") -> None:
        self.endpoint = asker.broker.listening[port].endpoint
        self.connection = Connection(self.endpoint, mirrors=True)
        self.transport = MemoryTransport(host)
        self.connection.connection_made(self.transport)

    def send(self, command: Command) -> Command | None:
        """The answer, as far as it comes at once."""
        self.transport.written = b""
        frame = command.encode()
        self.connection.get_buffer(-1)[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))
        written = self.transport.written
        return Command.decode(written) if written else None

    def turned_away(self, command: Command) -> str:
        """The remark of a refusal by access control; "" when it went on to its handler, or there is none for it."""
        refused = self.endpoint.stats.requests_refused
        answer = self.send(command)
        if self.endpoint.stats.requests_refused == refused:
            return ""
        assert (
            answer is not None and answer.code in (1, 16) and answer.ext is None and not answer.body
        )
        return answer.remark or ""


def request(code: int, user: str = "", password: str = "", **more: str) -> Command:
    body = BODIES.get(RequestCode(code)) if code in list(RequestCode) else None
    if code in range(50, 55) or code in range(3001, 3011):
        ext = dict(more)
    elif code == RequestCode.HEART_BEAT:
        ext = {}
    else:
        ext = FILLER | more
    data = json.dumps(body).encode() if body is not None else None
    if code in (
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    ):
        data = b"G=3"
    command = Command(code, ext, data, opaque=7)
    if user:
        sign(command, user, password)
    return command


def guarding_of(asker: Asker) -> Guarding:
    assert isinstance(asker.broker.guarding, Guarding)
    return asker.broker.guarding


@pytest.fixture
def guarded(make_broker: MakeBroker) -> Asker:
    asker = make_broker(**ON)
    users = guarding_of(asker).users
    users.create_user("norm", UserBody(password="normpw12"), users.find("root"))
    asker.put("T", 0)
    return asker


def grant(asker: Asker, *wanted: Need, user: str = "norm") -> None:
    """Give a user rules for exactly these needs, in place of those before."""
    rules = []
    for need in wanted:
        reach = Reach.KIND if need.name is None else Reach.LITERAL
        resource = RuledResource(need.kind, reach, need.name or "")
        rules.append(Rule(resource, need.actions, (), Decision.ALLOW))
    users = guarding_of(asker).users
    users._rules[user] = Rules(tuple(rules))
    users.changed([user])


async def test_every_code_of_a_name_server_is_open_or_for_super_users() -> None:
    names = NameServer(NameServerConfig(), KvConfig(Path("/nowhere")), SystemClock())
    assert names.table().keys() == needs.NAME_SERVER_OPEN | needs.NAME_SERVER_SUPER
    assert not needs.NAME_SERVER_OPEN & needs.NAME_SERVER_SUPER


async def test_every_handler_of_a_broker_has_a_row(guarded: Asker) -> None:
    assert guarded.broker.table.keys() <= BROKER.keys()


@pytest.mark.parametrize("port", [0, 1], ids=["main", "fast"])
async def test_each_request_passes_with_its_needs_and_with_no_less(
    guarded: Asker, port: int
) -> None:
    facts = StoredFacts(guarded.broker.config.cluster, guarded.broker.store)
    judged = 0
    for code in sorted(RequestCode):
        client = Client(guarded, port)
        assert client.turned_away(request(code)) == "username cannot be null.", code
        assert client.turned_away(request(code, "nobody", "x")) == "User:nobody is not found.", code
        assert client.turned_away(request(code, "norm", "rootpw12")) == "check signature failed."
        grant(guarded)
        remark = client.turned_away(request(code, "norm", "normpw12"))
        if code not in guarded.broker.table:  # who is known hears that nobody answers this here
            answer = client.send(request(code, "norm", "normpw12"))
            assert not remark and answer is not None and answer.code == 3, code
            continue
        judged += 1
        if BROKER[code] is only_super:
            everything = frozenset({Action.ALL, *needs.ANY_USE})
            grant(guarded, *(Need(kind, None, everything) for kind in ResourceKind))
            assert "has no permission" in client.turned_away(request(code, "norm", "normpw12"))
            assert not client.turned_away(request(code, "root", "rootpw12")), code
            continue
        wanted = list(BROKER[code](request(code), facts))
        assert bool(wanted) == bool(remark), code
        grant(guarded, *wanted)
        assert not client.turned_away(request(code, "norm", "normpw12")), code
        for left_out in wanted:
            grant(guarded, *(need for need in wanted if need != left_out))
            assert left_out.text in client.turned_away(request(code, "norm", "normpw12")), code
    assert judged == len(guarded.broker.table)


async def test_codes_that_nobody_knows_are_answered_3_to_who_is_known(guarded: Asker) -> None:
    client = Client(guarded)
    assert client.turned_away(request(9999)) == "username cannot be null."
    answer = client.send(request(9999, "norm", "normpw12"))
    assert answer is not None and answer.code == 3


async def test_a_refused_one_way_request_is_not_answered_and_the_connection_stays(
    guarded: Asker,
) -> None:
    client = Client(guarded)
    command = request(15)
    command.flag = 2
    assert client.send(command) is None and not client.connection.closed
    assert client.turned_away(request(15))


def send_ext(topic: str = "T", number: int = 0) -> dict[str, str]:
    return {
        "a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": f"UNIQ_KEY\x01ABC{number}\x02WAIT\x01false", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def send_frame(
    who: tuple[str, str] | None, topic: str = "T", number: int = 0, *, binary: bool = False
) -> bytes:
    command = Command(
        310, send_ext(topic, number), b"body %d" % number, opaque=number, binary=binary
    )
    if who is not None:
        sign(command, *who)
    return command.encode()


def answers(data: bytes) -> list[Command]:
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(Command.decode(data[:size]))
        data = data[size:]
    return found


ROOT, NORM = ("root", "rootpw12"), ("norm", "normpw12")


async def seen(client: Client, *frames: bytes) -> list[Command]:
    """What a chunk of these is answered, in order of opaque."""
    client.transport.written = b""
    chunk = b"".join(frames)
    client.connection.get_buffer(-1)[: len(chunk)] = chunk
    client.connection.buffer_updated(len(chunk))
    await asyncio.sleep(0)
    return sorted(answers(client.transport.written), key=lambda each: each.opaque)


@pytest.mark.parametrize("port", [0, 1], ids=["main", "fast"])
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
async def test_the_short_path_takes_what_passed_the_gate_and_nothing_else(
    guarded: Asker, port: int, binary: bool
) -> None:
    broker = guarded.broker
    await guarded.ask(17, topic="T", readQueueNums=1, writeQueueNums=1, perm=6)
    await guarded.ask(17, topic="Secret", readQueueNums=1, writeQueueNums=1, perm=6)
    grant(guarded, rule("TOPIC", "T", "PUB"))
    client = Client(guarded, port)
    await seen(
        client, send_frame(NORM, number=1, binary=binary)
    )  # the first of a file rolls the log
    end, taken = broker.store.end, broker.send_path.messages
    for bad in (None, ("norm", "wrongpw1"), ("nobody", "x")):
        (refused,) = await seen(client, send_frame(bad, number=2, binary=binary))
        assert refused.code == 16
    assert broker.store.end == end
    frames = [
        send_frame(None if n % 7 == 3 else NORM, "Secret" if n % 5 == 4 else "T", n, binary=binary)
        for n in range(10, 110)
    ]
    found = await seen(client, *frames)
    assert [each.opaque for each in found] == list(range(10, 110))
    for each in found:
        assert (each.code == 16) is (each.opaque % 7 == 3 or each.opaque % 5 == 4), each
    assert broker.send_path.messages - taken > 60  # by the short path
    assert not broker.guarding.vouches(None)
    while broker.store.dispatch():
        pass
    assert broker.store.max_offset("Secret", 0) == 0


async def test_a_field_that_is_said_twice_or_oddly_does_not_get_past_the_gate(
    guarded: Asker,
) -> None:
    """The gate and the short path read the same bytes: neither may be made to see another topic than the other."""
    broker = guarded.broker
    for topic in ("T", "Secret"):
        await guarded.ask(17, topic=topic, readQueueNums=1, writeQueueNums=1, perm=6)
    grant(guarded, rule("TOPIC", "T", "PUB"))
    client = Client(guarded)
    await seen(client, send_frame(NORM, number=1))
    whole = send_frame(NORM, number=2)
    rng = random.Random(11)
    variants = []
    for odd in (
        b'"b":"Secret",',
        b'"\\u0062":"Secret",',
        b'"extFields":{"b":"Secret"},',
        b'"code":310,',
    ):
        for at in (m.start() for m in re.finditer(rb'"[a-z]+":', whole)):
            header = whole[8:at] + odd + whole[at:]
            size = int.from_bytes(whole[4:8], "big") + len(odd)
            variants.append((len(header) + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header)
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(8, len(data))] = rng.randrange(32, 127)
        variants.append(bytes(data))
    for variant in variants:
        if client.connection.closed:
            client = Client(guarded)
        await seen(client, variant)
    while broker.store.dispatch():
        pass
    assert broker.store.max_offset("T", 0) > 1 and broker.store.max_offset("Secret", 0) == 0


async def test_a_binary_request_that_says_its_fields_twice_is_signed_as_it_is_read(
    guarded: Asker,
) -> None:
    command = Command(105, {"topic": "T"}, opaque=1, binary=True)
    sign(command, "root", "rootpw12")
    answer = Client(guarded).send(command)
    assert answer is not None and answer.code == 3


# -- RocketMQ's holes


def may(asker: Asker, code: int, **ext: str) -> bool:
    return not Client(asker).turned_away(request(code, "norm", "normpw12", **ext))


def rule(kind: str, name: str, *actions: str) -> Need:
    return Need(ResourceKind[kind], name, frozenset(Action[each] for each in actions))


async def test_a_retry_topic_is_written_by_members_of_its_group_whatever_the_header_says(
    guarded: Asker,
) -> None:
    grant(guarded, rule("GROUP", "mine", "SUB"))
    assert may(guarded, 310, b="%RETRY%mine", a="CLIENT_INNER_PRODUCER")
    assert not may(guarded, 310, b="%RETRY%other", a="mine")
    assert not may(guarded, 10, topic="%RETRY%other", group="mine", producerGroup="mine")


async def test_a_retry_topic_is_read_by_its_group(guarded: Asker) -> None:
    grant(guarded, rule("GROUP", "mine", "SUB"))
    for code in (11, 361, 14, 15):
        assert may(guarded, code, topic="%RETRY%mine", consumerGroup="mine")
        assert not may(guarded, code, topic="%RETRY%other", consumerGroup="mine")


async def test_a_message_of_another_topic_is_not_copied_into_ones_own_retry_topic(
    guarded: Asker,
) -> None:
    secret = guarded.put("Secret", 0)
    mine = guarded.put("Mine", 0)
    grant(guarded, rule("GROUP", "mine", "SUB"), rule("TOPIC", "Mine", "SUB"))
    assert may(guarded, 36, group="mine", offset=str(mine))
    assert not may(guarded, 36, group="mine", offset=str(secret), originTopic="Mine")


async def test_a_transaction_is_ended_by_who_may_send_to_the_topic_of_its_half_message(
    guarded: Asker,
) -> None:
    half = guarded.put("RMQ_SYS_TRANS_HALF_TOPIC", 0, REAL_TOPIC="Secret")
    facts = StoredFacts(guarded.broker.config.cluster, guarded.broker.store)
    command = Command(37, {"commitLogOffset": str(half), "topic": "Mine"})
    assert [need.text for need in BROKER[37](command, facts)] == ["Topic:Secret", "Topic:Mine"]


async def test_a_message_is_shown_to_who_may_get_its_topic(guarded: Asker) -> None:
    secret = guarded.put("Secret", 0)
    grant(guarded, rule("TOPIC", "Mine", "GET"))
    assert not may(guarded, 33, offset=str(secret), topic="Mine")
    assert not may(guarded, 33, offset=str(secret), topic="")
    grant(guarded, rule("TOPIC", "Mine", "GET"), rule("TOPIC", "Secret", "GET"))
    assert may(guarded, 33, offset=str(secret), topic="Mine")


async def test_settings_are_shown_without_secrets_and_keys_of_access_do_not_change(
    guarded: Asker,
) -> None:
    answer = await guarded.ask(26)
    assert b"rootpw12" not in bytes(answer.body or b"")
    for line in (
        "authenticationEnabled=false",
        "authenticationWhitelist=310",
        "aclEnable=false\naclFile=/tmp/x",
    ):
        changed = await guarded.ask(25, line.encode())
        assert changed.code == (0 if line == "nothing" else 16), line
    assert guarded.broker.guarding.keeper is not None


async def test_what_was_heard_is_of_no_use_as_a_question_for_passwords(guarded: Asker) -> None:
    """Names of fields and codes are not signed: values of any request could be sent as fields that nobody reads."""
    heard = Command(43, {"some": "value"})
    sign_own(heard, "root", "rootpw12")
    client = Client(guarded)
    for code, ext in (
        (3005, {**(heard.ext or {})}),
        (
            3005,
            {"zzz": "43.value", "AccessKey": "root", "Signature": (heard.ext or {})["Signature"]},
        ),
        (201, {**(heard.ext or {}), "tableStamp": ""}),
    ):
        assert client.send(Command(code, ext, opaque=1)).code == 16  # type: ignore[union-attr]
    twice = Command(3005, {"filter": "no", "__ZONE_NAME": "43.value"}, opaque=1)
    sign(twice, "root", "rootpw12")
    assert client.send(twice).code == 16  # type: ignore[union-attr]


async def test_users_come_with_the_groups_to_replicas_and_to_nobody_else(guarded: Asker) -> None:
    client = Client(guarded)
    ours = Command(201, {"tableStamp": "", "tableReader": "1", "tableReaderLife": "5"}, opaque=1)
    sign_own(ours, "root", "rootpw12")
    answer = client.send(ours)
    assert answer is not None and b"rootpw12" in bytes(answer.body or b"")
    stock = Command(201, {}, opaque=1)
    sign(stock, "root", "rootpw12")
    answer = client.send(stock)
    assert answer is not None and b"rootpw12" not in bytes(answer.body or b"")
    grant(guarded, Need(ResourceKind.GROUP, None, needs.LIST))
    norm = Command(201, {"tableStamp": "", "tableReader": "1", "tableReaderLife": "5"}, opaque=1)
    sign_own(norm, "norm", "normpw12")
    assert "no permission" in client.turned_away(norm)


async def test_rights_that_are_not_checked_leave_what_is_for_super_users(
    make_broker: MakeBroker,
) -> None:
    asker = make_broker(**{**ON, "authorizationEnabled": "false"})
    users = guarding_of(asker).users
    users.create_user("norm", UserBody(password="normpw12"), users.find("root"))
    assert may(asker, 11) and may(asker, 26)
    for code in [*range(3001, 3011), 1008, 29010]:
        served = code in asker.broker.table
        assert may(asker, code) is not served


async def test_a_white_listed_code_has_no_identity(make_broker: MakeBroker) -> None:
    asker = make_broker(
        **{**ON, "authenticationWhitelist": "30, 31", "authorizationWhitelist": "31"}
    )
    client = Client(asker)
    assert not client.turned_away(request(31))
    answer = client.send(request(30, "root", "wrong"))  # whoever it says it is
    assert answer is not None and (answer.code, answer.remark[:20]) == (16, "Authorization failed")


async def test_disabled_users_are_out_at_once(guarded: Asker) -> None:
    grant(guarded, rule("TOPIC", "T", "GET"))
    assert may(guarded, 30)
    users = guarding_of(guarded).users
    users.update_user("norm", UserBody(userStatus="disable"), users.find("root"))
    assert Client(guarded).turned_away(request(30, "norm", "normpw12")) == "User:norm is disabled."


async def test_noise_in_the_header_passes_nobody_and_stops_nothing(guarded: Asker) -> None:
    rng = random.Random(3)
    keeper = guarded.broker.guarding.keeper
    assert keeper is not None
    client = Client(guarded)
    words = [
        "root",
        "norm",
        "",
        "\ud800",
        "null",
        "x" * 300,
        "ünï",
        "\0",
        "User:root",
        "ROOT",
        " root",
    ]
    codes = [*map(int, RequestCode), 0, -1, 32767]
    before = guarding_of(guarded).users.to_json(), guarded.broker.store.end
    for _ in range(20_000):
        ext = {rng.choice([*FILLER, "AccessKey", "AccessKey", "Signature", "SecurityToken", "SignedCode", "filter",
                           "username", "tableStamp"]): rng.choice(words) for _ in range(rng.randrange(6))}  # fmt: skip
        body = rng.choice([None, b"{", b"[]", b"\xff" * 9, b'{"consumerDataSet":7}'])
        answer = keeper(Command(rng.choice(codes), ext, body), client.connection)
        assert answer is not None and answer.code == 16
    assert (guarding_of(guarded).users.to_json(), guarded.broker.store.end) == before
    command = request(3005)
    command.ext = {}
    sign(command, "root", "rootpw12")
    assert keeper(command, client.connection) is None


async def test_refusals_are_counted_and_named_once_and_never_with_secrets(
    guarded: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(guarded)
    bad = request(310, "norm", "wrongpw1")
    signature = (bad.ext or {})["Signature"]
    for _ in range(5):
        client.send(request(310, "norm", "wrongpw1"))
    said = [each for each in caplog.messages if "access refused" in each]
    assert (
        len(said) == 1
        and "SEND_MESSAGE_V2" in said[0]
        and "10.0.0.7" in said[0]
        and "norm" in said[0]
    )
    assert signature not in caplog.text and "wrongpw1" not in caplog.text
    keeper = guarded.broker.guarding.keeper
    assert keeper is not None and keeper.gate.turned["signature"] == 5
    guarded.clock.advance(60_000)
    client.send(request(310, "norm", "wrongpw1"))
    assert len([each for each in caplog.messages if "access refused" in each]) == 2


# -- requests 3001 to 3010, and what stays


async def test_users_and_rules_are_kept_and_nobody_else_reads_the_file(
    make_broker: MakeBroker,
) -> None:
    asker = make_broker(**ON)
    assert (
        await asker.ask(3001, {"username": "bob", "password": "bob12345"}, username="bob")
    ).code == 0
    acl = {"subject": "User:bob", "policies": [{"entries": [
        {"resource": "Topic:*", "actions": ["Pub"], "decision": "Allow", "sourceIps": ["10.0.0.1"]}]}]}  # fmt: skip
    assert (await asker.ask(3006, acl, subject="User:bob")).code == 0
    got = await asker.json(3009, subject="User:bob")
    assert got["policies"][0]["policyType"] == "Custom"
    assert (await asker.json(3004, username="bob"))["userType"] == "Normal"
    assert (await asker.ask(3004, username="nobody")).body is None
    assert [each["username"] for each in await asker.json(3005)] == ["bob", "root"]
    assert len(await asker.json(3010, resourceFilter="Topic")) == 1
    path = guarding_of(asker).file.path
    assert path.stat().st_mode & 0o777 == 0o600
    users = guarding_of(asker).users
    before = users.to_json()
    users.adopt({"users": [{"username": "x", "password": "y"}]})
    guarding_of(asker).load()
    assert users.to_json() == before
    assert (await asker.ask(3001, {"username": "bob", "password": "x"}, username="bob")).code == 16
    assert (await asker.ask(3001, b"nonsense", username="z")).code == 29
    assert (await asker.ask(3008, subject="User:bob")).code == 0
    assert (await asker.ask(3003, username="bob")).code == 0


async def test_without_access_control_nobody_reads_or_makes_users(asker: Asker) -> None:
    for code in range(3001, 3011):
        answer = await asker.ask(code, username="x", subject="User:x")
        assert (answer.code, answer.remark) == (
            16,
            "The authenticationMetadataProvider is not configured",
        )
    assert asker.broker.guarding.keeper is None and asker.broker.listening[0].endpoint.gate is None


async def test_a_slave_leaves_changes_to_its_master_and_stops_no_tool(
    make_broker: MakeBroker,
) -> None:
    inner = '{"accessKey":"inner001","secretKey":"innerpw1"}'
    asker = make_broker(
        **ON, brokerRole="SLAVE", brokerId="1", haMasterAddress="127.0.0.1:1",
        innerClientAuthenticationCredentials=inner,
    )  # fmt: skip
    before = guarding_of(asker).users.to_json()
    for code in (3001, 3002, 3003):
        answer = await asker.ask(code, {"username": "bob", "password": "b"}, username="bob")
        assert answer.code == 0 and "slave" in (answer.remark or "")
    assert guarding_of(asker).users.to_json() == before
    assert len(await asker.json(3005)) == 2


async def test_no_handler_sees_a_signature_that_it_could_pass_on(guarded: Asker) -> None:
    command = request(26, "root", "rootpw12")
    keeper, connection = guarded.broker.guarding.keeper, Client(guarded).connection
    assert keeper is not None and keeper(command, connection) is None
    assert (command.ext or {})["AccessKey"] == "root" and "Signature" not in (command.ext or {})


# -- 1.0


PLAIN = """
globalWhiteRemoteAddresses: [10.9.9.*]
accounts:
- {accessKey: reader01, secretKey: readerpw, topicPerms: [T=SUB], groupPerms: [G=SUB], whiteRemoteAddress: 10.8.8.8}
- {accessKey: admin001, secretKey: adminpw1, admin: true}
"""


async def test_accounts_of_plain_acl_yml_are_asked_for(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(PLAIN)
    asker = make_broker(aclEnable="true", aclFile=str(path))
    prefix = "org.apache.rocketmq.acl.common.AclException: "
    for port in (0, 1):
        client = Client(asker, port)
        assert client.turned_away(request(310)) == prefix + "No accessKey is configured"
        assert (
            client.turned_away(request(310, "nobody", "x")) == prefix + "No acl config for nobody"
        )
        bad = prefix + "Check signature failed for accessKey=reader01"
        assert client.turned_away(request(310, "reader01", "x")) == bad
        assert (
            client.turned_away(request(310, "reader01", "readerpw"))
            == prefix + "No permission for topic:T"
        )
        for code in (34, 14, 15, 30):
            assert not client.turned_away(request(code, "reader01", "readerpw"))
        for code in (17, 25, 26, 50, 51, 200, 215, 21):
            assert "Need admin" in client.turned_away(request(code, "reader01", "readerpw"))
            assert not client.turned_away(request(code, "admin001", "adminpw1"))
    white = Client(asker, host="10.9.9.1")
    assert not white.turned_away(request(310)) and white.turned_away(request(54))
    own = Client(asker, host="10.8.8.8")
    assert not own.turned_away(request(11, "reader01", "x")) and own.turned_away(
        request(310, "reader01", "x")
    )
    answer = await asker.ask(
        50, accessKey="fresh001", secretKey="freshpw1", topicPerms="T=PUB,U=SUB"
    )
    assert answer.code == 0
    assert not Client(asker).turned_away(request(310, "fresh001", "freshpw1"))
    assert (await asker.ask(51, accessKey="fresh001")).code == 0
    assert (await asker.ask(51, accessKey="fresh001")).code == 210
    assert (await asker.ask(50, accessKey="k", secretKey="s")).code == 209
    assert (await asker.ask(53, globalWhiteAddrs="1.2.3")).code == 211
    assert "allAclFileVersion" in ((await asker.ask(52)).ext or {})
    assert (await asker.ask(54)).code == 3


async def test_users_are_made_of_accounts(make_broker: MakeBroker, tmp_path: Path) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(PLAIN.replace("T=SUB", "T=SUB, X=DENY, Y=sub"))
    asker = make_broker(**ON, migrateAuthFromV1Enabled="true", aclFile=str(path))
    assert [each["username"] for each in await asker.json(3005)] == ["admin001", "reader01", "root"]
    entries = (await asker.json(3009, subject="User:reader01"))["policies"][0]["entries"]
    said = {each["resource"]: (each["actions"], each["decision"]) for each in entries}
    assert said == {
        "Topic:T": (["Sub"], "Allow"), "Topic:X": (["All"], "Deny"), "Topic:Y": (["All"], "Deny"),
        "Group:G": (["Sub"], "Allow"),
    }  # fmt: skip
    assert not Client(asker).turned_away(request(14, "reader01", "readerpw"))


@pytest.mark.parametrize("how", ["users", "accounts"])
async def test_half_messages_are_shown_to_those_who_may_send_them(
    make_broker: MakeBroker, tmp_path: Path, how: str
) -> None:
    if how == "users":
        asker = make_broker(**ON)
        users = asker.broker.guarding.users
        for name in ("shop001", "evil001"):
            users.create_user(name, UserBody(password="secretpw"), users.find("root"))
        grant(asker, Need(ResourceKind.TOPIC, "T", frozenset({Action.PUB})), user="shop001")
    else:
        home = tmp_path / "home"
        (home / "conf").mkdir(parents=True)
        account = "- {accessKey: %s, secretKey: secretpw, defaultTopicPerm: %s}\n"
        accounts = account % ("shop001", "PUB") + account % ("evil001", "DENY")
        (home / "conf" / "plain_acl.yml").write_text("accounts:\n" + accounts)
        asker = make_broker(aclEnable="true", rocketmqHome=str(home))
    await asker.broker.transactions.replay()
    asker.put("T", 0)
    shop, evil = Client(asker), Client(asker)
    for client, user in ((shop, "shop001"), (evil, "evil001")):
        body = json.dumps({"clientID": user, "producerDataSet": [{"groupName": "P"}]}).encode()
        heartbeat = Command(RequestCode.HEART_BEAT, {}, body)
        sign(heartbeat, user, "secretpw")
        assert not client.turned_away(heartbeat)
    text = f"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01{'A' * 32}\x02"
    half = Command(
        310,
        FILLER | {"a": "P", "c": "TBW102", "d": "4", "f": "4", "g": "1", "h": "0", "i": text},
        b"half",
    )
    sign(half, "shop001", "secretpw")
    answer = shop.send(half)
    assert answer is not None and answer.code == 0, answer
    shop.transport.written = evil.transport.written = b""
    for _ in range(4):
        asker.clock.advance(60_000)
        await asker.broker.transactions.check_round()
    await asyncio.sleep(0)
    assert shop.transport.written.count(b"half") >= 4
    assert evil.transport.written == b""


async def test_who_resumes_a_transaction_may_update_the_topic_of_its_message(
    guarded: Asker,
) -> None:
    offset = guarded.put("TRANS_CHECK_MAX_TIME_TOPIC", 0, b"x", REAL_TOPIC="T")
    where = {"topic": "Mine", "msgId": f"7F00000100002A9F{offset:016X}"}
    update = frozenset({Action.UPDATE})
    grant(guarded, Need(ResourceKind.TOPIC, "Mine", update))
    asked = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, "norm", "normpw12", **where)
    assert "access Topic:T" in Client(guarded).turned_away(asked)


# -- name servers and controllers


async def test_a_name_server_and_a_controller_are_changed_by_super_users_alone() -> None:
    access = AccessConfig(authentication=True, inner='{"accessKey":"inner","secretKey":"innerpw1"}')
    for opened, closed in (
        (needs.NAME_SERVER_OPEN, needs.NAME_SERVER_SUPER),
        (needs.CONTROLLER_OPEN, needs.CONTROLLER_SUPER),
    ):
        keeper = super_keeper(access, closed, opened, lambda: 0)

        class Peer:
            peer = ("10.0.0.7", 1)
            address = "10.0.0.7:1"

        peer: Any = Peer()
        for code in RequestCode:
            command = request(code, "inner", "wrong")
            if code in opened:
                assert keeper(command, peer) is None
                continue
            refusal = keeper(command, peer)
            assert refusal is not None and refusal.code == 16
            assert keeper(request(code), peer) is not None
            assert keeper(request(code, "inner", "innerpw1"), peer) is None
    assert "innerpw1" not in str(ControllerConfig(access=access).to_properties())
    assert "innerpw1" not in str(NameServerConfig(access=access).to_properties())


async def test_who_asks_is_found_by_the_row_even_where_it_has_none() -> None:
    assert is_for_super(BROKER.get(31_999, only_super), Command(31_999))
    assert AccessUser("x", "y") != AccessUser("x", "z")
