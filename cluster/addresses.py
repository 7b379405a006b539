"""Which address of this machine RocketMQ would tell others, and which addresses a wide port is reached at."""

from __future__ import annotations

import array
import functools
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

_GET_ADDRESSES: Final = 0x8912  # SIOCGIFCONF
_GET_FLAGS: Final = 0x8913  # SIOCGIFFLAGS
_ENTRY: Final = struct.Struct("16s H 2x 4s 16x")  # struct ifreq on 64 bit: name, family, port, IPv4
_LIST: Final = struct.Struct("i4xQ")  # struct ifconf: bytes, where
_ENTRIES_MAX: Final = 1024
_UP, _POINT_TO_POINT, _RUNNING = 0x1, 0x10, 0x40
_INTERNAL: Final = tuple(
    map(ipaddress.IPv4Network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
)
ANY: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"


class Interface(NamedTuple):
    """One IPv4 address of an interface, in the order that the kernel lists them."""

    name: str
    address: str
    usable: bool  # up, running, and no tunnel to one other machine


def chosen(interfaces: list[Interface]) -> str:
    """The address that RocketMQ registers when its file names none: of usable interfaces that are no bridge the first
    public one, else the last private one, in Java's order, which is the kernel's reversed. Loopback when there is none.

    A container has nothing but its container network's address: it is that. Source: NetworkUtil of 5.3.3.
    """
    found = [
        each.address
        for each in reversed(interfaces)
        if each.usable and not ipaddress.ip_address(each.address).is_loopback
    ]
    for address in found:
        if not any(ipaddress.ip_address(address) in network for network in _INTERNAL):
            return address
    return found[-1] if found else LOOPBACK


@functools.cache
def local_address() -> str:
    """What `chosen` says of this machine, as it was when first asked, as at RocketMQ. Sends nothing."""
    if sys.platform != "linux":
        return _address_of_route()
    return chosen(interfaces())


def reached_at() -> list[str]:
    """The addresses of this machine that others may reach a port at that listens everywhere."""
    if sys.platform != "linux":
        return [_address_of_route()]
    every = dict.fromkeys(each.address for each in interfaces())
    return [address for address in every if not ipaddress.ip_address(address).is_loopback]


@functools.cache
def is_here(host: str) -> bool:
    """Whether a port can be opened at this address or name of this machine."""
    plain = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in plain else socket.AF_INET) as probe:
        try:
            probe.bind((plain, 0))
        except OSError:
            return False
    return True


def interfaces() -> list[Interface]:
    """IPv4 addresses of this machine; bridges are not usable. Raises OSError."""
    import fcntl  # not everywhere

    buffer = array.array("B", bytes(_ENTRY.size * _ENTRIES_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = _LIST.pack(len(buffer), buffer.buffer_info()[0])
        (size, _) = _LIST.unpack(fcntl.ioctl(asked, _GET_ADDRESSES, request))
        found = []
        for raw, family, packed in _ENTRY.iter_unpack(bytes(buffer[:size])):
            if family != socket.AF_INET:
                continue
            answer = fcntl.ioctl(asked, _GET_FLAGS, struct.pack("16s24x", raw))
            (flags,) = struct.unpack_from("H", answer, 16)
            name = os.fsdecode(raw.partition(b"\0")[0])
            lives = flags & _UP and flags & _RUNNING and not flags & _POINT_TO_POINT
            bridge = Path("/sys/class/net", name.partition(":")[0], "bridge").exists()
            found.append(Interface(name, socket.inet_ntoa(packed), bool(lives) and not bridge))
    return found


def _address_of_route() -> str:
    """The address that this machine uses towards others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the routes are asked
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
