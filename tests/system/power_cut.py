"""What a power cut leaves of a broker's store: the log as far as it was flushed, under another boot."""

from __future__ import annotations

import json
from pathlib import Path

from tandemmq.chaos.asking import ask
from tandemmq.chaos.servers import Broker

RUNTIME = 28
SEGMENT_BYTES = 1024 * 1024  # of tandemmq.chaos.servers.SMALL_FILES

#: The log is flushed by nobody but who must: what was flushed stands still and can be asked for.
NEVER_FLUSHED = {
    "flushIntervalCommitLog": 3_600_000,
    "flushConsumeQueueThoroughInterval": 3_600_000,
    "flushIntervalConsumeQueue": 3_600_000,
}


def flushed(broker: Broker) -> int:
    """Up to where the broker's log is on its disk."""
    code, _, body = ask(broker.address, RUNTIME)
    assert code == 0
    return int(json.loads(body)["table"]["flushedOffset"])


def power_cut(broker: Broker) -> int:
    """Kill -9, lose what was only in the page cache of the log, and boot anew; where the log ends now.

    Small files are kept as they are: they are written with fsync.
    """
    end = flushed(broker)
    broker.kill()
    lose_behind(broker.store, end)
    pid = (broker.store / "abort").read_text().strip()
    (broker.store / "bootid").write_text(f"{pid} another-boot")
    return end


def lose_behind(store: Path, end: int) -> None:
    """Zeros instead of what was never written out."""
    for path in sorted((store / "commitlog").iterdir()):
        start = int(path.name)
        if start + SEGMENT_BYTES > end:
            first = max(0, end - start)
            with path.open("r+b") as file:
                file.seek(first)
                file.write(bytes(path.stat().st_size - first))
