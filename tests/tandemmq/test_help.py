"""Every command's --help shows an example."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from tandemmq.admin import commands as admin
from tandemmq.audit import commands as audit
from tandemmq.command import cli


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands, which must have a help of their own."""
    if parser.add_help:
        yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


HELPS = {
    each.prog: each
    for top in (
        cli.command_parser(),
        audit._parser(),
        admin.admin_parser(None),
        *(admin.admin_parser(command) for command in admin.COMMANDS.values()),
    )
    for each in parsers(top)
}


@pytest.mark.parametrize("name", HELPS)
def test_help_of_every_command_shows_an_example(name: str) -> None:
    assert f"  {name}" in (HELPS[name].epilog or "").partition("example")[2], name
