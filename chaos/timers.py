"""Timed messages on a replicated group that dies under them: none may be early, none lost, none late without a reason.

    python -m tandemmq.chaos.timers --timers 50000 --spread-s 240

Sends messages with random delivery times, and while they fall due kills the master -9 (a failover), restarts the next
master in good order, and kills both replicas at once and starts them again. Then every log is read: each acknowledged
message must be there, once (where its sender tried again, as often as it was stored), and not before its time. Lateness
is the store time of the delivered copy minus the time that was asked for. Those that fell due between a fault and the
first send that was taken after it cannot be in time and are counted apart.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.promises import figures
from tandemmq.cluster.client import ClientError, Message, Producer
from tandemmq.storage import decode, scan

TOPIC: Final = "ChaosTimers"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
QUEUES: Final = 4
LEAD_S: Final = 3.0  # no message is due sooner
IN_FLIGHT: Final = 200
PROBE_TIMEOUT_MS: Final = 400
WRITABLE_S: Final = 60.0
LATE_MS_MAX: Final = 1_000


@dataclass(slots=True)
class TimersOutcome(Outcome):
    """What a run did and found. Times in ms since 1970, or ms.

    outages  (fault, first send taken after it) of each fault
    served   lateness of messages that were due while a master served; excused: of the others
    """

    timers: int = 0
    refused: int = 0
    outages: list[tuple[str, int, int]] = field(default_factory=list)
    served_ms: dict[str, float] = field(default_factory=dict)
    excused_ms: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> str:
        return "none lost, none early, none twice"

    def lines(self) -> list[str]:
        return [
            f"{self.timers} timers acknowledged in {self.seconds:.0f} s, {self.refused} sends failed",
            *(
                f"{what}: sends taken again after {back - fault} ms"
                for what, fault, back in self.outages
            ),
            f"late while a master served, ms: {self.served_ms}",
            f"late, due during an outage, ms: {self.excused_ms}",
        ]


class TimerRun:
    """One run. Faults come at fixed parts of the stretch in which messages fall due."""

    def __init__(
        self, directory: Path, seed: int, timers: int, spread_s: float, say: Callable[[str], None]
    ) -> None:
        self.outcome = TimersOutcome(seed)
        self._rng = random.Random(seed)
        self._timers = timers
        self._spread_s = spread_s
        self._say = say
        self._due_ms: dict[bytes, int] = {}  # of acknowledged ones
        plan = GroupPlan(settings={"mappedFileSizeCommitLog": 64 << 20})
        self._group = ReplicaGroup(directory, plan)

    async def run(self) -> TimersOutcome:
        """All of it; expected failures become problems of the outcome."""
        try:
            async with self._group as group:
                await group.start()
                await group.create_topic(TOPIC, QUEUES)
                name_server = group.name_server_address
                async with Producer(
                    "ChaosTimers", namesrv=name_server, timeout_ms=3_000
                ) as producer:
                    first_s = time.time() + LEAD_S
                    sending = asyncio.create_task(self._send(producer, first_s), name="send")
                    await self._faults(producer, first_s)
                    await sending
                    await self._drained(first_s + self._spread_s)
                await group.whole()
                for replica in group.replicas:
                    await replica.terminate(30)
        except (ProcessBroken, TimeoutError) as problem:
            self.outcome.problems.append(f"{type(problem).__name__} {problem}")
        self._judge()
        return self.outcome

    # --- sending

    async def _send(self, producer: Producer, first_s: float) -> None:
        """Each with a time of its own; what is due early is sent early."""
        last_s = first_s + self._spread_s
        due = sorted(self._rng.uniform(first_s, last_s) for _ in range(self._timers))
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int, due_s: float) -> None:
            body = b"%d" % number
            due_s = min(max(due_s, time.time() + LEAD_S), last_s + 2 * LEAD_S)
            at = datetime.fromtimestamp(round(due_s, 3), UTC)
            try:
                await producer.send(Message(TOPIC, body, deliver_at=at), timeout_ms=20_000)
                self._due_ms[body] = round(at.timestamp() * 1000)
            except ClientError:
                self.outcome.refused += 1
            finally:
                room.release()

        async with asyncio.TaskGroup() as sends:
            for number, due_s in enumerate(due):
                await room.acquire()
                sends.create_task(one(number, due_s))
        self._say(f"{len(self._due_ms)} sent, {self.outcome.refused} not acknowledged")

    # --- faults

    async def _faults(self, producer: Producer, first_s: float) -> None:
        kinds: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("master killed -9", self._kill_master),
            ("master restarted", self._restart_master),
            ("both killed -9", self._kill_all),
        ]
        for number, (what, fault) in enumerate(kinds, 1):
            at_s = first_s + self._spread_s * number / (len(kinds) + 1)
            await asyncio.sleep(max(0.0, at_s - time.time()))
            await self._group.whole()
            fault_ms = round(time.time() * 1000)
            await fault()
            writable_ms = await self._writable(producer)
            self.outcome.outages.append((what, fault_ms, writable_ms))
            self._say(f"{what}: sends taken again after {writable_ms - fault_ms} ms")

    async def _kill_master(self) -> None:
        master = await self._group.whole_master()
        await master.kill()
        asyncio.get_running_loop().call_later(1.0, master.launch)

    async def _restart_master(self) -> None:
        master = await self._group.whole_master()
        await master.terminate(30)
        master.launch()

    async def _kill_all(self) -> None:
        for replica in self._group.replicas:
            await replica.kill()
        for replica in self._group.replicas:
            replica.launch()

    async def _writable(self, producer: Producer) -> int:
        async with asyncio.timeout(WRITABLE_S):
            while True:
                try:
                    await producer.send(Message(TOPIC, b"probe"), timeout_ms=PROBE_TIMEOUT_MS)
                    return round(time.time() * 1000)
                except ClientError:
                    await asyncio.sleep(0.02)

    async def _drained(self, last_s: float) -> None:
        await asyncio.sleep(max(0.0, last_s + 2 * LEAD_S + 2.0 - time.time()))

    # --- judging

    def _judge(self) -> None:
        problems = self.outcome.problems
        self.outcome.timers = len(self._due_ms)
        for replica in self._group.replicas:
            stored = times_in(replica.store)
            lost = self._due_ms.keys() - stored.keys()
            if lost:
                problems.append(f"LOST {len(lost)} in {replica.name}, e.g. {sorted(lost)[:5]}")
            sources = times_in(
                replica.store, delivered=False
            )  # a send that was tried again is stored again
            twice = [body for body in stored if len(stored[body]) > len(sources[body])]
            if twice:
                problems.append(f"TWICE {len(twice)} in {replica.name}, e.g. {sorted(twice)[:5]}")
        served, excused = self._lateness(times_in(self._group.replicas[0].store))
        early = [late for late in (*served, *excused) if late < 0]
        if early:
            problems.append(f"EARLY {len(early)}, the worst by {-min(early)} ms")
        self.outcome.served_ms, self.outcome.excused_ms = figures(served), figures(excused)
        if served and self.outcome.served_ms["p99"] > LATE_MS_MAX:
            problems.append(f"LATE p99 {self.outcome.served_ms['p99']} ms while a master served")

    def _lateness(self, stored: dict[bytes, list[int]]) -> tuple[list[float], list[float]]:
        served: list[float] = []
        excused: list[float] = []
        for body, due_ms in self._due_ms.items():
            if body in stored:
                out = any(fault <= due_ms <= back for _, fault, back in self.outcome.outages)
                (excused if out else served).append(min(stored[body]) - due_ms)
        return served, excused


def times_in(store: Path, *, delivered: bool = True) -> dict[bytes, list[int]]:
    """body -> store times of its delivered copies, or of the messages that wait for them, in a log nobody writes."""
    topic = (TOPIC if delivered else TIMER_TOPIC).encode()
    found: dict[bytes, list[int]] = defaultdict(list)
    for path in sorted((store / "commitlog").iterdir()):
        data = memoryview(path.read_bytes())
        for head in scan(data, 0, len(data)):
            if head.blank or head.topic != topic:
                continue
            if not delivered or b"TIMER_DEQUEUE_MS" in head.properties:
                found[bytes(decode(data, head.position).body)].append(head.store_ms)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("timers", __doc__, "--timers 50000 --spread-s 240")
    parser.add_argument("--timers", type=command.count, default=50_000)
    parser.add_argument(
        "--spread-s", type=command.amount, default=240.0, help="they fall due within that"
    )
    arguments = parser.parse_args(argv)
    run = command.begin(arguments)
    campaign = TimerRun(run.directory, run.seed, arguments.timers, arguments.spread_s, command.say)
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
