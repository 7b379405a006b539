"""What is judged over all queues at once: masters and epochs, availability, settings, bytes of replicas, the audit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.chaos.checking.findings import Findings
from tandemmq.chaos.checking.linear import TooManyAtOnce, linearizable
from tandemmq.chaos.checking.lines import OK, Admin, Audit, Block, Derived, Queue, Route, Send
from tandemmq.chaos.checking.onequeue import said
from tandemmq.chaos.checking.windows import Windows

UNAVAILABLE_NS: Final = 1_000_000_000  # a hiccup of a busy machine is shorter
SLACK_NS: Final = 500_000_000


@dataclass(slots=True)
class Reign:
    """What was acknowledged in one epoch. first_ns: when the first answer came; last: begun last."""

    broker: str
    first: Send
    last: Send


@dataclass(slots=True)
class Reigns:
    """C-14, fed with sends in any order."""

    reigns: dict[int, Reign] = field(default_factory=dict)

    def take(self, send: Send, findings: Findings) -> None:
        if send.outcome != OK or send.epoch < 0:
            return
        reign = self.reigns.get(send.epoch)
        findings.observed["C-14"] += 1
        if reign is None:
            self.reigns[send.epoch] = Reign(send.broker, send, send)
            return
        if send.broker != reign.broker:
            findings.add(
                "C-14", f"TWO MASTERS {reign.broker} and {send.broker} acknowledged in epoch {send.epoch}",
                send.ended_ns, (said(reign.first), said(send)),
            )  # fmt: skip
        if send.ended_ns < reign.first.ended_ns:
            reign.first = send
        if send.began_ns > reign.last.began_ns:
            reign.last = send

    def finish(self, declared: frozenset[str], windows: Windows, findings: Findings) -> None:
        """No send begun after a newer epoch had acknowledged something was acknowledged in an older one; and no
        epoch began without a cause (C-17)."""
        newest: Send | None = None  # acknowledged first of all newer epochs
        for epoch in sorted(self.reigns, reverse=True):
            reign = self.reigns[epoch]
            late = newest is not None and reign.last.began_ns > newest.ended_ns
            if newest is not None and late and reign.last.unique_id not in declared:
                findings.add(
                        "C-14", f"OLD EPOCH {epoch} acknowledged a send begun "
                        f"{(reign.last.began_ns - newest.ended_ns) / 1e6:.0f} ms after epoch {newest.epoch} had "
                        "acknowledged one", reign.last.ended_ns, (said(newest), said(reign.last)),
                    )  # fmt: skip
            if newest is None or reign.first.ended_ns < newest.ended_ns:
                newest = reign.first
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
    blocks: Sequence[Block], derived: Sequence[Derived], audits: Sequence[Audit], findings: Findings
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
    starts = {
        name: {each.start for each in blocks if each.replica == name}
        for name in {b.replica for b in blocks}
    }
    if len({frozenset(each) for each in starts.values()}) > 1:
        ends = {name: max(each, default=0) for name, each in starts.items()}
        findings.add("C-15", f"replicas hold logs of different length: last blocks at {ends}")
    for each in derived:
        findings.saw("C-15")
        if each.problem:
            findings.add("C-15", f"DERIVED {each.replica}: {each.problem}")
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
