"""Transactional sends: a half message first, its end later, and answers to brokers that ask how a transaction ended."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from msgspec.structs import replace as changed

from tandemmq.cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NotRunning,
)
from tandemmq.cluster.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from tandemmq.cluster.client.namespaces import unwrap
from tandemmq.cluster.client.producing.budget import Budget
from tandemmq.cluster.client.producing.selection import Selector, worth_retrying
from tandemmq.cluster.client.producing.sending import Prepared
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.traces import TransactionEnd
from tandemmq.cluster.client.tracing import Tracer
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode
from tandemmq.storage import parse_offset_message_id

log = logging.getLogger(__name__)

CHECKS_AT_ONCE: Final = 16
CHECKS_WAITING_MAX: Final = 2_000  # RocketMQ's; what is dropped is asked again
RETRY_PAUSE_S: Final = 0.1
_DEFAULT_REGION: Final = "DefaultRegion"

#: of an end that was not done; another broker, or the same one soon, may do it
_AGAIN: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    }
)


class TransactionState(enum.Enum):
    """How a transaction ended, as far as its producer knows."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0


#: in traces
_WORDS: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}

#: tells a broker how a transaction ended: see Producer(check_transaction=...)
TransactionCheck = Callable[[ReceivedMessage], Awaitable[TransactionState]]


@dataclass(frozen=True, slots=True)
class HalfSends:
    """What a producer lends: how it prepares a message, chooses a queue and makes one attempt."""

    prepare: Callable[[Message, str], Awaitable[Prepared]]
    choose: Callable[
        [Message, MessageQueue | None, Selector | None, str | None, int], Awaitable[MessageQueue]
    ]
    attempt: Callable[[Prepared, list[Message], MessageQueue, int], Awaitable[SendResult]]
    instance: Callable[[], ClientInstance]


class TransactionalSends:
    """The transactions of one producer.

    group          as brokers know it
    check_timeout_ms  for each call of `check`
    """

    def __init__(
        self,
        sends: HalfSends,
        group: str,
        namespace: str,
        attempts: int,
        timeout_ms: int,
        check: TransactionCheck | None,
        check_timeout_ms: int,
        tracer: Tracer | None,
    ) -> None:
        self.sends = sends
        self.tracer = tracer
        self.group = group
        self.attempts = attempts
        self.timeout_ms = timeout_ms
        self._namespace = namespace
        self._check = check
        self._check_timeout_s = check_timeout_ms / 1000
        self.open: set[str] = set()  # ids of those whose `async with` is under way here
        self._asked: dict[str, Command] = {}  # message id -> the newest question
        self._running = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> Transaction:
        """Raises ValueError, MessageRefused."""
        if self._check is None:
            raise ValueError("a producer of transactions needs check_transaction=...")
        if message.delay_level:
            raise MessageRefused("a transactional message cannot be delayed")
        return Transaction(self, message, queue, selector, timeout_ms or self.timeout_ms)

    def open_for(self, instance: ClientInstance) -> None:
        """Answer what brokers ask this instance about our group."""
        if self._check is not None:
            instance.transaction_checks[self.group] = self.asked

    async def close(self, instance: ClientInstance) -> None:
        """No more questions are answered."""
        if instance.transaction_checks.get(self.group) == self.asked:
            del instance.transaction_checks[self.group]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def asked(self, request: Command, message: ReceivedMessage, address: str) -> None:
        """A broker wants to know how a transaction ended. What is asked while it is being answered is the same."""
        known = message.message_id in self._asked
        if self._check is None or (not known and len(self._asked) >= CHECKS_WAITING_MAX):
            log.warning("transaction check dropped group=%s id=%s", self.group, message.message_id)
            return
        self._asked[message.message_id] = request
        if not known:
            task = asyncio.create_task(self._answer(message, address), name="transaction check")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: ReceivedMessage, address: str) -> None:
        unique_id = message.message_id
        try:
            told = changed(message, topic=unwrap(self._namespace, message.topic))
            async with self._running:
                state = await self._state(told)
            self._trace(told, self._asked[unique_id], address, state)
            if state is not TransactionState.UNKNOWN:
                ext = dict(self._asked[unique_id].ext or {})
                ext.pop("offsetMsgId", None)
                ext |= {
                    "producerGroup": self.group,
                    "commitOrRollback": str(state.value),
                    "fromTransactionCheck": "true",
                }
                command = Command(RequestCode.END_TRANSACTION, ext)
                connections = self.sends.instance().connections
                await connections.oneway(address, command, self.timeout_ms)
        except ClientError as problem:
            log.warning("transaction check not answered id=%s why=%s", unique_id, problem)
        finally:
            del self._asked[unique_id]

    async def _state(self, message: ReceivedMessage) -> TransactionState:
        if message.message_id in self.open:
            return TransactionState.UNKNOWN  # its application is at work on it right here
        assert self._check is not None
        try:
            async with asyncio.timeout(self._check_timeout_s):
                state = await self._check(message)
            return TransactionState(state)
        except Exception:  # the application's: brokers ask again
            log.exception("transaction check failed group=%s id=%s", self.group, message.message_id)
            return TransactionState.UNKNOWN

    def _trace(
        self, message: ReceivedMessage, question: Command, address: str, state: TransactionState
    ) -> None:
        if self.tracer is None or message.properties.get("TRACE_ON") == "false":
            return
        end = TransactionEnd(
            message.message_id,
            (question.ext or {}).get("transactionId", message.message_id),
            address,
            message.properties.get("MSG_REGION", _DEFAULT_REGION),
            self.sends.instance().clock.now_ms(),
            _WORDS[state],
            asked=True,
        )
        what = Message(message.topic, message.body, tags=message.tags, keys=message.keys)
        self.tracer.transaction_ended(what, end)


