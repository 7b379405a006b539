"""The verdict on a history file: read twice, once whole, once queue by queue.

The first pass feeds what is judged over all queues and splits the rest into files by queue, of which the second holds
one queue at a time: memory grows with the largest queue, not with the run.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.chaos.checking.buckets import Buckets
from tandemmq.chaos.checking.consuming import judge_consuming
from tandemmq.chaos.checking.findings import (
    CHECKS,
    LINEARIZABILITY,
    ON_REQUEST,
    Findings,
    Judgement,
    judged,
)
from tandemmq.chaos.checking.lines import (
    COPY,
    GIVEN_UP,
    MESSAGE,
    OK,
    Admin,
    Audit,
    Block,
    Commit,
    Declared,
    Delivered,
    Derived,
    EpochFile,
    Event,
    Extent,
    Holding,
    Lookup,
    Queue,
    Route,
    Seen,
    Send,
    Taken,
    decode_line,
)
from tandemmq.chaos.checking.orders import Orders
from tandemmq.chaos.checking.porcupine import Porcupine, find_program
from tandemmq.chaos.checking.queues import LagSample, judge_queue
from tandemmq.chaos.checking.whole import (
    Availability,
    Freeze,
    Reigns,
    Thin,
    by_setting,
    judge_replicas,
    judge_routes,
    judge_settings,
)
from tandemmq.chaos.checking.windows import Window, Windows
from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.history import HistoryMissing

AROUND_NS: Final = 2_000_000_000  # before a fault and behind it: its stretch for counting sends
SENDS_MIN: Final = 50  # per queue and fault
RUN_EVENT: Final = "run"
DRAINED_EVENT: Final = "drained"
LAG_EVENT: Final = "lag"
FREEZE_EVENT: Final = "froze"
#: of a run that does not say which checkers it asks for
ASKED: Final = frozenset(CHECKS)


@dataclass(slots=True)
class _Global:
    """What the first pass gathers."""

    windows: Windows = field(default_factory=Windows)
    reigns: Reigns = field(default_factory=Reigns)
    availability: Availability = field(default_factory=Availability)
    admin: list[Admin] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    declared: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    lags: dict[int, LagSample] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    drained: bool = False
    operations: int = 0
    acknowledged: int = 0
    broken_line: str = ""

    def broken(self, path: Path, problem: Exception) -> None:
        self.broken_line = f"a line of {path.name} cannot be read: {problem}"


def judge_history(
    path: Path, asked: Collection[str] | None = None, *, linearizability: bool = False
) -> Judgement:
    """Everything that the history shows.

    asked  ids of checkers that must have judged something; None: those that the run's own event names, else all
    linearizability  ask Porcupine, too (C-21, as if it were among those asked for)
    A file that is missing or has no line is UNKNOWN, and so is everything that shows too little (Judgement.doubts).
    """
    began_s = time.monotonic()
    findings, gathered = Findings(), _Global()
    doubts: list[str] = []
    sends_of: dict[Queue, int] = {}
    extents: set[Queue] = set()
    with tempfile.TemporaryDirectory(prefix="tandem-judge-") as scratch:
        thin = Thin()
        try:
            _events_first(path, gathered, thin)
            with Buckets(Path(scratch)) as buckets:
                _split(path, buckets, gathered, thin, findings, sends_of)
        except HistoryMissing as problem:
            return judged(findings, [str(problem)], 0, 0)
        declared = frozenset(gathered.declared[MESSAGE])
        missing = declared | gathered.declared[COPY]
        reads = frozenset(gathered.run.get("read", ()))
        wanted = set(gathered.run.get("checks", ASKED) if asked is None else asked)
        if linearizability:
            wanted.add(LINEARIZABILITY)
        with ExitStack() as stack:
            orders = None
            if LINEARIZABILITY in wanted:
                orders = _orders(stack, findings, doubts)
            for history in buckets.histories(lambda problem: gathered.broken(path, problem)):
                if not history.extents:
                    continue  # a doubt, if anything was sent there
                extents.add(history.queue)
                judge_queue(history, missing, findings, gathered.lags)
                reads_all = gathered.run["group"] if history.queue[0] in reads else ""
                judge_consuming(history, missing, gathered.windows, findings, reads_all, declared)
                if orders is not None:
                    orders.queue(history, missing)
            settings = by_setting(
                gathered.admin, unconfirmed=bool(gathered.run.get("unconfirmed_settings"))
            )
            _finish(gathered, settings, findings)
            if orders is not None:
                orders.settings(settings)
                doubts += orders.doubts
    doubts += _doubts(gathered, thin, sends_of, extents, findings, wanted)
    judgement = judged(findings, doubts, gathered.operations, gathered.acknowledged)
    judgement.seconds = round(time.monotonic() - began_s, 2)
    return judgement


def _events_first(path: Path, gathered: _Global, thin: Thin) -> None:
    """Faults and what the run is: sends are judged by them. Cheap: other lines are not decoded."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.startswith(b'["event"'):
                    event = decode_line(line)
                    assert isinstance(event, Event)
                    _take_event(event.fields, gathered)
                elif line.startswith(b'["declared"'):
                    said = decode_line(line)
                    assert isinstance(said, Declared)
                    gathered.declared[said.what].update(said.unique_ids)
                elif line.startswith(b'["epochs"'):
                    file_of = decode_line(line)
                    assert isinstance(file_of, EpochFile)
                    gathered.reigns.files.append(file_of)
    except FileNotFoundError:
        raise HistoryMissing(f"no history at {path}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        gathered.broken(path, problem)
    gathered.windows.close()
    gathered.reigns.declared = gathered.declared[MESSAGE]
    gathered.reigns.given_up = gathered.declared[GIVEN_UP]
    for window in gathered.windows.faults.values():
        until_ns = (window.healed_ns or window.healing_ns or window.began_ns) + AROUND_NS
        thin.spans.append((window.began_ns - AROUND_NS, until_ns, window.number))


def _take_event(fields: dict[str, Any], gathered: _Global) -> None:
    gathered.windows.take(fields)
    if fields["what"] == RUN_EVENT:
        gathered.run = fields
        gathered.windows.unwatched = bool(fields.get("unwatched"))
        gathered.reigns.left_out = frozenset(fields.get("left_out", ()))
    elif fields["what"] == FREEZE_EVENT and "address" in fields:
        gathered.reigns.freezes.append(Freeze(fields["address"], fields["at_ns"]))
    elif fields["what"] == LAG_EVENT:
        sample = LagSample(*(int(fields[name]) for name in LagSample._fields))
        known = gathered.lags.get(sample.epoch)
        if known is None or sample.at_ns > known.at_ns:
            gathered.lags[sample.epoch] = sample
    elif fields["what"] == DRAINED_EVENT:
        gathered.drained = True


def _split(
    path: Path,
    buckets: Buckets,
    gathered: _Global,
    thin: Thin,
    findings: Findings,
    sends_of: dict[Queue, int],
) -> None:
    """Lines of queues into files by queue, all else into `gathered`."""
    left_out = gathered.reigns.left_out
    windows = gathered.windows
    with path.open("rb") as file:
        for text in file:
            if buckets.put_unread(text):
                gathered.operations += text.startswith(b'["delivered"')
                continue
            try:
                line = decode_line(text)
            except (msgspec.DecodeError, msgspec.ValidationError) as problem:
                gathered.broken(path, problem)
                continue
            match line:
                case Send():
                    gathered.operations += 1
                    gathered.acknowledged += line.outcome == OK
                    gathered.reigns.take(line, findings)
                    queue = (line.topic, line.queue_id)
                    if line.topic in left_out:
                        continue
                    if not line.due_ns:
                        gathered.availability.take(line, windows, findings)
                        thin.take(line)
                    sends_of[queue] = sends_of.get(queue, 0) + 1
                case Seen():
                    gathered.operations += len(line.unique_ids)
                    queue = (line.topic, line.queue_id)
                case Delivered():
                    gathered.operations += 1
                    queue = (line.topic, line.queue_id)
                case Holding() | Extent() | Commit() | Taken() | Lookup():
                    queue = (line.topic, line.queue_id)
                case Event() | Declared() | EpochFile():
                    continue
                case Admin():
                    gathered.operations += 1
                    gathered.admin.append(line)
                    continue
                case Route():
                    gathered.routes.append(line)
                    continue
                case Block():
                    gathered.blocks.append(line)
                    continue
                case Derived():
                    gathered.derived.append(line)
                    continue
                case Audit():
                    gathered.audits.append(line)
                    continue
            if queue[0] not in left_out:
                buckets.put(queue, text)


def _orders(stack: ExitStack, findings: Findings, doubts: list[str]) -> Orders | None:
    """None, and a doubt, where this machine has no Porcupine."""
    try:
        return Orders(stack.enter_context(Porcupine(find_program())), findings)
    except Unsupported as problem:
        doubts.append(f"{LINEARIZABILITY} was asked for: {problem}")
        return None


def _finish(
    gathered: _Global,
    settings: Mapping[str, Sequence[Admin]],
    findings: Findings,
) -> None:
    gathered.reigns.finish(gathered.windows, findings)
    gathered.availability.finish(gathered.windows, findings)
    judge_settings(settings, findings)
    judge_routes(gathered.routes, findings)
    judge_replicas(
        gathered.blocks, gathered.derived, gathered.audits, gathered.reigns.files, findings
    )


def _doubts(
    gathered: _Global,
    thin: Thin,
    sends_of: dict[Queue, int],
    extents: set[Queue],
    findings: Findings,
    wanted: Collection[str],
) -> list[str]:
    """Why the run proves nothing; none where it does."""
    doubts = []
    if gathered.broken_line:
        doubts.append(gathered.broken_line)
    if not gathered.acknowledged:
        doubts.append("nothing was acknowledged")
    if not gathered.drained:
        doubts.append("no drained final read: nothing says that consumers had come to the end")
    unread = sorted(queue for queue in sends_of if queue not in extents)
    if unread:
        doubts.append(f"no final read of {len(unread)} queues (first {unread[:3]})")
    doubts += gathered.windows.doubts()
    doubts += _thin(gathered, thin, sends_of)
    names = CHECKS | ON_REQUEST
    for check in sorted(wanted, key=lambda each: int(each[2:])):
        if not findings.observed[check]:
            doubts.append(f"{check} ({names[check]}) had nothing to judge")
    return doubts


def _thin(gathered: _Global, thin: Thin, sends_of: dict[Queue, int]) -> Iterator[str]:
    """Faults beside which too little was going on."""
    delayed = set(gathered.run.get("delayed", ()))
    faults: dict[int, Window] = gathered.windows.faults
    for since_ns, until_ns, number in thin.spans:
        for queue in sorted(sends_of):
            if queue[0] in delayed:
                continue
            count = thin.counts.get((queue, number), 0)
            if count < SENDS_MIN:
                what = faults[number].says or faults[number].kind
                yield (
                    f"only {count} sends to {queue} beside fault {number} ({what}) "
                    f"in {(until_ns - since_ns) / 1e9:.1f} s; {SENDS_MIN} are the least"
                )
