"""One pull request: its header, and what each answer means. No I/O but the call itself."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client.consuming.subscriptions import Subscription
from tandemmq.cluster.client.errors import BrokerAnswerBroken, BrokerRefused, ClientError
from tandemmq.cluster.client.hot import read_records
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage, SendResult
from tandemmq.cluster.client.reaching.answers import Answers
from tandemmq.cluster.client.reaching.calls import Caller, call, number
from tandemmq.cluster.client.runs import RecordRun
from tandemmq.cluster.remoting import Channel, Command, RequestCode, ResponseCode

COMMIT_FLAG: Final = 1
SUSPEND_FLAG: Final = 2
SUBSCRIPTION_FLAG: Final = 4
LITE_FLAG: Final = 16
LITE_CODE_SINCE: Final = 413  # V5_0_0; before it lite pulls are told from others by their flag only

SUSPEND_MS: Final = 15_000  # how long the broker may hold a pull that finds nothing
TIMEOUT_MS: Final = 30_000  # and how long we wait for it


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


#: the remark of an answer that moves a reader because an operator said so, not because its position is not valid
_RESET: Final = "OFFSET_RESET"
_STATUSES: Final = {int(status.value): status for status in PullStatus}
_ACCEPTED: Final = frozenset(_STATUSES)
_PREFIX: Final = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """next_offset: where to pull next, from suggested_broker_id. messages: those wanted. size: bytes, unwanted too.

    reset: with OFFSET_MOVED, by an operator's word
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    messages: Sequence[ReceivedMessage]
    size: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class PullRequest:
    """commit_offset: position to commit with this pull, or None. suspend_ms 0: answer at once.

    lite: of a pull consumer, which is RocketMQ's lite pull; code: as the broker's version takes it.
    decoded: False for messages that are decoded when they are looked at.
    """

    group: str
    queue: MessageQueue
    offset: int
    subscription: Subscription
    count_max: int = 32
    suspend_ms: int = SUSPEND_MS
    commit_offset: int | None = None
    lite: bool = False
    code: RequestCode = RequestCode.PULL_MESSAGE
    decoded: bool = True

    @property
    def flags(self) -> int:
        """The pull's sysFlag."""
        flags = SUBSCRIPTION_FLAG
        if self.suspend_ms:
            flags |= SUSPEND_FLAG
        if self.commit_offset is not None:
            flags |= COMMIT_FLAG
        if self.lite:
            flags |= LITE_FLAG
        return flags

    def command(self) -> Command:
        """PULL_MESSAGE or LITE_PULL_MESSAGE.

        The subscription travels along, so that a pull never races its own heartbeat.
        """
        ext = {
            "consumerGroup": self.group,
            "topic": self.queue.topic,
            "queueId": str(self.queue.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.count_max),
            "sysFlag": str(self.flags),
            "commitOffset": str(self.commit_offset or 0),
            "suspendTimeoutMillis": str(self.suspend_ms),
            "subscription": self.subscription.expression,
            "subVersion": str(self.subscription.version),
            "expressionType": self.subscription.expression_type,
            "bname": self.queue.broker_name,
        }
        return Command(self.code, ext)


def lite_code(version: int) -> RequestCode:
    """The code of a lite pull for a broker of this version."""
    known = version >= LITE_CODE_SINCE
    return RequestCode.LITE_PULL_MESSAGE if known else RequestCode.PULL_MESSAGE


class PullHead:
    """A pull request of one queue as bytes, but for its numbers: queue offset, flags, commit."""

    __slots__ = ("_parts", "code", "count_max", "subscription")

    def __init__(self, request: PullRequest) -> None:
        self.subscription = request.subscription
        self.code = request.code
        self.count_max = request.count_max
        command = request.command()
        assert command.ext is not None
        for name in ("queueOffset", "sysFlag", "commitOffset"):
            command.ext[name] = "\x00"
        *parts, last = command.encode()[8:].split(b"\\u0000")
        before, opaque, after = last.rpartition(b'"opaque":0')
        self._parts = (*parts, before + opaque[:-1], after)

    def frame(self, request: PullRequest, opaque: int) -> bytes:
        """The whole frame of a request for the same queue."""
        one, two, three, four, five = self._parts
        header = b"%b%d%b%d%b%d%b%d%b" % (
            one, request.offset, two, request.flags, three, request.commit_offset or 0,
            four, opaque, five,
        )  # fmt: skip
        return _PREFIX.pack(4 + len(header), len(header)) + header


