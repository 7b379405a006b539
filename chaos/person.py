"""The person whom a classic group needs after a power cut: acts by docs/howto/classic-replication.md, and only by it.

A slave that ends beyond its master, or differs from it, stops and says so. Which log is kept goes by what the mode
promises: with SYNC_MASTER and ASYNC_FLUSH the slave's, which has what was acknowledged and the master's disk had not;
else the master's. What is given up by this is judged: nothing of it may have been acknowledged (chaos.verdict).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from typing import Final

from tandemmq.chaos.classichosts import SLAVE, ClassicHosts
from tandemmq.chaos.gathering import PERSON_EVENT
from tandemmq.chaos.groups import ReplicaProcess, SeenGroup
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.verdict import MADE_MASTER

CUT: Final = "cut"
SEEDED: Final = "seeded"
WORD: Final = "cut-to-master"
ASKED: Final = re.compile(r"a person must act why=(.*)")
#: what the how-to has an answer for; anything else a run ends with
FORKED: Final = ("two logs", "it has what we lost or never had", "it must be seeded anew")
LOOK_S: Final = 0.1
WHOLE_S: Final = 40.0
STOP_S: Final = 15.0


class Person:
    """until_whole() after hosts came back. count: told of each act, by its name."""

    def __init__(
        self,
        hosts: ClassicHosts,
        journal: Journal,
        rng: random.Random,
        count: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._journal = journal
        self._rng = rng
        self._count = count
        self._read = {each.number: 0 for each in hosts.replicas}  # of each log, in bytes

    async def until_whole(self) -> None:
        """Look at the hosts until all follow their master. Raises ProcessBroken when that takes too long."""
        hosts = self._hosts
        deadline = time.monotonic() + WHOLE_S
        while True:
            for replica in hosts.replicas:
                if not replica.alive:
                    raise replica.broken(f"ended by itself ({replica.code})")
            view = await hosts.view()
            if view is not None and view.master:
                if len(view.in_sync) == len(hosts.replicas) == len(view.members):
                    return
                if await self._attended(view):
                    deadline = time.monotonic() + WHOLE_S
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {each.name}\n{each.tail()}" for each in hosts.replicas)
                raise ProcessBroken(f"nobody asks a person, and it is not whole: {view}\n{tails}")
            await asyncio.sleep(LOOK_S)

    async def _attended(self, view: SeenGroup) -> bool:
        """Act for one who asks; whether anybody did."""
        assert view.master is not None
        master = self._hosts.replica_at(view.master)
        asking = [
            each for each in self._hosts.replicas if each is not master and await self._asks(each)
        ]
        if not asking:
            return False
        plan = self._hosts.plan
        if plan.synchronous and not plan.sync_flush:
            ends = {each.number: await self._hosts.end_of(each) for each in asking}
            await self._exchange(master, max(asking, key=lambda each: ends[each.number]))
        else:
            await self._give_up(asking[0])
        return True

    async def _asks(self, replica: ReplicaProcess) -> bool:
        """Whether its log says that it is one of two."""
        if not await self._hosts.alarms_of(replica):
            return False
        with replica.log.open("rb") as log:
            log.seek(self._read[replica.number])
            said = ASKED.findall(log.read().decode(errors="replace"))
        return bool(said) and any(each in said[-1] for each in FORKED)

    async def _exchange(self, master: ReplicaProcess, heir: ReplicaProcess) -> None:
        """ "The master is gone for good": its slave is made the master, and it the slave."""
        hosts = self._hosts
        await self._stop(master)
        await self._stop(heir)
        hosts.change_settings(heir, brokerRole=hosts.setting(master, "brokerRole"))
        heir.launch()
        self._note(heir, MADE_MASTER)
        await self._serves(heir)
        hosts.change_settings(master, brokerRole=SLAVE, brokerId=hosts.setting(heir, "brokerId"))
        await self._without_its_own(master)

    async def _give_up(self, slave: ReplicaProcess) -> None:
        await self._stop(slave)
        await self._without_its_own(slave)

    async def _without_its_own(self, replica: ReplicaProcess) -> None:
        """Start a stopped one as a slave that gives up what its master has not."""
        if self._rng.random() < 0.5:
            (replica.store / WORD).touch()
            self._note(replica, CUT)
        else:
            away = self._hosts.move_store_away(replica)
            self._note(replica, SEEDED, away=str(away))
        replica.launch()

    async def _serves(self, replica: ReplicaProcess) -> None:
        """Wait until the name server shows it as the master. Raises ProcessBroken."""
        deadline = time.monotonic() + WHOLE_S
        while True:
            view = await self._hosts.view()
            if view is not None and view.master == replica.address:
                return
            if not replica.alive or time.monotonic() > deadline:
                raise replica.broken("was made the master and is not")
            await asyncio.sleep(LOOK_S)

    async def _stop(self, replica: ReplicaProcess) -> None:
        await replica.terminate(STOP_S)
        self._read[replica.number] = replica.log.stat().st_size

    def _note(self, replica: ReplicaProcess, how: str, **fields: object) -> None:
        self._count(f"a person: {how}")
        self._journal.event(
            PERSON_EVENT,
            process=replica.name,
            how=how,
            since_ns=self._hosts.cut_ns,
            **fields,
        )
