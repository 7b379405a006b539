"""What must hold in every seed, judged by what clients were told and what the replicas' files hold."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.whole.book import Sent
from tandemmq.chaos.whole.servers import LEVEL_MS, SEGMENT_BYTES
from tandemmq.chaos.whole.stage import Host

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster
    from tandemmq.cluster.client import ReceivedMessage

EARLY_MS: Final = 30  # clocks drift
FRESH_US: Final = 3_000_000
RECORD_BYTES_MAX: Final = 4096


class Promise(enum.Enum):
    """What a Finding breaks."""

    LOST = "an acknowledged message is not delivered"
    COPIES = "a message is acknowledged that a member of the sync-state-set does not have"
    FLUSHED = "a message is acknowledged that the disk does not have"
    REWRITTEN = "two messages at one place of one queue were seen"
    FOREIGN = "what was delivered nobody sent"
    EARLY = "a delayed or timed message came before its time"
    UNDONE = "a transaction that nobody committed is delivered"
    TWICE = "one transaction, or one timed message, is delivered from two places"
    ASKED = "a broker asks how a transaction ended whose end it has confirmed"
    ORDER = "an orderly consumer got a queue's messages out of order"
    FORKED = "a message is acknowledged with a slave whose log is another one"
    ALARM = "a slave stops for a person, and its log is a part of its master's"
    DIVERGED = "replicas differ after everything healed"
    STUCK = "not quiet after everything healed"
    DIED = "a server ended by itself"
    UNHANDLED = "nobody caught an exception"


class Jury:
    """Judges one seed while it runs, and at its end."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._stage = cluster.stage
        self._places: dict[tuple[str, int, int], int] = {}  # (topic, queue, offset) -> message
        self._last: dict[
            int, int
        ] = {}  # queue -> offset of the newest message that was handled for the first time

    def fail(self, promise: Promise, text: str) -> None:
        self._stage.fail(promise.name, text)

    # --- while it runs ---

    def acknowledged(self, sent: Sent) -> None:
        """A producer was told that its message is stored."""
        self._stage.note("acked", sent.number, sent.offset, *sent.queue)
        if not (sent.level or sent.due_ms or sent.part):
            self._place("Orders", sent.queue[0], sent.queue[1], sent.number)
        mode = self._cluster.scenario.mode
        for host in self._cluster.members(sent.epoch):
            alone = host.address == sent.broker and host.number == self._cluster.master_host
            if not (mode.waits_for_slaves or alone):
                continue  # A0 and A1 go on without a lease: whoever answered may be deposed
            if host.lost_power_us > sent.asked_us - FRESH_US:
                continue  # it is about to leave the set, or to be filled again
            self._held(host, sent)

    def _held(self, host: Host, sent: Sent) -> None:
        """By this host's files."""
        marker = b"KEYS\x01%d\x02" % sent.number
        place = f"message {sent.number} at {sent.offset}, host {host.number}"
        if not holds(host, sent.offset, marker):
            self.fail(Promise.COPIES, f"{place}\n{self._cluster.describe()}")
        elif self._cluster.scenario.mode.waits_for_disk and not holds(
            host, sent.offset, marker, durable=True
        ):
            self.fail(Promise.FLUSHED, f"{place}\n{self._cluster.describe()}")

    def delivered(self, sent: Sent | None, message: ReceivedMessage) -> None:
        """A listener got a message."""
        if sent is None:
            self.fail(Promise.FOREIGN, repr(message.body))
            return
        if sent.part is not None and sent.part.committed is not True:
            self.fail(
                Promise.UNDONE, f"message {sent.number}, {sent.part}\n{self._cluster.describe()}"
            )
        if not sent.failed_once and not sent.level:
            self._place(message.topic, message.queue.queue_id, message.queue_offset, sent.number)
            if self._cluster.scenario.orderly and not sent.delivered:
                self._in_order(message.queue.queue_id, message.queue_offset)
            if sent.part is not None or sent.due_ms:
                self._once(sent, (message.queue.queue_id, message.queue_offset))
        if sent.level:
            waited_ms = (self._stage.now_us - sent.asked_us) / 1000
            if waited_ms < LEVEL_MS[sent.level] * 0.98 - EARLY_MS:
                self.fail(Promise.EARLY, f"message {sent.number} after {waited_ms} ms")
        if sent.due_ms:
            now_ms = max(host.wall_us() for host in self._cluster.replica_hosts) / 1000
            if now_ms < sent.due_ms:
                self.fail(
                    Promise.EARLY,
                    f"message {sent.number} {sent.due_ms - now_ms} ms before its time",
                )
            if self._cluster.epoch > sent.epoch > 0 and not sent.delivered:
                self._stage.mark("timer across a failover")

    def _once(self, sent: Sent, place: tuple[int, int]) -> None:
        """Of its log a group keeps every byte that readers saw, so nothing has a reason to be put a second time."""
        if sent.place is None or self.may_lose:
            sent.place = place
        elif sent.place != place:
            self.fail(
                Promise.TWICE,
                f"message {sent.number} at {sent.place} and {place}\n{self._cluster.describe()}",
            )

    def asked(self, sent: Sent | None) -> None:
        """A broker is about to ask a producer how a transaction ended."""
        if (
            sent is not None
            and sent.part is not None
            and sent.part.confirmed_us
            and not self.may_lose
        ):
            self.fail(
                Promise.ASKED, f"message {sent.number}, {sent.part}\n{self._cluster.describe()}"
            )

    def _in_order(self, queue_id: int, queue_offset: int) -> None:
        """What nobody handled before comes behind all that was; after a loss a queue may begin again."""
        if queue_offset < self._last.get(queue_id, -1) and not self.may_lose:
            self.fail(
                Promise.ORDER,
                f"queue {queue_id}: {queue_offset} after {self._last[queue_id]}\n{self._cluster.describe()}",
            )
        self._last[queue_id] = queue_offset

    def _place(self, topic: str, queue_id: int, queue_offset: int, number: int) -> None:
        before = self._places.setdefault((topic, queue_id, queue_offset), number)
        if before != number and not self.may_lose:
            self.fail(
                Promise.REWRITTEN,
                f"{topic} queue {queue_id} offset {queue_offset}: {before}, then {number}\n{self._cluster.describe()}",
            )

    @property
    def may_lose(self) -> bool:
        """A0 and A1 acknowledge before slaves have it; and an election may say that it loses something."""
        return self._cluster.losses > 0 or not self._cluster.scenario.mode.waits_for_slaves

    # --- at the end ---

    @property
    def missing(self) -> list[Sent]:
        """Promised, and not come; but for what waited for its time, its transaction's end or its next try
        in what a full disk deleted, as settings have it."""
        found = self._cluster.load.book.missing
        if not found or not self._cluster.scenario.makes_room:
            return found
        start = max(map(log_start, self._cluster.replica_hosts))
        return [each for each in found if each.offset >= start or not each.waits]

    def finish(self) -> None:
        """After everything healed and calmed down. Raises Finding."""
        missing = self.missing
        if missing and not self.may_lose:
            self.fail(
                Promise.LOST,
                f"{[each.number for each in missing]}\n{self._cluster.describe()}",
            )
        logs = [log_bytes(host) for host in self._cluster.replica_hosts]
        begin = max(start for start, _ in logs)  # each deletes its head by itself
        end = min(start + len(content) for start, content in logs)
        first, *others = (content[begin - start : end - start] for start, content in logs)
        for other in others:
            if first != other:
                at = next(begin + i for i, byte in enumerate(first) if byte != other[i])
                self.fail(Promise.DIVERGED, f"at {at} of {end}\n{self._cluster.describe()}")


def segments(host: Host) -> list[Path]:
    """The files of a replica's log; none when it has no store."""
    return sorted((host.root / "store" / "commitlog").glob("[0-9]*"))


def log_start(host: Host) -> int:
    """Where a replica's log begins; 0 when it has no file."""
    parts = segments(host)
    return int(parts[0].name) if parts else 0


def log_bytes(host: Host) -> tuple[int, bytes]:
    """The files of a replica's log, one after the other, without the blank end; where they begin."""
    parts = segments(host)
    if not parts:
        return 0, b""
    return int(parts[0].name), b"".join(each.read_bytes() for each in parts).rstrip(b"\0")


def holds(host: Host, offset: int, marker: bytes, *, durable: bool = False) -> bool:
    """Whether a replica's files have, at a log offset, a record with this in it. durable: on its disk."""
    at = offset % SEGMENT_BYTES
    file = host.root / "store" / "commitlog" / f"{offset - at:020d}"
    if not file.exists():
        return False
    content = host.durable(file) if durable else file.read_bytes()
    if content is None:
        return True  # a disk that forgets nothing
    length = int.from_bytes(content[at : at + 4], "big")
    return marker in content[at : at + min(length, RECORD_BYTES_MAX)]
