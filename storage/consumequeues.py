"""All consume queues of a store, by topic and queue id."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tandemmq.storage.checkpoint import QueueMark
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue, Entry
from tandemmq.storage.derivation import QueueEnd
from tandemmq.storage.errors import FlushFailed
from tandemmq.storage.queuefiles import FileCache, sync_directories
from tandemmq.storage.tombstones import Tombstones

log = logging.getLogger(__name__)

TOPIC_BYTES_MAX: Final = 255  # a directory name


def _directories(parent: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    with os.scandir(parent) as entries:
        return [entry for entry in entries if entry.is_dir()]


class ConsumeQueues:
    """All consume queues of a store. Files appear with the first entry of a queue, not before.

    ends        for the inner loop of dispatch: QueueEnd by topic bytes and queue id; of a topic that was deleted
    only behind its first message after that
    incomplete  a set only while recovery reads the log: queues that lack entries before what the
    log offers them
    log_start   below it the log has been deleted
    tombstones  of deleted topics: their records get no entry (INV-43)
    """

    def __init__(self, config: StorageConfig, *, read_only: bool = False) -> None:
        self.directory = Path(config.root) / "consumequeue"
        self.file_bytes = config.queue_segment_bytes
        self.cache = FileCache(read_only=read_only)
        self.ends: dict[bytes, dict[int, QueueEnd]] = {}
        self.log_start = 0
        self.tombstones = Tombstones(Path(config.root))
        self.incomplete: set[ConsumeQueue] | None = None
        self.torn: set[ConsumeQueue] = set()
        #: (queue, queue offset, entry) -> does the log have that record there? Given by the store.
        self.log_agrees: Callable[[ConsumeQueue, int, Entry], bool] = lambda *_: True
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in list(self._queues.values()):
            yield from list(queues.values())

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def topics(self) -> list[str]:
        return list(self._queues)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._queues.get(topic, {}).values())

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new and without files when it is not known. Raises ValueError for a name that
        is no directory.
        """
        queue = self.get(topic, queue_id)
        if queue is None:
            name = topic.encode()
            if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or queue_id < 0:
                raise ValueError(f"no queue can be called {topic!r}, {queue_id}")
            if len(name) > TOPIC_BYTES_MAX:
                raise ValueError(f"topic of {len(name)} bytes, directories take {TOPIC_BYTES_MAX}")
            queue = ConsumeQueue(self, topic, queue_id)
            self._queues.setdefault(topic, {})[queue_id] = queue
            if not self.tombstones.of(name):
                self.ends.setdefault(name, {})[queue_id] = queue.end
        return queue

    def begin(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Let a queue that describes nothing begin at an offset: messages before it were in another log. Whether
        it did, or had begun there. Raises ValueError as make(), OSError."""
        queue = self.make(topic, queue_id)
        if not queue.describes_nothing:
            return False
        queue.begin_at(queue_offset)
        return True

    def describes_nothing(self, topic: str, queue_id: int) -> bool:
        """Whether a queue has no entry of a record that is in the log. Raises OSError."""
        queue = self.get(topic, queue_id)
        return queue is None or queue.describes_nothing

    def find_end(self, topic: bytes, queue_id: int, physical_offset: int) -> QueueEnd | None:
        """For dispatch: the end of a queue, made when needed; None when the log names an impossible
        one, or a record at this place is of a topic that was deleted since.
        """
        if physical_offset < self.tombstones.of(topic):  # INV-43
            return None
        try:
            end = self.make(topic.decode("utf-8"), queue_id).end
        except ValueError as error:  # UnicodeDecodeError is one
            log.warning("record without queue why=%s", error)
            return None
        self.ends.setdefault(topic, {})[queue_id] = end
        return end

    def look_again(self) -> None:
        """Dispatch goes back: it is to ask again which messages of topics that were deleted have a queue."""
        for topic in self.tombstones.all():
            self.ends.pop(topic.encode(), None)

    def load(self) -> None:
        """Find the queues on disk without opening their files. Raises NotAStore, OSError."""
        if not self.directory.is_dir():
            return
        for topic in _directories(self.directory):
            for queue in _directories(topic):
                if queue.name.isascii() and queue.name.isdigit():
                    with os.scandir(queue) as files:
                        names = [file.name for file in files]
                    if names:
                        self.make(topic.name, int(queue.name)).load(names)

    def compare(self, queue: ConsumeQueue, entry: Entry, queue_offset: int) -> None:
        """While recovering: does the queue hold what the log says? If not it is torn."""
        if self.incomplete is None or queue in self.torn:
            return
        if entry[0] < self.tombstones.of(queue.topic.encode()):
            return  # of the topic's former life
        held = queue.entry(queue_offset)
        if held == entry:
            return
        if held is None or held[0] <= entry[0] or not self.log_agrees(queue, queue_offset, held):
            log.warning(
                "queue entry differs from the log topic=%s queue=%d offset=%d",
                queue.topic, queue.queue_id, queue_offset,
            )  # fmt: skip
            self.torn.add(queue)

    def truncate(self, log_end: int) -> None:
        """Remove every entry whose record does not lie below log_end. Raises OSError."""
        for queue in self:
            if queue.physical_end > log_end:
                queue.truncate(log_end)

    def start_at(self, log_start: int) -> None:
        """The log begins here now."""
        if log_start != self.log_start:
            self.log_start = log_start
            for queue in self:
                queue.log_start_moved()

    def drop_before(self, log_start: int) -> list[Path]:
        """Delete files that only describe deleted records. Raises OSError."""
        return [path for queue in self for path in queue.drop_before(log_start)]

    def flush(self, pages_min: int = 0) -> bool:
        """True when every entry written before the call is on the disk. [thread] Raises
        FlushFailed.
        """
        complete = True
        if pages_min == 0:  # a thousand new queues of one topic share directories
            directories = {path: None for queue in self for path in queue.take_new_names()}
            try:
                sync_directories(directories)
            except OSError as error:
                raise FlushFailed(f"cannot flush {self.directory}: {error}") from error
        for queue in self:
            complete = queue.flush(pages_min) and complete
        return complete

    def marks(self) -> dict[str, dict[int, QueueMark]]:
        """Where every queue with entries stands."""
        return {
            topic: {
                queue_id: QueueMark(queue.first_offset, queue.max_offset, queue.physical_end)
                for queue_id, queue in list(queues.items())
                if queue.max_offset
            }
            for topic, queues in list(self._queues.items())
        }

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Raises OSError."""
        queue = self.get(topic, queue_id)
        if queue is None:
            return
        queue.destroy()
        del self._queues[topic][queue_id]
        self.ends.get(topic.encode(), {}).pop(queue_id, None)
        if not self._queues[topic]:
            del self._queues[topic]
            self.ends.pop(topic.encode(), None)
            directory = self.directory / topic
            if directory.exists() and not any(directory.iterdir()):
                directory.rmdir()

    def delete_topic(self, topic: str) -> None:
        """Raises OSError."""
        for queue in self.of_topic(topic):
            self.delete_queue(topic, queue.queue_id)

    def close(self) -> None:
        self.cache.close()
