"""mqadmin's commands about users and rules of access control (ACL 2.0).

Passwords are shown only where they are asked for. TandemMQ's groups replicate users; for RocketMQ's each broker of the
cluster is told.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    broker_or_cluster,
    hash_table,
    missing,
    orders,
    targets,
    usage,
)

_USER_HEAD: Final = ["UserName", "Password", "UserType", "UserStatus"]
_RULE_HEAD: Final = ["Subject", "PolicyType", "Resource", "Actions", "SourceIp", "Decision"]
_MASK: Final = "******"
_PASSWORD_BYTES_MAX: Final = 4_096


async def _everywhere(call: Call) -> list[str]:
    """The broker of -b, else masters and then slaves of the cluster of -c."""
    if call.arguments.broker:
        return [call.arguments.broker]
    members = (await call.admin.cluster(call.arguments.cluster)).values()
    found = [(number, address) for each in members for number, address in each.addresses.items()]
    return [address for _, address in sorted(found)]


async def _changed(call: Call, what: str, change: Callable[[str], Awaitable[None]]) -> Shown:
    told = []
    for address in await _everywhere(call):
        await change(address)
        told.append(address)
    return Shown({"brokers": told}, "\n".join(f"{what} to {each} success." for each in told))


def _password(call: Call) -> str | None:
    """-p, or the first line of --password-file. Raises CommandFailed."""
    given, path = call.arguments.password, call.arguments.password_file
    if given is not None and path is not None:
        raise usage("give -p or --password-file, not both")
    if path is None:
        return None if given is None else str(given)
    try:
        if path == "-":
            text = sys.stdin.readline(_PASSWORD_BYTES_MAX)
        else:
            with Path(path).open(encoding="utf-8") as file:
                text = file.readline(_PASSWORD_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as problem:
        raise usage(f"--password-file: {problem}") from None
    if not text.strip():
        raise usage("--password-file: the first line is empty")
    return text.rstrip("\r\n")


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


# -- users


def _target(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)


def _user(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    parser.add_argument("-u", "--username", required=True, metavar="NAME")


def _secret(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--password", metavar="PASSWORD", help="seen by whoever sees processes"
    )
    parser.add_argument("--password-file", metavar="FILE", help="its first line; -: of stdin")


def _create_user_options(parser: argparse.ArgumentParser) -> None:
    _user(parser)
    _secret(parser)
    parser.add_argument("-t", "--userType", dest="kind", default="Normal", metavar="Normal|Super")


async def create_user(call: Call) -> Shown:
    """3001 to each broker."""
    name, password = call.arguments.username, _password(call)
    if password is None:
        raise usage("give -p or --password-file")
    return await _changed(
        call,
        "create user",
        lambda at: call.admin.create_user(at, name, password, kind=call.arguments.kind),
    )


def _update_user_options(parser: argparse.ArgumentParser) -> None:
    _user(parser)
    _secret(parser)
    parser.add_argument("-t", "--userType", dest="kind", metavar="Normal|Super")
    parser.add_argument("-s", "--userStatus", dest="status", metavar="enable|disable")


async def update_user(call: Call) -> Shown:
    """3002 to each broker."""
    arguments, password = call.arguments, _password(call)
    if [password, arguments.kind, arguments.status].count(None) != 2:
        raise usage("give one of -p (or --password-file), -t and -s")
    return await _changed(
        call,
        "update user",
        lambda at: call.admin.update_user(
            at, arguments.username, password=password, kind=arguments.kind, status=arguments.status
        ),
    )


async def delete_user(call: Call) -> Shown:
    """3003 to each broker."""
    name = call.arguments.username
    return await _changed(call, "delete user", lambda at: call.admin.delete_user(at, name))


def _shown_passwords(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show-passwords", dest="show", action="store_true")


def _get_user_options(parser: argparse.ArgumentParser) -> None:
    _user(parser)
    _shown_passwords(parser)


def _users_shown(call: Call, users: list[dict[str, str]]) -> Shown:
    if not call.arguments.show:
        users = [{**user, "password": _MASK} if "password" in user else user for user in users]
    keys = ("username", "password", "userType", "userStatus")
    rows = [[user.get(key, "") for key in keys] for user in users]
    return Shown(users, hash_table(_USER_HEAD, rows))


async def get_user(call: Call) -> Shown:
    """3004, of the first broker that knows the user."""
    for address in await targets(call):
        found = await call.admin.user(address, call.arguments.username)
        if found is not None:
            return _users_shown(call, [found])
    raise missing(f"no user {call.arguments.username}")


def _list_user_options(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    parser.add_argument("-f", "--filter", default="", metavar="TEXT", help="a part of the name")
    _shown_passwords(parser)


async def list_user(call: Call) -> Shown:
    """3005, of the first broker that has users."""
    for address in await targets(call):
        if found := await call.admin.users(address, call.arguments.filter):
            return _users_shown(call, found)
    return _users_shown(call, [])


def _copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--fromBroker", dest="source", required=True, metavar="HOST:PORT")
    parser.add_argument("-t", "--toBroker", dest="to", required=True, metavar="HOST:PORT")


def _copy_user_options(parser: argparse.ArgumentParser) -> None:
    _copy(parser)
    parser.add_argument("-u", "--usernames", metavar="NAME,NAME", help="all when not given")


async def copy_user(call: Call) -> Shown:
    """3005 or 3004 from one broker, 3004 and 3001 or 3002 to the other."""
    admin, source, to = call.admin, call.arguments.source, call.arguments.to
    names = _names(call.arguments.usernames) or [u["username"] for u in await admin.users(source)]
    for name in names:
        found = await admin.user(source, name)
        if found is None or not found.get("password"):
            raise missing(f"no user {name} with a password at {source}")
        if await admin.user(to, name) is None:
            await admin.create_user(to, name, found["password"], kind=found["userType"])
        kind, status = found["userType"], found["userStatus"]
        await admin.update_user(to, name, password=found["password"], kind=kind, status=status)
    lines = [f"copy user of {name} from {source} to {to} success." for name in names]
    return Shown({"users": names}, "\n".join(lines))


# -- rules


def _subject(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("-s", "--subject", required=required, metavar="User:NAME")


def _put_options(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _subject(parser)
    parser.add_argument(
        "-r",
        "--resources",
        required=True,
        metavar="Topic:NAME,Group:PREFIX*",
        help="commas between",
    )
    parser.add_argument(
        "-a",
        "--actions",
        required=True,
        metavar="Pub,Sub",
        help="All, Pub, Sub, Create, Update, ...",
    )
    parser.add_argument("-d", "--decision", required=True, metavar="Allow|Deny")
    parser.add_argument("-i", "--sourceIp", dest="sources", metavar="IP,NETWORK")


def _putting(what: str) -> Callable[[Call], Awaitable[Shown]]:
    async def put(call: Call) -> Shown:
        """3007, the same as 3006, to each broker."""
        arguments = call.arguments
        sources = _names(arguments.sources)
        entries = [
            {
                "resource": resource,
                "actions": _names(arguments.actions),
                "decision": arguments.decision,
                **({"sourceIps": sources} if sources else {}),
            }
            for resource in _names(arguments.resources)
        ]
        return await _changed(
            call,
            what,
            lambda at: call.admin.put_rules(at, arguments.subject, [{"entries": entries}]),
        )

    return put


def _delete_options(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _subject(parser)
    parser.add_argument("-r", "--resource", metavar="RESOURCE", help="without it all rules")


async def delete_acl(call: Call) -> Shown:
    """3008 to each broker."""
    arguments = call.arguments
    return await _changed(
        call,
        "delete acl",
        lambda at: call.admin.delete_rules(at, arguments.subject, arguments.resource),
    )


def _rules_shown(found: list[dict[str, Any]]) -> Shown:
    rows = [
        [
            acl.get("subject", ""),
            policy.get("policyType", "Custom"),
            entry.get("resource", ""),
            f"[{', '.join(entry.get('actions') or ())}]",
            f"[{', '.join(sources)}]" if (sources := entry.get("sourceIps")) else "null",
            entry.get("decision", ""),
        ]
        for acl in found
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]
    return Shown(found, hash_table(_RULE_HEAD, rows))


def _get_options(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _subject(parser)


async def get_acl(call: Call) -> Shown:
    """3009, of the first broker that has rules of the user."""
    for address in await targets(call):
        found = await call.admin.rules(address, call.arguments.subject)
        if found is not None:
            return _rules_shown([found])
    raise missing(f"no rules of {call.arguments.subject}")


def _list_options(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    parser.add_argument("-s", "--subject", default="", metavar="TEXT", help="a part of the subject")
    parser.add_argument("-r", "--resource", default="", metavar="TEXT", help="of the resource")


async def list_acl(call: Call) -> Shown:
    """3010, of the first broker that has such rules."""
    for address in await targets(call):
        found = await call.admin.all_rules(address, call.arguments.subject, call.arguments.resource)
        if found:
            return _rules_shown(found)
    return _rules_shown([])


def _copy_acl_options(parser: argparse.ArgumentParser) -> None:
    _copy(parser)
    parser.add_argument("-s", "--subjects", metavar="User:NAME,...", help="all when not given")


async def copy_acl(call: Call) -> Shown:
    """3010 or 3009 from one broker, 3007 to the other."""
    admin, source, to = call.admin, call.arguments.source, call.arguments.to
    wanted = _names(call.arguments.subjects)
    found = [await admin.rules(source, each) for each in wanted] or await admin.all_rules(source)
    copied = []
    for acl in found:
        if acl is not None:
            await admin.put_rules(to, acl["subject"], acl["policies"])
            copied.append(str(acl["subject"]))
    lines = [f"copy acl of {each} from {source} to {to} success." for each in copied]
    return Shown({"subjects": copied}, "\n".join(lines))


COMMANDS: Final = (
    orders(
        "createUser", "make a user, who may do nothing yet",
        "createUser -c TandemCluster -u shop --password-file shop.txt", _create_user_options, create_user,
    ),
    orders(
        "updateUser", "change a user's password, type or status",
        "updateUser -c TandemCluster -u shop -s disable", _update_user_options, update_user,
    ),
    orders(
        "deleteUser", "delete a user and all rules of it", "deleteUser -c TandemCluster -u shop", _user, delete_user
    ),
    asks(
        "getUser", "show a user", "getUser -c TandemCluster -u shop", _get_user_options, get_user,
        token_for=("show",),
    ),
    asks(
        "listUser", "show users", "listUser -c TandemCluster -f sh", _list_user_options, list_user,
        token_for=("show",),
    ),
    orders(
        "copyUser", "copy users from one broker to another",
        "copyUser -f 127.0.0.1:10911 -t 127.0.0.1:10921 -u shop", _copy_user_options, copy_user,
    ),
    orders(
        "createAcl", "allow or deny a user something",
        "createAcl -c TandemCluster -s User:shop -r Topic:Orders -a Pub -d Allow", _put_options, _putting("create acl"),
    ),
    orders(
        "updateAcl", "the same as createAcl: a rule for the same resource is replaced",
        "updateAcl -c TandemCluster -s User:shop -r Topic:* -a Pub,Sub -d Deny", _put_options, _putting("update acl"),
    ),
    orders(
        "deleteAcl", "delete a user's rule for a resource, or all of them",
        "deleteAcl -c TandemCluster -s User:shop -r Topic:Orders", _delete_options, delete_acl,
    ),
    asks("getAcl", "show a user's rules", "getAcl -c TandemCluster -s User:shop", _get_options, get_acl),
    asks("listAcl", "show rules", "listAcl -c TandemCluster -r Topic:Orders", _list_options, list_acl),
    orders(
        "copyAcl", "copy rules from one broker to another",
        "copyAcl -f 127.0.0.1:10911 -t 127.0.0.1:10921 -s User:shop", _copy_acl_options, copy_acl,
    ),
)  # fmt: skip
