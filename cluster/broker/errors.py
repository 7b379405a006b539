"""Why the broker refuses a request. replies.py maps each class to a response code.

The text of an error becomes the answer's remark. Operators search for RocketMQ's words, so where it
has a wording of its own the text keeps it.
"""

from __future__ import annotations


class BrokerError(Exception):
    """Root of everything the broker refuses on purpose."""


class NotYetServing(BrokerError):
    """The broker accepts sends only later: startAcceptSendRequestTimeStamp, or its name is not sure.

    For a moment after its start it makes sure that no other broker has its name and id.
    """


class BrokerBusy(BrokerError):
    """Try again, perhaps elsewhere: a buffer is full or the request waited too long in one."""


class NotMaster(BrokerError):
    """Of its group another broker takes messages now, or soon will: nothing was stored here."""


class TooFewReplicas(BrokerError):
    """Fewer replicas are in the sync-state-set than minInSyncReplicas wants: nothing was stored."""


class NotPermitted(BrokerError):
    """Permission bits of broker, group or topic, or a topic no client may send to.

    forbidden_type: what pull answers tell beside the code (RocketMQ's ForbiddenType): 1 broker, 2
    group, 3 topic, 4 broadcasting, 5 the group's rule for the topic.
    """

    def __init__(self, text: str, forbidden_type: int | None = None) -> None:
        super().__init__(text)
        self.forbidden_type = forbidden_type


class TransactionsNotServed(NotPermitted):
    """A half message came; this broker is configured to take none."""


class TransactionOver(BrokerError):
    """An end for a transaction that ended otherwise, or so long ago that nobody remembers: nothing was done."""


class TransactionLate(BrokerError):
    """An end that comes too late, or too early, to count: the producer is asked."""


class NoSuchTopic(BrokerError):
    """The topic is unknown and may not be created by a send."""


class NoSuchGroup(BrokerError):
    """The subscription group is unknown and may not be created by use."""


class InvalidParameter(BrokerError):
    """A name that is not allowed, or a queue the topic does not have."""


class RequestMalformed(BrokerError):
    """The request lacks what it needs, or its body cannot be walked."""


class TimerNotEnabled(BrokerError):
    """A message asks for delivery at an arbitrary time; timerWheelEnable is false."""


class TimerFlowControl(BrokerError):
    """Too many messages wait for the same moment: timerCongestNumEachSlot.

    free_ms  the first moment after it for which there is room; None: not soon
    """

    def __init__(self, text: str, free_ms: int | None) -> None:
        super().__init__(text)
        self.free_ms = free_ms


class NoMessageThere(BrokerError):
    """No record starts at the log offset that the request names."""


class NothingFound(BrokerError):
    """A query matched no message."""


class SubscriptionUnparsable(BrokerError):
    """The expression of a pull or a subscription selects nothing that could ever match, or is no expression."""


class SubscriptionMissing(BrokerError):
    """The pull relies on a heartbeat's subscription that the broker does not have."""


class SubscriptionOutdated(BrokerError):
    """The pull relies on a newer subscription than the broker has; the next heartbeat brings it."""


class FilterMissing(BrokerError):
    """The pull relies on a heartbeat's filter that does not compile."""


class FilterNotServed(BrokerError):
    """SQL92 filters are switched off on this broker."""
