"""A cluster without sockets and a loop whose time jumps, for the client's tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from clientkit import FakeCluster
from timekit import LoopClock

from tandemmq.cluster.client.reaching import instance


@pytest.fixture(params=["calls", "channels"])
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeCluster:
    """One name server and the brokers that a test adds; clients reach them, not the network.

    Twice: as plain calls, where every send takes the general way, and as bytes over real channels.
    """
    fake = FakeCluster(channels=request.param == "channels")

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(instance, "open_channel", fake.open_channel)
    monkeypatch.setattr(instance, "SystemClock", LoopClock)
    monkeypatch.setattr(instance, "local_address", lambda towards: "10.0.0.9")
    monkeypatch.setattr(asyncio, "to_thread", at_once)  # a thread would not wait for jumping time
    return fake
