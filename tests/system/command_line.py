"""`tandem` in this process: starting an interpreter for each of a hundred commands takes half a minute."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any

from tandemmq.command.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that is no heading."""
        return [line.split() for line in self.out.splitlines() if line and line[0] != "#"]


def run(*arguments: object, stdin: bytes = b"") -> Done:
    """Run one command to its end."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main([str(each) for each in arguments])
            except SystemExit as ended:  # argparse: --help, and options that do not exist
                code = int(ended.code or 0)
    finally:
        sys.stdin = before
    return Done(code, out.getvalue(), err.getvalue())
