"""`tandem send`: messages from the command line, files or the lines of stdin."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tandemmq.cluster.client import (
    Admin,
    Message,
    MessageQueue,
    MessageRefused,
    NoRoute,
    Producer,
    SendResult,
)
from tandemmq.command.bodies import Lines, decoded, given
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.naming import topic_meant
from tandemmq.command.outcome import client_errors
from tandemmq.command.output import to_json
from tandemmq.command.reach import reach
from tandemmq.command.screen import Progress

SHOWN_EVERY_S: Final = 0.5


def run_send(arguments: argparse.Namespace) -> ExitCode:
    """Send and print where each message was stored. A line of stdin is sent when it is there.

    Ctrl-C and SIGTERM: no more is read, what was read is sent.
    """
    sending = _Sending(arguments)
    try:
        with client_errors(), suppress(asyncio.CancelledError):  # a second Ctrl-C
            asyncio.run(sending.run())
    except (CommandFailed, OSError):  # a file that cannot be read, an output that is full
        if sending.sent and not sending.told:
            print(f"{sending.sent} messages sent", file=sys.stderr)
        raise
    if not arguments.json and not sending.told and (sending.sent != 1 or sending.interrupted):
        print(f"{sending.sent} messages sent", file=sys.stderr)
    if sending.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if sending.not_promised else ExitCode.OK


class _Sending:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.sent = 0
        self.not_promised = 0
        self.interrupted = False
        self.told = False  # how many were sent
        self._arguments = arguments
        self._properties = _pairs(arguments.property)
        self._queue = _queue(arguments.topic, arguments.queue)
        self._lines: Lines | None = None
        self._progress = Progress()
        self._shown_s = 0.0

    async def run(self) -> None:
        self._message(b"x")  # what is wrong with the options is said before anything is read
        config = reach(self._arguments)
        async with Producer(self._arguments.group, config=config) as producer:
            await self._tell_of_new_topic()
            with self._signals():
                async for batch in self._batches():
                    await self._send(producer, batch)
        self._progress.clear()
        if self._lines is not None and self._lines.unfinished:
            size = len(self._lines.unfinished)
            print(f"not sent: a last line of {size} bytes that was not ended", file=sys.stderr)

    async def _batches(self) -> AsyncIterator[list[bytes]]:
        batches = given(self._arguments)
        if batches is None:
            self._lines = Lines()
            async for batch in self._lines.batches():
                yield [decoded(body, self._arguments) for body in batch]
            return
        for batch in batches:
            if self.interrupted:
                return
            yield batch

    async def _tell_of_new_topic(self) -> None:
        async with Admin(config=reach(self._arguments)) as admin:
            try:
                await admin.route(self._arguments.topic)
            except NoRoute:
                meant = await topic_meant(admin, self._arguments.topic)
                print(
                    f"no topic {self._arguments.topic} is there yet: the brokers make it with the "
                    f"first message, where autoCreateTopicEnable allows it{meant}",
                    file=sys.stderr,
                )

    async def _send(self, producer: Producer, batch: Sequence[bytes]) -> None:
        """All of them; the first that failed is raised after the others were counted and printed."""
        try:
            outcomes = await asyncio.gather(
                *(producer.send(self._message(body), queue=self._queue) for body in batch),
                return_exceptions=True,
            )
        except asyncio.CancelledError:  # a second Ctrl-C
            self._progress.clear()
            self._tell_unsent(len(batch))
            raise
        problems = [each for each in outcomes if isinstance(each, BaseException)]
        self._progress.clear()
        stored = [each for each in outcomes if isinstance(each, SendResult)]
        self.sent += len(stored)
        self.not_promised += sum(not each.ok for each in stored)
        for result in stored:
            print(to_json(result) if self._arguments.json else _line(result))
        sys.stdout.flush()
        if problems:
            if len(batch) + self.sent > 1:
                self._tell_unsent(len(problems))
            raise problems[0]
        now_s = time.monotonic()
        if self.sent > len(batch) and now_s - self._shown_s >= SHOWN_EVERY_S:
            self._shown_s = now_s
            self._progress.show(f"{self.sent} messages sent")

    def _tell_unsent(self, count: int) -> None:
        self.told = True
        print(
            f"{self.sent} messages sent; not sent, or their fate unknown: {count} more, and what "
            "comes after them",
            file=sys.stderr,
        )

    def _message(self, body: bytes) -> Message:
        arguments = self._arguments
        try:
            return Message(
                arguments.topic, body, tags=arguments.tag, keys=arguments.key,
                properties=self._properties, delay_level=arguments.delay_level,
                delay_s=arguments.delay_s,
            )  # fmt: skip
        except MessageRefused as problem:
            raise CommandFailed(str(problem)) from problem

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Both mean: read no more. A second one ends at once."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if self.interrupted:
                task.cancel()
            self.interrupted = True
            if self._lines is not None:
                self._lines.stop()

        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _pairs(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise CommandFailed(f"--property takes NAME=VALUE, got {text!r}", ExitCode.USAGE)
        found[name] = value
    return found


def _queue(topic: str, text: str | None) -> MessageQueue | None:
    if text is None:
        return None
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdigit():
        raise CommandFailed(f"--queue takes BROKER:ID, got {text!r}", ExitCode.USAGE)
    return MessageQueue(topic, broker, int(number))


def _line(result: SendResult) -> str:
    return f"{result.status.name} {result.message_id} {result.queue} offset={result.queue_offset}"
