"""Several independent name servers: ask one, keep it while it answers, else the next."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from cluster.client.calls import Caller
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    NoNameServer,
    NoRoute,
)
from cluster.client.routes import TopicRoute, parse_route
from cluster.remoting.codes import RequestCode, ResponseCode
from cluster.remoting.command import Command

log = logging.getLogger(__name__)


class NameServers:
    """Requests to whichever name server answers.

    Name servers do not know each other; brokers register with all.

    addresses  "host:port", shuffled once so that many clients spread over them
    """

    def __init__(
        self, addresses: Sequence[str], caller: Caller, rng: random.Random, timeout_ms: int
    ) -> None:
        self._addresses = list(addresses)
        rng.shuffle(self._addresses)
        self._caller = caller
        self._timeout_ms = timeout_ms
        self._current = 0

    async def ask(self, command: Command) -> Command:
        """The first answer, whatever its code.

        Raises NoNameServer when every address fails, naming each failure.
        """
        failures: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                return await self._caller.request(address, command, self._timeout_ms)
            except (BrokerUnreachable, CallTimedOut) as problem:
                failures.append(str(problem))
                self._current = (self._current + 1) % len(self._addresses)
        raise NoNameServer(f"no name server answers, is one running? {'; '.join(failures)}")

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route.

        Raises NoRoute (the topic is unknown there), NoNameServer, BrokerRefused.
        """
        answer = await self.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not (answer.code or answer.body):
            raise NoRoute(topic, "the name server has no broker for it")
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark, "name server")
        return parse_route(answer.body or b"")
