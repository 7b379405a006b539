"""The tables of a restored store: what was saved, cut back to what the restored log holds. Functions over JSON trees.

Progress may repeat and never skips: a table of progress counts only where the log that it rests on is there (INV-41),
else an older one is taken. Source of the trees: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
Queues = Mapping[str, Mapping[int, int]]  # topic -> queue id -> queue offset behind its last entry

_PERM_READ_WRITE: Final = 6


def known_deletions(table: Mapping[str, Any], end: int) -> dict[str, Any]:
    """deletedTopics.json of a log that ends at `end`: later deletions had not happened."""
    found = table.get("deletedTopics") or {}
    return {
        "deletedTopics": {topic: below for topic, below in found.items() if below <= end},
        "format": table.get("format", 1),
    }


def with_queues(
    newer: Mapping[str, Any], older: Mapping[str, Any], queues: Queues
) -> tuple[dict[str, Any], list[str]]:
    """topics.json with a topic for every queue of the log, and the names that no table knew.

    newer, older  topics.json of the increment that reaches the point, and of the one before it: a topic
    that was deleted behind the point is in the older one only
    """
    topics = {**(older.get("topicConfigTable") or {}), **(newer.get("topicConfigTable") or {})}
    made = []
    for topic, by_queue in sorted(queues.items()):
        if topic not in topics:
            count = max(by_queue) + 1
            topics[topic] = {
                "topicName": topic, "readQueueNums": count, "writeQueueNums": count,
                "perm": _PERM_READ_WRITE, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
                "order": False, "attributes": {},
            }  # fmt: skip
            made.append(topic)
    return {**newer, "topicConfigTable": topics}, made


def with_groups(newer: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """subscriptionGroup.json, with groups that were deleted behind the point."""
    name = "subscriptionGroupTable"
    return {**newer, name: {**(older.get(name) or {}), **(newer.get(name) or {})}}


def cut_progress(
    table: Mapping[str, Any], queues: Queues, *, later: bool
) -> tuple[dict[str, Any], int]:
    """consumerOffset.json, no position behind its queue's end, and how many were moved back.

    later  the table was saved behind the point: what transactions have done with may lie behind it as
    well, so that is forgotten, and looked at from the start
    """
    moved = 0
    kept: dict[str, dict[str, int]] = {}
    for key, positions in (table.get("offsetTable") or {}).items():
        topic, _, group = key.rpartition("@")
        if later and group == TRANSACTION_GROUP:
            moved += len(positions)
            continue
        ends = queues.get(topic, {})
        cut = {str(q): min(int(at), ends.get(int(q), 0)) for q, at in positions.items()}
        moved += sum(cut[str(q)] != int(at) for q, at in positions.items())
        kept[key] = cut
    rest = {name: value for name, value in table.items() if name != "aheadOffsetTable"}
    return {**rest, "offsetTable": kept}, moved


def delay_progress(
    saved: Iterable[tuple[int, Mapping[str, Any]]], end: int
) -> dict[str, Any] | None:
    """delayOffset.json for a log that ends at `end`: the newest that rests on it; None when none does.

    saved  (log end of its increment, the table), newest first. RocketMQ's tables do not say on what they
    rest: on no more than the log that was there when they were read
    """
    for increment_end, table in saved:
        rests_on = int(table.get("restsOn", increment_end))
        if rests_on <= end:
            return {**table, "restsOn": rests_on}
    return None
