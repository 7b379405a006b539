"""Admin's part about users and rules of access control (RocketMQ's ACL 2.0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandemmq.cluster.client.admin.calls import AdminCalls, json_body
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.remoting import RequestCode
from tandemmq.storage import fastjson


class UserAdmin(AdminCalls):
    """Users of one broker; TandemMQ's replicate them within their group. For Super users alone."""

    async def create_user(
        self, address: str, name: str, password: str, *, kind: str = "Normal"
    ) -> None:
        """Make a user who may do nothing yet, or with kind="Super" everything. Raises BrokerRefused.

        Example: await admin.create_user("127.0.0.1:10911", "shop", password)
        """
        body = {"username": name, "password": password, "userType": kind}
        await self._ask(address, RequestCode.AUTH_CREATE_USER, {"username": name}, json_body(body))

    async def update_user(
        self,
        address: str,
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        status: str | None = None,
    ) -> None:
        """Change what is given: password, kind (Super or Normal), status (enable or disable). Raises BrokerRefused.

        Example: await admin.update_user("127.0.0.1:10911", "shop", status="disable")
        """
        body = {"username": name, "password": password, "userType": kind, "userStatus": status}
        given = {key: value for key, value in body.items() if value is not None}
        await self._ask(address, RequestCode.AUTH_UPDATE_USER, {"username": name}, json_body(given))

    async def delete_user(self, address: str, name: str) -> None:
        """Delete a user with all rules; nothing happens where there is none. Raises BrokerRefused.

        Example: await admin.delete_user("127.0.0.1:10911", "shop")
        """
        await self._ask(address, RequestCode.AUTH_DELETE_USER, {"username": name})

    async def user(self, address: str, name: str) -> dict[str, str] | None:
        """username, userType, userStatus and password of a user; None where there is none. Raises BrokerRefused.

        Example: found = await admin.user("127.0.0.1:10911", "shop")
        """
        answer = await self._ask(address, RequestCode.AUTH_GET_USER, {"username": name})
        return _object(answer.body, address) if answer.body else None

    async def users(self, address: str, wanted: str = "") -> list[dict[str, str]]:
        """As user(), of all users with `wanted` in their names. Raises BrokerRefused.

        Example: names = [user["username"] for user in await admin.users("127.0.0.1:10911")]
        """
        ext = {"filter": wanted} if wanted else {}
        answer = await self._ask(address, RequestCode.AUTH_LIST_USER, ext)
        return _objects(answer.body, address)

    async def put_rules(
        self, address: str, subject: str, policies: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add rules, in place of those for the same resources. Raises BrokerRefused.

        subject    "User:name"
        policies   [{"entries": [{"resource": "Topic:a*", "actions": ["Pub"], "decision": "Allow"}]}]; with
                   "policyType": "Default" rules that count where no others do, with "sourceIps" from there only

        Example: await admin.put_rules(address, "User:shop", policies)
        """
        body = json_body({"subject": subject, "policies": [dict(each) for each in policies]})
        await self._ask(address, RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body)

    async def delete_rules(self, address: str, subject: str, resource: str | None = None) -> None:
        """Delete the rule for a resource, or all of a user's. Raises BrokerRefused.

        Example: await admin.delete_rules(address, "User:shop", "Topic:a*")
        """
        ext = {"subject": subject} | ({"resource": resource} if resource else {})
        await self._ask(address, RequestCode.AUTH_DELETE_ACL, ext)

    async def rules(self, address: str, subject: str) -> dict[str, Any] | None:
        """A user's rules, as put_rules takes them, below "policies"; None where there are none. Raises BrokerRefused.

        Example: found = await admin.rules(address, "User:shop")
        """
        answer = await self._ask(address, RequestCode.AUTH_GET_ACL, {"subject": subject})
        return _object(answer.body, address) if answer.body else None

    async def all_rules(
        self, address: str, subject: str = "", resource: str = ""
    ) -> list[dict[str, Any]]:
        """As rules(), of all users, by parts of subjects and resources. Raises BrokerRefused.

        Example: everybody = await admin.all_rules(address, resource="Topic:Orders")
        """
        ext = {"subjectFilter": subject, "resourceFilter": resource}
        given = {key: value for key, value in ext.items() if value}
        answer = await self._ask(address, RequestCode.AUTH_LIST_ACL, given)
        return _objects(answer.body, address)


def _object(body: bytes | memoryview, address: str) -> dict[str, Any]:
    found = _tree(body, address)
    if not isinstance(found, dict):
        raise BrokerAnswerBroken(f"{address} answered something else than a user or rules")
    return found


def _objects(body: bytes | memoryview | None, address: str) -> list[dict[str, Any]]:
    """RocketMQ sends no body where there is nothing."""
    found = _tree(body, address) if body else []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BrokerAnswerBroken(f"{address} answered something else than a list")
    return found


def _tree(body: bytes | memoryview, address: str) -> Any:
    try:
        return fastjson.loads(body)
    except ValueError as problem:
        raise BrokerAnswerBroken(f"the answer of {address} cannot be read: {problem}") from None
