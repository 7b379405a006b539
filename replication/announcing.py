"""What a controller says of its groups, beside elections: its own unclean ways. Core."""

from __future__ import annotations

from typing import Final

from replication.controlevents import Announce, Kind

UNCLEAN_ALLOWED: Final = Announce(
    "",
    Kind.UNCLEAN_ALLOWED,
    0,
    "when nobody in a group's set is left another replica becomes master, "
    "and confirmed messages that only others hold are lost",
)
