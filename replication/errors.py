"""What can go wrong between replicas. Whose fault it is decides what happens: docs/errors.md."""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of everything the replication package raises on purpose."""


class PeerBrokeProtocol(ReplicationError):
    """The peer sent bytes that are no frame, or a frame it may not send now. Its connection closes, one warning."""


class CorruptEpochFile(ReplicationError):
    """Neither the epoch file nor its previous generation can be read.

    Never taken for "no epochs yet": a replica that forgot its epochs would be streamed over.
    """


class CorruptIdentityFile(ReplicationError):
    """brokerIdentity does not hold cluster#brokerName#id."""
