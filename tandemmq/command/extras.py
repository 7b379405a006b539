"""What parts of the command need beyond a light install, and what to install for them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from tandemmq.command.exits import CommandFailed, ExitCode

#: what the extra `server` brings; without uvloop, which servers do without elsewhere than on Linux
SERVER_MODULES: Final = ("aiohttp", "crc32c", "cryptography", "xxhash", "yaml")
INSTALL_SERVER: Final = "pip install 'tandemmq[server]'"


def need_server(command: str) -> None:
    """Raises CommandFailed (MISSING) where the server's packages are not installed. Imports nothing."""
    absent = [name for name in SERVER_MODULES if find_spec(name) is None]
    if absent:
        raise CommandFailed(
            f"`{command}` needs the server's packages, and {', '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} not installed: {INSTALL_SERVER}",
            ExitCode.MISSING,
        )
