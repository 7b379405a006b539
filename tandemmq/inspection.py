"""`tandem inspect`: what is in a store directory, and is it sound. Reads only."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from storage import StorageError, inspect_store
from tandemmq.exits import CommandFailed, ExitCode
from tandemmq.screen import coloured


def run_inspect(arguments: argparse.Namespace) -> ExitCode:
    """Print the report; UNSOUND when something is damaged."""
    directory: Path = arguments.directory
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a directory", ExitCode.STORE_UNUSABLE)
    try:
        report = inspect_store(directory)
    except (StorageError, OSError) as problem:
        raise CommandFailed(str(problem), ExitCode.STORE_UNUSABLE) from problem
    if arguments.json:
        print(json.dumps({"sound": report.sound, **asdict(report)}, default=str))
    else:
        for line in report.lines():
            print(_marked(line))
    return ExitCode.OK if report.sound else ExitCode.UNSOUND


def _marked(line: str) -> str:
    if line.startswith(("PROBLEM", "NOT SOUND")):
        return coloured(line, "red")
    if line.startswith("note"):
        return coloured(line, "yellow")
    return coloured(line, "green") if line == "sound" else line
