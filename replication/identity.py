"""A replica's name in its group, as text: brokerIdentity and brokerIdentity-temp.

CLUSTER#BROKER_NAME#ID, in the temporary file followed by #CHECK_CODE. The check code lets a replica that crashed
between applying for an id and writing the file apply for the same id again. Source: RocketMQ's BrokerMetadata,
TempBrokerMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.replication.errors import CorruptIdentityFile


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a store belongs to. INV-35: an id is bound to a store; a wiped store gets a new one."""

    cluster: str
    group: str
    replica: int
    check_code: str = ""  # "ADDRESS;TIME_MS", only while applying

    def encode(self) -> bytes:
        text = f"{self.cluster}#{self.group}#{self.replica}"
        return f"{text}#{self.check_code}".encode() if self.check_code else text.encode()


def decode_identity(content: bytes) -> Identity:
    """The identity in a file's content. Raises CorruptIdentityFile."""
    try:
        parts = content.decode().strip().split("#")
    except UnicodeDecodeError as problem:
        raise CorruptIdentityFile("not text") from problem
    if (
        len(parts) not in (3, 4)
        or not all(parts)
        or not parts[2].isascii()
        or not parts[2].isdigit()
    ):
        raise CorruptIdentityFile(f"not CLUSTER#NAME#ID: {content[:80]!r}")
    replica = int(parts[2])
    if not 0 < replica < 1 << 63:
        raise CorruptIdentityFile(f"id {replica} is out of range")
    return Identity(parts[0], parts[1], replica, parts[3] if len(parts) == 4 else "")
