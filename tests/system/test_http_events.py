"""Server-sent events of a live cluster: its state first, then topics, masters and sets as they change, by ids."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest
from http_ports import TOKEN, WAIT_S, HttpCluster, Port, http_cluster

from tandemmq.chaos.processes import wait_until
from tandemmq.plane.events import READERS_MAX

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCluster]:
    with http_cluster(tmp_path_factory.mktemp("events")) as found:
        yield found


@dataclass(frozen=True)
class Heard:
    id: str
    name: str
    data: dict[str, Any]


@dataclass
class Listener:
    """Takes events in a thread until it is told to stop."""

    port: Port
    last_id: str | None = None
    heard: list[Heard] = field(default_factory=list)
    head: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def run(self) -> None:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        self._connection.request("GET", "/api/events", headers=headers)
        answer = self._connection.getresponse()
        self.status, self.head = answer.status, dict(answer.getheaders())
        fields: dict[str, str] = {}
        try:
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "event" in fields:
                    self.heard.append(
                        Heard(fields["id"], fields["event"], json.loads(fields["data"]))
                    )
                    fields = {}
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass  # the test has heard enough, and closed it

    def start(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port.port, timeout=60)
        self._connection.connect()
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self.run)
        self._thread.start()

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def wait(self, name: str, within_s: float = 30, /, **data: Any) -> Heard:
        found: list[Heard] = []

        def came() -> bool:
            found[:] = [
                each
                for each in self.heard
                if each.name == name and all(each.data[key] == value for key, value in data.items())
            ]
            return bool(found)

        wait_until(came, within_s, f"event {name} {data}: heard {self.heard}")
        return found[0]


@contextmanager
def listening(port: Port, last_id: str | None = None) -> Iterator[Listener]:
    listener = Listener(port, last_id)
    listener.start()
    try:
        yield listener
    finally:
        listener.stop()


def create(port: Port, topic: str) -> None:
    body = json.dumps({"clusterName": "TestCluster", "topic": topic}).encode()
    answer = port.ask("/api/admin/updateTopic", method="POST", body=body)
    assert answer.status == 200, answer.body


def test_state_comes_first_then_topics_and_whoever_was_away_misses_nothing(
    cluster: HttpCluster,
) -> None:
    port = cluster.names_http

    def registered() -> bool:
        answer = port.ask("/api/admin/clusterList")
        return answer.status == 200 and len(answer.json["result"]) == 2

    wait_until(registered, WAIT_S, "both replicas are registered")
    with listening(port) as listener:
        state = listener.wait("state")
        assert listener.head["Content-Type"].startswith("text/event-stream")
        master_id = state.data["groups"][0]["master_id"]  # whichever came first
        assert {each["broker_id"] for each in state.data["members"]} == {0, 3 - master_id}
        create(port, "FirstTopic")
        first = listener.wait("topics", created=["FirstTopic"])
    create(port, "WhileAway")
    with listening(port, first.id) as back:
        back.wait("topics", created=["WhileAway"])
        assert [each.name for each in back.heard if each.name == "state"] == []
    with listening(port, "other-17") as stranger:
        assert stranger.wait("state").data["topic_count"] == state.data["topic_count"] + 2


def test_takeover_is_told_with_master_set_and_registrations_as_described(
    cluster: HttpCluster,
) -> None:
    kinds = cluster.names_http.get("/api/openapi.json")["paths"]["/api/events"]["get"]["x-events"]
    master = next(
        broker
        for broker, port in zip(cluster.brokers, cluster.brokers_http, strict=True)
        if port.get("/healthz")["role"] != "SLAVE"
    )
    with listening(cluster.names_http) as listener, listening(cluster.controller_http) as blind:
        state = listener.wait("state")
        before = state.data["groups"][0]["master_id"]
        os.kill(master.pid, signal.SIGSTOP)
        try:
            role = listener.wait("role", 60, master_id_before=before)
            assert role.data["epoch"] > state.data["groups"][0]["epoch"]
            listener.wait("sync-state-set", 60, in_sync=[role.data["master_id"]])
            listener.wait("registered", 60, broker_id=0)
        finally:
            os.kill(master.pid, signal.SIGCONT)
        listener.wait("sync-state-set", 60, in_sync=[1, 2])
        for each in listener.heard:
            jsonschema.validate(each.data, kinds[each.name])
        assert blind.status == 503  # that controller was told no name server


def test_so_many_may_listen_and_no_more(cluster: HttpCluster) -> None:
    port = cluster.brokers_http[0]
    listeners = [Listener(port) for _ in range(READERS_MAX)]
    try:
        for each in listeners:
            each.start()
        for each in listeners:
            each.wait("state")
        refused = port.ask("/api/events")
        assert (refused.status, refused.json["hint"]) == (503, "ask another process")
        assert port.ask("/healthz", token=None).status == 200
    finally:
        for each in listeners:
            each.stop()


def test_page_of_another_origin_hears_nothing(cluster: HttpCluster) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert cluster.names_http.ask("/api/events", token=None, headers=headers).status == 403
    assert cluster.names_http.ask("/api/events", token=None, host="evil.example").status == 403
    assert cluster.names_http.ask("/api/events", token=TOKEN[:-1]).status == 401


def test_process_stops_in_time_though_somebody_listens(cluster: HttpCluster) -> None:
    with listening(cluster.names_http) as listener:
        listener.wait("state")
        assert cluster.names.terminate(8) == 0
    cluster.names.start()
