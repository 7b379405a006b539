"""Members of one consumer group join, leave and are killed under load; nothing may go unread.

    python -m tandemmq.chaos.rebalance_soak --seconds 180

Up to six members, each a process of its own, our client and (where Java and Maven are installed)
the stock Java client. Every few seconds one joins, one leaves in order or one is killed -9, while a
producer sends. Then:

* every message was consumed at least once;
* a message consumed again was not committed when its new owner took the queue over: positions of
  the group are sampled all the time, and a second delivery of what the last sample before the
  take-over shows as committed is a problem;
* at the end the members share the queues: no gap, no queue twice.

The seed draws who joins, leaves and dies; times differ from run to run.
Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.chaos import command
from tandemmq.chaos.campaign import Say
from tandemmq.chaos.java import delivered
from tandemmq.chaos.numbered import Numbered, beside, make_topic, sample
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.processes import ServerProcess
from tandemmq.chaos.repeats import Delivery, Positions
from tandemmq.chaos.servers import Broker, NameServer, python_env
from tandemmq.cluster.client import MessageQueue, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.java import NEWEST, Driver, JavaFailed, java_missing

GROUP: Final = "SoakGroup"
TOPIC: Final = "Soak"
BROKERS: Final = ("broker-a", "broker-b")
MEMBERS_MAX: Final = 6
JAVA_MEMBERS_MAX: Final = 2
SAMPLE_INTERVAL_S: Final = 0.2
WATCH_INTERVAL_S: Final = 0.1  # how often members look at their own queues
# A take-over is seen late: by the look's interval, and by what reading the position took.
TAKE_OVER_SLACK_MS: Final = 1_500
CATCH_UP_S: Final = 90.0
Holding = tuple[float, frozenset[MessageQueue]]  # wall ms, the queues held from then on


@dataclass(frozen=True, slots=True)
class Settings:
    """seconds: of joining and leaving. rate: messages per second. java: whether it may take part."""

    seconds: float
    seed: int
    directory: Path
    rate: int = 300
    queue_count: int = 12
    java: bool = True
    pause_s: tuple[float, float] = (1.0, 4.0)


@dataclass(slots=True)
class SoakOutcome(Outcome):
    """What a run did and found. actions: how often somebody joined, left or was killed."""

    sent: int = 0
    delivered: int = 0
    repeated: int = 0
    actions: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> str:
        return "nothing unread, nothing again that was committed, every queue in one hand"

    def lines(self) -> list[str]:
        actions = ", ".join(f"{count} {what}" for what, count in sorted(self.actions.items()))
        return [
            f"sent {self.sent}, delivered {self.delivered}, of these {self.repeated} again "
            f"({self.repeated / max(1, self.sent):.2%}); {actions}"
        ]

    def acted(self, what: str) -> None:
        self.actions[what] = self.actions.get(what, 0) + 1


# --- the member process


class Fact(msgspec.Struct, omit_defaults=True):
    """A line of a member's: what it was given, or from when on it held which queues."""

    given: Delivery | None = None
    held: Holding | None = None


