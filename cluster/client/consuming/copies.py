"""Copies of one message that a broker stored more than once, kept from a listener."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from tandemmq.cluster.client.consuming.listening import (
    ConsumeResult,
    Listener,
    Verdict,
    is_async,
)
from tandemmq.cluster.client.message import ReceivedMessage

log = logging.getLogger(__name__)

IDS_MAX: Final = 100_000  # about 27 MB

_Key = tuple[str, str, int]


class CopyWindow:
    """Remembers the last messages that a listener handled, and hands it no second copy of them.

    ids_max  so many; the oldest are forgotten first. About 270 bytes each

    A copy has the same topic, message_id and body, and was stored at another time or in another queue: a producer
    tried again after an answer that did not come, a message was sent back twice. Of two that come at
    once the second waits for the first, and is handled where that fails.

    What it does not catch: copies that another process gets, or this one after a restart; copies that come after
    ids_max others; and the same stored message read once more, after a rebalance, a lost position or a
    reset, which an operator may have wanted. So delivery stays at least once.
    A message that is sent again with its old id on purpose (queryMsgById -s true) counts as a copy.

    Attributes: skipped, how many copies the listener did not get.

    Example:
        window = CopyWindow()
        PushConsumer("billing", window.once(handle), subscribe={"Orders": "*"})
    """

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        if ids_max < 1:
            raise ValueError(f"ids_max must be at least 1, got {ids_max}")
        self.skipped = 0
        self._ids_max = ids_max
        self._handled: dict[_Key, int] = {}
        self._under_way: dict[_Key, Future[None]] = {}
        self._lock = threading.Lock()  # a plain listener runs in threads

    def __len__(self) -> int:
        """How many messages it remembers."""
        return len(self._handled)

    def once(self, listener: Listener) -> Listener:
        """The same listener, without copies: for PushConsumer's on_message, also of several consumers."""
        if is_async(listener):

            async def awaited(message: ReceivedMessage) -> Verdict:
                return await self._handle(listener, message)

            return awaited

        def plainly(message: ReceivedMessage) -> Any:
            return self._handle_plainly(listener, message)

        return plainly

    async def _handle(
        self, listener: Callable[[ReceivedMessage], Any], message: ReceivedMessage
    ) -> Verdict:
        key = _key(message)
        while isinstance(begun := self._begin(key, message), Future):
            await asyncio.shield(asyncio.wrap_future(begun))
        if not begun:
            self._skip(message)
            return None
        verdict: Verdict = None
        good = False
        try:
            found = listener(message)
            verdict = await found if inspect.isawaitable(found) else found
            good = verdict is None or verdict is ConsumeResult.SUCCESS
        finally:
            self._end(key, message, good)
        return verdict

    def _handle_plainly(
        self, listener: Callable[[ReceivedMessage], Any], message: ReceivedMessage
    ) -> Any:
        key = _key(message)
        while isinstance(begun := self._begin(key, message), Future):
            begun.result()
        if not begun:
            self._skip(message)
            return None
        good = False
        try:
            verdict = listener(message)
            good = verdict is None or verdict is ConsumeResult.SUCCESS
        finally:
            self._end(key, message, good)
        return verdict

    def _begin(self, key: _Key, message: ReceivedMessage) -> bool | Future[None]:
        """True: handle it. False: it is a copy. A future: one like it is under way, look again when that is done."""
        with self._lock:
            place = self._handled.get(key)
            if place is not None and place != _place(message):
                return False
            other = self._under_way.get(key)
            if other is not None:
                return other
            self._under_way[key] = Future()
            return True

    def _end(self, key: _Key, message: ReceivedMessage, good: bool) -> None:
        with self._lock:
            if good:
                self._handled.pop(key, None)
                self._handled[key] = _place(message)
                if len(self._handled) > self._ids_max:
                    del self._handled[next(iter(self._handled))]
            under_way = self._under_way.pop(key)
        under_way.set_result(None)

    def _skip(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.skipped += 1
        log.info(
            "copy not handled again message_id=%s queue=%s queue_offset=%d",
            message.message_id,
            message.queue,
            message.queue_offset,
        )


def _key(message: ReceivedMessage) -> _Key:
    """With the body: stock producers give all messages of a batch one id."""
    return sys.intern(message.topic), message.message_id, hash(message.body)


def _place(message: ReceivedMessage) -> int:
    """Not the queue offset: equal messages of one batch lie side by side, and are no copies."""
    return hash((message.queue, message.store_ms))
