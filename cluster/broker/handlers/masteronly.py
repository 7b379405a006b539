"""Changes that a slave refuses: its next copy of the master's tables would undo them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler

_SETTINGS: Final = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)

#: RocketMQ's words, of 4.9.4 to 5.1.3; later ones accept and forget. Deletions are not refused:
#: tools send them to every member of a group, and stop at the first that does not take them.
REMARKS: Final[Mapping[int, str]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _SETTINGS,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _SETTINGS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _SETTINGS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _SETTINGS,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _SETTINGS,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "Can not reset offset in slave broker",
    RequestCode.CLONE_GROUP_OFFSET: "Can not clone offset in slave broker",
}

#: of a slave's success for a deletion: whoever asked nobody else has deleted nothing
LEFT_TO_MASTER: Final = "nothing was deleted: a slave follows its master's deletions"


def guarded(table: Mapping[int, Handler], standing: Standing) -> dict[int, Handler]:
    """The same handlers; those of REMARKS answer SYSTEM_ERROR while the broker is a slave.

    One that is just becoming the master of its group has nobody to send the asker to: it takes them.
    """

    def is_slave() -> bool:
        return standing.role is Role.SLAVE and (standing.master is not None or not standing.epoch)

    def guard(code: int, handler: Handler) -> Handler:
        @functools.wraps(handler)
        def handle(command: Command, connection: Any) -> Any:
            if is_slave():
                return command.reply(ResponseCode.SYSTEM_ERROR, REMARKS[code])
            return handler(command, connection)

        return handle

    return {
        code: guard(code, handler) if code in REMARKS else handler
        for code, handler in table.items()
    }
