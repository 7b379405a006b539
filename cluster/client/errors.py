"""What the client raises.

Texts keep RocketMQ's words and add what to do; every class is a ClientError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandemmq.cluster.client.message import SendResult


class ClientError(Exception):
    """Root of everything this client raises on purpose.

    Attributes: said (what went wrong), advice (what to do about it, "" when there is none); the text is both.

    Example:
        try:
            await producer.send(message)
        except ClientError as problem:
            log.error("order not sent why=%s", problem)
    """

    def __init__(self, said: str, advice: str = "") -> None:
        self.said = said
        self.advice = advice
        super().__init__(f"{said.rstrip('.')}. {advice}" if advice else said)


class MessageRefused(ClientError):
    """The message, group or topic breaks a rule that the client checks itself.

    Nothing was sent; fix the caller.
    """


class NotRunning(ClientError):
    """The producer or consumer was not started, or has been stopped. Use it inside `async with`."""


class WrongLoop(ClientError):
    """A producer or consumer was used from a thread or an event loop that is not its own."""


NAME_SERVER_ADVICE: Final = "Is one running there, and is that address reachable from here?"
_NOT_THERE: Final = "Is it running, and is that address reachable from here (brokerIP1, firewall)?"
_HUNG_UP: Final = "Has it ended? Or does it demand TLS: then give `tls`, or --ca to a command."


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

    Attributes: address ("host:port"), topic ("" when the request was about none).
    """

    def __init__(self, address: str, why: str, topic: str = "") -> None:
        super().__init__(
            f"connect to {address} failed: {why}{_about(topic)}", _unreachable_remedy(why)
        )
        self.address = address
        self.topic = topic

    @property
    def about_encryption(self) -> bool:
        """Whether it is not to be reached for want of a certificate or protocol that both sides take."""
        return self.advice != _NOT_THERE


class CallTimedOut(ClientError):
    """No answer within the time allowed. Whether the broker acted is unknown.

    Attributes: address ("" when several were tried), topic ("" when it was about none).
    """

    def __init__(self, text: str, *, address: str = "", topic: str = "") -> None:
        super().__init__(
            f"{text}{_about(topic)}",
            "Whether it was carried out is unknown; look at that server's load and log, or allow "
            "more time (timeout_ms).",
        )
        self.address = address
        self.topic = topic


class BrokerRefused(ClientError):
    """The broker answered with an error code.

    Attributes: code (RocketMQ's response code), remark (the broker's words), address ("host:port"),
    topic ("" when the request was about none), remedy (what to do about that code, "" when unknown).
    """

    def __init__(self, code: int, remark: str | None, address: str, topic: str = "") -> None:
        self.remedy = remedy_for(code, remark or "")
        super().__init__(
            f"CODE: {code}  DESC: {remark or 'no remark'} (broker {address}{_about(topic)})",
            self.remedy,
        )
        self.code = code
        self.remark = remark or ""
        self.address = address
        self.topic = topic


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
        # a budget used up has no address: the attempt before it says more
        where = next((each for each in reversed(causes) if getattr(each, "address", "")), None)
        last = causes[-1].said if causes else "none"
        advices = [causes[-1].advice] if causes else []
        if where is not None and where is not causes[-1]:
            last = f"{where.said.rstrip('.')}. Then: {last}"
            advices.insert(0, where.advice)
        self.cost_ms = cost_ms
        super().__init__(
            f"Send [{len(brokers)}] times, still failed, cost [{cost_ms}]ms, Topic: {topic}, "
            f"BrokersSent: [{', '.join(brokers)}]; last error: {last}",
            " ".join(dict.fromkeys(each for each in advices if each)),
        )
        self.topic = topic
        self.brokers = tuple(brokers)
        self.causes = tuple(causes)


class NoReply(ClientError):
    """A request got no reply within its time. A consumer may have acted on it.

    Attributes: topic, sent (the request's SendResult, None when it is not known to be stored).
    """

    def __init__(self, topic: str, timeout_ms: int, sent: SendResult | None) -> None:
        how = "sent" if sent is not None else "not known to be sent"
        super().__init__(
            f"no reply to the request within {timeout_ms} ms, topic {topic}; the request was {how}",
            "Does a group consume the topic and call reply(), in less than that time?",
        )
        self.topic = topic
        self.sent = sent


