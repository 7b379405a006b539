"""The page itself: tables of what both sides answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from docs.compatibility import audience, brokers, commands, reasons, settings
from docs.compatibility.answers import Answer, difference
from docs.compatibility.asker import Asked
from docs.generate import table
from tandemmq.admin.absent import ABSENT
from tandemmq.admin.commands import COMMANDS
from tandemmq.cluster.access.needs import (
    CONTROLLER_OPEN,
    CONTROLLER_SUPER,
    NAME_SERVER_OPEN,
    NAME_SERVER_SUPER,
)
from tandemmq.cluster.remoting import RequestCode as R
from tandemmq.cluster.remoting.codes import ResponseCode

HEADS: Final = ("request", "asked by", "5.3.3 answers", "we answer", "difference, and why")

_INTRO: Final = """<!-- written by python -m docs.compatibility, which runs both; change what it names, then run it -->
# What we answer, and what RocketMQ 5.3.3 answers

Made by running both: our name server, controller and brokers, and RocketMQ's of 5.3.3, are asked every request code
by one script (`docs/compatibility/`), and every command of the stock mqadmin is run against both.
`python -m docs.compatibility` writes this page in about five minutes; it needs a JDK and Maven, and fails where a
difference has no reason in `docs/compatibility/reasons.py`, or a reason no difference.
`tests/compat/test_compatibility_page.py` runs it again and compares.

Compared are the response code, whether there is a remark, the names of header fields, and the shape of the body: of
JSON the members and the kind of each value, of messages their properties, of settings their names. Values are not: the
other tests of `tests/compat` look at those. RocketMQ's remark `not set any response code`, beside a success, counts as
none.

