"""A slave's copy of its master's tables: asks for them, checks them, takes them over.

The log stream carries messages only. Topics, progress, delay progress and groups are asked for here,
from a master of ours or a stock one. Source: RocketMQ's SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from cluster.broker.config import Role
from cluster.broker.delay import DelaySchedule
from cluster.broker.groups import GroupTable
from cluster.broker.mastertables import (
    Read,
    TableRefused,
    read_delays,
    read_groups,
    read_offsets,
    read_topics,
)
from cluster.broker.offsets import OffsetTable, Place
from cluster.broker.queuestarts import QueueStarts
from cluster.broker.savedfile import SavedFile
from cluster.broker.topics import TopicTable
from cluster.broker.versions import DataVersion
from cluster.logs import once_per
from cluster.remoting.codes import RequestCode, ResponseCode
from cluster.remoting.command import Command
from cluster.remoting.errors import ConnectFailed, RemotingError
from storage import Clock, fastjson

log = logging.getLogger(__name__)

TICK_MS: Final = 3_000  # RocketMQ's slaves look as often whether something is due
STOCK_MS: Final = 10_000  # and copy everything so often (4.x, and 5.x under a controller)
ASK_MS: Final = 5_000
ASK_LARGE_MS: Final = 30_000  # RocketMQ's, for topics and groups
NEW_TOPIC_MS: Final = 1_000  # a topic that only the log knows is asked for at once, but not oftener
PAGES_MAX: Final = 1_000
PAGE_ENTRIES: Final = 2_000
STARTS_MS: Final = 1_000  # of a round; the tables come first
BODY_BYTES_ON_LOOP_MAX: Final = 64 << 10  # larger bodies are read in a thread

#: Ours, not RocketMQ's. A slave says which state of a table it has; a master of ours that is still
#: in it answers without a body. Stock ones ignore the one and never send the other.
STAMP: Final = "tableStamp"
UNCHANGED: Final = "tableUnchanged"
#: on UPDATE_CONSUMER_OFFSET: keep what is further (ours)
ONLY_FORWARD: Final = "onlyForward"


class Requests(Protocol):
    """How the master is reached; ChannelPool is one."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """What is kept equal to the master's.

    forget_topic  its queues and its progress go too
    stored        how many queues each topic has in the store
    queue_end     (topic, queue id) -> the queue's end in our own log
    """

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    schedule: DelaySchedule
    forget_topic: Callable[[str], None]
    stored: Callable[[], Mapping[str, int]]
    queue_end: Callable[[str, int], int]

    def file(self, code: RequestCode) -> SavedFile:
        """The file of the table that a request asks for."""
        match code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return self.topics.file
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return self.offsets.file
            case RequestCode.GET_ALL_DELAY_OFFSET:
                return self.schedule.file
            case _:
                return self.groups.file


# -- asking


@dataclass(frozen=True, slots=True)
class _Kind:
    """One table: how it is asked for, and how its pages are counted (5.4 and later)."""

    code: RequestCode
    name: str
    read: Callable[[bytes | memoryview], Read]
    timeout_ms: int
    total: str = ""
    sequence: str = ""
    size: str = ""


KINDS: Final = (
    _Kind(RequestCode.GET_ALL_TOPIC_CONFIG, "topics", read_topics, ASK_LARGE_MS,
          "totalTopicNum", "topicSeq", "maxTopicNum"),
    _Kind(RequestCode.GET_ALL_CONSUMER_OFFSET, "progress", read_offsets, ASK_MS),
    _Kind(RequestCode.GET_ALL_DELAY_OFFSET, "delays", read_delays, ASK_MS),
    _Kind(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groups", read_groups, ASK_LARGE_MS,
          "totalGroupNum", "groupSeq", "maxGroupNum"),
)  # fmt: skip


class TableSync:
    """Keeps a slave's tables equal to its master's, while it has one.

    master     address of the master to copy from; None on a master, and while none is known
    requests   how it is asked
    starts     where queues begin of which this slave never saw a message
    A table is replaced as a whole, in one step of the loop; what cannot be read changes nothing and
    does not stop the others. Progress committed on this slave while its master was away is told to
    the master, so that nobody who asks there is sent back.
    """

    def __init__(
        self,
        master: Callable[[], str | None],
        requests: Requests,
        tables: Tables,
        clock: Clock,
        starts: QueueStarts,
    ) -> None:
        self._master = master
        self._requests = requests
        self._tables = tables
        self._clock = clock
        self._starts = starts
        self._woken = asyncio.Event()
        self._source: str | None = None  # whom the stamps are of
        self._stamps: dict[
            RequestCode, tuple[str, int]
        ] = {}  # and which generation of ours it made
        self._asked_ms: dict[RequestCode, int] = {}
        self._noticed_ms = -NEW_TOPIC_MS
        self._failing = once_per(30)
        self._skipping = once_per(30)
        self.rounds = 0  # that copied or compared every table
        self.failures = 0
        self.synced_ms = 0  # wall time of the last round without a failure

    def start(self, role: Role) -> None:
        """The tables were loaded, for this role."""
        tables = self._tables
        slave = role is Role.SLAVE
        tables.topics.following = tables.groups.following = slave
        if slave:
            tables.offsets.start_following()
        else:
            tables.offsets.stop_following()

    def role_changed(self, role: Role) -> None:
        """From now on the tables are the master's, or ours are the ones that count.

        A slave that becomes the master has every message, but perhaps not yet what was decided about
        their topics in the last moment.
        """
        tables = self._tables
        self.start(role)
        if role is not Role.SLAVE:
            tables.schedule.correct()
            # The master before us may have had more, which it alone knew.
            if beyond := tables.offsets.limit(tables.queue_end):
                log.warning("progress beyond our log taken back queues=%d", beyond)
            made = tables.topics.cover(tables.stored())
            if made:
                log.warning("topics known by their messages alone topics=%s", ",".join(made[:20]))
        self._woken.set()

    def noticed(self, topics: Iterable[str]) -> None:
        """The log has messages of these topics: one that the table lacks was made a moment ago."""
        known = self._tables.topics
        if all(topic in known for topic in topics):
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._noticed_ms >= NEW_TOPIC_MS:
            self._noticed_ms = now_ms
            self._asked_ms.pop(RequestCode.GET_ALL_TOPIC_CONFIG, None)
            self._woken.set()

    async def run(self) -> None:
        """Copy whatever is due until cancelled."""
        try:
            while True:
                self._woken.clear()
                master = self._master()
                if master is not None:
                    await self.round(master)
                try:
                    async with asyncio.timeout(TICK_MS / 1000):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            await self._requests.close()

    async def round(self, master: str) -> bool:
        """Copy from a master what is due; whether all of it could be copied."""
        if master != self._source:
            log.info("copying tables from master=%s before=%s", master, self._source)
            self._source = master
            self._stamps.clear()
            self._asked_ms.clear()
            self._starts.forget()
        sound = True
        began_ms = self._clock.monotonic_ms()
        for kind in KINDS:
            if not self._due(kind):
                continue
            try:
                await self._copy(kind, master)
            except ConnectFailed as problem:
                self._failed(kind.name, master, problem)
                return False  # the others would say the same
            except (RemotingError, TableRefused, OSError, ValueError) as problem:
                self._failed(kind.name, master, problem)
                sound = False
        # Right after its progress was read: what it does not have, it did not have a moment ago.
        if sound and self._asked_ms[RequestCode.GET_ALL_CONSUMER_OFFSET] >= began_ms:
            sound = await self._tell(master)
        if sound:
            await self._learn_starts(master)
            self.rounds += 1
            self.synced_ms = self._clock.now_ms()
        return sound

    def _due(self, kind: _Kind) -> bool:
        if kind.code in self._stamps:
            return True  # cheap: an unchanged table has no body
        asked_ms = self._asked_ms.get(kind.code)
        return asked_ms is None or self._clock.monotonic_ms() - asked_ms >= STOCK_MS

    async def _copy(self, kind: _Kind, master: str) -> None:
        self._asked_ms[kind.code] = self._clock.monotonic_ms()
        file = self._tables.file(kind.code)
        stamp, generation = self._stamps.get(kind.code, ("", 0))
        if file.generation != generation:
            stamp = ""  # changed here since: all of it is wanted
        answer = await self._ask(kind, master, {STAMP: stamp})
        fields = answer.ext or {}
        if fields.get(UNCHANGED) == "true":
            return
        read = await _read(kind, answer)
        total = fields.get(kind.total, "") if kind.total else ""
        if total.isdigit() and int(total) > len(read.entries) + len(read.skipped):
            read = await self._pages(kind, master, read, int(total))
        if self._master() != master:
            return  # somebody else is the master by now, or we are
        self._take(kind, read)
        if stamp := fields.get(STAMP, ""):
            self._stamps[kind.code] = (stamp, file.generation)

    async def _ask(self, kind: _Kind, master: str, ext: dict[str, str]) -> Command:
        answer = await self._requests.request(master, Command(kind.code, ext), kind.timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise TableRefused(f"it answered code {answer.code}: {answer.remark}")
        return answer

    async def _pages(self, kind: _Kind, master: str, first: Read, total: int) -> Read:
        """The rest of a table that comes in pages, of one version."""
        entries, skipped = dict(first.entries), list(first.skipped)
        version = fastjson.dumps(first.version.to_json()).decode()
        for _ in range(PAGES_MAX):
            count = len(entries) + len(skipped)
            if count >= total:
                return Read(entries, first.version, skipped, first.forbidden)
            ext = {
                kind.sequence: str(count),
                kind.size: str(PAGE_ENTRIES),
                "dataVersion": version,
            }
            page = await _read(kind, await self._ask(kind, master, ext))
            if page.version != first.version:
                raise TableRefused("the table changed between two pages")
            entries.update(page.entries)
            skipped += page.skipped
            if len(entries) + len(skipped) == count:
                break
        raise TableRefused(f"{total} entries promised, {len(entries) + len(skipped)} found")

    def _take(self, kind: _Kind, read: Read) -> None:
        if read.skipped:
            self._skipping.warning(
                log, "entries of the master's table left out table=%s count=%d first=%s",
                kind.name, len(read.skipped), read.skipped[0],
            )  # fmt: skip
        tables = self._tables
        match kind.code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                self._take_topics(read)
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                tables.offsets.adopt(read.entries, read.version)
            case RequestCode.GET_ALL_DELAY_OFFSET:
                tables.schedule.adopt(read.entries, read.version)
            case _:
                gone = tables.groups.adopt(read.entries, read.forbidden, read.version)
                if gone:
                    log.info("groups deleted as on the master count=%d", len(gone))

    def _take_topics(self, read: Read) -> None:
        """A topic that the master deleted loses its queues here too, else its next life would begin
        behind the entries of this one. A master whose table is older than the copy lost its file:
        it deleted nothing on purpose, and the queues stay.
        """
        table = self._tables.topics
        older = _order(read.version) < _order(table.version)
        gone = table.adopt(read.entries, read.version)
        if not gone:
            return
        if older:
            log.warning("master's topics are older than our copy, queues stay lost=%d", len(gone))
            return
        log.info("topics deleted as on the master topics=%s", ",".join(gone[:20]))
        for name in gone:
            self._tables.forget_topic(name)

    async def _learn_starts(self, master: str) -> None:
        """Ask where the queues stand of which neither of us may have a message, for a second at most."""
        began_ms = self._clock.monotonic_ms()
        for topic in self._starts.wanted(began_ms):
            if self._clock.monotonic_ms() - began_ms >= STARTS_MS:
                return
            self._starts.asking(topic)
            command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            try:
                answer = await self._requests.request(master, command, ASK_MS)
                if self._master() != master:
                    return
                self._starts.take(topic, answer)
            except RemotingError as problem:
                self._failed(f"queues of {topic}", master, problem)
                return
            except (TableRefused, OSError, ValueError) as problem:
                self._failed(f"queues of {topic}", master, problem)

    async def _tell(self, master: str) -> bool:
        """Tell the master of progress that was committed here while it was away."""
        offsets = self._tables.offsets
        told = 0
        for place, offset in offsets.ahead.items():
            if self._master() != master:
                return False
            try:
                if await self._tell_one(master, place, offset):
                    offsets.acknowledged(place, offset)
                    told += 1
            except RemotingError as problem:
                self._failed("progress committed here", master, problem)
                return False
        if told:
            log.info("master told of progress that was committed here queues=%d", told)
        return True

    async def _tell_one(self, master: str, place: Place, offset: int) -> bool:
        group, topic, queue_id = place
        ext = {
            "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
            "commitOffset": str(offset), ONLY_FORWARD: "true",
        }  # fmt: skip
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        answer = await self._requests.request(master, command, ASK_MS)
        if answer.code != ResponseCode.SUCCESS:
            # A group that no consumer announced there yet: it is told again with the next round.
            log.debug("progress not taken group=%s why=%s", group, answer.remark)
        return answer.code == ResponseCode.SUCCESS

    def _failed(self, what: str, master: str, problem: Exception) -> None:
        self.failures += 1
        self._failing.warning(log, "not copied table=%s master=%s why=%s", what, master, problem)


async def _read(kind: _Kind, answer: Command) -> Read:
    body = answer.body or b""
    if len(body) > BODY_BYTES_ON_LOOP_MAX:
        return await asyncio.to_thread(kind.read, bytes(body))
    return kind.read(body)


def _order(version: DataVersion) -> tuple[int, int, int]:
    """As RocketMQ compares versions."""
    return version.state_version, version.counter, version.timestamp
