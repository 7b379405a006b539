"""Kills producers and masters -9 in the middle of transactions, again and again, and judges every one of them.

    python -m tandemmq.chaos.transactions --transactions 10000

Producers of one group begin transactions and commit them, roll them back, or leave them to the broker's check. At
random one of them is killed, or the master of the replicated group is; it comes back a little later. At the end every
transaction that was decided to be committed must be in the topic, exactly once; nothing else may be; none may have been
asked about after its end was confirmed; and none may be left pending.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.gauges import metric_values, scrape
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.load import open_reader, read_queue
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken
from tandemmq.chaos.servers import python_env
from tandemmq.chaos.transactor import SETTINGS, TOPIC, TransactionBook, asked_late
from tandemmq.cluster.remoting import RemotingError

QUEUES: Final = 4
SETTLED_S: Final = 90.0


@dataclass(slots=True)
class TransactionsOutcome(Outcome):
    """What a run did and found."""

    mode: str = ""
    decided: int = 0
    committed: int = 0
    delivered: int = 0
    confirmed_ends: int = 0
    questions: int = 0
    masters_killed: int = 0
    producers_killed: int = 0

    @property
    def both_died(self) -> bool:
        return bool(self.masters_killed and self.producers_killed)

    @property
    def held(self) -> str:
        return "every committed one there once, no other, none asked for after its end"

    def lines(self) -> list[str]:
        return [
            f"mode {self.mode}: {self.decided} transactions in {self.seconds:.0f} s; {self.masters_killed} masters and "
            f"{self.producers_killed} producers killed; {self.committed} committed, {self.delivered} delivered; "
            f"{self.confirmed_ends} ends confirmed, {self.questions} questions asked"
        ]


def judge_transactions(
    decisions: Mapping[str, bool],
    delivered: Mapping[str, int],
    ends: Iterable[tuple[str, int]],
    questions: Iterable[tuple[str, int]],
) -> Iterator[str]:
    """A sentence per violation.

    decisions  id -> whether it was to be committed; delivered: id -> how often it is in the topic
    ends, questions  (id, ns): a confirmed end, a broker's question
    """
    for unique_id, committed in decisions.items():
        count = delivered.get(unique_id, 0)
        if committed and not count:
            yield f"LOST {unique_id} was committed"
        elif not committed and count:
            yield f"SEEN {unique_id} was rolled back, and is there {count} times"
        elif count > 1:
            yield f"TWICE {unique_id} is there {count} times"
    for unique_id in delivered.keys() - decisions.keys():
        yield f"UNDECIDED {unique_id} is there, and nobody has committed it"
    yield from asked_late(ends, questions)


@dataclass(slots=True)
class TransactionsCampaign:
    """One run. count: transactions to be decided; rate: of all producers together, per second."""

    plan: GroupPlan
    directory: Path
    seed: int
    say: Callable[[str], None]
    count: int = 10_000
    producers: int = 2
    rate: float = 60
    pause_s: tuple[float, float] = (0.5, 4.0)

    async def run(self) -> TransactionsOutcome:
        """All of it; expected failures become problems of the outcome."""
        outcome = TransactionsOutcome(self.seed, self.plan.mode)
        rng = random.Random(self.seed)
        book = TransactionBook(self.directory / "book.sqlite")
        processes: list[AsyncProcess] = []
        try:
            async with ReplicaGroup(self.directory, self.plan) as group:
                await group.start()
                await group.create_topic(TOPIC, QUEUES)
                processes += [self._producer(group, number) for number in range(self.producers)]
                for process in processes:
                    process.launch()
                # one in which nobody of either kind died has shown less than it says
                while book.count() < self.count or not outcome.both_died:
                    await asyncio.sleep(rng.uniform(*self.pause_s))
                    await self._fault(rng, group, processes, outcome)
                    self.say(f"{book.count()} of {self.count} decided")
                (self.directory / "stop").touch()
                delivered = await self._settled(group, book, outcome)
                outcome.problems += judge_transactions(
                    book.decisions(), delivered, book.ends(), book.questions()
                )
                outcome.delivered = sum(delivered.values())
        except (ProcessBroken, RemotingError) as problem:
            outcome.problems.append(f"{type(problem).__name__} {problem}")
        finally:
            for process in processes:
                process.abandon()
        outcome.decided = book.count()
        outcome.committed = sum(book.decisions().values())
        outcome.confirmed_ends, outcome.questions = len(book.ends()), len(book.questions())
        book.close()
        return outcome

    def _producer(self, group: ReplicaGroup, number: int) -> AsyncProcess:
        command_line = [
            sys.executable, "-m", "tandemmq.chaos.transactor", "--namesrv", group.name_server_address,
            "--directory", str(self.directory), "--number", str(number),
            "--rate", str(self.rate / self.producers),
        ]  # fmt: skip
        log = self.directory / f"producer-{number}.log"
        return AsyncProcess(f"producer {number}", command_line, log, python_env())

    async def _fault(
        self,
        rng: random.Random,
        group: ReplicaGroup,
        processes: Sequence[AsyncProcess],
        outcome: TransactionsOutcome,
    ) -> None:
        one_kind = bool(outcome.masters_killed) != bool(outcome.producers_killed)
        if outcome.masters_killed if one_kind else rng.random() < 0.5:  # the other kind is next
            victim: AsyncProcess = rng.choice(processes)
            outcome.producers_killed += 1
        else:
            victim = await group.whole_master()
            outcome.masters_killed += 1
        await victim.kill()
        self.say(f"killed {victim.name}")
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        victim.launch()
        await group.whole()

    async def _settled(
        self, group: ReplicaGroup, book: TransactionBook, outcome: TransactionsOutcome
    ) -> Counter[str]:
        """Wait until nothing is pending, and a little longer; how often each message is in the topic."""
        deadline = time.monotonic() + SETTLED_S
        master = await group.whole_master()
        while True:
            await asyncio.sleep(1.0)
            page = await scrape(master.metrics_port)
            pending = sum(metric_values(page, "rocketmq_half_messages"))
            if not pending:
                break
            if time.monotonic() > deadline:
                outcome.problems.append(f"PENDING {pending:g} transactions {SETTLED_S:g} s later")
                break
        await asyncio.sleep(2.0)  # whoever is still asked for was over
        channel = await open_reader(int(master.address.rpartition(":")[2]))
        found: Counter[str] = Counter()
        try:
            for queue_id in range(QUEUES):
                contents = await read_queue(channel, (TOPIC, queue_id), 0)
                found.update(message.unique_id for message in contents.messages)
        finally:
            channel.close("read")
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("transactions", __doc__, "--transactions 10000")
    parser.add_argument("--transactions", type=command.count, default=10_000)
    parser.add_argument("--producers", type=command.count, default=2)
    command.add_group_arguments(parser, rate=60, rate_help="transactions/s (%(default)g)")
    arguments = parser.parse_args(argv)
    if arguments.rate <= 0:
        parser.error("--rate must be above 0")
    if arguments.mode == "async":
        parser.error("an asynchronous group may lose what was committed at a failover")
    run = command.begin(arguments)
    plan = command.group_plan(arguments, settings=SETTINGS)
    campaign = TransactionsCampaign(
        plan, run.directory, run.seed, command.say, arguments.transactions, arguments.producers,
        arguments.rate,
    )  # fmt: skip
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
