"""Faults as async context managers: entering does it and shows its effect, leaving heals it and shows that, too."""

from tandemmq.chaos.faults.fault import Fault, FaultStory, NoEffect, NotHealed, Unsupported

__all__ = ["Fault", "FaultStory", "NoEffect", "NotHealed", "Unsupported"]
