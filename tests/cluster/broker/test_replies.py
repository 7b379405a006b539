"""The table from exception class to response code."""

from __future__ import annotations

import inspect

import pytest

from tandemmq.cluster.broker import errors as broker
from tandemmq.cluster.broker import replies
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.storage import errors as storage

CLASSES = [
    found
    for module in (broker, storage)
    for _, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, Exception) and found.__module__ == module.__name__
]

#: codes that a stock producer or consumer acts on, of RocketMQ's ResponseCode
KNOWN_TO_CLIENTS = frozenset({*range(0, 4), *range(10, 18), *range(19, 30), 604})


@pytest.mark.parametrize("error", CLASSES, ids=lambda found: found.__name__)
def test_every_error_class_has_its_own_line_in_the_table(error: type[Exception]) -> None:
    assert error in replies.CODES
    assert replies.CODES[error] in KNOWN_TO_CLIENTS
    assert issubclass(error, replies.REFUSALS)


def test_the_table_names_no_class_that_nobody_raises() -> None:
    assert set(replies.CODES) == {*CLASSES, HeaderProblem}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (storage.MessageTooLarge("5 > 4"), ResponseCode.MESSAGE_ILLEGAL),
        (storage.StoreIsFull("95 %"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (storage.SegmentUnavailable("why"), ResponseCode.SYSTEM_ERROR),
        (broker.BrokerBusy("later"), ResponseCode.SYSTEM_BUSY),
        (broker.TransactionsNotServed("no"), ResponseCode.NO_PERMISSION),
        (broker.TransactionLate("no"), ResponseCode.ILLEGAL_OPERATION),
        (broker.TimerNotEnabled("no"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_refusal_has_the_code_of_its_class_and_the_text_of_the_error(
    error: Exception, code: ResponseCode
) -> None:
    answer = replies.refusal(Command(310, opaque=3), error, {"MSG_REGION": "r"})
    assert (answer.code, answer.remark, answer.ext) == (code, str(error), {"MSG_REGION": "r"})


def test_a_class_below_a_known_one_has_its_code() -> None:
    class NarrowerBusy(broker.BrokerBusy):
        pass

    assert replies.code_of(NarrowerBusy("x")) == ResponseCode.SYSTEM_BUSY


def test_an_error_that_is_no_refusal_is_our_bug() -> None:
    with pytest.raises(LookupError):
        replies.code_of(ValueError("bug"))


def test_a_forbidden_pull_says_what_forbids_it() -> None:
    answer = replies.refusal(Command(11), broker.NotPermitted("no", 3), {})
    assert answer.ext == {"forbiddenType": "3"}
