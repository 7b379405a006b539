"""Readers and groups of one queue: C-8 to C-12 and C-18."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.chaos.checking.findings import Findings
from tandemmq.chaos.checking.lines import OK, Commit, Send
from tandemmq.chaos.checking.onequeue import Given, QueueHistory, said
from tandemmq.chaos.checking.windows import Windows

EARLY_NS: Final = (
    50_000_000  # two clocks of one machine, wall and monotonic, were read at two moments
)
LATE_NS: Final = 5_000_000_000
AGAIN_NS: Final = 10_000_000_000  # so long after a rebalance what was not committed yet comes again


def judge_consuming(
    history: QueueHistory,
    declared: frozenset[str],
    windows: Windows,
    findings: Findings,
    reads_all: str = "",
    never: frozenset[str] = frozenset(),
) -> None:
    """What readers and groups were given.

    declared   may vanish by the promises of the mode; never: of these, what need not come at all
    reads_all  a group that must have been given everything
    """
    _readers_go_forward(history, findings)
    for group in dict.fromkeys([*history.given, *([reads_all] if reads_all else [])]):
        ordered = sorted(history.given.get(group, ()), key=lambda each: each.at_ns)
        _members_go_forward(group, ordered, history, findings)
        _again(group, ordered, history, windows, findings)
        _special(group, ordered, history, never, windows, findings)
        if group == reads_all:
            _all_given(group, ordered, history, never, findings)
    for group, commits in history.commits.items():
        _progress(group, sorted(commits, key=lambda each: each.at_ns), history, windows, findings)
    _nothing_vanished(history, declared, findings)


def _readers_go_forward(history: QueueHistory, findings: Findings) -> None:
    """C-8 of readers that pull one stretch after the other."""
    ends: dict[int, int] = {}
    for seen in sorted(history.seen, key=lambda each: each.at_ns):
        findings.saw("C-8")
        end = ends.get(seen.reader)
        if end is not None and seen.first != end:
            what = "again" if seen.first < end else "with a gap"
            findings.add(
                "C-8", f"reader {seen.reader} of {history.queue} was given {seen.first} {what}, its next was {end}",
                seen.at_ns, history.excerpt("", seen.first),
            )  # fmt: skip
        ends[seen.reader] = seen.first + len(seen.unique_ids)


def _members_go_forward(
    group: str, deliveries: Sequence[Given], history: QueueHistory, findings: Findings
) -> None:
    """C-8 within one assignment, where assignments were written down."""
    taken = sorted((each.at_ns, each.member) for each in history.taken if each.group == group)
    if not taken:
        return
    at, last, count = -1, -1, 0
    for given in deliveries:
        while at + 1 < len(taken) and taken[at + 1][0] <= given.at_ns:
            at, last = at + 1, -1
        if given.attempt:
            continue  # from the retry topic
        count += 1
        if at < 0 or given.member != taken[at][1]:
            findings.add(
                "C-8", f"member {given.member} of {group} was given {given.queue_offset} of {history.queue}, which "
                f"is {taken[at][1] if at >= 0 else 'nobody'}'s", given.at_ns,
                history.excerpt(given.unique_id, given.queue_offset),
            )  # fmt: skip
        elif last >= 0 and given.queue_offset != last + 1:
            findings.add(
                "C-8", f"member {given.member} of {group} was given {given.queue_offset} of {history.queue} after "
                f"{last}", given.at_ns, history.excerpt(given.unique_id, given.queue_offset),
            )  # fmt: skip
        last = given.queue_offset
    findings.saw("C-8", count)


def _again(
    group: str,
    deliveries: Sequence[Given],
    history: QueueHistory,
    windows: Windows,
    findings: Findings,
) -> None:
    """C-9: a message is given again only after a failure of its handler, a rebalance, or a fault."""
    findings.saw("C-9", len(deliveries))
    if len({each.unique_id for each in deliveries}) == len(deliveries):
        return
    before: dict[str, Given] = {}
    changes = [each.at_ns for each in history.taken if each.group == group]
    for given in deliveries:
        last = before.get(given.unique_id)
        before[given.unique_id] = given
        if last is None or given.attempt > last.attempt or windows.excuse(last.at_ns, given.at_ns):
            continue
        if any(last.at_ns - AGAIN_NS <= each <= given.at_ns for each in changes):
            continue
        findings.add(
            "C-9", f"{group} was given {given.unique_id} of {history.queue} again after "
            f"{(given.at_ns - last.at_ns) / 1e6:.0f} ms, and nothing had happened between", given.at_ns,
            history.excerpt(given.unique_id, given.queue_offset),
        )  # fmt: skip


def _progress(
    group: str, commits: list[Commit], history: QueueHistory, windows: Windows, findings: Findings
) -> None:
    """C-10 and C-11."""
    end = history.extents.get(history.replica, (0, 0))[1]
    last: Commit | None = None
    reset = False
    for commit in commits:
        findings.saw("C-10")
        reset = reset or commit.how == "reset"
        back = last is not None and commit.offset < last.offset and commit.how != "reset"
        if last is not None and back and not windows.excuse(last.at_ns, commit.at_ns):
            findings.add(
                "C-10", f"the progress of {group} in {history.queue} went back from {last.offset} to "
                f"{commit.offset}", commit.at_ns, (str(last), str(commit)),
            )  # fmt: skip
        if history.extents and commit.offset > end:
            findings.add(
                "C-10", f"the progress of {group} in {history.queue} is {commit.offset}, beyond its end {end}",
                commit.at_ns, (str(commit),),
            )  # fmt: skip
        last = commit
    if last is None or reset or group not in history.given:
        return
    start = history.extents.get(history.replica, (0, 0))[0]
    given = {each.queue_offset for each in history.given[group]}
    findings.saw("C-11", len(given))
    skipped = [at for at in range(start, min(last.offset, end or last.offset)) if at not in given]
    if skipped:
        findings.add(
            "C-11", f"SKIPPED {group} has consumed {history.queue} to {last.offset}, and {len(skipped)} messages were "
            f"never given to it (first {skipped[:3]})", last.at_ns, history.excerpt("", skipped[0]),
        )  # fmt: skip


def _all_given(
    group: str,
    deliveries: Sequence[Given],
    history: QueueHistory,
    never: frozenset[str],
    findings: Findings,
) -> None:
    """C-11 of a group that read along and was waited for. What comes again may have been given from another place.
    C-18: it is there, too; what vanished behind its delivery must have come again."""
    given = {each.unique_id for each in deliveries}
    reference = history.reference()
    there = {each.unique_id for each in reference.values()} | never
    for send in history.sends.values():
        gone = send.due_ns and send.outcome == OK and send.unique_id not in there
        if gone and send.unique_id in given:  # else it is found already
            findings.tally["undelivered"] += 1
            findings.add(
                "C-18", f"UNDELIVERED {send.unique_id} is not in its topic, where it was given to {group}",
                send.due_ns, (said(send),),
            )  # fmt: skip
    findings.saw("C-11", len(reference))
    for at, held in reference.items():
        if held.unique_id not in given:
            findings.tally["skipped"] += 1
            findings.add(
                "C-11", f"SKIPPED {held.unique_id} at {history.queue} {at} was never given to {group}", 0,
                history.excerpt(held.unique_id, at) if findings.wants("C-11") else (),
            )  # fmt: skip


def _nothing_vanished(history: QueueHistory, declared: frozenset[str], findings: Findings) -> None:
    """C-12."""
    if not history.extents:
        return
    start = history.extents[history.replica][0]
    kept = {each.unique_id for each in history.reference().values()}
    findings.saw("C-12", history.readings)
    gone = history.ids_read() - kept - declared
    for where, at, unique_id, at_ns in history.read_of(gone) if gone else ():
        if at >= start:
            findings.add(
                "C-12", f"VANISHED {unique_id} was read at {history.queue} {at} from {where} and is not there "
                "any more", at_ns, history.excerpt(unique_id, at) if findings.wants("C-12") else (),
            )  # fmt: skip


def _special(
    group: str,
    deliveries: Sequence[Given],
    history: QueueHistory,
    never: frozenset[str],
    windows: Windows,
    findings: Findings,
) -> None:
    """C-18: delayed ones come neither early nor late nor never; transactions as they ended."""
    special = [send for send in history.sends.values() if send.due_ns or send.fate]
    if not special:
        return
    first: dict[str, int] = {}
    for given in deliveries:
        first.setdefault(given.unique_id, given.at_ns)
    for send in special:
        if send.due_ns:
            came_ns = first.get(send.unique_id)
            if came_ns is not None or send.unique_id not in never:
                _delayed(group, send, came_ns, windows, findings)
        else:
            _transaction(group, send, first.get(send.unique_id), findings)


def _delayed(
    group: str, send: Send, came_ns: int | None, windows: Windows, findings: Findings
) -> None:
    findings.saw("C-18")
    if came_ns is None:
        if send.outcome == OK:
            findings.tally["undelivered"] += 1
            findings.add(
                "C-18",
                f"UNDELIVERED {send.unique_id} was never given to {group}",
                send.due_ns,
                (said(send),),
            )
        return
    # who delivers goes by its own clock, and by the time that another's clock may have stored
    if came_ns < send.due_ns - EARLY_NS - windows.clocks_apart_ns(came_ns):
        findings.add(
            "C-18", f"EARLY {send.unique_id} was given to {group} {(send.due_ns - came_ns) / 1e6:.0f} ms before it "
            "was due", came_ns, (said(send),),
        )  # fmt: skip
    if came_ns > send.due_ns + LATE_NS and not windows.excuse(send.began_ns, came_ns):
        findings.add(
            "C-18", f"LATE {send.unique_id} was given to {group} {(came_ns - send.due_ns) / 1e6:.0f} ms after it "
            "was due", came_ns, (said(send),),
        )  # fmt: skip


def _transaction(group: str, send: Send, came_ns: int | None, findings: Findings) -> None:
    findings.saw("C-18")
    if send.fate == "rollback" and came_ns is not None:
        findings.add(
            "C-18", f"{send.unique_id} was rolled back and given to {group}", came_ns, (said(send),)
        )
    if send.fate == "commit" and came_ns is None and send.outcome == OK:
        findings.add(
            "C-18",
            f"{send.unique_id} was committed and never given to {group}",
            send.ended_ns,
            (said(send),),
        )
    if came_ns is not None and came_ns < send.began_ns:
        findings.add(
            "C-18",
            f"{send.unique_id} was given to {group} before its half was sent",
            came_ns,
            (said(send),),
        )
