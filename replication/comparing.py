"""Whether two classic logs are one, told by the stretch before the end of the shorter one.

A record says where it stands and when it was stored, and a log only ever grows or loses its end. So two logs that hold
the same record at the same place held the same bytes when it was written, and hold them still, below it. That is what
epochs say in the other dialects; the classic one has none (INV-36).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

STRETCH_BYTES: Final = 256 << 10  # what our replicas compare: many records, and read in a moment


class Verdict(enum.Enum):
    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # nobody could be asked, or who was asked could not say


class Finding(msgspec.Struct, frozen=True):
    """What came of holding two logs against each other.

    why       in words, for all but SAME
    passport  SAME, and the master is ours: what to show it on the stream; 0 for none
    starts    DIFFERS, because the master's log starts only here; else 0
    """

    verdict: Verdict
    why: str = ""
    passport: int = 0
    starts: int = 0


# --- between a SlaveCore of classic HA and its shell ---


class CompareLogs(msgspec.Struct, frozen=True):
    """Hold our log against the master's. Ends in LogsCompared, always."""

    connection: int


class ShowPass(msgspec.Struct, frozen=True):
    """Show the master what it gave us when our log was compared."""

    connection: int
    passport: int


class LogsCompared(msgspec.Struct, frozen=True):
    """What came of a CompareLogs: our log, which ends at `end` by now, and the master's.

    why       in words, for all but SAME
    passport  to be shown on the stream; 0: the master is a stock one, which knows none
    """

    connection: int
    end: int
    verdict: Verdict
    why: str = ""
    passport: int = 0