{answers} answers to {codes} request codes were compared: {same} are the same, {differ} differ. {refused} codes are
refused here (code 3) and served by 5.3.3; nothing else is that a client of the remoting protocol, mqadmin, RocketMQ
Dashboard or rocketmq-exporter asks.
"""
_SETTINGS: Final = """
In a settings file, where RocketMQ serves what is asked for. What a store may hold that stops a start, static and
compacted topics among it: [from RocketMQ](howto/from-rocketmq.md#what-stops-a-start).

"""
_WHO: Final = """
*Asked by*: C clients of the remoting protocol, D RocketMQ Dashboard, E rocketmq-exporter, B brokers and controllers
among themselves, A mqadmin or a program alone.
"""
_PUSHED: Final = """
## What servers ask their clients

Both brokers sent each of these to a member of a group while they were asked. Asked themselves, they refuse them alike
(307 and 309 they pass on).

"""
_CALLERS: Final = """
## RocketMQ Dashboard and rocketmq-exporter

What the Dashboard's services ask (tools of 5.3.3, July 2026), and the exporter's collector (tools of 4.9.4, October
2024). Every one of it is served. The Dashboard asks by the fast port, two below the broker's, unless told otherwise.

"""
_COMMANDS: Final = """
## mqadmin

Its {all} commands by name: the stock tool of 5.3.3 against our servers and against its own, then `tandem admin` with
the same arguments against both; {served} of them are commands of `tandem admin`. *done* is an end without error,
*code* what its exception carries. A dash where there is nothing to run: `tandem admin` does without the command.

"""


def text(
    ours: Mapping[Asked, Answer],
    theirs: Mapping[Asked, Answer],
    pushed: Mapping[R, Answer],
    our_ends: Mapping[str, commands.Ends],
    their_ends: Mapping[str, commands.Ends],
) -> str:
    """The whole page."""
    differing = [each for each in ours if difference(ours[each], theirs[each])]
    refused = [
        each.code
        for each in ours
        if not each.case and _refused(ours[each]) and not _refused(theirs[each])
    ]
    parts = [
        _INTRO.format(
            answers=len(ours), codes=len({each.code for each in ours}),
            same=len(ours) - len(differing), differ=len(differing), refused=len(refused),
        ),
        _refusals(sorted(refused)),
        _SETTINGS + table(("setting", "a start with it, as `tandem check-config` says"), settings.outcomes()),
        _WHO,
    ]  # fmt: skip
    names = NAME_SERVER_OPEN | NAME_SERVER_SUPER
    controller = CONTROLLER_OPEN | CONTROLLER_SUPER
    nowhere = frozenset(brokers.NOWHERE)
    of_clients = frozenset(brokers.OF_CLIENTS)

    def section(title: str, holds: Callable[[Asked], bool]) -> None:
        rows = [_row(each, ours[each], theirs[each]) for each in sorted(ours) if holds(each)]
        parts.append(f"\n## {title}\n\n" + table(HEADS, rows))

    def of_controller(each: Asked) -> bool:
        return each.code in controller and (each.code not in names or "controller" in each.case)

    def of_names(each: Asked) -> bool:
        return each.code in names and not of_controller(each)

    special = names | controller | nowhere | of_clients
    section("Asked of a broker", lambda each: each.code not in special)
    section("Asked of a name server", of_names)
    section("Asked of a controller", of_controller)
    parts.append(_pushed(pushed))
    section(
        "Defined by RocketMQ, and served by none of its servers", lambda each: each.code in nowhere
    )
    parts.append(_callers(ours, theirs))
    parts.append(_mqadmin(our_ends, their_ends))
    return "".join(parts)


def _refused(answer: Answer) -> bool:
    return answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _row(asked: Asked, ours: Answer, theirs: Answer) -> tuple[str, ...]:
    name = f"{asked.code.value} `{asked.code.name}`" + (f", {asked.case}" if asked.case else "")
    found = difference(ours, theirs)
    if not found:
        return name, audience.of(asked.code), theirs.short, "the same", ""
    why = f"{_own(ours, theirs, found)}{reasons.REASONS.get(asked, '')}"
    return name, audience.of(asked.code), theirs.short, ours.short, why


def _own(ours: Answer, theirs: Answer, found: str) -> str:
    """The difference, where the cells before do not say it."""
    return "" if ours.code != theirs.code else f"{found}: "


def _refusals(codes: Collection[R]) -> str:
    """Refused here and served there, by reason."""
    by_reason: dict[str, list[R]] = {}
    for code in codes:
        by_reason.setdefault(reasons.REASONS.get(Asked(code), ""), []).append(code)
    lines = [
        f"* {', '.join(f'{code.value} `{code.name}`' for code in named)}: {why}."
        for why, named in by_reason.items()
    ]
    return "\n## Refused here\n\n" + "\n".join(lines) + "\n"


def _pushed(pushed: Mapping[R, Answer]) -> str:
    rows: list[tuple[str, ...]] = []
    for code in sorted(pushed):
        why = reasons.OF_CLIENTS.get(code, "")
        rows.append((f"{code.value} `{code.name}`", "differs" if why else "the same", why))
    heads = ("request", "fields and body", "difference, and why")
    return _PUSHED + table(heads, rows)


def _callers(ours: Mapping[Asked, Answer], theirs: Mapping[Asked, Answer]) -> str:
    rows: list[tuple[str, ...]] = []
    for code in sorted(audience.DASHBOARD | audience.EXPORTER):
        asked = [each for each in ours if each.code == code]
        unlike = [each for each in asked if difference(ours[each], theirs[each])]
        cases = ", ".join(each.case or "in general" for each in unlike)
        both = (("Dashboard", audience.DASHBOARD), ("exporter", audience.EXPORTER))
        who = [name for name, codes in both if code in codes]
        answer = "served as by 5.3.3" if not unlike else f"served; differs: {cases}"
        rows.append((f"{code.value} `{code.name}`", ", ".join(who), answer))
    return _CALLERS + table(("request", "asked by", "here"), rows)


def _mqadmin(ours: Mapping[str, commands.Ends], theirs: Mapping[str, commands.Ends]) -> str:
    rows: list[tuple[str, ...]] = []
    for name in sorted({*ours, *commands.ENDLESS, *COMMANDS, *ABSENT}):
        if name in ours:
            mine, stock = ours[name], theirs[name]
            cells = (_end(mine.stock), _end(stock.stock), _end(mine.ours), _end(stock.ours))
            told = commands.ARGUMENTS[name]
            found = commands.difference(mine, stock)
            why = reasons.OF_COMMANDS.get(name, "") if found else ""
        else:
            cells = ("-", "-", "-", "-")
            told = found = ""
            why = "runs until it is stopped: not compared" if name in commands.ENDLESS else "ours"
        if name in ABSENT and not found:
            why = f"{why}; {ABSENT[name]}" if why else ABSENT[name]
        rows.append((f"`{name} {told}`" if told else f"`{name}`", *cells, why))
    heads = (
        "command", "mqadmin, our servers", "mqadmin, 5.3.3's", "`tandem admin`, our servers", "`tandem admin`, 5.3.3's",
        "difference, and why",
    )  # fmt: skip
    total = sum(not each.ours for each in COMMANDS.values()) + len(ABSENT)
    served = sum(not each.ours for each in COMMANDS.values())
    return _COMMANDS.format(all=total, served=served) + table(heads, rows)


def _end(outcome: commands.Outcome | None) -> str:
    return "-" if outcome is None else outcome.error or "done"
