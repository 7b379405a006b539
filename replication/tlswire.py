"""TLS on the replication stream: the master's end as a Wire.

Bytes pass through memory here, so nothing goes from file to socket without a copy. Of what the socket does not take at
most HELD_BYTES_MAX of the log and their TLS records are kept; what is not taken stays in the log, as without TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tandemmq.replication.frames import Buffer
from tandemmq.replication.wire import SocketWire

HELD_BYTES_MAX: Final = 256 << 10
PLAINTEXT_BYTES: Final = 16 << 10  # the largest TLS record
CLIENT_HELLO: Final = (
    0x16  # no stream of ours begins so: a position of a classic slave is below 2 ** 60
)


class Encrypted(NamedTuple):
    """What a port encrypts with.

    context  asked each time that a connection begins: certificates are renewed while we serve
    explain  a failed handshake in words
    """

    context: Callable[[], ssl.SSLContext | None]
    explain: Callable[[ssl.SSLError], str] = str


class TlsWire:
    """A TCP connection as a Wire, encrypted if the slave begins with TLS.

    plain_too   whether it may do without. If it may not and does, receive() raises
    """

    def __init__(self, plain: SocketWire, tls: Encrypted, *, plain_too: bool) -> None:
        context = tls.context()
        assert context is not None, "a port with TLS keeps it"
        self._plain = plain
        self._context = context
        self._explain = tls.explain
        self._plain_too = plain_too
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._decided = False
        self._established = False
        self._unsent = memoryview(b"")
        self._wanted = False
        self._broken: OSError | None = None
        self._writable: Callable[[], None] | None = None

    def watch(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        """As SocketWire.watch()."""
        self._writable = writable
        self._plain.watch(readable, self._has_room)

    # --- in ---

    def receive(self) -> bytes | None:
        if self._broken is not None:
            raise self._broken
        data = self._plain.receive()
        if not data:
            return data
        if not self._decided:
            self._decide(data[0])
        if self._tls is None:
            return data
        self._incoming.write(data)
        if not self._established and not self._shake_hands(self._tls):
            return None
        received, ended = self._decrypt(self._tls)
        self._flush()
        return received if received or ended else None

    def _decide(self, first: int) -> None:
        self._decided = True
        if first == CLIENT_HELLO:
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        elif not self._plain_too:
            raise ConnectionAbortedError(
                "speaks no TLS, which tls.server.mode=enforcing demands of all but haPlainAddresses"
            )

    def _shake_hands(self, tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
            self._established = True
        except ssl.SSLWantReadError:
            self._established = False
        except ssl.SSLError as problem:
            self._flush()  # the alert that says why
            raise ConnectionAbortedError(
                f"TLS handshake failed: {self._explain(problem)}"
            ) from None
        self._flush()
        return self._established

    def _decrypt(self, tls: ssl.SSLObject) -> tuple[bytes, bool]:
        """Everything that is there, and whether the slave said goodbye."""
        parts: list[bytes] = []
        while True:
            try:
                part = tls.read(PLAINTEXT_BYTES)
            except ssl.SSLWantReadError:
                return b"".join(parts), False
            except ssl.SSLZeroReturnError:
                return b"".join(parts), True
            except ssl.SSLError as problem:
                raise ConnectionAbortedError(f"TLS ended: {self._explain(problem)}") from None
            if not part:
                return b"".join(parts), True
            parts.append(part)

    # --- out ---

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Encrypt and hand to the kernel; how many bytes of `buffers` were taken. Raises OSError."""
        if self._broken is not None:
            raise self._broken
        if self._tls is None:
            return self._plain.send(buffers) if self._decided else 0
        if not self._established or not self._flush():
            return 0
        taken = 0
        for buffer in buffers:
            with memoryview(buffer) as whole, whole[: HELD_BYTES_MAX - taken] as part:
                if part:
                    taken += self._tls.write(part)
                if len(part) < len(whole):
                    break
        self._flush()
        return taken

    def send_file(self, head: Buffer, descriptor: int, position: int, size: int) -> int:
        if self._tls is None and self._decided:
            return self._plain.send_file(head, descriptor, position, size)
        if not self._flush():
            return 0
        body = os.pread(descriptor, min(size, HELD_BYTES_MAX), position)
        return self.send((head, body) if head else (body,))

    def _flush(self) -> bool:
        """Hand the kernel what is encrypted; whether it took all of it."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            if not self._unsent:
                return True
            taken = self._plain.send((self._unsent,))
            self._unsent = self._unsent[taken:]
            if self._unsent:
                self._plain.wait_writable(True)
                return False

    def _has_room(self) -> None:
        assert self._writable is not None
        try:
            room = self._flush()
        except OSError as error:
            self._broken, room = error, True  # whoever sends or receives next hears of it
        if room:
            self._plain.wait_writable(self._wanted)
            if self._wanted or self._broken is not None:
                self._writable()

    def wait_writable(self, wanted: bool) -> None:
        self._wanted = wanted
        self._plain.wait_writable(wanted or bool(self._unsent))

    def close(self) -> None:
        self._plain.close()
