"""The mark that this machine lost power, or its disk failed, while the log was not flushed.

A replica that may have lost what it had reported must say so to the controller before anything else, and nobody may
elect it until it has caught up (decision 0004 "Suspects"). With SYNC_FLUSH it reported nothing that a power cut takes
(SlaveCore.durable), so how the process ran that died decides, by its own mark: broker.conf may have changed since
(INV-39). The store forgets how it stopped once it is open, so the mark is made before that, and goes when the
controller has noted it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from tandemmq.storage import BOOT_ID_PATH, RunningMark, StorageConfig, jsonfile

log = logging.getLogger(__name__)

FILE_NAME: Final = "suspect"
STOPPED_NAME: Final = "stopped"  # everything was on the disk when the last process ended


class SuspectMark:
    """The file `suspect` in the store's root. Methods block: a few bytes, with fsync."""

    def __init__(self, config: StorageConfig, boot_id_path: Path = BOOT_ID_PATH) -> None:
        self._root = Path(config.root)
        self._boot_id_path = boot_id_path
        self.path = self._root / FILE_NAME
        self._stopped = self._root / STOPPED_NAME

    def look(self) -> None:
        """Before the store is opened: mark it when it stopped so that reported bytes may be gone.

        Raises OSError.
        """
        stopped = self._stopped.exists()
        if stopped:
            self._remove(self._stopped)
        if stopped or not self._root.exists():
            return
        mark = RunningMark(self._root, self._boot_id_path)
        if mark.unclean and not mark.same_boot and not mark.flushed:
            self.make("the machine went down, or its disk failed, with an unflushed log")

    def make(self, why: str) -> None:
        """Raises OSError."""
        log.warning("this replica may have lost what it had reported why=%s", why)
        jsonfile.write_atomically(self.path, why.encode())

    @property
    def there(self) -> bool:
        return self.path.exists()

    def stopped(self) -> None:
        """All of the log is on the disk, and nothing will be added.

        A slave's store seldom counts as closed cleanly: what is not confirmed has no queue entries.
        Raises OSError.
        """
        jsonfile.write_atomically(self._stopped, b"")

    def clear(self) -> None:
        """The controller has noted it. Durable when done. Raises OSError."""
        self._remove(self.path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
