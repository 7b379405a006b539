"""What the command says of words that it does not know."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence

from tandemmq.command.exits import CommandFailed, ExitCode


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for something near, else nothing. Case does not count."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.65)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def check_words(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Name a command or a long option that does not exist, before argparse misses something else.

    Raises CommandFailed (USAGE).
    """
    rest = list(argv)
    while rest and (groups := _groups(parser)):
        if rest[0].startswith("-"):
            break
        word = rest.pop(0)
        known = groups[0].choices
        if word not in known:
            kind = (groups[0].metavar or "command").lower()  # type: ignore[union-attr]
            hint = (
                _one_level_down(word, known)
                or did_you_mean(word, known)
                or f"; `{parser.prog} --help` names them"
            )
            raise CommandFailed(f"there is no {kind} {word!r}{hint}", ExitCode.USAGE)
        parser = known[word]
    if "-" not in parser.prefix_chars:
        return  # it reads its words itself
    options = list(parser._option_string_actions)
    for word in rest:
        if word == "--":
            return
        name = word.partition("=")[0]
        if word.startswith("--") and not any(each.startswith(name) for each in options):
            long = [each for each in options if each.startswith("--")]
            hint = did_you_mean(name, long) or f"; see `{parser.prog} --help`"
            raise CommandFailed(f"there is no option {name}{hint}", ExitCode.USAGE)


def _one_level_down(word: str, known: Mapping[str, argparse.ArgumentParser]) -> str:
    """`; did you mean X?` for what is a word of one of these commands."""
    for command in known.values():
        for group in _groups(command):
            if word in group.choices:
                return f"; did you mean `{command.prog} {word}`?"
    return ""


def _groups(
    parser: argparse.ArgumentParser,
) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