async def be_member(namesrv: str, log: Path) -> None:
    """A consumer of our client until SIGTERM; every delivery is one line before it counts as done."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with log.open("ab", buffering=0) as out:

        def note(fact: Fact) -> None:
            out.write(msgspec.json.encode(fact) + b"\n")

        async def handle(message: ReceivedMessage) -> None:
            now_ms, key = time.time() * 1000, message.body.decode()
            given = Delivery(log.stem, message.queue, message.queue_offset, key, now_ms)
            note(Fact(given=given))

        consumer = PushConsumer(
            GROUP, handle, namesrv=namesrv, subscribe={TOPIC: "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            held: frozenset[MessageQueue] = frozenset()
            while not stop.is_set():
                now = frozenset(each for each in consumer.assignment if each.topic == TOPIC)
                if now != held:
                    held = now
                    note(Fact(held=(time.time() * 1000, held)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), WATCH_INTERVAL_S)
        note(Fact(held=(time.time() * 1000, frozenset())))


class PythonMember(ServerProcess):
    """Our client in a process of its own."""

    kind = "python"

    def __init__(self, name: str, namesrv: str, directory: Path) -> None:
        self.facts = directory / f"{name}.jsonl"
        self.facts.touch()
        module = ["-m", "tandemmq.chaos.rebalance_soak", "--member", str(self.facts)]
        command = [sys.executable, *module, "--namesrv", namesrv]
        super().__init__(name, command, directory / f"{name}.err", python_env())
        self.launch()

    def leave(self) -> None:
        """Stop in order. Raises ProcessBroken."""
        self.terminate(30)

    def look(self) -> None:
        """It writes down its own facts."""

    def deliveries(self) -> list[Delivery]:
        """Everything it was given."""
        return [fact.given for fact in self._facts() if fact.given is not None]

    def holdings(self) -> list[Holding]:
        """Whenever its queues changed."""
        return [fact.held for fact in self._facts() if fact.held is not None]

    def _facts(self) -> list[Fact]:
        whole = self.facts.read_bytes().rpartition(b"\n")[0]  # a kill may cut the last line
        return [msgspec.json.decode(line, type=Fact) for line in whole.splitlines()]


class JavaMember:
    """The stock client in a JVM of its own, through a driver."""

    kind = "java"

    def __init__(self, name: str, namesrv: str, directory: Path) -> None:
        self.name = name
        self._driver = Driver(NEWEST, "json", namesrv, directory / name)
        self._driver.call("push.start", name="c", topic=TOPIC, group=GROUP)
        self._holdings: list[Holding] = []

    def leave(self) -> None:
        """Stop in order."""
        self._driver.call("push.stop", name="c")
        self._holdings.append((time.time() * 1000, frozenset()))
        self._driver.close()

    def kill(self) -> None:
        """kill -9."""
        self._driver.kill()

    abandon = kill

    def look(self) -> None:
        """Ask it for its queues."""
        found = frozenset(
            MessageQueue(TOPIC, each.get("brokerName") or each["broker"], each["queueId"])
            for each in self._driver.call("push.queues", name="c")
            if each["topic"] == TOPIC
        )
        if not self._holdings or self._holdings[-1][1] != found:
            self._holdings.append((time.time() * 1000, found))

    def deliveries(self) -> list[Delivery]:
        """Everything it was given."""
        return delivered(self._driver, "c", self.name)

    def holdings(self) -> list[Holding]:
        """Whenever its queues changed."""
        return self._holdings


Member = PythonMember | JavaMember


# --- the checks


def check(
    sent: Sequence[str],
    members: Sequence[tuple[Sequence[Delivery], Sequence[Holding]]],
    samples: Positions,
) -> tuple[int, list[str]]:
    """(second deliveries, problems). Pure: see the module's text for the rules."""
    problems: list[str] = []
    everything = sorted((each for given, _ in members for each in given), key=lambda d: d.at_ms)
    if not everything or not samples.count:
        return 0, ["EMPTY: nothing was delivered or sampled, so nothing was shown"]
    seen: set[str] = set()
    taken = {given[0].member: taken_over(holdings, given) for given, holdings in members if given}
    repeated = 0
    for each in everything:
        if each.key not in seen:
            seen.add(each.key)
            continue
        repeated += 1
        starts = taken[each.member][each.queue]
        place = bisect_left(starts, each.at_ms + TAKE_OVER_SLACK_MS)
        if not place:
            continue  # held for less than a look takes
        committed = samples.last(each.queue, starts[place - 1] - TAKE_OVER_SLACK_MS)
        if each.queue_offset < committed:
            problems.append(
                f"REPEATED: {each.member} got {each.queue} offset {each.queue_offset} again, though "
                f"{committed} was committed before it took the queue over"
            )
    missing = [key for key in sent if key not in seen]
    problems += [f"UNREAD: message {key} was acknowledged and never consumed" for key in missing]
    return repeated, problems


def taken_over(
    holdings: Sequence[Holding], given: Sequence[Delivery]
) -> defaultdict[MessageQueue, list[float]]:
    """When each queue was taken over at the latest, in order of time.

    A look may come late (a JVM under load takes seconds to answer); a delivery between the look that
    saw the queue lost and the one that saw it held shows that it was taken over before.
    """
    arrived: defaultdict[MessageQueue, list[float]] = defaultdict(list)
    for each in sorted(given, key=lambda delivery: delivery.at_ms):
        arrived[each.queue].append(each.at_ms)
    starts: defaultdict[MessageQueue, list[float]] = defaultdict(list)
    lost: dict[MessageQueue, float] = {}
    before: frozenset[MessageQueue] = frozenset()
    for at_ms, held in holdings:
        for queue in held - before:
            place = bisect_left(arrived[queue], lost.get(queue, 0.0))
            first_ms = arrived[queue][place] if place < len(arrived[queue]) else at_ms
            starts[queue].append(min(at_ms, first_ms))
        for queue in before - held:
            lost[queue] = at_ms
        before = held
    return starts


def check_shares(
    queues: Sequence[MessageQueue], shares: Mapping[str, frozenset[MessageQueue]]
) -> list[str]:
    """Gaps and queues that two members hold."""
    owners: defaultdict[MessageQueue, list[str]] = defaultdict(list)
    for name, held in shares.items():
        for queue in held:
            owners[queue].append(name)
    problems = [f"GAP: nobody holds {queue}" for queue in queues if queue not in owners]
    return problems + [
        f"TWICE: {queue} is held by {', '.join(names)}"
        for queue, names in owners.items()
        if len(names) > 1
    ]


# --- the run


