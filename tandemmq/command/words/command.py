"""What one command is: its name, its help, its options, and the function that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: `function` of tandemmq.`module` takes the arguments, returns an ExitCode.

    server  whether it needs more than a light install has: the extra `server`
    """

    name: str
    module: str
    function: str
    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    server: bool = False
