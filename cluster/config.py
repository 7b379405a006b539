"""The only reader of settings files and of the environment.

Java's properties dialect, and typed settings from it.
"""

from __future__ import annotations

import difflib
import enum
import functools
import ipaddress
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

log = logging.getLogger(__name__)

Properties = dict[str, str]
Settings = TypeVar("Settings", bound=msgspec.Struct)

#: the environment's default for namesrvAddr
NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"

_HEX = re.compile(r"[0-9a-fA-F]{4}").fullmatch
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_WORDS = ("true", "false")


class ConfigError(Exception):
    """A setting that stops the start: its key, the value found, and what is allowed instead."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key}={value}: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


# -- Java properties -------------------------------------------------------------------


def read_properties(path: Path) -> Properties:
    """The settings of a file, in the file's order; of a key given twice the later value.

    Raises ConfigError when the file cannot be read or holds a broken escape.
    """
    try:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise ConfigError("file", str(path), error.strerror or str(error)) from error
    return parse_properties(text)


def parse_properties(text: str) -> Properties:
    """Settings from text in Java's properties dialect.

    `key=value`, `key: value` or `key value`; `#` and `!` start a comment only at the start of a
    line; a line that ends with a backslash goes on; \\t, \\n, \\r, \\f and \\uXXXX are escapes,
    any other escaped character stands for itself. Blanks at the end of a value belong to it and
    are dropped when it is used.
    """
    found: Properties = {}
    for line in _logical_lines(text):
        end = _key_end(line)
        key, rest = line[:end], line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        found[_unescape(key)] = _unescape(rest)
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """Settings as sorted text that parse_properties reads back.

    No value can smuggle in another line.
    """
    return "".join(
        f"{_escape(key, key=True)}={_escape(properties[key])}\n" for key in sorted(properties)
    )


def edit_properties_file(path: str | Path, changes: Mapping[str, str]) -> None:
    """Give keys of a settings file new values; comments and all other lines stay as they are.

    A key that the file lacks is added at its end. The former file becomes PATH.bak, and who may read them stays.
    Raises OSError. Blocks.
    """
    target = Path(path)
    lines = re.split(r"\r\n|\r|\n", target.read_bytes().decode("latin-1").rstrip("\r\n"))
    pending = dict(changes)
    kept: list[str] = []
    position = 0
    while position < len(lines):
        end = position + 1
        while end < len(lines) and _goes_on(lines[end - 1]):
            end += 1
        entry = lines[position:end]
        key = next(iter(parse_properties("\n".join(entry))), None)
        if key in changes:  # of a key given twice the last line counts: keep one
            if key in pending:
                kept.append(format_properties({key: pending.pop(key)}).rstrip("\n"))
        else:
            kept += entry
        position = end
    text = "".join(line + "\n" for line in kept) + format_properties(pending)
    mode = target.stat().st_mode & 0o777  # it may hold passwords
    fresh = target.with_name(target.name + ".new")
    _write(target.with_name(target.name + ".bak"), target.read_bytes(), mode)
    _write(fresh, text.encode("latin-1"), mode)
    fresh.replace(target)


def _write(path: Path, data: bytes, mode: int) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), mode)  # before there is anything to read
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _goes_on(line: str) -> bool:
    stripped = line.lstrip(_BLANKS)
    if stripped[:1] in ("#", "!"):
        return False
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _logical_lines(text: str) -> Iterator[str]:
    pending: list[str] = []  # parts of one line, each without the backslash that made it go on
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = natural.lstrip(_BLANKS)
        if not pending and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            if len(stripped) > 1:
                pending.append(stripped[:-1])
            continue
        pending.append(stripped)
        yield "".join(pending)
        pending.clear()
    if pending:
        yield "".join(pending)


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            out.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(4))
            if _HEX(digits) is None:
                raise ConfigError("file", text, r"\u needs four hexadecimal digits")
            out.append(chr(int(digits, 16)))
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # Two escapes may have been one character from outside the basic plane.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, key: bool = False) -> str:
    out = text.replace("\\", "\\\\")
    for letter, character in _ESCAPES.items():
        out = out.replace(character, "\\" + letter)
    if key:
        for special in "=: ":
            out = out.replace(special, "\\" + special)
    if out[:1] in ("#", "!", " "):
        out = "\\" + out
    return "".join(c if ord(c) < 256 else _escaped(c) for c in out)


def _escaped(character: str) -> str:
    """One character outside Latin-1 as one \\uXXXX, or as two from outside the basic plane."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


