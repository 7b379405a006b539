"""Makes one history of a run: its journal, and what the stores of the stopped replicas say in the end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tandemmq.chaos.checking.judging import RUN_EVENT
from tandemmq.chaos.checking.lines import (
    COPY,
    GIVEN_UP,
    MESSAGE,
    OK,
    Audit,
    Block,
    Declared,
    Derived,
    EpochFile,
    Event,
    Extent,
    Holding,
    Line,
    Queue,
    Send,
    decode_line,
    encode_line,
)
from tandemmq.chaos.deliveries import GROUP
from tandemmq.chaos.journal import read_delivered, read_events, read_sends
from tandemmq.chaos.promises import Cut, PowerCut, Stored, within_window, within_window_again
from tandemmq.chaos.replicalogs import ReplicaLog, blocks, read_cuts, read_log
from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.chaos.traffic import CHURN_TOPIC, DELAYED_TOPIC, DELAYS_S, PROBE_TOPIC, TOPIC
from tandemmq.replication.audit.classes import Severity
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import audit
from tandemmq.replication.config import Mode
from tandemmq.storage import inspect_store

TOPICS: Final = frozenset({TOPIC, PROBE_TOPIC})
READ_TOPICS: Final = TOPICS | {DELAYED_TOPIC}
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # where delayed messages wait in the log
ASIDE_TOPICS: Final = READ_TOPICS | {SCHEDULE_TOPIC}
INSPECTED_BYTES_MAX: Final = 1 << 30
POWER_EVENT: Final = "power cut"
PERSON_EVENT: Final = "person"  # acted where nobody elects (tandemmq.chaos.person)
CHUNK: Final = 1000
SECOND_NS: Final = 1_000_000_000
#: the queue of a send
SENT: Final = re.compile(rb'\["send","[^"]*","([%|\w-]+)",(\d+),', re.ASCII).match


class Gathered(NamedTuple):
    """logs: of the replicas; cuts: what they set aside before they cut their logs."""

    logs: Sequence[ReplicaLog]
    cuts: Sequence[Cut]

    @property
    def reference(self) -> ReplicaLog:
        """The log that ends last."""
        return max(self.logs, key=lambda each: each.end)


def run_fields(topics: Collection[str] = (), *, consumed: bool = True) -> dict[str, Any]:
    """Of every run's own event: what its traffic and its group of readers are. topics: that come when they are due."""
    return {
        "left_out": [CHURN_TOPIC], "delayed": [DELAYED_TOPIC, *topics], "group": GROUP,
        "read": sorted(READ_TOPICS) if consumed else [],
    }  # fmt: skip


def gather(
    journal: Path,
    stores: Sequence[Path],
    mode: Mode,
    history: Path,
    *,
    more_topics: Collection[str] = (),
    stock: bool = False,
    consumed: bool = True,
    elected: bool = True,
) -> Gathered:
    """Write `history`: all lines of the journal, then the final read of the stores. A journal that does not say what
    its run is is of one that wrote down no faults: nothing is asked that they could excuse.

    more_topics  that the run had beside the traffic's
    stock, consumed, elected  as of tandemmq.chaos.verdict.judge
    Raises OSError, HistoryMissing, CorruptEpochFile.
    """
    topics = READ_TOPICS | set(more_topics)
    logs = [read_log(store, topics) for store in stores]
    watched = any(event["what"] == RUN_EVENT for event in read_events(journal))
    found = Gathered(logs, [] if stock else _cuts(journal, stores, ASIDE_TOPICS | topics))
    queues = {queue for log in logs for queue in log.queues}
    with history.open("wb") as file:
        if not watched:
            run = {"what": RUN_EVENT, "at_ns": 0, "unwatched": True, "checks": []}
            file.write(encode_line(Event(run | run_fields(consumed=consumed))) + b"\n")
        with journal.open("rb") as lines:
            for text in lines:
                file.write(_due(text))
                if (sent := SENT(text)) and (topic := sent[1].decode()) in topics:
                    queues.add((topic, int(sent[2])))
        named = {f"replica {number}": each for number, each in enumerate(logs)}
        for line in final_lines(named, stores, queues, stock=stock, audited=watched):
            file.write(encode_line(line) + b"\n")
        for cut in found.cuts:
            if cut.reported != cut.found:
                where = f"{cut.start}..{cut.end} of epoch {cut.epoch}"
                told = f"MISCOUNTED {where}: {cut.reported} records reported, {cut.found} found"
                file.write(encode_line(Derived("what was set aside", told)) + b"\n")
        for said in declared_losses(journal, found, mode, elected=elected):
            file.write(encode_line(said) + b"\n")
    return found


def with_due(journal: Path, history: Path) -> None:
    """The journal alone as a history: of a run whose final read is in it."""
    with history.open("wb") as file, journal.open("rb") as lines:
        for text in lines:
            file.write(_due(text))


def _due(text: bytes) -> bytes:
    """A line; a delayed send with the time from which it may be delivered. Every level is known by the sequence."""
    if f'"{DELAYED_TOPIC}"'.encode() not in text or not text.startswith(b'["send"'):
        return text
    send = decode_line(text)
    assert isinstance(send, Send)
    delay_ns = int(DELAYS_S[send.sequence % len(DELAYS_S)] * SECOND_NS)
    return encode_line(msgspec.structs.replace(send, due_ns=send.began_ns + delay_ns)) + b"\n"


