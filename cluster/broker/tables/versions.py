"""The version stamp that name servers and slaves compare to see whether a table changed."""

from __future__ import annotations

from typing import Any

import msgspec

from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.headers import Int64


class DataVersion(msgspec.Struct, rename="camel"):
    """Version of one table. Equal means all three numbers are equal.

    Source: docs/formats.md "DataVersion".
    """

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0

    def advance(self, now_ms: int) -> None:
        """The next version: one more on the counter, stamped with the wall clock."""
        self.counter += 1
        self.timestamp = now_ms

    def to_json(self) -> dict[str, int]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    @staticmethod
    def from_json(found: Any, now_ms: int) -> DataVersion:
        """The version stored in a file.

        Files of 4.x lack members, files of anyone may lack it all.
        """
        if not isinstance(found, dict):
            return DataVersion(timestamp=now_ms)
        return bodies.shaped(DataVersion, found)
