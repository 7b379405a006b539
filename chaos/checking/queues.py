"""One queue of a history: its sends, what replicas hold of it in the end, what readers and groups were given.

All lines of one queue are held at once, and of no other: the history is split by queue first (chaos.checking.judging).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.chaos.checking.findings import Findings
from tandemmq.chaos.checking.lines import (
    FAIL,
    OK,
    Commit,
    Delivered,
    Extent,
    Holding,
    Line,
    Lookup,
    Queue,
    Seen,
    Send,
    Taken,
)

HASHED: Final = 16  # from here on a unique id of 32 digits is the hash of its body
AROUND: Final = 3  # messages before and behind, in an excerpt
CHURNED: Final = (
    "ChaosChurn"  # deleted and made again while the run goes on: judged by tandemmq.chaos.churn
)


class Held(NamedTuple):
    """One message of a replica's queue in the end."""

    unique_id: str
    offset: int
    body_hash: str


@dataclass(slots=True)
class QueueHistory:
    """What the lines of one queue say.

    attempts  unique id -> how many sends of it were not refused
    held      replica -> queue offset -> message; extents: replica -> (start, end)
    given     group -> deliveries in the order of time
    """

    queue: Queue
    sends: dict[str, Send] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    extents: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    given: dict[str, list[Delivered]] = field(default_factory=dict)
    commits: dict[str, list[Commit]] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)

    def take(self, line: Line) -> None:
        match line:
            case Send():
                before = self.sends.get(line.unique_id)
                if before is None:
                    self.sends[line.unique_id] = line
                    self.attempts[line.unique_id] += line.outcome != FAIL
                elif line.began_ns == before.began_ns:  # a late answer: a second word on one send
                    if line.outcome == OK or before.outcome not in (OK, FAIL):
                        self.sends[line.unique_id] = line
                else:
                    self.attempts[line.unique_id] += line.outcome != FAIL
                    if before.outcome != OK:
                        self.sends[line.unique_id] = line
            case Seen():
                self.seen.append(line)
            case Delivered():
                self.given.setdefault(line.group, []).append(line)
            case Holding():
                held = self.held.setdefault(line.replica, {})
                offsets = line.offsets or (-1,) * len(line.unique_ids)
                hashes = line.hashes or ("",) * len(line.unique_ids)
                for at, (unique_id, offset, body_hash) in enumerate(
                    zip(line.unique_ids, offsets, hashes, strict=True), line.first
                ):
                    held[at] = Held(unique_id, offset, body_hash)
            case Extent():
                self.extents[line.replica] = (line.start, line.end)
            case Commit():
                self.commits.setdefault(line.group, []).append(line)
            case Taken():
                self.taken.append(line)
            case Lookup():
                self.lookups.append(line)
            case _:
                raise TypeError(f"no line of a queue: {line}")

    @property
    def replica(self) -> str:
        """The replica whose log is the reference: the one that ends last."""
        return max(self.extents, key=lambda each: self.extents[each][1], default="")

    def reference(self) -> dict[int, Held]:
        return self.held.get(self.replica, {})

    def excerpt(self, unique_id: str, queue_offset: int = -1) -> tuple[str, ...]:
        """What the history says of a message, and of what lies around its place."""
        lines = []
        send = self.sends.get(unique_id)
        if send is not None:
            lines.append(said(send))
            if queue_offset < 0:
                queue_offset = send.queue_offset
        if queue_offset >= 0:
            for replica in sorted(self.held.keys() | self.extents.keys()):
                held = self.held.get(replica, {})
                near = range(queue_offset - AROUND, queue_offset + AROUND + 1)
                there = [f"{at}: {held[at].unique_id[:16]}" for at in near if at in held]
                lines.append(f"on {replica} at {self.queue}: {', '.join(there) or 'nothing there'}")
        for group, deliveries in self.given.items():
            lines += [
                f"{group} was given it at offset {each.queue_offset} by member {each.member}, t={each.at_ns}"
                for each in deliveries
                if each.unique_id == unique_id
            ][:AROUND]
        return tuple(lines)


def said(send: Send) -> str:
    """A send in one line."""
    place = f" as {send.queue_offset} at {send.offset}" if send.queue_offset >= 0 else ""
    return (
        f"send {send.unique_id[:16]} to {send.topic}/{send.queue_id} began t={send.began_ns}, {send.outcome}"
        f"{place} by {send.broker} in epoch {send.epoch}, t={send.ended_ns}"
    )


