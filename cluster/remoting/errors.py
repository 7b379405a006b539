"""What can go wrong between two peers that speak the remoting protocol."""

from __future__ import annotations


class RemotingError(Exception):
    """Root of everything the remoting package raises on purpose."""


class PeerBrokeProtocol(RemotingError):
    """The peer sent bytes that are no frame of this protocol: closed without an answer."""


class ConnectionLost(RemotingError):
    """The connection ended before the answer came; whether the request was done is unknown."""

    def __init__(self, address: str, why: str = "") -> None:
        super().__init__(f"connection to {address} lost" + (f": {why}" if why else ""))
        self.address = address


class ConnectFailed(RemotingError):
    """No connection could be made: nothing was sent."""

    def __init__(self, address: str, why: str = "") -> None:
        super().__init__(f"cannot connect to {address}" + (f": {why}" if why else ""))
        self.address = address


class RequestTimedOut(RemotingError):
    """No answer within the caller's time. Whether the request was carried out is unknown."""

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} to request {code} within {timeout_ms} ms")
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms


class HeaderProblem(RemotingError):
    """A header field is missing or cannot be read: answered SYSTEM_ERROR, the connection stays.

    field   its name on the wire, "" when it is not known
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class Refused(Exception):
    """Raised by a handler: its request is answered with this code and remark, and nothing was changed."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
