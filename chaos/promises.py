"""What must hold between the history of a run and the final log of a replicated group. Pure: no I/O, no clock.

Each checker yields a sentence per violation, which begins with one word that names its kind; none at all
means that everything holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tandemmq.chaos.checking.lines import FAIL, OK, Delivered, Seen, Send
from tandemmq.chaos.survival import WINDOW_MS, Fate, Fault, fate
from tandemmq.replication.config import Mode

Queue = tuple[str, int]  # topic, queue id

ANSWER_LIES_NS: Final = (
    1_000_000_000  # longest between a broker's write and the reading of a busy client
)
#: longest that a message acknowledged from the page cache may wait for its disk: the interval, and a slow flush
WINDOW_NS: Final = (WINDOW_MS + 1000) * 1_000_000
SHOWN_MAX: Final = 10  # sentences of one kind


class Stored(NamedTuple):
    """One message of the final log. body_hash: of the body as it lies there."""

    queue_offset: int
    unique_id: str
    offset: int
    size: int
    body_hash: str


class Cut(NamedTuple):
    """Bytes [start, end) of its log that a replica set aside and cut off.

    reported, found  records that it says and that are in the file
    unique_ids       of the run's messages among them
    """

    start: int
    end: int
    reported: int
    found: int
    unique_ids: frozenset[str] = frozenset()
    epoch: int = 0


class LagSample(NamedTuple):
    """What a master exported just before it was taken away: its log ended at `end`, its slaves lacked `lag` bytes."""

    at_ns: int
    epoch: int
    end: int
    lag: int


class Freeze(NamedTuple):
    """A broker was stopped (SIGSTOP), and seen to be, at this time."""

    broker: str
    at_ns: int


class PowerCut(NamedTuple):
    """Hosts lost their power between two times: how many, and whether they were all. done_ns 0: at once."""

    at_ns: int
    hosts: int
    everybody: bool
    done_ns: int = 0


class FinalLog:
    """The messages of the log that a group ended up with, by queue and by unique id."""

    def __init__(self, queues: Mapping[Queue, Sequence[Stored]]) -> None:
        self.queues = queues
        self.places: dict[str, tuple[Queue, Stored]] = {}
        self.repeated: list[str] = []
        for queue, messages in queues.items():
            for message in messages:
                before = self.places.setdefault(message.unique_id, (queue, message))
                if before[1] is not message:
                    self.repeated.append(
                        f"REPEATED {message.unique_id} lies at {before[0]} {before[1].queue_offset} "
                        f"and at {queue} {message.queue_offset}"
                    )

    def at(self, queue: Queue, queue_offset: int) -> Stored | None:
        """The message at a queue offset."""
        messages = self.queues.get(queue, ())
        return messages[queue_offset] if queue_offset < len(messages) else None


def check_log(final: FinalLog) -> Iterator[str]:
    """Queue offsets are 0, 1, 2... in the order of the log, no message lies twice, no body is damaged."""
    yield from final.repeated
    for queue, messages in final.queues.items():
        end = 0
        for expected, message in enumerate(messages):
            if message.queue_offset != expected:
                yield f"GAP {queue} has offset {message.queue_offset} where {expected} is next"
                break
            if message.offset < end:
                yield f"ORDER {queue} {expected} lies at {message.offset}, before {end}"
                break
            end = message.offset + message.size
        for message in messages:
            if not message.unique_id.endswith(message.body_hash):
                yield f"DAMAGED body of {message.unique_id} has hash {message.body_hash}"


def check_sends(
    sends: Iterable[Send], final: FinalLog, declared: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Everything acknowledged lies where the answer said; nothing lies there that nobody sent or that was refused.

    declared  unique ids that replicas reported as cut off, in asynchronous modes: these may be missing
              (check_cuts), and their queue offsets may be given out again
    """
    sent: set[str] = set()
    holders: dict[tuple[Queue, int], str] = {}
    for send in sends:
        sent.add(send.unique_id)
        queue = (send.topic, send.queue_id)
        place = final.places.get(send.unique_id)
        if send.outcome == FAIL and place is not None:
            yield f"ABORTED refused with {send.code} and yet stored at {place[1].offset}: {send}"
        if send.outcome != OK:
            continue
        if place is None:
            if send.unique_id not in declared:
                yield _lost(send, final)
            continue
        stored = place[1]
        if place[0] != queue or stored.queue_offset != send.queue_offset:
            yield f"MOVED to {place[0]} {stored.queue_offset}: {send}"
        elif stored.offset != send.offset:
            yield f"MOVED in the log to {stored.offset}: {send}"
        before = holders.setdefault((queue, send.queue_offset), send.unique_id)
        if before != send.unique_id:
            yield f"REUSED the queue offset acknowledged to {before}: {send}"
    for unique_id, (queue, stored) in final.places.items():
        if unique_id not in sent:
            yield f"PHANTOM {unique_id} at {queue} {stored.queue_offset} was never sent"


