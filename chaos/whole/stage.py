"""The stage: one clock and one generator for all, hosts with their disks and clocks, and the lives of processes."""

from __future__ import annotations

import heapq
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random as Chance  # as it was before calls.py replaced it
from typing import Any, Final

from tandemmq.chaos.powercut.disk import CALLS, Disk, Names
from tandemmq.chaos.whole.loop import TurnLoop
from tandemmq.chaos.whole.wires import Wires

WALL_US: Final = 1_699_999_200_000_000  # an hour begins: timers are counted from there
BLOCKS: Final = 1_000_000  # of a simulated file system
REAL_CALLS: Final = {name: getattr(os, name) for name in CALLS}
Main = Callable[[], Coroutine[Any, Any, None]]


class Killed(BaseException):
    """The process that runs is dead: nothing of it may go on."""


class Finding(Exception):
    """The seed found something wrong. name: of the check."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Host:
    """A machine: an address, clocks that drift, a directory, and perhaps a disk that forgets.

    heard      calls of `os` as this host's disk listens to them
    """

    def __init__(self, stage: Stage, number: int, address: str, root: Path, drift: float) -> None:
        self.stage = stage
        self.number = number
        self.address = address
        self.root = root
        self.powered = True
        self.boots = 0
        self.full = False
        self.slow_us = 0
        self.life: Life | None = None
        self.heard: dict[str, Callable[..., Any]] = {}
        self.cuts = 0
        self.lost_power_us = -10_000_000_000
        self._pace = 1 + drift
        self._offset_us = stage.chance.randrange(10_000_000, 1_000_000_000)
        self._disk: Disk | None = None
        self._sync_fails = self._fuse = 0
        self._blow: Callable[[Host], None] | None = None
        root.mkdir(parents=True)

    # --- clocks ---

    def monotonic_us(self) -> int:
        return self._offset_us + int(self.stage.now_us * self._pace)

    def wall_us(self) -> int:
        return WALL_US + int(self.stage.now_us * self._pace)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.number}-{self.boots}"

    # --- disk ---

    def listen_to_disk(self) -> None:
        """Keep what a power cut would leave. What is there now is durable."""
        self._disk = Disk(self.root)
        self._disk.begin()
        self.heard = {name: self._disk.hearing(name, call) for name, call in REAL_CALLS.items()}

    def cut_power(self) -> None:
        """The machine goes dark; what its disk has is all that is left."""
        self.stage.note("power", self.number)
        self.powered = False
        self.cuts += 1
        self.lost_power_us = self.stage.now_us
        disk = self._disk
        if disk is not None:
            kept = self.root.with_name(f"{self.root.name}-cut-{self.cuts}")
            self.heard = {}
            names = self.stage.chance.choice((Names.IN_ORDER, Names.ANY_ORDER))
            disk.cut_power(self.stage.chance, kept, names=names)
        if self.life is not None:
            self.life.die("power", power=True)
        if disk is not None:
            self.root.rename(self.root.with_name(f"{self.root.name}-lost-{self.cuts}"))
            kept.rename(self.root)

    def durable(self, path: Path) -> bytes | None:
        """What of a file a power cut cannot take; None where none does."""
        return None if self._disk is None else self._disk.synced(path)

    def boot(self) -> None:
        self.powered = True
        self.boots += 1
        self._sync_fails = self._fuse = 0
        if self._disk is not None:
            self.listen_to_disk()
        self.stage.wires.booted(self)

    def thread_us(self) -> tuple[int, int]:
        """How long a function waits for its thread, and its caller for the answer."""
        draw = self.stage.draw
        slow = draw(0, self.slow_us) if self.slow_us else 0
        begins, ends = draw(5, 150), draw(5, 150)
        return (begins + slow, ends) if draw(0, 1) else (begins, ends + slow)

    def space(self, real: Any) -> Any:
        """What statvfs says: room enough, or none."""
        fields = list(real)
        fields[2], fields[3], fields[4] = (
            BLOCKS,
            0 if self.full else BLOCKS,
            0 if self.full else BLOCKS,
        )
        return type(real)(fields)

    # --- faults in the middle of a call ---

    def fail_syncs(self, count: int) -> None:
        self._sync_fails = count

    def disarm(self) -> None:
        """Nothing ends in the middle of a call any more."""
        self._fuse = self._sync_fails = 0

    def fails_sync(self) -> bool:
        if not self._sync_fails:
            return False
        self._sync_fails -= 1
        self.stage.note("sync failed", self.number)
        return True

    def arm(self, calls: int, blow: Callable[[Host], None]) -> None:
        """The process ends right before so many calls from now."""
        self._fuse, self._blow = calls, blow

    def burn(self, name: str) -> None:
        """One call to the disk. Raises Killed when the process ends here."""
        if not self._fuse:
            return
        self._fuse -= 1
        if not self._fuse and self._blow is not None:
            stage = self.stage
            stage.note("fuse", self.number, name)
            before, stage.current = stage.current, None
            self._blow(self)
            stage.current = before
            raise Killed


class Running:
    """See Life.running(): thousands of times in a seed, so it is no generator."""

    __slots__ = ("_before", "_life")

    def __init__(self, life: Life) -> None:
        self._life = life
        self._before: Life | None = None

    def __enter__(self) -> None:
        stage = self._life.stage
        self._before, stage.current = stage.current, self._life

    def __exit__(self, *problem: object) -> None:
        self._life.stage.current = self._before


class Life:
    """One process on a host, from its start until it ends, by itself or not.

    ended      called when it ended by itself: with what its main raised, or None
    later      what a paused process has not noticed yet
    """

    def __init__(
        self, host: Host, name: str, main: Main, ended: Callable[[Life, BaseException | None], None]
    ) -> None:
        self.host = host
        self.stage = host.stage
        self.name = name
        self.dead = False
        self.paused = False
        self.pid = self.stage.next_pid()
        self.later: list[tuple[Any, ...]] = []
        self.loop = TurnLoop(self)  # type: ignore[abstract]  # what nothing here calls is left out
        self.parts: dict[str, Any] = {}  # what the stage looks at: the broker, the controller
        self._told = ended
        host.life = self
        self.stage.lives.append(self)  # kept: what is collected would clean up after itself
        with self.running():
            self._coroutine = main()
            self._task = self.loop.create_task(self._coroutine, name=name)
            self._task.add_done_callback(self._finished)

    def running(self) -> Running:
        """While it is entered, this process runs."""
        return Running(self)

    def pause(self, paused: bool) -> None:
        """SIGSTOP, SIGCONT."""
        self.paused = paused and not self.dead
        if not paused and not self.dead:
            later, self.later = self.later, []
            for call, *arguments in later:
                self.stage.after(1, call, *arguments)
            self.loop.wake()

    def die(self, why: str, *, power: bool = False) -> None:
        """kill -9, or the host goes dark."""
        if not self.dead:
            self.stage.note("dies", self.name, why)
            self.dead = True
            self.host.life = None
            self.stage.wires.ended(self, power=power)

    def _finished(self, task: Any) -> None:
        problem = None if task.cancelled() else task.exception()
        if self.dead:
            return
        self.stage.note("ends", self.name, type(problem).__name__ if problem else "")
        self.dead = True
        self.host.life = None
        self.stage.wires.ended(self, power=False)
        self._told(self, problem)


class Stage:
    """Time, chance, and everything that happens. events counts turns of processes' loops."""

    def __init__(self, seed: int, root: Path) -> None:
        self.seed = seed
        self.root = root
        self.chance = Chance(seed)
        self._random = self.chance.random
        self.now_us = 0
        self.events = 0
        self.digest = 0
        self.current: Life | None = None
        self.running_loop: TurnLoop | None = None  # as asyncio has it: of the last turn
        self.finding: Finding | None = None
        self.lives: list[Life] = []
        self.hosts: list[Host] = []
        self.marks: dict[str, int] = {}
        self.trace: Callable[[str], None] | None = None
        self.wires = Wires(self)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._pids = 1000
        self._numbers: list[int] = []

    def add_host(self, address: str, drift: float) -> Host:
        number = len(self.hosts)
        host = Host(self, number, address, self.root / f"host-{number}", drift)
        self.hosts.append(host)
        return host

    def host_at(self, address: str) -> Host | None:
        return next((each for each in self.hosts if each.address == address), None)

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    # --- time and chance ---

    def at(self, when_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_us, self._sequence, call, arguments))

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._sequence, call, arguments))

    def within(self, delay_us: tuple[int, int], call: Callable[[], None]) -> None:
        """After a delay that is drawn: what each turn begins with, so in one piece."""
        low, high = delay_us
        drawn_us = low + int(self._random() * (high - low + 1))
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + drawn_us, self._sequence, call, ()))

    def draw(self, low: int, high: int) -> int:
        """low to high, both included; cheaper than randint."""
        return low + int(self._random() * (high - low + 1))

    def run_until(self, events: int) -> None:
        """Until so many turns were had. Raises Finding."""
        heap, pop = self._heap, heapq.heappop
        while self.events < events:
            self.now_us, _, call, arguments = pop(heap)
            call(*arguments)
            if self.finding is not None:
                raise self.finding

    # --- what is noticed ---

    def note(self, *what: Any) -> None:
        """For the trace, and for the digest that makes two runs comparable."""
        text = " ".join(map(str, what))
        self.digest = zlib.crc32(text.encode(), self.digest ^ (self.now_us & 0xFFFFFFFF))
        if self.trace is not None:
            self.trace(f"{self.now_us / 1e6:9.4f} {text}")

    def mark(self, situation: str) -> None:
        """A situation that the seeds together must have met."""
        self.marks[situation] = self.marks.get(situation, 0) + 1

    def fail(self, name: str, text: str, problem: BaseException | None = None) -> None:
        """The first thing that is wrong ends the run, wherever it was noticed."""
        if self.finding is None:
            self.finding = Finding(name, text)
            self.finding.__cause__ = problem

    def unhandled(self, life: Life, context: dict[str, Any]) -> None:
        """Nobody caught what a callback or a task of this process raised."""
        problem = context.get("exception")
        if isinstance(problem, Killed):
            return
        self.fail("UNHANDLED", f"{life.name}: {context.get('message')}: {problem!r}", problem)

    def follow_logs(self) -> None:
        """What the processes log goes into the trace."""
        stage = self

        class Tracing(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if stage.trace is not None:
                    where = stage.current.name if stage.current else "-"
                    text = f"{where}: {record.levelname} {record.getMessage()}"
                    stage.trace(f"{stage.now_us / 1e6:9.4f}   {text}")

        logger = logging.getLogger("tandemmq")
        logger.addHandler(Tracing())
        logger.setLevel(logging.INFO)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
