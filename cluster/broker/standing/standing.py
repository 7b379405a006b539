"""What this broker is in its group right now, and what that means for those who serve clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tandemmq.cluster.broker.errors import BrokerBusy, BrokerError
from tandemmq.cluster.broker.sending.acks import Overdue
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.hastatus import Following, SlaveLag
from tandemmq.cluster.process import Job, running
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.connection import Handler

MASTER_ID: Final = 0  # under which a master is registered, whoever it is

#: told of a new role; what it returns is awaited before the next one is told
RoleChanged = Callable[[Role], "Awaitable[None] | None"]
Follows = Callable[[int, int], bool]


class SendRefused(NamedTuple):
    """A send that is refused now.

    why      what its client is told
    wait_ms  at most so long it had better wait for RoleChanges.settled(), and be judged again; None: until then,
             however long; 0: its client is told at once
    """

    why: BrokerError
    wait_ms: int | None = 0


class Standing(Protocol):
    """A broker's place in its group. Everything is called on the loop's thread.

    A classic broker keeps its role for life. Under a controller role, epoch and broker id change
    while the broker runs, and `changes` tells whoever must follow. The broker has it ship every append
    and hands it every flush (sending/release.py), serves its jobs, and lets clients see what it confirms.

    follows        set by who knows: whether a slave (its id, its incarnation) has our tables as they are now
    holds_answers  whether the answers of sends wait in Acks until reached() lets them go. Fixed for
                   the life of the process; where it is False, a master's refusal() that was None once
                   stays None
    """

    follows: Follows

    @property
    def changes(self) -> RoleChanges:
        """Who follows a change of role; tell() them when it has happened."""

    @property
    def role(self) -> Role: ...

    @property
    def broker_id(self) -> int:
        """As registered with name servers: 0 for a master."""

    @property
    def epoch(self) -> int:
        """Of the reign we serve in or follow; 0 without a controller."""

    @property
    def incarnation(self) -> int:
        """Of this process; 0 without a controller."""

    @property
    def holds_answers(self) -> bool: ...

    @property
    def may_have_lost(self) -> bool:
        """Whether our reign began without something that readers may have been given before it."""

    @property
    def agreed(self) -> int:
        """So far our log was confirmed before our reign."""

    @property
    def master(self) -> str | None:
        """Where clients reach the master that this slave follows: its tables are copied from there.
        None on a master, and while none is known."""

    @property
    def unsucceeded(self) -> bool:
        """Whether no other master can have given out more than this one has. Once its lease has run out, or who must
        confirm with it does not follow any more, it may have a successor that it has not heard of. A master that goes
        on all the same is believed (mode A0), and one without a controller."""

    def readable_elsewhere(self, offset: int) -> bool:
        """Whether a slave holds the log up to `offset` now: readers of older messages may go there."""

    @property
    def in_sync(self) -> frozenset[int] | None:
        """Ids of the other members of a master's sync-state-set, and of who is about to become one; None without
        a controller, where slaves have no ids that count."""

    @property
    def stock_slaves(self) -> frozenset[int]:
        """Ids of connected slaves that speak RocketMQ's dialect, which tells of no process."""

    def refusal(self) -> SendRefused | None:
        """Why a send is refused now, before anything is appended; None when it may go ahead.

        Asked once per chunk of the short path, and for each send of the long one. Asking changes nothing.
        """

    def confirmed(self) -> int:
        """Log offset below which consumers may read, as far as replication decides."""

    def ship(self) -> None:
        """The log has grown, and the answers to that are held: have slaves get it. What their reports let go and
        confirm is the standing's to say."""

    def lost(self) -> ResponseCode | None:
        """The code of answers that come while there is no slave to wait for, which this broker promises to."""

    def flushed(self, end: int) -> None:
        """Our own log is on the disk up to `end`."""

    def alarms_now(self) -> Sequence[str]:
        """What a person must look at, in words."""

    def dispatch_broken(self, why: str) -> None:
        """Queues cannot be derived from our log any further: as a slave, report nothing more."""

    def overdue(self, end: int, waited_ms: int) -> Overdue | None:
        """What to tell who has waited so long for the log up to `end`; None: let it wait on."""

    def heard(self, master_address: str | None, ha_address: str | None) -> None:
        """What a name server answered to our registration as a slave. None, both of them: it knows
        no master."""

    def jobs(self) -> Mapping[str, Job]:
        """What runs beside the broker's own jobs, before the first request until after the last."""

    async def hand_over(self) -> None:
        """This process is to stop: have another replica take over first, if one can."""

    def table(self) -> Mapping[int, Handler]:
        """The requests that such a standing answers itself, and their handlers."""

    def runtime(self) -> Mapping[str, str]:
        """Entries of the runtime table that only such a standing has; all ours."""

    def closing(self) -> None:
        """Everything has stopped in good order, and the store closes next."""

    def slaves(self) -> Sequence[SlaveLag]:
        """Every slave that is connected to this master; none on a slave."""

    @property
    def following(self) -> Following | None:
        """How the stream from our master is; None on a master."""

    def ha_status(self) -> dict[str, Any]:
        """Body of the answer to GET_BROKER_HA_STATUS: hastatus.of_master or of_slave."""


def slave_refusal() -> BrokerBusy:
    """Why a slave takes no message: RocketMQ's words, which make a producer go elsewhere."""
    return BrokerBusy("[REJECTREQUEST]system busy, start flow control for a while")


class RoleChanges:
    """Those who must follow a change of role, told one after the other, in the order they came; and the
    sends that wait until what is under way is settled: a planned change of role, or a start."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self._watchers: list[RoleChanged] = []

    def watch(self, changed: RoleChanged) -> None:
        self._watchers.append(changed)

    async def tell(self, role: Role) -> None:
        """Returns when all of them have followed."""
        for changed in self._watchers:
            waiting = changed(role)
            if waiting is not None:
                await waiting

    def settled(self, wait_ms: int | None) -> asyncio.Future[None]:
        """Done by settle(), or after `wait_ms` of whoever asked first. Await it with asyncio.wait, for others do too.

        Not a coroutine: what is settled before it first ran would be waited for in vain.
        """
        waiting = self._waiting
        if waiting is None or waiting.done():
            loop = asyncio.get_running_loop()
            self._waiting = waiting = loop.create_future()
            if wait_ms is not None:
                loop.call_later(wait_ms / 1000, _let_go, waiting)
        return waiting

    def settle(self) -> None:
        """Have everybody who waits judged again now."""
        if self._waiting is not None:
            _let_go(self._waiting)


def _let_go(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class OnMaster:
    """Runs jobs while this broker is a master; a job of the broker itself.

    Of a group, one broker may run them: by the time that changed() returns they run, or have ended.
    """

    def __init__(self, standing: Standing, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._wanted = standing.role is not Role.SLAVE
        self._running = False
        self._serving = False
        self._turned = asyncio.Condition()
        standing.changes.watch(self.changed)

    async def changed(self, role: Role) -> None:
        async with self._turned:
            self._wanted = role is not Role.SLAVE
            self._turned.notify_all()
            while self._serving and self._running != self._wanted:
                await self._turned.wait()

    async def run(self) -> None:
        self._serving = True
        try:
            while True:
                await self._until(True)
                async with running(**self._jobs):
                    await self._note(True)
                    await self._until(False)
                await self._note(False)
        finally:
            self._serving = self._running = False

    async def _until(self, wanted: bool) -> None:
        async with self._turned:
            while self._wanted != wanted:
                await self._turned.wait()

    async def _note(self, is_running: bool) -> None:
        async with self._turned:
            self._running = is_running
            self._turned.notify_all()