def _lost(send: Send, final: FinalLog) -> str:
    queue = (send.topic, send.queue_id)
    other = final.at(queue, send.queue_offset)
    if other is not None:
        return f"LOST and its queue offset REUSED by {other.unique_id}: {send}"
    return f"LOST queue ends at {len(final.queues.get(queue, ()))}: {send}"


def within_window(
    sends: Iterable[Send], cuts: Sequence[PowerCut], mode: Mode, window_ns: int = WINDOW_NS
) -> frozenset[str]:
    """Unique ids that a power cut may have taken by the promises of this mode: those that waited for their disk
    then, on every host that held them.

    That is the last moment before a cut of all hosts, where the mode says so; before a cut of one where the mode
    says so, or where the acknowledgement named no more copies than lost their power.
    """
    return frozenset(
        send.unique_id
        for send in sends
        if send.outcome != FAIL
        and any(
            send.began_ns <= max(cut.at_ns, cut.done_ns)
            and cut.at_ns <= send.ended_ns + window_ns
            and _takes_unflushed(cut, mode, send.copies)
            for cut in cuts
        )
    )


def within_window_again(
    delivered: Iterable[Delivered], cuts: Sequence[PowerCut], mode: Mode, window_ns: int = WINDOW_NS
) -> frozenset[str]:
    """Unique ids of delayed messages of which a power cut may have taken a copy that had just been delivered: what
    it was made from is older and safe, and it is delivered again."""
    return frozenset(
        each.unique_id
        for each in delivered
        if any(
            0 <= cut.at_ns - each.at_ns <= window_ns and _takes_unflushed(cut, mode, -1)
            for cut in cuts
        )
    )


def _takes_unflushed(cut: PowerCut, mode: Mode, copies: int) -> bool:
    """Whether the mode lets this cut take what waits for its disk. copies: as acknowledged, -1 where unknown."""
    if fate(mode, Fault.HOST) is Fate.WINDOW:
        return True
    all_held = cut.everybody or 0 < copies <= cut.hosts
    return fate(mode, Fault.HOSTS) is Fate.WINDOW and all_held


def lost(sends: Iterable[Send], final: FinalLog) -> list[Send]:
    """Acknowledged messages that are not in the final log, in the order of the log they were in."""
    gone = [each for each in sends if each.outcome == OK and each.unique_id not in final.places]
    return sorted(gone, key=lambda each: (each.epoch, each.offset))


def check_cuts(cuts: Iterable[Cut]) -> Iterator[str]:
    """What replicas reported as cut off is what they set aside: no more, no less."""
    for each in cuts:
        if each.reported != each.found:
            yield (
                f"MISCOUNTED {each.start}..{each.end} of epoch {each.epoch}: {each.reported} "
                f"records reported, {each.found} set aside"
            )


def check_exported_lag(gone: Iterable[Send], samples: Iterable[LagSample]) -> Iterator[str]:
    """A loss is never more than the exported lag: what was acknowledged before the last sample of its reign, and
    is lost, lies in the range that the sample named."""
    last: dict[int, LagSample] = {}
    for sample in samples:
        before = last.get(sample.epoch)
        if before is None or sample.at_ns > before.at_ns:
            last[sample.epoch] = sample
    for send in gone:
        named = last.get(send.epoch)
        if named is None or send.ended_ns >= named.at_ns:
            continue
        if send.offset < named.end - named.lag:
            yield (
                f"HIDDEN loss: the exported lag was {named.lag} of {named.end} bytes, and "
                f"acknowledged before it, and lost: {send}"
            )


def check_order(sends: Iterable[Send], final: FinalLog) -> Iterator[str]:
    """A message whose acknowledgement was there before another to its queue was sent lies before it.

    This covers the order within a lane, whose sends follow one another, and the order between lanes.
    """
    known = {each.unique_id: each for each in sends}
    for queue, messages in final.queues.items():
        latest: Send | None = None  # the one begun last among those that lie in front
        for message in messages:
            send = known.get(message.unique_id)
            if send is None:
                continue
            if send.outcome == OK and latest is not None and latest.began_ns > send.ended_ns:
                yield f"ORDER {queue}: {latest} lies before {send}, which was acknowledged before"
            if latest is None or send.began_ns > latest.began_ns:
                latest = send


def check_seen(
    seen: Iterable[Seen], final: FinalLog, declared: frozenset[str] = frozenset()
) -> Iterator[str]:
    """What a reader was given on any replica is what the log holds for ever, but for declared losses."""
    for each in seen:
        queue = (each.topic, each.queue_id)
        for at, unique_id in enumerate(each.unique_ids, each.first):
            stored = final.at(queue, at)
            if stored is not None and stored.unique_id == unique_id:
                continue
            if unique_id in declared:
                continue
            now = "nothing" if stored is None else stored.unique_id
            yield f"VANISHED {unique_id} was read at {queue} {at} from {each.broker}, there is {now} now"


