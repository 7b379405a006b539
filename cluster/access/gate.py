"""The question that each request is asked where it enters a process: who are you, and may you? Core.

First who asks, then whether anybody answers such requests here (3 where nobody does), then whether this one may. What
the handler sees afterwards has no signature in it: a handler that passes fields on passes none on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from tandemmq.cluster.access.accounts import NOBODY, Accounts, PlainAccount
from tandemmq.cluster.access.needs import Facts, Row, check_fields, is_for_super, only_super
from tandemmq.cluster.access.rights import AccessRefused, Need, ResourceKind
from tandemmq.cluster.access.signature import ACCESS_KEY, SECRET_FIELDS, AccessUser, is_signed
from tandemmq.cluster.access.users import UserDirectory
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command

DECISIONS_KEPT: Final = 10_000
_ACCOUNT_CODES: Final = range(50, 55)
_PLAIN: Final = "org.apache.rocketmq.acl.common.AclException: "
_NOT_NAMED: Final = "username cannot be null."
_NO_RIGHTS: Final = "Authorization failed. Please verify your access rights and try again."
_NOBODYS_KEY: Final = "nobody's"  # a tag is computed for unknown names too: it takes as long

#: why requests were refused, for metrics: no other values
REASONS: Final = ("unnamed", "unknown", "disabled", "signature", "rights")


class Turned(AccessRefused):
    """A refusal, with the one of REASONS that it is counted under."""

    def __init__(self, code: int, remark: str, reason: str) -> None:
        super().__init__(code, remark)
        self.reason = reason


class Guard(Protocol):
    """One generation of access control."""

    def identify(self, command: Command, host: str) -> object:
        """Who asks. Raises Turned."""

    def admit(self, who: object, command: Command, host: str) -> None:
        """Let them through. Raises AccessRefused."""

    def may(self, name: str, need: Need, host: str) -> bool:
        """See Gate.may."""


class Gate:
    """Asks every guard.

    guards   in this order: the first that refuses answers
    served   whether this process has a handler for a code
    turned   how often somebody was refused, by reason
    """

    def __init__(self, guards: Collection[Guard], served: Callable[[int], bool]) -> None:
        self._guards = tuple(guards)
        self._served = served
        self.turned: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def check(self, command: Command, host: str) -> AccessUser | None:
        """Pass, or AccessRefused with what is answered. Who asks, where users are known (2.0)."""
        try:
            found = [(guard, guard.identify(command, host)) for guard in self._guards]
            if self._served(command.code):
                check_fields(command)
                for guard, who in found:
                    guard.admit(who, command, host)
        except AccessRefused as refusal:
            self.turned[refusal.reason if isinstance(refusal, Turned) else "rights"] += 1
            raise
        if command.ext:
            for field in SECRET_FIELDS:
                command.ext.pop(field, None)
        return next((who for _, who in found if isinstance(who, AccessUser)), None)

    def allows(self, command: Command, host: str) -> bool:
        """Whether check() would let a request pass that has a handler here; nothing is counted."""
        try:
            for guard in self._guards:
                guard.admit(guard.identify(command, host), command, host)
        except AccessRefused:
            return False
        return True

    def may(self, name: str, need: Need, host: str) -> bool:
        """Whether somebody who was let in may do this, too: of what is sent to clients no request of theirs speaks.

        name   the AccessKey of their request; empty where none was asked for
        """
        return all(guard.may(name, need, host) for guard in self._guards)


class UserGuard:
    """2.0: users who sign, and their rules.

    rows          what each code needs; a code without a row is for Super users
    rights        whether rules are looked at; what is for Super users is for them in any case
    unsigned      codes that need no signature (authenticationWhitelist); nobody is known then
    without_rules codes that need no rules (authorizationWhitelist)
    """

    def __init__(
        self,
        users: UserDirectory,
        rows: Mapping[int, Row],
        facts: Facts,
        *,
        rights: bool,
        unsigned: Collection[int] = (),
        without_rules: Collection[int] = (),
    ) -> None:
        self._users = users
        self._rows = rows
        self._facts = facts
        self._rights = rights
        self._unsigned = frozenset(unsigned)
        self._without_rules = frozenset(without_rules)
        self._decided: dict[tuple[str, Need, str], str | None] = {}

    def forget(self) -> None:
        """Users or rules changed: what was decided is decided again."""
        self._decided.clear()

    def identify(self, command: Command, host: str) -> AccessUser | None:
        if command.code in self._unsigned:
            return None
        ext = command.ext or {}
        name = ext.get(ACCESS_KEY, "")
        if not name:
            raise Turned(ResponseCode.NO_PERMISSION, _NOT_NAMED, "unnamed")
        user = self._users.find(name)
        signed = is_signed(ext, command.body, user.password if user else _NOBODYS_KEY)
        if user is None:
            raise Turned(ResponseCode.NO_PERMISSION, f"User:{name} is not found.", "unknown")
        if not user.is_enabled:
            raise Turned(ResponseCode.NO_PERMISSION, f"User:{name} is disabled.", "disabled")
        if not signed:
            raise Turned(ResponseCode.NO_PERMISSION, "check signature failed.", "signature")
        return user

    def admit(self, who: object, command: Command, host: str) -> None:
        if isinstance(who, AccessUser) and who.is_super:
            return
        row = self._rows.get(command.code, only_super)
        if is_for_super(row, command):
            cluster = Need(ResourceKind.CLUSTER, self._facts.cluster, frozenset())
            raise _not_allowed(who, cluster, host, "no matched policies.")
        if not self._rights or command.code in self._without_rules:
            return
        if not isinstance(who, AccessUser):
            raise AccessRefused(ResponseCode.NO_PERMISSION, _NO_RIGHTS)
        for need in row(command, self._facts):
            why = self._refusal(who, need, host)
            if why is not None:
                raise _not_allowed(who, need, host, why)

    def may(self, name: str, need: Need, host: str) -> bool:
        user = self._users.find(name)
        if user is None:
            return not name
        allowed = user.is_super or not self._rights or self._refusal(user, need, host) is None
        return user.is_enabled and allowed

    def _refusal(self, user: AccessUser, need: Need, host: str) -> str | None:
        asked = user.name, need, host
        try:
            return self._decided[asked]
        except KeyError:
            pass
        rules = self._users.rules_of(user.name)
        why = "no matched policies." if rules is None else rules.refusal(need, host)
        if len(self._decided) >= DECISIONS_KEPT:
            self._decided.clear()
        self._decided[asked] = why
        return why


def _not_allowed(who: object, need: Need, host: str, why: str) -> AccessRefused:
    name = who.name if isinstance(who, AccessUser) else ""
    remark = f"User:{name} has no permission to access {need.text} from {host}, {why}"
    return AccessRefused(ResponseCode.NO_PERMISSION, remark)


class AccountGuard:
    """1.0: accounts of YAML files. What it refuses has code 1.

    accounts   as the files say now; replaced as a whole
    """

    def __init__(self, rows: Mapping[int, Row], facts: Facts) -> None:
        self.accounts: Accounts = NOBODY
        self._rows = rows
        self._facts = facts

    def identify(self, command: Command, host: str) -> PlainAccount | None:
        ext = command.ext or {}
        if self.accounts.is_white(host) and command.code not in _ACCOUNT_CODES:
            return None
        key = ext.get(ACCESS_KEY, "")
        if not key:
            raise _turned("No accessKey is configured", "unnamed")
        account = self.accounts.by_key.get(key)
        signed = is_signed(ext, command.body, account.secret_key if account else _NOBODYS_KEY)
        if account is None:
            raise _turned(f"No acl config for {key}", "unknown")
        if not signed and (
            command.code in _ACCOUNT_CODES or not any(test(host) for test in account.white)
        ):
            raise _turned(f"Check signature failed for accessKey={key}", "signature")
        return account

    def admit(self, who: object, command: Command, host: str) -> None:
        if not isinstance(who, PlainAccount) or who.admin:
            return  # nobody but an account, or who comes from a white address, got this far
        row = self._rows.get(command.code, only_super)
        if is_for_super(row, command):
            need = f"Need admin permission for request code={command.code}"
            raise _turned(f"{need}, but accessKey={who.access_key} is not", "rights")
        try:
            refusals = [who.refusal(need) for need in row(command, self._facts)]
        except AccessRefused as refusal:
            raise _turned(refusal.remark, "rights") from None
        for why in filter(None, refusals):
            raise _turned(why, "rights")

    def may(self, name: str, need: Need, host: str) -> bool:
        account = self.accounts.by_key.get(name)
        if self.accounts.is_white(host):
            return True
        return account is not None and account.refusal(need) is None


def _turned(remark: str, reason: str) -> Turned:
    return Turned(ResponseCode.SYSTEM_ERROR, _PLAIN + remark, reason)
