"""What must hold of one queue, whoever reads it: C-1 to C-7, C-9 of the log, C-13, C-19."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from tandemmq.chaos.checking.findings import Findings
from tandemmq.chaos.checking.lines import FAIL, OK, Send
from tandemmq.chaos.checking.onequeue import Held, QueueHistory, said


class LagSample(NamedTuple):
    """What a master exported just before it was taken away: its log ended at `end`, its slaves lacked `lag` bytes."""

    at_ns: int
    epoch: int
    end: int
    lag: int


def judge_queue(
    history: QueueHistory,
    declared: frozenset[str],
    findings: Findings,
    lags: Mapping[int, LagSample] | None = None,
) -> None:
    """C-1 to C-7, C-13, C-19 of one queue.

    declared  may be missing by the promises of the mode
    lags      of each epoch the last sample: a loss is never more than it says
    """
    reference = history.reference()
    place = {held.unique_id: at for at, held in reference.items()}
    _acknowledged(history, reference, place, declared, findings, lags or {})
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
    lags: Mapping[int, LagSample],
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
        findings.tally["acknowledged"] += not send.due_ns
        if at is None:
            deleted = 0 <= send.queue_offset < start  # with the head of the log
            if deleted or send.due_ns:
                continue
            findings.tally["lost"] += 1
            findings.tally["lost bytes"] += send.size
            named = lags.get(send.epoch)
            if named and send.ended_ns < named.at_ns and send.offset < named.end - named.lag:
                findings.add(
                    "C-1", f"HIDDEN loss of {unique_id}: the exported lag was {named.lag} of {named.end} bytes when "
                    f"{send.offset} had been acknowledged", send.ended_ns, _kept(findings, "C-1", history, unique_id),
                )  # fmt: skip
            if unique_id not in declared:
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
                "C-6", f"MOVED {unique_id} lies at {at}, {held.offset} of the log, and its acknowledgement says "
                f"{send.queue_offset}, {send.offset}", send.ended_ns, _kept(findings, "C-6", history, unique_id),
            )  # fmt: skip

    for send in history.again:
        there = reference.get(send.queue_offset)
        deleted = 0 <= send.queue_offset < start
        if (there is None or there.unique_id != send.unique_id) and not (
            deleted or send.due_ns or send.fate or send.unique_id in declared
        ):
            findings.add(
                "C-6", f"MOVED {send.unique_id} was acknowledged once more, at {send.queue_offset}, and is not there",
                send.ended_ns, (said(send), *_kept(findings, "C-6", history, send.unique_id)),
            )  # fmt: skip


def _never_sent(history: QueueHistory, findings: Findings) -> None:
    """C-2 and C-3: every message that anybody saw was sent to this queue and not refused. C-9: as often as sent."""
    sends, attempts = history.sends, history.attempts
    refused = {key for key, send in sends.items() if send.outcome == FAIL and not attempts[key]}
    findings.saw("C-2", history.observations)
    findings.saw("C-3", sum(each.outcome == FAIL for each in sends.values()) or 1)
    strange = (history.ids_held() | history.ids_read()) - (sends.keys() - refused)
    there = chain(history.held_of(strange), history.read_of(strange)) if strange else ()
    for where, at, unique_id, at_ns in there:
        send = sends.get(unique_id)
        if send is None:
            findings.add(
                "C-2", f"PHANTOM {unique_id} at {history.queue} {at} on {where} was never sent there",
                at_ns, _kept(findings, "C-2", history, unique_id, at),
            )  # fmt: skip
        else:
            findings.add(
                "C-3", f"ABORTED {unique_id} was refused with {send.code} and lies at {history.queue} {at} "
                f"on {where}", send.ended_ns, _kept(findings, "C-3", history, unique_id, at),
            )  # fmt: skip
    for replica, held in history.held.items():
        ids = [each.unique_id for each in held.values()]
        if len(set(ids)) == len(ids):
            continue
        for unique_id, copies in Counter(ids).items():
            send = sends.get(unique_id)
            if copies > max(1, attempts[unique_id]) and not (send and send.due_ns):
                findings.add(
                    "C-9", f"REPEATED {unique_id} lies {copies} times in {history.queue} of {replica}, sent "
                    f"{attempts[unique_id]} times", send.ended_ns if send else 0,
                    _kept(findings, "C-9", history, unique_id),
                )  # fmt: skip


def _one_per_position(history: QueueHistory, declared: frozenset[str], findings: Findings) -> None:
    """C-4: replicas in the end, acknowledgements, readers and groups name one message for each queue offset."""
    first: dict[int, str] = {}
    named = chain(
        ((at, each.unique_id) for held in history.held.values() for at, each in held.items()),
        (
            (send.queue_offset, send.unique_id)
            for send in history.sends.values()
            if send.outcome == OK and send.queue_offset >= 0 and not send.due_ns
        ),
        (pair for seen in history.seen for pair in enumerate(seen.unique_ids, seen.first)),
        (
            (given.queue_offset, given.unique_id)
            for deliveries in history.given.values()
            for given in deliveries
        ),
    )
    for at, known, other in _differing(first, named):
        if known not in declared and other not in declared:
            findings.add(
                "C-4", f"REUSED queue offset {at} of {history.queue} is {known} and {other}", 0,
                _kept(findings, "C-4", history, other, at),
            )  # fmt: skip
    findings.saw("C-4", len(first))
    in_log = (
        (each.offset, each.unique_id)
        for held in history.held.values()
        for each in held.values()
        if each.offset >= 0
    )
    for at, known, other in _differing({}, in_log):
        if known not in declared and other not in declared:
            findings.add(
                "C-4", f"REUSED log offset {at} of {history.queue} is {known} and {other}", 0,
                _kept(findings, "C-4", history, other),
            )  # fmt: skip


def _differing(
    first: dict[int, str], named: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, str, str]]:
    """(place, who was named first, who is named now). first: filled with who was named first."""
    remember = first.setdefault
    for at, unique_id in named:
        known = remember(at, unique_id)
        if known is not unique_id and known != unique_id:
            yield at, known, unique_id


def _dense(history: QueueHistory, findings: Findings) -> None:
    """C-5: each replica holds every queue offset of its extent, in the order of its log."""
    for replica, (start, end) in history.extents.items():
        held = history.held.get(replica, {})
        findings.saw("C-5")
        beyond = [at for at in held if not start <= at < end]
        whole = len(held) - len(beyond) == end - start
        missing = [] if whole else [at for at in range(start, end) if at not in held]
        if missing or beyond:
            findings.add(
                "C-5", f"GAP {replica} says that {history.queue} is {start}..{end - 1}; {len(missing)} offsets are "
                f"missing (first {missing[:3]}), {len(beyond)} are beyond (first {beyond[:3]})", 0,
                history.excerpt("", (missing or beyond)[0]),
            )  # fmt: skip
        before = -1
        for at in sorted(held):
            offset = held[at].offset
            if 0 <= offset <= before:
                findings.add(
                    "C-5", f"ORDER {replica}: {history.queue} {at} lies at {offset} of the log, and the one before it "
                    f"at {before}", 0, history.excerpt(held[at].unique_id, at),
                )  # fmt: skip
                break
            before = max(before, offset)
    ends = {each[1] for each in history.extents.values()}
    if len(ends) > 1:
        findings.add("C-15", f"ENDS replicas end {history.queue} at {dict(history.extents)}")


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
                "C-7", f"ORDER {latest.unique_id} lies before {send.unique_id} in {history.queue}, which was "
                "acknowledged before the other was sent", send.ended_ns, (said(send), said(latest)),
            )  # fmt: skip
        if latest is None or send.began_ns > latest.began_ns:
            latest = send


def _bodies(history: QueueHistory, findings: Findings) -> None:
    """C-13: the hash of every body that was looked at is the one in its unique id."""
    findings.saw("C-13", history.bodies)
    for where, unique_id, body_hash, at_ns in history.damaged:
        findings.add(
            "C-13", f"DAMAGED the body of {unique_id} from {where} has hash {body_hash}", at_ns,
            _kept(findings, "C-13", history, unique_id),
        )  # fmt: skip


def _kept(
    findings: Findings, check: str, history: QueueHistory, unique_id: str, at: int = -1
) -> tuple[str, ...]:
    return history.excerpt(unique_id, at) if findings.wants(check) else ()
