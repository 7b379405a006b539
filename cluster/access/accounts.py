"""Accounts of plain_acl.yml and conf/acl/*.yml: ACL 1.0, as RocketMQ had it until 5.3.2. Core; yaml.py reads the files.

What a request needs is the same table as in 2.0 (needs.py): PUB and SUB are what an account can be given, everything
administrative is for accounts with `admin: true`. Source: RocketMQ's PlainPermissionManager, AclUtils.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tandemmq.cluster.access.rights import Action, Need, ResourceKind

KEY_CHARACTERS_MIN: Final = 7
ACCOUNTS_MAX: Final = 100_000
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

Perm = frozenset[Action]
DENY: Final[Perm] = frozenset()
PERMS: Final[Mapping[str, Perm]] = {
    "DENY": DENY,
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}
EXPECTED_PERMS: Final = "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."

HostTest = Callable[[str], bool]


class PlainAccount(NamedTuple):
    """One account of a file. white: addresses whose requests are taken for the account's unsigned."""

    access_key: str
    secret_key: str
    white: tuple[HostTest, ...] = ()
    admin: bool = False
    default_topic: Perm = DENY
    default_group: Perm = DENY
    topics: Mapping[str, Perm] = {}
    groups: Mapping[str, Perm] = {}

    def __repr__(self) -> str:
        return f"PlainAccount({self.access_key!r})"  # never the secret key

    def refusal(self, need: Need) -> str | None:
        """Why this account may not; None where it may."""
        if self.admin:
            return None
        wanted = need.actions
        if need.kind is ResourceKind.TOPIC and need.name is not None:
            if need.name == TRACE_TOPIC and Action.PUB in wanted:
                return None
            allowed = self.topics.get(need.name, self.default_topic)
            may = wanted & allowed or (Action.GET in wanted and allowed)
            listed = need.name in self.topics
        elif need.kind is ResourceKind.GROUP and need.name is not None:
            allowed = self.groups.get(need.name, self.default_group)
            may = Action.SUB in allowed and wanted & {Action.SUB, Action.GET}
            listed = need.name in self.groups
        else:
            return f"Need admin permission for {need.text}, but accessKey={self.access_key} is not"
        if may:
            return None
        if not wanted & {Action.PUB, Action.SUB, Action.GET}:
            return f"Need admin permission for {need.text}, but accessKey={self.access_key} is not"
        name = f"{need.kind.name.lower()}:{need.name}"
        return f"No {'' if listed else 'default '}permission for {name}"


class Accounts(NamedTuple):
    """What all files say together. The first definition of a key counts."""

    by_key: Mapping[str, PlainAccount]
    white: tuple[HostTest, ...] = ()

    def is_white(self, host: str) -> bool:
        return any(test(host) for test in self.white)


NOBODY: Final = Accounts({})


class PlainFile(NamedTuple):
    """What one file says, and what is wrong with it without being fatal."""

    accounts: tuple[PlainAccount, ...]
    white: tuple[HostTest, ...]
    notes: tuple[str, ...] = ()


def read_file(tree: Any) -> PlainFile:
    """The accounts in what a YAML file holds. Raises ValueError, without secrets, where a file must not be used."""
    if tree is None:
        return PlainFile((), ())
    if not isinstance(tree, dict):
        raise ValueError("it is no table of settings")
    notes: list[str] = []
    white = tuple(host_test(text) for text in _texts(tree, "globalWhiteRemoteAddresses"))
    listed = tree.get("accounts") or []
    if not isinstance(listed, list) or len(listed) > ACCOUNTS_MAX:
        raise ValueError("accounts is no list of accounts")
    return PlainFile(tuple(_account(each, notes) for each in listed), white, tuple(notes))


def joined(files: Iterable[PlainFile]) -> tuple[Accounts, list[str]]:
    """All files together, in the order that they are read in; keys that were defined before."""
    by_key: dict[str, PlainAccount] = {}
    white: list[HostTest] = []
    again: list[str] = []
    for file in files:
        white += file.white
        for account in file.accounts:
            if account.access_key in by_key:
                again.append(account.access_key)
            else:
                by_key[account.access_key] = account
    return Accounts(by_key, tuple(white)), again


