"""Stores without a broker around them, whose appends somebody must hear of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandemmq.storage import MessageStore


def tell_of_appends(store: MessageStore, told: Callable[[], object]) -> None:
    """Have a function called after each append, as the release of a broker and the receiver of a slave see to it."""

    def telling(append: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done = append(*arguments)
            told()
            return done

        return call

    store.put = telling(store.put)  # type: ignore[method-assign]
    store.append_raw = telling(store.append_raw)  # type: ignore[method-assign]
