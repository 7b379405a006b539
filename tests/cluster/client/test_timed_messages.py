"""Messages with a delivery time: what goes out, what is refused, and handles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tandemmq.cluster.client import Message
from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.cluster.client.producing.sending import prepare_batch
from tandemmq.cluster.remoting.recall import RecallHandle


def test_a_time_and_a_delay_become_rocketmqs_properties() -> None:
    at = datetime(2026, 11, 24, 8, 30, tzinfo=timezone(timedelta(hours=1)))
    stored = Message("T", b"x", deliver_at=at, properties={"a": "b"}).stored_properties("1")
    assert stored["TIMER_DELIVER_MS"] == "1795505400000" and stored["a"] == "b"
    assert Message("T", b"x", delay_s=1.5).stored_properties("1")["TIMER_DELAY_MS"] == "1500"
    assert "TIMER_DELAY_MS" not in Message("T", b"x").stored_properties("1")


def test_a_copy_with_more_properties_keeps_its_time() -> None:
    copy = Message("T", b"x", delay_s=2).with_properties({"trace": "1"})
    assert copy.stored_properties("1")["TIMER_DELAY_MS"] == "2000"
    assert copy.properties["trace"] == "1"


@pytest.mark.parametrize(
    "bad",
    [
        {"deliver_at": datetime(2026, 1, 1)},
        {"deliver_at": 17},
        {"delay_s": -1},
        {"delay_s": float("nan")},
        {"delay_s": 1, "delay_level": 1},
        {"delay_s": 1, "deliver_at": datetime.now(UTC)},
        {"deliver_at": datetime.now(UTC), "delay_level": 2},
    ],
    ids=str,
)
def test_what_is_no_time_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(MessageRefused):
        Message("T", b"x", **bad)  # type: ignore[arg-type]


def test_a_batch_takes_none() -> None:
    with pytest.raises(MessageRefused, match="delayed"):
        prepare_batch([Message("T", b"x", delay_s=1)], ["1"], 0, 1 << 20)


def test_a_handle_is_rocketmqs_and_nothing_else_is_one() -> None:
    text = "djEgVCBicm9rZXItYSAxNzk1MjYwNzE2MDAxIDBBMA=="  # of RocketMQ's RecallMessageHandle
    handle = RecallHandle("T", "broker-a", "1795260716001", "0A0")
    assert handle.encode() == text
    assert RecallHandle.decode(text) == RecallHandle.decode(text.rstrip("=")) == handle
    for bad in ("", "=", "djE", "djIgVCBiIDEgMQ==", "\u00e4", "djEgVCBiIDE="):
        with pytest.raises(ValueError, match="recall handle is invalid"):
            RecallHandle.decode(bad)
