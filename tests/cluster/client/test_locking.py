"""consuming/locking.py: what could not be given back is given back to the next master. No sockets; time jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from timekit import run

from tandemmq.cluster.client import BrokerUnreachable, MessageQueue
from tandemmq.cluster.client.consuming import locking
from tandemmq.cluster.client.consuming.locking import LOCK_VALID_S, QueueLocks
from tandemmq.cluster.client.reaching import calls

ONE, TWO = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


class Master:
    """Of broker-a, as calls see it. down: it answers nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down = False
        self.freed: list[set[MessageQueue]] = []
        monkeypatch.setattr(calls, "lock_queues", self.lock)
        monkeypatch.setattr(calls, "unlock_queues", self.unlock)

    async def lock(self, *asked: Any) -> set[MessageQueue]:
        self._answers()
        return set(asked[4])

    async def unlock(self, *asked: Any) -> None:
        self._answers()
        self.freed.append(set(asked[4]))

    def _answers(self) -> None:
        if self.down:
            raise BrokerUnreachable("broker-a", "it is down")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Master:
    return Master(monkeypatch)


def locks() -> QueueLocks:
    async def master_address(*_: str) -> str:
        return "a:1"

    instance: Any = SimpleNamespace(
        master_address=master_address, client_id="me", connections=None,
        brokers=SimpleNamespace(master=lambda name: "a:1"),
    )  # fmt: skip
    assert locking.calls is calls
    return QueueLocks(instance, "G")


def test_a_lock_that_could_not_be_given_back_is_given_back_later(master: Master) -> None:
    async def main() -> None:
        mine = locks()
        await mine.lock([ONE, TWO])
        assert await mine.settle()
        master.down = True
        await mine.unlock([ONE, TWO])
        assert not await mine.settle()
        master.down = False
        assert await mine.settle()
        assert await mine.settle()
        assert master.freed == [{ONE, TWO}]

    run(main())


def test_a_lock_that_was_taken_again_is_kept(master: Master) -> None:
    async def main() -> None:
        mine = locks()
        master.down = True
        await mine.unlock([ONE, TWO])
        master.down = False
        await mine.lock([ONE])
        assert await mine.settle()
        assert master.freed == [{TWO}]

    run(main())


def test_after_half_a_minute_nobody_goes_by_it_and_it_is_let_be(master: Master) -> None:
    async def main() -> None:
        mine = locks()
        master.down = True
        await mine.unlock([ONE])
        for _ in range(3):
            await asyncio.sleep(LOCK_VALID_S / 3 - 0.1)
            assert not await mine.settle()
        await asyncio.sleep(1)
        assert await mine.settle()
        master.down = False
        assert await mine.settle()
        assert not master.freed

    run(main())
