"""A wall clock that steps when told to, of tandemmq.chaos: under the name that tests here know it by."""

from tandemmq.chaos.faults.clocks import SteppingClock

__all__ = ["SteppingClock"]
