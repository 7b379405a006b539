"""How long the steps of messages and requests take: histograms that are added to per commit, flush or request."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from tandemmq.cluster.histogram import Histogram
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.replication import Mode

#: timed where they are served: there are too many of them for a wrapper each
_TIMED_THEMSELVES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)
#: answers that RocketMQ's metrics call oneway have none; the others are one of these
_SUCCEEDED: Final = frozenset({ResponseCode.SUCCESS})
EVERY_MAX: Final = 64  # commits of which one is timed, under load
CLOSE_NS: Final = 2_000_000  # timed ones that follow so soon are too many
FAR_NS: Final = 10_000_000  # and so late too few
_REPLICAS_MAX: Final = 64  # of which round trips are kept; a group has a few


def now_us() -> int:
    """Microseconds that only grow; the origin means nothing."""
    return perf_counter_ns() // 1_000


class Timed(NamedTuple):
    """A commit that is timed, and stands for those since the timed one before.

    since_ns      when its first bytes came in; committed_ns: when it was in the log's file; by perf_counter_ns
    messages      of all of them; commits: how many they are
    """

    since_ns: int
    committed_ns: int
    messages: int
    commits: int


class Pace:
    """Which commits are timed: each of few, one in EVERY_MAX of many, so that timing never shows.

    every   how many until the next one
    """

    __slots__ = ("_last_ns", "every")

    def __init__(self) -> None:
        self.every = 1
        self._last_ns = 0

    def timed(self, now_ns: int) -> None:
        """One is timed now: sooner again when they are few."""
        gap_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if gap_ns < CLOSE_NS:
            self.every = min(self.every * 2, EVERY_MAX)
        elif gap_ns > FAR_NS:
            self.every = 1


class Latencies:
    """Of one broker. Durations are in microseconds of perf_counter: they decide nothing.

    send        from a commit's first bytes to its answers, by message
    held        how long answers of commits waited for what this mode waits for, on_disk: for our own disk alone
    commit, flush, pull   see the rows tandem_commit_seconds and so on
    round_trips  by slave
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.send = Histogram()
        self.held = Histogram()
        self.on_disk = Histogram() if mode.waits_for_slaves else self.held
        self.commit = Histogram()
        self.flush = Histogram()
        self.pull = Histogram()
        self.round_trips: dict[str, Histogram] = {}
        self._requests: dict[tuple[int, int], Histogram] = {}

    def answered(self, timed: Timed, waits: Histogram | None = None) -> None:
        """A commit's answers leave; waits: of what they were held for."""
        now_ns = perf_counter_ns()
        self.send.add((now_ns - timed.since_ns) // 1_000, timed.messages)
        if waits is not None:
            waits.add((now_ns - timed.committed_ns) // 1_000, timed.commits)

    def round_trip(self, slave: str, took_us: int) -> None:
        """A slave reported what it was sent so long ago."""
        found = self.round_trips.get(slave)
        if found is None:
            if len(self.round_trips) >= _REPLICAS_MAX:
                return
            found = self.round_trips[slave] = Histogram()
        found.add(took_us)

    # --- requests ---

    def timing(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; all but the most frequent ones are timed."""
        return {
            code: handler if code in _TIMED_THEMSELVES else self._timed(handler)
            for code, handler in table.items()
        }

    def _timed(self, handler: Handler) -> Handler:
        async def later(
            command: Command, began_us: int, awaited: Awaitable[Command | None]
        ) -> Command | None:
            answer = await awaited
            if answer is not None:
                self._answered(command.code, answer.code, began_us)
            return answer

        @functools.wraps(handler)
        def handle(command: Command, connection: Connection) -> Any:
            began_us = now_us()
            answer = handler(command, connection)
            if answer is None:
                return None
            if not isinstance(answer, Command):
                return later(command, began_us, answer)
            self._answered(command.code, answer.code, began_us)
            return answer

        return handle

    def _answered(self, request: int, response: int, began_us: int) -> None:
        found = self._requests.get((request, response))
        if found is None:
            found = self._requests[request, response] = Histogram()
        found.add(now_us() - began_us)

    def requests(self) -> Iterator[tuple[tuple[str, ...], Histogram]]:
        """By RocketMQ's labels: protocol, request, response, held, result; of pulls and sends those that succeeded."""
        known = dict(self._requests)
        known[RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS] = self.send
        known[RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS] = self.pull
        for (request, response), histogram in known.items():
            names = _name(RequestCode, request), _name(ResponseCode, response)
            result = "success" if response in _SUCCEEDED else "process_request_failed"
            yield ("remoting", *names, "false", result), histogram

    def waits(self) -> Iterator[tuple[tuple[str, ...], Histogram]]:
        """How long answers were held, by what for; nothing where none is."""
        if self.mode.waits_for_slaves:
            yield ("slave",), self.held
        yield ("disk",), self.on_disk


def _name(codes: Callable[[int], RequestCode | ResponseCode], code: int) -> str:
    """As RocketMQ writes it; what has no name shares one."""
    try:
        return codes(code).name.lower()
    except ValueError:
        return "other"
