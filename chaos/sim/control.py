"""The shell of the controller in the simulated world: durable records, and effects that wait for them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tandemmq.chaos.sim.network import Endpoint, Message, SimulatedLink
from tandemmq.replication import election as e
from tandemmq.replication.election import ControllerCore, GroupRecord

if TYPE_CHECKING:
    from tandemmq.chaos.sim.session import Session
    from tandemmq.chaos.sim.world import World

GROUP = "a"
CLUSTER = "sim"


class Controller:
    """One controller process. Its disk holds the record of the one group."""

    make_core: type[ControllerCore] = ControllerCore
    several = False

    def __init__(self, world: World, drift: float) -> None:
        self.world = world
        self.host = 0
        self.up = False
        self.powered = True
        self.paused = False
        self.drift = drift
        self.clock_us = world.rng.randrange(1_000_000_000)
        self.life = 0
        self.durable: GroupRecord | None = None
        self.answered: list[e.Answer] = []
        self._inbox: deque[tuple[Any, ...]] = deque()
        self.reset()

    def reset(self) -> None:
        self.core: ControllerCore | None = None
        self.links: dict[int, SimulatedLink] = {}
        self._requests: dict[int, tuple[SimulatedLink | None, str]] = {}
        self._number = 0
        self._held: deque[e.Effect] = deque()
        self._persisting = False
        self._inbox.clear()
        self.paused = False

    def start(self) -> None:
        self.reset()
        self.up = True
        self.life += 1
        self.core = self.make_core(times=self.world.times, start_ms=self.local_ms())
        if self.durable is not None:
            self.core.load([self.durable])
        self.world.after(self.world.tick_us, self.tick, self.life)

    def found(self, replicas: int) -> None:
        """Give every replica its id, as its first start would."""
        assert self.core is not None
        for replica in range(1, replicas + 1):
            for effect in self.core.step(
                e.ApplyBrokerId(0, CLUSTER, GROUP, replica, f"replica {replica}"), self.local_ms()
            ):
                if isinstance(effect, e.Persist):
                    self.durable = effect.record

    def crash(self) -> None:
        if self.up:
            self.world.note("controller crash")
            self.up = False
            self.world.network.process_died(self, False)
            self.reset()

    def pause(self, paused: bool) -> None:
        self.paused = paused and self.up
        if not paused:
            inbox, self._inbox = self._inbox, deque()
            for call, *arguments in inbox:
                call(*arguments)

    def heal(self) -> None:
        """Nothing of its own goes wrong."""

    def local_ms(self) -> int:
        return int((self.clock_us + self.world.now_us * (1 + self.drift)) / 1000)

    @property
    def record(self) -> GroupRecord:
        """What is decided, durable or not."""
        if self.core is not None and GROUP in self.core.groups:
            return self.core.groups[GROUP].record
        return self.durable or GroupRecord(CLUSTER, GROUP)

    def asked_by(self, broker: Session) -> Endpoint:
        """Which controller process a broker connects to next."""
        return self

    def tick(self, life: int) -> None:
        if not self.up or life != self.life:
            return
        if self.paused:
            self._inbox.append((self.tick, life))
            return
        self.feed(e.Tick())
        self.world.after(self.world.tick_us, self.tick, life)

    # --- connections ---

    def on_accepted(self, link: SimulatedLink) -> None:
        self.links[link.number] = link

    def on_link_closed(self, link: SimulatedLink) -> None:
        if not self.up:
            return
        if self.paused:
            self._inbox.append((self.on_link_closed, link))
            return
        if self.links.pop(link.number, None) is not None:
            self.feed(e.SessionClosed(link.number))

    def on_message(self, link: SimulatedLink, message: Message) -> None:
        if not self.up:
            return
        if self.paused:
            self._inbox.append((self.on_message, link, message))
            return
        kind = message[0]
        if kind == "beat":
            _, replica, incarnation, beat = message
            self.feed(
                e.Heartbeat(
                    link.number, GROUP, replica, incarnation, beat.number, beat.epoch, beat.end, beat.confirmed,
                    beat.leading, beat.streaming, beat.resigned,
                )
            )  # fmt: skip
        elif kind == "register":
            _, replica, incarnation, suspect, epoch, end, lineage, address, mode = message
            request = self._request(link, "registered")
            self.feed(
                e.RegisterBroker(
                    request, link.number, CLUSTER, GROUP, replica, address, address, incarnation, mode,
                    suspect, epoch, end, lineage,
                )
            )  # fmt: skip
        elif kind == "alter":
            _, replica, proposal = message
            self.feed(
                e.AlterSyncSet(
                    self._request(link, "set"), GROUP, replica, proposal.epoch, proposal.members, proposal.number,
                    proposal.incarnations, proposal.reaffirm, link.number,
                )
            )  # fmt: skip
        elif kind == "apply":
            replica = message[1]
            request = self._request(link, "applied")
            self.feed(e.ApplyBrokerId(request, CLUSTER, GROUP, replica, f"replica {replica}"))
        elif kind == "elect":
            request = self._request(link, "set")
            self.feed(e.ElectMaster(request, CLUSTER, GROUP, message[1]))

    def operator(self, replica: int, *, unclean: bool) -> None:
        """electMaster by hand."""
        if self.up and not self.paused:
            request = self._request(None, "operator")
            self.feed(e.ElectMaster(request, CLUSTER, GROUP, replica, True, unclean))

    def _request(self, link: SimulatedLink | None, kind: str) -> int:
        self._number += 1
        self._requests[self._number] = (link, kind)
        return self._number

    # --- effects, each after every record before it ---

    def feed(self, event: e.Event) -> None:
        core = self.core
        if core is None:
            return
        before = self.record
        effects = core.step(event, self.local_ms())
        self.world.mishaps.decided(self.life, event, before, effects)
        self._held.extend(effects)
        self._release(self.life)

    def _release(self, life: int) -> None:
        while self._held and not self._persisting and self.up and life == self.life:
            effect = self._held.popleft()
            if isinstance(effect, e.Persist):
                self._persisting = True
                delay = self.world.rng.randrange(100, 3000)
                self.world.after(delay, self._persisted, life, effect)
            else:
                self._perform(effect)

    def _persisted(self, life: int, effect: e.Persist) -> None:
        if self.up and life == self.life:
            self.durable = effect.record
            if effect.record is not None:
                self.world.mishaps.persisted(effect.record)
            self.world.note("record", effect.record)
            self._persisting = False
            self._release(life)

    def _perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.AnswerHeartbeat):
            self._say(effect.session, ("beat", effect))
        elif isinstance(effect, e.NotifyRole):
            self._say(effect.session, ("role", effect.view))
        elif isinstance(effect, e.AskToSwitch):
            self._say(effect.session, ("switch", effect))
        elif isinstance(effect, e.Answer):
            link, kind = self._requests.pop(effect.request, (None, ""))
            if link is not None:
                self._say(link.number, (kind, effect))
            else:
                self.answered.append(effect)
        elif isinstance(effect, e.Probe):
            target = self.world.reach(effect.address)
            life = self.life

            def probed(link: SimulatedLink | None, refused: bool) -> None:
                if link is not None:
                    self.world.network.close(link, 0)
                if self.up and life == self.life:
                    if self.paused:
                        self._inbox.append((probed, None, refused))
                        return
                    self.feed(e.ProbeAnswered(GROUP, effect.replica, effect.incarnation, refused))

            self.world.network.connect("probe", self, target, probed)
        elif isinstance(effect, e.Announce):
            self.world.announced(effect)

    def _say(self, session: int, message: Message) -> None:
        link = self.links.get(session)
        if link is not None:
            self.world.network.send(link, link.side_of(self), message)
