"""Users and their rules, and every change that requests make of them, with RocketMQ's refusals. Core.

Source: RocketMQ's AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl and AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tandemmq.cluster.access.accounts import Accounts, Perm
from tandemmq.cluster.access.rights import (
    AccessRefused,
    Action,
    Decision,
    Reach,
    ResourceKind,
    Rule,
    RuledResource,
    Rules,
    merged,
    read_policy_kind,
    read_resource,
    read_rule,
)
from tandemmq.cluster.access.signature import AccessUser
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import ResponseCode

SUBJECT: Final = "User:"
USERS_MAX: Final = 100_000
RULES_MAX: Final = 10_000  # of one user
NAME_CHARACTERS_MAX: Final = 1_024
PASSWORD_CHARACTERS_MAX: Final = 4_096
_NO: Final = ResponseCode.NO_PERMISSION
_BAD: Final = ResponseCode.INVALID_PARAMETER


class UserBody(msgspec.Struct):
    """Body of 3001 and 3002; absent members keep what is there."""

    username: str | None = None
    password: str | None = None
    userType: str | None = None
    userStatus: str | None = None


class RuleBody(msgspec.Struct):
    """One entry of a policy, as 3006 brings it and files keep it."""

    resource: str | None = None
    actions: list[str] | None = None
    sourceIps: list[str] | None = None
    decision: str | None = None


class PolicyBody(msgspec.Struct):
    """A policy on the wire."""

    policyType: str | None = None
    entries: list[RuleBody] | None = None


class RulesBody(msgspec.Struct):
    """Body of 3006 and 3007."""

    subject: str | None = None
    policies: list[PolicyBody] | None = None


class _Saved(msgspec.Struct):
    users: list[UserBody] = msgspec.field(default_factory=list)
    acls: list[RulesBody] = msgspec.field(default_factory=list)


class UserDirectory:
    """Users and rules in memory.

    changed   called after every change, with the names of the users that it was of
    """

    def __init__(self, changed: Callable[[Iterable[str]], None] = lambda names: None) -> None:
        self._users: dict[str, AccessUser] = {}
        self._rules: dict[str, Rules] = {}
        self.changed = changed

    def __len__(self) -> int:
        return len(self._users)

    def find(self, name: str) -> AccessUser | None:
        return self._users.get(name)

    def rules_of(self, name: str) -> Rules | None:
        return self._rules.get(name)

    @property
    def has_super(self) -> bool:
        return any(user.is_super and user.is_enabled for user in self._users.values())

    def ensure(self, user: AccessUser) -> bool:
        """Have this user unless the name is known; whether a known one has another password."""
        known = self._users.get(user.name)
        if known is not None:
            return known.password != user.password
        self._users[user.name] = user
        self.changed([user.name])
        return False

    # -- users

    def create_user(self, name: str | None, body: UserBody, by: AccessUser | None) -> None:
        """3001. by: who asks; None with nobody's rights. Raises AccessRefused."""
        name = _username(name)
        if not body.password or not body.password.strip():
            raise AccessRefused(_NO, "password can not be blank")
        if len(name) > NAME_CHARACTERS_MAX or len(body.password) > PASSWORD_CHARACTERS_MAX:
            raise AccessRefused(_BAD, "username or password is too long")
        is_super = _is_super(body.userType, False)
        _check_raise(is_super, by, "The super user can only be create by super user")
        if name in self._users:
            raise AccessRefused(_NO, "The user is existed")
        if len(self._users) >= USERS_MAX:
            raise AccessRefused(_NO, f"there are {USERS_MAX} users")
        enabled = _is_enabled(body.userStatus, True)
        self._users[name] = AccessUser(name, body.password, is_super, enabled)
        self.changed([name])

    def update_user(self, name: str | None, body: UserBody, by: AccessUser | None) -> None:
        """3002. Raises AccessRefused."""
        name = _username(name)
        is_super = _is_super(body.userType, False)
        _check_raise(is_super, by, "The super user can only be update by super user")
        known = self._users.get(name)
        if known is None:
            raise AccessRefused(_NO, "The user is not exist")
        _check_super(known, by)
        password = body.password if body.password and body.password.strip() else known.password
        if len(password) > PASSWORD_CHARACTERS_MAX:
            raise AccessRefused(_BAD, "password is too long")
        fresh = AccessUser(
            name,
            password,
            _is_super(body.userType, known.is_super),
            _is_enabled(body.userStatus, known.is_enabled),
        )
        if not (fresh.is_super and fresh.is_enabled):
            self._check_last(known)
        self._users[name] = fresh
        self.changed([name])

    def delete_user(self, name: str | None, by: AccessUser | None) -> None:
        """3003: the user and the rules; an unknown one is deleted already. Raises AccessRefused."""
        if not name or not name.strip():
            raise AccessRefused(_NO, "username can not be blank")
        known = self._users.get(name)
        if known is None:
            return
        _check_super(known, by)
        self._check_last(known)
        del self._users[name]
        self._rules.pop(name, None)
        self.changed([name])

    def _check_last(self, user: AccessUser) -> None:
        others = (u for u in self._users.values() if u.name != user.name)
        if (
            user.is_super
            and user.is_enabled
            and not any(u.is_super and u.is_enabled for u in others)
        ):
            raise AccessRefused(_NO, "The last super user can not be deleted, disabled or demoted.")

    def list_users(self, wanted: str | None) -> list[dict[str, str]]:
        """3005: those with `wanted` in their names, in order."""
        return [
            self._users[name].to_json() for name in sorted(self._users) if (wanted or "") in name
        ]

    # -- rules

    def put_rules(self, header_subject: str | None, body: RulesBody) -> str:
        """3006 and 3007, one operation: rules are merged by resource. The user's name. Raises AccessRefused."""
        if not body.policies:
            raise AccessRefused(_NO, "The body of acl is null")
        subject = body.subject or header_subject
        if header_subject and subject != header_subject:
            raise AccessRefused(_NO, "The subject of the header is not that of the body.")
        name = _subject(subject)
        if name not in self._users:
            raise AccessRefused(_NO, f"The subject of {subject} is not exist.")
        rules = self._rules.get(name, Rules())
        try:
            rules = _with_policies(rules, body.policies)
        except ValueError as problem:
            raise AccessRefused(_NO, str(problem)) from None
        if sum(map(len, rules)) > RULES_MAX:
            raise AccessRefused(_NO, f"a user may have {RULES_MAX} entries")
        self._rules[name] = rules
        self.changed([name])
        return name

    def delete_rules(self, subject: str | None, resource: str | None, policy: str | None) -> None:
        """3008: the rule for a resource, or without one all rules of the user. Raises AccessRefused."""
        name = _subject(subject)
        if name not in self._users:
            raise AccessRefused(_NO, "The subject is not exist.")
        rules = self._rules.get(name)
        if rules is None:
            raise AccessRefused(_NO, "The acl is not exist.")
        if not resource:
            del self._rules[name]
        else:
            found = read_resource(resource)
            if found is None:  # RocketMQ deletes all of them here
                raise AccessRefused(_NO, "The resource is null.")
            kind = read_policy_kind(policy)
            rules = rules.having(kind, (r for r in rules.of(kind) if r.resource != found))
            if any(rules):
                self._rules[name] = rules
            else:
                del self._rules[name]
        self.changed([name])

    def get_rules(self, subject: str | None) -> dict[str, Any] | None:
        """3009. Raises AccessRefused."""
        name = _subject(subject)
        if name not in self._users:
            raise AccessRefused(_NO, "The subject is not exist.")
        rules = self._rules.get(name)
        return None if rules is None else _rules_json(name, rules)

    def list_rules(self, subject: str | None, resource: str | None) -> list[dict[str, Any]]:
        """3010: by a part of the subject, and by a part of a rule's resource."""
        found = []
        for name in sorted(self._rules):
            key = SUBJECT + name
            if (subject or "") not in key:
                continue
            wanted = resource or ""
            shown = _rules_json(name, self._rules[name], "" if wanted in key else wanted)
            if shown["policies"]:
                found.append(shown)
        return found

    # -- accounts of ACL 1.0

    def migrate(self, accounts: Accounts) -> list[str]:
        """Make users of accounts whose names are not known; their names. White addresses are lost."""
        made = [account for key, account in accounts.by_key.items() if key not in self._users]
        for account in made:
            name = account.access_key
            self._users[name] = AccessUser(name, account.secret_key, account.admin)
            custom = [
                *_rules_of(ResourceKind.TOPIC, account.topics),
                *_rules_of(ResourceKind.GROUP, account.groups),
            ]
            default = [
                Rule(RuledResource(kind, Reach.KIND), perm, (), Decision.ALLOW)
                for kind, perm in (
                    (ResourceKind.TOPIC, account.default_topic),
                    (ResourceKind.GROUP, account.default_group),
                )
                if perm
            ]
            if custom or default:
                self._rules[name] = Rules(tuple(custom), tuple(default))
        if made:
            self.changed([account.access_key for account in made])
        return [account.access_key for account in made]

    # -- as a whole: files, and what slaves copy

    def to_json(self) -> dict[str, Any]:
        return {
            "acls": [_rules_json(name, rules) for name, rules in sorted(self._rules.items())],
            "users": [self._users[name].to_json() for name in sorted(self._users)],
        }

    def adopt(self, tree: Any) -> bool:
        """Become what another directory was as JSON; whether that is a change.

        Raises ValueError, AccessRefused; then nothing changed.
        """
        saved = bodies.shaped(_Saved, tree)
        users: dict[str, AccessUser] = {}
        rules: dict[str, Rules] = {}
        for each in saved.users:
            if not each.username or not each.password:
                raise ValueError("a user without a name or a password")
            users[each.username] = AccessUser(
                each.username,
                each.password,
                _is_super(each.userType, False),
                _is_enabled(each.userStatus, True),
            )
        for acl in saved.acls:
            name = (acl.subject or "").removeprefix(SUBJECT)
            if name in users:
                rules[name] = _with_policies(Rules(), acl.policies or [])
        if (users, rules) == (self._users, self._rules):
            return False
        touched = self._users.keys() | users.keys()
        self._users, self._rules = users, rules
        self.changed(touched)
        return True


