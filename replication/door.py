"""From where the HA port may be reached, and from where in plain text. Core.

Under a controller who may come in is said by who is registered (registered.py); this stands before it, and is all there
is in classic HA, whose stream says nothing of who reads it.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")


def networks(text: str) -> tuple[Network, ...]:
    """Of "10.0.0.7, 10.1.0.0/16": comma, semicolon or blank between. Raises ValueError."""
    found = []
    for part in filter(None, re.split(r"[,;\s]+", text)):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as problem:
            raise ValueError(f"{part!r} is no IP address or network: {problem}") from None
    return tuple(found)


class Door(msgspec.Struct, frozen=True):
    """INV-44: nobody from elsewhere gets a byte of the log or counts as a copy, and only who is named does without TLS.

    encrypted  TLS is demanded
    plain      who may speak in plain text all the same
    allowed    who may connect besides those of `plain`; None: everybody
    """

    encrypted: bool = False
    plain: tuple[Network, ...] = ()
    allowed: tuple[Network, ...] | None = None

    def refuse(self, host: str) -> str | None:
        """Why nobody may connect from this IP address; None where somebody may."""
        if self.allowed is None or is_within(host, self.allowed) or is_within(host, self.plain):
            return None
        return f"{host} is in neither haAllowedAddresses nor haPlainAddresses"

    def takes_plain(self, host: str) -> bool:
        """Whether somebody at this IP address may go without TLS."""
        return not self.encrypted or is_within(host, self.plain)


def is_within(host: str, places: tuple[Network, ...]) -> bool:
    """Whether an IP address is in one of these; what is none is not."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in places)
