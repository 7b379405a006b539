"""Two controllers that keep the record in one etcd: the real store, reigns and core, in the simulated network.

What runs of cluster/controller is EtcdStore, which decides who leads and fences what is written, and Reign, which holds
effects back until their record is durable; this module stands for server.py around them.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.control import CLUSTER, GROUP, Controller
from tandemmq.chaos.sim.etcd import Client, Etcd
from tandemmq.chaos.sim.loop import ProcessLoop
from tandemmq.chaos.sim.network import Message, SimulatedLink
from tandemmq.cluster.controller.config import ControllerConfig
from tandemmq.cluster.controller.etcdstore import EtcdStore
from tandemmq.cluster.controller.reign import Reign
from tandemmq.cluster.controller.store import Leader, LeadershipLost
from tandemmq.replication import election as e
from tandemmq.replication.election import GroupRecord

if TYPE_CHECKING:
    from tandemmq.chaos.sim.network import Endpoint
    from tandemmq.chaos.sim.session import Session
    from tandemmq.chaos.sim.world import World

logging.getLogger("tandemmq.cluster").addHandler(
    logging.NullHandler()
)  # what goes wrong here is meant to

COUNT: Final = 2
PREFIX: Final = "/tandemmq/controller/sim/"
MISHAP_US: Final = (100_000, 900_000)  # between two of them


class EtcdController(Controller):
    """One of them: a process that leads, or says to nobody anything."""

    make_store: type[EtcdStore] = EtcdStore
    make_reign: type[Reign] = Reign

    def __init__(
        self, world: World, drift: float, host: int, etcd: Etcd, rng: random.Random
    ) -> None:
        self.etcd = etcd
        self.loop = ProcessLoop(world, drift)  # type: ignore[abstract]  # no sockets, no threads
        self.name = ""
        self.store: EtcdStore | None = None
        self.reign: Reign | None = None
        super().__init__(world, drift)
        self.clock_us = rng.randrange(1_000_000_000)
        self.host = host

    def reset(self) -> None:
        super().reset()
        self.loop.die()
        self.store = self.reign = None

    def start(self) -> None:
        self.reset()
        self.up = True
        self.life += 1
        self.name = f"n{self.host}-{self.life}"
        self.loop = ProcessLoop(self.world, self.drift)  # type: ignore[abstract]  # no sockets, no threads
        config = ControllerConfig(group="sim")
        me = Leader(f"n{self.host}", str(self.host))
        store = self.store = self.make_store(config, me, self.loop)  # type: ignore[arg-type]
        store._process = self.name
        timeout_s = config.etcd_lease_s / 3
        store._etcd = Client(self.etcd, self.loop, self.host, self.name, timeout_s)  # type: ignore[assignment]
        self.loop.call_soon(
            self._begin, store
        )  # no coroutine is made that a crash would leave unstarted

    def _begin(self, store: EtcdStore) -> None:
        self.loop.create_task(store.run())
        self.loop.create_task(self._lead(store))

    def pause(self, paused: bool) -> None:
        super().pause(paused)
        self.loop.pause(self.paused)

    async def _lead(self, store: EtcdStore) -> None:
        while True:
            records = await store.lead()
            core = self.make_core(times=self.world.times, start_ms=self.local_ms())
            core.load(records)
            self.core = core
            self.reign = self.make_reign(
                core, store.write, self._perform, self.local_ms, store.leading
            )
            self.life += 1
            self.world.note("leads", self.name)
            self.world.mark("a controller leads by etcd")
            self.world.after(self.world.tick_us, self.tick, self.life)
            try:
                await self.reign.run()
            except LeadershipLost:
                self.world.mark("leadership lost while writing")
            self._end()

    def _end(self) -> None:
        """Whoever waits for an answer is sent on."""
        self.world.note("leads no more", self.name)
        self.life += 1
        self.core = self.reign = None
        self._requests.clear()
        links, self.links = list(self.links.values()), {}
        for link in links:
            self.world.network.close(link, link.side_of(self))

    @property
    def leading(self) -> bool:
        return self.reign is not None and self.store is not None and self.store.leading()

    def on_message(self, link: SimulatedLink, message: Message) -> None:
        if self.up and not self.paused and not self.leading and link.number in self.links:
            del self.links[link.number]  # NOT_LEADER: it asks another one
            self.world.network.close(link, link.side_of(self))
            return
        super().on_message(link, message)

    def feed(self, event: e.Event) -> None:
        if self.reign is not None:
            self.reign.feed(event)

    def _perform(self, effect: e.Effect) -> None:
        leader = self.etcd.leader()
        if leader not in ("", self.name):
            raise Violation(
                Check.FENCED, f"{self.name} does {type(effect).__name__} while {leader} leads"
            )
        super()._perform(effect)


class EtcdControllers:
    """All of them, in the place of the one controller. What is asked of "the controller" is asked of who leads."""

    make_controller: type[EtcdController] = EtcdController

    def __init__(self, world: World, drift: float) -> None:
        self.world = world
        self._rng = random.Random(world.seed ^ 0xE7CD5)  # so that it moves no other draw
        hosts = [0, *range(world.plan.replicas + 1, world.plan.replicas + COUNT)]
        self.etcd = Etcd(world, world.plan.replicas + COUNT)
        self.each = [
            self.make_controller(
                world,
                drift if not host else self._rng.uniform(-0.02, 0.02),
                host,
                self.etcd,
                self._rng,
            )
            for host in hosts
        ]
        self.answered: list[e.Answer] = []
        self._asked: dict[Session, int] = {}
        world.after(self._rng.randrange(*MISHAP_US), self._mishap)

    # --- as one controller ---

    @property
    def several(self) -> bool:
        return True

    @property
    def up(self) -> bool:
        return all(each.up for each in self.each)

    @property
    def _leader(self) -> EtcdController | None:
        return next((each for each in self.each if each.up and each.leading), None)

    @property
    def core(self) -> e.ControllerCore | None:
        leader = self._leader
        return leader.core if leader is not None else None

    @property
    def record(self) -> GroupRecord:
        leader = self._leader
        if leader is not None and leader.core is not None and GROUP in leader.core.groups:
            return leader.core.groups[GROUP].record
        return self.durable or GroupRecord(CLUSTER, GROUP)

    @property
    def durable(self) -> GroupRecord | None:
        return self.etcd.record()

    def found(self, replicas: int) -> None:
        core = e.ControllerCore(times=self.world.times, start_ms=0)
        for replica in range(1, replicas + 1):
            core.step(e.ApplyBrokerId(0, CLUSTER, GROUP, replica, f"replica {replica}"), 0)
        self.etcd.begin(f"{PREFIX}groups/{GROUP}", core.groups[GROUP].record)

    def start(self) -> None:
        for each in self.each:
            if not each.up:
                each.start()

    def crash(self) -> None:
        """Who leads, more often than not; now and then all of them."""
        victims = [self._somebody()] if self._rng.random() < 0.8 else self.each
        for each in victims:
            each.crash()

    def pause(self, paused: bool) -> None:
        if paused:
            self._somebody().pause(True)
            return
        for each in self.each:
            each.pause(False)

    def operator(self, replica: int, *, unclean: bool) -> None:
        leader = self._leader
        if leader is not None:
            leader.operator(replica, unclean=unclean)

    def asked_by(self, broker: Session) -> Endpoint:
        number = self._asked[broker] = self._asked.get(broker, -1) + 1
        return self.each[number % len(self.each)]

    def _somebody(self) -> EtcdController:
        leader = self._leader
        if leader is not None and self._rng.random() < 0.7:
            return leader
        return self._rng.choice(self.each)

    # --- what goes wrong ---

    def _mishap(self) -> None:
        world, rng = self.world, self._rng
        if not world.faulty:
            return
        world.after(rng.randrange(*MISHAP_US), self._mishap)
        kind = rng.choice(("away", "forgetful", "slow", "apart", "crash", "pause"))
        world.mark(f"etcd: {kind}")
        world.note("etcd", kind)
        lasts_us = rng.randrange(20_000, rng.choice((100_000, 400_000, 1_000_000)))
        if kind == "away":
            self.etcd.away = True
        elif kind == "forgetful":
            self.etcd.forgetful = rng.choice((0.1, 0.5))
        elif kind == "slow":
            self.etcd.slow_us = rng.choice((30_000, 120_000, 600_000))
        elif kind == "apart":
            host = self._somebody().host
            pairs = [(host, self.etcd.host), (self.etcd.host, host)]
            world.network.block(pairs)
            world.after(lasts_us, world.network.unblock, pairs)
        elif kind == "crash":
            self._somebody().crash()
            world.after(lasts_us, self.start)
        else:
            each = self._somebody()
            each.pause(True)
            world.after(lasts_us, each.pause, False)
        world.after(lasts_us, self.etcd.heal)

    def heal(self) -> None:
        self.etcd.heal()
