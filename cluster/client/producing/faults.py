"""Brokers that were slow or failed are avoided for a while. No I/O, no clock of its own.

Source: RocketMQ's MQFaultStrategy, with the table of 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: (a call took at least so many ms, then avoid the broker for so many ms)
PENALTIES_MS: Final = (
    (15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000), (100, 0), (50, 0)
)  # fmt: skip
FAILED_CALL_MS: Final = 10_000  # how long a call that failed counts as


def penalty_ms(elapsed_ms: int) -> int:
    """How long to avoid a broker after a call that took elapsed_ms.

    Example: penalty_ms(600) == 2_000
    """
    return next((penalty for least, penalty in PENALTIES_MS if elapsed_ms >= least), 0)


@dataclass(slots=True)
class _Item:
    avoid_until_ms: int = 0
    reachable: bool = True


class LatencyFaults:
    """What the last calls say of each broker name. Times: milliseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}

    def called(
        self,
        broker_name: str,
        elapsed_ms: int,
        now_ms: int,
        *,
        failed: bool,
        reachable: bool = True,
    ) -> None:
        """A call ended. failed: it counts as one of 10 s, whatever it took."""
        item = self._items.setdefault(broker_name, _Item())
        item.reachable = reachable
        avoided_ms = penalty_ms(FAILED_CALL_MS if failed else elapsed_ms)
        if avoided_ms:
            item.avoid_until_ms = max(item.avoid_until_ms, now_ms + avoided_ms)

    def available(self, broker_name: str, now_ms: int) -> bool:
        """Not in its penalty time."""
        item = self._items.get(broker_name)
        return item is None or now_ms >= item.avoid_until_ms

    def reachable(self, broker_name: str) -> bool:
        """The last call did not find it away; probes that succeed say so again."""
        item = self._items.get(broker_name)
        return item is None or item.reachable

    def unreachable(self) -> list[str]:
        """Broker names to probe."""
        return sorted(name for name, item in self._items.items() if not item.reachable)

    def answered(self, broker_name: str) -> None:
        """A probe got an answer."""
        item = self._items.get(broker_name)
        if item is not None:
            item.reachable = True
