"""What a filter costs per message: `python -m bench.filters`.

In one process, a store of 1 KiB messages in memory and the reads that pulls make of it, 32 messages asked for at a
time. CPU time per message that a read looks at: with no choice, by tag, and by SQL92 expressions that take about one
message of ten, so that most of what is counted is judged and left out. Beside it what the expression costs for
properties that are decoded already, and what compiling it does, once. The best of several rounds counts.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.accounting import describe_machine
from tandemmq.cluster.broker.reading.filters import parse_filter, parse_tags
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.storage import (
    EVERYTHING,
    Draft,
    MessageStore,
    Selector,
    StorageConfig,
    encode_properties,
    open_store,
)

EXPRESSIONS: Final = (
    "price > 90",
    "region = 'r3'",
    "price BETWEEN 40 AND 49",
    "region IN ('r3', 'r33') AND price > 5",
    "price > 50 AND weight < 2.5 AND (region = 'r1' OR region = 'r2' OR note CONTAINS 'urgent')",
)
READ_COUNT: Final = 32


def properties_of(number: int, source: random.Random) -> dict[str, str]:
    """Seven, as messages of real producers have them: 150 bytes."""
    return {
        "UNIQ_KEY": f"7F000001{number:024X}",
        "TAGS": f"tag{number % 10}",
        "KEYS": f"order-{number}",
        "WAIT": "true",
        "price": str(source.randrange(100)),
        "region": f"r{number % 10}",
        "weight": f"{source.random() * 10:.2f}",
    }


def fill(store: MessageStore, count: int) -> None:
    """One queue of `count` messages."""
    source = random.Random(92)
    body = bytes(1024)
    for number in range(count):
        store.put(Draft("T", 0, body, encode_properties(properties_of(number, source))))
    while store.dispatch():
        pass


def read_all(store: MessageStore, selector: Selector) -> int:
    """Read the queue to its end as a consumer does; how many messages it is given."""
    offset = taken = 0
    end = store.max_offset("T", 0)
    while offset < end:
        found = store.get("T", 0, offset, READ_COUNT, selector=selector)
        offset = found.next_offset
        taken += found.count
        found.records.clear()
    return taken


def best_ns(work: Callable[[], object], rounds: int) -> int:
    """The shortest of some rounds."""
    times = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - began)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.filters", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="default %(default)s")
    given = parser.parse_args()
    count: int = given.messages
    with tempfile.TemporaryDirectory() as directory:
        machine = describe_machine(Path(directory))
        cores, load = machine.cores, machine.load_average
        print(
            f"machine   {machine.cpu}, {cores} cores, Python {machine.python}, load average {load}"
        )
        with open_store(StorageConfig(root=f"{directory}/store")) as store:
            fill(store, count)
            print(f"messages  {count} of 1 KiB with 7 properties, best of {given.rounds} rounds\n")
            print("us/message  alone  compile us  taken  choice")
            print(row(store, "everything", EVERYTHING, given.rounds))
            print(row(store, "tag3", parse_tags("tag3"), given.rounds))
            for text in EXPRESSIONS:
                print(row(store, text, parse_filter("SQL92", text, served=True), given.rounds))


def row(store: MessageStore, text: str, selector: Selector, rounds: int) -> str:
    """One line of the table."""
    count = store.max_offset("T", 0)
    read_us = best_ns(lambda: read_all(store, selector), rounds) / count / 1000
    alone = compiling = ""
    if selector.matches is not None:
        known, judge = properties_of(3, random.Random(1)), compile_expression(text).matches
        judged_ns = best_ns(lambda: [judge(known) for _ in range(count)], rounds)
        alone = f"{judged_ns / count / 1000:.2f}"
        compiling = f"{best_ns(lambda: compile_expression(text), 100) / 1000:.0f}"
    share = f"{100 * read_all(store, selector) / count:.0f}%"
    return f"{read_us:10.2f}  {alone:>5}  {compiling:>10}  {share:>5}  {text}"


if __name__ == "__main__":
    main()
