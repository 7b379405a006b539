"""What `tandem send` sends: its argument, files, or the lines of stdin as soon as they are there."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from tandemmq.command.exits import CommandFailed, ExitCode

TOGETHER: Final = 256  # sends under way at once
CHUNK_BYTES: Final = 1 << 14  # what was read is sent, after Ctrl-C too: a second at most
CHUNKS_AHEAD: Final = 1
IN_HAND_S: Final = 0.05  # for what a thread has read and not told us yet
PROMPT: Final = "> "


class Lines:
    """Lines of stdin in batches: as many as are there already, never waiting for more.

    unfinished  bytes of a last line that was not ended when stop() came
    """

    def __init__(self) -> None:
        self.unfinished = b""
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()  # CHUNKS_AHEAD + 1 at most
        self._wanted = threading.Semaphore(CHUNKS_AHEAD + 1)
        self._asks = sys.stdin.isatty() and sys.stderr.isatty()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Read no more; what was read whole is still handed out."""
        self._stopped.set()

    async def batches(self) -> AsyncIterator[list[bytes]]:
        # a thread, as no loop can wait for a file; a daemon, as nothing ends a read of a terminal
        threading.Thread(target=self._read, name="stdin", daemon=True).start()
        if self._asks:
            print("one message a line; Ctrl-D ends", file=sys.stderr)
        rest = b""
        while True:
            if self._asks:
                print(PROMPT, end="", file=sys.stderr, flush=True)
            chunk = await self._next()
            if chunk is None:
                self.unfinished = rest
                return
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk:  # the end of the input ends the last line too
                lines, rest = [rest], b""
            whole = [line.rstrip(b"\r") for line in lines if line.rstrip(b"\r")]
            for start in range(0, len(whole), TOGETHER):
                yield whole[start : start + TOGETHER]
            if not chunk:
                return

    async def _next(self) -> bytes | None:
        """What was read, b"" at the end, None after stop() when nothing read is left."""
        chunk = await self._wait() if self._chunks.empty() else self._chunks.get_nowait()
        if not self._stopped.is_set():
            self._wanted.release()
        return chunk

    async def _wait(self) -> bytes | None:
        """What is read next; after stop() what was in a thread's hand, or None."""
        reading = asyncio.ensure_future(self._chunks.get())
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((reading,), timeout=IN_HAND_S)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            stopping.cancel()

    def _read(self) -> None:
        chunk = b"more"
        with suppress(RuntimeError):  # the loop is closed: nobody waits for more
            while chunk:
                self._wanted.acquire()
                chunk = _read_some()
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)


def _read_some() -> bytes:
    """What is there, at least a byte, b"" at the end. Unbuffered: a thread that is left in a read
    must not hold Python's lock of stdin when the process ends."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # no file: text given by whoever runs us in his process
        return sys.stdin.buffer.read(CHUNK_BYTES)
    return os.read(descriptor, CHUNK_BYTES)


def given(arguments: argparse.Namespace) -> Iterator[list[bytes]] | None:
    """Batches of BODY or the files; None: stdin is to be read. Raises CommandFailed, OSError."""
    if arguments.body is not None and arguments.file:
        raise CommandFailed("give BODY or --file, not both", ExitCode.USAGE)
    if arguments.file:
        return _batched(_of_files(arguments.file, lines=arguments.lines))
    if arguments.body is not None:
        return iter([[decoded(arguments.body.encode(errors="surrogateescape"), arguments)]])
    return None


def _of_files(paths: list[Path], *, lines: bool) -> Iterator[bytes]:
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise CommandFailed(f"cannot read {path}: {problem.strerror}") from problem
        if lines:
            yield from (line for line in data.splitlines() if line)
        else:
            yield data


def _batched(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(bodies, TOGETHER)):
        yield batch


def decoded(body: bytes, arguments: argparse.Namespace) -> bytes:
    """The body, or with --hex what its digits stand for. Raises CommandFailed."""
    if not arguments.hex:
        return body
    try:
        return bytes.fromhex(body.decode("ascii"))
    except ValueError as problem:
        raise CommandFailed(f"--hex: {body[:40]!r}: {problem}", ExitCode.USAGE) from problem
