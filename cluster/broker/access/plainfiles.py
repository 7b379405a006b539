"""plain_acl.yml and conf/acl/*.yml on the disk: read at the start, looked at every 5 s, edited by requests 50 to 53.

What cannot be read changes nothing: the accounts of before stay, and the log says so loudly. Source: RocketMQ's
PlainPermissionManager, AclFileWatchService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tandemmq.cluster.access.accounts import (
    EXPECTED_PERMS,
    KEY_CHARACTERS_MIN,
    PERMS,
    Accounts,
    PlainFile,
    host_test,
    joined,
    read_file,
)
from tandemmq.storage import jsonfile

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # RocketMQ looks as often
FILE_BYTES_MAX: Final = 1 << 20
FILES_MAX: Final = 1_000
_TOOLS: Final = "tools.yml"  # of the command line: no accounts of brokers

_Seen = tuple[int, int, int]  # of a file: time of its last change in ns, bytes, inode


class EditRefused(ValueError):
    """A change of accounts that is not made, in RocketMQ's words. No secret is in it."""


class PlainFiles:
    """The accounts as files say.

    path     plain_acl.yml; files below acl/ beside it are read before it, and of a key given twice the first counts
    changed  called with all accounts whenever the files say something else
    """

    def __init__(self, path: Path, changed: Callable[[Accounts], None]) -> None:
        self.path = path
        self._changed = changed
        self._read: dict[Path, PlainFile] = {}
        self._seen: dict[Path, _Seen | None] = {}
        self._editing = asyncio.Lock()
        self.failures = 0

    def load(self) -> None:
        """Read all files; at the start one that cannot be read stops it. Raises ValueError naming the file, OSError."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(self.path, "xb"):
                pass
        for path in self._paths():
            self._seen[path] = _look(path)
            self._read[path] = self._parsed(path)
        self._publish()

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take over what changed since the last look."""
        async with self._editing:
            self._take(await asyncio.to_thread(self._changes))

    def _take(self, changes: Mapping[Path, PlainFile | None]) -> None:
        """None: the file is gone."""
        if not changes:
            return
        for path, file in changes.items():
            if file is None:
                self._read.pop(path, None)
                self._seen.pop(path, None)
            else:
                self._read[path] = file
        self._publish()

    def _changes(self) -> dict[Path, PlainFile | None]:
        """Of files that changed, what they say; those that cannot be read are named in the log and left out."""
        found: dict[Path, PlainFile | None] = {}
        try:
            paths = self._paths()
        except OSError as problem:
            self._failed(self.path.parent, problem)
            return found
        for path in paths:
            seen = _look(path)
            if seen is None or seen == self._seen.get(path):
                continue
            self._seen[path] = seen
            try:
                found[path] = self._parsed(path)
            except (OSError, ValueError) as problem:
                self._failed(path, problem)
        gone = self._seen.keys() - set(paths)
        return found | dict.fromkeys(gone)

    def _failed(self, path: Path, problem: Exception) -> None:
        self.failures += 1
        log.error(
            "accounts not read, those of before stay in force: correct the file path=%s why=%s",
            path,
            problem,
        )

    def _paths(self) -> list[Path]:
        """Files in the order in which they count. Raises OSError."""
        below: list[Path] = []
        for directory, _, names in os.walk(self.path.parent / "acl"):
            below += [
                Path(directory, name)
                for name in names
                if name.endswith((".yml", ".yaml")) and name != _TOOLS
            ]
        return [*sorted(below)[:FILES_MAX], self.path]

    def _parsed(self, path: Path) -> PlainFile:
        file = read_file(_tree(path))
        for note in file.notes:
            log.warning("odd account path=%s %s", path, note)
        return file

    def _publish(self) -> None:
        accounts, again = joined(self._read[path] for path in sorted(self._read, key=self._order))
        for key in again[:20]:
            log.warning("account defined again, the first definition counts accessKey=%s", key)
        log.info(
            "accounts loaded files=%d accounts=%d white=%d",
            len(self._read), len(accounts.by_key), len(accounts.white),
        )  # fmt: skip
        self._changed(accounts)

    def _order(self, path: Path) -> tuple[bool, Path]:
        return path == self.path, path

    # -- changes by request

    async def put_account(self, given: Mapping[str, Any]) -> None:
        """Request 50: members given take the place of those that are there. Raises EditRefused, OSError."""

        def edit(tree: dict[str, Any]) -> bool:
            accounts = tree.setdefault("accounts", [])
            for account in accounts:
                if str(account.get("accessKey")) == given["accessKey"]:
                    account.update(given)
                    return True
            if path == self.path:
                accounts.append(dict(given))
            return path == self.path

        _check_account(given)
        async with self._editing:
            path = self._path_of(given["accessKey"])
            await self._edit(path, edit)

    async def delete_account(self, access_key: str) -> bool:
        """Request 51; whether there was one. Raises EditRefused, OSError."""

        def edit(tree: dict[str, Any]) -> bool:
            accounts = tree.get("accounts") or []
            tree["accounts"] = [
                each for each in accounts if str(each.get("accessKey")) != access_key
            ]
            return len(tree["accounts"]) < len(accounts)

        async with self._editing:
            return await self._edit(self._path_of(access_key), edit)

    async def put_white(self, addresses: list[str], path: str = "") -> None:
        """Request 53. path: of one of the files that were read. Raises EditRefused, OSError."""
        for address in addresses:
            try:
                host_test(address)
            except ValueError as problem:
                raise EditRefused(str(problem)) from None

        def edit(tree: dict[str, Any]) -> bool:
            tree["globalWhiteRemoteAddresses"] = addresses
            return True

        target = Path(path) if path else self.path
        async with self._editing:
            if target not in self._read:
                raise EditRefused(f"{path[:256]} is no file of accounts")
            await self._edit(target, edit)

    def versions(self) -> dict[str, dict[str, Any]]:
        """Of each file the version that edits have given it."""
        return {str(path): _version(path) for path in sorted(self._read, key=self._order)}

    def _path_of(self, access_key: str) -> Path:
        """The file that defines a key; a new one comes into the main file."""
        for path in sorted(self._read, key=self._order):
            if any(account.access_key == access_key for account in self._read[path].accounts):
                return path
        return self.path

    async def _edit(self, path: Path, edit: Callable[[dict[str, Any]], bool]) -> bool:
        """Change a file and take it over; comments in it are lost, as at RocketMQ. Raises EditRefused, OSError."""

        def work() -> PlainFile | None:
            tree = _tree(path) or {}
            if not isinstance(tree, dict):
                raise EditRefused("the file of accounts cannot be read")
            if not edit(tree):
                return None
            versions = tree.get("dataVersion") or [{}]
            counter = versions[0].get("counter", 0) if isinstance(versions[0], dict) else 0
            tree["dataVersion"] = [{"counter": int(counter) + 1, "timestamp": _now_ms(path)}]
            file = read_file(tree)
            _write(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode())
            return file

        try:
            file = await asyncio.to_thread(work)
        except (yaml.YAMLError, AttributeError, TypeError, KeyError) as problem:
            raise EditRefused("the file of accounts cannot be read") from problem
        except EditRefused:
            raise
        except ValueError as problem:
            raise EditRefused(str(problem)) from None
        if file is None:
            return False
        self._seen[path] = _look(path)
        self._take({path: file})
        return True


