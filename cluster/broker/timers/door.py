"""What becomes of a sent message that names a delivery time. Source: RocketMQ's HookUtils."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.broker.errors import TimerFlowControl, TimerNotEnabled
from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.timers import rules
from tandemmq.cluster.broker.timers.pending import PendingTimers
from tandemmq.cluster.remoting.recall import RecallHandle
from tandemmq.storage import (
    Draft,
    MessageIllegal,
    SysFlag,
    decode_properties,
    encode_properties,
    get_property,
)

_ASKING: Final = tuple(name.encode() for name in messages.TIMER_PROPERTIES)
_OUT: Final = rules.OUT_MS.encode()


@dataclass(frozen=True, slots=True, eq=False)
class TimerDoor:
    """Parks timed messages in the timer topic.

    now_ms  the wall time by which timers are delivered
    draw    a number in [0, 1): which of the messages for a crowded slot are refused
    """

    config: BrokerConfig
    pending: PendingTimers
    now_ms: Callable[[], int]
    draw: Callable[[], float]

    def park(self, draft: Draft) -> int | None:
        """Have a message wait that asks for it; its TIMER_OUT_MS then, None when it does not wait.

        One that is due already stays as it is. Raises MessageIllegal, TimerNotEnabled, TimerFlowControl.
        """
        encoded = draft.properties
        if (
            not any(get_property(encoded, name) is not None for name in _ASKING)
            or get_property(encoded, _OUT) is not None  # it waited before
            or draft.sys_flag & SysFlag.TRANSACTION_MASK not in (0, SysFlag.COMMIT)
        ):
            return None
        config = self.config
        if not config.timer_wheel_enabled:
            raise TimerNotEnabled(
                "accurate timer message is not enabled, timerWheelEnable is false"
            )
        properties = decode_properties(encoded)
        now_ms = self.now_ms()
        deliver_ms = rules.wanted_ms(properties, now_ms)
        assert deliver_ms is not None
        ahead_ms = deliver_ms - now_ms
        deletes = rules.DEL_UNIQKEY in properties
        if ahead_ms > config.timer_max_delay_s * 1000 or (ahead_ms <= 0 and deletes):
            raise MessageIllegal(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{config.timer_max_delay_s * 1000}ms; or if set del msg, the delay time should be bigger than the "
                "current time"
            )
        if ahead_ms <= 0:
            return None
        if deletes and not properties[rules.DEL_UNIQKEY].startswith(
            rules.delete_key(draft.topic, "")
        ):
            raise MessageIllegal(
                f"timer message illegal, {rules.DEL_UNIQKEY} names no message of topic {draft.topic}"
            )
        out_ms = rules.out_ms(deliver_ms, config.timer_precision_ms)
        self._check_crowd(out_ms)
        properties[rules.OUT_MS] = str(out_ms)
        properties[messages.REAL_TOPIC] = draft.topic
        properties[messages.REAL_QID] = str(draft.queue_id)
        draft.properties = encode_properties(properties)
        draft.topic, draft.queue_id = names.TIMER_TOPIC, 0
        return out_ms

    def _check_crowd(self, out_ms: int) -> None:
        """Above the limit more and more are refused, at twice the limit all."""
        limit = self.config.timer_congest_count_max
        count = self.pending.count_at(out_ms)
        if count <= limit or (count < 2 * limit and self.draw() >= (count - limit) / limit):
            return
        free_ms = self.pending.free_at(out_ms, limit)
        later = f"; the first moment after it with room is {free_ms}" if free_ms is not None else ""
        raise TimerFlowControl(
            f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater than "
            f"{limit} and less than {2 * limit}, trigger random flow control{later}",
            free_ms,
        )

    def recall_handle(self, topic: str, out_ms: int, unique_id: str) -> str | None:
        """The handle for a message that waits; None for one that cannot be recalled."""
        if topic.startswith(names.RETRY_PREFIX):
            return None
        return RecallHandle(topic, self.config.name, str(out_ms + 1), unique_id).encode()
