"""Judges a run on a replicated group from its journal and the files of its stopped replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.journal import OK, read_events, read_seen, read_sends
from chaos.promises import (
    Cut,
    FinalLog,
    Freeze,
    LagSample,
    check_cuts,
    check_epochs,
    check_exported_lag,
    check_log,
    check_order,
    check_seen,
    check_sends,
    limited,
    lost,
)
from chaos.replicalogs import ReplicaLog, differences, read_cuts, read_log
from chaos.traffic import PROBE_TOPIC, TOPIC
from replication.audit.classes import Severity
from replication.audit.local import LocalEngine
from replication.audit.plan import audit
from replication.audit.tables import Divergence, Finding
from storage import inspect_store

TOPICS: Final = frozenset({TOPIC, PROBE_TOPIC})
INSPECTED_BYTES_MAX: Final = 1 << 30
LAG_EVENT: Final = "lag"
FREEZE_EVENT: Final = "froze"


@dataclass(slots=True)
class Verdict:
    """What the files and the journal say. lost_ranges: (epoch, first offset, end) of declared losses."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    log_bytes: int = 0
    reigns: int = 0
    acknowledged: int = 0
    lost: int = 0
    lost_bytes: int = 0
    cuts: int = 0
    cut_records: int = 0


def judge(
    journal: Path, stores: Sequence[Path], *, synchronous: bool, stock: bool = False
) -> Verdict:
    """Everything that must hold once traffic and processes have stopped.

    synchronous  nothing acknowledged may be missing; else only what replicas reported and set aside
    stock        servers that are not ours: their small files are not looked at
    Raises HistoryMissing, OSError, CorruptEpochFile.
    """
    logs = [read_log(store, TOPICS) for store in stores]
    problems = [f"LOG {problem}" for log in logs for problem in log.problems]
    problems += _one_log(stores, logs)
    reference = max(logs, key=lambda each: each.end)
    if not stock:
        problems += _files(stores, reference.end)
    cuts = [] if stock else [cut for store in stores for cut in read_cuts(store, TOPICS)]
    declared = frozenset[str]() if synchronous else _declared(cuts)
    verdict = Verdict(log_bytes=reference.end, reigns=len(reference.reigns), cuts=len(cuts))
    verdict.cut_records = sum(each.found for each in cuts)
    _check(verdict, problems, reference.final(), reference, journal, declared, cuts)
    verdict.problems = limited(problems)
    return verdict


def _files(stores: Sequence[Path], log_bytes: int) -> list[str]:
    """What is wrong with queues and other small files. Those of a large log are left to the audit,
    which keeps nothing per message: a look at each of tens of millions would keep them all in memory."""
    if log_bytes <= INSPECTED_BYTES_MAX or len(stores) < 2:
        return [f"FILES {each}: {text}" for each in stores for text in inspect_store(each).problems]
    places = {f"replica {number}": str(each) for number, each in enumerate(stores)}
    found = audit(places, LocalEngine())
    rows: list[Divergence | Finding] = [*found.divergences, *found.findings]
    return [f"AUDIT {row}" for row in rows if row.severity != Severity.INFO]


def _check(
    verdict: Verdict,
    problems: list[str],
    final: FinalLog,
    reference: ReplicaLog,
    journal: Path,
    declared: frozenset[str],
    cuts: Sequence[Cut],
) -> None:
    sends = list(read_sends(journal))
    verdict.messages = len(final.places)
    verdict.acknowledged = sum(each.outcome == OK for each in sends)
    problems += check_log(final)
    problems += check_sends(sends, final, declared)
    problems += check_order(sends, final)
    problems += check_epochs(sends, reference.reigns, declared, list(_freezes(journal)))
    problems += check_seen(read_seen(journal), final, declared)
    gone = lost(sends, final)
    verdict.lost = len(gone)
    verdict.lost_bytes = sum(each.size for each in gone)
    problems += check_cuts(cuts)
    problems += check_exported_lag(gone, _lag_samples(journal))


def _lag_samples(journal: Path) -> Iterator[LagSample]:
    for event in read_events(journal):
        if event["what"] == LAG_EVENT:
            yield LagSample(*(int(event[name]) for name in ("at_ns", "epoch", "end", "lag")))


def _freezes(journal: Path) -> Iterator[Freeze]:
    for event in read_events(journal):
        if event["what"] == FREEZE_EVENT and "address" in event:
            yield Freeze(event["address"], event["at_ns"])


def _declared(cuts: Sequence[Cut]) -> frozenset[str]:
    return frozenset().union(*(each.unique_ids for each in cuts))


def _one_log(stores: Sequence[Path], logs: Sequence[ReplicaLog]) -> list[str]:
    """Replicas whose logs differ below the shortest end, end elsewhere or disagree on who wrote what."""
    problems = []
    ends = {str(store): log.end for store, log in zip(stores, logs, strict=True)}
    if len(set(ends.values())) > 1:
        problems.append(f"ENDS of the logs differ: {ends}")
    start, end = max(log.start for log in logs), min(log.end for log in logs)
    problems += differences(stores, start, end)
    histories = {
        tuple(each for each in log.reigns if each[1] < end): str(store)
        for store, log in zip(stores, logs, strict=True)
    }
    if len(histories) > 1:
        problems.append(f"REIGNS differ: {histories}")
    return problems
