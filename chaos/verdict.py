"""The verdict on a run on a replicated group, from its journal and the files of its stopped replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tandemmq.chaos.checking.findings import CHECKS, Judgement
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.lines import OK
from tandemmq.chaos.churn import DELETED_EVENT, LAST_EVENT, TABLES_NS, check_last_life, check_lives
from tandemmq.chaos.gathering import PERSON_EVENT, READ_TOPICS, TOPICS, Gathered, gather
from tandemmq.chaos.history import HistoryMissing
from tandemmq.chaos.journal import read_delivered, read_events, read_sends
from tandemmq.chaos.traffic import CHURN_TOPIC
from tandemmq.replication.config import Mode

HISTORY: Final = "history.jsonl"
MADE_MASTER: Final = "made master"  # what a person did
#: asked only of runs that wrote their faults down, and had their stores audited
OF_FAULTS: Final = frozenset({"C-8", "C-17", "C-20"})


@dataclass(slots=True)
class Verdict:
    """What the files and the journal say.

    lost         of those acknowledged, also what the mode lets a fault take
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


class Judged(NamedTuple):
    """problems: beside the judgement's findings."""

    verdict: Verdict
    judgement: Judgement
    problems: list[str]
    gathered: Gathered


def judge(
    journal: Path,
    stores: Sequence[Path],
    *,
    mode: Mode,
    stock: bool = False,
    consumed: bool = True,
    elected: bool = True,
    more_topics: Collection[str] = (),
) -> Judged:
    """Everything that must hold once traffic and processes have stopped. The history lies beside the journal then.

    mode   its row of tandemmq.chaos.survival says whether what replicas reported and set aside may be missing
    consumed  a consumer group read along: everything must have been delivered to it
    elected  by a controller. Else nothing is missing but what a person gave up: what replicas set aside at his word
             and stores that he moved away may have more, but nothing that was acknowledged
    stock  servers that are not ours: their small files are not looked at
    more_topics  that the run had beside the traffic's
    Raises HistoryMissing, OSError, CorruptEpochFile.
    """
    history = journal.with_name(HISTORY)
    gathered = gather(
        journal, stores, mode, history, more_topics=more_topics, stock=stock, consumed=consumed,
        elected=elected,
    )  # fmt: skip
    judgement = judge_history(history)
    if not judgement.acknowledged:
        raise HistoryMissing(f"nothing was acknowledged in {journal}")
    problems = [*_lives(journal, waits=mode.waits_for_slaves and not stock)]
    if consumed:
        problems += _last_life(journal)
    log, cuts, tally = gathered.reference, gathered.cuts, judgement.tally
    skipped = tally.get("skipped", 0)
    undelivered = (
        skipped + tally.get("undelivered", 0) + sum("SKIPPED" in each for each in problems)
    )
    verdict = Verdict(
        _found(judgement, CHECKS.keys() - OF_FAULTS - (set() if elected else {"C-14"})) + problems,
        log.count(TOPICS), log.end, len(log.reigns), tally.get("acknowledged", 0), tally.get("lost", 0),
        tally.get("lost bytes", 0), log.count(READ_TOPICS) - skipped if consumed else 0, undelivered,
        len(cuts), sum(each.found for each in cuts),
    )  # fmt: skip
    return Judged(verdict, judgement, problems, gathered)


def _found(judgement: Judgement, checks: Collection[str]) -> list[str]:
    """Sentences, each of which begins with a word that names its kind, and what cannot be read."""
    kept = [each for each in judgement.findings if each.check in checks]
    found = [each.text for each in kept]
    for check, count in judgement.counts.items():
        shown = [each.text for each in kept if each.check == check]
        if shown and count > len(shown):
            found.append(f"{shown[-1].split()[0]} and {count - len(shown)} more of {check}")
    return found + [each for each in judgement.doubts if "cannot be read" in each]


def _last_life(journal: Path) -> Iterator[str]:
    for event in read_events(journal):
        if event["what"] == LAST_EVENT:
            churned = (each for each in read_sends(journal) if each.topic == CHURN_TOPIC)
            yield from check_last_life(event["life"], churned, read_delivered(journal))


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


def _exchanges(journal: Path) -> list[tuple[int, int]]:
    """(power cut, a slave was made the master), ns: what the former master did between is not known to it."""
    return [
        (event["since_ns"], event["at_ns"])
        for event in read_events(journal)
        if event["what"] == PERSON_EVENT and event["how"] == MADE_MASTER
    ]
