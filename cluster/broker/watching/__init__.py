"""What the broker tells of itself: counts, metrics, runtime table, refusals and its HTTP port.

Nothing here decides anything: parts are read, never changed.
"""
