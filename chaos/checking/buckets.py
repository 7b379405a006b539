"""The lines of a history in files by queue, so that one queue after the other can be held whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

import msgspec

from tandemmq.chaos.checking.lines import Queue, decode_line
from tandemmq.chaos.checking.onequeue import QueueHistory

COUNT: Final = 64  # of files: up to so many queues have one each
#: Kinds whose queue comes first in a line. Topics are of RocketMQ's alphabet: none of it is escaped in JSON.
OF_QUEUE: Final = re.compile(rb'\["(?:delivered|final)","[%|\w-]+",\d+,', re.ASCII).match


class Buckets:
    """Takes lines, then gives them back queue by queue."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[IO[bytes]] = []
        self._of_queue: dict[Queue, IO[bytes]] = {}
        self._of_head: dict[bytes, IO[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def put(self, queue: Queue, text: bytes) -> None:
        """A line of this queue."""
        file = self._of_queue.get(queue)
        if file is None:
            number = len(self._of_queue)
            if number < COUNT:
                path = self._directory / f"{number}.jsonl"
                self._files.append(path.open("wb", buffering=1 << 16))
            file = self._of_queue[queue] = self._files[number % COUNT]
        file.write(text)
        head = OF_QUEUE(text)
        if head is not None:
            self._of_head[head[0]] = file

    def put_unread(self, text: bytes) -> bool:
        """Put a line that begins as one that was put before, and says so: it need not be decoded twice."""
        head = OF_QUEUE(text)
        file = None if head is None else self._of_head.get(head[0])
        if file is None:
            return False
        file.write(text)
        return True

    def histories(self, broken: Callable[[Exception], None]) -> Iterator[QueueHistory]:
        """One after the other, when all is put. broken: told of lines that cannot be read."""
        for file in self._files:
            found: dict[Queue, QueueHistory] = {}
            with open(file.name, "rb") as lines:
                for text in lines:
                    try:
                        line: Any = decode_line(text)
                    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
                        broken(problem)
                        continue
                    queue = (line.topic, line.queue_id)
                    history = found.get(queue)
                    if history is None:
                        history = found[queue] = QueueHistory(queue)
                    history.take(line)
            for queue in sorted(found):
                yield found.pop(queue)
