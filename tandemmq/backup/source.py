"""What a backup is taken from: a running broker's HTTP port, or the store of one that is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandemmq.backup.chain import Seen
from tandemmq.backup.errors import BackupError, SourceBroken
from tandemmq.backup.manifest import Layout, Tail, digest
from tandemmq.replication.audit.ends import find_end
from tandemmq.replication.audit.kernel import BLANK
from tandemmq.replication.audit.live import Access, is_live
from tandemmq.replication.audit.source import segment_name
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.windows import end_of_run, read
from tandemmq.replication.epochs import EpochHistory
from tandemmq.storage import is_in_use, store_config

CHUNK_BYTES: Final = 8 << 20  # a request costs a broker's loop as much as 1 MiB of answer
MOVING_S: Final = 10.0  # so long a log may end where no record does: it grows
TABLES_OF_PROGRESS: Final = ("consumerOffset.json", "delayOffset.json")
TABLES_OF_NAMES: Final = ("topics.json", "subscriptionGroup.json", "deletedTopics.json")
_STORE_MS_AT: Final = 56  # of a record whose born host is IPv4; 68 with IPv6
_SYS_FLAG_AT: Final = 36
_BORN_IPV6: Final = 16
_DEFAULT_SLOTS, _DEFAULT_ENTRIES = 5_000_000, 20_000_000
_INDEX_HEADER_BYTES, _INDEX_ENTRY_BYTES, _SLOT_BYTES = 40, 20, 4


class Source:
    """One broker's log and tables. Raises AuditIncomplete, BadInput, BackupError, OSError from everything."""

    def __init__(self, replica: ReplicaStore, cluster: str, group: str, broker_id: int) -> None:
        self.cluster, self.group, self.broker_id = cluster, group, broker_id
        self._replica = replica
        self.layout = self._layout()

    @property
    def name(self) -> str:
        return self._replica.log.name if self.running else str(self._replica.root)

    @property
    def running(self) -> bool:
        return self._replica.live is not None

    @property
    def role(self) -> str:
        live = self._replica.live
        return live.standing.role if live is not None else "stopped"

    def look(self) -> Seen:
        """What there is now. Of a running broker the end is what it has confirmed, which may lie within a record."""
        replica = self._replica
        if replica.live is None:
            self._make_sure_stopped()
            replica.end = find_end(replica)
        else:
            replica.note_position()
        return self._seen(replica.end)

    def look_whole(self, known: int = 0) -> Seen:
        """What there is now, up to the end of a record.

        known  the end of a record, if there is one that the log is known to have: it is looked from there on
        """
        deadline = time.monotonic() + MOVING_S
        while True:
            seen = self.look()
            if not self.running:
                return seen
            end = self._whole_end(seen, known)
            if end is not None:
                return self._seen(end)
            if time.monotonic() > deadline:
                raise SourceBroken(f"{self.name} confirms no whole record: try again")
            time.sleep(0.1)

    def _whole_end(self, seen: Seen, known: int) -> int | None:
        """The last record's end below what is confirmed; None while that lies between two segments."""
        segment = self._replica.segment_at(max(seen.end - 1, 0))
        if segment is None or seen.end <= seen.start:
            return seen.start
        end, kind = end_of_run(self._replica, max(segment.start, min(known, seen.end)))
        if kind == BLANK and end > seen.end:
            return None
        return min(end, seen.end)

    def _seen(self, end: int) -> Seen:
        replica = self._replica
        history = replica.epochs or EpochHistory()
        return Seen(
            self.cluster, self.group, replica.segment_bytes, replica.start, end, history.cut(end)
        )

    def _make_sure_stopped(self) -> None:
        root = self._replica.root
        if root is not None and is_in_use(root):
            raise BackupError(
                f"a broker runs on {root}: give its HTTP port (http://HOST:PORT) instead, or stop it"
            )

    def chunks(self, start: int, end: int) -> Iterator[memoryview]:
        """log[start, end) of one segment; each dies when the next is asked for. Raises SourceBroken."""
        buffer = bytearray(min(CHUNK_BYTES, end - start))
        segment = start - start % self._replica.segment_bytes
        at = start
        while at < end:
            view = memoryview(buffer)[: min(len(buffer), end - at)]
            count = 0
            for _ in range(2):  # an answer that breaks off looks like a file that ends: ask again
                count += self._replica.log.read_into(segment, at + count, view[count:])
                if count == len(view):
                    break
            else:
                raise SourceBroken(
                    f"{self.name} has no bytes at {at + count} any more: its log was cut, or retention took"
                    f" {segment_name(segment)}. Nothing was added; run this again"
                )
            yield view
            at += count

    def holds(self, tail: Tail) -> str | None:
        """SHA-256 of the bytes where a tail is; None when they are not all there."""
        if tail.start < self._replica.start:
            return None
        view = read(self._replica, tail.start, tail.end - tail.start)
        return digest(view) if len(view) == tail.end - tail.start else None

    def first_store_ms(self, offset: int) -> int:
        """Store time of the record that begins at a log offset; 0 where none does."""
        head = bytes(read(self._replica, offset, 80))
        if len(head) < 80 or head[4:7] != b"\xda\xa3\x20":
            return 0
        sys_flag = int.from_bytes(head[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big")
        at = _STORE_MS_AT + (12 if sys_flag & _BORN_IPV6 else 0)
        return int.from_bytes(head[at : at + 8], "big")

    def table(self, name: str) -> bytes | None:
        """A file of config/ as it was last saved; None when there is none."""
        live, root = self._replica.live, self._replica.root
        if live is not None:
            return live.port.content(f"/config/{name}") or None
        assert root is not None
        for candidate in (name, f"{name}.bak"):
            try:
                data = (root / "config" / candidate).read_bytes()
            except FileNotFoundError:
                continue
            if data.strip(b" \t\r\n\0"):
                return data
        return None

    def _layout(self) -> Layout:
        live, root, size = self._replica.live, self._replica.root, self._replica.segment_bytes
        if live is not None:
            queues = live.port.json("/consumequeue")["queues"]
            sizes = (int(bytes_) for queue in queues for _, bytes_ in queue["files"])
            index = live.port.json("/index")
            slots = int(index["slots"])
            files = [int(bytes_) for _, bytes_ in index["files"]]
            return Layout(size, next(sizes, 0), slots, _entries(files, slots), live.delay_levels)
        assert root is not None
        files = [each.stat().st_size for each in (root / "index").glob("[0-9]*")]
        known = _entries(files, _DEFAULT_SLOTS) == _DEFAULT_ENTRIES
        slots, entries = (_DEFAULT_SLOTS, _DEFAULT_ENTRIES) if known else (0, 0)
        return Layout(size, store_config(root).queue_segment_bytes, slots, entries)

    def close(self) -> None:
        self._replica.close()


def _entries(index_files: list[int], slots: int) -> int:
    """maxIndexNum of an index, by the size of one of its files; 0 without any."""
    size = max(index_files, default=0) - _INDEX_HEADER_BYTES - slots * _SLOT_BYTES
    return max(0, size // _INDEX_ENTRY_BYTES)


def open_source(text: str, access: Access, cluster: str = "", group: str = "") -> Source:
    """A running broker (http://HOST:PORT), or a stopped one's storePathRootDir.

    cluster, group  what a store is called that does not say: one without a controller. Default: its directory's name
    Raises BadInput, AuditIncomplete, BackupError, OSError.
    """
    if not is_live(text) and "://" in text:
        raise BackupError(f"{text}: a backup is taken from a running broker or a local store")
    if not is_live(text) and (Path(text) / "lock").exists() and not os.access(text, os.R_OK):
        raise BackupError(f"{text} cannot be read: run this as the user of the broker")
    replica = open_replica(text, text, access=access)
    try:
        identity = replica.identity
        if identity is not None:
            return Source(replica, identity.cluster, identity.group, identity.replica)
        assert replica.root is not None
        if not (replica.root / "config").is_dir():
            raise BackupError(f"{replica.root} has no config directory: give storePathRootDir")
        return Source(
            replica, cluster or "DefaultCluster", group or replica.root.absolute().name, 0
        )
    except BaseException:
        replica.close()
        raise
