"""Whether a classic slave's log and its master's are one: who asks whom, over remoting (INV-36).

    our slave, our master     COMPARE_LOGS: a checksum of the slave's last stretch; the master says, and gives a pass
    our slave, stock master   VIEW_MESSAGE_BY_ID: the record at the slave's end, byte by byte
    stock slave, our master   the same, asked by the master
Nothing of a stored record may differ between two logs: RocketMQ's slaves append what they are sent as it is.
Source: RocketMQ's DefaultHAClient, DefaultHAConnection; AdminBrokerProcessor, QueryMessageProcessor.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.cluster.broker.duplicates import Requests, group_members
from tandemmq.cluster.broker.replies import REFUSALS, refusal
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.parting import cut_where_they_part, take_back, word_of
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.channel import split_address
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import RemotingError
from tandemmq.cluster.remoting.headers import CompareLogsHeader
from tandemmq.replication.comparing import (
    STRETCH_BYTES,
    Finding,
    Verdict,
)
from tandemmq.replication.keeping import cut_log
from tandemmq.storage import (
    Entry,
    MessageStore,
    begins_entry,
    entry_before,
    entry_bytes,
    fastjson,
    stretch_digest,
)

log = logging.getLogger(__name__)

ASK_MS: Final = 3_000
DISPATCHED_RECORDS: Final = 2_048  # per turn of the loop
WAITING_MAX: Final = 8  # slaves whose logs are to be compared; who is refused asks again
LOG_AGAIN_S: Final = 10
#: fields of the answer to COMPARE_LOGS
VERDICT: Final = "verdict"  # a Verdict's value, or AGAIN
AGAIN: Final = "again"  # with LOG_START: the master's log starts there, compare from there on
LOG_START: Final = "logStart"  # alone: the master has nothing of what it was asked about
PASS: Final = "pass"
WHY: Final = "why"
SEED: Final = "seed it anew, or make it the master"


# --- our master, asked by our slave ---


class ComparingMaster:
    """Answers COMPARE_LOGS, one at a time: whoever reaches this port may ask.

    give    a pass for a slave whose log ends there and was compared
    group   our cluster and broker name
    """

    def __init__(
        self,
        store: MessageStore,
        give: Callable[[int], int],
        group: tuple[str, str] = ("", ""),
    ) -> None:
        self._store = store
        self._give = give
        self._group = group
        self._turn = asyncio.Lock()  # a stretch is read and hashed in a thread that others need too
        self._waiting: set[str] = set()  # hosts, each with one question
        self._warning = once_per(LOG_AGAIN_S)

    async def handle(self, request: Command, connection: Any) -> Command:
        try:
            header = CompareLogsHeader.of(request)
        except REFUSALS as error:
            return refusal(request, error)
        if (wrong := self._wrong_group(header)) is not None:
            return request.reply(ResponseCode.SYSTEM_ERROR, wrong)
        host = connection.peer[0]
        if host in self._waiting or len(self._waiting) >= WAITING_MAX:
            return request.reply(ResponseCode.SYSTEM_BUSY, "comparing other logs, ask again")
        self._waiting.add(host)
        try:
            async with self._turn:
                return await self._compared(request, header)
        finally:
            self._waiting.discard(host)

    def _wrong_group(self, header: CompareLogsHeader) -> str | None:
        """Why this is no slave of ours; None when it may be one."""
        asked = header.cluster_name, header.broker_name
        if asked == (None, None) or asked == self._group:
            return None
        return f"this is {'/'.join(self._group)}, asked was {'/'.join(map(str, asked))}"

    async def _compared(self, request: Command, header: CompareLogsHeader) -> Command:
        store, end = self._store, header.log_end
        if not 0 <= header.log_start <= end:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, "a stretch ends where it starts or later"
            )
        if end > store.end:
            why = f"its log ends at {end}, ours at {store.end}: it has what we lost or never had; {SEED}"
            return self._said(request, Verdict.DIFFERS, why)
        start = store.start
        if header.log_start == end > start:
            # A log that is empty began where ours did then, or nothing of it was shown.
            why = f"no byte of its log below {end} was shown: {SEED}"
            return self._said(request, Verdict.DIFFERS, why)
        if header.log_start < start:
            if end <= start:
                why = f"its log ends at {end}, ours starts at {start}: it must be seeded anew"
                return self._said(request, Verdict.DIFFERS, why, start)
            return request.reply(ext={VERDICT: AGAIN, LOG_START: str(start)})
        if end - header.log_start > STRETCH_BYTES:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"more than {STRETCH_BYTES} bytes")
        ours = await asyncio.to_thread(stretch_digest, store.log, header.log_start, end)
        if ours is None:
            return self._said(request, Verdict.UNKNOWN, "our log was trimmed meanwhile")
        same = ours.hex() == header.digest
        if not same or not (header.boundary < start or begins_entry(store.log, header.boundary)):
            why = f"two logs: the bytes below {end} are not ours; {SEED}"
            return self._said(request, Verdict.DIFFERS, why)
        return request.reply(ext={VERDICT: Verdict.SAME.value, PASS: str(self._give(end))})

    def _said(self, request: Command, verdict: Verdict, why: str, start: int = 0) -> Command:
        self._warning.warning(
            log, "a slave asked whether it has our log verdict=%s why=%s", verdict.value, why
        )
        return request.reply(ext={VERDICT: verdict.value, WHY: why, LOG_START: str(start)})


# --- our slave, which asks its master ---


@dataclass(frozen=True, slots=True, eq=False)
class AskingSlave:
    """Holds a slave's log against its master's, whatever that one is.

    group   our cluster and broker name: who answers for another one is not our master
    """

    store: MessageStore
    requests: Requests
    group: tuple[str | None, str | None] = (None, None)

    async def compare(self, master: str | None) -> Finding:
        """master: where it answers clients; None while nobody knows. Raises OSError, FlushFailed of a
        cut."""
        if master is None:
            return Finding(Verdict.UNKNOWN, "nobody says where the master answers")
        try:
            found = await self._ask_ours(master, self.store.end)
            if found is None:
                return await self._ask_stock(master)
            if found.verdict is Verdict.DIFFERS:
                found = await self._without_half(master) or found
            if word_of(self.store).exists():
                if found.verdict is Verdict.DIFFERS:
                    return await self._cut(master)
                if found.verdict is Verdict.SAME:  # it was not meant for what may happen later
                    await asyncio.to_thread(take_back, self.store)
                    log.warning("nothing to cut, the logs are one: cut-to-master removed")
            return found
        except (RemotingError, ValueError) as problem:
            return Finding(Verdict.UNKNOWN, f"master {master} does not say: {problem}")

    async def _cut(self, master: str) -> Finding:
        """The operator's word: give up what the master does not have."""

        async def up_to(end: int) -> Finding:
            gone = Finding(Verdict.UNKNOWN, f"master {master} was replaced meanwhile")
            return await self._ask_ours(master, end) or gone

        problem = await cut_where_they_part(self.store, up_to)
        return problem or await up_to(self.store.end)

    async def _without_half(self, master: str) -> Finding | None:
        """Cut the half message that our log ends with, if all before it is this master's.

        It came from a former master, which died while sending; ours never had it, and nobody counted it.
        """
        store = self.store
        whole = await self._whole()
        if whole is None or whole >= store.end:
            return None
        found = await self._ask_ours(master, whole)
        if found is None or found.verdict is not Verdict.SAME:
            return None
        log.info("half a message cut from=%d to=%d", whole, store.end)
        await cut_log(store, whole)
        return found

    async def _whole(self) -> int | None:
        """Where the last whole message of our log ends; None when queues cannot be derived that far."""
        store = self.store
        while store.dispatch(DISPATCHED_RECORDS):  # noqa: ASYNC110 - a turn for others
            await asyncio.sleep(0)
        whole = store.dispatched
        if whole < store.end and (not store.flags.queue_writable or store.starved):
            return None
        return whole

    async def _ask_ours(self, master: str, end: int) -> Finding | None:
        """Of our log up to `end`. None: it is none of ours, or of an older release."""
        store = self.store
        start = max(store.start, end - STRETCH_BYTES)
        for _ in range(3):  # its start moves on, seldom
            digest = await asyncio.to_thread(stretch_digest, store.log, start, end)
            if digest is None:
                break
            boundary = store.dispatched
            header = CompareLogsHeader(start, end, min(boundary, end), digest.hex(), *self.group)
            command = Command(RequestCode.COMPARE_LOGS, header.to_ext())
            answer = await self.requests.request(master, command, ASK_MS)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            fields = answer.ext or {}
            if answer.code != ResponseCode.SUCCESS:
                return Finding(Verdict.UNKNOWN, f"master {master} says {answer.remark}")
            said = fields.get(VERDICT, "")
            if said != AGAIN:
                why = f"master {master}: {fields.get(WHY, '')}"
                starts = int(fields.get(LOG_START, "0"))
                return Finding(Verdict(said), why, int(fields.get(PASS, "0")), starts)
            start = max(start, min(int(fields.get(LOG_START, "0")), end))
        return Finding(Verdict.UNKNOWN, "the start of one of the logs moves")

    async def _ask_stock(self, master: str) -> Finding:
        store = self.store
        whole = await self._whole()
        if whole is None:
            why = f"our queues end at {store.dispatched}: {store.flags.why()}"
            return Finding(Verdict.UNKNOWN, why)
        if whole < store.end:
            # half a message, of which that master can say nothing: all of it is asked for again
            log.info("half a message cut from=%d to=%d", whole, store.end)
            store.truncate(whole)
        end = store.end
        if end == store.start:
            return Finding(Verdict.SAME)  # nothing is left that could differ
        entry = await asyncio.to_thread(entry_before, store.log, end)
        if entry is None or entry.stop != end:
            return Finding(Verdict.UNKNOWN, f"our log has no whole message below {end}")
        return await compare_entry(self.requests, master, store, entry)