class PullFuture(asyncio.Future[PullAnswer]):
    """A pull whose answer is read where it arrives: no task wakes up only to pass it on.

    A Pending of tandemmq.cluster.client.reaching.answers.
    """

    __slots__ = ("began_s", "channel", "deadline_s", "opaque", "queue", "request", "unique_id")
    request: PullRequest
    queue: MessageQueue  # this one and the next only for a broker that answers as to a send
    unique_id: str
    opaque: int
    channel: Channel
    began_s: float
    deadline_s: float

    def stored(self, result: SendResult) -> None:
        """Never: no pull is answered with the fields of a send."""
        self.failed(BrokerAnswerBroken(f"{self.channel.address} answered a pull as a send"))

    def answered(self, answer: Command) -> None:
        """The broker's answer."""
        if self.done():
            return
        try:
            self.set_result(pull_answer(answer, self.request, self.channel.address))
        except ClientError as problem:
            self.set_exception(problem)

    def failed(self, problem: ClientError) -> None:
        """There will be none."""
        if not self.done():
            self.set_exception(problem)

    def about(self) -> str:
        """The topic."""
        return self.request.queue.topic


def begin_pull(
    answers: Answers, channel: Channel, head: PullHead, request: PullRequest, opaque: int
) -> PullFuture:
    """Send a pull straight through an open channel. Whoever waits no more says so to end_pull()."""
    loop = asyncio.get_running_loop()
    future = PullFuture(loop=loop)
    future.request, future.opaque, future.channel = request, opaque, channel
    future.queue, future.unique_id = request.queue, ""
    future.began_s = loop.time()
    future.deadline_s = future.began_s + TIMEOUT_MS / 1000
    answers.watch(channel)
    answers.expect(opaque, future)
    channel.write(head.frame(request, opaque))
    return future


def end_pull(answers: Answers, future: PullFuture) -> None:
    """Nobody waits any more, whether it was answered or not."""
    answers.waiting.pop(future.opaque, None)
    if not future.cancel() and not future.cancelled():
        future.exception()  # looked at: asyncio complains of errors that nobody saw


async def pull_through(
    answers: Answers, channel: Channel, head: PullHead, request: PullRequest, opaque: int
) -> PullAnswer:
    """As pull(), straight through an open channel."""
    future = begin_pull(answers, channel, head, request, opaque)
    try:
        return await future
    finally:
        answers.waiting.pop(opaque, None)  # cancelled: nobody waits any more


async def pull(
    caller: Caller, address: str, request: PullRequest, timeout_ms: int = TIMEOUT_MS
) -> PullAnswer:
    """Ask a broker for messages.

    Raises BrokerRefused, BrokerUnreachable, CallTimedOut, BrokerAnswerBroken.
    """
    answer = await call(caller, address, request.command(), timeout_ms, _ACCEPTED)
    return pull_answer(answer, request, address)


def pull_answer(answer: Command, request: PullRequest, address: str) -> PullAnswer:
    """What an answer means. Raises BrokerRefused, BrokerAnswerBroken."""
    status = _STATUSES.get(answer.code)
    if status is None:
        raise BrokerRefused(answer.code, answer.remark, address, request.queue.topic)
    max_offset = number(answer, "maxOffset", address)
    read = read_records if request.decoded else RecordRun.of
    messages = read(answer.body, request.queue.broker_name, max_offset) if answer.body else []
    return PullAnswer(
        status=status,
        next_offset=number(answer, "nextBeginOffset", address),
        min_offset=number(answer, "minOffset", address),
        max_offset=max_offset,
        suggested_broker_id=number(answer, "suggestWhichBrokerId", address),
        messages=_wanted(messages, request.subscription),
        size=len(answer.body or b""),
        reset=answer.remark == _RESET,
    )


def _wanted(
    messages: Sequence[ReceivedMessage], subscription: Subscription
) -> Sequence[ReceivedMessage]:
    if not subscription.tags:
        return messages
    return [message for message in messages if subscription.wants(message.tags)]
