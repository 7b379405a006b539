"""Judges a run on a replicated group from its journal and the files of its stopped replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.chaos.checking.lines import OK
from tandemmq.chaos.churn import DELETED_EVENT, LAST_EVENT, TABLES_NS, check_last_life, check_lives
from tandemmq.chaos.journal import read_delivered, read_events, read_seen, read_sends
from tandemmq.chaos.promises import (
    Cut,
    Freeze,
    LagSample,
    PowerCut,
    check_cuts,
    check_delayed,
    check_deliveries,
    check_epochs,
    check_exported_lag,
    check_log,
    check_order,
    check_seen,
    check_sends,
    limited,
    lost,
    within_window,
    within_window_again,
)
from tandemmq.chaos.replicalogs import ReplicaLog, differences, read_cuts, read_log
from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.chaos.traffic import CHURN_TOPIC, DELAYED_TOPIC, PROBE_TOPIC, TOPIC
from tandemmq.replication.audit.classes import Severity
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import audit
from tandemmq.replication.audit.tables import Divergence, Finding
from tandemmq.replication.config import Mode
from tandemmq.storage import inspect_store

TOPICS: Final = frozenset({TOPIC, PROBE_TOPIC})
READ_TOPICS: Final = TOPICS | {DELAYED_TOPIC}
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # where delayed messages wait in the log
ASIDE_TOPICS: Final = READ_TOPICS | {SCHEDULE_TOPIC}
INSPECTED_BYTES_MAX: Final = 1 << 30
LAG_EVENT: Final = "lag"
FREEZE_EVENT: Final = "froze"
POWER_EVENT: Final = "power cut"
PERSON_EVENT: Final = "person"  # acted where nobody elects (tandemmq.chaos.person)
MADE_MASTER: Final = "made master"


@dataclass(slots=True)
class Verdict:
    """What the files and the journal say.

    delivered    messages of the final log that the consumer group was given
    undelivered  those it was not, and delayed ones that never came to their topic
    """

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    log_bytes: int = 0
    reigns: int = 0
    acknowledged: int = 0
    lost: int = 0
    lost_bytes: int = 0
    delivered: int = 0
    undelivered: int = 0
    cuts: int = 0
    cut_records: int = 0


def judge(
    journal: Path,
    stores: Sequence[Path],
    *,
    mode: Mode,
    stock: bool = False,
    consumed: bool = True,
    elected: bool = True,
) -> Verdict:
    """Everything that must hold once traffic and processes have stopped.

    mode   its row of tandemmq.chaos.survival says whether what replicas reported and set aside may be missing
    consumed  a consumer group read along: everything must have been delivered to it
    elected  by a controller. Else nothing is missing but what a person gave up: what replicas set aside at his word
             and stores that he moved away may have more, but nothing that was acknowledged
    stock  servers that are not ours: their small files are not looked at
    Raises HistoryMissing, OSError, CorruptEpochFile.
    """
    logs = [read_log(store, READ_TOPICS) for store in stores]
    problems = [f"LOG {problem}" for log in logs for problem in log.problems]
    problems += _one_log(stores, logs)
    reference = max(logs, key=lambda each: each.end)
    if not stock:
        problems += _files(stores, reference.end)
    kept = [*stores, *_moved_away(journal)]
    cuts = [] if stock else [cut for store in kept for cut in read_cuts(store, ASIDE_TOPICS)]
    aside, copies = frozenset[str](), frozenset[str]()
    if not elected:
        copies = _declared(cuts) | _in_stores(_moved_away(journal))
        # what was acknowledged was not a person's to give up
        aside = copies - {each.unique_id for each in read_sends(journal) if each.outcome == OK}
    elif fate(mode, Fault.GONE) is Fate.LAG:
        aside = _declared(cuts)
    declared = aside
    if power_cuts := list(_power_cuts(journal)):
        declared |= within_window(list(read_sends(journal)), power_cuts, mode)
    verdict = Verdict(log_bytes=reference.end, reigns=len(reference.reigns), cuts=len(cuts))
    verdict.cut_records = sum(each.found for each in cuts)
    problems += _lives(journal, waits=mode.waits_for_slaves and not stock)
    _check(verdict, problems, reference, journal, declared, cuts)
    if elected:  # else there are no epochs
        problems += _epochs(reference, journal, declared, aside)
    if consumed:
        _check_delivery(verdict, problems, reference, journal, declared, copies, mode)
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
    reference: ReplicaLog,
    journal: Path,
    declared: frozenset[str],
    cuts: Sequence[Cut],
) -> None:
    final = reference.of(TOPICS)
    sends = [each for each in read_sends(journal) if each.topic in TOPICS]
    verdict.messages = len(final.places)
    verdict.acknowledged = sum(each.outcome == OK for each in sends)
    problems += check_log(final)
    problems += check_sends(sends, final, declared)
    problems += check_order(sends, final)
    problems += check_seen(read_seen(journal), final, declared)
    gone = lost(sends, final)
    verdict.lost = len(gone)
    verdict.lost_bytes = sum(each.size for each in gone)
    problems += check_cuts(cuts)
    problems += check_exported_lag(gone, _lag_samples(journal))


def _epochs(
    reference: ReplicaLog, journal: Path, declared: frozenset[str], aside: frozenset[str]
) -> Iterator[str]:
    sends = (each for each in read_sends(journal) if each.topic in TOPICS)
    given_up = aside - reference.of(TOPICS).places.keys()
    yield from check_epochs(sends, reference.reigns, declared, list(_freezes(journal)), given_up)


def _check_delivery(
    verdict: Verdict,
    problems: list[str],
    reference: ReplicaLog,
    journal: Path,
    declared: frozenset[str],
    copies: frozenset[str],
    mode: Mode,
) -> None:
    """Delayed messages came to their topic, and everything to the group. A delayed one may come there twice.

    copies  unique ids that a person gave up: of a delayed message the copy, made and delivered by a master that
            was given up since; what it was made from is delivered again
    """
    delayed = reference.of(frozenset({DELAYED_TOPIC}))
    found = [each for each in check_log(delayed) if not each.startswith("REPEATED")]
    sends = [each for each in read_sends(journal) if each.topic == DELAYED_TOPIC]
    found += check_delayed(sends, delayed, declared)
    final = reference.of(READ_TOPICS)
    again = (each for each in read_delivered(journal) if each.topic == DELAYED_TOPIC)
    declared |= within_window_again(again, list(_power_cuts(journal)), mode)
    declared |= copies & {each.unique_id for each in sends}
    kept = (each for each in read_delivered(journal) if each.topic in READ_TOPICS)
    found += check_deliveries(kept, final, declared)
    skipped = sum(each.startswith("SKIPPED") for each in found)
    verdict.delivered = sum(map(len, final.queues.values())) - skipped
    for event in read_events(journal):
        if event["what"] == LAST_EVENT:
            churned = (each for each in read_sends(journal) if each.topic == CHURN_TOPIC)
            found += check_last_life(event["life"], churned, read_delivered(journal))
    verdict.undelivered = sum(each.startswith(("SKIPPED", "UNDELIVERED")) for each in found)
    problems += found


def _lives(journal: Path, *, waits: bool) -> Iterator[str]:
    """What a topic that was deleted and made again still has of an earlier life.

    waits  a deletion is answered when every member of the set has it, or says who may not
    """
    deleted = {
        event["life"]: event["at_ns"]
        for event in read_events(journal)
        if event["what"] == DELETED_EVENT and (event["everywhere"] or not waits)
    }
    began: dict[int, int] = {}
    churned = []
    for send in read_sends(journal):
        if send.outcome == OK:
            began[send.epoch] = min(send.ended_ns, began.get(send.epoch, send.ended_ns))
        if send.topic == CHURN_TOPIC:
            churned.append(send)
    tables_ns = 0 if waits else TABLES_NS
    yield from check_lives(churned, deleted, began, _exchanges(journal), tables_ns)


def _lag_samples(journal: Path) -> Iterator[LagSample]:
    for event in read_events(journal):
        if event["what"] == LAG_EVENT:
            yield LagSample(*(int(event[name]) for name in ("at_ns", "epoch", "end", "lag")))


def _power_cuts(journal: Path) -> Iterator[PowerCut]:
    for event in read_events(journal):
        if event["what"] == POWER_EVENT:
            hosts, everybody = len(event["hosts"]), event["everybody"]
            yield PowerCut(event["at_ns"], hosts, everybody, event["done_ns"])


def _freezes(journal: Path) -> Iterator[Freeze]:
    for event in read_events(journal):
        if event["what"] == FREEZE_EVENT and "address" in event:
            yield Freeze(event["address"], event["at_ns"])


def _moved_away(journal: Path) -> list[Path]:
    """Stores that a person had copied anew."""
    events = (each for each in read_events(journal) if each["what"] == PERSON_EVENT)
    return [Path(each["away"]) for each in events if "away" in each]


def _in_stores(stores: Sequence[Path]) -> frozenset[str]:
    found = (read_log(store, READ_TOPICS).queues for store in stores)
    return frozenset(
        each.unique_id for queues in found for queue in queues.values() for each in queue
    )


def _exchanges(journal: Path) -> list[tuple[int, int]]:
    """(power cut, a slave was made the master), ns: what the former master did between is not known to it."""
    return [
        (event["since_ns"], event["at_ns"])
        for event in read_events(journal)
        if event["what"] == PERSON_EVENT and event["how"] == MADE_MASTER
    ]


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
        problems.append(f"HISTORIES differ: {histories}")
    return problems