def _account(found: Any, notes: list[str]) -> PlainAccount:
    if not isinstance(found, dict):
        raise ValueError("an account is no table of settings")
    key, secret = _text(found.get("accessKey")), _text(found.get("secretKey"))
    if len(key) < KEY_CHARACTERS_MIN or len(secret) < KEY_CHARACTERS_MIN:
        raise ValueError(
            f"The accessKey={key[:64]} and its secretKey cannot be null and length should longer than 6"
        )

    def perm(text: str, of: str) -> Perm:
        known = PERMS.get(text)
        if known is None and text:
            notes.append(f"accessKey={key} {of}: {text[:64]!r} is taken for DENY. {EXPECTED_PERMS}")
        return known or DENY

    def perms(member: str) -> dict[str, Perm]:
        table: dict[str, Perm] = {}
        for line in _texts(found, member):
            name, equals, text = line.partition("=")
            if not equals or not name.strip():
                raise ValueError(f"Parse Resource format error for {line[:64]}.")
            table.setdefault(name.strip(), perm(text.strip(), name.strip()))
        return table

    return PlainAccount(
        key,
        secret,
        tuple(host_test(text) for text in _split(_text(found.get("whiteRemoteAddress")))),
        _text(found.get("admin")).lower() == "true",
        perm(_text(found.get("defaultTopicPerm")), "defaultTopicPerm"),
        perm(_text(found.get("defaultGroupPerm")), "defaultGroupPerm"),
        perms("topicPerms"),
        perms("groupPerms"),
    )


def _text(value: Any) -> str:
    """A YAML scalar as the text that RocketMQ makes of it: 012345670 is an octal number to YAML."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ValueError("a list or a table stands where a text belongs")


def _texts(table: Mapping[Any, Any], member: str) -> list[str]:
    found = table.get(member)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ValueError(f"{member} is no list")
    return [text for each in found if (text := _text(each))]


# -- addresses

_STAR: Final = re.compile(r"\*|\*(\.\*){3}|\*(:\*){7}").fullmatch
_PARTS: Final = re.compile(r"[,\s]*([^,{\s]+(?:\{[^}]*\})?)").findall


def _split(text: str) -> list[str]:
    """A comma between patterns, but not within braces."""
    found = _PARTS(text)
    if text.strip() and not found:
        raise ValueError(f"Netaddress examine Exception netaddress is {text[:64]}")
    return list(found)


def host_test(pattern: str) -> HostTest:
    """Whether a peer's address is one that is meant: `*`, an address, 10.0.0.*, 10.0.0.1-20, 10.0.0.{1,2}, or the like
    of IPv6. Raises ValueError."""
    tests = [_one_host(part) for part in _split(pattern)]
    if len(tests) == 1:
        return tests[0]
    return lambda host: any(test(host) for test in tests)


def _one_host(pattern: str) -> HostTest:
    if _STAR(pattern):
        return lambda host: True
    try:
        address = ipaddress.ip_address(pattern)
    except ValueError:
        pass
    else:
        return lambda host: _address(host) == address
    wide = ":" in pattern
    parts = pattern.split(":" if wide else ".")
    if len(parts) != (8 if wide else 4):
        raise ValueError(f"Netaddress examine Exception netaddress is {pattern[:64]}")
    ranges = [
        _numbers(part, 16 if wide else 10, 0xFFFF if wide else 255, pattern) for part in parts
    ]

    def test(host: str) -> bool:
        found = _address(host)
        if found is None or (found.version == 6) != wide:
            return False
        said = found.exploded.split(":" if wide else ".")
        numbers = [int(part, 16 if wide else 10) for part in said]
        return all(number in allowed for number, allowed in zip(numbers, ranges, strict=True))

    return test


def _numbers(part: str, base: int, most: int, pattern: str) -> Sequence[int] | frozenset[int]:
    try:
        if part == "*":
            return range(most + 1)
        if part.startswith("{") and part.endswith("}"):
            found: Sequence[int] | frozenset[int] = frozenset(
                int(each, base) for each in part[1:-1].split(",")
            )
        else:
            low, dash, high = part.partition("-")
            found = range(int(low, base), int(high if dash else low, base) + 1)
        if found and min(found) >= 0 and max(found) <= most:
            return found
    except ValueError:
        pass
    raise ValueError(f"Netaddress examine Exception netaddress is {pattern[:64]}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
