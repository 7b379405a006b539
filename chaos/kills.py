"""Kills one broker -9 at random points under load, again and again, and looks for anything lost.

    python -m tandemmq.chaos.kills --rounds 100

After each kill the broker is started again, in some rounds killed once more while it recovers; now
and then it is stopped with SIGTERM under the same load instead. Then everything acknowledged must
be readable where the answer said, with its body; queue offsets must run without gap and without a
message twice; after a clean stop the files must agree with each other (storage.inspect_store).
The seed draws the plan and the messages; what was in flight at a kill differs from run to run.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.campaign import Say
from tandemmq.chaos.checkers import Queue, QueueContents, check_acknowledged, check_queues
from tandemmq.chaos.checking.lines import OK, Send
from tandemmq.chaos.history import HistoryMissing
from tandemmq.chaos.journal import Journal, read_sends
from tandemmq.chaos.load import ConnectFailed, Load, UnreadableQueue, open_reader, read_queue
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.servers import Broker
from tandemmq.cluster.remoting import ConnectionLost, RequestTimedOut
from tandemmq.storage import CorruptRecord, inspect_store

READY_S: Final = 60.0
REREAD_MESSAGES: Final = 100  # of each queue, in front of what the round added
CLEAN_STOP_SHARE: Final = 0.1
RECOVERY_KILL_SHARE: Final = 0.3
RECOVERY_KILLS_MAX: Final = 3

# Small files, so that the log, the queues and the index roll in every round.
SMALL_FILES: Final[dict[str, object]] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "fileReservedTime": 87600,
    "defaultTopicQueueNums": 8,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """load_s: longest time of load before a kill. full_every: rounds between whole readings.

    catch_up_s: how long dispatch may take after a start to reach what was acknowledged.
    """

    rounds: int
    seed: int
    directory: Path
    sync_flush: bool = False
    connections: int = 3
    outstanding: int = 8
    load_s: float = 0.6
    full_every: int = 20
    catch_up_s: float = 15.0


@dataclass(slots=True)
class KillsOutcome(Outcome):
    """What a run did and found."""

    rounds: int = 0
    kills: int = 0
    kills_in_recovery: int = 0
    clean_stops: int = 0
    acknowledged: int = 0
    refused: int = 0
    messages_read: int = 0
    slowest_start_s: float = 0.0

    @property
    def held(self) -> str:
        return "nothing lost, nothing repeated, no queue with a gap"

    def lines(self) -> list[str]:
        return [
            f"{self.rounds} rounds in {self.seconds:.0f} s: {self.kills} kills, "
            f"{self.kills_in_recovery} more during recovery, {self.clean_stops} clean stops; "
            f"{self.acknowledged} messages acknowledged, {self.messages_read} read back; "
            f"slowest start {self.slowest_start_s:.2f} s"
        ]


class Run:
    """One campaign on one store."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings = settings
        self.outcome = KillsOutcome(settings.seed)
        self._say = say
        self._rng = random.Random(settings.seed)
        flush = "SYNC_FLUSH" if settings.sync_flush else "ASYNC_FLUSH"
        self._broker = Broker(
            settings.directory,
            "",
            name="broker-kills",
            settings={**SMALL_FILES, "flushDiskType": flush},
        )
        self._ends: dict[Queue, int] = {}  # what the last check saw
        self._acknowledged: list[Send] = []  # since the last check
        self._journal_path = settings.directory / "journal.jsonl"

    async def run(self) -> KillsOutcome:
        """All rounds and the last checks; expected failures become problems of the outcome."""
        try:
            with Journal(self._journal_path) as journal:
                load = Load(
                    self._broker.port, self._rng, lambda send: self._acknowledge(journal, send)
                )
                await self._start()
                for number in range(1, self.settings.rounds + 1):
                    await self._round(number, load, journal)
                    if not self.outcome.good:
                        break
                self.outcome.refused = len(load.refused)
            if self.outcome.good:
                await self._last_checks()
        except (ProcessBroken, HistoryMissing, ConnectFailed, UnreadableQueue) as problem:
            self._problem(f"{type(problem).__name__}: {problem}")
        except (ConnectionLost, RequestTimedOut, CorruptRecord) as problem:
            self._problem(f"while reading: {type(problem).__name__}: {problem}")
        finally:
            self._broker.abandon()
        return self.outcome

    def _acknowledge(self, journal: Journal, send: Send) -> None:
        journal.send(send)
        self._acknowledged.append(send)
        self.outcome.acknowledged += 1

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    async def _start(self) -> float:
        began = time.monotonic()
        self._broker.launch()
        await asyncio.to_thread(self._broker.wait_ready, self._broker.ready, READY_S)
        seconds = time.monotonic() - began
        self.outcome.slowest_start_s = max(self.outcome.slowest_start_s, round(seconds, 3))
        return seconds

    async def _stop(self) -> None:
        if code := await asyncio.to_thread(self._broker.stop):
            raise self._broker.broken(f"ended with {code} after SIGTERM")

    async def _round(self, number: int, load: Load, journal: Journal) -> None:
        """Load until the broker is killed (or stopped), start it again, check."""
        load.round = number
        self._acknowledged.clear()
        clean = self._rng.random() < CLEAN_STOP_SHARE
        after_s = self._rng.uniform(0.02, self.settings.load_s)
        sending = asyncio.create_task(
            load.run(self.settings.connections, self.settings.outstanding)
        )
        await asyncio.wait({sending}, timeout=after_s)
        if clean:
            await self._stop()
            self.outcome.clean_stops += 1
        else:
            self._broker.kill()
            self.outcome.kills += 1
        await sending
        journal.event("stop" if clean else "kill", round=number, after_s=after_s)
        if clean:
            self._check_files()
        again = await self._kill_in_recovery()
        start_s = await self._start()
        full = number % self.settings.full_every == 0
        await self._check_served(self._acknowledged, full=full)
        self.outcome.rounds = number
        verdict = "ok" if self.outcome.good else self.outcome.problems[0]
        journal.event("round", number=number, verdict=verdict)
        self._say(
            f"round {number}/{self.settings.rounds}: {'stopped' if clean else 'killed'} after "
            f"{after_s:.2f} s, {len(self._acknowledged)} acknowledged, "
            f"{f'killed {again}x while recovering, ' if again else ''}"
            f"up in {start_s:.2f} s, {'all' if full else 'new'} messages read: {verdict}"
        )

    async def _kill_in_recovery(self) -> int:
        """Starts the broker and kills it before, or just when, it is ready; how often."""
        times = 0
        while times < RECOVERY_KILLS_MAX and self._rng.random() < RECOVERY_KILL_SHARE:
            self._broker.launch()
            await asyncio.sleep(self._rng.uniform(0.0, 1.1 * self.outcome.slowest_start_s))
            self._broker.kill()
            times += 1
        self.outcome.kills_in_recovery += times
        return times

    async def _check_served(self, acknowledged: Sequence[Send], *, full: bool) -> None:
        """Compares with what pulls return: everything, or what is new since the last check."""
        ends = {queue: 0 for queue in self._ends} if full else {}
        last: dict[Queue, int] = {}
        for ack in acknowledged:
            queue = (ack.topic, ack.queue_id)
            ends.setdefault(queue, max(0, self._ends.get(queue, 0) - REREAD_MESSAGES))
            last[queue] = max(last.get(queue, 0), ack.queue_offset)
        served = await self._read(ends, last)
        for problem in (*check_acknowledged(acknowledged, served), *check_queues(served)):
            self._problem(problem)
        for queue, contents in served.items():
            if contents.max_offset < self._ends.get(queue, 0):
                self._problem(f"{queue} ended at {self._ends[queue]}, now at {contents.max_offset}")
            self._ends[queue] = contents.max_offset

    async def _read(
        self, read_from: dict[Queue, int], last: dict[Queue, int]
    ) -> dict[Queue, QueueContents]:
        """Contents of the queues. Dispatch may still run: waits for the last acknowledged ones."""
        deadline = time.monotonic() + self.settings.catch_up_s
        served: dict[Queue, QueueContents] = {}
        channel = await open_reader(self._broker.port)
        try:
            for queue, offset in read_from.items():
                while True:
                    contents = await read_queue(channel, queue, offset)
                    behind = contents.max_offset <= last.get(queue, -1)
                    if not behind or time.monotonic() > deadline:
                        break
                    await asyncio.sleep(0.05)
                served[queue] = contents
                self.outcome.messages_read += len(contents.messages)
        finally:
            channel.close("read")
        return served

    async def _last_checks(self) -> None:
        """The whole history file against every message of every queue, then the closed files."""
        sends = [each for each in read_sends(self._journal_path) if each.outcome == OK]
        await self._check_served(sends, full=True)
        await self._stop()
        self._check_files()

    def _check_files(self) -> None:
        report = inspect_store(self._broker.store)
        for problem in report.problems:
            self._problem(f"files: {problem}")
        if report.running_or_crashed:
            self._problem("files: a clean stop left the abort mark behind")


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("kills", __doc__, "--rounds 100", rounds=100)
    parser.add_argument("--sync-flush", action="store_true", help="flushDiskType=SYNC_FLUSH")
    parser.add_argument("--load-s", type=float, default=0.6, help="longest load before a kill")
    arguments = parser.parse_args(argv)
    run = command.begin(arguments)
    settings = Settings(
        arguments.rounds, run.seed, run.directory, arguments.sync_flush, load_s=arguments.load_s
    )
    return command.play(run, Run(settings, command.say).run())


if __name__ == "__main__":
    sys.exit(main())