def check_deliveries(
    delivered: Iterable[Delivered], final: FinalLog, declared: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Every message of the final log reached the group that subscribed to its topic, and nothing that it was
    given is gone, but for declared losses."""
    given: set[str] = set()
    for each in delivered:
        given.add(each.unique_id)
        stored = final.at((each.topic, each.queue_id), each.queue_offset)
        if (
            stored is None or stored.unique_id != each.unique_id
        ) and each.unique_id not in declared:
            now = "nothing" if stored is None else stored.unique_id
            yield f"VANISHED {each} was delivered, there is {now} now"
    for queue, messages in final.queues.items():
        for stored in messages:
            if stored.unique_id not in given:
                yield (
                    f"SKIPPED {stored.unique_id} at {queue} {stored.queue_offset}, {stored.offset} of "
                    "the log, was never delivered"
                )


def check_delayed(
    sends: Iterable[Send], final: FinalLog, declared: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Every acknowledged message with a delay level lies in its topic in the end, once or more often; nothing
    lies there that was refused or that nobody sent."""
    sent: dict[str, Send] = {}
    for send in sends:
        known = sent.get(send.unique_id)
        if known is None or known.outcome != OK:
            sent[send.unique_id] = send
    for unique_id, send in sent.items():
        there = unique_id in final.places
        if send.outcome == OK and not there and unique_id not in declared:
            yield f"UNDELIVERED delayed message never came to its topic: {send}"
        if send.outcome == FAIL and there:
            yield f"ABORTED refused with {send.code} and yet delivered: {send}"
    for unique_id, (queue, stored) in final.places.items():
        if unique_id not in sent:
            yield f"PHANTOM {unique_id} at {queue} {stored.queue_offset} was never sent"


def check_epochs(
    sends: Iterable[Send],
    reigns: Sequence[tuple[int, int]],
    declared: frozenset[str] = frozenset(),
    freezes: Sequence[Freeze] = (),
    given_up: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """Acknowledgements of one epoch come from one broker, epochs never go back, and the epoch file agrees.

    reigns    (epoch, first offset), ascending, of the final log
    given_up  unique ids that an asynchronous mode may lose, set aside by a replica and not in the final log: a
              master that nobody hears goes on acknowledging there, and its log is cut when it comes back
    """
    masters: dict[int, str] = {}
    known = sorted(
        (each for each in sends if each.outcome == OK and each.epoch >= 0),
        key=lambda each: each.ended_ns,
    )
    for send in known:
        master = masters.setdefault(send.epoch, send.broker)
        if master != send.broker:
            yield f"TWO MASTERS {master} and {send.broker} acknowledged in epoch {send.epoch}: {send}"
        if reigns and send.unique_id not in declared:
            writer = _reign(reigns, send.offset)
            if writer != send.epoch:
                yield f"EPOCH {writer} wrote the log at {send.offset} by the epoch file: {send}"
    yield from _regressions(known, freezes, given_up)


def _regressions(
    known: Sequence[Send], freezes: Sequence[Freeze], given_up: frozenset[str]
) -> Iterator[str]:
    """Acknowledgements of an old epoch that a broker gave when a newer one had begun; `known` is sorted by end.

    Certain where the send began after the newer epoch acknowledged something, and where its acknowledgement
    came much later than that: an answer does not lie about for so long. Unless its broker was frozen meanwhile,
    it may be between the decision and the write: no broker can help that.
    """
    first_ns: dict[int, int] = {}
    for send in known:
        first_ns.setdefault(send.epoch, send.ended_ns)
    newest = sorted(first_ns.items(), key=lambda each: -each[0])
    earliest_after: dict[int, int] = {}  # when the first of all newer epochs acknowledged something
    soonest = -1
    for epoch, at_ns in newest:
        if soonest >= 0:
            earliest_after[epoch] = soonest
        soonest = at_ns if soonest < 0 else min(soonest, at_ns)
    for send in known:
        newer_ns = earliest_after.get(send.epoch)
        if newer_ns is None or send.unique_id in given_up:
            continue
        late = send.ended_ns > newer_ns + ANSWER_LIES_NS and not any(
            each.broker == send.broker and send.began_ns < each.at_ns < send.ended_ns
            for each in freezes
        )
        if late or send.began_ns > newer_ns:
            late_ms = (send.ended_ns - newer_ns) / 1e6
            yield f"OLD EPOCH acknowledged {late_ms:.0f} ms after a newer one had: {send}"


def _reign(reigns: Sequence[tuple[int, int]], offset: int) -> int:
    found = -1
    for epoch, start in reigns:
        if start > offset:
            break
        found = epoch
    return found


def limited(problems: Iterable[str], shown_max: int = SHOWN_MAX) -> list[str]:
    """The first problems of each kind, and how many more there are."""
    counts: dict[str, int] = {}
    kept = []
    for problem in problems:
        kind = problem.split()[0]
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= shown_max:
            kept.append(problem)
    rest = [
        f"{kind} and {count - shown_max} more of this kind"
        for kind, count in counts.items()
        if count > shown_max
    ]
    return kept + rest


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 for nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
