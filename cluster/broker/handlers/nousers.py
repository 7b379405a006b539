"""Requests about users, 3001 to 3010, where nobody is asked who they are: nobody gets a password."""

from __future__ import annotations

from typing import Any, NoReturn

from tandemmq.cluster.broker.handlers.requests import Refused, refusing
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler


class NoUserHandlers:
    """In place of admin_users.UserHandlers, with RocketMQ's words."""

    def table(self) -> dict[int, Handler]:
        refused = refusing(_refuse)
        return {code: refused for code in RequestCode if code.name.startswith("AUTH_")}


def _refuse(command: Command, connection: Any) -> NoReturn:
    raise Refused(
        ResponseCode.NO_PERMISSION, "The authenticationMetadataProvider is not configured"
    )
