"""Makes one history of a run: its journal, and what the stores of the stopped replicas say in the end."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.chaos.checking.lines import (
    Audit,
    Block,
    Declared,
    Derived,
    Extent,
    Holding,
    Line,
    Send,
    decode_line,
    encode_line,
)
from tandemmq.chaos.journal import read_events, read_sends
from tandemmq.chaos.promises import PowerCut, Stored, within_window
from tandemmq.chaos.replicalogs import ReplicaLog, blocks, read_cuts, read_log
from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.chaos.traffic import DELAYED_TOPIC, DELAYS_S
from tandemmq.chaos.verdict import ASIDE_TOPICS, POWER_EVENT, READ_TOPICS
from tandemmq.replication.audit.classes import Severity
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import audit
from tandemmq.replication.config import Mode
from tandemmq.storage import inspect_store

CHUNK: Final = 1000
SECOND_NS: Final = 1_000_000_000


def gather(
    journal: Path,
    stores: Sequence[Path],
    mode: Mode,
    history: Path,
    *,
    more_topics: Collection[str] = (),
    stock: bool = False,
) -> frozenset[str]:
    """Write `history`: all lines of the journal, then the final read of the stores. Raises OSError, HistoryMissing.

    more_topics  that the run had beside the traffic's
    stock        servers that are not ours: their small files are not looked at
    Returns the unique ids that the longest log holds of all these topics.
    """
    topics = READ_TOPICS | set(more_topics)
    logs = {f"replica {number}": read_log(store, topics) for number, store in enumerate(stores)}
    with history.open("wb") as file:
        with journal.open("rb") as lines:
            for text in lines:
                file.write(_due(text))
        for line in final_lines(logs, stores, stock=stock):
            file.write(encode_line(line) + b"\n")
        declared = declared_losses(journal, stores, mode, ASIDE_TOPICS | topics)
        if declared:
            why = f"by the promises of {mode.value}"
            file.write(encode_line(Declared(tuple(sorted(declared)), why)) + b"\n")
    reference = max(logs.values(), key=lambda each: each.end)
    return frozenset(reference.of(frozenset(topics)).places)


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
    logs: Mapping[str, ReplicaLog], stores: Sequence[Path], *, stock: bool
) -> Iterator[Line]:
    """What the stopped replicas hold, and whether their bytes agree."""
    queues = sorted({queue for log in logs.values() for queue in log.queues})
    for name, log in logs.items():
        for topic, queue_id in queues:
            messages = log.queues.get((topic, queue_id), [])
            yield from _held(topic, queue_id, name, messages)
        for problem in log.problems:
            yield Derived(name, problem)
    start = max(log.start for log in logs.values())
    for (name, log), store in zip(logs.items(), stores, strict=True):
        for offset, content in blocks(store, start, log.end):
            yield Block(
                name, offset, len(content), hashlib.blake2b(content, digest_size=16).hexdigest()
            )
        if stock:
            continue
        problems = inspect_store(store).problems
        for text in problems or [""]:
            yield Derived(name, text)
    if not stock:
        yield from _audited(stores)


def _held(topic: str, queue_id: int, name: str, messages: Collection[Stored]) -> Iterator[Line]:
    """Runs of consecutive queue offsets, and the bounds."""
    ordered = sorted(messages, key=lambda each: each.queue_offset)
    run: list[Stored] = []
    for message in ordered:
        if run and (message.queue_offset != run[-1].queue_offset + 1 or len(run) == CHUNK):
            yield _holding(topic, queue_id, name, run)
            run = []
        run.append(message)
    if run:
        yield _holding(topic, queue_id, name, run)
    end = ordered[-1].queue_offset + 1 if ordered else 0
    yield Extent(topic, queue_id, name, ordered[0].queue_offset if ordered else 0, end)


def _holding(topic: str, queue_id: int, name: str, run: Sequence[Stored]) -> Holding:
    return Holding(
        topic, queue_id, name, run[0].queue_offset, tuple(each.unique_id for each in run),
        tuple(each.offset for each in run), tuple(each.body_hash for each in run),
    )  # fmt: skip


def _audited(stores: Sequence[Path]) -> Iterator[Line]:
    """C-20: what `tandem audit` says of the same files."""
    if len(stores) < 2:
        return
    places = {f"replica {number}": str(store) for number, store in enumerate(stores)}
    found = audit(places, LocalEngine())
    rows = [str(row) for row in found.divergences if row.severity != Severity.INFO]
    yield Audit(bool(rows), "; ".join(rows[:3]))


def declared_losses(
    journal: Path, stores: Sequence[Path], mode: Mode, topics: frozenset[str]
) -> frozenset[str]:
    """Unique ids that the mode may lose: what replicas set aside and say so, and the last moment before a power cut."""
    declared = frozenset[str]()
    if fate(mode, Fault.GONE) is Fate.LAG:
        cuts = [cut for store in stores for cut in read_cuts(store, topics)]
        declared = declared.union(*(each.unique_ids for each in cuts))
    power = [
        PowerCut(event["at_ns"], len(event["hosts"]), event["everybody"], event["done_ns"])
        for event in read_events(journal)
        if event["what"] == POWER_EVENT
    ]
    if power:
        declared |= within_window(list(read_sends(journal)), power, mode)
    return declared