async def compare_entry(
    requests: Requests, address: str, store: MessageStore, entry: Entry
) -> Finding:
    """Hold one entry of our log against what the broker there has in its place. Raises RemotingError, ValueError."""
    ours = entry_bytes(store.log, entry)
    if ours is None:
        return Finding(Verdict.UNKNOWN, "our log was trimmed meanwhile")
    command = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(entry.start)})
    answer = await requests.request(address, command, ASK_MS)
    if answer.code != ResponseCode.SUCCESS:
        why = f"{address} shows no message at {entry.start}, where ours ends at {entry.stop}"
        return Finding(Verdict.UNKNOWN, f"{why}: {answer.remark}")
    theirs = bytes(answer.body or b"")
    if (theirs[: len(ours)] if entry.blank else theirs) != ours:
        why = f"two logs: what {address} has at {entry.start} is not what we have; {SEED}"
        return Finding(Verdict.DIFFERS, why)
    return Finding(Verdict.SAME)


# --- our master, which asks a stock slave ---


@dataclass(frozen=True, slots=True, eq=False)
class ExaminingMaster:
    """Holds the log of a slave that cannot ask for it, or is older than that, against ours.

    sent_to  whether this process sent a counted slave on that host the bytes right below an offset
    """

    config: BrokerConfig
    store: MessageStore
    names: Requests
    brokers: Requests
    sent_to: Callable[[str, int], bool]

    async def examine(self, host: str, end: int) -> Finding:
        """Of the slave on that host whose log ends at `end`, by its first report."""
        try:
            finding = await self._examine(host, end)
        except (RemotingError, OSError, ValueError) as problem:
            finding = Finding(Verdict.UNKNOWN, str(problem))
        if finding.verdict is Verdict.UNKNOWN:
            why = f"its log, which ends at {end}, cannot be compared with ours: {finding.why}"
            return Finding(Verdict.UNKNOWN, why)
        return finding

    async def _examine(self, host: str, end: int) -> Finding:
        if end <= self.store.start:
            return Finding(
                Verdict.DIFFERS,
                f"reports {end}, our log starts at {self.store.start}: it must be seeded anew",
            )
        there = await self._standing_at(host, end)
        if not there:  # a stranger, mostly: looking for the record would be work for nothing
            why = f"no name server knows a slave at {host} that answers and ends there"
            return Finding(Verdict.UNKNOWN, why)
        entry = await asyncio.to_thread(entry_before, self.store.log, end)
        if entry is None:
            return Finding(Verdict.UNKNOWN, f"we have no whole message below {end}")
        if entry.stop != end and not self.sent_to(host, end):
            why = f"{end} lies inside a message of ours: restart it, then it cuts its half"
            return Finding(Verdict.UNKNOWN, why)
        found = [await compare_entry(self.brokers, each, self.store, entry) for each in there]
        if len({each.verdict for each in found}) > 1:
            return Finding(Verdict.UNKNOWN, f"several slaves at {host} end there, and they differ")
        return found[0]

    async def _standing_at(self, host: str, end: int) -> list[str]:
        """The slaves of our group on that host whose logs end there, by their addresses for clients."""
        config = self.config
        asked = [
            f"[{at}]:{port}" if ":" in at else f"{at}:{port}" for at, port in config.name_servers
        ]
        groups = await asyncio.gather(
            *(group_members(self.names, each, config.name, ASK_MS) for each in asked)
        )
        known = {
            member.address
            for members in groups
            for member in members or ()
            if member.broker_id and member.cluster == config.cluster
        }
        there = [each for each in sorted(known) if await _is_on(each, host)]
        if not there and len(known) == 1:
            there = list(known)  # it has several addresses, and can be no other
        ends = await asyncio.gather(*(self._end_of(each) for each in there))
        return [each for each, at in zip(there, ends, strict=True) if at == end]

    async def _end_of(self, address: str) -> int | None:
        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            answer = await self.brokers.request(address, command, ASK_MS)
            return int(fastjson.loads(answer.body or b"{}")["table"]["commitLogMaxOffset"])
        except (RemotingError, ValueError, KeyError, TypeError) as problem:
            log.info("slave not asked how far its log goes address=%s why=%s", address, problem)
            return None


async def _is_on(address: str, host: str) -> bool:
    """Whether a broker's address is on that host, which is an IP address."""
    name, port = split_address(address)
    if name == host:
        return True
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(each[4][0] == host for each in found)
