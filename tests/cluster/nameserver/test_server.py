"""The name server's answers, request by request, and a replay of what the original answered."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import lzma
import zlib
from pathlib import Path
from typing import Any, cast

import pytest
from timekit import HandClock

from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.nameserver.config import (
    CHANGEABLE,
    NameServerConfig,
    check_startable,
)
from tandemmq.cluster.nameserver.kvconfig import KvConfig
from tandemmq.cluster.nameserver.server import (
    INSECURE_REMINDER_S,
    NameServer,
    remind_of_exposure,
    reply_to,
)
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.storage import fastjson

WIRE = Path(__file__).parents[2] / "golden" / "wire"
ADDRESS = "10.0.0.1:10911"


class Line:
    """As much of a connection as handlers look at."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.address = "203.0.113.5:40000"
        self.closed = False
        self.close_reason = "closed by the peer"


class Served:
    """A name server and a way to ask it as a connection does."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        config = NameServerConfig(
            kv_config_path=str(directory / "kv.json"),
            config_store_path=str(directory / "namesrv.conf"),
            **settings,
        )
        self.clock = HandClock()
        self.server = NameServer(config, KvConfig.load(directory / "kv.json"), self.clock)
        self.table = self.server.table()
        self.lines: dict[int, Line] = {}

    async def ask(self, request: Command, line: int = 1) -> Command:
        connection = cast(Connection, self.lines.setdefault(line, Line(line)))
        handler = self.table.get(request.code)
        if handler is None:
            return request.reply(3, f" request type {request.code} not supported")
        try:
            answer = handler(request, connection)
            if inspect.isawaitable(answer):
                answer = await answer
        except HeaderProblem as problem:
            return request.reply(1, str(problem))
        except Exception as problem:
            mapped = reply_to(problem)
            if mapped is None:
                raise
            return request.reply(*mapped)
        assert answer is not None
        return cast(Command, answer)

    async def code(
        self, code: int, ext: dict[str, str] | None = None, body: bytes | None = None
    ) -> Command:
        return await self.ask(Command(code, ext, body))

    async def register(
        self, line: int = 1, topics: tuple[str, ...] = ("T", "U"), **ext: str
    ) -> Command:
        body = json.dumps(
            {
                "filterServerList": [],
                "topicConfigSerializeWrapper": {
                    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
                    "topicConfigTable": {name: {"perm": 6, "topicName": name} for name in topics},
                },
            }
        ).encode()
        given = {
            "brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": "0",
            "haServerAddr": "10.0.0.1:10912", "enableActingMaster": "false", "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }  # fmt: skip
        return await self.ask(Command(103, given | ext, body), line)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def body(answer: Command) -> Any:
    return json.loads(bytes(answer.body or b"null"))


# ---- replay


def normal(value: Any) -> Any:
    """Lists of names have no order."""
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(
            (normal(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True)
        )
    return value


@pytest.mark.parametrize(
    "session", ["b53-c53-json", "b53-c53-binary", "b53-c49-json", "b53-c53-admin"]
)
async def test_the_recorded_requests_get_the_recorded_answers(session: str, served: Served) -> None:
    labels: dict[int, str] = {}
    ours: dict[tuple[int, int], tuple[Command, Command]] = {}
    compared: dict[int, int] = {}
    with lzma.open(WIRE / f"{session}.jsonl.xz", "rt") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        if line["k"] == "open":
            labels[line["c"]] = line["l"]
        if line["k"] != "frame" or not labels[line["c"]].endswith("-ns"):
            continue
        command = Command.decode(base64.b64decode(line["b"]))
        if not command.is_response:
            answer = await served.ask(command, line["c"])
            ours[line["c"], command.opaque] = (command, answer)
            continue
        request, answer = ours.pop((line["c"], command.opaque))
        if request.code == 319:
            continue  # settings: other defaults, no thread pools
        where = f"{session} c={line['c']} code={request.code} ext={request.ext}"
        assert answer.code == command.code, where
        assert (answer.ext or {}) == (command.ext or {}), where
        if command.code == 0:
            assert answer.remark is None
        else:
            assert (answer.remark or "").split("\n")[0] == (command.remark or "").split("\n")[0], (
                where
            )
        expected = fastjson.loads(command.body) if command.body else None
        assert normal(body(answer)) == normal(expected), where
        compared[request.code] = compared.get(request.code, 0) + 1
    assert compared[103] and compared[105]
    if session == "b53-c53-json":
        assert {100, 101, 102, 104, 106, 205, 206, 216, 327} <= set(compared)


# ---- registration


async def test_registration_answers_like_the_original(served: Served) -> None:
    first = await served.register()
    assert (first.code, first.ext, first.body) == (0, {}, None)
    slave = await served.register(2, brokerId="1", brokerAddr="10.0.0.2:10911")
    assert slave.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": ADDRESS}


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"bodyCrc32": "7"}, "crc32 not match"),
        ({"brokerName": "../x"}, "broker name"),
        ({"clusterName": ""}, "cluster name"),
        ({"brokerAddr": "nowhere"}, "host:port"),
        ({"brokerId": "x"}, "brokerId"),
        ({"brokerId": str(2**63)}, "brokerId"),
    ],
)
async def test_an_impossible_registration_is_refused_and_changes_nothing(
    served: Served, change: dict[str, str], remark: str
) -> None:
    answer = await served.register(**change)
    assert answer.code == 1
    assert remark in (answer.remark or "")
    assert served.server.routes.groups == {}


async def test_topics_with_impossible_names_are_left_out(served: Served) -> None:
    await served.register(topics=("good", "bad/../name", "x" * 300, "%RETRY%g"))
    assert body(await served.code(206))["topicList"] == ["%RETRY%g", "good"]


async def test_a_large_registration_is_parsed_elsewhere_and_not_taken_from_a_closed_connection(
    served: Served,
) -> None:
    topics = tuple(f"Topic-{number:05d}" for number in range(2000))
    asking = asyncio.create_task(served.register(5, topics=topics))
    await asyncio.sleep(0)
    served.lines[5].closed = True
    answer = await asking
    assert answer.code == 1 and "closed" in (answer.remark or "")
    assert served.server.routes.groups == {}
    assert (await served.register(6, topics=topics)).code == 0
    assert len(served.server.routes.topics) == 2000


async def test_ordered_topics_are_returned_to_brokers_unless_switched_off(tmp_path: Path) -> None:
    served = Served(tmp_path)
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert (await served.code(100, put)).code == 0
    assert body(await served.register()) == {"table": {"T": "broker-a:4"}}
    silent = Served(tmp_path, order_topics_returned=False)
    assert (await silent.register()).body is None


async def test_a_heartbeat_of_either_kind_keeps_a_broker_and_a_strangers_is_fine_too(
    served: Served,
) -> None:
    await served.register()
    broker = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": "0"}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 5}
    for _ in range(3):
        served.clock.ms += 100_000
        assert (await served.code(904, broker)).code == 0
        served.clock.ms += 100_000
        same = await served.code(322, broker, json.dumps(version).encode())
        assert same.ext == {"changed": "false"}
        assert body(same) == version
        assert served.server.expire_brokers() == []
    differs = await served.code(322, broker, b'{"counter":2,"stateVersion":0,"timestamp":5}')
    assert differs.ext == {"changed": "true"}
    stranger = broker | {"brokerAddr": "10.9.9.9:1"}
    assert (await served.code(904, stranger)).code == 0
    unknown = await served.code(322, stranger, json.dumps(version).encode())
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, None)
    served.clock.ms += 120_001
    assert served.server.expire_brokers() == [1]
    assert (await served.code(105, {"topic": "T"})).code == 17


async def test_a_closed_connection_unregisters_at_once(served: Served) -> None:
    await served.register(4)
    served.server.connection_closed(cast(Connection, Line(9)))
    assert (await served.code(105, {"topic": "T"})).code == 0
    served.server.connection_closed(cast(Connection, served.lines[4]))
    assert (await served.code(105, {"topic": "T"})).code == 17


async def test_unregistering(served: Served) -> None:
    await served.register()
    broker = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": "0"}
    assert (await served.code(104, broker)).code == 0
    assert (await served.code(104, broker)).code == 0
    assert (await served.code(105, {"topic": "T"})).code == 17


# ---- routes and lists


async def test_route_answers(served: Served) -> None:
    await served.register()
    route = await served.code(105, {"topic": "T", "acceptStandardJsonOnly": "true"})
    assert body(route)["queueDatas"][0]["writeQueueNums"] == 16
    missing = await served.code(105, {"topic": "nope"})
    assert missing.code == 17
    assert (missing.remark or "").startswith(
        "No topic route info in name server for the topic: nope\nSee "
    )
    assert (await served.code(105)).code == 1
    assert (await served.code(105, {"topic": "x" * 100_000})).code == 17


async def test_no_client_splits_a_blank_out_of_broker_addresses(served: Served) -> None:
    await served.register()
    await served.register(2, brokerId="1", brokerAddr="10.0.0.2:10911")
    raw = bytes((await served.code(105, {"topic": "T"})).body or b"")
    start = raw.index(b'"brokerAddrs":{') + len(b'"brokerAddrs":')
    cut = raw[start + 1 : raw.index(b"}", start)]  # as the Go client does it
    pairs = [part.split(b":", 1) for part in cut.split(b",")]
    assert [(int(key.strip(b'"')), value.strip(b'"')) for key, value in pairs] == [
        (0, ADDRESS.encode()), (1, b"10.0.0.2:10911"),
    ]  # fmt: skip
    assert b" " not in raw


async def test_order_conf_is_in_routes_only_when_enabled(tmp_path: Path) -> None:
    for enabled in (False, True):
        served = Served(tmp_path, order_message_enabled=enabled)
        await served.code(
            100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        )
        await served.register()
        assert body(await served.code(105, {"topic": "T"})).get("orderTopicConf") == (
            "broker-a:4" if enabled else None
        )
        assert "orderTopicConf" not in body(await served.code(105, {"topic": "U"}))


async def test_routes_wait_for_brokers_after_a_start_when_asked_to(tmp_path: Path) -> None:
    served = Served(tmp_path, wait_for_service=True)
    await served.register()
    answer = await served.code(105, {"topic": "T"})
    assert (answer.code, answer.remark) == (1, "name server not ready")
    served.clock.ms += 45_000
    assert (await served.code(105, {"topic": "T"})).code == 0


async def test_topic_lists_and_their_switches(tmp_path: Path) -> None:
    served = Served(tmp_path)
    await served.register()
    assert body(await served.code(206)) == {"topicList": ["T", "U"]}
    assert body(await served.code(224, {"cluster": "C"})) == {"topicList": ["T", "U"]}
    assert body(await served.code(224, {"cluster": "none"})) == {"topicList": []}
    assert body(await served.code(304)) == {"topicList": ["C", "broker-a"], "brokerAddr": ADDRESS}
    for code in (311, 312, 313):
        assert body(await served.code(code)) == {"topicList": []}
    assert body(await served.code(901, {"clusterName": "C", "brokerName": "broker-a"})) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"0": ADDRESS},
            "brokerName": "broker-a",
            "cluster": "C",
        }
    }
    shut = Served(tmp_path, all_topic_list_enabled=False, topic_list_enabled=False)
    for code in (206, 224, 311, 312, 313):
        answer = await shut.code(code, {"cluster": "C"})
        assert (answer.code, answer.remark) == (1, "disable")


async def test_write_permission_is_wiped_and_added(served: Served) -> None:
    await served.register()
    assert (await served.code(205, {"brokerName": "broker-a"})).ext == {"wipeTopicCount": "2"}
    assert body(await served.code(105, {"topic": "T"}))["queueDatas"][0]["perm"] == 4
    assert (await served.code(327, {"brokerName": "broker-a"})).ext == {"addTopicCount": "2"}
    assert body(await served.code(105, {"topic": "T"}))["queueDatas"][0]["perm"] == 6
    assert (await served.code(205, {"brokerName": "none"})).ext == {"wipeTopicCount": "0"}


async def test_topics_are_deleted_and_registered_alone(served: Served) -> None:
    await served.register()
    assert (await served.code(216, {"topic": "T", "clusterName": "other"})).code == 0
    assert (await served.code(105, {"topic": "T"})).code == 0
    assert (await served.code(216, {"topic": "T"})).code == 0
    assert (await served.code(105, {"topic": "T"})).code == 17
    queue = {
        "brokerName": "broker-a",
        "perm": 6,
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "topicSysFlag": 0,
    }
    route = json.dumps({"queueDatas": [queue]}).encode()
    assert (await served.code(217, {"topic": "T"}, route)).code == 0
    assert body(await served.code(105, {"topic": "T"}))["queueDatas"] == [queue]
    assert (await served.code(217, {"topic": "a/b"}, route)).code == 1
    assert (await served.code(217, {"topic": "X"}, b"{")).code == 1


# ---- KV and settings


async def test_kv_requests(served: Served) -> None:
    assert (await served.code(100, {"namespace": "n"})).remark == "namespace or key is null"
    missing = await served.code(101, {"namespace": "n", "key": "k"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    assert (await served.code(219, {"namespace": "n"})).code == 22
    assert (await served.code(102, {"namespace": "n", "key": "k"})).code == 0
    assert (await served.code(100, {"namespace": "n", "key": "k", "value": "v=1;ü"})).code == 0
    assert (await served.code(101, {"namespace": "n", "key": "k"})).ext == {"value": "v=1;ü"}
    assert body(await served.code(219, {"namespace": "n"})) == {"table": {"k": "v=1;ü"}}
    assert (await served.code(102, {"namespace": "n", "key": "k"})).code == 0
    assert (await served.code(101, {"namespace": "n", "key": "k"})).code == 22


async def test_settings_in_force_are_listed_and_secrets_masked(tmp_path: Path) -> None:
    served = Served(tmp_path, tls=TlsConfig(key_password="hunter2"))
    text = bytes((await served.code(319)).body or b"").decode()
    lines = text.splitlines()
    assert lines == sorted(lines)
    assert "listenPort=9876" in lines
    assert "hunter2" not in text and "tls.server.keyPassword=******" in lines


async def test_an_allowed_setting_changes_at_once_and_is_kept(served: Served) -> None:
    store = served.directory / "namesrv.conf"
    store.write_text("# mine\nlistenPort=9999\n")
    assert (
        await served.code(318, None, b"enableTopicList=false\nneedWaitForService=true\n")
    ).code == 0
    assert (await served.code(311)).code == 1
    assert "enableTopicList=false" in store.read_text()
    assert "listenPort=9999" in store.read_text()
    assert (await served.code(318, None, b"deleteTopicWithBrokerRegistration=true")).code == 0
    assert served.server.routes.topics_follow_registration


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"kvConfigPath=/etc/passwd", 16),
        (b"configStorePath=/tmp/x", 16),
        (b"configBlackList=", 16),
        (b"rocketmqHome=/tmp", 16),
        (b"listenPort=1", 16),
        (b"bindAddress=0.0.0.0", 16),
        (b"tls.server.mode=disabled", 16),
        (b"noSuchKey=1", 16),
        (b"enableTopicList=maybe", 1),
        (b"waitSecondsForService=-1", 1),
        (b"waitSecondsForService=1e9", 1),
        (b"\xff\xfe", 1),
        (b"a=\\u12", 1),
        (b"enableTopicList\\nkvConfigPath=false", 16),
    ],
)
async def test_anything_else_refuses_the_whole_update(
    served: Served, text: bytes, code: int
) -> None:
    answer = await served.code(318, None, b"orderMessageEnable=true\n" + text)
    assert answer.code == code
    assert not served.server.config.order_message_enabled
    assert not (served.directory / "namesrv.conf").exists()


async def test_black_listed_keys_are_refused_with_the_text_that_tools_expect(
    served: Served,
) -> None:
    answer = await served.code(318, None, b"kvConfigPath=/x")
    assert answer.remark == "Can not update config in black list."


def test_no_path_address_or_secret_is_changeable() -> None:
    for key in CHANGEABLE:
        assert not any(
            word in key.lower() for word in ("path", "address", "port", "tls", "home", "black")
        )


async def test_a_value_cannot_smuggle_a_line_into_the_settings_file(served: Served) -> None:
    await served.code(318, None, b"waitSecondsForService=5")
    content = (served.directory / "namesrv.conf").read_text()
    assert content.splitlines() == ["waitSecondsForService=5"]


# ---- configuration


def test_defaults_are_rocketmqs_but_for_the_address(tmp_path: Path) -> None:
    config = NameServerConfig.from_properties({}, home=tmp_path)
    assert (config.listen_port, config.bind_address) == (9876, "127.0.0.1")
    assert config.kv_config_path == str(tmp_path / "namesrv" / "kvConfig.json")
    assert config.config_store_path == str(tmp_path / "namesrv" / "namesrv.properties")
    assert not config.is_exposed
    check_startable(config)


def test_a_stock_file_is_read_and_updates_go_back_to_it(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    properties = {
        "listenPort": "29876", "kvConfigPath": "/data/kv.json", "rocketmqHome": "/opt/mq",
        "serverWorkerThreads": "8", "orderMessageEnable": " TRUE ", "clusterTest": "false",
        "tls.server.mode": "required",
    }  # fmt: skip
    config = NameServerConfig.from_properties(properties, path=path, home=tmp_path)
    assert (config.listen_port, config.order_message_enabled) == (29876, True)
    assert config.config_store_path == str(path)
    assert config.tls.mode.value == "enforcing"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "x"),
        ("listenPort", "70000"),
        ("scanNotActiveBrokerInterval", "0"),
        ("tls.server.mode", "maybe"),
        ("supportActingMaster", "true"),
        ("enableControllerInNamesrv", "perhaps"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_its_key(
    key: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        NameServerConfig.from_properties({key: value}, home=tmp_path)
    assert caught.value.key == key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ns.example", ""])
def test_a_reachable_address_needs_tls_or_the_flag(host: str, tmp_path: Path) -> None:
    config = NameServerConfig.from_properties({"bindAddress": host}, home=tmp_path)
    with pytest.raises(ConfigError, match="insecure"):
        check_startable(config)
    check_startable(
        NameServerConfig.from_properties({"bindAddress": host}, insecure=True, home=tmp_path)
    )
    tls = {"bindAddress": host, "tls.server.mode": "enforcing"}
    check_startable(NameServerConfig.from_properties(tls, home=tmp_path))
    cannot = {"bindAddress": host, "insecure": "true"}  # not a setting of files
    with pytest.raises(ConfigError):
        check_startable(NameServerConfig.from_properties(cannot, home=tmp_path))


def test_a_settings_file_without_an_address_is_served_everywhere_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = NameServerConfig.from_properties({}, as_rocketmq=True, home=tmp_path)
    assert config.bind_address == "0.0.0.0"
    check_startable(config)
    assert "without credentials" in caplog.text
    assert NameServerConfig.from_properties({}, home=tmp_path).bind_address == "127.0.0.1"


def test_every_handler_is_named_after_its_code() -> None:
    names = [name for name in vars(NameServer) if name.startswith("handle_")]
    assert len(names) == 23


@pytest.mark.parametrize(("host", "lines"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
async def test_serving_strangers_in_the_clear_is_said_at_the_start_and_every_hour(
    host: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    reminder = asyncio.create_task(
        remind_of_exposure(NameServerConfig(bind_address=host, insecure=True))
    )
    await asyncio.sleep(0)
    reminder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reminder
    assert len([r for r in caplog.records if "without credentials" in r.getMessage()]) == lines
    assert INSECURE_REMINDER_S == 3600


# ---- whom routes follow where a controller is near


class Distrusting:
    """As a controller that believes nobody but id 3."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, str]] = []

    def refuse_route(self, group: str, broker_id: int, address: str, host: str) -> str | None:
        self.asked.append((group, broker_id, address, host))
        return None if broker_id == 3 else f"{address} is not the master of {group}"


async def test_routes_of_a_controlled_group_do_not_follow_strangers(served: Served) -> None:
    # INV-44
    await served.register()
    served.server.judge = judge = Distrusting()
    refused = await served.register(2, brokerAddr="203.0.113.5:1")
    assert (refused.code, refused.remark) == (1, "203.0.113.5:1 is not the master of broker-a")
    assert judge.asked == [("broker-a", 0, "203.0.113.5:1", "203.0.113.5")]
    goodbye = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": "0"}
    assert (await served.code(104, goodbye)).code == 1
    assert (await served.register(3, brokerAddr="10.0.0.3:1", brokerId="3")).code == 0
    route = json.loads((await served.code(105, {"topic": "T"})).body or b"")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": ADDRESS, "3": "10.0.0.3:1"}
