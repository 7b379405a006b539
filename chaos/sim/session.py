"""A simulated broker's side of its connection to the controller: one of several, when there are several."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.sim.network import Message, SimulatedLink
from tandemmq.replication import election as e
from tandemmq.replication import replica as r
from tandemmq.replication.config import Mode

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World

SILENT_LEASES: Final = 0.5  # so long a controller may be silent while there are others


class Session:
    """The part of a Broker that speaks with the controller."""

    world: World
    replica: int
    host: int
    mode: Mode
    up: bool
    powered: bool
    paused: bool
    incarnation: int
    lineage: tuple[int, ...]
    session: SimulatedLink | None
    connecting: bool
    heard_us: int
    _inbox: deque[tuple[Any, ...]]

    if TYPE_CHECKING:

        def feed(self, event: r.Event) -> None: ...
        def on_accepted(self, link: SimulatedLink) -> None: ...
        def on_link_closed(self, link: SimulatedLink) -> None: ...
        def on_message(self, link: SimulatedLink, message: Message) -> None: ...
        def close_link(self, link: SimulatedLink) -> None: ...
        def _say(self, link: SimulatedLink | None, message: Message) -> None: ...

    @property
    def address(self) -> str:
        return str(self.host)

    def find_controller(self) -> None:
        """Connect to a controller, unless there is a connection; of several to another one when it is silent."""
        world, session = self.world, self.session
        patience_us = SILENT_LEASES * world.times.lease_ms * 1000
        silent = session is not None and world.now_us - self.heard_us > patience_us
        if session is not None and silent and world.controller.several:
            self.session = None
            self.close_link(session)
            self.feed(r.ControllerLost())
        if self.session is None and not self.connecting:
            self.connecting = True
            target = self.world.controller.asked_by(self)
            opened = self._session_opened(self.incarnation)
            self.world.network.connect("session", self, target, opened)

    def _session_opened(self, life: int) -> Any:
        def opened(link: SimulatedLink | None, refused: bool) -> None:
            if not self.up or life != self.incarnation:
                if link is not None:
                    self.world.network.close(link, 0)
                return
            if self.paused:
                self._inbox.append((opened, link, refused))
                return
            self.connecting = False
            if link is not None and link.ends[0] is self:
                self.session = link
                self.heard_us = self.world.now_us
                self.feed(r.ControllerUp())

        return opened

    def _session_message(self, link: SimulatedLink, message: Message) -> None:
        if link is not self.session:
            return
        self.heard_us = self.world.now_us
        kind, content = message
        if kind == "beat":
            self.feed(
                r.HeartbeatAnswered(content.number, content.known, content.lease, content.view)
            )
        elif kind == "registered":
            if content.code is e.Code.SUCCESS:
                self.feed(r.Registered(content.records[0].view()))
                return
            if content.code is e.Code.BROKER_NEED_TO_BE_REGISTERED:  # it has forgotten us
                self._say(self.session, ("apply", self.replica))
            self.feed(r.RegistrationRefused(content.remark))
        elif kind == "role":
            self.feed(r.RoleNotified(content))
        elif kind == "set":
            for record in content.records:
                self.feed(r.RoleNotified(record.view(), answer=True))
        elif kind == "switch":
            self.feed(r.SwitchAsked(content.epoch, content.successor))

    def _register(self, effect: r.Register) -> None:
        self._say(
            self.session,
            ("register", self.replica, self.incarnation, effect.suspect, effect.epoch, effect.end,
             (*self.lineage, self.incarnation), self.address, self.mode.value),
        )  # fmt: skip

    def _ask_for_election(self, effect: r.AskForElection) -> None:
        self._say(self.session, ("elect", self.replica))

    def _send_heartbeat(self, effect: r.SendHeartbeat) -> None:
        self._say(self.session, ("beat", self.replica, self.incarnation, effect))
