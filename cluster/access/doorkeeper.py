"""The gate as a process has it: asked by every connection, it answers who is turned away, and names them in the log.

Shell over gate.py. No line has a secret or a signature in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from tandemmq.cluster.access.gate import Gate, UserGuard
from tandemmq.cluster.access.rights import AccessRefused
from tandemmq.cluster.access.signature import ACCESS_KEY
from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.access.users import UserDirectory
from tandemmq.cluster.logs import OnceEach
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection

log = logging.getLogger(__name__)

REMARK_CHARACTERS_MAX: Final = 512
_NAME_CHARACTERS_MAX: Final = 80


class Doorkeeper:
    """Lets requests in, or answers them.

    opened   codes that everybody may ask
    """

    def __init__(
        self, gate: Gate, monotonic_ms: Callable[[], int], opened: Collection[int] = ()
    ) -> None:
        self.gate = gate
        self._opened = frozenset(opened)
        self._first = OnceEach(monotonic_ms)

    def __call__(self, command: Command, connection: Connection) -> Command | None:
        """The refusal of a request; None where it may go on to its handler."""
        if command.code in self._opened:
            return None
        try:
            self.gate.check(command, connection.peer[0])
        except AccessRefused as refusal:
            self._note(command, connection, refusal)
            return command.reply(refusal.code, refusal.remark[:REMARK_CHARACTERS_MAX])
        return None

    def _note(self, command: Command, connection: Connection, refusal: AccessRefused) -> None:
        user = (command.ext or {}).get(ACCESS_KEY, "")[:_NAME_CHARACTERS_MAX]
        if not self._first((connection.peer[0], command.code, user)):
            return
        log.warning(
            "access refused request=%s user=%r peer=%s why=%s suppressed=%d",
            request_name(command.code),
            user,
            connection.address,
            refusal.remark.partition("\n")[0][:REMARK_CHARACTERS_MAX],
            self._first.suppressed,
        )


def request_name(code: int) -> str:
    """The name of a request code, or its number."""
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


class _NoMessages:
    """Facts of a process that keeps none."""

    cluster = ""

    def topic_of(self, offset: int) -> str | None:
        return None


def super_keeper(
    config: AccessConfig,
    served: Collection[int],
    opened: Collection[int],
    monotonic_ms: Callable[[], int],
) -> Doorkeeper | None:
    """Of a name server or a controller, which knows the users of its settings alone: those of clients are the brokers'.
    None where nobody is asked who they are.

    served   codes that have a handler; those that are not opened are for Super users
    Raises ConfigError.
    """
    if not config.authentication:
        return None
    config.check()
    users = UserDirectory()
    for user in config.users:
        users.ensure(user)
    guard = UserGuard(users, {}, _NoMessages(), rights=False)
    return Doorkeeper(Gate((guard,), served.__contains__), monotonic_ms, opened)
