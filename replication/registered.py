"""Which replicas the controller registered for a group, and whether who connects to the HA port is one of them. Core.

The HA port asks nobody for a password. What a stranger cannot know is the number that each process of ours draws at its
start and tells only its controller: the incarnation. The controller hands the numbers to the group's master, and the
master lets in who says the right one. A stock replica has no such number: it is known by its id and its host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import msgspec


class KnownReplica(msgspec.Struct, frozen=True):
    """One replica as the controller knows it.

    incarnation  of its process; 0 where it has none (a stock replica) or nobody told us
    hosts        of its addresses, as it registered them: IP addresses or names
    """

    replica: int
    incarnation: int = 0
    hosts: tuple[str, ...] = ()


class Registry:
    """The replicas of one group, for its master. INV-44: who is not in it gets no log and counts for nothing.

    own          our id: who comes from our own machine comes from its host
    by_host      whether a replica that proves nothing must come from the host that it registered
    """

    __slots__ = ("_by_host", "_known", "_own")

    def __init__(self, known: Iterable[KnownReplica], own: int, *, by_host: bool = True) -> None:
        self._known = {each.replica: each for each in known}
        self._own = own
        self._by_host = by_host

    def refuse(self, replica: int, incarnation: int, host: str) -> str | None:
        """Why this replica is not let in; None when it is.

        host   where the connection comes from, an IP address; "" when that is not known
        """
        known = self._known.get(replica)
        if known is None:
            return f"replica {replica} is not registered with the controller"
        if known.incarnation:
            if incarnation == known.incarnation:
                return None
            if incarnation:
                return f"replica {replica} is registered with the controller by another process"
            return (
                f"replica {replica} is one of ours and does not say which process it is: give all "
                "replicas of the group the same haExtensionEnable"
            )
        if not self._by_host or not host or self._is_at_home(known, host):
            return None
        where = " or ".join(known.hosts)
        return (
            f"replica {replica} is registered at {where}, not at {host}: if it sends from another "
            "address set haReplicaHostCheck=false"
        )

    def _is_at_home(self, known: KnownReplica, host: str) -> bool:
        if may_be_of(known.hosts, host):
            return True
        own = self._known.get(self._own)
        hosts = {_plain(each) for each in known.hosts}
        near = own is not None and not hosts.isdisjoint(map(_plain, own.hosts))
        return near and is_local(host)


def may_be_of(hosts: Iterable[str], host: str) -> bool:
    """Whether a connection from an IP address may be that of one who gave these as its hosts: a name may
    stand for any address."""
    found = {_plain(each) for each in hosts}
    return _plain(host) in found or not all(map(_is_address, found))


def is_local(host: str) -> bool:
    """Whether an IP address is this machine's own."""
    try:
        return ipaddress.ip_address(_plain(host)).is_loopback
    except ValueError:
        return False


def _plain(host: str) -> str:
    """An address in one spelling; a name as it is."""
    host = host.strip("[]").partition("%")[0]
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower()
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(address: str) -> str:
    """The host of "host:port"; "" of nothing."""
    return address.rpartition(":")[0].strip("[]")