def judge_queue(history: QueueHistory, declared: frozenset[str], findings: Findings) -> None:
    """C-1 to C-7, C-13, C-19 of one queue. declared: may be missing by the promises of the mode."""
    reference = history.reference()
    place = {held.unique_id: at for at, held in reference.items()}
    _acknowledged(history, reference, place, declared, findings)
    _never_sent(history, findings)
    _one_per_position(history, declared, findings)
    _dense(history, findings)
    _order(history, reference, findings)
    _bodies(history, findings)
    for lookup in history.lookups:
        findings.saw("C-19")
        send = history.sends.get(lookup.unique_id)
        if (
            not lookup.found
            and send is not None
            and send.outcome == OK
            and lookup.unique_id in place
        ):
            findings.add(
                "C-19", f"{lookup.unique_id} is not found by its {lookup.by} on {lookup.broker}",
                send.ended_ns, history.excerpt(lookup.unique_id),
            )  # fmt: skip


def _acknowledged(
    history: QueueHistory,
    reference: dict[int, Held],
    place: dict[str, int],
    declared: frozenset[str],
    findings: Findings,
) -> None:
    """C-1 and C-6."""
    start = history.extents.get(history.replica, (0, 0))[0]
    acknowledged = sum(each.outcome == OK for each in history.sends.values())
    findings.saw("C-1", acknowledged)
    findings.saw("C-6", acknowledged)
    for unique_id, send in history.sends.items():
        if send.outcome != OK or send.fate:
            continue
        at = place.get(unique_id)
        if at is None:
            deleted = 0 <= send.queue_offset < start  # with the head of the log
            if not deleted and unique_id not in declared and not send.due_ns:
                there = reference.get(send.queue_offset)
                instead = f"{there.unique_id} lies there" if there else "nothing lies there"
                findings.add(
                    "C-1", f"LOST {unique_id}, acknowledged at {history.queue} {send.queue_offset}: {instead}",
                    send.ended_ns, _kept(findings, "C-1", history, unique_id),
                )  # fmt: skip
            continue
        if send.due_ns:
            continue  # its acknowledgement names where it waited
        held = reference[at]
        if at != send.queue_offset or (
            held.offset >= 0 and send.offset >= 0 and held.offset != send.offset
        ):
            findings.add(
                "C-6", f"{unique_id} lies at {at}, {held.offset} of the log, and its acknowledgement says "
                f"{send.queue_offset}, {send.offset}", send.ended_ns, _kept(findings, "C-6", history, unique_id),
            )  # fmt: skip


def _never_sent(history: QueueHistory, findings: Findings) -> None:
    """C-2 and C-3: every message that anybody saw was sent to this queue and not refused. C-9: as often as sent."""
    count = 0
    for where, at, unique_id, at_ns in _observed(history):
        count += 1
        send = history.sends.get(unique_id)
        if send is None:
            findings.add(
                "C-2", f"PHANTOM {unique_id} at {history.queue} {at} on {where} was never sent there",
                at_ns, _kept(findings, "C-2", history, unique_id, at),
            )  # fmt: skip
        elif send.outcome == FAIL and not history.attempts[unique_id]:
            findings.add(
                "C-3", f"ABORTED {unique_id} was refused with {send.code} and lies at {history.queue} {at} "
                f"on {where}", send.ended_ns, _kept(findings, "C-3", history, unique_id, at),
            )  # fmt: skip
    findings.saw("C-2", count)
    findings.saw("C-3", sum(each.outcome == FAIL for each in history.sends.values()) or 1)
    for replica, held in history.held.items():
        for unique_id, count in Counter(each.unique_id for each in held.values()).items():
            send = history.sends.get(unique_id)
            if count > max(1, history.attempts[unique_id]) and not (send and send.due_ns):
                findings.add(
                    "C-9", f"REPEATED {unique_id} lies {count} times in {history.queue} of {replica}, sent "
                    f"{history.attempts[unique_id]} times", send.ended_ns if send else 0,
                    _kept(findings, "C-9", history, unique_id),
                )  # fmt: skip


def _observed(history: QueueHistory) -> Iterator[tuple[str, int, str, int]]:
    """(where, queue offset, unique id, when) of everything that lies in the queue or was read from it."""
    for replica, held in history.held.items():
        for at, each in held.items():
            yield replica, at, each.unique_id, 0
    for seen in history.seen:
        for at, unique_id in enumerate(seen.unique_ids, seen.first):
            yield seen.broker, at, unique_id, seen.at_ns
    for group, deliveries in history.given.items():
        for given in deliveries:
            yield group, given.queue_offset, given.unique_id, given.at_ns


