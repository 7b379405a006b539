"""`tandem inspect`: what is in a store directory, and is it sound. Reads only."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.screen import coloured
from tandemmq.replication import CorruptEpochFile, EpochHistory, read_epochs
from tandemmq.storage import (
    Report,
    StorageError,
    decode_properties,
    inspect_store,
    is_in_use,
    setaside,
    store_config,
)


def run_inspect(arguments: argparse.Namespace) -> ExitCode:
    """Print the report; UNSOUND when something is damaged."""
    directory: Path = arguments.directory
    aside = setaside.named(directory)
    if aside is not None and directory.is_file():
        return _inspect_aside(aside, arguments.json)
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a directory", ExitCode.STORE_UNUSABLE)
    try:
        report = inspect_store(directory)
        history = _history(directory)
    except (StorageError, OSError) as problem:
        raise CommandFailed(str(problem), ExitCode.STORE_UNUSABLE) from problem
    except CorruptEpochFile as problem:
        report.problems.append(f"epoch file: {problem}")
        history = EpochHistory()
    _add_left_open(report, directory)
    kept = setaside.listed(directory)
    if arguments.json:
        asides = [asdict(each) for each in kept]
        found = {
            "sound": report.sound, "epochs": history.entries, "set_aside": asides, **asdict(report)
        }  # fmt: skip
        print(json.dumps(found, default=str))
    else:
        for line in report.lines():
            print(_marked(line))
            if line.startswith("log "):
                print("\n".join(_sequence(history, report.log_end)))
                for each in kept:
                    print(coloured(_aside_line(each), "yellow"))
    return ExitCode.OK if report.sound else ExitCode.UNSOUND


def _add_left_open(report: Report, directory: Path) -> None:
    """What RocketMQ left in the store that is not served here: a problem where a broker of ours does not start.

    A broker that runs just now may have all of it under way.
    """
    look = importlib.import_module("tandemmq.cluster.broker").look
    try:
        found = look(store_config(directory))
        running = is_in_use(directory)
    except (StorageError, OSError) as problem:
        report.problems.append(f"left by RocketMQ: {problem}")
        return
    for each in found:
        under_way = running and each.word
        refuses = each.mend and not under_way
        if refuses:
            report.problems.append(f"left by RocketMQ: {each.refusal}")
        else:
            report.notes.append(f"found in the store: {each.text}")


def _history(directory: Path) -> EpochHistory:
    """The epochs in which this log was written; none without a controller.

    Raises CorruptEpochFile, OSError.
    """
    path = directory / "epochFileCheckpoint"
    generations = (path, path.with_name(path.name + ".bak"))
    return read_epochs(*(each.read_bytes() if each.exists() else None for each in generations))


def _sequence(history: EpochHistory, log_end: int) -> Iterator[str]:
    """Sequence ids are (epoch, log offset): the next one, and which range was written in which epoch."""
    yield f"sequence id epoch={history.last} offset={log_end}"
    ends = [each.start for each in history.entries[1:]] + [log_end]
    for each, end in zip(history.entries, ends, strict=False):  # without an epoch there is no end
        yield f"written in epoch={each.number} from={each.start} to={end}"


def _aside_line(aside: setaside.SetAside) -> str:
    return (
        f"set aside epoch={aside.epoch} start={aside.start} end={aside.end} "
        f"records={aside.records} file={aside.path}"
    )


def _inspect_aside(aside: setaside.SetAside, as_json: bool) -> ExitCode:
    """What is in a file that was set aside when the log's end was cut: its messages, one a line."""
    messages = []
    try:
        for head in setaside.heads_of(aside.path):
            messages.append(
                {
                    "offset": head.physical_offset,
                    "size": head.size,
                    "topic": head.topic.decode("utf-8", "replace"),
                    "queue_id": head.queue_id,
                    "queue_offset": head.queue_offset,
                    "store_ms": head.store_ms,
                    "properties": decode_properties(head.properties),
                }
            )
    except (StorageError, OSError) as problem:
        raise CommandFailed(str(problem), ExitCode.STORE_UNUSABLE) from problem
    if as_json:
        print(json.dumps({**asdict(aside), "messages": messages}, default=str))
    else:
        print(_aside_line(aside))
        for each in messages:
            print(" ".join(f"{name}={value}" for name, value in each.items()))
    return ExitCode.OK if len(messages) == aside.records else ExitCode.UNSOUND


def _marked(line: str) -> str:
    if line.startswith(("PROBLEM", "NOT SOUND")):
        return coloured(line, "red")
    if line.startswith("note"):
        return coloured(line, "yellow")
    return coloured(line, "green") if line == "sound" else line
