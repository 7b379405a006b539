"""Several independent name servers: ask one, keep it while it answers, else the next."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tandemmq.cluster.client.config import is_lookup, name_servers
from tandemmq.cluster.client.errors import (
    NAME_SERVER_ADVICE,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    NoNameServer,
    NoRoute,
)
from tandemmq.cluster.client.reaching.calls import Caller
from tandemmq.cluster.client.reaching.lookup import fetch_page
from tandemmq.cluster.client.reaching.routes import TopicRoute, parse_route
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command

log = logging.getLogger(__name__)

#: what every name server answers, and no broker
OWN_REQUESTS: Final = frozenset(
    {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}
)
NOT_A_BROKER: Final = "Give a name server's address: they listen on 9876 unless told otherwise."
LOOKUP_INTERVAL_S: Final = 120.0  # RocketMQ's for its address server

Fetch = Callable[[str, int], Awaitable[str]]


class NameServers:
    """Requests to whichever name server answers.

    Name servers do not know each other; brokers register with all.

    addresses  "host:port", shuffled once so that many clients spread over them; an "http://..."
               element is asked for a list of them before the first request, and every two minutes
    fetch      reads such a page; for tests
    """

    def __init__(
        self,
        addresses: Sequence[str],
        caller: Caller,
        rng: random.Random,
        timeout_ms: int,
        fetch: Fetch = fetch_page,
    ) -> None:
        self._fixed = [address for address in addresses if not is_lookup(address)]
        self._pages = [address for address in addresses if is_lookup(address)]
        self._fetch = fetch
        self._rng = rng
        self._addresses = list(self._fixed)
        rng.shuffle(self._addresses)
        self._caller = caller
        self._timeout_ms = timeout_ms
        self._current = 0
        self._looked_up_s: float | None = None
        self._lookup: asyncio.Task[list[str]] | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers known now, looked up ones included."""
        return tuple(self._addresses)

    async def ask(self, command: Command) -> Command:
        """The first answer, whatever its code.

        Raises NoNameServer when every address fails, naming each failure.
        """
        failures = await self._look_up() if self._pages else []
        advices: dict[str, None] = {}
        for _ in range(len(self._addresses)):
            address = self._addresses[self._current % len(self._addresses)]
            try:
                answer = await self._caller.request(address, command, self._timeout_ms)
                if not _of_another_role(command, answer):
                    return answer
                failures.append(f"{address} is no name server, it answers as a broker does")
                advices[NOT_A_BROKER] = None
                self._current = (self._current + 1) % len(self._addresses)
            except (BrokerUnreachable, CallTimedOut) as problem:
                failures.append(problem.said)
                if isinstance(problem, BrokerUnreachable) and problem.about_encryption:
                    advices[problem.advice] = None
                self._current = (self._current + 1) % len(self._addresses)
        raise NoNameServer(
            f"no name server answers: {'; '.join(failures) or 'none is known'}",
            " ".join(advices) or NAME_SERVER_ADVICE,
        )

    async def _look_up(self) -> list[str]:
        """Read the pages when it is time; what failed, as text. Old addresses stay in use then."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_up_s is not None and now_s - self._looked_up_s < LOOKUP_INTERVAL_S:
            return []
        if self._lookup is None:  # callers at the same time share one look
            self._lookup = asyncio.create_task(self._read_pages(), name="name server lookup")
            self._lookup.add_done_callback(self._looked_up)
        return list(await asyncio.shield(self._lookup))

    def _looked_up(self, task: asyncio.Task[list[str]]) -> None:
        self._lookup = None
        if not task.cancelled():
            task.exception()  # every waiter got it

    async def _read_pages(self) -> list[str]:
        found, failures = list(self._fixed), []
        for page in self._pages:
            try:
                found += name_servers(await self._fetch(page, self._timeout_ms))
            except (OSError, TimeoutError, ValueError, NoNameServer) as problem:
                failures.append(
                    f"{page} gave no address list: {str(problem) or type(problem).__name__}"
                )
        if failures:
            log.warning("name server lookup failed why=%s", "; ".join(failures))
        if not failures or not self._addresses:
            found = list(dict.fromkeys(found))
            if set(found) != set(self._addresses):
                self._rng.shuffle(found)
                self._addresses = found
                log.info("name servers looked up addresses=%s", ",".join(sorted(found)))
        if not failures:
            self._looked_up_s = asyncio.get_running_loop().time()
        return failures

    def close(self) -> None:
        """Stop a look-up under way."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route.

        Raises NoRoute (the topic is unknown there), NoNameServer, BrokerRefused.
        """
        answer = await self.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not (answer.code or answer.body):
            raise NoRoute(
                topic,
                "the name server has no broker for it: does the topic exist, is its broker "
                "running and registered there?",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(
                answer.code, answer.remark, f"name server {self._addresses[self._current]}", topic
            )
        return parse_route(answer.body or b"")


def _of_another_role(command: Command, answer: Command) -> bool:
    return command.code in OWN_REQUESTS and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