def _rules_of(kind: ResourceKind, perms: Mapping[str, Perm]) -> Iterator[Rule]:
    for name, perm in perms.items():
        actions = perm or frozenset({Action.ALL})
        decision = Decision.ALLOW if perm else Decision.DENY
        yield Rule(RuledResource(kind, Reach.LITERAL, name), actions, (), decision)


def _with_policies(rules: Rules, policies: Iterable[PolicyBody]) -> Rules:
    """Raises ValueError with RocketMQ's words."""
    given = [policy for policy in policies if policy.entries]
    if not given:
        raise ValueError("The policies is empty.")
    for policy in given:
        kind = read_policy_kind(policy.policyType)
        fresh = [
            read_rule(each.resource, each.actions, each.sourceIps, each.decision)
            for each in policy.entries or ()
        ]
        rules = rules.having(kind, merged(rules.of(kind), fresh))
    return rules


def _rules_json(name: str, rules: Rules, wanted: str = "") -> dict[str, Any]:
    return {"policies": rules.policies_json(wanted), "subject": SUBJECT + name}


def _username(name: str | None) -> str:
    if not name:
        raise AccessRefused(_BAD, "The username is blank")
    if not name.strip():
        raise AccessRefused(_NO, "username can not be blank")
    return name


def _subject(subject: str | None) -> str:
    kind, colon, name = (subject or "").partition(":")
    if not colon or kind.lower() != "user" or not name:
        raise AccessRefused(_NO, "The subject is null.")
    return name


def _is_super(text: str | None, otherwise: bool) -> bool:
    return _one_of(text, {"super": True, "normal": False}, otherwise)


def _is_enabled(text: str | None, otherwise: bool) -> bool:
    return _one_of(text, {"enable": True, "disable": False}, otherwise)


def _one_of(text: str | None, words: Mapping[str, bool], otherwise: bool) -> bool:
    if not text:
        return otherwise
    found = words.get(text.lower())
    if found is None:
        raise AccessRefused(_BAD, f"{text[:64]} is none of {', '.join(words)}")
    return found


def _check_raise(is_super: bool, by: AccessUser | None, remark: str) -> None:
    if is_super and (by is None or not by.is_super):
        raise AccessRefused(ResponseCode.SYSTEM_ERROR, remark)


def _check_super(known: AccessUser, by: AccessUser | None) -> None:
    if known.is_super and (by is None or not by.is_super):
        raise AccessRefused(_NO, "The super user can only be update by super user")
