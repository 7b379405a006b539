"""Steps a core and performs its effects in order, each to its end, before the next event is fed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec, Protocol, get_args

from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication.master import MasterCore
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.slave import SlaveCore
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Handler = Callable[[Any], Awaitable[None] | None]

TICKS: Final = frozenset({m.Tick, r.Tick})
STEADY_TICK_MS: Final = 500  # granularity of heartbeats while a stream is up
RETRY_TICK_MS: Final = 50  # without a stream: the shortest pause before a reconnect


class Core(Protocol):
    """Decides. MasterCore, SlaveCore and ReplicaCore are cores."""

    def step(self, event: Any, now_ms: int) -> list[Any]:
        """Take one event; the effects, to be performed in order."""


class EffectFailed(Exception):
    """Raised by a handler that could not perform its effect when the core has an event for that.

    The rest of the list counts on the effect and is left out; `event` is fed before any other.
    """

    def __init__(self, event: object) -> None:
        super().__init__(str(event))
        self.event = event


class Feed:
    """The one way into a core.

    core    nobody else steps it
    failed  called once when something final happened, before anything else of this feed runs:
            whoever could still promise something must stop then

    Handlers are registered by type of effect. One that returns an awaitable is waited for: events
    fed meanwhile queue, in order, and are stepped when the whole list is done (a tick is left out:
    time has passed then anyway). resumed is called afterwards, for who held back meanwhile.

    An exception out of a core or a handler, EffectFailed apart, is final: FlushFailed, a failed
    assertion, a file that cannot be written. From then on nothing is stepped, so nothing is
    acknowledged, and run() raises it.
    """

    def __init__(self, core: Core, clock: Clock) -> None:
        self.core = core
        self._replica = core if isinstance(core, ReplicaCore) else None
        self._classic_master = core if isinstance(core, MasterCore) else None
        self.failure: BaseException | None = None
        self.failed: list[Callable[[], None]] = []
        self.resumed: list[Callable[[], None]] = []
        self._clock = clock
        self._handlers: dict[type, list[Handler]] = {}
        self._events: deque[Any] = deque()
        self._effects: deque[tuple[Handler, Any]] = deque()
        self._stepping = False
        self._under_way: asyncio.Task[None] | None = None
        self._stopped = False
        self._kick = asyncio.Event()

    # --- wiring ---

    def register(self, effect: type, *handlers: Handler) -> None:
        """Have handlers perform effects of a type, in order, behind those registered before."""
        self._handlers.setdefault(effect, []).extend(handlers)

    def ignore(self, *effects: type) -> None:
        """Nobody needs to do anything about these."""
        for effect in effects:
            self._handlers.setdefault(effect, [])

    def unhandled(self) -> list[type]:
        """Effects of a ReplicaCore that nobody performs: a wiring that forgot some must not start."""
        return [each for each in get_args(r.Effect) if each not in self._handlers]

    @property
    def master(self) -> MasterCore | None:
        """The master half while there is one, for who serves slaves."""
        return self._replica.master if self._replica is not None else self._classic_master

    @property
    def slave(self) -> SlaveCore | None:
        """The slave half, for who follows a master."""
        core = self.core
        if isinstance(core, ReplicaCore):
            return core.slave
        return core if isinstance(core, SlaveCore) else None

    def _halves(self) -> list[ReplicaCore | MasterCore | SlaveCore]:
        """The cores there are, each of which keeps a story: a replica is up to three."""
        halves = [each for each in (self._replica, self.master, self.slave) if each is not None]
        return [each for each in halves if each.story]

    @property
    def busy(self) -> bool:
        """Whether an effect is under way: what is fed now will wait."""
        return self._under_way is not None

    def now_ms(self) -> int:
        """The cores' clock: counts a suspended machine, means nothing elsewhere."""
        return self._clock.monotonic_ms()

    # --- the one way in ---

    def feed(self, event: object) -> None:
        """Step the core with an event and perform what it says, now or once it is this event's turn.

        Call it on the loop's thread. Never raises: what is final comes out of run().
        """
        if self._stopped or self.failure is not None:
            return
        if self._under_way is not None and type(event) in TICKS:
            return
        self._events.append(event)
        if not self._stepping and self._under_way is None:
            self._drain()

    def fail(self, error: BaseException) -> None:
        """Something final happened, here or in a callback that has nobody to raise to."""
        if self.failure is not None:
            return
        self.failure = error
        self._events.clear()
        self._effects.clear()
        self._kick.set()
        for call in self.failed:
            call()
        for half in self._halves():
            log.error("what %s decided last, in ms\n%s", type(half).__name__, half.story)

    def guarded(
        self, call: Callable[Arguments, None], *arguments: Arguments.args, **more: Arguments.kwargs
    ) -> None:
        """Run a callback of the loop. The loop would log a failure and go on; a bug must end run()."""
        try:
            call(*arguments, **more)
        except Exception as error:
            self.fail(error)

    def _drain(self) -> None:
        self._stepping = True
        events, effects = self._events, self._effects
        try:
            while True:
                while effects:
                    handler, effect = effects.popleft()
                    try:
                        pending = handler(effect)
                    except EffectFailed as failure:
                        self._leave_out(failure)
                        continue
                    if pending is not None:
                        self._wait_for(pending, effect)
                        return
                if not events:
                    return
                for effect in self.core.step(events.popleft(), self._clock.monotonic_ms()):
                    handlers = self._handlers.get(type(effect))
                    assert handlers is not None, f"nobody performs {effect}"
                    for handler in handlers:
                        effects.append((handler, effect))
        except Exception as error:
            self.fail(error)
        finally:
            self._stepping = False

    def _wait_for(self, pending: Awaitable[None], effect: Any) -> None:
        self._under_way = asyncio.get_running_loop().create_task(
            self._complete(pending), name=f"perform {type(effect).__name__}"
        )

    def _leave_out(self, failure: EffectFailed) -> None:
        self._effects.clear()
        self._events.appendleft(failure.event)

    async def _complete(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        except EffectFailed as failure:
            self._leave_out(failure)
        except Exception as error:
            self.fail(error)
        finally:
            self._under_way = None
        self._drain()
        if not self.busy and self.failure is None:
            for call in self.resumed:
                self.guarded(call)

    # --- time ---

    def _tick_ms(self) -> int:
        core = self.core
        if isinstance(core, ReplicaCore):
            return max(1, core.times.heartbeat_ms // 4)
        if isinstance(core, SlaveCore) and not core.streaming:
            return RETRY_TICK_MS
        return STEADY_TICK_MS

    def tick(self) -> None:
        """Tell the core that time has passed."""
        self.feed(r.Tick() if isinstance(self.core, ReplicaCore) else m.Tick())

    def hurry(self) -> None:
        """Tick soon and in the rhythm that now fits: a stream came up or went down."""
        self._kick.set()

    async def run(self) -> None:
        """Tick until cancelled; raises what is final. An effect under way is waited for first:
        a log that is being cut is not let go of half-way."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._tick_ms() / 1000):
                        await self._kick.wait()
                except TimeoutError:
                    pass  # time has passed, which is what a tick says
                self._kick.clear()
                if self.failure is not None:
                    raise self.failure
                self.tick()
        finally:
            self._stopped = True
            self._events.clear()
            self._effects.clear()
            if self._under_way is not None:
                await asyncio.wait({self._under_way})
