"""A disk that fails when told to, of tandemmq.chaos: under the name that tests here know it by."""

from tandemmq.chaos.faults.failing_disk import FailingDisk, compiler

__all__ = ["FailingDisk", "compiler"]
