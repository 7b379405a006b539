"""The admin API on a live cluster with access control: every reading command answers as OpenAPI says it does."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jsonschema
import pytest
from http_ports import TOKEN, HttpCluster, Port, http_cluster

from tandemmq import ClientConfig, Credentials, Message, Producer, PushConsumer
from tandemmq.admin.commands import COMMANDS
from tandemmq.chaos.processes import wait_until
from tandemmq.plane.openapi import answer_schema

pytestmark = pytest.mark.system

READING = [name for name, command in COMMANDS.items() if not command.writes]
ROOT, PASSWORD = "root0001", "rootpw12"


@dataclass
class Live:
    """A cluster with a topic, a message, a group with a member, a user, and what the commands need to name them."""

    cluster: HttpCluster
    sent: dict[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> Port:
        return self.cluster.brokers_http[0]

    @property
    def master(self) -> str:
        roles = zip(self.cluster.brokers, self.cluster.brokers_http, strict=True)
        return next(b.address for b, port in roles if port.get("/healthz")["role"] != "SLAVE")

    def order(self, name: str, status: int = 200, /, **given: object) -> Any:
        answer = self.port.ask(f"/api/admin/{name}", method="POST", body=json.dumps(given).encode())
        assert answer.status == status, (name, answer.status, answer.body)
        return answer.json

    def given(self, name: str) -> dict[str, Any]:
        """Parameters of a reading command."""
        broker, cluster = {"brokerAddr": self.master}, {"clusterName": "TestCluster"}
        orders = {"topic": "Orders"}
        at = {**orders, "brokerName": "broker-a", "queueId": self.sent["queue_id"]}
        of_message = {**orders, "msgId": self.sent["message_id"]}
        known: dict[str, dict[str, Any]] = {
            **dict.fromkeys(("brokerStatus", "getBrokerConfig", "haStatus", "listUser", "listAcl", "timers"), broker),
            **dict.fromkeys(("exportMetadata", "exportConfigs", "exportMetrics"), cluster),
            **dict.fromkeys(("topicRoute", "topicStatus", "topicClusterList", "printMsg", "consumeMessage"), orders),
            "allocateMQ": {**orders, "ipList": "10.0.0.1,10.0.0.2"},
            "getConsumerConfig": {"groupName": "billing"},
            "brokerConsumeStats": broker,
            "consumerConnection": {"consumerGroup": "billing"},
            "consumerStatus": {"consumerGroup": "billing"},
            "producerConnection": {**orders, "producerGroup": "shop"},
            "producer": {"broker": self.master},
            "getUser": {**broker, "username": "clerk"},
            "getAcl": {**broker, "subject": "User:clerk"},
            "queryMsgById": of_message,
            "queryMsgByUniqueKey": of_message,
            "queryMsgByKey": {**orders, "msgKey": "order-17"},
            "queryMsgByOffset": {**at, "offset": 0},
            "queryMsgTraceById": {"msgId": self.sent["message_id"], "traceTopic": "Orders"},
            "queryCq": {**orders, "queue": self.sent["queue_id"], "index": 0},
            "printMsgByQueue": at,
        }  # fmt: skip
        return known.get(name, {})

    def ask(self, name: str, given: dict[str, Any], **more: Any) -> Any:
        return self.port.ask(f"/api/admin/{name}?{urlencode(given)}", **more)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("plane")
    secured = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": ROOT, "password": PASSWORD}),
        "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innersecret"}',
    }
    with http_cluster(root, secured) as cluster:
        found = Live(cluster)
        found.order("updateTopic", clusterName="TestCluster", topic="Orders", writeQueueNums=2)
        found.order("updateSubGroup", clusterName="TestCluster", groupName="billing")
        found.order("createUser", brokerAddr=found.master, username="clerk", password="clerk-pw-1")
        rule = {"resources": "Topic:Orders", "actions": "Pub", "decision": "Allow"}
        found.order("createAcl", brokerAddr=found.master, subject="User:clerk", **rule)

        def sent() -> bool:
            # a topic is sent to when name servers know it
            answer = found.port.ask(
                "/api/admin/sendMessage", method="POST",
                body=json.dumps({"topic": "Orders", "body": "hello", "key": "order-17"}).encode(),
            )  # fmt: skip
            if answer.status == 200:
                found.sent = answer.json["result"][0]
            return answer.status == 200

        wait_until(sent, 30, "a message is sent")
        with member(found):
            wait_until(
                lambda: found.ask("consumerProgress", {"groupName": "billing"}).status == 200,
                30, "the group has said how far it is",
            )  # fmt: skip
            yield found


class member:
    """A producer and a consumer that stay while the body runs, in a thread of their own."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        config = ClientConfig(
            self._live.cluster.names.address, credentials=Credentials(ROOT, PASSWORD)
        )
        came = asyncio.Event()

        async def take(_: object) -> None:
            came.set()

        consumer = PushConsumer("billing", config=config, on_message=take)
        consumer.subscribe("Orders")
        async with Producer("shop", config=config) as producer, consumer:
            await producer.send(Message("Orders", b"\xff\x00", tags="A"))
            await producer.send(Message("Orders", b"later", delay_s=3_000))
            await asyncio.wait_for(came.wait(), 30)
            self._ready.set()
            await asyncio.to_thread(self._stop.wait)

    def __enter__(self) -> member:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def document(live: Live) -> dict[str, Any]:
    found: dict[str, Any] = live.port.get("/api/openapi.json")
    return found


