"""What is judged over all queues at once: masters and epochs, availability, settings, bytes of replicas, the audit."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.chaos.checking.findings import Findings
from tandemmq.chaos.checking.linear import TooManyAtOnce, linearizable
from tandemmq.chaos.checking.lines import (
    OK,
    Admin,
    Audit,
    Block,
    Derived,
    EpochFile,
    Queue,
    Route,
    Send,
)
from tandemmq.chaos.checking.onequeue import said
from tandemmq.chaos.checking.windows import Windows

UNAVAILABLE_NS: Final = 1_000_000_000  # a hiccup of a busy machine is shorter
SLACK_NS: Final = 500_000_000
#: longest between a broker's write and the reading of a busy client
ANSWER_LIES_NS: Final = 1_000_000_000


class Freeze(NamedTuple):
    """A broker was stopped (SIGSTOP), and seen to be, at this time."""

    broker: str
    at_ns: int


@dataclass(slots=True)
class Reign:
    """What was acknowledged in one epoch. first: ended first; last: begun last.

    newest, latest  of those that nothing excuses from coming after another epoch: begun last, ended last
    """

    broker: str
    first: Send
    last: Send
    newest: Send | None = None
    latest: Send | None = None


@dataclass(slots=True)
class Reigns:
    """C-14, fed with sends in any order, when events, declarations and epoch files were taken.

    declared   may be missing; given_up of them: a master that nobody hears goes on acknowledging in an asynchronous
               mode, and what it took then is set aside when it comes back
    left_out   topics of which nobody knows what was set aside
    files      of the replicas' epoch files the one whose log ends last says who wrote what
    """

    reigns: dict[int, Reign] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    left_out: Collection[str] = ()
    freezes: list[Freeze] = field(default_factory=list)
    files: list[EpochFile] = field(default_factory=list)

    def take(self, send: Send, findings: Findings) -> None:
        if send.outcome != OK or send.epoch < 0:
            return
        reign = self.reigns.get(send.epoch)
        findings.observed["C-14"] += 1
        self._by_file(send, findings)
        if reign is None:
            reign = self.reigns[send.epoch] = Reign(send.broker, send, send)
        if send.broker != reign.broker:
            findings.add(
                "C-14", f"TWO MASTERS {reign.broker} and {send.broker} acknowledged in epoch {send.epoch}",
                send.ended_ns, (said(reign.first), said(send)),
            )  # fmt: skip
        if send.ended_ns < reign.first.ended_ns:
            reign.first = send
        if send.began_ns > reign.last.began_ns:
            reign.last = send
        if send.unique_id in self.given_up or (self.given_up and send.topic in self.left_out):
            return
        if reign.newest is None or send.began_ns > reign.newest.began_ns:
            reign.newest = send
        if (reign.latest is None or send.ended_ns > reign.latest.ended_ns) and not any(
            each.broker == send.broker and send.began_ns < each.at_ns < send.ended_ns
            for each in self.freezes
        ):  # a frozen broker may be between the decision and the write: nobody can help that
            reign.latest = send

    def _by_file(self, send: Send, findings: Findings) -> None:
        if not self.files or send.due_ns or send.fate or send.topic in self.left_out:
            return
        reigns = max(self.files, key=lambda each: each.end).reigns
        at = bisect_right(reigns, send.offset, key=lambda each: each[1]) - 1
        writer = reigns[at][0] if at >= 0 else -1
        if reigns and writer != send.epoch and send.unique_id not in self.declared:
            findings.add(
                "C-14", f"EPOCH {writer} wrote the log at {send.offset} by the epoch file, and {send.epoch} by the "
                f"acknowledgement of {send.unique_id}", send.ended_ns, (said(send),),
            )  # fmt: skip

    def finish(self, windows: Windows, findings: Findings) -> None:
        """Nothing was acknowledged in an older epoch whose send began after a newer one had acknowledged something,
        or whose answer came much later than that: an answer does not lie about for so long. And no epoch began
        without a cause (C-17)."""
        newer: Send | None = None  # acknowledged first of all newer epochs
        for epoch in sorted(self.reigns, reverse=True):
            reign = self.reigns[epoch]
            for late in dict.fromkeys((reign.newest, reign.latest)):
                if newer is None or late is None:
                    continue
                waited_ns = late.ended_ns - newer.ended_ns
                if late.began_ns > newer.ended_ns or (
                    late is reign.latest and waited_ns > ANSWER_LIES_NS
                ):
                    findings.add(
                        "C-14", f"OLD EPOCH {epoch} acknowledged {waited_ns / 1e6:.0f} ms after epoch {newer.epoch} "
                        f"had: {late.unique_id}", late.ended_ns, (said(newer), said(late)),
                    )  # fmt: skip
            if newer is None or reign.first.ended_ns < newer.ended_ns:
                newer = reign.first
        ordered = sorted(self.reigns)
        for before, after in itertools.pairwise(ordered):
            old, new = self.reigns[before].last, self.reigns[after].first
            findings.saw("C-17")
            if not windows.excuse(old.began_ns, new.ended_ns):
                findings.add(
                    "C-17", f"CHANGED the master of epoch {before} gave way to epoch {after} without a cause",
                    new.ended_ns, (said(old), said(new)),
                )  # fmt: skip


@dataclass(slots=True)
class Stretch:
    """A queue that failed sends begun since `since_ns`; 0: it works. tried_ns: when the last of them ended."""

    since_ns: int = 0
    tried_ns: int = 0
    reported: bool = False


@dataclass(slots=True)
class Availability:
    """C-17, fed with sends in the order in which they ended."""

    stretches: dict[Queue, Stretch] = field(default_factory=dict)
    downs: list[tuple[int, int]] = field(default_factory=list)  # (from, until) of any queue, ns

    def take(self, send: Send, windows: Windows, findings: Findings) -> None:
        queue = (send.topic, send.queue_id)
        stretch = self.stretches.get(queue)
        if stretch is None:
            stretch = self.stretches[queue] = Stretch()
        if send.outcome != OK:
            stretch.since_ns = stretch.since_ns or send.began_ns
            stretch.tried_ns = send.ended_ns
            return
        findings.observed["C-17"] += 1
        if stretch.since_ns and send.began_ns >= stretch.since_ns:
            self._ended(queue, stretch.since_ns, send.ended_ns, windows, findings)
            stretch.since_ns = 0

    def _ended(
        self, queue: Queue, since_ns: int, until_ns: int, windows: Windows, findings: Findings
    ) -> None:
        self.downs.append((since_ns, until_ns))
        took_ns = until_ns - since_ns
        if took_ns > UNAVAILABLE_NS and not windows.cover(since_ns, until_ns, SLACK_NS):
            findings.add(
                "C-17", f"UNAVAILABLE {queue} took nothing for {took_ns / 1e9:.2f} s, beyond every fault and the time "
                "that one may take", since_ns, (f"no send succeeded from t={since_ns} to t={until_ns}",),
            )  # fmt: skip

    def finish(self, windows: Windows, findings: Findings) -> None:
        """Nobody knows of the time after the last attempt: workloads end before the run does."""
        for queue, stretch in self.stretches.items():
            if stretch.since_ns:
                self._ended(queue, stretch.since_ns, stretch.tried_ns, windows, findings)


def by_setting(
    operations: Sequence[Admin], *, unconfirmed: bool = False
) -> Mapping[str, Sequence[Admin]]:
    """Operations by key.

    unconfirmed  a master may show a change that it never confirmed, which is gone with it: reads of such values say
                 nothing
    """
    by_key: dict[str, list[Admin]] = {}
    for each in operations:
        by_key.setdefault(each.key, []).append(each)
    return {key: confirmed(each) for key, each in by_key.items()} if unconfirmed else by_key


def judge_settings(settings: Mapping[str, Sequence[Admin]], findings: Findings) -> None:
    """C-16 of every key."""
    for key, history in settings.items():
        findings.saw("C-16", len(history))
        try:
            good = linearizable(history)
        except TooManyAtOnce as problem:
            findings.add("C-16", f"{key} cannot be judged: {problem}")
            continue
        if not good:
            shown = [
                f"{each.action} {each.value} {each.outcome} t={each.began_ns}..{each.ended_ns}"
                for each in history
            ]
            findings.add("C-16", f"no order explains what was read of {key}", 0, tuple(shown[-40:]))


def confirmed(history: Sequence[Admin]) -> list[Admin]:
    """Without reads of what the last write of that value, as far as it had begun, did not confirm."""
    kept = []
    for each in history:
        if each.action == "read":
            writes = [
                other
                for other in history
                if other.action == "write"
                and other.value == each.value
                and other.began_ns <= each.ended_ns
            ]
            if writes and max(writes, key=lambda other: other.began_ns).outcome == "info":
                continue
        kept.append(each)
    return kept


def judge_routes(routes: Sequence[Route], findings: Findings) -> None:
    """C-16: at one name server the epoch of a group never goes back."""
    last: dict[tuple[str, str], Route] = {}
    for route in sorted(routes, key=lambda each: each.at_ns):
        findings.saw("C-16")
        key = (route.name_server, route.group)
        before = last.get(key)
        if before is not None and route.epoch < before.epoch:
            findings.add(
                "C-16", f"{route.name_server} shows epoch {route.epoch} of {route.group} after {before.epoch}",
                route.at_ns, (str(before), str(route)),
            )  # fmt: skip
        last[key] = route


def judge_replicas(
    blocks: Sequence[Block],
    derived: Sequence[Derived],
    audits: Sequence[Audit],
    files: Sequence[EpochFile],
    findings: Findings,
) -> None:
    """C-15, and C-20: the audit says the same."""
    first: dict[tuple[int, int], Block] = {}
    for block in blocks:
        findings.saw("C-15")
        known = first.setdefault((block.start, block.size), block)
        if known.digest != block.digest:
            findings.add(
                "C-15", f"DIFFER {known.replica} and {block.replica} hold other bytes in [{block.start}, "
                f"{block.start + block.size})", 0, (str(known), str(block)),
            )  # fmt: skip
    held: dict[str, set[tuple[int, int]]] = {}
    for block in blocks:
        held.setdefault(block.replica, set()).add((block.start, block.size))
    if len({frozenset(each) for each in held.values()}) > 1:
        ends = {name: max(map(sum, each)) for name, each in held.items()}
        findings.add("C-15", f"ENDS of the logs differ: {ends}")
    whole = min((each.end for each in files), default=0)
    histories = {
        tuple(reign for reign in each.reigns if reign[1] < whole): each.replica for each in files
    }
    if len(histories) > 1:
        findings.add("C-15", f"HISTORIES differ: {histories}")
    for each in derived:
        findings.saw("C-15")
        if each.problem:
            findings.add("C-15", f"{each.problem}, of {each.replica}")
    differ = findings.counts["C-15"] > 0
    for audit in audits:
        findings.saw("C-20")
        if audit.differ != differ:
            found = "differ" if differ else "agree"
            findings.add(
                "C-20",
                f"the audit says {'differ' if audit.differ else 'agree'} of replicas that {found}: {audit.says}",
            )


@dataclass(slots=True)
class Thin:
    """How many sends each queue had in each fault's stretch: too few show nothing."""

    counts: dict[tuple[Queue, int], int] = field(default_factory=dict)
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # (from, until, fault)

    def take(self, send: Send) -> None:
        for since_ns, until_ns, number in self.spans:
            if send.began_ns <= until_ns and send.ended_ns >= since_ns:
                key = ((send.topic, send.queue_id), number)
                self.counts[key] = self.counts.get(key, 0) + 1
