"""Who one end of a replication stream says it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Party:
    """A replica of a controlled group. Classic HA knows none of this.

    incarnation  of this process, above 0: a restarted replica is told from the one before by it
    secret       shared by the group; with one, a peer that cannot prove it is refused, so also
                 every stock replica. Empty: nothing is proved and stock replicas are welcome
    extended     offer and take the extension (docs/decisions/0004-failover-protocol.md)
    compressed   as a slave: ask for lz4, for a link slower than the machine
    """

    cluster: str
    group: str
    replica: int
    incarnation: int
    secret: bytes = b""
    extended: bool = True
    compressed: bool = False
