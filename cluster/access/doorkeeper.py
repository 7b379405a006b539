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
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection

log = logging.getLogger(__name__)

SILENT_MS: Final = 60_000  # a client is named again for the same request when so long is over
CLIENTS_MAX: Final = 100  # named in that time; of what comes above only the number is said
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
        self._monotonic_ms = monotonic_ms
        self._opened = frozenset(opened)
        self._until_ms = 0
        self._named: set[tuple[str, int, str]] = set()
        self._suppressed = 0

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
        now_ms = self._monotonic_ms()
        if now_ms >= self._until_ms:
            self._until_ms = now_ms + SILENT_MS
            self._named.clear()
        user = (command.ext or {}).get(ACCESS_KEY, "")[:_NAME_CHARACTERS_MAX]
        client = connection.peer[0], command.code, user
        if client in self._named or len(self._named) >= CLIENTS_MAX:
            self._suppressed += 1
            return
        self._named.add(client)
        log.warning(
            "access refused request=%s user=%r peer=%s why=%s suppressed=%d",
            request_name(command.code),
            user,
            connection.address,
            refusal.remark.partition("\n")[0][:REMARK_CHARACTERS_MAX],
            self._suppressed,
        )
        self._suppressed = 0


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
) -> Doorkeeper:
    """Of a name server or a controller, which knows the users of its settings alone: those of clients are the brokers'.

    served   codes that have a handler; those that are not opened are for Super users
    Raises ConfigError.
    """
    config.check()
    users = UserDirectory()
    for user in config.users:
        users.ensure(user)
    guard = UserGuard(users, {}, _NoMessages(), rights=False)
    return Doorkeeper(Gate((guard,), served.__contains__), monotonic_ms, opened)
