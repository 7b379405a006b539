"""Where the logs of stopped replicas end, when damage and leftovers make that a question.

A log ends where its last segment stops holding records. Records behind that place are leftovers of a cut
(RocketMQ does not erase them), unless there is evidence that the log went on: the other replica holds the
same record at the same place, or a queue entry names a record that one of the two logs really holds. Then
what lies between is damage, and the audit must see it.
"""

from __future__ import annotations

from typing import Final

from tandemmq.replication.audit.kernel import BLANK
from tandemmq.replication.audit.kernels import rows
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.windows import end_of_run, limit_of, next_record, whole_record

_CLAIMS_MAX: Final = 3  # entries at the end of a queue that are asked


def find_end(replica: ReplicaStore) -> int:
    """The log offset behind the last record that can be reached in the last segment with records."""
    for segment in reversed(replica.segments):
        end, kind = end_of_run(replica, segment.start)
        if kind == BLANK or end > segment.start:
            return end
    return replica.start


def find_ends(replicas: list[ReplicaStore]) -> None:
    """Set `end` of each replica that is not live, as far as the evidence of all of them carries.

    Raises OSError, AuditIncomplete.
    """
    stopped = [replica for replica in replicas if replica.live is None]
    for replica in stopped:
        replica.end = find_end(replica)
    for replica in stopped:
        others = [other for other in replicas if other is not replica]
        _extend(replica, others)
    longest = max(replica.end for replica in replicas)
    for replica in stopped:
        if replica.end < longest:
            _extend(replica, [other for other in replicas if other is not replica])
        replica.head = replica.end


def _extend(replica: ReplicaStore, others: list[ReplicaStore]) -> None:
    claimed = _claimed_end(replica, [replica, *others])
    while True:
        goal = max([claimed, *(other.end for other in others)])
        found = _next_shared(replica, others, goal)
        if found < 0:
            break
        replica.end = _walk_on(replica, found)
    replica.end = max(replica.end, claimed)


def _walk_on(replica: ReplicaStore, offset: int) -> int:
    """Follow records over segments."""
    while True:
        end, kind = end_of_run(replica, offset)
        if kind != BLANK or replica.segment_at(end) is None:
            return end
        offset = end
        if end_of_run(replica, offset)[0] == offset:
            return offset


def _next_shared(replica: ReplicaStore, others: list[ReplicaStore], goal: int) -> int:
    """The next record behind the end that another replica holds too, -1 for none below goal."""
    at = replica.end
    while at < goal:
        stop = min(goal, limit_of(replica, at))
        found = next_record(replica, at, stop)
        if found < 0:
            at = limit_of(replica, at)
            continue
        mine = whole_record(replica, found)
        if mine is not None and any(whole_record(other, found) == mine for other in others):
            return found
        at = found + 1
    return -1


def _claimed_end(replica: ReplicaStore, logs: list[ReplicaStore]) -> int:
    """The end of the last record that the replica's queues name and one of the logs holds."""
    claimed = replica.end
    for queue in replica.queues or ():
        last = queue.max_offset
        for queue_offset in range(last - 1, max(queue.min_offset, last - _CLAIMS_MAX) - 1, -1):
            entry = queue.entry(queue_offset)
            if entry is None or entry.physical_offset + entry.size <= claimed:
                continue
            place = (queue.topic, queue.queue_id, queue_offset)
            if any(_holds(log, entry.physical_offset, entry.size, place) for log in logs):
                claimed = entry.physical_offset + entry.size
    return claimed


def _holds(log: ReplicaStore, offset: int, size: int, place: tuple[bytes, int, int]) -> bool:
    if offset < log.start:
        return False
    record = whole_record(log, offset)
    if record is None or len(record) != size:
        return False
    line = next(iter(rows(record, offset, offset + size, offset, limit_of(log, offset))))
    return (line.topic, line.queue_id, line.queue_offset) == place
