"""The order of effects between a staged record and its sender's answer: the same in every mode."""

from __future__ import annotations

import ast
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import messagekit
import pytest
import replicakit
from messagekit import FakeConnection
from replicakit import Controllers, controllers
from timekit import run

import tandemmq.cluster.broker
from tandemmq.cluster.broker.sending.acks import UNKNOWN, UNSETTLED
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import FlushFailed, FlushMode

__all__ = ["controllers"]

ANSWER = Command(310, opaque=5).reply(ext=dict(UNSETTLED)).encode()
#: what follows at once where nobody follows the log; with SYNC_FLUSH the rest comes when the disk has it
ORDER = {
    ("classic", "ASYNC_MASTER", "ASYNC_FLUSH"): "commit answer ship flush wake",
    ("classic", "ASYNC_MASTER", "SYNC_FLUSH"): "commit hold ship flush",
    ("classic", "SYNC_MASTER", "ASYNC_FLUSH"): "commit hold answer ship flush wake",
    ("classic", "SYNC_MASTER", "SYNC_FLUSH"): "commit hold ship flush wake",
    ("controlled", "ASYNC_MASTER", "ASYNC_FLUSH"): "commit hold ship wake answer flush",
    ("controlled", "ASYNC_MASTER", "SYNC_FLUSH"): "commit hold ship flush",
    ("controlled", "SYNC_MASTER", "ASYNC_FLUSH"): "commit hold ship wake answer flush",
    ("controlled", "SYNC_MASTER", "SYNC_FLUSH"): "commit hold ship flush",
}


class Told(FakeConnection):
    """A producer's, which notes when its answer leaves."""

    def __init__(self, effects: list[str]) -> None:
        super().__init__()
        self._effects = effects

    def write(self, data: bytes | memoryview) -> None:
        self._effects.append("answer")
        super().write(data)


class Staged:
    """A master that a connection has staged one message with; what follows is noted in order."""

    def __init__(self, kit: Any, standing: Any) -> None:
        self.kit, self.release, self.standing = kit, kit.release, standing
        self.effects: list[str] = []
        for part, name, effect in (
            (kit.store, "commit", "commit"), (kit.acks, "hold_all", "hold"), (standing, "ship", "ship"),
            (kit.release, "_flush", "flush"), (kit.release, "_wake", "wake"), (standing, "_wake", "wake"),
        ):  # fmt: skip
            self._note(part, name, effect)
        self.connection = Told(self.effects)
        kit.store.log.tail.append(replicakit.draft(), 1, 0)
        kit.release.staged.append((self.connection, ANSWER, UNKNOWN))

    def _note(self, part: Any, name: str, effect: str) -> None:
        call = getattr(part, name)

        def noted(*arguments: Any) -> Any:
            self.effects.append(effect)
            return call(*arguments)

        setattr(part, name, noted)


@asynccontextmanager
async def classic(root: Path, role: str, flush: str) -> AsyncIterator[Staged]:
    storage = {"flush_mode": FlushMode[flush.removesuffix("_FLUSH")]}
    with messagekit.open_kit(root, role=Role[role], storage=storage) as kit:
        kit.store.put(replicakit.draft())  # makes the first file
        kit.store.flush_log()
        kit.release.flushed(kit.store.end)
        kit.dispatch()
        yield Staged(kit, kit.standing)


@asynccontextmanager
async def controlled(root: Path, role: str, flush: str) -> AsyncIterator[Staged]:
    async with replicakit.reigning(root, brokerRole=role, flushDiskType=flush) as kit:
        kit.put(replicakit.draft())
        await replicakit.turns()
        kit.store.flush_log()
        kit.release.flushed(kit.store.end)
        kit.dispatch()
        yield Staged(kit, kit.replica)


KINDS = {"classic": classic, "controlled": controlled}


@pytest.mark.parametrize(("kind", "role", "flush"), ORDER)
def test_commit_then_hold_then_ship_then_wake(
    tmp_path: Path, controllers: Controllers, kind: str, role: str, flush: str
) -> None:
    async def main() -> None:
        controllers.add()
        async with KINDS[kind](tmp_path, role, flush) as staged:
            staged.release.now()
            assert " ".join(staged.effects) == ORDER[kind, role, flush]
            store = staged.kit.store
            if flush == "SYNC_FLUSH":
                assert staged.kit.acks.waiting and store.confirmed < store.end
                staged.effects.clear()
                store.flush_log()
                staged.release.flushed(store.end)
                assert "answer" in staged.effects and staged.effects[-1] == "wake"
            assert [answer.opaque for answer in staged.connection.answers()] == [5]
            assert store.confirmed == store.end

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_what_could_not_be_committed_is_neither_answered_nor_shipped_nor_shown(
    tmp_path: Path, controllers: Controllers, kind: str
) -> None:
    async def main() -> None:
        controllers.add()
        async with KINDS[kind](tmp_path, "ASYNC_MASTER", "ASYNC_FLUSH") as staged:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, staged.kit.store.log.run.segments[0]._descriptor)
            os.close(full)
            with pytest.raises(FlushFailed):
                staged.release.now()
            staged.release.now()
            assert "answer" not in staged.effects and "hold" not in staged.effects
            assert staged.effects[0] == "commit" and staged.effects.count("ship") <= 1

    with pytest.raises(FlushFailed):  # and so does closing the store
        run(main())


def test_nobody_else_of_a_broker_puts_messages_into_its_log() -> None:
    """A put commits what is staged: its answers must be held before a slave or the disk says that it has them."""
    root = Path(tandemmq.cluster.broker.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            on = ast.unparse(node.func.value)
            if node.func.attr in ("put", "put_batch", "commit") and on.endswith("store"):
                found.append(path.name)
    assert set(found) == {"release.py"}
