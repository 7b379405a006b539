"""Which files may go: by age at the chosen hours, or at once when the disk fills up."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.storage.clock import Clock
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.flags import Problem, StoreFlags
from tandemmq.storage.segment import Segment

log = logging.getLogger(__name__)

CLOCK_JUMP_MS: Final = 60_000
MANUAL_PASSES: Final = 20

#: path -> (total, used, free) bytes
DiskUsage = Callable[[str], tuple[int, int, int]]


def used_percent(usage: tuple[int, int, int]) -> int:
    """Whole percent, rounded up, of what an ordinary user may fill."""
    _, used, free = usage
    return math.ceil(100 * used / (used + free)) if used + free else 100


def parse_hours(text: str) -> frozenset[int]:
    """deleteWhen: hours of the day with ';' between them. Raises ValueError."""
    hours = frozenset(int(part) for part in text.split(";") if part.strip())
    if not all(0 <= hour <= 23 for hour in hours):
        raise ValueError(f"deleteWhen: hours are 0 to 23, got {text!r}")
    return hours


@dataclass(slots=True)
class DiskState:
    """What the last look at the disk said."""

    log_percent: int = 0
    queue_percent: int = 0


class Retention:
    """Decides, pass by pass, which CommitLog files go; the last one never does, nor one whose
    queue entries are not on disk yet: their queue offsets would be given away again.

    A file is old when its last modification and its last message are both longer ago than
    fileReservedTime. After a forward jump of the wall clock (it gained on the monotonic one) one
    file goes per pass at most, until fileReservedTime has really passed: a wrong clock must not
    empty the store.
    Source: RocketMQ's DefaultMessageStore.CleanCommitLogService.
    """

    def __init__(
        self, config: StorageConfig, log_: CommitLog, flags: StoreFlags, clock: Clock
    ) -> None:
        self.disk = DiskState()
        self.usage: DiskUsage = shutil.disk_usage
        self.local_hour: Callable[[int], int] = lambda ms: time.localtime(ms // 1000).tm_hour
        self._config = config
        self._log = log_
        self._flags = flags
        self._clock = clock
        self._hours = parse_hours(config.delete_when)
        #: below this log offset queues and index have what they need of the log, on disk
        self.durable: Callable[[], int] = lambda: self._log.end
        #: the last pass left a file that should go, because its entries were not on disk yet
        self.held_back = False
        self._manual_passes = 0
        self._wall_ahead_ms = clock.now_ms() - clock.monotonic_ms()
        self._careful_until_ms = -1  # monotonic

    def space(self) -> tuple[int, int]:
        """Bytes of the log's file system, and how many are free. Raises OSError."""
        total, _, free = self.usage(str(_existing(self._config.commitlog_path)))
        return total, free

    def request(self) -> None:
        """An operator asks for cleaning now."""
        self._manual_passes = MANUAL_PASSES

    def take(self) -> list[Segment]:
        """The files that go in this pass, oldest first, already out of the log. Raises OSError."""
        self.held_back = False
        at_once, soon = self._look_at_disk()
        now_ms = self._clock.now_ms()
        manual = self._manual_passes > 0
        self._manual_passes -= manual
        careful = self._clock_jumped()
        if not (at_once or soon or manual or self.local_hour(now_ms) in self._hours):
            return []
        files_max = 1 if careful else self._config.delete_files_max
        at_once = at_once and self._config.clean_forcibly_enabled
        taken: list[Segment] = []
        run = self._log.run
        while len(run.segments) > 1 and len(taken) < files_max:
            first = run.segments[0]
            if not (at_once or self._is_old(first, now_ms)):
                break
            if first.end > self.durable():
                self.held_back = True
                break
            taken.append(run.drop_first())
            log.info("segment deleted path=%s why=%s", first.path, "disk" if at_once else "age")
        return taken

    def _is_old(self, segment: Segment, now_ms: int) -> bool:
        written_ms = int(os.stat(segment.path).st_mtime * 1000)
        following_ms = self._log.store_ms_at(segment.end)  # not older than this file's last message
        stored_ms = following_ms or self._log.store_ms_at(segment.start) or 0
        return now_ms >= max(written_ms, stored_ms) + self._config.reserved_hours * 3_600_000

    def _clock_jumped(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - now_ms
        if ahead_ms - self._wall_ahead_ms > CLOCK_JUMP_MS:
            log.warning("wall clock jumped forward ms=%d", ahead_ms - self._wall_ahead_ms)
            self._careful_until_ms = now_ms + self._config.reserved_hours * 3_600_000
        self._wall_ahead_ms = ahead_ms
        return now_ms < self._careful_until_ms

    def _look_at_disk(self) -> tuple[bool, bool]:
        """(delete at once, delete old files whatever the hour); sets and clears DISK_FULL."""
        config = self._config
        disk = self.disk
        disk.log_percent = used_percent(self.usage(str(_existing(config.commitlog_path))))
        disk.queue_percent = used_percent(self.usage(str(_existing(Path(config.root)))))
        at_once = soon = False
        for percent in (disk.log_percent, disk.queue_percent):
            if percent > config.disk_percent_warning:
                if self._flags.set(Problem.DISK_FULL, f"{percent} % used"):
                    log.error("disk full, puts are refused percent=%d", percent)
                return True, True
            if percent > config.disk_percent_clean_forcibly:
                at_once = True
            soon = soon or percent > config.disk_percent_max
        if not at_once and self._flags.clear(Problem.DISK_FULL):
            log.info("disk has space again percent=%d", disk.log_percent)
        return at_once, soon


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
