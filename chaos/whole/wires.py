"""TCP between simulated hosts: bytes arrive in order and late, or wait behind a partition, or the peer is gone.

A process that dies ends its connections; a host that loses power says nothing, and what is sent to it is answered with
a reset once it is up again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, cast

if TYPE_CHECKING:
    from tandemmq.chaos.whole.loop import TurnLoop
    from tandemmq.chaos.whole.stage import Host, Life, Stage

WINDOW_BYTES: Final = 64 << 10  # under way and not read, before a sender's own buffer fills
RETRANSMIT_US: Final = (100_000, 1_500_000)
LISTENER_FILES: Final = itertools.count(1 << 30)
Address = tuple[str, int]


class End:
    """One side of a connection.

    inbox      arrived, and not read; unread: with what is under way
    finished   the peer said all that it will; broken: it is gone
    """

    def __init__(self, wires: Wires, life: Life, name: Address) -> None:
        self.wires = wires
        self.life = life
        self.name = name
        self.peer: End = self
        self.inbox: deque[bytes] = deque()
        self.unread = 0
        self.finished = self.broken = self.closed = False
        self.arrives_us = 0
        self.held: list[tuple[bytes | None, bool]] = []  # on their way to us, behind a partition
        self.readable: Callable[[], None] = _nobody
        self.writable: Callable[[], None] = _nobody

    @property
    def waiting_bytes(self) -> int:
        """Written, and beyond what the network takes."""
        return max(0, self.peer.unread - WINDOW_BYTES)

    @property
    def room(self) -> int:
        return max(0, WINDOW_BYTES - self.peer.unread)

    def send(self, data: bytes) -> None:
        if self.closed or not data:
            return
        self.peer.unread += len(data)
        self.wires.carry(self, data, reset=False)

    def read(self, size: int) -> bytes:
        """At most so many of the bytes that are there."""
        data = self.inbox.popleft()
        if len(data) > size:
            self.inbox.appendleft(data[size:])
            data = data[:size]
        self.unread -= len(data)
        if not self.peer.life.dead and not self.peer.closed:
            self.peer.writable()
        return data

    def close(self, *, reset: bool = False) -> None:
        """Nothing more is said or heard here. reset: and what is under way may be lost."""
        if not self.closed:
            self.closed = True
            self.wires.carry(self, None, reset=reset)
            self.wires.ends.pop(self, None)


def _nobody() -> None:
    return


class Wires:
    """Every connection and every listening address, and between which hosts nothing passes.

    blocked  (from, to): host numbers
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.blocked: set[tuple[int, int]] = set()
        self.ends: dict[End, None] = {}
        self.delay_us = (30, 400)
        self.slow_us = 0
        self._listening: dict[Address, tuple[Life, Callable[[End], None]]] = {}
        self._ports = itertools.count(40_000)
        self._unheard: list[tuple[Life, Address, asyncio.Future[End]]] = []  # who knocks in vain

    # --- opening ---

    def listen(self, life: Life, address: Address, accept: Callable[[End], None]) -> None:
        """Raises OSError: somebody has it."""
        found = self._listening.get(address)
        if found is not None and not found[0].dead:
            raise OSError(98, f"address in use: {address}")
        self._listening[address] = (life, accept)

    def unlisten(self, address: Address) -> None:
        self._listening.pop(address, None)

    async def connect(self, life: Life, address: Address) -> End:
        """Our end. Raises ConnectionRefusedError; hangs while nobody answers."""
        made: asyncio.Future[End] = life.loop.create_future()
        self._stage.after(self._delay(), self._knock, life, address, made)
        return await made

    def _knock(self, life: Life, address: Address, made: asyncio.Future[End]) -> None:
        if life.dead or made.done():
            return
        target = self._stage.host_at(address[0])
        if target is None or not self._passes(life.host, target) or not target.powered:
            self._unheard.append((life, address, made))
            return
        found = self._listening.get(address)
        if found is None or found[0].dead:
            self._stage.after(self._delay(), self._refuse, life, made)
            return
        ours = End(self, life, (life.host.address, next(self._ports)))
        theirs = End(self, found[0], address)
        ours.peer, theirs.peer = theirs, ours
        self.ends[ours] = self.ends[theirs] = None
        found[1](theirs)
        self._stage.after(self._delay(), self._opened, life, made, ours)

    def _refuse(self, life: Life, made: asyncio.Future[End]) -> None:
        if not life.dead:
            life.loop.call_soon(_fail, made)

    def _opened(self, life: Life, made: asyncio.Future[End], ours: End) -> None:
        def tell() -> None:
            if made.done():
                ours.close(reset=True)
            else:
                made.set_result(ours)

        if not life.dead:
            life.loop.call_soon(tell)

    # --- carrying ---

    def carry(self, sender: End, data: bytes | None, *, reset: bool) -> None:
        """Towards its peer: bytes, or None for the end of them."""
        peer = sender.peer
        if peer.closed:
            return
        source, target = sender.life.host, peer.life.host
        if peer.life.dead:
            if peer.broken and target.powered and data is not None:
                # of a life before: the host that is up again knows no such connection
                self._stage.after(self._delay(), self._arrive, sender, None, True)
            return
        if peer.held or not self._passes(source, target):
            peer.held.append((data, reset))
            return
        self._hand(peer, data, reset)

    def _hand(self, peer: End, data: bytes | None, reset: bool) -> None:
        stage = self._stage
        peer.arrives_us = max(peer.arrives_us, stage.now_us + self._delay())
        stage.at(peer.arrives_us, self._arrive, peer, data, reset)

    def _arrive(self, end: End, data: bytes | None, reset: bool) -> None:
        if end.closed or end.life.dead:
            return
        if data is not None:
            end.inbox.append(data)
        elif reset:
            end.broken = True
            end.inbox.clear()
        else:
            end.finished = True
        end.readable()

    def _passes(self, source: Host, target: Host) -> bool:
        return (source.number, target.number) not in self.blocked

    def _delay(self) -> int:
        return self._stage.draw(*self.delay_us) + (
            self._stage.draw(0, self.slow_us) if self.slow_us else 0
        )

    def _knock_again(self) -> None:
        """As kernels do whose first packet was not answered."""
        unheard, self._unheard = self._unheard, []
        for life, address, made in unheard:
            if not life.dead and not made.done():
                self._stage.after(
                    self._stage.draw(*RETRANSMIT_US), self._knock, life, address, made
                )

    def unblock(self, pairs: Sequence[tuple[int, int]]) -> None:
        """What waits behind a partition goes on."""
        self.blocked.difference_update(pairs)
        self._knock_again()
        for end in list(self.ends):
            if end.held and self._passes(end.peer.life.host, end.life.host):
                held, end.held = end.held, []
                for data, reset in held:
                    self._hand(end, data, reset)

    def booted(self, host: Host) -> None:
        """What was sent to this host while it was dark is sent again by its peers' kernels, and refused."""
        self._knock_again()
        for end in list(self.ends):
            peer = end.peer
            if peer.broken and peer.life.dead and peer.life.host is host and peer.unread:
                self._stage.after(self._stage.draw(*RETRANSMIT_US), self._arrive, end, None, True)

    def ended(self, life: Life, *, power: bool) -> None:
        """A process is gone; with its power nobody is told."""
        for end in [each for each in self.ends if each.life is life]:
            if power:
                end.broken = True
            else:
                end.close()
            self.ends.pop(end, None)
        for address in [at for at, found in self._listening.items() if found[0] is life]:
            del self._listening[address]


