"""Looks at the cluster again and again, and keeps one snapshot for all viewers.

Three looks, each at its own pace: the servers, the tables of topics and groups, and the groups' progress. A look that
takes long is made seldom: the next one waits at least as long as the last one took, several times over. While nobody
views, only the servers are looked at, and seldom: so that the story has no gaps.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from tandemmq.cluster.client import (
    Admin,
    BrokerMembers,
    ClientConfig,
    ClientError,
    EpochHistory,
    GroupProgress,
    GroupSettings,
    NoController,
    ReplicaSet,
    TimerCounts,
    TopicSettings,
)
from tandemmq.cluster.process import running
from tandemmq.console.seen import servers, snapshot, story
from tandemmq.console.seen.snapshot import Rates, Snapshot
from tandemmq.doctor.asking import cluster_facts
from tandemmq.doctor.clusters import cluster_findings
from tandemmq.doctor.findings import in_order
from tandemmq.storage import Clock, SystemClock, offset_message_id, pack_host

log = logging.getLogger(__name__)

ASK_MS: Final = 2_000
VIEWED_S: Final = 20.0  # after the last page that somebody is not there any more
SERVERS_S: Final = 2.0
SERVERS_IDLE_S: Final = 10.0
CONTROLLERS_S: Final = 4.0  # between two questions whether there is a controller by now
TABLES_S: Final = 15.0
PROGRESS_S: Final = 5.0
DOCTOR_S: Final = 30.0
REST: Final = 5  # a look that took a second is followed by so many seconds of rest
RATES_MAX: Final = 150  # five minutes of two seconds
FIRSTS_S: Final = 10.0  # between two questions when the first message of an epoch came

_NUMBERED: Final = re.compile(r"\[Errno \d+\] ")  # says nothing to who reads the words after it
_Told = TypeVar("_Told")


class Watcher:
    """Keeps `seen`, the newest snapshot, while run() runs.

    config  how to reach the cluster
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.seen = Snapshot()
        self._clock = clock or SystemClock()
        self._viewed_s = float("-inf")
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._unsettled = asyncio.Event()  # something happened: what the doctor said may be old
        self._story: deque[story.Entry] = deque(maxlen=story.ENTRIES_MAX)
        self._rates: deque[Rates] = deque(maxlen=RATES_MAX)
        self._clusters: dict[str, str] = {}  # of every broker name that was ever seen
        self._controllers: tuple[str, ...] = ()
        self._none_s = float("-inf")  # when no broker named a controller
        self._histories: dict[str, EpochHistory] = {}
        self._firsts: dict[tuple[str, int], int] = {}
        self._firsts_s = float("-inf")
        self._settings: dict[str, dict[str, GroupSettings]] = {}
        self._progress: dict[str, dict[str, GroupProgress]] = {}
        self.admin = Admin(config=config, timeout_ms=ASK_MS)

    def viewed(self) -> None:
        """Somebody looks at a page now."""
        idle = not self._is_viewed()
        self._viewed_s = time.monotonic()
        if idle:
            self._wake.set()
            self._wake = asyncio.Event()

    async def changed(self, version: int, within_s: float) -> int:
        """The version of the snapshot, as soon as it is another than this one, or after so long."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self.seen.version != version)
        except TimeoutError:
            pass  # nothing changed
        return self.seen.version

    async def touch(self) -> None:
        """Have viewers look again: something that is not in the snapshot changed."""
        await self._publish(self.seen)

    async def run(self) -> None:
        """Look until cancelled."""
        async with (
            self.admin,
            running(
                servers=lambda: self._again(self._servers, SERVERS_S, SERVERS_IDLE_S),
                tables=lambda: self._again(self._tables, TABLES_S, None),
                progress=lambda: self._again(self._group_progress, PROGRESS_S, None),
                doctor=lambda: self._again(self._doctor, DOCTOR_S, None, self._unsettled),
            ),
        ):
            await asyncio.Event().wait()

    async def _again(
        self,
        look: Callable[[], Awaitable[None]],
        every_s: float,
        idle_s: float | None,
        sooner: asyncio.Event | None = None,
    ) -> None:
        """idle_s: how often while nobody views; None: not at all. sooner: when set it is time, too."""
        while True:
            if self._is_viewed() or idle_s is not None:
                began = time.monotonic()
                await look()
                took_s = time.monotonic() - began
                every = every_s if self._is_viewed() else idle_s or every_s
                pause_s = max(every - took_s, took_s * REST)
            else:
                pause_s = SERVERS_IDLE_S
            await self._pause(pause_s, sooner)

    async def _pause(self, pause_s: float, sooner: asyncio.Event | None) -> None:
        """Shorter when somebody comes to view, or when it is time before."""
        waits = [asyncio.ensure_future(self._wake.wait())]
        if sooner is not None:
            waits.append(asyncio.ensure_future(sooner.wait()))
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if sooner is not None:
            sooner.clear()

    def _is_viewed(self) -> bool:
        return time.monotonic() - self._viewed_s < VIEWED_S

    async def _publish(self, seen: Snapshot) -> None:
        async with self._changed:
            self.seen = replace(seen, version=self.seen.version + 1)
            self._changed.notify_all()

    # --- servers ---

    async def _servers(self) -> None:
        admin, before = self.admin, self.seen
        now_ms = self._clock.now_ms()
        try:
            registered = dict(await admin.cluster())
        except (ClientError, OSError) as problem:
            await self._publish(replace(self.seen, problem=str(problem) or repr(problem)))
            return
        self._clusters.update({name: each.cluster for name, each in registered.items()})
        sets, untold = await self._sets(registered)
        for name in sets.keys() - registered.keys():  # no member of it is registered now
            registered[name] = BrokerMembers(name, self._clusters[name], {})
        addresses = {at for each in registered.values() for at in each.addresses.values()}
        addresses |= {each.address for group in sets.values() for each in group.replicas.values()}
        statuses = await self._each(addresses, admin.broker_status)
        alone = {
            each.master for name, each in registered.items()
            if name not in sets and each.master and len(each.addresses) > 1
        }  # fmt: skip
        links = {
            at: told
            for at, told in (await self._each(alone, admin.replica_state)).items()
            if not isinstance(told, str)
        }
        brokers = servers.groups_of(registered, statuses, sets, links)
        happened = story.happened(before.brokers, brokers, now_ms)
        self._story += happened
        if happened:
            self._unsettled.set()
        for entry in happened:
            log.info("seen group=%s tone=%s what=%s", entry.group, entry.tone, entry.text)
        members = [member for group in brokers for member in group.members]
        self._rates.append(
            Rates(
                now_ms,
                sum(each.put_per_second or 0 for each in members if each.role == servers.MASTER),
                sum(each.get_per_second or 0 for each in members),
            )
        )
        await self._publish(
            replace(
                self.seen,
                taken_ms=now_ms,
                problem="",
                name_servers=admin.name_servers,
                controllers=self._controllers,
                controller_problem=untold,
                brokers=brokers,
                rates=tuple(self._rates),
                story=tuple(self._story),
            )
        )
        if await self._reigns(brokers):
            reigns = story.reigns_of(self._histories, self._firsts)
            await self._publish(replace(self.seen, reigns=reigns))

    async def _sets(
        self, registered: Mapping[str, BrokerMembers]
    ) -> tuple[dict[str, ReplicaSet], str]:
        """The groups as the controllers have them, and why they do not tell."""
        if not self._controllers:
            if time.monotonic() - self._none_s < CONTROLLERS_S:
                return {}, ""
            try:
                self._controllers = await self.admin.controllers()
            except NoController:
                self._none_s = time.monotonic()
                return {}, ""
            except (ClientError, OSError) as problem:
                return {}, str(problem)
        names = sorted({*registered, *self._clusters})
        try:
            found = await self.admin.replica_sets(names, controllers=self._controllers)
        except (ClientError, OSError) as problem:
            self._controllers = ()  # they may be others by now
            return {}, str(problem)
        return found, ""

    async def _reigns(self, brokers: Iterable[servers.BrokerGroup]) -> bool:
        """Ask who wrote what where an epoch is new; whether anything is."""
        new = False
        for group in brokers:
            master = group.master
            if master is None or not group.controlled or not master.epoch:
                continue
            known = self._histories.get(group.name)
            if known is not None and known.epochs and known.epochs[-1].epoch == master.epoch:
                continue
            try:
                self._histories[group.name] = await self.admin.epoch_history(master.address)
                new = True
            except (ClientError, OSError) as problem:
                log.debug("no epochs broker=%s why=%s", master.address, problem)
        if time.monotonic() - self._firsts_s > FIRSTS_S or new:
            self._firsts_s = time.monotonic()
            new |= await self._first_messages(brokers)
        return new

    async def _first_messages(self, brokers: Iterable[servers.BrokerGroup]) -> bool:
        """When the first message of each epoch was stored, as far as it is there."""
        new = False
        masters = {group.name: group.master for group in brokers}
        for name, history in self._histories.items():
            master = masters.get(name)
            if master is None:
                continue
            host, _, port = master.address.rpartition(":")
            for each in history.epochs:
                if (name, each.epoch) in self._firsts:
                    continue
                try:
                    place = offset_message_id(
                        pack_host(host.strip("[]"), int(port)), each.start_offset
                    )
                    message = await self.admin.message_by_offset_id(place)
                except (ClientError, OSError, ValueError):
                    continue  # deleted by now, or a name that is no address
                if message is not None:
                    self._firsts[name, each.epoch] = message.store_ms
                    new = True
        return new

    async def _doctor(self) -> None:
        try:
            found = cluster_findings(await cluster_facts(self.config))
        except (ClientError, OSError, ValueError) as problem:
            log.debug("the doctor cannot tell why=%s", problem)
            return
        ordered = tuple(in_order(found))
        await self._publish(replace(self.seen, doctor=ordered, doctor_ms=self._clock.now_ms()))

    # --- tables and progress ---

    async def _tables(self) -> None:
        admin = self.admin
        masters = await self._masters()
        topics: dict[str, Mapping[str, TopicSettings]] = {}
        timers: dict[str, TimerCounts] = {}
        for address in masters:  # one after the other: each is a large answer to take in
            table = await self._one(address, admin.all_topic_settings)
            if not isinstance(table, str):
                topics[address] = table
            groups = await self._one(address, admin.all_group_settings)
            if not isinstance(groups, str):
                self._settings[address] = groups
            counts = await self._one(address, admin.timers)
            if not isinstance(counts, str):
                timers[address] = counts
        self._forget(masters)
        if not topics:
            return
        words = frozenset(
            word for group in self.seen.brokers for word in (group.name, group.cluster)
        )
        found = snapshot.topics_of(topics, words)
        now_ms = self._clock.now_ms()
        await self._publish(replace(self.seen, topics=found, topics_ms=now_ms, timers=timers))
        await self._publish_groups()

    async def _group_progress(self) -> None:
        masters = await self._masters()
        for address in masters:
            told = await self._one(address, self.admin.broker_progress)
            if not isinstance(told, str):
                self._progress[address] = told
        self._forget(masters)
        if masters:
            await self._publish_groups()

    async def _publish_groups(self) -> None:
        names = frozenset(each.name for each in self.seen.topics)
        found = snapshot.groups_of(self._settings, self._progress, names)
        await self._publish(replace(self.seen, groups=found, groups_ms=self._clock.now_ms()))

    def _forget(self, masters: Iterable[str]) -> None:
        kept = set(masters)
        for table in (self._settings, self._progress):
            for address in table.keys() - kept:
                del table[address]

    async def _masters(self) -> list[str]:
        """Addresses of who leads, as the name servers have it: nothing when they do not answer."""
        try:
            return sorted((await self.admin.masters()).values())
        except (ClientError, OSError):
            return []

    async def _each(
        self, addresses: Iterable[str], ask: Callable[[str], Awaitable[_Told]]
    ) -> dict[str, _Told | str]:
        order = sorted(addresses)
        told = await asyncio.gather(*(self._one(each, ask) for each in order))
        return dict(zip(order, told, strict=True))

    async def _one(self, address: str, ask: Callable[[str], Awaitable[_Told]]) -> _Told | str:
        """What a broker answers, or why it does not: in short, its address stands beside it."""
        try:
            return await ask(address)
        except ClientError as problem:
            return _NUMBERED.sub("", problem.said.rpartition(f"{address}: ")[2])
        except OSError as problem:
            return str(problem) or repr(problem)