def final_lines(
    logs: Mapping[str, ReplicaLog],
    stores: Sequence[Path],
    queues: Collection[Queue],
    *,
    stock: bool,
    audited: bool,
) -> Iterator[Line]:
    """What the stopped replicas hold, and whether their bytes agree. audited: whether the audit says so, too."""
    for name, log in logs.items():
        for queue in sorted(queues):
            yield from _held(queue, name, log)
        for problem in log.problems:
            yield Derived(name, f"LOG {problem}")
        yield EpochFile(name, log.reigns, log.end)
    start = max(log.start for log in logs.values())
    for (name, log), store in zip(logs.items(), stores, strict=True):
        for offset, content in blocks(store, start, log.end):
            yield Block(
                name, offset, len(content), hashlib.blake2b(content, digest_size=16).hexdigest()
            )
    if stock:
        return
    # a look at each of tens of millions of messages would keep them all in memory: the audit keeps nothing per message
    small = len(stores) < 2 or max(log.end for log in logs.values()) <= INSPECTED_BYTES_MAX
    if small:
        for name, store in zip(logs, stores, strict=True):
            for text in inspect_store(store).problems or [""]:
                yield Derived(name, f"FILES {text}" if text else "")
    if len(stores) > 1 and (audited or not small):
        found = audit(dict(zip(logs, map(str, stores), strict=True)), LocalEngine())
        rows = [str(row) for row in found.divergences if row.severity != Severity.INFO]
        if audited:
            yield Audit(bool(rows), "; ".join(rows[:3]))
        if not small:
            rows += [str(row) for row in found.findings if row.severity != Severity.INFO]
            yield from (Derived("the replicas", f"AUDIT {row}") for row in rows)


def _held(queue: Queue, name: str, log: ReplicaLog) -> Iterator[Line]:
    """Runs of consecutive queue offsets, and the bounds. Nothing in front is missing while the log begins at 0."""
    ordered = sorted(log.queues.get(queue, ()), key=lambda each: each.queue_offset)
    run: list[Stored] = []
    for message in ordered:
        if run and (message.queue_offset != run[-1].queue_offset + 1 or len(run) == CHUNK):
            yield _holding(queue, name, run)
            run = []
        run.append(message)
    if run:
        yield _holding(queue, name, run)
    end = ordered[-1].queue_offset + 1 if ordered else 0
    yield Extent(*queue, name, ordered[0].queue_offset if ordered and log.start else 0, end)


def _holding(queue: Queue, name: str, run: Sequence[Stored]) -> Holding:
    return Holding(
        *queue, name, run[0].queue_offset, tuple(each.unique_id for each in run),
        tuple(each.offset for each in run), tuple(each.body_hash for each in run),
    )  # fmt: skip


# --- what may be missing


def declared_losses(
    journal: Path, found: Gathered, mode: Mode, *, elected: bool = True
) -> Iterator[Declared]:
    """What the mode may lose: what replicas set aside and say so, what a person gave up where nobody elects, and the
    last moment before a power cut."""
    aside = frozenset[str]().union(*(each.unique_ids for each in found.cuts))
    if elected and fate(mode, Fault.GONE) is Fate.LAG:
        yield _declared(aside, f"set aside, as {mode.value} may")
        yield _declared(aside - found.reference.ids(TOPICS), "of these what is gone", GIVEN_UP)
    if not elected:
        copies = aside.union(*(read_log(away, READ_TOPICS).ids() for away in _moved_away(journal)))
        sends = list(read_sends(journal))
        # what was acknowledged was not a person's to give up
        kept = {each.unique_id for each in sends if each.outcome == OK}
        yield _declared(copies - kept, "given up by a person")
        delayed = {each.unique_id for each in sends if each.topic == DELAYED_TOPIC}
        yield _declared(copies & delayed, "delivered by a master that a person gave up since", COPY)
    power = [
        PowerCut(event["at_ns"], len(event["hosts"]), event["everybody"], event["done_ns"])
        for event in read_events(journal)
        if event["what"] == POWER_EVENT
    ]
    if power:
        again = (each for each in read_delivered(journal) if each.topic == DELAYED_TOPIC)
        why = f"by the promises of {mode.value} in a power cut"
        yield _declared(within_window(list(read_sends(journal)), power, mode), why)
        yield _declared(within_window_again(again, power, mode), why, COPY)


def _declared(unique_ids: Collection[str], why: str, what: str = MESSAGE) -> Declared:
    return Declared(tuple(sorted(unique_ids)), why, what)


def _cuts(journal: Path, stores: Sequence[Path], topics: frozenset[str]) -> list[Cut]:
    kept = [*stores, *_moved_away(journal)]
    return [cut for store in kept for cut in read_cuts(store, topics)]


def _moved_away(journal: Path) -> list[Path]:
    """Stores that a person had copied anew."""
    events = (each for each in read_events(journal) if each["what"] == PERSON_EVENT)
    return [Path(each["away"]) for each in events if "away" in each]
