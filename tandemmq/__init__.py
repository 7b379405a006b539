"""TandemMQ's public face: the client for applications, and the `tandem` command.

    from tandemmq import Message, Producer

    async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"17"))

The names are those of tandemmq.cluster.client, which lists them, and come from there when first asked for: `tandem
broker` starts without them.

PYTEST_DONT_REWRITE: for pytest this distribution is a plug-in, whose assertions it would rewrite. Ours are no tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandemmq.cluster.client import *  # noqa: F403 - what __getattr__ gives, for who checks types

__version__ = "0.1.0"
_CLIENT: Final = "tandemmq.cluster.client"


def __getattr__(name: str) -> object:
    value: object = __dir__() if name == "__all__" else None
    if not name.startswith("_") and name in __dir__():
        value = getattr(importlib.import_module(_CLIENT), name)
    if value is None:
        raise AttributeError(f"module 'tandemmq' has no attribute {name!r}")
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted([*importlib.import_module(_CLIENT).__all__, "__version__"])
