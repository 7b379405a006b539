"""Callgrind's files, read: instructions by the stage of a message's way that they belong to. No I/O but reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

#: of which compiled module or library a function is -> the stage; the first that is found in the object's path counts
OBJECTS: Final = (
    ("/_sendpath.", "parse and answer"),
    ("/_pullpath.", "parse and answer"),
    ("/_record.", "record, checksum, copy"),
    ("/_derive.", "queues and index"),
    ("/_reading.", "read"),
    ("isal", "checksum"),
    ("libcrypto", "checksum"),
    ("python", "interpreter"),
    ("uvloop", "interpreter"),
)
OTHER: Final = "libc and the rest"
_NAMED: Final = re.compile(r"^(ob|fl|fi|fe|fn|cob|cfi|cfl|cfn)=\((\d+)\)(?: (.*))?$")
_COST: Final = re.compile(r"^[+\-*\d]\S* (\d+)")


def stage_of(path: str) -> str:
    return next((stage for part, stage in OBJECTS if part in path), OTHER)


def dumped(path: Path) -> tuple[str, Counter[str]]:
    """The name that a dump was given, and its instructions by stage. Source: valgrind's manual, "Callgrind Format"."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return read(lines)


def read(lines: Iterable[str]) -> tuple[str, Counter[str]]:
    found: Counter[str] = Counter()
    objects: dict[str, str] = {}
    trigger, stage = "", OTHER
    of_callee = False  # the line behind calls= is what the callee took: it is counted there
    for line in _bare(lines):
        if line.startswith("desc: Trigger: Client Request: "):
            trigger = line.rpartition(": ")[2]
        elif (name := _NAMED.match(line)) is not None:
            kind, number, text = name.groups()
            if kind in ("ob", "cob"):
                objects.setdefault(number, text or "")
            if kind == "ob":
                stage = stage_of(objects[number])
        elif line.startswith("calls="):
            of_callee = True
        elif (cost := _COST.match(line)) is not None:
            if not of_callee:
                found[stage] += int(cost[1])
            of_callee = False
    return trigger, found


def _bare(lines: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\n") for line in lines)
