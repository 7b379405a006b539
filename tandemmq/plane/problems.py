"""What went wrong, for who asked over HTTP: a status, a sentence, and what to do about it. Core."""

from __future__ import annotations

from typing import Final

from tandemmq.cluster.client import (
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NoNameServer,
    NoRoute,
    SendFailed,
    UnknownCluster,
)
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.command.exits import CommandFailed, ExitCode

_BY_EXIT: Final = {
    ExitCode.USAGE: 400,
    ExitCode.BAD_CONFIG: 400,
    ExitCode.NOT_FOUND: 404,
    ExitCode.UNREACHABLE: 502,
    ExitCode.NOT_RUNNING: 503,
}
_BY_CODE: Final = {
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.TOPIC_NOT_EXIST: 404,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.QUERY_NOT_FOUND: 404,
    ResponseCode.MESSAGE_ILLEGAL: 400,
    ResponseCode.SYSTEM_BUSY: 503,
    ResponseCode.SERVICE_NOT_AVAILABLE: 503,
}
NO_NAME_SERVER: Final = (
    "is one running there? httpNamesrvAddr or namesrvAddr of this process names it"
)
REFUSED: Final = (
    409  # a broker, name server or controller said no; the text holds its code and words
)


class ApiProblem(Exception):
    """An answer that is an error, as JSON {"error": ..., "hint": ...}."""

    def __init__(self, status: int, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.hint = hint


def problem_of(failure: Exception) -> ApiProblem | None:
    """What a failure of the client or of a command means over HTTP; None for one that is our bug."""
    match failure:
        case ApiProblem():
            return failure
        case CommandFailed():
            status = _BY_EXIT.get(failure.code)
            return ApiProblem(status or REFUSED, str(failure))
        case NoNameServer():
            return ApiProblem(502, failure.said, NO_NAME_SERVER)
        case UnknownCluster():
            return ApiProblem(404, failure.said, failure.advice)
        case NoRoute():
            return ApiProblem(404, failure.said, failure.advice)
        case MessageRefused():
            return ApiProblem(400, failure.said, failure.advice)
        case BrokerRefused():
            status = _BY_CODE.get(ResponseCode(failure.code)) if _known(failure.code) else None
            return ApiProblem(status or REFUSED, failure.said, failure.advice)
        case BrokerUnreachable():
            return ApiProblem(502, failure.said, failure.advice)
        case CallTimedOut():
            return ApiProblem(504, failure.said, failure.advice)
        case SendFailed():
            last = problem_of(failure.causes[-1]) if failure.causes else None
            status = last.status if last is not None else 502
            return ApiProblem(status, failure.said, failure.advice)
        case ClientError():
            return ApiProblem(502, failure.said, failure.advice)
        case TimeoutError():
            return ApiProblem(504, "it took too long", "whether it was carried out is unknown")
        case ValueError():
            return ApiProblem(400, str(failure))
    return None


def _known(code: int) -> bool:
    return code in ResponseCode._value2member_map_
