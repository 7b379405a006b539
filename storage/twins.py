"""The one rule that picks compiled code or its readable twin.

A module that has a compiled form imports the readable one, and calls compiled() below. TANDEM_PURE_PYTHON in the
environment, or a build without a compiler, leaves it as it is: slower, never different.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

PURE: Final = bool(os.environ.get("TANDEM_PURE_PYTHON"))


def compiled(namespace: dict[str, Any], module: str) -> bool:
    """Put the functions and classes of a compiled module in the place of their readable twins.

    namespace  globals() of the module that imported the twins; what it does not have stays out
    Whether it was done. An ImportError inside of the compiled module is a build without it.
    """
    if PURE:
        return False
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    last = module.rpartition(".")[2]
    for name, value in vars(found).items():
        # not what it imports itself: that says another module
        if name in namespace and getattr(value, "__module__", "").rpartition(".")[2] == last:
            namespace[name] = value
    return True
