"""A run without a history has shown nothing, and that is a failure."""

from __future__ import annotations


class HistoryMissing(Exception):
    """There is no history, or nothing was acknowledged in it."""
