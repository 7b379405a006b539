"""`python -m bench.timers`: what a million waiting timed messages cost: memory, a tick, a delivery, a start.

Makes a store with --timers messages in the timer topic that fall due over two days, links them, and then measures in
this process, without sockets: the memory that the wheel takes, ticks in which nothing is due with 1,000 and with all of
them waiting, deliveries of a second that holds 5,000, a clean start, a start after a crash (wheel replayed from the
timer log), and a start without wheel and timer log (both derived from the queue). Times are processor time of this
process: what else the machine does is not in them.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.accounting import describe_machine
from tandemmq.cluster.broker.sending.steadytime import SteadyTime
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.timers import rules
from tandemmq.cluster.broker.timers.schedule import TimerSchedule, timers_of
from tandemmq.storage import (
    COMPILED,
    Draft,
    MessageStore,
    StorageConfig,
    encode_properties,
    open_store,
    pack_host,
)

HOST = pack_host("127.0.0.1", 10911)
SPREAD_MS = 47 * 3_600_000
SECOND_COUNT = 5_000
TICKS = 2_000
BODY = b"x" * 200


class SetClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.timers", description=__doc__)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="default: a temporary one, removed")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="tandem-bench-timers-"))
    print(describe_machine(directory))
    print(f"compiled: {COMPILED}, {arguments.timers} messages of {len(BODY)} bytes over 47 h")
    try:
        _measure(directory / "store", arguments.timers)
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)
    return 0


def _measure(root: Path, count: int) -> None:
    config = BrokerConfig(storage=StorageConfig(root=str(root)), advertised_ip="127.0.0.1")
    clock = SetClock()
    rng = random.Random(1)
    with open_store(config.storage, clock) as store:
        schedule = _opened(config, store, clock)
        schedule.begin()
        _put(store, clock, 1_000, lambda: clock.ms + 60_000 + rng.randrange(SPREAD_MS))
        _link(schedule)
        print(f"tick, 1,000 waiting, none due: {_tick_us(schedule, clock):.0f} us")
        before = _resident()
        _put(store, clock, count - 1_000, lambda: clock.ms + 600_000 + rng.randrange(SPREAD_MS))
        put = _resident()
        took = _timed(lambda: _link(schedule))
        print(
            f"linked: {count / took:.0f} per s of a core; resident before {before} MiB, with the log "
            f"mapped {put} MiB, after linking {_resident()} MiB"
        )
        print(f"tick, {count} waiting, none due: {_tick_us(schedule, clock):.0f} us")
        due_ms = (clock.ms // 1000 + 30) * 1000 + 500
        _put(store, clock, SECOND_COUNT, lambda: due_ms)
        _link(schedule)
        clock.ms = due_ms + 1
        took = _timed(lambda: _deliver(schedule))
        print(
            f"a second with {SECOND_COUNT} of them: delivered in {took:.2f} s ({SECOND_COUNT / took:.0f}/s)"
        )
        schedule.pending.flush_now()
        schedule.pending.close()
    with open_store(config.storage, clock) as store:
        took = _timed(lambda: _opened(config, store, clock))
        print(f"clean start: timers loaded in {took:.2f} s")
    (root / "timerwheel").unlink()
    with open_store(config.storage, clock) as store:
        took = _timed(lambda: _opened(config, store, clock))
        print(f"start without the wheel: replayed from the timer log in {took:.2f} s")
    shutil.rmtree(root / "timerlog")
    with open_store(config.storage, clock) as store:
        schedule = _opened(config, store, clock)
        took = _timed(lambda: _link(schedule))
        print(f"start without wheel and timer log: derived from the queue in {took:.2f} s")
        assert schedule.pending.derived


def _opened(config: BrokerConfig, store: MessageStore, clock: SetClock) -> TimerSchedule:
    schedule = timers_of(config, store, store.put, SteadyTime(store, clock), clock, HOST)
    schedule.pending.load()
    return schedule


def _put(store: MessageStore, clock: SetClock, count: int, due: Callable[[], int]) -> None:
    """As the door parks them."""
    for number in range(count):
        due_ms = due()
        properties = encode_properties(
            {
                "UNIQ_KEY": f"{due_ms:016X}{number:016X}", rules.DELIVER_MS: str(due_ms),
                rules.OUT_MS: str(rules.out_ms(due_ms, 1_000)), "REAL_TOPIC": "T", "REAL_QID": "0",
            }
        )  # fmt: skip
        store.put(
            Draft(
                names.TIMER_TOPIC,
                0,
                BODY,
                properties,
                born_ms=clock.ms,
                born_host=HOST,
                store_host=HOST,
            )
        )
        if number % 4_096 == 0:
            store.dispatch(10_000)
            store.prepare_next_segment()
    while store.dispatch(10_000):
        pass


def _link(schedule: TimerSchedule) -> None:
    while schedule.pending.link(256):
        pass


def _tick_us(schedule: TimerSchedule, clock: SetClock) -> float:
    for _ in range(100):
        schedule.step()
    began = time.process_time()
    for _ in range(TICKS):
        clock.ms += 10
        schedule.step()
    return (time.process_time() - began) / TICKS * 1e6


def _deliver(schedule: TimerSchedule) -> None:
    before = schedule.dequeued_total
    while schedule.dequeued_total < before + SECOND_COUNT:
        schedule.step()


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _resident() -> int:
    """MiB that this process has in memory, files it maps included."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


if __name__ == "__main__":
    raise SystemExit(main())
