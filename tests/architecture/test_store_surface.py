"""What other packages may ask of storage: its public names, and of a store what its own methods say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tandemmq.storage

ROOT = Path(__file__).parents[2]
OTHERS = sorted(
    path
    for folder in ("replication", "cluster", "chaos", "tandemmq", "bench", "docs")
    for path in (ROOT / folder).rglob("*.py*")
    if path.suffix in {".py", ".pyx"}
)
STORAGE = "tandemmq.storage"
#: deeper modules that others may import
PUBLIC_MODULES = {
    "_record",  # C over pointers, for the other compiled modules: cimport knows no packages' names
    "twins",  # the rule that picks compiled forms, for every package
    "settings",  # how structs of settings name their keys, every package's
    "derivation",  # the inner loop of dispatch, with which the audit derives what a store ought to hold
}
#: what others may call methods of: a part that is a table or a state, with rules of its own
OPEN_PARTS = {
    "burials",
    "config",
    "clock",
    "flags",
    "recovered",
    "stats",
    "tombstones",
    "checkpoint",
}
#: what others may hand on or go over as a whole, and not look into
CLOSED_PARTS = {
    "dispatcher", "durability", "index", "log", "log_files", "log_tail", "put_rules", "queues", "reader", "retention",
}  # fmt: skip
#: they prove storage from within: a harness of power cuts, and measurements of its parts
LOOKS_INSIDE = re.compile(r"chaos/powercut/|chaos/sim/|bench/")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Modules and names of storage that a source imports, without `tandemmq.storage.`"""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        names = re.findall(rf"^\s*(?:from|c?import) {STORAGE}\.(\w+)", text, re.M)
        taken = re.findall(rf"^\s*from {STORAGE} import (\w+)", text, re.M)
        return {*names, *taken}
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == STORAGE:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{STORAGE}."):
            found.add((node.module or "").removeprefix(f"{STORAGE}."))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix(f"{STORAGE}.")
                for alias in node.names
                if alias.name.startswith(f"{STORAGE}.")
            }
    return found


def part_of(node: ast.AST) -> str:
    """`log` of `self._store.log`; "" for what is no part of a store."""
    if not isinstance(node, ast.Attribute):
        return ""
    holder = node.value
    name = (
        holder.attr
        if isinstance(holder, ast.Attribute)
        else holder.id
        if isinstance(holder, ast.Name)
        else ""
    )
    known = node.attr in OPEN_PARTS | CLOSED_PARTS
    return node.attr if known and name.lstrip("_").endswith("store") else ""


def reaches(text: str) -> list[tuple[int, str, bool]]:
    """(line, attribute of a store's part, whether it is assigned)."""
    return [
        (node.lineno, ast.unparse(node), not isinstance(node.ctx, ast.Load))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and part_of(node.value)
    ]


def test_others_import_public_names_of_storage() -> None:
    public = {*tandemmq.storage.__all__, *PUBLIC_MODULES}
    found = {name_of(path): imported(path) - public for path in OTHERS}
    assert len(found) > 400
    assert not {name: beyond for name, beyond in found.items() if beyond}


def test_others_assign_nothing_in_a_store_and_ask_the_store_itself() -> None:
    closed = re.compile(rf"store\.({'|'.join(CLOSED_PARTS)})\.")
    assigned, looked = [], []
    for path in OTHERS:
        if path.suffix != ".py":
            continue
        name = name_of(path)
        harness = "chaos/powercut/" in name  # its disk is as full, its night as near as it says
        for line, what, assigns in reaches(path.read_text(encoding="utf-8")):
            if assigns and not harness:
                assigned.append(f"{name}:{line}: {what}")
            if closed.search(what) and not LOOKS_INSIDE.match(name):
                looked.append(f"{name}:{line}: {what}")
    assert not assigned
    assert not looked


def test_a_reach_into_a_store_is_seen() -> None:
    found = reaches(
        "self._store.dispatcher.position = 0\nx = store.log.end\nfor q in store.queues: pass\n"
    )
    assert found == [
        (1, "self._store.dispatcher.position", True),
        (2, "store.log.end", False),
    ]