class OffsetUnknown(ClientError):
    """The broker could not say, or not store, where a group stands in a queue."""


class QueueNotAssigned(ClientError):
    """The queue does not belong to this consumer now: not assigned, or moved to another member."""


class NoController(ClientError):
    """No controller is named and no broker names one, or none of them answers or knows who leads."""


class NoSuccessor(ClientError):
    """A group cannot be handed over now: no master, or no living member in sync that could follow it."""


#: What to do about a response code; shown behind the broker's own words.
REMEDIES: Final[Mapping[int, str]] = {
    1: "See that broker's log for the cause.",
    2: "The broker is busy: send more slowly, or add brokers.",
    3: "That server does not know this request: it is older than this client, or of another role.",
    13: "Make the body or the properties smaller, or raise the broker's maxMessageSize.",
    14: "The broker cannot store now: look at its disk (usually full) and its role.",
    16: "Check the permission of topic and broker, and the access key in use.",
    17: "Create the topic (tandem admin updateTopic -t NAME -c CLUSTER), or set "
    "autoCreateTopicEnable=true.",
    23: "Check the subscription's expression.",
    27: "Check the SQL92 expression that the group's members subscribe with.",
    24: "The group has no member with this subscription yet: all members must subscribe alike.",
    25: "The broker knows an older subscription: all members of the group must subscribe alike.",
    26: "Create the group (tandem admin updateSubGroup -g NAME -c CLUSTER), or set "
    "autoCreateSubscriptionGroup=true.",
    215: "The broker asks for fewer requests per second.",
    2007: "That controller does not lead: ask the one that getControllerMetaData names.",
    2009: "Stop that replica first, or clean living ones too (-l).",
    2010: "The controller does not know it: see getSyncStateSet for the members' ids.",
    2012: "Elect a living member of the sync-state-set: getSyncStateSet lists them.",
}


_TAKEN_OVER: Final = (
    "Another broker of its group has taken over, or will: send again, routes are asked for anew."
)
_FEWER_QUEUES: Final = (
    "The request does not fit that broker: refresh the route; the topic may have fewer queues."
)
#: words of a remark -> what to do, for codes that stand for several causes
_REMEDIES_BY_WORDS: Final[Mapping[int, Sequence[tuple[str, str]]]] = {
    1: (
        (
            "filter message by",
            "Set enablePropertyFilter=true on the brokers, or subscribe by tags.",
        ),
    ),
    14: (
        ("no longer the master", _TAKEN_OVER),
        ("became the master", _TAKEN_OVER),
        ("switchover", _TAKEN_OVER),
        ("about to stop", _TAKEN_OVER),
        ("lease", "Its controller does not answer it, or has chosen another: send again."),
    ),
    29: (("queueid", _FEWER_QUEUES), ("no queue", _FEWER_QUEUES)),
}


def remedy_for(code: int, remark: str = "") -> str:
    """What to do about a broker's response code, "" when there is no general advice.

    Example: remedy_for(17) == "Create the topic (tandem admin updateTopic ..."
    """
    if "accesskey" in remark.lower() or "signature" in remark.lower():
        return "Check access key and secret key: ClientConfig(credentials=Credentials(...))."
    for words, remedy in _REMEDIES_BY_WORDS.get(code, ()):
        if words in remark.lower():
            return remedy
    return REMEDIES.get(code, "")


def _about(topic: str) -> str:
    return f", topic {topic}" if topic else ""


def _unreachable_remedy(why: str) -> str:
    if "certificate" in why.lower():
        return "Check the certificates of both sides: dates, names and the CA in `tls`."
    if "ssl" in why.lower() or "tls" in why.lower():
        return "Check whether that server speaks TLS and which versions."
    if "closed by the peer" in why:
        return _HUNG_UP
    return _NOT_THERE