class Soak:
    """One run over a cluster that somebody else started."""

    def __init__(self, settings: Settings, namesrv: str, java: bool, say: Say) -> None:
        self._settings = settings
        self._namesrv = namesrv
        self._java = java
        self._say = say
        self._rng = random.Random(settings.seed)
        self._live: list[Member] = []
        self._gone: list[Member] = []
        self._number = 0
        self._load = Numbered(namesrv, TOPIC, settings.rate)
        self._samples = Positions()
        self.outcome = SoakOutcome(settings.seed)

    async def run(self) -> SoakOutcome:
        """Everything; members are gone when it returns."""
        queues = await make_topic(self._namesrv, TOPIC, self._settings.queue_count, len(BROKERS))
        sampling = sample(self._namesrv, GROUP, queues, self._samples, SAMPLE_INTERVAL_S)
        problems = self.outcome.problems
        try:
            async with beside(problems, sampling, self._look(), self._load.run()):
                await self._churn()
                await self._load.enough()
                await self._catch_up(queues)
        finally:
            for member in self._live:
                await asyncio.to_thread(member.abandon)
            self._gone += self._live
        if self._load.unanswered:
            problems.append(f"BROKEN: {self._load.unanswered} sends failed, though no broker did")
        facts = [(member.deliveries(), member.holdings()) for member in self._gone]
        self.outcome.sent = len(self._load.sent)
        self.outcome.delivered = sum(len(given) for given, _ in facts)
        self.outcome.repeated, found = check(self._load.sent, facts, self._samples)
        problems += found
        return self.outcome

    async def _churn(self) -> None:
        deadline = time.monotonic() + self._settings.seconds
        await self._join()
        while time.monotonic() < deadline:
            count = len(self._live)
            chances = {
                "join": 0 if count == MEMBERS_MAX else 3 if count < 4 else 2,
                "leave": 0 if count < 2 else 1,
                "kill": 0 if count < 2 else 1,
            }
            action = self._rng.choices(list(chances), list(chances.values()))[0]
            if action == "join":
                await self._join()
            else:
                member = self._live.pop(self._rng.randrange(count))
                work = member.leave if action == "leave" else member.kill
                await asyncio.to_thread(work)
                self._gone.append(member)
                self.outcome.acted(f"{action} {member.kind}")
                self._say(f"{action} {member.name}, {count - 1} members left")
            await asyncio.sleep(self._rng.uniform(*self._settings.pause_s))

    async def _join(self) -> None:
        self._number += 1
        java = sum(member.kind == "java" for member in self._live)
        wants_java = self._java and java < JAVA_MEMBERS_MAX
        if wants_java and self._rng.random() < 0.4:
            name = f"java-{self._number}"
            member: Member = await asyncio.to_thread(
                JavaMember, name, self._namesrv, self._settings.directory
            )
        else:
            name = f"python-{self._number}"
            member = PythonMember(name, self._namesrv, self._settings.directory)
        self._live.append(member)
        self.outcome.acted(f"join {member.kind}")
        self._say(f"join {name}, {len(self._live)} members")

    async def _look(self) -> None:
        while True:
            for member in list(self._live):
                with contextlib.suppress(JavaFailed, OSError, ValueError):  # it just died
                    await asyncio.to_thread(member.look)
            await asyncio.sleep(2 * WATCH_INTERVAL_S)

    async def _catch_up(self, queues: Sequence[MessageQueue]) -> None:
        """Until all is read and the shares are right; what is wrong then is a problem."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            seen = {each.key for each in self._deliveries()}
            shares = {member.name: _last(member.holdings()) for member in self._live}
            problems = check_shares(queues, shares)
            if not problems and len(seen) >= len(self._load.sent):
                return
            if time.monotonic() > deadline:
                self.outcome.problems += problems
                return  # the unread ones are found by check()
            await asyncio.sleep(0.5)

    def _deliveries(self) -> list[Delivery]:
        return [each for member in [*self._gone, *self._live] for each in member.deliveries()]


def _last(holdings: Sequence[Holding]) -> frozenset[MessageQueue]:
    return holdings[-1][1] if holdings else frozenset()


async def soak(settings: Settings, say: Say) -> SoakOutcome:
    """A name server and two brokers of ours, and one run over them."""
    missing = java_missing() if settings.java else None
    if missing:
        say(f"without Java members: {missing}")
    java = settings.java and not missing
    with NameServer(settings.directory) as name_server, contextlib.ExitStack() as stack:
        name_server.start()
        for name in BROKERS:
            broker = Broker(
                settings.directory / name, name_server.address, name=name,
                settings={"mappedFileSizeCommitLog": 64 << 20, "mappedFileSizeConsumeQueue": 60_000},
            )  # fmt: skip
            stack.enter_context(broker).start()
        return await Soak(settings, name_server.address, java, say).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as the module says."""
    parser = command.parser("rebalance_soak", __doc__, "--seconds 180 --seed 7")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=int, default=300, help="messages/s (default %(default)s)")
    parser.add_argument("--no-java", action="store_true", help="only members of our client")
    parser.add_argument("--member", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--namesrv", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.member is not None:
        asyncio.run(be_member(given.namesrv, given.member))
        return 0
    run = command.begin(given)
    settings = Settings(
        given.seconds, run.seed, run.directory, rate=given.rate, java=not given.no_java
    )
    return command.play(run, soak(settings, command.say))


if __name__ == "__main__":
    sys.exit(main())
