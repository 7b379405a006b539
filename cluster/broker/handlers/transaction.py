"""END_TRANSACTION (37): a producer says what becomes of its half message. RESUME_CHECK_HALF_MESSAGE (323): an operator
has one asked for again that was given up.

Source: RocketMQ's EndTransactionProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from tandemmq.cluster.broker.errors import BrokerBusy, RequestMalformed
from tandemmq.cluster.broker.replies import REFUSALS, refusal
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import EndTransactionHeader
from tandemmq.storage import FlushFailed, SysFlag, parse_offset_message_id

log = logging.getLogger(__name__)

UNKNOWN: Final = 0
WAITING_MAX: Final = 10_000  # requests, for a new master that reads in its log what is pending
WAIT_S: Final = 10.0


class TransactionHandler:
    """Whoever wants an answer gets it when the end is as safe as an acknowledged message.

    RocketMQ answers at once; its clients do not ask for one.
    """

    def __init__(self, transactions: Transactions, release: Release, standing: Standing) -> None:
        self._transactions = transactions
        self._release = release
        self._standing = standing
        self._waiting = 0

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self.handle_end_transaction,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.handle_resume_check_half_message,
        }

    def handle_resume_check_half_message(
        self, request: Command, connection: Connection
    ) -> Command | None:
        """msgId: the message id that holds address and log offset."""
        try:
            refused = self._standing.refusal()
            if refused is not None:
                raise refused.why
            try:
                _, offset = parse_offset_message_id((request.ext or {}).get("msgId", ""))
            except ValueError as problem:
                raise RequestMalformed(f"msgId: {problem}") from None
            self._answer(request, connection, self._transactions.resume(offset))
        except FlushFailed as error:
            log.error("request not answered: a write failed why=%s", error)
        except REFUSALS as error:
            return refusal(request, error)
        return None

    def handle_end_transaction(
        self, request: Command, connection: Connection
    ) -> Command | Awaitable[Command | None] | None:
        try:
            header = EndTransactionHeader.of(request)
            wanted = header.commit_or_rollback
            if wanted not in (UNKNOWN, SysFlag.COMMIT, SysFlag.ROLLBACK):
                raise RequestMalformed(f"commitOrRollback field wrong: {wanted}")
            if self._standing.role is Role.SLAVE:
                return request.reply(
                    ResponseCode.SLAVE_NOT_AVAILABLE,
                    "Message store is slave mode, so end transaction is forbidden.",
                )
            if wanted == UNKNOWN:
                return None
            refused = self._standing.refusal()
            if refused is not None and refused.wait_ms == 0:
                raise refused.why
            if refused is None and self._transactions.ready:
                return self._end(request, header, connection)
            if self._waiting >= WAITING_MAX:
                raise BrokerBusy("[OVERLOAD]system busy, start flow control for a while")
        except REFUSALS as error:
            return refusal(request, error)
        return self._end_later(request, header, connection)

    async def _end_later(
        self, request: Command, header: EndTransactionHeader, connection: Connection
    ) -> Command | None:
        """A change of role is under way, or this master does not know yet what is pending."""
        self._waiting += 1
        try:
            refused = self._standing.refusal()
            if refused is not None:
                await asyncio.wait((self._standing.changes.settled(refused.wait_ms),))
            async with asyncio.timeout(WAIT_S):
                await self._transactions.became_ready.wait()
            refused = self._standing.refusal()
            if refused is not None:
                raise refused.why
            return self._end(request, header, connection)
        except TimeoutError:
            return refusal(request, BrokerBusy("transactions are not served yet"))
        except REFUSALS as error:
            return refusal(request, error)
        finally:
            self._waiting -= 1

    def _end(
        self, request: Command, header: EndTransactionHeader, connection: Connection
    ) -> Command | None:
        def noted(end: int | None) -> None:
            if end is None:
                connection.send(
                    refusal(request, BrokerBusy("the rollback is not noted yet: it will be"))
                )
            else:
                self._answer(request, connection, end)

        try:
            if header.commit_or_rollback == SysFlag.COMMIT:
                self._answer(request, connection, self._transactions.commit(header))
            else:
                self._transactions.roll_back(header, None if request.oneway else noted)
        except FlushFailed as error:
            log.error("transaction not answered: a write failed why=%s", error)
        except REFUSALS as error:
            if request.oneway:
                log.info("transaction not ended why=%s", error)
            return refusal(request, error)
        return None

    def _answer(self, request: Command, connection: Connection, end: int) -> None:
        if request.oneway:
            return
        answer = request.reply()
        if self._release.holds:
            self._release.hold(end, connection, answer)
            self._release.due()  # also where nothing new was put
        else:
            connection.send(answer)
