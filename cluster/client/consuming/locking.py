"""Locks that ordered consumers hold at brokers: one member of the group at a time per queue."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tandemmq.cluster.client.errors import BrokerUnreachable, ClientError
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance

log = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 1_000
LOCK_VALID_S: Final = 30.0  # how long we trust a lock without renewal; brokers keep it for 60 s
RENEW_INTERVAL_S: Final = 20.0


class QueueLocks:
    """Asks for locks and gives them back, one request per broker. Locks live on masters."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._owed: dict[MessageQueue, float] = {}  # not given back, until when that matters

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """The queues that are ours now. A broker that does not answer grants nothing."""
        parts = _by_broker(queues)
        for queue in self._owed.keys() & {each for part in parts.values() for each in part}:
            del self._owed[queue]  # it is ours again
        granted = await asyncio.gather(*(self._lock(name, part) for name, part in parts.items()))
        return set().union(*granted)

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        instance = self._instance
        try:
            address = await instance.master_address(broker_name, queues[0].topic)
            found = await calls.lock_queues(
                instance.connections, address, self._group, instance.client_id, queues,
                LOCK_TIMEOUT_MS,
            )  # fmt: skip
        except ClientError as problem:
            log.warning(
                "queues not locked group=%s broker=%s why=%s", self._group, broker_name, problem
            )
            return set()
        return found & set(queues)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back. One that stays is free when the broker has waited 60 s; settle() tries again."""
        parts = _by_broker(queues)
        await asyncio.gather(*(self._unlock(name, part) for name, part in parts.items()))

    async def settle(self) -> bool:
        """Give back what could not be given back: a new master goes by what it knows of the one before.

        Whether nothing is left.
        """
        now_s = asyncio.get_running_loop().time()
        owed = {queue: until_s for queue, until_s in self._owed.items() if now_s < until_s}
        self._owed.clear()
        if owed:
            await self.unlock(owed)
            self._owed = {queue: owed.get(queue, until_s) for queue, until_s in self._owed.items()}
        return not self._owed

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        instance = self._instance
        try:
            address = instance.brokers.master(broker_name)
            if address is None:
                raise BrokerUnreachable(broker_name, "no master is registered now")
            await calls.unlock_queues(
                instance.connections, address, self._group, instance.client_id, queues,
                LOCK_TIMEOUT_MS,
            )  # fmt: skip
        except ClientError as problem:
            log.warning(
                "queues not unlocked group=%s broker=%s why=%s", self._group, broker_name, problem
            )
            until_s = asyncio.get_running_loop().time() + LOCK_VALID_S
            self._owed |= dict.fromkeys(queues, until_s)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    parts: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        parts[queue.broker_name].append(queue)
    return parts
