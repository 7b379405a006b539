"""Brokers restart again and again under consumers that live on: nothing comes twice that was finished and committed.

    python -m tandemmq.chaos.restarts --restarts 20

A name server and two brokers of `tandem local`, a producer that goes on, a group of our PushConsumer and (where
Java and Maven are) one of the stock DefaultMQPushConsumer, two members each, all on the same topic. One broker after
the other is restarted: by kill -9, by SIGTERM, by `tandem local kill`, in turn; `tandem local start` brings it back, at
once or a moment later. Then both groups must go on reading from it. Brokers are asked all the time what is committed.

Everything acknowledged must come to both groups; what may come again, and to whom, is in chaos.repeats. How often each
group was given something again is printed, and ours must not be more than theirs.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tandemmq.chaos import command
from tandemmq.chaos.campaign import Say
from tandemmq.chaos.java import delivered
from tandemmq.chaos.numbered import Numbered, beside, make_topic, sample
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ProcessBroken, state_of
from tandemmq.chaos.repeats import (
    OURS,
    STOCK,
    Delivery,
    Positions,
    Restart,
    Tally,
    more_often,
    tally,
)
from tandemmq.cluster.client import (
    ClientError,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.java import NEWEST, Driver, java_missing

TOPIC: Final = "Restarted"
BROKERS: Final = ("broker-a", "broker-b")
PORT_OFFSETS: Final = (-2, 0, 1, 8, 10, 11)  # of broker-a, and of broker-b ten above
KILL, TERM, LOCAL = "kill -9", "SIGTERM", "tandem local kill"
WAYS: Final = (KILL, TERM, LOCAL)
AWAY_S: Final = (0.0, 0.0, 2.0)  # before it is started again
PAUSE_S: Final = (1.0, 7.0)  # between two restarts: positions reach the disk every 5 s
SAMPLE_S: Final = 0.1
GOES_ON_S: Final = 90.0  # stock clients look for routes and members every 20 to 30 s
GONE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Settings:
    """rate: messages per second. queues: of each broker. members: of each group. java: a stock group too."""

    restarts: int
    seed: int
    directory: Path
    rate: int = 200
    queues: int = 2
    members: int = 2
    java: bool = True
    pause_s: tuple[float, float] = PAUSE_S


@dataclass(slots=True)
class RestartsOutcome(Outcome):
    """What a run did and found.

    restarts: how many by which way. sent: and acknowledged. unanswered: asked for and not acknowledged; each may be
    stored or not
    """

    sent: int = 0
    unanswered: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    groups: dict[str, Tally] = field(default_factory=dict)

    @property
    def held(self) -> str:
        return "all came to every group, and nothing again that was finished and committed"

    def lines(self) -> list[str]:
        ways = ", ".join(f"{count} by {how}" for how, count in self.restarts.items())
        said = [f"sent {self.sent}; restarts: {ways}"]
        said += [
            f"{name}: delivered {found.delivered}, of these {found.repeated} again, {found.went_back} of them to the "
            f"member that had them; brokers' positions set back {found.set_back} times"
            for name, found in self.groups.items()
        ]
        return said


class LocalCluster:
    """`tandem local` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = PORTS.take((0,))
        self.name_server = f"{LOOPBACK}:{self.port}"

    def run(self, action: str, *more: object) -> str:
        """One `tandem local` command. Raises ProcessBroken when it fails."""
        line = [sys.executable, "-m", "tandemmq", "local", action, *map(str, more)]
        done = subprocess.run(
            [*line, "--dir", str(self.directory)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ProcessBroken(f"local {action} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Up, and down in the end."""
        brokers = PORTS.take(PORT_OFFSETS)
        ports = ("--namesrv-port", self.port, "--broker-port", brokers)
        try:
            await asyncio.to_thread(self.run, "up", *ports)
            yield
        finally:
            await asyncio.to_thread(self.run, "down", "--kill")

    def end(self, broker: str, how: str) -> None:
        """One broker's end. Returns when its process is gone."""
        if how == LOCAL:
            self.run("kill", broker)
            return
        pid = json.loads((self.directory / "run" / f"{broker}.pid").read_text())["pid"]
        os.kill(pid, signal.SIGKILL if how == KILL else signal.SIGTERM)
        deadline = time.monotonic() + GONE_S
        while state_of(pid) not in ("", "Z"):
            if time.monotonic() > deadline:
                raise ProcessBroken(f"{broker} (pid {pid}) still runs {GONE_S:g} s after {how}")
            time.sleep(0.01)


class ReadingGroup(Protocol):
    """One consumer group that lives through all restarts. name: as brokers know it."""

    name: str
    ours: bool

    async def start(self) -> None:
        """All members."""

    async def stop(self) -> None:
        """All members."""

    def given(self) -> Sequence[Delivery]:
        """Everything so far."""


class OurGroup:
    """Members are our PushConsumer, in this process."""

    name = OURS
    ours = True

    def __init__(self, settings: Settings, name_server: str) -> None:
        self._given: list[Delivery] = []
        self._members = [self._member(f"{n}", name_server) for n in range(settings.members)]

    def _member(self, name: str, name_server: str) -> PushConsumer:
        async def take(message: ReceivedMessage) -> None:
            now_ms, key = time.time() * 1000, message.body.decode()
            self._given.append(Delivery(name, message.queue, message.queue_offset, key, now_ms))

        return PushConsumer(
            self.name, take, namesrv=name_server, subscribe={TOPIC: "*"}, start=StartFrom.FIRST,
            instance_name=f"restarts-{name}",
        )  # fmt: skip

    async def start(self) -> None:
        """All members."""
        for member in self._members:
            await member.start()

    async def stop(self) -> None:
        """All members."""
        await asyncio.gather(*(each.stop() for each in self._members))

    def given(self) -> Sequence[Delivery]:
        """Everything so far."""
        return self._given


class StockGroup:
    """Members are DefaultMQPushConsumer in one JVM."""

    name = STOCK
    ours = False

    def __init__(self, settings: Settings, name_server: str) -> None:
        self._members = [f"{number}" for number in range(settings.members)]
        self._driver = Driver(NEWEST, "json", name_server, settings.directory / "java")

    async def start(self) -> None:
        """All members."""
        for name in self._members:
            await asyncio.to_thread(
                self._driver.call, "push.start",
                name=name, topic=TOPIC, group=self.name, instance=f"restarts-{name}",
            )  # fmt: skip

    async def stop(self) -> None:
        """The JVM."""
        await asyncio.to_thread(self._driver.close)

    def given(self) -> Sequence[Delivery]:
        """Everything so far."""
        return [each for name in self._members for each in delivered(self._driver, name, name)]


class Campaign:
    """One run over a cluster that runs."""

    def __init__(
        self,
        settings: Settings,
        cluster: LocalCluster,
        groups: Sequence[ReadingGroup],
        say: Say,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._groups = groups
        self._say = say
        self._rng = random.Random(settings.seed)
        self._load = Numbered(cluster.name_server, TOPIC, settings.rate)
        self._restarts: list[Restart] = []
        self._positions = {each.name: Positions() for each in groups}
        self.outcome = RestartsOutcome(settings.seed)

    async def run(self) -> RestartsOutcome:
        """Everything. Raises ProcessBroken, ClientError."""
        names = self._cluster.name_server
        queues = await make_topic(names, TOPIC, self._settings.queues, len(BROKERS))
        async with contextlib.AsyncExitStack() as stack:
            for group in self._groups:
                stack.push_async_callback(group.stop)
                await group.start()
            samples = [
                sample(names, name, of_broker(broker, queues), positions, SAMPLE_S)
                for name, positions in self._positions.items()
                for broker in BROKERS
            ]
            async with beside(self.outcome.problems, self._load.run(), *samples):
                await self._goes_on(BROKERS)
                for number in range(self._settings.restarts):
                    await self._restart(number)
                await self._load.enough()
                await self._catch_up()
            self._judge()
        return self.outcome

    async def _restart(self, number: int) -> None:
        how = WAYS[number % len(WAYS)]
        broker = self._rng.choice(BROKERS)
        away_s = self._rng.choice(AWAY_S)
        await asyncio.sleep(self._rng.uniform(*self._settings.pause_s))
        self._restarts.append(Restart(broker, how, time.time() * 1000, how == TERM))
        began = time.monotonic()
        await asyncio.to_thread(self._cluster.end, broker, how)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self._cluster.run, "start", broker)
        back_s = time.monotonic() - began
        waits = await self._goes_on([broker])
        self.outcome.restarts[how] = self.outcome.restarts.get(how, 0) + 1
        read = ", ".join(f"{name} after {wait_s:.1f} s" for name, wait_s in waits.items())
        self._say(f"{number + 1}: {how} of {broker}, back after {back_s:.1f} s; read on: {read}")

    async def _goes_on(self, brokers: Sequence[str]) -> dict[str, float]:
        """Wait until every group was given something of these brokers that was not sent yet; how long it took, s."""
        began, number = time.monotonic(), len(self._load.sent)
        waits: dict[str, float] = {}
        while len(waits) < len(self._groups):
            new = set(self._load.sent[number:])
            for group in self._groups:
                found = {each.queue.broker_name for each in group.given() if each.key in new}
                if group.name not in waits and found.issuperset(brokers):
                    waits[group.name] = time.monotonic() - began
            if time.monotonic() - began > GOES_ON_S:
                late = [each.name for each in self._groups if each.name not in waits]
                self.outcome.problems.append(
                    f"STUCK: {', '.join(late)} read nothing new of {', '.join(brokers)} in {GOES_ON_S:g} s"
                )
                break
            await asyncio.sleep(0.1)
        return waits

    async def _catch_up(self) -> None:
        """Until everybody has all, or for long enough: what is missing then is found by tally()."""
        deadline = time.monotonic() + GOES_ON_S
        sent = set(self._load.sent)
        while time.monotonic() < deadline:
            if all(sent <= {each.key for each in group.given()} for group in self._groups):
                return
            await asyncio.sleep(0.5)

    def _judge(self) -> None:
        self.outcome.sent, self.outcome.unanswered = len(self._load.sent), self._load.unanswered
        for group in self._groups:
            found = tally(
                self._load.sent,
                group.given(),
                self._restarts,
                self._positions[group.name],
                ours=group.ours,
            )
            self.outcome.groups[group.name] = found
            self.outcome.problems += [f"{group.name}: {each}" for each in found.problems]
        self.outcome.problems += more_often(self.outcome.groups, len(self._restarts))


def of_broker(name: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    return [each for each in queues if each.broker_name == name]


async def campaign(settings: Settings, say: Say) -> RestartsOutcome:
    """A cluster, its groups and one run over them. A run that broke off says so among its problems."""
    missing = java_missing() if settings.java else None
    if missing:
        say(f"without stock consumers: {missing}")
    cluster = LocalCluster(settings.directory / "cluster")
    async with cluster.running():
        groups: list[ReadingGroup] = [OurGroup(settings, cluster.name_server)]
        if settings.java and not missing:
            groups.append(await asyncio.to_thread(StockGroup, settings, cluster.name_server))
        run = Campaign(settings, cluster, groups, say)
        try:
            return await run.run()
        except (ProcessBroken, ClientError, OSError) as problem:
            run.outcome.problems.append(f"{type(problem).__name__}: {problem}")
            return run.outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as the module says."""
    parser = command.parser("restarts", __doc__, "--restarts 20")
    parser.add_argument(
        "--restarts", type=command.count, default=20, help="of one broker (%(default)s)"
    )
    parser.add_argument("--rate", type=command.count, default=200, help="messages/s (%(default)s)")
    parser.add_argument(
        "--queues", type=command.count, default=2, help="of each broker (%(default)s)"
    )
    parser.add_argument(
        "--members", type=command.count, default=2, help="of each group (%(default)s)"
    )
    parser.add_argument("--no-java", action="store_true", help="only a group of our client")
    given = parser.parse_args(argv)
    run = command.begin(given)
    settings = Settings(
        given.restarts, run.seed, run.directory, given.rate, given.queues, given.members,
        not given.no_java,
    )  # fmt: skip
    return command.play(run, campaign(settings, command.say))


if __name__ == "__main__":
    sys.exit(main())
