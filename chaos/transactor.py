"""The producers of the campaign on transactions: processes with one database, which may be killed -9 at any moment.

    python -m tandemmq.chaos.transactor --namesrv 127.0.0.1:9876 --directory DIR --number 0

The database is what an application's would be: whoever writes first how a transaction ended has the last word, the
application itself or a check that finds nothing although it should be through. A file `stop` in the directory ends
the sending; questions are answered until the process is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tandemmq.cluster.client import (
    ClientError,
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionState,
)

TOPIC: Final = "Transactions"
GROUP: Final = "Transactors"
#: an application is through with its part after so long; a check before that says nothing
PART_MS: Final = 2_000
WAYS: Final = {"commit": 5, "roll back": 2, "commit later": 2, "roll back later": 1}
RETRY_S: Final = 0.05
BUSY_MS: Final = 20_000
LATE_NS: Final = 1_000_000_000  # a question may have been on its way when the end was confirmed
#: what brokers need, so that they ask within seconds
SETTINGS: Final[Mapping[str, object]] = {
    "transactionTimeOut": 1_500,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 100,
}

_TABLES: Final = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    CREATE TABLE IF NOT EXISTS decided (id TEXT PRIMARY KEY, committed INTEGER, own INTEGER);
    CREATE TABLE IF NOT EXISTS ended (id TEXT, at_ns INTEGER);
    CREATE TABLE IF NOT EXISTS asked (id TEXT, at_ns INTEGER);
"""


class TransactionBook:
    """The database. Every call is durable against the end of this process. Times are CLOCK_MONOTONIC."""

    def __init__(self, path: Path) -> None:
        self._rows = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
        self._rows.executescript(_TABLES)

    def decide(self, unique_id: str, *, committed: bool, own: bool) -> bool:
        """How a transaction ended; what is there already is the last word, and returned."""
        self._rows.execute(
            "INSERT OR IGNORE INTO decided VALUES (?, ?, ?)", (unique_id, committed, own)
        )
        found = self.decided(unique_id)
        assert found is not None
        return found

    def decided(self, unique_id: str) -> bool | None:
        """Whether it was committed; None: nobody has said."""
        row = self._rows.execute(
            "SELECT committed FROM decided WHERE id = ?", (unique_id,)
        ).fetchone()
        return None if row is None else bool(row[0])

    def ended(self, unique_id: str) -> None:
        """The broker has confirmed the end."""
        self._rows.execute("INSERT INTO ended VALUES (?, ?)", (unique_id, time.monotonic_ns()))

    def asked(self, unique_id: str) -> None:
        """A broker asks."""
        self._rows.execute("INSERT INTO asked VALUES (?, ?)", (unique_id, time.monotonic_ns()))

    def count(self) -> int:
        """Transactions whose end is decided."""
        return int(self._rows.execute("SELECT COUNT(*) FROM decided").fetchone()[0])

    def decisions(self) -> dict[str, bool]:
        """id -> committed."""
        rows = self._rows.execute("SELECT id, committed FROM decided")
        return {unique_id: bool(committed) for unique_id, committed in rows}

    def ends(self) -> list[tuple[str, int]]:
        """Confirmed ends, and when."""
        return self._rows.execute("SELECT id, at_ns FROM ended").fetchall()

    def questions(self) -> list[tuple[str, int]]:
        """What brokers asked, and when."""
        return self._rows.execute("SELECT id, at_ns FROM asked").fetchall()

    def close(self) -> None:
        self._rows.close()


def asked_late(
    ends: Iterable[tuple[str, int]], questions: Iterable[tuple[str, int]]
) -> Iterator[str]:
    """A sentence for each question behind a confirmed end. (id, ns) each."""
    ended = dict(ends)
    for unique_id, at_ns in questions:
        end_ns = ended.get(unique_id)
        if end_ns is not None and at_ns > end_ns + LATE_NS:
            yield f"ASKED {unique_id} {(at_ns - end_ns) / 1e9:.1f} s after its end was confirmed"


class TakenBack(Exception):
    """A check has said that this transaction came to nothing."""


class Transactor:
    """One process: begins transactions at a rate and ends them in all ways there are."""

    def __init__(self, book: TransactionBook, rng: random.Random) -> None:
        self._book = book
        self._rng = rng

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """What brokers are told."""
        self._book.asked(message.message_id)
        committed = self._book.decided(message.message_id)
        if committed is None:
            if time.time() * 1000 - message.born_ms < PART_MS:
                return TransactionState.UNKNOWN
            committed = self._book.decide(message.message_id, committed=False, own=False)
        return TransactionState.COMMIT if committed else TransactionState.ROLLBACK

    def begin(self, producer: Producer, way: str) -> Transaction:
        """One that is to end in this way."""
        return producer.transaction(Message(TOPIC, way.encode()))

    async def run(self, producer: Producer, rate: float, stopped: Callable[[], bool]) -> None:
        """Until it is stopped; then until this process is ended."""
        await self.send(producer, rate, stopped)
        await asyncio.Event().wait()

    async def send(self, producer: Producer, rate: float, stopped: Callable[[], bool]) -> None:
        """Until it is stopped, and what is under way has ended."""
        under_way: set[asyncio.Task[None]] = set()
        while not stopped():
            await asyncio.sleep(self._rng.expovariate(rate))
            task = asyncio.create_task(self._one(producer))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)

    async def _one(self, producer: Producer) -> None:
        (way,) = self._rng.choices(list(WAYS), list(WAYS.values()))
        committed = way.startswith("commit")
        try:
            with contextlib.suppress(TakenBack):
                async with self.begin(producer, way) as transaction:
                    await asyncio.sleep(self._rng.uniform(0, 0.02))
                    unique_id = transaction.message_id
                    if self._book.decide(unique_id, committed=committed, own=True) != committed:
                        raise TakenBack
                    if way.endswith("later"):
                        transaction.unknown()
                    elif not committed:
                        transaction.rollback()
                if transaction.confirmed:
                    self._book.ended(unique_id)
        except ClientError:
            await asyncio.sleep(RETRY_S)  # it did not begin: the group has no master right now


async def transact(namesrv: str, directory: Path, number: int, rate: float) -> None:
    """Run one process of the campaign."""
    transactor = Transactor(TransactionBook(directory / "book.sqlite"), random.Random())
    producer = Producer(
        GROUP, namesrv=namesrv, instance_name=f"transactor-{number}",
        check_transaction=transactor.check,
    )  # fmt: skip
    async with producer:
        await transactor.run(producer, rate, (directory / "stop").exists)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments and runs until ended."""
    parser = argparse.ArgumentParser(prog="python -m tandemmq.chaos.transactor")
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--rate", type=float, default=30, help="transactions/s (%(default)g)")
    given = parser.parse_args(argv)
    asyncio.run(transact(given.namesrv, given.directory, given.number, given.rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
