"""Porcupine, a linearizability checker of somebody else's making, as a child process (chaos/checking/go).

It is a Go program: built where Go is, once per content of its sources, into .cache. TANDEM_PORCUPINE names one that was
built elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tandemmq.chaos.faults.fault import Unsupported

SOURCES: Final = Path(__file__).resolve().parent / "go"
CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "go"
VARIABLE: Final = "TANDEM_PORCUPINE"
BUILD_S: Final = 600
WRITE, READ, WHOLE = 0, 1, 2
REGISTER: Final = "register"
LOG: Final = "log"
LEGAL: Final = "Ok"
ILLEGAL: Final = "Illegal"
ANSWER_S: Final = (
    60  # for one question, twice that where the answer is Illegal: it is asked what fits
)


class Question(msgspec.Struct):
    """One object and what was done to it; main.go has the words.

    operations  call ns, return ns, WRITE, READ or WHOLE, place or -1, values
    """

    model: str
    operations: list[tuple[int, ...]]
    content: list[int] = []
    first: int = 0
    next: int = 0


class Answer(msgspec.Struct):
    """result: LEGAL, ILLEGAL or "Unknown". fits, left: of an illegal history (main.go)."""

    result: str
    fits: int = 0
    left: list[int] | None = None


def find_program() -> Path:
    """The program: $TANDEM_PORCUPINE, .cache/go, else built by Go. Raises Unsupported."""
    if given := os.environ.get(VARIABLE):
        if not os.access(given, os.X_OK):
            raise Unsupported(f"{VARIABLE}={given} is no program")
        return Path(given)
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    program = CACHE / f"porcupine-{digest.hexdigest()[:12]}"
    if os.access(program, os.X_OK):
        return program
    go = shutil.which("go")
    if go is None:
        raise Unsupported(
            "needs Porcupine: install Go 1.18 or later (https://go.dev/dl/) and it is built, or name a binary by "
            f"{VARIABLE} (built in {SOURCES})"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    built = program.with_suffix(
        f".{os.getpid()}"
    )  # whoever builds beside us finds all of it or nothing
    done = subprocess.run(
        [go, "build", "-o", str(built), "."], cwd=SOURCES, check=False, capture_output=True, text=True, timeout=BUILD_S,
    )  # fmt: skip
    if done.returncode:
        raise Unsupported(f"go build in {SOURCES} failed: {done.stderr[-500:]}")
    built.replace(program)
    return program


class Porcupine:
    """The program inside the block: answers one question after the other."""

    def __init__(self, program: Path, timeout_s: float = ANSWER_S) -> None:
        self._command = [str(program), "-timeout", f"{timeout_s}s"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 20
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is not None:
            self._process.kill()  # it may be busy for as long as its time-out
        self._process.communicate()

    def ask(self, question: Question) -> Answer:
        """Raises Unsupported where the program ends or says something else instead of answering."""
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None and answers is not None
        try:
            to.write(msgspec.json.encode(question) + b"\n")
            to.flush()
            line: Any = answers.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = self._process.wait()
            raise Unsupported(f"{self._command[0]} ended with {code} and said why above")
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError as problem:
            raise Unsupported(f"{self._command[0]} gives no answers: {problem}") from None
