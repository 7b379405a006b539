"""Why an audit cannot say anything: bad input, or a store that changed under it."""

from __future__ import annotations

from tandemmq.replication.errors import ReplicationError


class AuditError(ReplicationError):
    """Root of what the audit raises on purpose."""


class BadInput(AuditError):
    """The caller named something that cannot be audited: no store, other file sizes, another cluster."""


class AuditIncomplete(AuditError):
    """Something could not be read, or changed while it was read; what was found is not the whole truth."""
