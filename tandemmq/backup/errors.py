"""Why a backup or a restore does not go on. Every text says what to do."""

from __future__ import annotations


class BackupError(Exception):
    """Root of what backup and restore raise on purpose: refused, or failed, and nothing was left that looks whole."""


class NoBackup(BackupError):
    """There is no backup, or none of that group, chain or point."""


class BackupDamaged(BackupError):
    """What lies in the backup is not what was written there, or a piece of it is missing."""


class SourceBroken(BackupError):
    """The broker went away, or its log changed, while it was read. Another try may go well."""
