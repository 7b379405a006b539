"""What will happen in a run, drawn before it begins: steps of faults, as a file that can be replayed.

Times are relative: a step begins when the cluster is whole again and has been under load for a while, so that a
slow machine gets the same faults as a quick one. Whom a fault meets is a role, resolved when it fires.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

Role = Literal["master", "slave", "controller", "replicas", "all"]
Value = str | int | float


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of a step. after_s: since the step's first; with: what its kind wants to know."""

    kind: str
    victim: Role
    lasts_s: float
    after_s: float = 0.0
    with_: dict[str, Value] = msgspec.field(default_factory=dict, name="with")

    def __str__(self) -> str:
        how = "".join(f" {key}={value}" for key, value in self.with_.items())
        later = f" {self.after_s:g} s later" if self.after_s else ""
        return f"{self.kind} of {self.victim}{how} for {self.lasts_s:g} s{later}"


class Step(msgspec.Struct, frozen=True):
    """Faults that belong together. calm_s: load on a whole cluster before them."""

    calm_s: float
    faults: tuple[Planned, ...]

    def __str__(self) -> str:
        return f"after {self.calm_s:g} s of load: " + ", ".join(map(str, self.faults))


class Schedule(msgspec.Struct, frozen=True):
    """All of a run.

    stage      what the scenario needs of the machine (tandemmq.chaos.scenarios.catalog)
    workloads  beside the traffic (tandemmq.chaos.scenarios.workloads)
    """

    scenario: str
    seed: int
    mode: str
    replicas: int
    stage: str
    steps: tuple[Step, ...]
    workloads: tuple[str, ...] = ()

    @property
    def faults(self) -> int:
        return sum(len(step.faults) for step in self.steps)

    def write(self, path: Path) -> None:
        """As JSON, one that read() takes again."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Schedule:
        """Raises OSError, msgspec.ValidationError, msgspec.DecodeError."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
