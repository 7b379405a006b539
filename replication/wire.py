"""TCP connections of the replication stream as the shells use them: nothing here blocks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tandemmq.replication.frames import Buffer

CONNECTIONS_MAX: Final = 64
RECEIVE_BYTES_MAX: Final = 4096  # read at once: 512 reports of classic HA


class Wire(Protocol):
    """The bytes to and from one slave."""

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Hand bytes to the kernel; how many it took, 0 when it is full. Raises OSError."""

    def send_file(self, head: Buffer, descriptor: int, position: int, size: int) -> int:
        """Hand over a head and then bytes of a file, which the kernel takes from its cache; how
        many it took of both. Raises OSError."""

    def receive(self) -> bytes | None:
        """What came in, b"" at the end of the stream, None when nothing is there. Raises OSError."""

    def wait_writable(self, wanted: bool) -> None:
        """Whether Sender.writable() is to be called while there is room."""

    def close(self) -> None:
        """Let go of the connection; unsent bytes may be lost."""


def open_listener(host: str, port: int) -> socket.socket:
    """The HA port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    listener.setblocking(False)
    return listener


class SocketWire:
    """A TCP connection as a Wire: the log's pages go to the kernel without a copy in between."""

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._loop = loop
        self._writable: Callable[[], None] | None = None
        self._waiting = False

    def watch(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        """Call `readable` when bytes are there, and `writable` while wait_writable(True) holds."""
        self._writable = writable
        self._loop.add_reader(self._socket, readable)

    def send(self, buffers: Sequence[Buffer]) -> int:
        try:
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def send_file(self, head: Buffer, descriptor: int, position: int, size: int) -> int:
        taken = 0
        try:
            if head:
                taken = self._socket.send(head, socket.MSG_MORE)
                if taken < len(head):
                    return taken
            return taken + os.sendfile(self._socket.fileno(), descriptor, position, size)
        except (BlockingIOError, InterruptedError):
            return taken

    def receive(self) -> bytes | None:
        try:
            return self._socket.recv(RECEIVE_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None

    def wait_writable(self, wanted: bool) -> None:
        if wanted == self._waiting:
            return
        self._waiting = wanted
        if wanted:
            assert self._writable is not None, "watch() comes first"
            self._loop.add_writer(self._socket, self._writable)
        else:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