class Transaction:
    """One transaction: made by Producer.transaction, used with `async with`.

    Inside, the message is stored and nobody sees it. Leaving normally commits it; leaving with an exception rolls it
    back, and the exception goes on. Being cancelled does neither, for what the application did is not known then:
    the broker asks check_transaction later, as it does when no end reaches it.

    result     where the half message is: queue and queue_offset are not where consumers will see it
    state      what it was ended with
    confirmed  whether the broker said that the end is as safe as an acknowledged message. Where it is False the broker
               asks check_transaction, and acts on that answer; leaving raises nothing for it, because the
               application's own part is done
    """

    def __init__(
        self,
        owner: TransactionalSends,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int,
    ) -> None:
        self._owner = owner
        self._message = message
        self._queue = queue
        self._selector = selector
        self._timeout_ms = timeout_ms
        self._topic = ""
        self._result: SendResult | None = None
        self._wanted: TransactionState | None = None
        self.state: TransactionState | None = None
        self.confirmed = False

    @property
    def result(self) -> SendResult:
        """Raises NotRunning before `async with`."""
        if self._result is None:
            raise NotRunning("the transaction has not begun: use `async with`")
        return self._result

    @property
    def message_id(self) -> str:
        """What consumers, and check_transaction, will see as message_id."""
        return self.result.message_id

    def rollback(self) -> None:
        """Leaving will roll back, also without an exception."""
        self._wanted = TransactionState.ROLLBACK

    def unknown(self) -> None:
        """Leaving will tell the broker nothing: it asks check_transaction when transactionTimeOut is over."""
        self._wanted = TransactionState.UNKNOWN

    async def __aenter__(self) -> Self:
        assert self._result is None, "a transaction is used once"
        owner = self._owner
        what = as_half(await owner.sends.prepare(self._message, ""), owner.group)
        self._topic = what.topic
        owner.open.add(what.unique_id)
        try:
            self._result = await self._begin(what)
            if not self._result.ok:
                status = self._result.status
                await self._end(TransactionState.ROLLBACK)
                raise BrokerRefused(
                    status.value, f"half message stored with {status.name}", "", what.topic
                )
        except BaseException:
            owner.open.discard(what.unique_id)
            raise
        return self

    async def __aexit__(self, _: object, problem: BaseException | None, __: object) -> None:
        state = TransactionState.COMMIT
        if isinstance(problem, Exception):
            state = TransactionState.ROLLBACK
        elif problem is not None:
            state = TransactionState.UNKNOWN
        if state is TransactionState.COMMIT or self._wanted is TransactionState.UNKNOWN:
            state = self._wanted or state
        try:
            await self._end(state)
        finally:
            self._owner.open.discard(self.message_id)

    async def _begin(self, what: Prepared) -> SendResult:
        """Tried again only where it was surely not stored: a second half message of the same transaction would be
        asked for one day."""
        sends, tracer = self._owner.sends, self._owner.tracer
        budget = Budget(asyncio.get_running_loop().time(), self._timeout_ms)
        instance = sends.instance()
        began_ms = instance.clock.now_ms()
        failed: str | None = None
        attempts = 1 if self._queue or self._selector else self._owner.attempts
        while True:
            left_ms = budget.left_ms()
            queue = await sends.choose(self._message, self._queue, self._selector, failed, left_ms)
            try:
                result = await sends.attempt(what, [self._message], queue, max(budget.left_ms(), 1))
            except ClientError as problem:
                if tracer is not None:
                    tracer.half_failed(
                        instance, self._message, what.unique_id, queue.broker_name, began_ms,
                        budget.spent_ms(),
                    )  # fmt: skip
                attempts -= 1
                refused = isinstance(problem, BrokerRefused) and worth_retrying(problem)
                if not attempts or not refused or budget.left_ms() <= 0:
                    raise
            else:
                if tracer is not None:
                    messages, spent_ms = [self._message], budget.spent_ms()
                    tracer.sent(instance, messages, result, began_ms, spent_ms, half=True)
                return result
            failed = queue.broker_name
            await sends.instance().look_for_master(failed, what.topic, budget.left_ms())

    async def _end(self, state: TransactionState) -> None:
        self.state = state
        self._trace(state)
        if state is TransactionState.UNKNOWN:
            return
        result, owner = self.result, self._owner
        _, offset = parse_offset_message_id(result.offset_message_id)
        ext = {
            "topic": self._topic,
            "producerGroup": owner.group,
            "tranStateTableOffset": str(result.queue_offset),
            "commitLogOffset": str(offset),
            "commitOrRollback": str(state.value),
            "fromTransactionCheck": "false",
            "msgId": result.message_id,
            "transactionId": result.transaction_id or result.message_id,
            "bname": result.queue.broker_name,
        }
        budget = Budget(asyncio.get_running_loop().time(), self._timeout_ms)
        while True:
            try:
                answer = await self._ask_to_end(ext, budget.left_ms())
            except ClientError as problem:
                why: object = problem
                # A stock broker would deliver a commit that comes twice a second time.
                again = result.copies > 0 and not isinstance(problem, BrokerAnswerBroken)
            else:
                self.confirmed = answer.code == ResponseCode.SUCCESS
                why = f"{answer.code} {answer.remark or ''}"
                # Without a word, 11 is no slave's refusal: it is done, and no replica was there to have it.
                alone = answer.code == ResponseCode.SLAVE_NOT_AVAILABLE and not answer.remark
                again = answer.code in _AGAIN and not (alone and result.copies > 0)
            if self.confirmed:
                return
            if not again or budget.left_ms() <= 0:
                log.warning(
                    "transaction not ended, the broker will ask state=%s id=%s why=%s",
                    state.name, result.message_id, why,
                )  # fmt: skip
                return
            await asyncio.sleep(RETRY_PAUSE_S)
            instance = owner.sends.instance()
            await instance.look_for_master(result.queue.broker_name, self._topic, budget.left_ms())

    def _trace(self, state: TransactionState) -> None:
        owner, result = self._owner, self.result
        if owner.tracer is None:
            return
        instance, name = owner.sends.instance(), result.queue.broker_name
        end = TransactionEnd(
            result.message_id,
            result.transaction_id or result.message_id,
            instance.brokers.master(name) or name,
            result.region_id or _DEFAULT_REGION,
            instance.clock.now_ms(),
            _WORDS[state],
            asked=False,
        )
        owner.tracer.transaction_ended(self._message, end)

    async def _ask_to_end(self, ext: Mapping[str, str], left_ms: int) -> Command:
        if left_ms <= 0:
            raise CallTimedOut(f"no answer in {self._timeout_ms} ms", topic=self._topic)
        instance = self._owner.sends.instance()
        name = self.result.queue.broker_name
        address = instance.brokers.master(name) or await instance.master_address(name, self._topic)
        command = Command(RequestCode.END_TRANSACTION, dict(ext))
        try:
            return await instance.connections.request(address, command, left_ms)
        except (BrokerUnreachable, CallTimedOut):
            instance.refresh_soon()
            raise


def as_half(what: Prepared, group: str) -> Prepared:
    """The same message as a half message of a producer group."""
    return replace(what, properties=f"{what.properties}TRAN_MSG\x01true\x02PGROUP\x01{group}\x02")
