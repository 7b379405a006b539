"""`tandem backup run|list|verify` and `tandem restore`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.backup import words
from tandemmq.backup.brokers import Found, find_brokers
from tandemmq.backup.chain import chain_of
from tandemmq.backup.copying import Taken, take
from tandemmq.backup.errors import BackupDamaged, BackupError, NoBackup
from tandemmq.backup.manifest import Manifest
from tandemmq.backup.places import Place, open_place
from tandemmq.backup.progress import Progress, Report, size_text
from tandemmq.backup.restoring import Point, Restored, restore
from tandemmq.backup.shelf import Shelf, groups_of, one_group, read_shelf
from tandemmq.backup.source import open_source
from tandemmq.backup.verifying import bytes_of, verify
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.reach import reach
from tandemmq.command.screen import table
from tandemmq.command.times import clock_text, moment_ms
from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.live import Access
from tandemmq.storage import StorageError


def run_backup(arguments: argparse.Namespace) -> ExitCode:
    """One action of `tandem backup`."""
    with _problems():
        return {"run": _run, "list": _list, "verify": _verify}[arguments.action](arguments)


def run_restore(arguments: argparse.Namespace) -> ExitCode:
    """`tandem restore`."""
    with _problems():
        return _restore(arguments)


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except NoBackup as problem:
        raise CommandFailed(str(problem), ExitCode.NOT_FOUND) from problem
    except BackupDamaged as problem:
        raise CommandFailed(str(problem), ExitCode.UNSOUND) from problem
    except AuditIncomplete as problem:
        raise CommandFailed(f"{problem}. Nothing was added", ExitCode.UNREACHABLE) from problem
    except (BackupError, BadInput, StorageError, ValueError) as problem:
        raise CommandFailed(str(problem)) from problem
    except OSError as problem:
        place = f"{problem.filename}: " if problem.filename else ""
        raise CommandFailed(f"{place}{problem.strerror or problem}") from problem


@contextlib.contextmanager
def _watching(what: str) -> Iterator[Callable[[int], Report]]:
    """Makes what copying reports to, once it knows how much there is."""
    made: list[Progress] = []

    def watched(total_bytes: int) -> Report:
        made.append(Progress(what, total_bytes))
        return made[-1]

    try:
        yield watched
    finally:
        for each in made:
            each.end()


# --- run ------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> ExitCode:
    if bool(arguments.source) == bool(arguments.namesrv):
        raise CommandFailed("give a SOURCE or --namesrv, one of the two", ExitCode.USAGE)
    access, place = _access(arguments), open_place(arguments.to)
    if arguments.source:
        _take(arguments, arguments.source, access, place)
        return ExitCode.OK
    failed: list[str] = []
    for found in find_brokers(reach(arguments), arguments.cluster, arguments.group):
        try:
            _take_found(arguments, found, access, place)
        except (BackupError, BadInput, AuditIncomplete, OSError) as problem:
            print(f"tandem: {found.group}: {problem}", file=sys.stderr)
            failed.append(found.group)
    if failed:
        raise CommandFailed(f"no backup was taken of {', '.join(failed)}")
    return ExitCode.OK


def _take_found(arguments: argparse.Namespace, found: Found, access: Access, place: Place) -> None:
    if not found.url:
        raise BackupError(found.problem)
    if found.broker_id:
        print(
            f"tandem: {found.group} has no master that answers: replica {found.broker_id} is read, which may"
            " lack the newest messages",
            file=sys.stderr,
        )
    _take(arguments, found.url, access, place)


def _take(arguments: argparse.Namespace, text: str, access: Access, place: Place) -> None:
    source = open_source(text, access, arguments.cluster, arguments.group)
    try:
        with _watching(f"backup of {source.group}") as watched:
            taken = take(source, place, full=arguments.full, watched=watched)
    finally:
        source.close()
    if arguments.json:
        print(json.dumps(_increment(taken.manifest) | {"why": taken.why}), flush=True)
    else:
        print(_sentence(taken, place), flush=True)


def _sentence(taken: Taken, place: Place) -> str:
    manifest = taken.manifest
    added = (
        f"{size_text(taken.copied_bytes)} of log"
        if taken.copied_bytes
        else "nothing new in the log"
    )
    seconds = (manifest.ended_ms - manifest.began_ms) / 1000
    text = (
        f"{manifest.group}: increment {manifest.number} of {manifest.chain} in {place.name}: {added},"
        f" up to {manifest.end}, in {seconds:.1f} s"
    )
    return f"{text}\n  a chain began here: {taken.why}" if taken.why else text


def _access(arguments: argparse.Namespace) -> Access:
    token = os.environ.get(words.HTTP_TOKEN, "")
    if arguments.token_file is not None:
        token = _text(arguments.token_file, "--token-file").strip()
    if not token.isascii() or not token.isprintable():
        raise CommandFailed("the token must be printable ASCII", ExitCode.USAGE)
    return Access(token, _text(Path(arguments.ca), "--ca") if arguments.ca is not None else "")


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "is no text"
        raise CommandFailed(f"{option} {path}: {why}", ExitCode.USAGE) from problem


# --- list and verify ------------------------------------------------------------------------------


def _shelves(arguments: argparse.Namespace) -> tuple[Place, list[Shelf]]:
    place = open_place(arguments.place, reading=True)
    groups = [one_group(place, arguments.group)] if arguments.group else groups_of(place)
    if not groups:
        raise NoBackup(f"{place.name} holds no backup")
    return place, [read_shelf(place, group) for group in groups]


def _list(arguments: argparse.Namespace) -> ExitCode:
    _, shelves = _shelves(arguments)
    if arguments.json:
        print(json.dumps([_shelf(shelf) for shelf in shelves]))
    else:
        print("\n\n".join(_shown(shelf) for shelf in shelves))
    return ExitCode.UNSOUND if any(shelf.damaged for shelf in shelves) else ExitCode.OK


def _shelf(shelf: Shelf) -> dict[str, Any]:
    return {
        "group": shelf.group,
        "chains": {name: list(map(_increment, chain)) for name, chain in shelf.chains.items()},
        "damaged": shelf.damaged,
        "leftover": shelf.leftover,
    }


def _increment(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(manifest)
    return found


def _shown(shelf: Shelf) -> str:
    lines = [f"{shelf.group}"]
    for name, chain in shelf.chains.items():
        rows = [
            (each.number, clock_text(each.began_ms), f"{each.start}-{each.end}",
             size_text(each.end - each.start), each.role, f"{each.source}")
            for each in chain
        ]  # fmt: skip
        lines += [f"chain {name}", table(("nr", "taken", "log", "size", "role", "source"), rows)]
    lines += [f"DAMAGED chain {name}: {why}" for name, why in shelf.damaged.items()]
    lines += [f"unfinished, the next run removes it: {path}" for path in shelf.leftover]
    return "\n".join(lines)


def _verify(arguments: argparse.Namespace) -> ExitCode:
    place, shelves = _shelves(arguments)
    found = []
    for shelf in shelves:
        with _watching(f"verifying {shelf.group}") as watched:
            report = watched(bytes_of(shelf))
            found.append(verify(place, shelf, records=arguments.records, report=report))
    if arguments.json:
        print(json.dumps([msgspec.to_builtins(each) for each in found]))
    else:
        for each in found:
            state = "DAMAGED" if each.problems else "whole"
            records = f", {each.records} records" if arguments.records else ""
            print(
                f"{each.group}: {state}: {each.chains} chains, {each.increments} increments,"
                f" {size_text(each.read_bytes)} read{records}"
            )
            for problem in each.problems:
                print(f"  {problem}")
    return ExitCode.UNSOUND if any(each.problems for each in found) else ExitCode.OK


# --- restore --------------------------------------------------------------------------------------


def _restore(arguments: argparse.Namespace) -> ExitCode:
    point = _point(arguments.until)
    place = open_place(arguments.place, reading=True)
    shelf = read_shelf(place, one_group(place, arguments.group))
    chain = _chain(shelf, arguments.chain, point)
    with _watching("restoring the log") as watched:
        made = restore(
            place, chain, arguments.into, point, as_broker=arguments.as_broker, watched=watched
        )
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(made)))
    else:
        print(_made(made))
    return ExitCode.OK


def _point(until: str | None) -> Point:
    if until is None:
        return Point()
    number = until.removeprefix("@")
    if number.isascii() and number.isdigit() and (number != until or int(number) < MOMENTS_FROM):
        return Point(offset=int(number))
    return Point(until_ms=moment_ms("--until", until, time.time_ns() // 1_000_000))


#: a number from here on is a moment in milliseconds (September 2001) unless "@" says that it is an offset
MOMENTS_FROM: Final = 1_000_000_000_000


def _chain(shelf: Shelf, name: str, point: Point) -> list[Manifest]:
    """The chain to restore; of a damaged one what lies in front of the damage, where it is asked for."""
    chain = chain_of(shelf.chains, name, point.until_ms)
    problem = shelf.damaged.get(chain[0].chain)
    if problem is not None and (point.offset is None or point.offset > chain[-1].end):
        raise BackupDamaged(
            f"{problem}. What lies in front of it can be restored: --chain {chain[0].chain} --until {chain[-1].end}"
        )
    return chain


def _made(made: Restored) -> str:
    lines = [
        f"{made.into}: log [{made.start}, {made.end}) of {made.cluster}#{made.broker}, {made.topics} topics,"
        f" {made.queues} queues",
        f"  the last message was stored at {clock_text(made.until_ms) or '-'};"
        f" from chain {made.chain}, increment {made.increment}",
        *(f"  {note}" for note in made.notes),
        f"  start it with: tandem broker -c {made.settings} -n HOST:PORT",
    ]
    return "\n".join(lines)