def check(document: dict[str, Any], value: Any, schema: dict[str, Any]) -> None:
    """Whether a value has what the schema says and nothing that it does not say."""
    strict = closed({**schema, "components": document["components"]})
    jsonschema.Draft202012Validator(strict).validate(value)


def closed(schema: Any) -> Any:
    """The same schema, with no property allowed that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(each) for key, each in schema.items()}
    if (
        "properties" in found
        and isinstance(found["properties"], dict)
        and found.get("type") == "object"
    ):
        found.setdefault("additionalProperties", False)
    return found


# -- the description ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/api/admin"])
def test_what_every_process_tells_is_as_described(
    live: Live, document: dict[str, Any], path: str
) -> None:
    check_open = answer_schema(document, path, "get")
    for port in live.cluster.ports.values():
        jsonschema.validate(port.get(path), check_open)


@pytest.mark.parametrize("name", READING)
def test_reading_command_answers_as_described(
    live: Live, document: dict[str, Any], name: str
) -> None:
    given = live.given(name)
    answer = live.ask(name, given)
    assert answer.status == 200, answer.body
    assert answer.json["exit_code"] == 0
    check(document, answer.json, answer_schema(document, f"/api/admin/{name}", "get"))
    told = {each["name"] for each in document["paths"][f"/api/admin/{name}"]["get"]["parameters"]}
    assert given.keys() <= told
    posted = live.order(name, **given)
    assert posted["exit_code"] == 0


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("topicList", {"clusterModel": "true"}),
        ("consumerProgress", {"groupName": "billing"}),
        ("consumerProgress", {"groupName": "billing", "showClientIP": "true"}),
        ("clusterList", {"moreStats": "true"}),
        ("printMsgByQueue", {"topic": "Orders", "brokerName": "broker-a", "queueId": "0", "print": "false",
                             "calculate": "true"}),
    ],
)  # fmt: skip
def test_other_forms_of_an_answer_are_described_too(
    live: Live, document: dict[str, Any], name: str, given: dict[str, str]
) -> None:
    answer = live.ask(name, given)
    assert answer.status == 200, answer.body
    assert answer.json["result"]
    check(document, answer.json, answer_schema(document, f"/api/admin/{name}", "get"))


# -- who may -----------------------------------------------------------------------------------------


def test_with_access_control_nothing_is_told_without_the_token(live: Live) -> None:
    assert live.ask("topicList", {}, token=None).status == 401
    assert live.ask("topicList", {}, token="x" * 22).status == 401
    assert live.port.ask("/healthz", token=None).status == 200


def test_what_changes_something_is_not_for_get(live: Live) -> None:
    answer = live.ask("deleteTopic", {"topic": "Orders", "clusterName": "TestCluster"})
    assert (answer.status, answer.json["hint"]) == (405, "POST it, with the token")
    live.ask("topicRoute", {"topic": "Orders"}).json["result"]


def test_page_of_another_origin_may_not_even_with_the_token(live: Live) -> None:
    forged = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    answer = live.port.ask("/api/admin/cleanUnusedTopic", method="POST", headers=forged, body=b"{}")
    assert answer.status == 403
    assert answer.json["error"] == "asked for by a page of another origin"


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "status", "error"),
    [
        ("topicLst", {}, 404, "there is no command 'topicLst'"),
        ("updateStaticTopic", {}, 404, "updateStaticTopic is not here"),
        ("topicRoute", {}, 400, "the following arguments are required: -t/--topic"),
        ("topicRoute", {"topik": "x"}, 400, "topicRoute has no parameter 'topik'"),
        ("topicRoute", {"topic": "Orders", "list": "yes"}, 400, "list: true or false, got 'yes'"),
        ("brokerStatus", {}, 400, "one of the arguments -b/--brokerAddr -c/--clusterName is required"),
        ("brokerStatus", {"brokerAddr": "a:1", "clusterName": "b"}, 400, "not allowed with argument"),
        ("queryCq", {"topic": "Orders", "queue": "many", "index": "0"}, 400, "invalid int value"),
        ("exportMetadata", {"clusterName": "TestCluster", "filePath": "/tmp"}, 400, "has no parameter 'filePath'"),
        ("clusterList", {"interval": "1"}, 400, "has no parameter 'interval'"),
        ("topicRoute", {"topic": "No<b>Such"}, 404, "No<b>Such"),
        ("topicStatus", {"topic": "NoSuch"}, 404, "No route info of this topic: NoSuch"),
        ("brokerStatus", {"brokerAddr": "127.0.0.1:1"}, 502, "connect to 127.0.0.1:1 failed"),
        ("brokerStatus", {"brokerAddr": "nonsense"}, 400, "nonsense"),
        ("getUser", {"clusterName": "TestCluster", "username": "x"}, 404, "no user x"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_says_why(
    live: Live, document: dict[str, Any], name: str, given: dict[str, str], status: int, error: str
) -> None:
    answer = live.ask(name, given)
    assert (answer.status, error in answer.json["error"]) == (status, True), answer.body
    assert answer.headers["Content-Type"].startswith("application/json")
    problem = {**document["components"]["schemas"]["Problem"], "additionalProperties": False}
    jsonschema.validate(answer.json, problem)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{", 400, "no JSON"),
        (b"\xff\xfe\x00", 400, "no JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b"[" * 100_000, 400, "no JSON"),
        (b'{"topic": {"a": 1}}', 400, "topic takes text"),
        (b'{"topic": "Orders", "clusterName": "TestCluster", "perm": 9}', 400, "invalid choice"),
        (b'{"topic": "' + b"x" * (2 << 20) + b'"}', 413, "1048576 bytes"),
    ],
    ids=["half", "binary", "array", "deep", "nested", "range", "long"],
)
def test_body_that_is_no_order_says_why(live: Live, body: bytes, status: int, error: str) -> None:
    answer = live.port.ask("/api/admin/updateTopic", method="POST", body=body)
    assert (answer.status, error in answer.json["error"]) == (status, True), answer.body[:300]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "x"])
def test_body_that_would_have_to_be_unpacked_is_refused_unread(live: Live, encoding: str) -> None:
    packed = gzip.compress(b"[" * (16 << 20))
    answer = live.port.ask(
        "/api/admin/topicList", method="POST", body=packed, headers={"Content-Encoding": encoding}
    )
    assert (answer.status, answer.json["hint"]) == (415, "send it without Content-Encoding")


def test_message_larger_than_any_broker_takes_is_refused_before_it_is_made(live: Live) -> None:
    refused = live.order("clusterRT", 400, size=1 << 70)
    assert refused["error"] == "a message has at most 67108864 bytes"


def test_parameter_given_twice_is_refused(live: Live) -> None:
    assert live.port.ask("/api/admin/topicRoute?topic=a&topic=b").status == 400
    answer = live.port.ask("/api/admin/updateTopic?topic=a", method="POST", body=b'{"topic": "b"}')
    assert answer.json["error"] == "topic is in the query and in the body"


def test_list_of_topics_comes_in_the_body_and_not_from_a_file(live: Live) -> None:
    topics = [{"topicName": "FromJson", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}]
    done = live.order("updateTopicList", brokerAddr=live.master, filename=topics)
    assert [each["topic"] for each in done["result"]["topics"]] == ["FromJson"]
    refused = live.order("updateTopicList", 400, brokerAddr=live.master, filename="/etc/passwd")
    assert refused["error"] == "filename takes an array"


def test_password_is_shown_to_the_token_alone_and_only_when_asked_for(live: Live) -> None:
    given = {"brokerAddr": live.master, "username": "clerk"}
    assert live.ask("getUser", given).json["result"][0]["password"] == "******"
    shown = live.ask("getUser", {**given, "show-passwords": "true"})
    assert shown.json["result"][0]["password"] == "clerk-pw-1"
    told = live.port.get("/api/openapi.json")["paths"]["/api/admin/getUser"]["get"]["parameters"]
    assert "show-passwords" not in {each["name"] for each in told}


def test_log_of_a_broker_says_nothing_of_the_token_and_little_of_requests(live: Live) -> None:
    for broker in live.cluster.brokers:
        said = broker.output()
        assert TOKEN not in said and "Traceback" not in said
        assert said.count("route changed") < 5


def test_controller_without_name_servers_says_what_it_lacks(live: Live, tmp_path: Path) -> None:
    answer = live.cluster.controller_http.ask("/api/admin/topicList")
    assert answer.status == 503
    assert answer.json == {
        "error": "this process knows no name server",
        "hint": "set httpNamesrvAddr=HOST:PORT in its settings",
    }
