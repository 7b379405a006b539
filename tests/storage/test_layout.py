"""Compiled modules that share structs over _record.pxd are built together or do not start."""

from __future__ import annotations

import zlib
from importlib import import_module
from pathlib import Path

import pytest

import tandemmq.storage
from tandemmq.storage.codec import COMPILED

DECLARATIONS = Path(tandemmq.storage.__file__).parent / "_record.pxd"


def test_layout_number_changes_with_the_declarations() -> None:
    lines = DECLARATIONS.read_text().splitlines()
    (stated,) = [line.split("=")[1].strip() for line in lines if "LAYOUT =" in line]
    others = "\n".join(line for line in lines if "LAYOUT =" not in line)
    wanted = f"0x{zlib.crc32(others.encode()) & 0x7FFFFFFF:08X}"
    assert stated == wanted, f"write LAYOUT = {wanted} and build every compiled module anew"


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_module_built_over_other_declarations_does_not_start() -> None:
    compiled = import_module("tandemmq.storage._record")
    compiled.check_layout(compiled.layout, "tandemmq.storage._derive")
    with pytest.raises(RuntimeError, match="not built together"):
        compiled.check_layout(compiled.layout ^ 1, "tandemmq.storage._derive")
