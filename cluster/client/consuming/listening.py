"""Calls an application's listener: one message or many, plain or async, and reads its verdict."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Final, TypeAlias

from tandemmq.cluster.client.hooks import ConsumeContext, ConsumeHook, call_hooks
from tandemmq.cluster.client.message import ReceivedMessage

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005  # messages of one turn are handed over until this time is used up


class ConsumeResult(enum.Enum):
    """What a listener says of a message.

    Returning None means SUCCESS, raising means RECONSUME_LATER. In an ordered consumer
    RECONSUME_LATER and SUSPEND both mean: this queue waits (suspend_ms), then the message comes
    again.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A listener's verdict: again after the broker's delay of this level; -1: to the dead letters.

    Example:
        async def handle(message: ReceivedMessage) -> RetryLater | None:
            return RetryLater(delay_level=5) if busy() else None
    """

    delay_level: int = 0


Verdict: TypeAlias = "ConsumeResult | RetryLater | None"
Listener: TypeAlias = Callable[[ReceivedMessage], "Awaitable[Verdict] | Verdict"]
BatchListener: TypeAlias = Callable[
    [Sequence[ReceivedMessage]], "Awaitable[Verdict | int] | Verdict | int"
]


@dataclass(frozen=True, slots=True)
class Failed:
    """One message that must come again, and why."""

    message: ReceivedMessage
    delay_level: int
    problem: BaseException | None


class Calls:
    """Calls a listener. Nothing that it raises gets out, except cancellation.

    on_message, on_batch   one of the two
    threads   of a plain function
    """

    def __init__(
        self,
        group: str,
        on_message: Listener | None,
        on_batch: BatchListener | None,
        hooks: Sequence[ConsumeHook],
    ) -> None:
        target = on_message if on_message is not None else on_batch
        assert target is not None
        self.plain = not is_async(target)
        self.batches = on_batch is not None
        self._group = group
        self._one = on_message
        self._many = on_batch
        self._hooks = tuple(hooks)
        self._threads: ThreadPoolExecutor | None = None

    def open(self, threads: int) -> None:
        """Before the first call."""
        if self.plain:
            self._threads = ThreadPoolExecutor(threads, f"consumer {self._group}")

    def close(self) -> None:
        """After the last one; a plain function still at work goes on in its thread."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def call(
        self, messages: Sequence[ReceivedMessage], finished: list[ReceivedMessage]
    ) -> list[Failed]:
        """Hand over messages, in order, as long as the slice lasts; the first one in any case.

        finished  gets each message when the listener is done with it, failed or not: what is not in
                  it was not handed over
        """
        if self.batches:
            return await self._call_batch(messages, finished)
        if self.plain:
            return await self._call_in_thread(messages, finished)
        return await self._call_each(messages, finished)

    async def _call_each(
        self, messages: Sequence[ReceivedMessage], finished: list[ReceivedMessage]
    ) -> list[Failed]:
        listener, hooks = self._one, self._hooks
        assert listener is not None
        failed: list[Failed] = []
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + SLICE_S
        for message in messages:
            context = self._before((message,)) if hooks else None
            problem = None
            verdict: Any = None
            try:
                verdict = listener(message)
                if type(verdict) is CoroutineType or inspect.isawaitable(verdict):
                    verdict = await verdict
            except Exception as raised:  # the application's code: whatever it raises means "again"
                problem = raised
            finished.append(message)
            if problem is not None or (
                verdict is not None and verdict is not ConsumeResult.SUCCESS
            ):
                failed += self._failures((message,), verdict, problem)
            if context is not None:
                self._after(context, problem, not failed or failed[-1].message is not message)
            if now_s() > until_s:
                break
        return failed

    async def _call_in_thread(
        self, messages: Sequence[ReceivedMessage], finished: list[ReceivedMessage]
    ) -> list[Failed]:
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, self._plainly, messages)
        failed: list[Failed] = []
        for message, verdict, problem in done:
            if inspect.isawaitable(verdict):  # a lambda around an async function
                try:
                    verdict = await verdict
                except Exception as raised:
                    verdict, problem = None, raised
            finished.append(message)
            failed += self._failures((message,), verdict, problem)
        return failed

    def _plainly(
        self, messages: Sequence[ReceivedMessage]
    ) -> list[tuple[ReceivedMessage, Any, BaseException | None]]:
        """In a thread of the pool: one change of threads for several quick messages."""
        listener = self._one
        assert listener is not None
        done: list[tuple[ReceivedMessage, Any, BaseException | None]] = []
        until_s = time.monotonic() + SLICE_S
        for message in messages:
            context = self._before((message,)) if self._hooks else None
            verdict: Any = None
            problem: BaseException | None = None
            try:
                verdict = listener(message)
            except Exception as raised:
                problem = raised
            done.append((message, verdict, problem))
            if context is not None:
                good = problem is None and verdict in (None, ConsumeResult.SUCCESS)
                self._after(context, problem, good)
            if time.monotonic() > until_s:
                break
        return done

    async def _call_batch(
        self, messages: Sequence[ReceivedMessage], finished: list[ReceivedMessage]
    ) -> list[Failed]:
        listener = self._many
        assert listener is not None
        context = self._before(messages) if self._hooks else None
        verdict: Any = None
        problem: BaseException | None = None
        try:
            if self.plain:
                loop = asyncio.get_running_loop()
                inside = contextvars.copy_context().run  # what hooks have set is seen there
                verdict = await loop.run_in_executor(self._threads, inside, listener, messages)
            else:
                verdict = listener(messages)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception as raised:
            problem = raised
        finished += messages
        failed = self._failures(messages, verdict, problem)
        if context is not None:
            self._after(context, problem, not failed)
        return failed

    def _failures(
        self, messages: Sequence[ReceivedMessage], verdict: Any, problem: BaseException | None
    ) -> list[Failed]:
        if problem is None and (verdict is None or verdict is ConsumeResult.SUCCESS):
            return []
        level = verdict.delay_level if isinstance(verdict, RetryLater) else 0
        if type(verdict) is int:  # so many of the first are consumed
            messages = messages[max(0, verdict) :]
        elif problem is None and not isinstance(verdict, (ConsumeResult, RetryLater)):
            problem = TypeError(
                "a listener returns None, a ConsumeResult or RetryLater (a batch listener also how "
                f"many are consumed), got {verdict!r}"
            )
        if problem is not None:
            first = messages[0]
            log.warning(
                "listener failed group=%s message_id=%s reconsume_times=%d why=%r",
                self._group, first.message_id, first.reconsume_times, problem, exc_info=problem,
            )  # fmt: skip
        return [Failed(message, level, problem) for message in messages]

    def _before(self, messages: Sequence[ReceivedMessage]) -> ConsumeContext:
        context = ConsumeContext(self._group, messages, time.time_ns() // 1_000_000)
        call_hooks([hook.before_consume for hook in self._hooks], context)
        return context

    def _after(self, context: ConsumeContext, problem: BaseException | None, handled: bool) -> None:
        context.cost_ms = time.time_ns() // 1_000_000 - context.began_ms
        context.problem, context.handled = problem, handled
        call_hooks([hook.after_consume for hook in self._hooks], context)


def is_async(listener: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    target: Any = listener
    while isinstance(target, functools.partial):
        target = target.func
    # an instance of a class with `async def __call__` counts too
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)
