"""Runs both sides through everything, and judges what differs."""

from __future__ import annotations

import asyncio
import difflib
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from docs.compatibility import (
    audience,
    brokers,
    commands,
    controllers,
    messages,
    names,
    page,
    reasons,
    tables,
)
from docs.compatibility.answers import Answer, difference
from docs.compatibility.asker import Asked, Asker
from docs.compatibility.servers import OURS, STOCK, Side, started
from tandemmq.admin.absent import ABSENT
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode

PAGE = Path(__file__).parents[1] / "compatibility.md"


@dataclass(frozen=True)
class Told:
    """What one side answered, asked its clients, and did with mqadmin's commands."""

    answers: Mapping[Asked, Answer]
    asked_of_clients: Mapping[RequestCode, Answer]
    commands: Mapping[str, commands.Ends]


def told_by(name: str, directory: Path) -> tuple[Told, list[str]]:
    """Start one side and run it through everything. Also the names that mqadmin's help lists.

    The tool has a JVM of its own per side: some commands keep what they connected to for the next.
    """
    with started(name, directory) as side:
        tool = commands.Stock(directory / "tool")
        try:
            return asyncio.run(_everything(side, tool, directory / "files")), tool.names()
        finally:
            tool.driver.close()


async def _everything(side: Side, tool: commands.Stock, directory: Path) -> Told:
    asker = Asker(side)
    try:
        sent = await messages.everything(asker)
        await tables.everything(asker, sent)
        await brokers.everything(asker)
        await names.everything(asker)
        await controllers.everything(asker)
        # in a thread: the member that the commands ask about answers meanwhile
        ends = await asyncio.to_thread(commands.every, side, tool, sent, messages.UNIQUE, directory)
        await messages.goodbye(asker)
    finally:
        await asker.close()
    return Told(asker.answers, asker.asked_of_clients, ends)


def problems(ours: Told, theirs: Told, listed: list[str]) -> list[str]:
    """What has no row or no reason, or a reason too many; a sentence each. listed: what mqadmin's help names."""
    differ = [each for each in ours.answers if difference(ours.answers[each], theirs.answers[each])]
    found = reasons.unequal("request", differ, reasons.REASONS)
    pushed = ours.asked_of_clients.keys() | theirs.asked_of_clients.keys()
    nothing = Answer(None)
    unlike = [
        code for code in pushed
        if difference(ours.asked_of_clients.get(code, nothing), theirs.asked_of_clients.get(code, nothing))
    ]  # fmt: skip
    found += reasons.unequal("what clients are asked,", unlike, reasons.OF_CLIENTS)
    ends = [
        name for name in ours.commands if commands.difference(ours.commands[name], theirs.commands[name])
    ]  # fmt: skip
    found += reasons.unequal("command", ends, reasons.OF_COMMANDS)
    found += [
        f"{side} {name}: {told.commands[name].stock.words[:2000]}"
        for name in ends if name not in reasons.OF_COMMANDS
        for side, told in ((OURS, ours), (STOCK, theirs))
    ]  # fmt: skip
    asked = {each.code for each in ours.answers}
    found += [f"{code.name} is not asked" for code in RequestCode if code not in asked]
    rows = commands.ARGUMENTS.keys() | commands.ENDLESS
    found += [f"{name} of mqadmin's help is not run" for name in sorted(set(listed) - rows)]
    found += [f"{name} is no command of mqadmin" for name in sorted(rows - set(listed))]
    found += [
        f"{each} is asked by the Dashboard or the exporter, and not served here"
        for each, answer in ours.answers.items()
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        and each.code in audience.DASHBOARD | audience.EXPORTER
    ]
    absent = {name for name, ends in ours.commands.items() if ends.ours is None}
    found += [
        f"{name} is neither run nor absent from `tandem admin`" for name in absent - ABSENT.keys()
    ]
    return found


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it. 1: it is out of step, or something lacks its reason."""
    with tempfile.TemporaryDirectory(prefix="compatibility") as place, ThreadPoolExecutor() as both:
        # at once: they mostly wait
        runs = [both.submit(told_by, side, Path(place) / side) for side in (OURS, STOCK)]
        (ours, listed), (theirs, _) = (each.result() for each in runs)
    wrong = problems(ours, theirs, listed)
    for each in wrong:
        print(each, file=sys.stderr)
    text = page.text(
        ours.answers, theirs.answers, ours.asked_of_clients, ours.commands, theirs.commands
    )
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 1 if wrong else 0
    was = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if was == text:
        return 1 if wrong else 0
    print("docs/compatibility.md is out of step: run python -m docs.compatibility", file=sys.stderr)
    changes = difflib.unified_diff(
        was.splitlines(), text.splitlines(), "page", "now", n=0, lineterm=""
    )
    print("\n".join(changes), file=sys.stderr)
    return 1