def _check_account(given: Mapping[str, Any]) -> None:
    key, secret = given.get("accessKey", ""), given.get("secretKey", "")
    if len(key) < KEY_CHARACTERS_MIN or len(secret) < KEY_CHARACTERS_MIN:
        raise EditRefused(
            f"The accessKey={key[:64]} and its secretKey cannot be null and length should longer than 6"
        )
    for member in ("defaultTopicPerm", "defaultGroupPerm"):
        if given.get(member, "DENY") not in PERMS:
            raise EditRefused(f"Parse permission error for {member}. {EXPECTED_PERMS}")
    for line in (*given.get("topicPerms", ()), *given.get("groupPerms", ())):
        name, equals, perm = line.partition("=")
        if not equals or not name.strip():
            raise EditRefused(
                f"Parse Resource format error for {line[:64]}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        if perm.strip() not in PERMS:
            raise EditRefused(f"Parse resource permission error for {line[:64]}.\n{EXPECTED_PERMS}")
    try:
        host_test(given.get("whiteRemoteAddress") or "*")
    except ValueError as problem:
        raise EditRefused(str(problem)) from None


def _tree(path: Path) -> Any:
    """What a YAML file holds. Raises ValueError, without the file's text in it, and OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        return yaml.safe_load(data)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 0
        raise ValueError(f"it is no YAML, at line {line}") from None
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ):
        raise ValueError("it is no YAML") from None


def _write(path: Path, data: bytes) -> None:
    """Raises OSError."""
    jsonfile.write_atomically(path, data, mode=path.stat().st_mode & 0o777)


def _look(path: Path) -> _Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _now_ms(path: Path) -> int:
    seen = _look(path)
    return seen[0] // 1_000_000 if seen is not None else 0


def _version(path: Path) -> dict[str, Any]:
    try:
        tree = _tree(path)
        found = tree["dataVersion"][0]
        return {"counter": int(found["counter"]), "timestamp": int(found["timestamp"])}
    except (ValueError, OSError, TypeError, KeyError, IndexError):
        return {"counter": 0, "timestamp": 0}
