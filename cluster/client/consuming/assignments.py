"""What an application may hear of: queues that come to its consumer, and queues that go."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from tandemmq.cluster.client.message import MessageQueue

log = logging.getLogger(__name__)

ASSIGNED: Final = "assigned"
REVOKED: Final = "revoked"

#: (ASSIGNED or REVOKED, queues as brokers call them)
Told: TypeAlias = Callable[[str, Iterable[MessageQueue]], Awaitable[None]]


class RebalanceListener:
    """Override what you need. What a method raises is logged and changes nothing; rebalancing waits for it.

    Example:
        class Caches(RebalanceListener):
            async def assigned(self, queues: Sequence[MessageQueue]) -> None:
                await load(queues)

            async def revoked(self, queues: Sequence[MessageQueue]) -> None:
                await write_back(queues)

        PushConsumer("billing", handle, rebalance_listener=Caches())
    """

    async def assigned(self, queues: Sequence[MessageQueue]) -> None:
        """These queues are read here from now on, each from its committed position."""

    async def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """These are not pulled any more; their positions are committed when this returns.

        Of a queue whose broker went away, or that another member took over, nothing may be
        committed any more. Called for all queues at stop, too.
        """


def telling(
    listener: RebalanceListener | None, shown: Callable[[MessageQueue], MessageQueue]
) -> Told | None:
    """What a Membership calls. shown: the queue under the application's name."""
    if listener is None:
        return None

    async def told(what: str, queues: Iterable[MessageQueue]) -> None:
        method = listener.assigned if what == ASSIGNED else listener.revoked
        named = sorted(map(shown, queues))
        try:
            if named:
                await method(named)
        except Exception:
            log.warning("rebalance listener failed listener=%r", listener, exc_info=True)

    return told
