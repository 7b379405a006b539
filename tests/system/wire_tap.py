"""What crosses loopback at given ports, byte by byte: a packet socket, put together again as streams."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

IPV4: Final = 0x0800
SOL_PACKET, PACKET_STATISTICS = 263, 6
OUTGOING: Final = 4  # a packet of lo is seen twice: as sent, and as received
TCP: Final = 6
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
LATE_S: Final = 0.5  # what was sent before the end is taken by then
SYN, RST = 0x02, 0x04
BUFFER_BYTES: Final = 256 << 20
RECORD_KINDS: Final = {20, 21, 22, 23}  # change cipher spec, alert, handshake, data
RECORD_BYTES_MAX: Final = (16 << 10) + 256

Way = tuple[int, int]  # from port, to port


@dataclass
class Stream:
    """One direction of one connection: what was sent, by the place where it belongs."""

    first: int = -1  # sequence number of the first byte; -1: its beginning was not seen
    parts: dict[int, bytes] = field(default_factory=dict)

    def data(self) -> bytes:
        """Everything up to the first gap."""
        found = bytearray()
        for at in sorted(self.parts):
            if at > len(found):
                break
            if at + len(self.parts[at]) > len(found):
                found[at:] = self.parts[at]
        return bytes(found)

    @property
    def bytes_seen(self) -> int:
        return max((at + len(part) for at, part in self.parts.items()), default=0)


class WireTap:
    """Records while the body runs. Raises PermissionError for who is not root."""

    def __init__(self, ports: set[int]) -> None:
        self._ports = ports
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._filter()
        self._socket.bind(("lo", IPV4))
        self._socket.settimeout(0.2)
        self._ended = False
        self._thread = threading.Thread(target=self._record, name="wire tap", daemon=True)
        self.streams: dict[tuple[Way, int], Stream] = {}
        self._newest: dict[Way, Stream] = {}
        self.dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._thread.join()
        _, self.dropped = struct.unpack(
            "II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        )
        self._socket.close()

    def _filter(self) -> None:
        """Have the kernel leave out what others say: we might not keep up with it. Classic BPF."""
        ports = sorted(self._ports)
        tests = []
        for at in (0, 2):  # where the ports stand in a TCP header, behind the IP header of X bytes
            tests.append((0x48, 0, 0, at))
            tests += [(0x15, 0, 0, port) for port in ports]
        program = [(0x30, 0, 0, 9), (0x15, 0, len(tests) + 1, TCP), (0xB1, 0, 0, 0), *tests]
        program += [(0x06, 0, 0, 0), (0x06, 0, 0, 1 << 18)]
        take = len(program) - 1
        made = b"".join(
            struct.pack("HBBI", code, take - number - 1 if code == 0x15 and jf == 0 else 0, jf, k)
            for number, (code, _, jf, k) in enumerate(program)
        )
        memory = ctypes.create_string_buffer(made)
        attached = struct.pack("HL", len(program), ctypes.addressof(memory))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attached)

    def _record(self) -> None:
        last_s = None
        while last_s is None or time.monotonic() < last_s:
            if self._ended and last_s is None:
                last_s = time.monotonic() + LATE_S
            try:
                packet, where = self._socket.recvfrom(1 << 17)
            except TimeoutError:
                continue
            if where[2] != OUTGOING:
                self._take(packet)

    def _take(self, packet: bytes) -> None:
        head = (packet[0] & 15) * 4
        if packet[9] != TCP:
            return
        source, target, sequence = struct.unpack_from(">HHI", packet, head)
        if source not in self._ports and target not in self._ports:
            return
        length = struct.unpack_from(">H", packet, 2)[0] or len(packet)
        body = packet[head + (packet[head + 12] >> 4) * 4 : length]
        way = (source, target)
        if packet[head + 13] & SYN:
            stream = self._newest[way] = Stream(first=(sequence + 1) & 0xFFFFFFFF)
            self.streams[way, stream.first] = stream
        elif body:
            begun = self._newest.get(way)
            if begun is None:
                begun = self._newest[way] = self.streams[way, -1] = Stream()
            at = (sequence - begun.first) & 0xFFFFFFFF
            known = begun.parts.get(at, b"")
            begun.parts[at] = body if len(body) > len(known) else known


def records(data: bytes) -> tuple[int, str]:
    """How many whole TLS records `data` is, and what is wrong with it: "" if it is nothing but records."""
    at = count = 0
    while at < len(data):
        head = data[at : at + 5]
        if head[0] not in RECORD_KINDS or (len(head) > 1 and head[1] != 3):
            return count, f"at {at} stands {data[at : at + 60]!r}"
        if len(head) < 5:
            return count, ""  # the connection ended within a record
        size = struct.unpack_from(">H", head, 3)[0]
        if size > RECORD_BYTES_MAX:
            return count, f"at {at} a record of {size} bytes"
        at += 5 + size
        count += at <= len(data)
    return count, ""
