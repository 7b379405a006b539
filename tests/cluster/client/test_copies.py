"""CopyWindow: copies that a broker stored more than once reach a listener once, and nothing else is kept from it."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeCluster, received
from msgspec.structs import replace
from timekit import run

from tandemmq.cluster.client import (
    ConsumeResult,
    CopyWindow,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from tandemmq.cluster.remoting import Command, RequestCode, RequestTimedOut


def stored(store_ms: int, offset: int = 0, body: bytes = b"x", **more: Any) -> ReceivedMessage:
    return replace(received(offset, body), message_id="ID", store_ms=store_ms, **more)


class Handler:
    """Listeners that keep what they got, and say `verdict` or raise it."""

    def __init__(self, verdict: Any = None) -> None:
        self.got: list[ReceivedMessage] = []
        self.verdict = verdict

    def plain(self, message: ReceivedMessage) -> Any:
        self.got.append(message)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    async def waiting(self, message: ReceivedMessage) -> Any:
        return self.plain(message)


async def give(listener: Callable[..., Any], message: ReceivedMessage) -> Any:
    found = listener(message)
    return await found if isinstance(found, Awaitable) else found


kinds = pytest.mark.parametrize("kind", ["plain", "waiting"])


@kinds
async def test_a_copy_stored_later_or_elsewhere_is_not_handled_again(kind: str) -> None:
    handler, window = Handler(), CopyWindow()
    listener = window.once(getattr(handler, kind))
    first = stored(1_000)
    for message in (
        first,
        stored(4_000, 7),
        stored(1_000, queue=MessageQueue("T", "b", 0)),
        stored(9_000, queue=MessageQueue("%RETRY%CG", "a", 0)),
    ):
        assert await give(listener, message) is None
    assert handler.got == [first]
    assert (window.skipped, len(window)) == (3, 1)


@kinds
async def test_what_is_no_copy_is_handled(kind: str) -> None:
    handler, window = Handler(), CopyWindow()
    listener = window.once(getattr(handler, kind))
    messages = [
        stored(1_000),
        stored(1_000),  # read once more: a rebalance, or a reset that an operator wanted
        stored(1_000, 1),  # its equal in a batch of a stock producer, all of which has one id
        stored(1_000, 2, b"y"),
        stored(2_000, 3, topic="U"),
        replace(stored(2_000, 4), message_id="OTHER"),
    ]
    for message in messages:
        await give(listener, message)
    assert handler.got == messages
    assert window.skipped == 0


@kinds
@pytest.mark.parametrize(
    "verdict", [ConsumeResult.RECONSUME_LATER, RetryLater(3), ConsumeResult.SUSPEND, OSError("no")]
)
async def test_what_failed_is_handled_when_it_comes_again(kind: str, verdict: Any) -> None:
    handler, window = Handler(verdict), CopyWindow()
    listener = window.once(getattr(handler, kind))
    try:
        assert await give(listener, stored(1_000)) is verdict
    except OSError as problem:
        assert problem is verdict
    handler.verdict = ConsumeResult.SUCCESS
    for store_ms in (2_000, 3_000):
        await give(listener, stored(store_ms))
    assert [each.store_ms for each in handler.got] == [1_000, 2_000]


@pytest.mark.parametrize("good", [True, False])
async def test_the_second_of_two_at_once_waits_for_the_first(good: bool) -> None:
    window, gate = CopyWindow(), asyncio.Event()
    got: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.store_ms)
        await gate.wait()
        if not good and len(got) == 1:
            raise OSError("planted")

    listener = window.once(handle)
    tasks = [asyncio.ensure_future(give(listener, stored(ms, ms))) for ms in (1, 1, 2, 3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert got == [1]
    tasks[3].cancel()  # who waits may be stopped without harm to who works
    gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[3], asyncio.CancelledError)
    # Good: its equal of one batch is handled too, the copy is not. Else one more of them is tried.
    assert len(got) == 2 and (not good or got == [1, 1])
    assert window.skipped == 1
    assert not window._under_way


def test_threads_handle_a_message_once() -> None:
    window = CopyWindow()
    got: list[int] = []
    entered = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        got.append(message.store_ms)
        entered.set()
        threading.Event().wait(0.05)

    listener = window.once(handle)
    threads = [threading.Thread(target=listener, args=(stored(ms),)) for ms in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and window.skipped == 7


def test_memory_is_bounded_and_the_oldest_are_forgotten() -> None:
    handler, window = Handler(), CopyWindow(1_000)
    listener = window.once(lambda message: None)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(20_000):
        listener(replace(stored(number), message_id=f"{number:032}"))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(window) == 1_000
    assert (after - before) / 1_000 < 400  # bytes each
    once = window.once(handler.plain)
    once(replace(stored(99_999), message_id=f"{19_500:032}"))
    assert handler.got == []
    once(replace(stored(99_999), message_id=f"{100:032}"))
    assert len(handler.got) == 1
    with pytest.raises(ValueError, match="at least 1"):
        CopyWindow(0)


def test_a_send_that_was_stored_twice_is_handled_once(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    inner = broker.handle_send_message_v2
    silent = True

    async def send(command: Command, wire: Any) -> Command:
        """The first is stored, and its answer lost."""
        nonlocal silent
        answer = await inner(command, wire)
        if silent:
            silent = False
            raise RequestTimedOut(broker.address, RequestCode.SEND_MESSAGE_V2, 1)
        return answer

    broker.handle_send_message_v2 = send  # type: ignore[method-assign]
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    async def main() -> None:
        window = CopyWindow()
        consumer = PushConsumer(
            "CG",
            window.once(handle),
            namesrv=NAME_SERVER,
            subscribe={"T": "*"},
            start=StartFrom.FIRST,
        )
        async with (
            consumer,
            Producer("PG", namesrv=NAME_SERVER, attempt_timeout_ms=500) as producer,
        ):
            await producer.send(Message("T", b"one"))
            await asyncio.sleep(2)
        assert len(broker.queues["T", 0]) == 2
        assert (got, window.skipped) == ([b"one"], 1)

    run(main())
