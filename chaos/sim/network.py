"""Connections between processes: in order, with delay; they break, stall and half-open as TCP's do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World

CONNECT_TIMEOUT_US: Final = 150_000

Message = Any  # a tuple whose first item names it, or the chunk of a stream in wire mode


class Endpoint(Protocol):
    """A process that can be connected to."""

    host: int
    up: bool
    powered: bool

    def on_accepted(self, link: SimulatedLink) -> None: ...
    def on_message(self, link: SimulatedLink, message: Message) -> None: ...
    def on_link_closed(self, link: SimulatedLink) -> None: ...


@dataclass(slots=True, eq=False)
class SimulatedLink:
    """One connection. Side 0 opened it, side 1 accepted it.

    ends   the processes, or None once that side closed or its process died
    """

    number: int
    kind: str
    ends: list[Endpoint | None]
    hosts: tuple[int, int]
    last_us: list[int] = field(default_factory=lambda: [0, 0])
    stalled: tuple[list[Message], list[Message]] = field(default_factory=lambda: ([], []))

    def side_of(self, endpoint: Endpoint) -> int:
        return 0 if self.ends[0] is endpoint else 1


FIN: Final = ("fin",)


class Network:
    """Delays, losses and partitions. `blocked` holds (from host, to host) pairs through which nothing passes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocked: set[tuple[int, int]] = set()
        self.links: dict[int, SimulatedLink] = {}
        self.clogged_us = 0
        self._numbers = 0

    # --- opening and closing ---

    def connect(
        self,
        kind: str,
        opener: Endpoint,
        target: Endpoint,
        done: Callable[[SimulatedLink | None, bool], None],
    ) -> None:
        """Open a link; `done(link, refused)` runs on the opener's side, with None when there is none."""
        world = self.world
        there, back = (opener.host, target.host), (target.host, opener.host)
        if there in self.blocked or back in self.blocked or not target.powered:
            world.after(CONNECT_TIMEOUT_US, done, None, False)
            return
        if not target.up:
            world.after(self.delay() + self.delay(), done, None, True)
            return
        self._numbers += 1
        link = SimulatedLink(self._numbers, kind, [opener, target], there)
        world.after(self.delay(), self._accepted, link, opener, target, done)

    def _accepted(
        self,
        link: SimulatedLink,
        opener: Endpoint,
        target: Endpoint,
        done: Callable[[SimulatedLink | None, bool], None],
    ) -> None:
        if not target.up:
            self.world.after(self.delay(), done, None, target.powered)
            return
        self.links[link.number] = link
        target.on_accepted(link)
        at = self.world.now_us + self.delay()
        link.last_us[1] = at
        self.world.at(at, self._connected, link, opener, done)

    def _connected(
        self,
        link: SimulatedLink,
        opener: Endpoint,
        done: Callable[[SimulatedLink | None, bool], None],
    ) -> None:
        if link.number in self.links and link.ends[0] is opener:
            done(link, False)
        else:
            done(None, False)

    def close(self, link: SimulatedLink, side: int) -> None:
        """One side closes: what it sent arrives, then the end of the stream."""
        if link.ends[side] is None:
            return
        self.send(link, side, FIN)
        link.ends[side] = None
        if link.ends[1 - side] is None:
            self.links.pop(link.number, None)

    def break_link(self, link: SimulatedLink) -> None:
        """Both sides find it broken, each in its time; what was on its way is lost."""
        if self.links.pop(link.number, None) is None:
            return
        for side in (0, 1):
            end = link.ends[side]
            link.ends[side] = None
            if end is not None:
                self.world.after(self.delay(), self._closed, link, end)

    def process_died(self, endpoint: Endpoint, power: bool) -> None:
        """The kernel closes a dead process's connections; a host without power says nothing."""
        for link in list(self.links.values()):
            for side in (0, 1):
                if link.ends[side] is endpoint:
                    if power:
                        link.ends[side] = None
                        if link.ends[1 - side] is None:
                            self.links.pop(link.number, None)
                    else:
                        self.close(link, side)

    def _closed(self, link: SimulatedLink, end: Endpoint) -> None:
        if end.up:
            end.on_link_closed(link)

    # --- messages ---

    def delay(self) -> int:
        plan, rng = self.world.plan, self.world.rng
        if self.clogged_us or (plan.slow_share and rng.random() < plan.slow_share):
            return int(rng.random() * (plan.slow_delay_us + self.clogged_us)) + 50
        low, high = plan.delay_us
        return low + int(rng.random() * (high - low))

    def send(self, link: SimulatedLink, side: int, message: Message) -> None:
        at = self.world.now_us + self.delay()
        last = link.last_us
        if at <= last[side]:
            at = last[side] + 1
        last[side] = at
        self.world.at(at, self._deliver, link, side, message)

    def _deliver(self, link: SimulatedLink, side: int, message: Message) -> None:
        hosts = link.hosts
        pair = hosts if side == 0 else (hosts[1], hosts[0])
        if pair in self.blocked or link.stalled[side]:
            link.stalled[side].append(message)
            return
        self._arrive(link, side, message)

    def _arrive(self, link: SimulatedLink, side: int, message: Message) -> None:
        end = link.ends[1 - side]
        if end is None:
            # that host has rebooted, or its process closed: its kernel answers with a reset
            sender = link.ends[side]
            if sender is not None and message is not FIN and self._answers(link, 1 - side):
                self.links.pop(link.number, None)
                link.ends[side] = None
                self.world.after(self.delay(), self._closed, link, sender)
            return
        if message is FIN:
            link.ends[1 - side] = None
            self.links.pop(link.number, None)
            end.on_link_closed(link)
        elif end.up:
            end.on_message(link, message)

    def _answers(self, link: SimulatedLink, side: int) -> bool:
        host = link.hosts[side]
        back = (host, link.hosts[1 - side])
        return self.world.host_powered(host) and back not in self.blocked

    # --- partitions ---

    def block(self, pairs: list[tuple[int, int]]) -> None:
        self.blocked.update(pairs)

    def unblock(self, pairs: list[tuple[int, int]]) -> None:
        self.blocked.difference_update(pairs)
        for link in list(self.links.values()):
            for side in (0, 1):
                if link.stalled[side]:
                    self.world.after(self.delay(), self._release, link, side)

    def _release(self, link: SimulatedLink, side: int) -> None:
        """What was stalled arrives in order, and before anything that was sent later."""
        hosts = link.hosts
        pair = hosts if side == 0 else (hosts[1], hosts[0])
        if pair not in self.blocked:
            waiting = link.stalled[side]
            released, waiting[:] = list(waiting), []
            for message in released:
                self._arrive(link, side, message)

    def clear(self) -> None:
        self.clogged_us = 0
        self.unblock(sorted(self.blocked))
