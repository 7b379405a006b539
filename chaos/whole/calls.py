"""The calls that leave a process, as they are inside a simulated one: time, chance, files, sockets.

Installed once, for good, in a process of its own per seed. Outside a simulated process each is what it was.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.powercut.disk import CALLS
from tandemmq.chaos.whole.wires import SOCKETS, FakeListener
from tandemmq.storage import BOOT_ID_PATH

if TYPE_CHECKING:
    from tandemmq.chaos.whole.stage import Life, Stage

SYNCS: Final = frozenset({"fsync", "fdatasync"})
GROWS: Final = frozenset({"posix_fallocate", "ftruncate"})


class Killed(BaseException):
    """The process that runs is dead: nothing of it may go on."""


def install(stage: Stage) -> None:
    """Have everything that a server or a client asks of its machine come from the stage."""
    _clocks(stage)
    _chances(stage)
    _files(stage)
    _sockets(stage)
    gc.collect = lambda *_: 0  # what a start does for its memory costs a seed a tenth of its time
    gc.freeze = lambda: None


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
    def replaced(name: str, simulated: Callable[..., Any]) -> None:
        setattr(time, name, _inside(stage, getattr(time, name), simulated))

    replaced("time_ns", lambda life: life.host.wall_us() * 1000)
    replaced("time", lambda life: life.host.wall_us() / 1e6)
    replaced("monotonic_ns", lambda life: life.host.monotonic_us() * 1000)
    replaced("monotonic", lambda life: life.host.monotonic_us() / 1e6)
    replaced("perf_counter", lambda life: life.host.monotonic_us() / 1e6)
    replaced("clock_gettime_ns", lambda life, clock: life.host.monotonic_us() * 1000)


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
        setattr(os, name, _inside(stage, getattr(os, name), _file_call(name, getattr(os, name))))
    fcntl.flock = _inside(stage, fcntl.flock, lambda life, *_: None)  # a killed process holds none
    statvfs = os.statvfs
    os.statvfs = _inside(stage, statvfs, lambda life, path: life.host.space(statvfs(path)))
    resource.setrlimit = lambda *_: None
    read_bytes = Path.read_bytes

    def reading(path: Path) -> bytes:
        life = stage.current
        if life is not None and path == BOOT_ID_PATH:
            return life.host.boot_id.encode()
        return read_bytes(path)

    Path.read_bytes = reading  # type: ignore[method-assign, assignment]


def _file_call(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(life: Life, *arguments: Any, **options: Any) -> Any:
        if life.dead:
            raise Killed
        host = life.host
        host.burn(name)
        if name in SYNCS and host.fails_sync():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if name in GROWS and host.full and (name != "ftruncate" or arguments[1]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        heard = host.heard.get(name, real)
        return heard(*arguments, **options)

    return call


def _sockets(stage: Stage) -> None:
    def listener(life: Life, address: tuple[str, int], **options: Any) -> FakeListener:
        return FakeListener(stage.wires, life, address)

    socket.create_server = _inside(stage, socket.create_server, listener)

    def send_file(life: Life, out: int, descriptor: int, position: int, size: int) -> int:
        data = os.pread(descriptor, min(size, SOCKETS[out].end.room), position)
        return SOCKETS[out].sendmsg([data])

    os.sendfile = _inside(stage, os.sendfile, send_file)