def _fail(made: asyncio.Future[End]) -> None:
    if not made.done():
        made.set_exception(ConnectionRefusedError(111, "Connection refused"))


class StreamTransport(asyncio.Transport):
    """One end as asyncio's protocols see it."""

    def __init__(self, end: End, protocol: asyncio.BaseProtocol, loop: TurnLoop) -> None:
        super().__init__()
        self._end = end
        self._protocol: Any = protocol
        self._loop = loop
        self._closing = self._lost = self._paused_reading = self._paused_writing = False
        self._reading_due = False
        self._high, self._low = 64 << 10, 16 << 10

    def begin(self, made: asyncio.Future[None] | None) -> None:
        """connection_made(), and from then on bytes."""
        self._end.readable, self._end.writable = self._readable, self._writable
        self._protocol.connection_made(self)
        if made is not None and not made.done():
            made.set_result(None)
        self._readable()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"peername": self._end.peer.name, "sockname": self._end.name}
        return known.get(name, default)

    # --- in ---

    def _readable(self) -> None:
        end = self._end
        if not self._reading_due and not self._paused_reading and not self._closing and (
            end.inbox or end.finished or end.broken
        ):  # fmt: skip
            self._reading_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._reading_due = False
        end = self._end
        if self._paused_reading or self._closing:
            return
        if end.broken:
            self._drop(ConnectionResetError(104, "Connection reset by peer"))
        elif end.inbox:
            self._deliver()
            self._readable()
        elif end.finished:
            self._protocol.eof_received()
            self.close()

    def _deliver(self) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = cast(memoryview, self._protocol.get_buffer(-1))
            data = self._end.read(len(buffer))
            buffer[: len(data)] = data
            self._protocol.buffer_updated(len(data))
        else:
            self._protocol.data_received(self._end.read(1 << 16))

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self._readable()

    def is_reading(self) -> bool:
        return not self._paused_reading

    # --- out ---

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._end.send(bytes(data))
        if not self._paused_writing and self._end.waiting_bytes > self._high:
            self._paused_writing = True
            self._protocol.pause_writing()

    def _writable(self) -> None:
        if self._paused_writing and self._end.waiting_bytes <= self._low and not self._lost:
            self._paused_writing = False
            self._loop.call_soon(self._protocol.resume_writing)
        if self._closing and not self._end.waiting_bytes:
            self._finish(None)

    def get_write_buffer_size(self) -> int:
        return self._end.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    # --- ends ---

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._end.waiting_bytes:
                self._finish(None)

    def abort(self) -> None:
        self._closing = True
        self._finish(None, reset=True)

    def _drop(self, problem: Exception) -> None:
        self._closing = True
        self._finish(problem)

    def _finish(self, problem: Exception | None, *, reset: bool = False) -> None:
        if not self._lost:
            self._lost = True
            self._end.close(reset=reset)
            self._loop.call_soon(self._protocol.connection_lost, problem)


