"""Who may ask what of an HTTP port, decided from what a request says; no sockets here.

A browser on this machine is no friend: any page may make it send requests here. Three things tell its requests from
a person's: the Host header (a page that points its own name at us), the Origin header and Sec-Fetch-Site (a page of
somebody else). What changes anything needs the token, which no page knows, and which no browser sends by itself.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
from collections.abc import Collection, Mapping
from typing import Final

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: what proxies add: behind one everybody seems to be on this machine
PROXIED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


class Shown(enum.Enum):
    """What the Authorization header says."""

    NOTHING = "nothing"
    RIGHT = "the token"
    WRONG = "something else"


class Door:
    """Judges requests.

    token           who shows it may do everything
    names           what a Host header may say besides an address, in lower case
    reads_unasked   who is on this machine may read without the token
    """

    def __init__(self, token: str, names: Collection[str], *, reads_unasked: bool) -> None:
        self._token = token.encode()
        self._names = frozenset(names)
        self._reads_unasked = reads_unasked

    def shown(self, authorization: str | None) -> Shown:
        """The token is compared in constant time."""
        if authorization is None:
            return Shown.NOTHING
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"
        return Shown.RIGHT if right else Shown.WRONG

    def knows(self, host: str) -> bool:
        """Whether a Host header names us: an address, which no page can point elsewhere, or a name of ours."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.lower() in self._names or _address(name.strip("[]")) is not None

    def let_in(
        self, headers: Mapping[str, str], peer: str | None, shown: Shown, *, writing: bool
    ) -> bool:
        """Whether a request may go ahead that is not from a page of somebody else."""
        if shown is not Shown.NOTHING:
            return shown is Shown.RIGHT
        return not writing and self._reads_unasked and is_here(headers, peer)


def is_here(headers: Mapping[str, str], peer: str | None) -> bool:
    """Whether a request was sent on this machine, by no proxy."""
    address = _address(peer or "")
    if address is None or any(name in headers for name in PROXIED):
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_foreign(headers: Mapping[str, str], method: str) -> bool:
    """Whether a page of another origin had a browser send this; following a link to us is no harm."""
    origin = headers.get("Origin")
    if origin is not None:
        _, _, place = origin.partition("://")
        return not place or place.lower() != headers.get("Host", "").lower()
    site = headers.get("Sec-Fetch-Site", "none")
    if site in ("none", "same-origin"):
        return False
    return not (method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
