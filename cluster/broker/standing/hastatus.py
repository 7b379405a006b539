"""How replication stands, as operators ask for it: request GET_BROKER_HA_STATUS, and lag in time.

Source: RocketMQ's HARuntimeInfo; its field `activated` is in no recorded answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tandemmq.replication import EpochHistory
from tandemmq.replication.receiver import ReceiverStats
from tandemmq.replication.sender import SlaveStatus

MARKS_MAX: Final = 1_024  # when there are more, every second one is forgotten
RATE_WINDOW_MS: Final = 1_000


class SlaveLag(NamedTuple):
    """One connected slave.

    replica    its id; 0 in classic HA, which does not say
    acked      log offset up to which it has reported, -1 before its first report
    sent       log offset up to which it was sent the log, -1 before its first report
    behind_ms  how long ago our log was as long as the slave's is now; 0 when it has everything
    """

    peer: str
    replica: int
    acked: int
    sent: int
    behind_bytes: int
    behind_ms: int
    in_sync: bool
    bytes_per_second: int


class Following(NamedTuple):
    """A slave's view of its stream.

    address  of the master's HA port, "" while none is known
    problem  what went wrong last, "" when nothing did
    """

    address: str
    streaming: bool
    connects: int
    problem: str


class Passages:
    """When our log's end was where: turns a slave's position into a time.

    Marks are as fine as note() is called, coarser for times long gone.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._ms: list[int] = []

    def note(self, end: int, now_ms: int) -> None:
        if self._ends and self._ends[-1] == end:
            self._ms[-1] = now_ms  # as long as it stands still, it is as new as can be
            return
        self._ends.append(end)
        self._ms.append(now_ms)
        if len(self._ends) > MARKS_MAX:
            del self._ends[:-1:2], self._ms[:-1:2]

    def behind_ms(self, position: int, now_ms: int) -> int:
        """How long ago the log ended at or before `position`; 0 when it still does."""
        at = bisect_right(self._ends, position) - 1
        if at == len(self._ends) - 1:
            return 0
        return max(0, now_ms - self._ms[max(at, 0)])


class Rate:
    """Bytes per second of a growing counter, over the last window that is complete."""

    def __init__(self) -> None:
        self._since_ms = 0
        self._bytes = 0
        self.per_second = 0

    def note(self, total: int, now_ms: int) -> None:
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            self.per_second = (total - self._bytes) * 1_000 // elapsed_ms
            self._since_ms, self._bytes = now_ms, total


def lag_of(
    status: SlaveStatus, end: int, passages: Passages, now_ms: int, *, in_sync: bool
) -> SlaveLag:
    behind = end - status.acked
    return SlaveLag(
        status.peer, status.replica, status.acked, status.next_offset, behind,
        passages.behind_ms(status.acked, now_ms) if behind else 0, in_sync, status.bytes_per_second,
    )  # fmt: skip


def of_master(end: int, slaves: Iterable[SlaveLag], in_sync_count: int) -> dict[str, Any]:
    """in_sync_count: slaves in the set, or near enough; the master is not counted."""
    return {
        "haClientRuntimeInfo": _client_fields(ReceiverStats(), 0, 0),
        "haConnectionInfo": [
            {
                "addr": each.peer,
                "diff": each.behind_bytes,
                "inSync": each.in_sync,
                "slaveAckOffset": each.acked,
                "transferFromWhere": each.sent,
                "transferredByteInSecond": each.bytes_per_second,
            }
            for each in slaves
        ],
        "inSyncSlaveNums": in_sync_count,
        "master": True,
        "masterCommitLogMaxOffset": end,
    }


def of_slave(
    following: Following, stats: ReceiverStats, end: int, bytes_per_second: int
) -> dict[str, Any]:
    return {
        "haClientRuntimeInfo": {
            **_client_fields(stats, end, bytes_per_second),
            "masterAddr": following.address,
            # ours: what an operator asks next when it does not move
            "connects": following.connects,
            "lastProblem": following.problem,
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": False,
        "masterCommitLogMaxOffset": 0,
    }


def _client_fields(stats: ReceiverStats, end: int, bytes_per_second: int) -> dict[str, Any]:
    return {
        "lastReadTimestamp": stats.last_read_ms,
        "lastWriteTimestamp": stats.last_write_ms,
        "masterFlushOffset": 0,
        "maxOffset": end,
        "transferredByteInSecond": bytes_per_second,
    }


def epochs_of(history: EpochHistory, end: int, replica: int) -> dict[str, Any]:
    """Whose reigns a log that ends at `end` has seen, as RocketMQ's EpochEntryCache tells it."""
    entries = [
        {
            "epoch": each.number,
            "startOffset": each.start,
            "endOffset": history.end_of_reign(each.number, end),
        }
        for each in history.entries
    ]
    return {"brokerId": replica, "epochList": entries, "maxOffset": end}