class FakeSocket:
    """One end as a non-blocking socket: what SocketWire uses of one."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._file = next(LISTENER_FILES)
        self._reader: tuple[TurnLoop, Callable[..., object], tuple[Any, ...]] | None = None
        self._writer: tuple[TurnLoop, Callable[..., object], tuple[Any, ...]] | None = None
        self._reading_due = self._writing_due = False
        end.readable, end.writable = self._readable, self._writable
        SOCKETS[self._file] = self

    def setblocking(self, flag: bool) -> None:
        return

    def setsockopt(self, *arguments: Any) -> None:
        return

    def fileno(self) -> int:
        return self._file

    def getpeername(self) -> Address:
        return self.end.peer.name

    def close(self) -> None:
        self._reader = self._writer = None
        self.end.close()
        SOCKETS.pop(self._file, None)

    def send(self, data: Any, flags: int = 0) -> int:
        """Raises BlockingIOError without room."""
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Raises BlockingIOError without room, OSError without a peer."""
        if self.end.broken:
            raise ConnectionResetError(104, "Connection reset by peer")
        data = b"".join(buffers)
        taken = data[: self.end.room]
        if data and not taken:
            raise BlockingIOError
        self.end.send(taken)
        return len(taken)

    def recv(self, size: int) -> bytes:
        """Raises BlockingIOError when nothing is there, OSError without a peer."""
        if self.end.broken:
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.end.inbox:
            return self.end.read(size)
        if self.end.finished:
            return b""
        raise BlockingIOError

    # --- level-triggered, as epoll ---

    def watch_reading(
        self, loop: TurnLoop, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._reader = (loop, callback, args)
        self._readable()

    def ignore_reading(self) -> bool:
        had, self._reader = self._reader, None
        return had is not None

    def watch_writing(
        self, loop: TurnLoop, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._writer = (loop, callback, args)
        self._writable()

    def ignore_writing(self) -> bool:
        had, self._writer = self._writer, None
        return had is not None

    def _readable(self) -> None:
        end = self.end
        if self._reader and not self._reading_due and (end.inbox or end.finished or end.broken):
            self._reading_due = True
            self._reader[0].call_soon(self._read)

    def _read(self) -> None:
        self._reading_due = False
        if self._reader is not None:
            self._reader[1](*self._reader[2])
            self._readable()

    def _writable(self) -> None:
        if self._writer and not self._writing_due and (self.end.room or self.end.broken):
            self._writing_due = True
            self._writer[0].call_soon(self._write)

    def _write(self) -> None:
        self._writing_due = False
        if self._writer is not None:
            self._writer[1](*self._writer[2])
            self._writable()


SOCKETS: Final[dict[int, FakeSocket]] = {}  # by what fileno() says


class FakeListener:
    """What socket.create_server() gives in a simulated process."""

    def __init__(self, wires: Wires, life: Life, address: Address) -> None:
        self._wires = wires
        self._address = address
        self._came: deque[End] = deque()
        self._reader: tuple[TurnLoop, Callable[..., object], tuple[Any, ...]] | None = None
        self._due = False
        wires.listen(life, address, self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _take(self, end: End) -> None:
        self._came.append(end)
        self._readable()

    def accept(self) -> tuple[FakeSocket, Address]:
        """Raises BlockingIOError when nobody came."""
        if not self._came:
            raise BlockingIOError
        end = self._came.popleft()
        return FakeSocket(end), end.peer.name

    def setblocking(self, flag: bool) -> None:
        return

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._wires.unlisten(self._address)

    def watch_reading(
        self, loop: TurnLoop, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._reader = (loop, callback, args)
        self._readable()

    def ignore_reading(self) -> bool:
        had, self._reader = self._reader, None
        return had is not None

    def _readable(self) -> None:
        if self._reader and not self._due and self._came:
            self._due = True
            self._reader[0].call_soon(self._read)

    def _read(self) -> None:
        self._due = False
        if self._reader is not None:
            self._reader[1](*self._reader[2])
            self._readable()
