"""Users and rules of ACL 2.0, requests 3001 to 3010: Super users alone get here (tandemmq.cluster.access.needs).

A slave answers changes with success and makes none: tools send them to every broker of a group, and stop at the first
that refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tandemmq.cluster.access.rights import AccessRefused
from tandemmq.cluster.access.signature import ACCESS_KEY, AccessUser
from tandemmq.cluster.access.users import RulesBody, UserBody
from tandemmq.cluster.broker.access.guarding import Guarding
from tandemmq.cluster.broker.handlers.requests import (
    Answer,
    Arguments,
    Refused,
    dumps,
    parse_body,
    refusing,
)
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler

log = logging.getLogger(__name__)

LEFT_TO_MASTER: Final = "nothing was changed: a slave follows its master's users"
_BODY_BYTES_MAX: Final = 4 << 20


class UserHandlers:
    """Source: RocketMQ's AdminBrokerProcessor."""

    def __init__(self, guarding: Guarding, standing: Standing, readers: TableReaders) -> None:
        self._guarding = guarding
        self._users = guarding.users
        self._standing = standing
        self._readers = readers

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: self._served(self.handle_auth_create_user),
            RequestCode.AUTH_UPDATE_USER: self._served(self.handle_auth_update_user),
            RequestCode.AUTH_DELETE_USER: self._served(self.handle_auth_delete_user),
            RequestCode.AUTH_GET_USER: self._served(self.handle_auth_get_user),
            RequestCode.AUTH_LIST_USER: self._served(self.handle_auth_list_user),
            RequestCode.AUTH_CREATE_ACL: self._served(self.handle_auth_create_acl),
            RequestCode.AUTH_UPDATE_ACL: self._served(self.handle_auth_create_acl),
            RequestCode.AUTH_DELETE_ACL: self._served(self.handle_auth_delete_acl),
            RequestCode.AUTH_GET_ACL: self._served(self.handle_auth_get_acl),
            RequestCode.AUTH_LIST_ACL: self._served(self.handle_auth_list_acl),
        }

    def _served(self, handler: Callable[[Command, Peer], Answer]) -> Handler:
        def handle(command: Command, connection: Any) -> Answer:
            if len(command.body or b"") > _BODY_BYTES_MAX:
                raise Refused(ResponseCode.INVALID_PARAMETER, f"body above {_BODY_BYTES_MAX} bytes")
            try:
                return handler(command, connection)
            except AccessRefused as refusal:
                raise Refused(ResponseCode(refusal.code), refusal.remark) from None

        return refusing(handle)

    async def handle_auth_create_user(self, command: Command, connection: Peer) -> Command:
        name = _field(command, "username")
        body = _body(UserBody, command)
        return await self._change(
            command, connection, lambda: self._users.create_user(name, body, self._by(command))
        )

    async def handle_auth_update_user(self, command: Command, connection: Peer) -> Command:
        name = _field(command, "username")
        body = _body(UserBody, command)
        return await self._change(
            command, connection, lambda: self._users.update_user(name, body, self._by(command))
        )

    async def handle_auth_delete_user(self, command: Command, connection: Peer) -> Command:
        name = _field(command, "username")
        return await self._change(
            command, connection, lambda: self._users.delete_user(name, self._by(command))
        )

    def handle_auth_get_user(self, command: Command, connection: Peer) -> Command:
        """With the password: consoles log people in by it, and mqadmin copies users."""
        name = _field(command, "username")
        if not name or not name.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._users.find(name)
        return command.reply(body=None if user is None else dumps(user.to_json()))

    def handle_auth_list_user(self, command: Command, connection: Peer) -> Command:
        return command.reply(body=dumps(self._users.list_users(_field(command, "filter"))))

    async def handle_auth_create_acl(self, command: Command, connection: Peer) -> Command:
        """Also 3007: the two are one operation."""
        subject = _field(command, "subject")
        if not command.body:
            raise AccessRefused(ResponseCode.NO_PERMISSION, "The body of acl is null")
        body = _body(RulesBody, command)

        def change() -> None:
            self._users.put_rules(subject, body)

        return await self._change(command, connection, change)

    async def handle_auth_delete_acl(self, command: Command, connection: Peer) -> Command:
        subject, resource = _field(command, "subject"), _field(command, "resource")
        policy = _field(command, "policyType")
        return await self._change(
            command, connection, lambda: self._users.delete_rules(subject, resource, policy)
        )

    def handle_auth_get_acl(self, command: Command, connection: Peer) -> Command:
        found = self._users.get_rules(_field(command, "subject"))
        return command.reply(body=None if found is None else dumps(found))

    def handle_auth_list_acl(self, command: Command, connection: Peer) -> Command:
        subject, resource = _field(command, "subjectFilter"), _field(command, "resourceFilter")
        return command.reply(body=dumps(self._users.list_rules(subject, resource)))

    def _by(self, command: Command) -> AccessUser | None:
        return self._users.find(_field(command, ACCESS_KEY) or "")

    async def _change(
        self, command: Command, connection: Peer, change: Callable[[], None]
    ) -> Command:
        """Make a change; answered when it is on the disk, and where sends wait for slaves, when they have it."""
        if self._standing.role is Role.SLAVE:
            return command.reply(remark=LEFT_TO_MASTER)
        try:
            change()
        except AccessRefused as refusal:
            raise Refused(ResponseCode(refusal.code), refusal.remark) from None
        log.info(
            "users changed request=%s by=%r of=%r peer=%s:%d",
            RequestCode(command.code).name,
            _field(command, ACCESS_KEY),
            _field(command, "username") or _field(command, "subject"),
            *connection.peer,
        )
        await self._guarding.file.saved()
        return command.reply(remark=await self._readers.share())


def _field(command: Command, name: str) -> str | None:
    return (command.ext or {}).get(name)


def _body(kind: type[Arguments], command: Command) -> Arguments:
    try:
        return parse_body(kind, command.body or b"")
    except Refused as problem:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem.remark) from None