def _one_per_position(history: QueueHistory, declared: frozenset[str], findings: Findings) -> None:
    """C-4: replicas in the end, acknowledgements, readers and groups name one message for each queue offset."""
    first: dict[int, str] = {}
    by_log: dict[int, str] = {}
    for held in history.held.values():
        for at, each in held.items():
            _same(first, at, each.unique_id, "queue offset", history, declared, findings)
            if each.offset >= 0:
                _same(
                    by_log, each.offset, each.unique_id, "log offset", history, declared, findings
                )
    for send in history.sends.values():
        if send.outcome == OK and send.queue_offset >= 0 and not send.due_ns:
            _same(
                first,
                send.queue_offset,
                send.unique_id,
                "queue offset",
                history,
                declared,
                findings,
            )
    for seen in history.seen:
        for at, unique_id in enumerate(seen.unique_ids, seen.first):
            _same(first, at, unique_id, "queue offset", history, declared, findings)
    for deliveries in history.given.values():
        for given in deliveries:
            _same(
                first,
                given.queue_offset,
                given.unique_id,
                "queue offset",
                history,
                declared,
                findings,
            )
    findings.saw("C-4", len(first))


def _same(
    first: dict[int, str], at: int, unique_id: str, what: str,
    history: QueueHistory, declared: frozenset[str], findings: Findings,
) -> None:  # fmt: skip
    known = first.setdefault(at, unique_id)
    if known is unique_id or known == unique_id:
        return
    if not {known, unique_id} & declared:
        findings.add(
            "C-4", f"{what} {at} of {history.queue} is {known} and {unique_id}", 0,
            _kept(findings, "C-4", history, unique_id, at if what == "queue offset" else -1),
        )  # fmt: skip


def _dense(history: QueueHistory, findings: Findings) -> None:
    """C-5: each replica holds every queue offset of its extent, in the order of its log."""
    for replica, (start, end) in history.extents.items():
        held = history.held.get(replica, {})
        findings.saw("C-5")
        missing = [at for at in range(start, end) if at not in held]
        beyond = [at for at in held if not start <= at < end]
        if missing or beyond:
            findings.add(
                "C-5", f"{replica} says that {history.queue} is {start}..{end - 1}; {len(missing)} offsets are "
                f"missing (first {missing[:3]}), {len(beyond)} are beyond (first {beyond[:3]})", 0,
                history.excerpt("", (missing or beyond)[0]),
            )  # fmt: skip
        before = -1
        for at in sorted(held):
            offset = held[at].offset
            if 0 <= offset <= before:
                findings.add(
                    "C-5", f"{replica}: {history.queue} {at} lies at {offset} of the log, and the one before it "
                    f"at {before}", 0, history.excerpt(held[at].unique_id, at),
                )  # fmt: skip
                break
            before = max(before, offset)
    ends = {each[1] for each in history.extents.values()}
    if len(ends) > 1:
        findings.add("C-15", f"replicas end {history.queue} at {dict(history.extents)}")


def _order(history: QueueHistory, reference: dict[int, Held], findings: Findings) -> None:
    """C-7: no message lies behind one that was sent only after it had been acknowledged."""
    findings.saw("C-7", len(reference))
    latest: Send | None = None  # begun last among those in front
    for at in sorted(reference):
        send = history.sends.get(reference[at].unique_id)
        if send is None or send.due_ns:
            continue
        if send.outcome == OK and latest is not None and latest.began_ns > send.ended_ns:
            findings.add(
                "C-7", f"{latest.unique_id} lies before {send.unique_id} in {history.queue}, which was "
                "acknowledged before the other was sent", send.ended_ns, (said(send), said(latest)),
            )  # fmt: skip
        if latest is None or send.began_ns > latest.began_ns:
            latest = send


def _bodies(history: QueueHistory, findings: Findings) -> None:
    """C-13: the hash of every body that was looked at is the one in its unique id."""
    count = 0
    for where, unique_id, body_hash, at_ns in _hashes(history):
        count += 1
        if not unique_id.endswith(body_hash):
            findings.add(
                "C-13", f"DAMAGED the body of {unique_id} from {where} has hash {body_hash}", at_ns,
                _kept(findings, "C-13", history, unique_id),
            )  # fmt: skip
    findings.saw("C-13", count)


def _hashes(history: QueueHistory) -> Iterator[tuple[str, str, str, int]]:
    for replica, held in history.held.items():
        for each in held.values():
            if each.body_hash:
                yield replica, each.unique_id, each.body_hash, 0
    for seen in history.seen:
        for unique_id, body_hash in zip(seen.unique_ids, seen.hashes, strict=False):
            yield seen.broker, unique_id, body_hash, seen.at_ns
    for group, deliveries in history.given.items():
        for given in deliveries:
            if given.body_hash:
                yield group, given.unique_id, given.body_hash, given.at_ns


def _kept(
    findings: Findings, check: str, history: QueueHistory, unique_id: str, at: int = -1
) -> tuple[str, ...]:
    return history.excerpt(unique_id, at) if findings.wants(check) else ()


def sorted_by_time(deliveries: Iterable[Delivered]) -> Sequence[Delivered]:
    return sorted(deliveries, key=lambda each: each.at_ns)
