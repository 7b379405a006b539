"""Who reads which queue of a topic: the members as a broker lists them, and what is this member's by that.

All members must plan with the same queues and the same members, or two of them read one queue for as long as they
disagree. A broker that restarts makes them disagree twice: it leaves the routes, which one member sees at once and
another when its timer looks; and it comes back with a list of those members that have spoken to it since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client.consuming.rebalance import Allocation, Change, plan, without
from tandemmq.cluster.client.errors import BrokerRefused
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.jobs import Jobs

AFTER_S: Final = 0.05  # no sooner than what it waits for is over


class AbsentBrokers:
    """Queues of brokers that left a topic's route a moment ago. No I/O, no clock.

    They count on for `for_s`: who reads the queues of the others stays the same, and a broker that restarts is back
    by then.
    """

    def __init__(self, for_s: float) -> None:
        self.for_s = for_s
        self._queues: dict[tuple[str, str], tuple[MessageQueue, ...]] = {}  # by topic, broker name
        self._since_s: dict[tuple[str, str], float] = {}  # of those that left

    def look(
        self, topic: str, queues: Iterable[MessageQueue], present: Collection[str], now_s: float
    ) -> frozenset[MessageQueue]:
        """Those that count though their broker is not in the route.

        queues  readable ones of the route; present: names of all brokers in it; now_s: monotonic
        """
        by_name: dict[str, list[MessageQueue]] = {name: [] for name in present}
        for queue in queues:
            by_name.setdefault(queue.broker_name, []).append(queue)
        for name, own in by_name.items():
            self._queues[topic, name] = tuple(own)
            self._since_s.pop((topic, name), None)
        found: list[MessageQueue] = []
        for place in [each for each in self._queues if each[0] == topic and each[1] not in by_name]:
            if now_s - self._since_s.setdefault(place, now_s) < self.for_s:
                found += self._queues[place]
            else:
                del self._queues[place], self._since_s[place]
        return frozenset(found)

    def misses(self, topic: str) -> bool:
        """Whether a broker of the topic was not there at the last look, and counts on."""
        return any(each == topic for each, _ in self._since_s)


@dataclass(slots=True, eq=False)
class Sharing:
    """How a group shares the queues, as one member sees it.

    wake  called when queues that counted on do so no more: plan again
    """

    instance: ClientInstance
    group: str
    allocation: Allocation
    jobs: Jobs
    wake: Callable[[], None]
    _members: frozenset[str] = field(default=frozenset(), init=False)  # as they were believed last
    _waits: set[str] = field(
        default_factory=set, init=False
    )  # topics whose absent brokers somebody waits for
    _absent: AbsentBrokers = field(init=False)

    def __post_init__(self) -> None:
        # a member that looks for routes by its timer sees a change that late
        self._absent = AbsentBrokers(self.instance.config.route_interval_ms / 1000)

    async def plan(self, topic: str, held: Iterable[MessageQueue]) -> Change | None:
        """What to begin to read and what not to read any more; None: keep what we have, ask again soon.

        Raises NoRoute, NoNameServer, BrokerRefused, BrokerUnreachable, CallTimedOut, BrokerAnswerBroken.
        """
        instance, mine = self.instance, self.instance.client_id
        held = list(held)
        missed = self._absent.misses(
            topic
        )  # it may be back by now, and its time over by what we know
        route = await (instance.fetch_route if missed else instance.read_route)(topic)
        queues = route.read_queues(topic)
        if not queues:
            return None
        now_s = asyncio.get_running_loop().time()
        absent = self._absent.look(topic, queues, route.addresses.keys(), now_s)
        names = sorted({queue.broker_name for queue in queues})
        lasting = [name for name in names if not instance.came_back(name)]
        asked = instance.rng.choice(lasting or names)
        address, _ = await instance.reader_address(asked, topic)
        try:
            members = await calls.group_members(
                instance.connections, address, self.group, instance.config.call_timeout_ms
            )
        except BrokerRefused:
            members = []
        if mine not in members:
            # that broker has not seen our heartbeat (it restarted, or the route is new): say it
            # again first
            instance.heartbeat_soon()
            return None
        if instance.came_back(asked) and not self._members <= set(members):
            return None  # others have not spoken to it yet; it may be this request that found it restarted
        self._members = frozenset(members)
        if absent and topic not in self._waits:
            self._waits.add(topic)
            self.jobs.start(f"absent brokers of {topic}", self._wake_after(topic))
        change = plan(topic, [*queues, *absent], members, mine, held, self.allocation)
        return None if change is None else without(change, absent, held)

    async def _wake_after(self, topic: str) -> None:
        await asyncio.sleep(self._absent.for_s + AFTER_S)
        self._waits.discard(topic)
        self.wake()
