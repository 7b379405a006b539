"""`tandem` in this process: starting an interpreter for each of a hundred commands takes half a minute."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.command.cli import main

SERVERS: Final = ("broker", "namesrv", "controller")
SERVED_S: Final = 60.0  # a server that a test wants to be refused is told to stop after this time


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
    """Run one command to its end; a server that starts after all ends with 0."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            stopped_if_served(*map(str, arguments[:1])),
        ):
            try:
                code = main([str(each) for each in arguments])
            except SystemExit as ended:  # argparse: --help, and options that do not exist
                code = int(ended.code or 0)
    finally:
        sys.stdin = before
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def stopped_if_served(command: str = "") -> Iterator[None]:
    """A loop swallows what pytest-timeout raises in its callbacks: a server would be at work for ever."""
    if command not in SERVERS:
        yield
        return
    timer = threading.Timer(SERVED_S, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
