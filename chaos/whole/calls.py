"""The calls that leave a process, as they are inside a simulated one: time, chance, files, sockets.

Installed once, for good, in a process of its own per seed. Outside a simulated process each is what it was.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import random
import resource
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random as Chance  # as it was before anything here replaced it
from typing import Any, Final

from tandemmq.chaos.powercut.disk import CALLS, content
from tandemmq.chaos.whole.stage import Host, Killed, Life, Stage
from tandemmq.chaos.whole.wires import SOCKETS, FakeListener
from tandemmq.storage import BOOT_ID_PATH

SYNCS: Final = frozenset({"fsync", "fdatasync"})
GROWS: Final = frozenset({"posix_fallocate", "ftruncate"})


def install(stage: Stage) -> None:
    """Have everything that a server or a client asks of its machine come from the stage."""
    _clocks(stage)
    _chances(stage)
    _files(stage)
    _sockets(stage)
    gc.collect = lambda *_: 0  # what a start does for its memory costs a seed a tenth of its time
    gc.freeze = lambda: None
    asyncio.tasks._all_tasks.add = lambda task: None  # type: ignore[attr-defined]  # nobody here asks for all


def _inside(
    stage: Stage, real: Callable[..., Any], simulated: Callable[..., Any]
) -> Callable[..., Any]:
    """simulated(life, ...) in a process, else real(...)."""

    def call(*arguments: Any, **options: Any) -> Any:
        life = stage.current
        if life is None:
            return real(*arguments, **options)
        return simulated(life, *arguments, **options)

    return call


def _clocks(stage: Stage) -> None:
    """Servers look at their clocks at each turn: a call more here is felt."""

    def replaced(name: str, clock_us: Callable[[Host], int], *, in_ns: bool) -> None:
        real = getattr(time, name)

        def nanoseconds(*arguments: Any) -> int:
            life = stage.current
            return real(*arguments) if life is None else clock_us(life.host) * 1000

        def seconds() -> float:
            life = stage.current
            return real() if life is None else clock_us(life.host) / 1e6

        setattr(time, name, nanoseconds if in_ns else seconds)

    replaced("time_ns", Host.wall_us, in_ns=True)
    replaced("time", Host.wall_us, in_ns=False)
    replaced("monotonic_ns", Host.monotonic_us, in_ns=True)
    replaced("monotonic", Host.monotonic_us, in_ns=False)
    replaced("perf_counter", Host.monotonic_us, in_ns=False)
    replaced("clock_gettime_ns", Host.monotonic_us, in_ns=True)


def _chances(stage: Stage) -> None:
    class Seeded(Chance):
        """Without a seed of its own it gets one from the stage."""

        def __init__(self, seed: Any = None) -> None:
            if seed is None and stage.current is not None:
                seed = stage.chance.getrandbits(64)
            super().__init__(seed)

    random.Random = Seeded  # type: ignore[misc, assignment]
    random.SystemRandom = Seeded  # type: ignore[misc, assignment]
    secrets.token_bytes = lambda nbytes=None: stage.chance.randbytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: stage.chance.randbytes(nbytes or 32).hex()
    secrets.randbits = stage.chance.getrandbits  # type: ignore[assignment]
    os.getpid = _inside(stage, os.getpid, lambda life: life.pid)


def _files(stage: Stage) -> None:
    for name in (*CALLS, "posix_fallocate"):
        setattr(os, name, _file_call(stage, name, getattr(os, name)))
    fcntl.flock = _inside(stage, fcntl.flock, lambda life, *_: None)  # a killed process holds none
    statvfs = os.statvfs
    os.statvfs = _inside(stage, statvfs, lambda life, path: life.host.space(statvfs(path)))
    resource.setrlimit = lambda *_: None
    boot_id_path = str(BOOT_ID_PATH)

    def reading(path: Path) -> bytes:
        life = stage.current
        name = str(path)
        if life is not None and name == boot_id_path:
            return life.host.boot_id.encode()
        return content(name)

    Path.read_bytes = reading  # type: ignore[method-assign, assignment]


def _file_call(stage: Stage, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    syncs, grows = name in SYNCS, name in GROWS

    def call(*arguments: Any, **options: Any) -> Any:
        life = stage.current
        if life is None:
            return real(*arguments, **options)
        if life.dead:
            raise Killed
        host = life.host
        host.burn(name)
        if syncs and host.fails_sync():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if grows and host.full and (name != "ftruncate" or arguments[1]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return host.heard.get(name, real)(*arguments, **options)

    return call


def _sockets(stage: Stage) -> None:
    def listener(life: Life, address: tuple[str, int], **options: Any) -> FakeListener:
        return FakeListener(stage.wires, life, address)

    socket.create_server = _inside(stage, socket.create_server, listener)

    def send_file(life: Life, out: int, descriptor: int, position: int, size: int) -> int:
        data = os.pread(descriptor, min(size, SOCKETS[out].end.room), position)
        return SOCKETS[out].sendmsg([data])

    os.sendfile = _inside(stage, os.sendfile, send_file)
