"""Whom a store belongs to: the one place where it asks others, and tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.storage.derivation import Arrival


@dataclass(frozen=True, slots=True)
class Owner:
    """What the owner of a store decides of it, and wants to hear. Called on the store's own thread.

    confirmed  the log offset below which consumers may read, as far as replication decides; None: all of it
    arrived    told once per round of dispatch what came into queues
    broken     told why, once, when dispatch has stopped for good
    cut        told of each cut's log offset, when log, queues and index have it behind them
    """

    confirmed: Callable[[], int] | None = None
    arrived: Callable[[list[Arrival]], None] | None = None
    broken: Callable[[str], None] | None = None
    cut: Callable[[int], None] | None = None
