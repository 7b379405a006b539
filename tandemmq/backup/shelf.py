"""The chains of one broker group in a place: GROUP/CHAIN/NUMBER.json, and a directory of files beside each."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tandemmq.backup.chain import check_chain
from tandemmq.backup.errors import BackupDamaged, BackupError, NoBackup
from tandemmq.backup.manifest import Manifest, SavedTable, decode
from tandemmq.backup.places import Place

_MANIFEST: Final = re.compile(r"[0-9]{8}\.json", re.ASCII).fullmatch
_RUN: Final = re.compile(r"([0-9]{8})-[0-9A-Za-z]+", re.ASCII).fullmatch
_CHAIN: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{4}", re.ASCII).fullmatch
_GROUP_TEXT: Final = re.compile(r"[%|a-zA-Z0-9_.-]+", re.ASCII).fullmatch


@dataclass(slots=True)
class Shelf:
    """What a place holds of one group.

    chains    by name, each in order and without a gap
    damaged   by name: what is wrong with a chain, and the increments in front of that
    leftover  directories of increments that were never finished, as paths
    """

    group: str
    chains: dict[str, list[Manifest]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    leftover: list[str] = field(default_factory=list)

    def newest(self) -> Manifest | None:
        """The last increment of the newest chain. Raises BackupDamaged when that chain is damaged."""
        names = sorted([*self.chains, *self.damaged])
        if not names:
            return None
        if names[-1] in self.damaged:
            raise BackupDamaged(
                f"{self.damaged[names[-1]]}: --full begins another chain, and leaves this one as it is"
            )
        return self.chains[names[-1]][-1]


def group_directory(group: str) -> str:
    """A group's directory. Raises BackupError for a name that is none."""
    if not _GROUP_TEXT(group) or group.startswith("."):
        raise BackupError(f"{group!r} cannot be the name of a directory: name it with --group")
    return group


def groups_of(place: Place) -> list[str]:
    """The groups that have a chain, whole or not."""
    return [
        each.name
        for each in place.listing("")
        if each.directory and any(_CHAIN(inner.name) for inner in place.listing(each.name))
    ]


def one_group(place: Place, group: str) -> str:
    """The group that is meant. Raises NoBackup."""
    groups = groups_of(place)
    if group:
        if group not in groups:
            raise NoBackup(
                f"{place.name} holds no backup of {group}; there is {', '.join(groups) or 'none'}"
            )
        return group
    if not groups:
        raise NoBackup(f"{place.name} holds no backup")
    if len(groups) > 1:
        raise NoBackup(f"{place.name} holds backups of {', '.join(groups)}: choose with --group")
    return groups[0]


def read_shelf(place: Place, group: str) -> Shelf:
    """Every manifest of a group. Raises OSError."""
    shelf = Shelf(group)
    for chain in place.listing(group):
        if chain.directory and _CHAIN(chain.name):
            _read_chain(place, shelf, chain.name)
    return shelf


def _read_chain(place: Place, shelf: Shelf, name: str) -> None:
    found: list[tuple[str, Manifest]] = []
    directory = f"{shelf.group}/{name}"
    runs: list[str] = []
    problem = ""
    for each in place.listing(directory):
        where = f"{directory}/{each.name}"
        if each.directory and _RUN(each.name):
            runs.append(each.name)
        elif not each.directory and _MANIFEST(each.name) and not problem:
            try:
                found.append((where, decode(b"".join(place.chunks(where)), where)))
            except BackupDamaged as damaged:
                problem = str(damaged)
    try:
        manifests = check_chain(found)
    except BackupDamaged as damaged:
        problem = problem or str(damaged)
        manifests = _whole_part(found)
    known = {manifest.directory for manifest in manifests}
    if problem:
        shelf.damaged[name] = problem
    elif not found:
        shelf.leftover.append(directory)
    else:
        shelf.leftover += [f"{directory}/{run}" for run in runs if run not in known]
    if manifests:
        shelf.chains[name] = manifests


def _whole_part(found: list[tuple[str, Manifest]]) -> list[Manifest]:
    """As many increments from the first on as belong together."""
    ordered = sorted(found, key=lambda each: each[1].number)
    for count in range(len(ordered), 0, -1):
        with contextlib.suppress(BackupDamaged):
            return check_chain(ordered[:count])
    return []


def path_of(manifest: Manifest, file: str) -> str:
    """Where a file of an increment lies in its place."""
    return f"{manifest.group}/{manifest.chain}/{manifest.directory}/{file}"


def read_checked(place: Place, path: str, size: int, sha256: str) -> Iterator[bytes]:
    """A file's bytes as they come; raises BackupDamaged at the latest when it is through: whoever takes
    them must not believe them before. Raises OSError."""
    hashed = hashlib.sha256()
    count = 0
    try:
        for data in place.chunks(path):
            count += len(data)
            hashed.update(data)
            if count > size:
                break
            yield data
    except FileNotFoundError:
        raise BackupDamaged(f"{place.name}: {path} is missing") from None
    if count != size:
        raise BackupDamaged(f"{place.name}: {path} has {count} bytes, {size} were written")
    if hashed.hexdigest() != sha256:
        raise BackupDamaged(f"{place.name}: {path} is not what was written: wrong checksum")


def read_table(place: Place, manifest: Manifest, table: SavedTable) -> bytes:
    """Raises BackupDamaged, OSError."""
    path = path_of(manifest, table.file)
    return b"".join(read_checked(place, path, table.size, table.sha256))