# -- typed settings --------------------------------------------------------------------


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def keys_of(*kinds: type[msgspec.Struct]) -> dict[str, str]:
    """RocketMQ's key -> the field's name inside, for every field of some settings structs that a file may set.

    One without a key of its own is the caller's to set: never read from a file, never shown.
    """
    fields = (field for kind in kinds for field in _fields(kind))
    return {each.encode_name: each.name for each in fields if each.encode_name != each.name}


def key_of(kind: type[msgspec.Struct], name: str) -> str:
    """RocketMQ's key of the field that is called `name` inside."""
    return next(field.encode_name for field in _fields(kind) if field.name == name)


def parse_settings(
    kind: type[Settings],
    properties: Mapping[str, str],
    *,
    also_known: Collection[str] = (),
    **fixed: Any,
) -> Settings:
    """Build one settings struct from properties.

    properties   RocketMQ key -> text; blanks around values are dropped
    also_known   keys that something else reads; any other key that `kind` lacks is warned about,
                 and ignored
    fixed        fields by their inside name, set by the caller whatever the properties say
    Raises ConfigError naming key, value and what is allowed.
    """
    values: dict[str, Any] = dict(fixed)
    known = set(also_known)
    for field in _fields(kind):
        if field.name in fixed:
            continue
        known.add(field.encode_name)
        text = properties.get(field.encode_name)
        if text is None:
            continue
        _warn_of_comment(field.encode_name, text)
        values[field.name] = convert_setting(field.encode_name, text, field.type)
    for key in properties:
        if key not in known:
            _warn_of_unknown(key, known)
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(kind.__name__, "", str(error)) from error
    except TypeError as error:
        raise ConfigError(kind.__name__, "", f"a required setting is missing: {error}") from error


def convert_setting(key: str, text: str, kind: Any) -> Any:
    """One value of a settings file as the type of its field."""
    value: Any = text.strip()
    lower = value.lower()
    # to look at a type costs more than all the rest of a setting
    if lower != value and lower in _WORDS and isinstance(inspect.type_info(kind), inspect.BoolType):
        value = lower
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(key, text, f"must be {describe_type(kind)}") from error


def describe_type(kind: Any) -> str:
    """What a field takes, as a sentence ends: `must be ...`."""
    match inspect.type_info(kind):
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=ge, gt=gt, le=le, lt=lt):
            return "a whole number" + _bounds(ge, gt, le, lt)
        case inspect.FloatType(ge=ge, gt=gt, le=le, lt=lt):
            return "a number" + _bounds(ge, gt, le, lt)
        case inspect.EnumType(cls=members):
            return "one of " + ", ".join(_text_of(member) for member in members)
        case _:
            return "text"


def settings_in_force(parts: Iterable[msgspec.Struct], secrets: Collection[str]) -> Properties:
    """Every setting of some structs by its key; secrets are masked."""
    found = {
        key: setting_text(getattr(part, name))
        for part in parts
        for key, name in keys_of(type(part)).items()
    }
    return masked(found, secrets)


def masked(settings: Mapping[str, str], secrets: Collection[str]) -> Properties:
    """The settings without what is handed out to nobody."""
    return {key: "******" if text and key in secrets else text for key, text in settings.items()}


def setting_text(value: Any) -> str:
    """A field's value as it is written in a settings file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return _text_of(value)
    return str(value)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there; a name that must be looked up: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _text_of(member: enum.Enum) -> str:
    return str(member.value)


def _bounds(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    parts = [
        f"{word} {bound}"
        for word, bound in (("at least", ge), ("above", gt), ("at most", le), ("below", lt))
        if bound is not None
    ]
    return " " + " and ".join(parts) if parts else ""


def _warn_of_unknown(key: str, known: Collection[str]) -> None:
    near = difflib.get_close_matches(key, known, n=1)
    log.warning("unknown setting ignored key=%s%s", key, f" did_you_mean={near[0]}" if near else "")


def _warn_of_comment(key: str, text: str) -> None:
    if " #" in text or "\t#" in text:
        log.warning(
            "a comment behind a value is part of it key=%s value=%s hint=put it on its own line",
            key,
            text,
        )
