"""Messages over HTTP on a live cluster: sent, leased, acknowledged, come again; 4 MB, binary, and nonsense."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import jsonschema
import pytest
from http_ports import TOKEN, Answer, HttpCluster, Port, http_cluster

from tandemmq.chaos.processes import wait_until
from tandemmq.plane.openapi import answer_schema

pytestmark = pytest.mark.system

PATH = "/api/topics/{topic}/messages"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCluster]:
    with http_cluster(tmp_path_factory.mktemp("messages")) as found:
        yield found


@pytest.fixture(scope="module")
def document(cluster: HttpCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.names_http.get("/api/openapi.json")
    return found


class Topic:
    """One topic of a test, by the port of any process."""

    def __init__(self, port: Port, name: str, group: str) -> None:
        self.port = port
        self.name = name
        self.group = group

    def path(self, **query: object) -> str:
        return f"/api/topics/{self.name}/messages" + (f"?{urlencode(query)}" if query else "")

    def send(
        self, body: bytes, headers: dict[str, str] | None = None, /, **query: object
    ) -> Answer:
        return self.port.ask(self.path(**query), method="POST", body=body, headers=headers)

    def send_json(self, *messages: dict[str, Any]) -> Answer:
        return self.send(json.dumps(messages).encode(), {"Content-Type": "application/json"})

    def receive(self, **query: object) -> list[dict[str, Any]]:
        found = self.port.get(self.path(group=self.group, **query))["messages"]
        return list(found)

    def receive_all(self, count: int, **query: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        wait_until(
            lambda: found.extend(self.receive(wait=2, **query)) or len(found) >= count,
            40,
            f"{count} messages",
        )
        return found

    def done(self, *messages: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps({"receipts": [each["receipt"] for each in messages]}).encode()
        answer = self.port.ask(self.path(group=self.group), method="DELETE", body=body)
        assert answer.status == 200, answer.body
        return dict(answer.json)

    def committed(self) -> int:
        """What the group has consumed of this topic, by brokers."""
        given = urlencode({"groupName": self.group, "topicName": self.name})
        found = self.port.get(f"/api/admin/consumerProgress?{given}")["result"]
        return sum(each["consumer_offset"] for each in found["queues"])


@pytest.fixture
def topic(cluster: HttpCluster, request: pytest.FixtureRequest) -> Topic:
    """A topic with two queues, and a group that reads it from its beginning."""
    name = request.node.originalname[:60]
    for port in cluster.brokers_http:
        body = json.dumps(
            {"clusterName": "TestCluster", "topic": name, "readQueueNums": 2, "writeQueueNums": 2}
        )
        assert port.ask("/api/admin/updateTopic", method="POST", body=body.encode()).status == 200
        break
    found = Topic(cluster.names_http, name, f"G_{name}")
    wait_until(lambda: found.send(b"first").status == 200, 30, "the topic is known")
    first = found.receive_all(1, start="first")
    found.done(*first)
    return found


# -- sent and received -------------------------------------------------------------------------------


def test_raw_body_with_its_properties_comes_back_as_it_was(
    topic: Topic, document: dict[str, Any]
) -> None:
    body = bytes(range(256))
    headers = {"X-Tags": "A", "X-Keys": "order-17,order-18", "X-Property-source": "shop"}
    answer = topic.send(body, headers)
    assert answer.status == 200, answer.body
    jsonschema.validate(answer.json, answer_schema(document, PATH, "post"))
    (sent,) = answer.json["messages"]
    assert (sent["status"], sent["copies"]) == ("SEND_OK", 2)
    (found,) = topic.receive_all(1)
    jsonschema.validate({"messages": [found]}, answer_schema(document, PATH, "get"))
    assert base64.b64decode(found["body_base64"]) == body
    assert (found["tags"], found["keys"]) == ("A", ["order-17", "order-18"])
    assert found["properties"]["source"] == "shop"
    assert found["message_id"] == sent["message_id"]
    done = topic.done(found)
    jsonschema.validate(done, answer_schema(document, PATH, "delete"))
    assert done == {"acknowledged": 1, "unknown": []}


def test_array_is_stored_message_by_message(topic: Topic) -> None:
    answer = topic.send_json(
        {"body": "one", "tags": "A"},
        {"body_base64": base64.b64encode(b"\x00\xff").decode(), "properties": {"n": "2"}},
        {"body": "drei €", "keys": ["k"]},
    )
    assert [each["status"] for each in answer.json["messages"]] == ["SEND_OK"] * 3
    found = topic.receive_all(3)
    assert {each.get("body") for each in found} == {"one", None, "drei €"}


def test_body_of_four_megabytes_goes_both_ways(topic: Topic) -> None:
    body = os.urandom(4_000_000)
    answer = topic.send(body)
    assert answer.status == 200, answer.body
    (found,) = topic.receive_all(1)
    assert base64.b64decode(found["body_base64"]) == body
    assert topic.done(found)["acknowledged"] == 1


def test_body_that_no_broker_takes_is_refused_with_its_limit(topic: Topic) -> None:
    answer = topic.send(b"x" * ((4 << 20) + 1))
    assert answer.status == 400
    assert "4194304" in answer.json["error"]
    answer = topic.send(b"x" * ((8 << 20) + 1))
    assert (answer.status, answer.json["error"]) == (413, "the body may have 8388608 bytes")


# -- leased, acknowledged, come again ----------------------------------------------------------------


def test_message_that_is_not_acknowledged_comes_again_and_its_group_goes_no_further(
    topic: Topic,
) -> None:
    before = topic.committed()
    topic.send(b"slow")
    (found,) = topic.receive_all(1, lease=2)
    assert topic.receive() == []
    assert topic.committed() == before
    (again,) = topic.receive_all(1)
    assert (again["message_id"], again["deliveries"]) == (found["message_id"], 2)
    assert topic.done(again) == {"acknowledged": 1, "unknown": []}
    assert topic.committed() == before + 1
    assert topic.done(found)["unknown"] == [found["receipt"]]


def test_acknowledged_out_of_order_the_position_waits_for_the_oldest(topic: Topic) -> None:
    before = topic.committed()
    for number in range(4):
        topic.send(f"{number}".encode(), ordering_key="one queue")
    found = topic.receive_all(4)
    assert [each["body"] for each in found] == ["0", "1", "2", "3"]
    topic.done(*found[1:])
    assert topic.committed() == before
    topic.done(found[0])
    assert topic.committed() == before + 4


def test_acknowledged_by_itself_it_does_not_come_again(topic: Topic) -> None:
    before = topic.committed()
    topic.send(b"once")
    (found,) = topic.receive_all(1, ack="auto", lease=1)
    wait_until(lambda: topic.committed() == before + 1, 10, "the position moves")
    time.sleep(1.5)  # longer than its lease: nothing to wait for
    assert topic.receive() == []
    assert topic.done(found)["unknown"] == [found["receipt"]]


def test_two_who_ask_at_once_get_different_messages(topic: Topic) -> None:
    topic.send_json(*({"body": str(number)} for number in range(40)))
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: found.extend(topic.receive_all(10, max=5)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receipts = [each["receipt"] for each in found]
    assert len(receipts) >= 30 and len(set(receipts)) == len(receipts)


def test_who_goes_away_while_waiting_takes_no_message_along(topic: Topic) -> None:
    path = topic.path(group=topic.group, wait=20, lease=60)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", topic.port.port)) as gone:
        gone.sendall(head.encode())
        gone.settimeout(0.5)
        with pytest.raises(TimeoutError):
            gone.recv(1)
    topic.send(b"for somebody else")
    (found,) = topic.receive_all(1)
    assert found["body"] == "for somebody else"


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "body", "status", "error"),
    [
        ("application/json", b"{", 400, "no array of messages"),
        ("application/json", b'{"body": "x"}', 400, "no array of messages"),
        ("application/json", b"[]", 400, "1 to 1000 messages"),
        ("application/json", b'[{"boddy": "x"}]', 400, "boddy"),
        ("application/json", b'[{"tags": "A"}]', 400, "body or body_base64"),
        ("application/json", b'[{"body_base64": "%%%"}]', 400, "no base64"),
        ("application/json", b'[{"body": "x", "properties": {"KEYS": "k"}}]', 400, "KEYS"),
        ("application/json", b'[{"body": "x", "tags": "two words"}]', 400, "tags"),
        ("application/json", b"[" * 50_000, 400, "no array of messages"),
        ("application/json", b"\xff\xfe", 400, "no array of messages"),
        ("text/plain", b"", 400, "body"),
    ],
)
def test_message_that_cannot_be_sent_says_why(
    cluster: HttpCluster, content: str, body: bytes, status: int, error: str
) -> None:
    answer = Topic(cluster.names_http, "Wrong", "g").send(body, {"Content-Type": content})
    assert (answer.status, error in answer.json["error"]) == (status, True), answer.body


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ({}, 400, "which group reads?"),
        ({"group": "two words"}, 400, "two words"),
        ({"group": "g", "max": "0"}, 400, "max takes a number, 1 to 256"),
        ({"group": "g", "wait": "nan"}, 400, "wait takes a number"),
        ({"group": "g", "lease": "1e9"}, 400, "lease takes a number"),
        ({"group": "g", "ack": "never"}, 400, "ack takes later or auto"),
        ({"group": "g", "many": "1"}, 400, "there is no parameter 'many'"),
        ({"group": "g"}, 404, "No route info of this topic: NoSuchTopic"),
    ],
)
def test_read_that_cannot_be_done_says_why(
    cluster: HttpCluster, query: dict[str, str], status: int, error: str
) -> None:
    path = f"/api/topics/NoSuchTopic/messages?{urlencode(query)}"
    answer = cluster.names_http.ask(path)
    assert (answer.status, error in answer.json["error"]) == (status, True), answer.body


def test_all_three_want_the_token_on_this_machine_too(cluster: HttpCluster) -> None:
    for method in ("POST", "GET", "DELETE"):
        answer = cluster.names_http.ask(
            "/api/topics/T/messages?group=g", method=method, token=None, body=b"x"
        )
        assert answer.status == 401, method


def test_receipts_of_a_group_that_nobody_reads_here_are_gone(cluster: HttpCluster) -> None:
    answer = cluster.names_http.ask(
        "/api/topics/T/messages?group=nobody&receipts=broker-a:0:1", method="DELETE"
    )
    assert answer.status == 410


def test_process_stops_in_time_while_somebody_waits(cluster: HttpCluster) -> None:
    topic = Topic(cluster.names_http, "Stopping", "G_Stopping")
    wait_until(lambda: topic.send(b"x").status == 200, 30, "the topic is known")
    waiting = threading.Thread(target=lambda: _quietly(topic))
    waiting.start()
    time.sleep(0.5)
    begin = time.monotonic()
    assert cluster.names.terminate(10) == 0
    assert time.monotonic() - begin < 6
    waiting.join()
    cluster.names.start()


def _quietly(topic: Topic) -> None:
    try:
        topic.receive(wait=25, max=1)
        topic.receive(wait=25, max=1)
    except (OSError, AssertionError):
        pass  # the process stopped: that is what is tested
