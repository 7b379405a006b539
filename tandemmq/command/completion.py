"""`tandem completion SHELL`: a script that completes commands, options and their choices.

Words and options are written out, so that completing them starts no Python. Names of topics, groups
and processes are asked for: `tandem complete KIND` tells them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tandemmq.admin.commands import COMMANDS as ADMIN_COMMANDS
from tandemmq.admin.commands import admin_parser
from tandemmq.command.cli import ADMIN, command_parser
from tandemmq.command.exits import ExitCode

#: what an argument that is shown so stands for -> KIND of `tandem complete`
KINDS: Final = {"TOPIC": "topics", "GROUP": "groups", "NAME": "processes"}


@dataclass(frozen=True, slots=True)
class Place:
    """What may follow after some words: subcommands with their summaries, and options.

    choices  option -> the values it takes; an option with a free value has none
    kinds    option -> KIND of the names it takes
    kind     KIND of the names that the first argument takes, "" for others
    """

    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    kinds: tuple[tuple[str, str], ...] = ()
    kind: str = ""


def run_completion(arguments: argparse.Namespace) -> ExitCode:
    """Print the script."""
    places = list(_places())
    print({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](places), end="")
    return ExitCode.OK


def _places() -> Iterator[Place]:
    for place in _walk(command_parser(), ()):
        if place.words != (ADMIN,):
            yield place
    names = tuple((each.name, each.summary) for each in ADMIN_COMMANDS.values())
    yield next(_walk(admin_parser(None), (ADMIN,), names))
    for command in ADMIN_COMMANDS.values():
        yield from _walk(admin_parser(command), (ADMIN, command.name))


def _walk(
    parser: argparse.ArgumentParser,
    words: tuple[str, ...],
    commands: tuple[tuple[str, str], ...] = (),
) -> Iterator[Place]:
    options: list[tuple[str, str]] = []
    choices: list[tuple[str, tuple[str, ...]]] = []
    kinds: list[tuple[str, str]] = []
    kind = ""
    groups: list[argparse._SubParsersAction[argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            groups.append(action)
        elif action.help != argparse.SUPPRESS:
            options += [(option, action.help or "") for option in action.option_strings]
            named = KINDS.get(str(action.metavar), "") if words != (ADMIN,) else ""
            if named and action.option_strings:
                kinds += [(option, named) for option in action.option_strings]
            elif named:
                kind = kind or named
            if action.choices is not None and action.option_strings:
                values = tuple(map(str, action.choices))
                choices += [(option, values) for option in action.option_strings]
            elif action.choices is not None:
                commands += tuple((str(value), "") for value in action.choices)
    for group in groups:
        commands += tuple((each.dest, each.help or "") for each in group._choices_actions)
    yield Place(words, commands, tuple(options), tuple(choices), tuple(kinds), kind)
    for group in groups:
        for name, found in group.choices.items():
            yield from _walk(found, (*words, name))


def bash(places: list[Place]) -> str:
    """For bash 4 and later."""
    lines = ["# tandem completion bash", "_tandem() {", _BASH_HEAD]
    for place in places:
        names = [name for name, _ in (*place.commands, *place.options)]
        lines.append(f"    {_key(place)!r}) words={' '.join(names)!r}")
        if place.kind:
            words = f'"$words $(tandem complete {place.kind} 2>/dev/null)"'
            lines.append(f"""      [ "$previous" != "${{path##* }}" ] || words={words}""")
        if place.choices or place.kinds:
            lines.append('      case "$previous" in')
            lines += [f"        {o}) words={' '.join(v)!r} ;;" for o, v in place.choices]
            lines += [f'        {o}) words="$({_asked(kind)})" ;;' for o, kind in place.kinds]
            lines.append("      esac")
        lines.append("      ;;")
    return "\n".join([*lines, _BASH_TAIL])


_BASH_HEAD = """  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local path="" words="" word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in -*) break ;; esac
    case "$path" in local|admin) path="$path $word"; break ;; "") path="$word" ;; *) break ;; esac
  done
  case "$path" in"""

_BASH_TAIL = """  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _tandem tandem
"""


def zsh(places: list[Place]) -> str:
    """For zsh; the file is named _tandem and lies in a directory of $fpath."""
    lines = ["#compdef tandem", "_tandem() {", _ZSH_HEAD]
    for place in places:
        lines.append(f"    {_key(place)!r})")
        if place.choices or place.kinds:
            lines.append('      case "$words[CURRENT-1]" in')
            lines += [f"        {o}) compadd -- {' '.join(v)}; return ;;" for o, v in place.choices]
            lines += [f"        {o}) compadd -- $({_asked(k)}); return ;;" for o, k in place.kinds]
            lines.append("      esac")
        if place.kind:
            lines.append(
                f'      [ "$words[CURRENT-1]" != "${{place##* }}" ] || compadd -- $({_asked(place.kind)})'
            )
        for kind, entries in (("commands", place.commands), ("options", place.options)):
            if entries:
                shown = " ".join(_zsh_entry(name, text) for name, text in entries)
                lines.append(f"      {kind}=({shown}); _describe {kind[:-1]} {kind}")
        lines.append("      ;;")
    return "\n".join([*lines, "  esac\n  _files\n}\ncompdef _tandem tandem\n"])


_ZSH_HEAD = """  local place="" word
  local -a commands options
  for word in ${words[2,CURRENT-1]}; do
    case "$word" in -*) break ;; esac
    case "$place" in local|admin) place="$place $word"; break ;; "") place="$word" ;; *) break ;; esac
  done
  case "$place" in"""


def _zsh_entry(name: str, text: str) -> str:
    return _quoted(f"{name}:{text}" if text else name)


def fish(places: list[Place]) -> str:
    """For fish 3 and later."""
    lines = ["# tandem completion fish", _FISH_HEAD]
    for place in places:
        lines += [
            f"complete -c tandem -n {_quoted(f'__tandem_at {_quoted(_key(place))}')} {what}"
            for what in _fish_entries(place)
        ]
    return "\n".join(lines) + "\n"


_FISH_HEAD = """function __tandem_at
  set -l place
  for word in (commandline -opc)[2..-1]
    string match -q -- '-*' $word; and break
    set place $place $word
    test (count $place) -ge 2; and break
    contains -- $word local admin; or break
  end
  test "$place" = "$argv[1]"
end"""


def _fish_entries(place: Place) -> Iterator[str]:
    choices = {name: " ".join(values) for name, values in place.choices}
    choices |= {name: f"({_asked(kind)})" for name, kind in place.kinds}
    if place.kind:
        yield f"-f -a {_quoted(f'({_asked(place.kind)})')}"
    for name, text in place.commands:
        yield f"-f -a {name} -d {_quoted(text)}"
    for name, text in place.options:
        kind = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
        values = f" -x -a {_quoted(choices[name])}" if name in choices else ""
        yield f"{kind}{values} -d {_quoted(text)}"


def _asked(kind: str) -> str:
    return f"tandem complete {kind} 2>/dev/null"


def _key(place: Place) -> str:
    return " ".join(place.words)


def _quoted(text: str) -> str:
    """In single quotes, without what would end them."""
    return "'" + text.replace("\\", "").replace("'", "").replace("\n", " ") + "'"
