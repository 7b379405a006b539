"""The load's timed messages: with a delay, or for a moment by their producer's clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.whole.book import Sent
from tandemmq.cluster.client import Message

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster

WAITS_MS: Final = (50, 2500)


def timed(sent: Sent, topic: str, cluster: WholeCluster, producer: int) -> Message:
    """Notes in the book when it may come at the earliest, by any broker's clock."""
    stage = cluster.stage
    wait_ms = stage.draw(*WAITS_MS)
    body, key = b"%d" % sent.number, str(sent.number)
    if stage.draw(0, 1):
        at_ms = cluster.client_hosts[producer - 1].wall_us() // 1000 + wait_ms
        sent.due_ms = at_ms
        return Message(topic, body, keys=key, deliver_at=datetime.fromtimestamp(at_ms / 1000, UTC))
    sent.due_ms = min(each.wall_us() for each in cluster.replica_hosts) // 1000 + wait_ms
    return Message(topic, body, keys=key, delay_s=wait_ms / 1000)
