"""What the client raises.

Texts keep RocketMQ's words and add what to do; every class is a ClientError.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClientError(Exception):
    """Root of everything this client raises on purpose.

    Example:
        try:
            await producer.send(message)
        except ClientError as problem:
            log.error("order not sent why=%s", problem)
    """


class MessageRefused(ClientError):
    """The message, group or topic breaks a rule that the client checks itself.

    Nothing was sent; fix the caller.
    """


class NotRunning(ClientError):
    """The producer or consumer was not started, or has been stopped. Use it inside `async with`."""


class NoNameServer(ClientError):
    """No name server address is set, or none of the addresses answers. The text says which."""


class NoRoute(ClientError):
    """The name server knows no broker for this topic, and none that would create it.

    Attributes: topic.
    """

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"No route info of this topic: {topic} ({why})")
        self.topic = topic


class BrokerUnreachable(ClientError):
    """The connection could not be opened, or broke while the answer was awaited.

    Sends may have been stored.

    Attributes: address ("host:port").
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"connect to {address} failed: {why}")
        self.address = address


class CallTimedOut(ClientError):
    """No answer within the time allowed. Whether the broker acted is unknown."""


class BrokerRefused(ClientError):
    """The broker answered with an error code.

    Attributes: code (RocketMQ's response code), remark (the broker's words), address ("host:port").
    """

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"CODE: {code}  DESC: {remark or 'no remark'} (broker {address})")
        self.code = code
        self.remark = remark or ""
        self.address = address


class BrokerAnswerBroken(ClientError):
    """An answer lacks a field that it must carry, or its bytes do not decode.

    The broker or the path is at fault.
    """


class SendFailed(ClientError):
    """Every attempt of one send failed.

    The message may still have been stored once or more: outcome unknown.

    Attributes: topic, brokers (names tried, in order), causes (one error per attempt, same order).
    """

    def __init__(
        self, topic: str, brokers: Sequence[str], causes: Sequence[ClientError], cost_ms: int
    ) -> None:
        last = causes[-1] if causes else "none"
        super().__init__(
            f"Send [{len(brokers)}] times, still failed, cost [{cost_ms}]ms, Topic: {topic}, "
            f"BrokersSent: [{', '.join(brokers)}]; last error: {last}"
        )
        self.topic = topic
        self.brokers = tuple(brokers)
        self.causes = tuple(causes)


class OffsetUnknown(ClientError):
    """The broker could not say, or not store, where a group stands in a queue."""


class QueueNotAssigned(ClientError):
    """The queue does not belong to this consumer now: not assigned, or moved to another member."""
