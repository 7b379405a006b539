"""The options of an admin command as parameters of a request, and back: one table, the command's own parser. Core.

Names are the command's long options (`topic`, `brokerAddr`); values are checked by the same parser as on the command
line, so that both take and refuse the same.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tandemmq.admin.shape import AdminCommand, on_or_off
from tandemmq.command.hints import did_you_mean
from tandemmq.plane.problems import ApiProblem

#: options by their dest that make sense at a terminal alone: a file of the machine that answers is nobody's business
OF_THE_COMMAND_LINE: Final = frozenset({"interval", "directory", "password_file"})
#: an option that names a file there takes the file's content here
CONTENTS: Final = frozenset({"file"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option over HTTP.

    name     the long option without its dashes
    dest     where the parser puts it
    schema   what it takes, as JSON Schema
    flag     it has no value on the command line
    """

    name: str
    dest: str
    schema: Mapping[str, Any]
    required: bool
    help: str
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """All that a command takes over HTTP. either: groups of which at most one, or exactly one, may be given."""

    all: tuple[Parameter, ...]
    either: tuple[tuple[tuple[str, ...], bool], ...]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.all]


class GivenFile:
    """What stands for a file of the command line: its content came with the request."""

    def __init__(self, name: str, content: object) -> None:
        self._name = name
        self._content = json.dumps(content).encode()

    def read_bytes(self) -> bytes:
        return self._content

    def __str__(self) -> str:
        return self._name


class _Parser(argparse.ArgumentParser):
    """Says what is wrong by an exception instead of an exit."""

    def error(self, message: str) -> NoReturn:
        raise ApiProblem(400, message, f"GET /api/admin says what {self.prog} takes")


@functools.cache
def _parser(command: AdminCommand) -> argparse.ArgumentParser:
    made = _Parser(prog=command.name, add_help=False, allow_abbrev=False)
    command.arguments(made)
    return made


@functools.cache
def parameters(command: AdminCommand) -> Parameters:
    """What a command takes, in the order of its help."""
    parser = _parser(command)
    found = tuple(
        _parameter(action)
        for action in parser._actions
        if action.dest not in OF_THE_COMMAND_LINE and action.help != argparse.SUPPRESS
    )
    either = tuple(
        (tuple(_long(action) for action in group._group_actions), group.required)
        for group in parser._mutually_exclusive_groups
        if not {action.dest for action in group._group_actions} & OF_THE_COMMAND_LINE
    )
    return Parameters(found, either)


def _long(action: argparse.Action) -> str:
    return next(each for each in action.option_strings if each.startswith("--"))[2:]


def _parameter(action: argparse.Action) -> Parameter:
    flag = isinstance(action, argparse._StoreTrueAction)
    schema: dict[str, Any] = {"type": "string"}
    if flag or action.type is on_or_off:
        schema = {"type": "boolean"}
    elif action.dest in CONTENTS:
        schema = {"type": "array", "items": {"type": "object"}}
    elif action.type in (int, float):
        schema = {"type": "integer" if action.type is int else "number"}
    if action.choices is not None:
        schema["enum"] = list(action.choices)
    if action.default not in (None, (), ""):
        schema["default"] = action.default
    text = action.help or _from_metavar(action)
    return Parameter(_long(action), action.dest, schema, action.required, text, flag)


def _from_metavar(action: argparse.Action) -> str:
    return action.metavar if isinstance(action.metavar, str) else ""


def parse(command: AdminCommand, given: Mapping[str, object]) -> argparse.Namespace:
    """What a command is run with. Raises ApiProblem (400) naming the parameter and what it takes."""
    known = {each.name: each for each in parameters(command).all}
    words: list[str] = []
    contents: dict[str, GivenFile] = {}
    for name, value in given.items():
        parameter = known.get(name)
        if parameter is None:
            hint = did_you_mean(name, known).removeprefix("; ") or f"it takes {_listed(known)}"
            raise ApiProblem(400, f"{command.name} has no parameter {name!r}", hint)
        if parameter.dest in CONTENTS:
            contents[parameter.dest] = GivenFile(name, _content(name, value))
            words.append(f"--{name}={name}")
        elif parameter.flag:
            if on_or_off_of(name, value):
                words.append(f"--{name}")
        else:
            words.append(f"--{name}={_text(name, value)}")
    arguments = _parser(command).parse_args(words)
    for dest, content in contents.items():
        setattr(arguments, dest, content)
    return arguments


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) if names else "none"


def _content(name: str, value: object) -> object:
    if not isinstance(value, list):
        raise ApiProblem(400, f"{name} takes an array", "send it in a JSON body, with POST")
    return value


def on_or_off_of(name: str, value: object) -> bool:
    """A switch: true or false, as JSON or as text. Raises ApiProblem."""
    try:
        return value if isinstance(value, bool) else on_or_off(str(value))
    except argparse.ArgumentTypeError as problem:
        raise ApiProblem(400, f"{name}: {problem}") from None


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
        return ",".join(map(str, value))
    raise ApiProblem(400, f"{name} takes text, a number, true or false")


def usage(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else "".join(names)
