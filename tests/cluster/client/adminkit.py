"""A table of answers that stands for every server, and an Admin that asks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tandemmq.cluster.client.errors import NoRoute
from tandemmq.cluster.client.reaching.routes import QueueCounts, TopicRoute
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import SystemClock

MASTER, SLAVE, OTHER = "10.0.0.1:10911", "10.0.0.1:10921", "10.0.0.2:10911"
FIRST, SECOND = "10.0.1.1:9876", "10.0.1.2:9876"
CLUSTER = {
    "brokerAddrTable": {
        "a": {"brokerAddrs": {"0": MASTER, "1": SLAVE}, "brokerName": "a", "cluster": "C1"},
        "b": {"brokerAddrs": {"0": OTHER}, "brokerName": "b", "cluster": "C2"},
    },
    "clusterAddrTable": {"C1": ["a"], "C2": ["b"]},
}
ROUTE = TopicRoute(
    (QueueCounts("a", 1, 1, 6), QueueCounts("b", 1, 1, 6)),
    {"a": {0: MASTER, 1: SLAVE}, "b": {0: OTHER}},
)
Answer = tuple[int, Any] | Command | Callable[[str, Command], "tuple[int, Any] | Command"]


class Servers:
    """Answers by request code, and every request as (address, code, header fields)."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {RequestCode.GET_BROKER_CLUSTER_INFO: (0, CLUSTER)}
        self.requests: list[tuple[str, int, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.routes: dict[str, TopicRoute] = {"T": ROUTE, "%RETRY%G": ROUTE}
        self.addresses = (FIRST, SECOND)
        self.clock = SystemClock()
        self.connections = self
        self.name_servers = self

    async def ask(self, command: Command) -> Command:
        return await self.request("name server", command, 0)

    async def fetch_route(self, topic: str) -> TopicRoute:
        if topic not in self.routes:
            raise NoRoute(topic, "test")
        return self.routes[topic]

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.requests.append((address, command.code, dict(command.ext or {})))
        body = bytes(command.body or b"")
        if body:
            is_json = body[:1] in (b"{", b"[")
            self.bodies.append(json.loads(body) if is_json else body)
        answer = self.answers.get(command.code, (0, None))
        found = answer(address, command) if callable(answer) else answer
        if isinstance(found, Command):
            return found
        code, what = found
        if isinstance(what, bytes):
            return command.reply(code, body=what)
        if code:
            return command.reply(code, str(what))
        fields = {k[1:]: v for k, v in (what or {}).items() if k.startswith("~")}
        tree = json.dumps(what).encode() if what and not fields else None
        return command.reply(code, ext=fields or None, body=tree)

    def to(self, code: RequestCode) -> list[str]:
        """Whom this was asked."""
        return [address for address, asked, _ in self.requests if asked == code]

    def fields(self, code: RequestCode) -> list[dict[str, str]]:
        return [fields for _, asked, fields in self.requests if asked == code]
