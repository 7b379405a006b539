"""What each refusal becomes on the wire: the one table from exception class to response code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.cluster.broker import errors as broker
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.storage import errors as storage

FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

#: exception class -> response code; a class that is missing has the code of its nearest base
CODES: Final[dict[type[Exception], ResponseCode]] = {
    broker.BrokerError: ResponseCode.SYSTEM_ERROR,
    broker.NotYetServing: ResponseCode.SYSTEM_ERROR,
    broker.BrokerBusy: ResponseCode.SYSTEM_BUSY,
    broker.NotMaster: ResponseCode.SERVICE_NOT_AVAILABLE,
    broker.TooFewReplicas: ResponseCode.SYSTEM_ERROR,
    broker.NotPermitted: ResponseCode.NO_PERMISSION,
    broker.TransactionsNotServed: ResponseCode.NO_PERMISSION,
    broker.TransactionOver: ResponseCode.SYSTEM_ERROR,
    broker.TransactionLate: ResponseCode.ILLEGAL_OPERATION,
    broker.NoSuchTopic: ResponseCode.TOPIC_NOT_EXIST,
    broker.NoSuchGroup: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    broker.InvalidParameter: ResponseCode.INVALID_PARAMETER,
    broker.RequestMalformed: ResponseCode.SYSTEM_ERROR,
    broker.TimerNotEnabled: ResponseCode.SYSTEM_ERROR,
    broker.TimerFlowControl: ResponseCode.SYSTEM_ERROR,
    broker.NoMessageThere: ResponseCode.SYSTEM_ERROR,
    broker.NothingFound: ResponseCode.QUERY_NOT_FOUND,
    broker.SubscriptionUnparsable: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    broker.SubscriptionMissing: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    broker.SubscriptionOutdated: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    broker.FilterMissing: ResponseCode.FILTER_DATA_NOT_EXIST,
    broker.FilterNotServed: ResponseCode.SYSTEM_ERROR,
    HeaderProblem: ResponseCode.SYSTEM_ERROR,
    storage.StorageError: ResponseCode.SYSTEM_ERROR,
    storage.NotAStore: ResponseCode.SYSTEM_ERROR,
    storage.StoreLocked: ResponseCode.SYSTEM_ERROR,
    storage.CorruptRecord: ResponseCode.SYSTEM_ERROR,
    storage.CorruptFile: ResponseCode.SYSTEM_ERROR,
    storage.BatchMalformed: ResponseCode.SYSTEM_ERROR,
    storage.MessageIllegal: ResponseCode.MESSAGE_ILLEGAL,
    storage.MessageTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    storage.PropertiesTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    storage.StoreNotWritable: ResponseCode.SERVICE_NOT_AVAILABLE,
    storage.StoreIsFull: ResponseCode.SERVICE_NOT_AVAILABLE,
    storage.SegmentUnavailable: ResponseCode.SYSTEM_ERROR,
    storage.FlushFailed: ResponseCode.SERVICE_NOT_AVAILABLE,
}

#: what a handler catches; everything else is our bug and the remoting server's business
REFUSALS: Final = (broker.BrokerError, storage.StorageError, HeaderProblem)


def code_of(error: Exception) -> ResponseCode:
    """The response code of an error: its class's, or that of the nearest base in CODES."""
    for ancestor in type(error).__mro__:
        code = CODES.get(ancestor)
        if code is not None:
            return code
    raise LookupError(f"{type(error).__name__} is no refusal") from error


def refusal(request: Command, error: Exception, ext: Mapping[str, str] | None = None) -> Command:
    """The answer that tells a client why; its remark is the error's text.

    ext: fields that belong to every answer of this request code.
    """
    fields = None if ext is None else dict(ext)
    if isinstance(error, broker.NotPermitted) and error.forbidden_type is not None:
        fields = {**(fields or {}), "forbiddenType": str(error.forbidden_type)}
    if isinstance(error, broker.TimerFlowControl) and error.free_ms is not None:
        fields = {**(fields or {}), "timerFreeMs": str(error.free_ms)}
    return request.reply(code_of(error), str(error), fields)


def no_such_topic(topic: str) -> broker.NoSuchTopic:
    return broker.NoSuchTopic(f"topic[{topic}] not exist, apply first please!\n{FAQ}")
