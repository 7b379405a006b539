"""A slave's copy of its master's tables: asks for them, checks them, takes them over.

The log stream carries messages only. Topics, progress, delay progress and groups are asked for here,
from a master of ours or a stock one. Source: RocketMQ's SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tandemmq.cluster.broker.sending.delay import DelaySchedule
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.mastertables import (
    Read,
    TableRefused,
    read_delays,
    read_groups,
    read_log_end,
    read_offsets,
    read_topics,
)
from tandemmq.cluster.broker.tables.offsets import OffsetTable, Place
from tandemmq.cluster.broker.tables.queuestarts import QueueStarts
from tandemmq.cluster.broker.tables.resting import RESTS_ON
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectFailed, RemotingError
from tandemmq.storage import Clock, MessageStore, fastjson

log = logging.getLogger(__name__)

TICK_MS: Final = 3_000  # RocketMQ's slaves look as often whether something is due
RETRY_MS: Final = 100  # after a first failure; doubled for the next
STOCK_MS: Final = 10_000  # and copy everything so often (4.x, and 5.x under a controller)
ASK_MS: Final = 5_000
ASK_LARGE_MS: Final = 30_000  # RocketMQ's, for topics and groups
NEW_TOPIC_MS: Final = 1_000  # a topic that only the log knows is asked for at once, but not oftener
PAGES_MAX: Final = 1_000
PAGE_ENTRIES: Final = 2_000
STARTS_MS: Final = 1_000  # of a round; the tables come first
HELD_MS: Final = 200
HELD_LOOK_MS: Final = 10
FOLLOW_LOOK_MS: Final = 100  # how soon it is seen that there is a master to follow
FOLLOW_TIMEOUT_MS: Final = 8_000
FOLLOW_MS_MAX: Final = 10_000  # a question that is held longer was lost
BODY_BYTES_ON_LOOP_MAX: Final = 64 << 10  # larger bodies are read in a thread

#: Ours, not RocketMQ's. A slave says which state of a table it has; a master of ours that is still
#: in it answers without a body. Stock ones ignore the one and never send the other.
STAMP: Final = "tableStamp"
UNCHANGED: Final = "tableUnchanged"
#: ours as well: which broker of the group asks, and that it takes the last changes in place of the
#: table, which the answer then says it holds; and that the question may wait for a change
READER: Final = "tableReader"
READER_LIFE: Final = "tableReaderLife"  # and which process of that broker
CHANGES: Final = "tableChanges"
HOLD: Final = "tableHold"
#: on UPDATE_CONSUMER_OFFSET: keep what is further (ours)
ONLY_FORWARD: Final = "onlyForward"


class Requests(Protocol):
    """How the master is reached; ChannelPool is one."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command: ...

    def drop(self, address: str, why: str) -> None: ...

    async def close(self) -> None: ...


class Companion(Protocol):
    """What comes with the groups: users and rules (Guarding), queue locks (QueueLocks)."""

    file: SavedFile

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Become what the master's is. Raises ValueError; then nothing changed."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What is kept equal to the master's.

    deletions     file of the store's tombstones; they come and go with the topics
    reader        our id in the group, and the incarnation of this process; 0 without a controller
    forget_topic  its queues and its progress go too, of messages below a log offset
    stored        how many queues each topic has in the store
    holds         whether our log is the master's up to an offset, and confirmed
    """

    topics: TopicTable
    deletions: SavedFile
    groups: GroupTable
    offsets: OffsetTable
    schedule: DelaySchedule
    forget_topic: Callable[[str, int], None]
    stored: Callable[[], Mapping[str, int]]
    store: MessageStore
    reader: Callable[[], tuple[int, int]]
    holds: Callable[[int], bool] = lambda end: True
    access: Companion | None = None
    locks: Companion | None = None

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
    """One table: how it is asked for, and how its pages are counted (5.4 and later).

    followed  a master of ours tells of every change at once
    """

    code: RequestCode
    name: str
    read: Callable[[bytes | memoryview], Read]
    timeout_ms: int
    total: str = ""
    sequence: str = ""
    size: str = ""
    followed: bool = False


KINDS: Final = (
    _Kind(RequestCode.GET_ALL_TOPIC_CONFIG, "topics", read_topics, ASK_LARGE_MS,
          "totalTopicNum", "topicSeq", "maxTopicNum", followed=True),
    _Kind(RequestCode.GET_ALL_CONSUMER_OFFSET, "progress", read_offsets, ASK_MS),
    _Kind(RequestCode.GET_ALL_DELAY_OFFSET, "delays", read_delays, ASK_MS),
    _Kind(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groups", read_groups, ASK_LARGE_MS,
          "totalGroupNum", "groupSeq", "maxGroupNum", followed=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A table as it was read. One of progress may rest on more of the log than is here (INV-41).

    log_end     where our log ended when the table was asked for
    generation  of ours then
    """

    read: Read
    stamp: str
    rests_on: int
    log_end: int
    generation: int


#: what follows from the log, and must not be here before it
PROGRESS: Final = frozenset({RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET})


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
        self._waiting: dict[RequestCode, _Waiting] = {}
        self._ended: set[str] = set()  # topics deleted since progress was asked for
        self._followed_ms: dict[RequestCode, int] = {}  # when the master last held a question
        self._turns = {kind.code: asyncio.Lock() for kind in KINDS}
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
            tables.store.tombstones.log_ends_at(tables.store.end)
            self.save_deletions()

    def save_deletions(self) -> None:
        """Before more of the log comes: a file that has a deletion further on would, at the next start,
        count it as deleted."""
        file = self._tables.deletions
        try:
            file.save()
        except OSError as problem:
            log.error("deletions not saved path=%s why=%s", file.path, problem)

    def role_changed(self, role: Role) -> None:
        """From now on the tables are the master's, or ours are the ones that count.

        A slave that becomes the master has every message, but perhaps not yet what was decided about
        their topics in the last moment.
        """
        tables = self._tables
        self._waiting.clear()
        if self._source is not None and self._master() != self._source:
            # A host that went dark answers never: what is asked of it would keep us from its successor.
            self._requests.drop(self._source, "it is not our master any more")
        self.start(role)
        if role is not Role.SLAVE:
            tables.schedule.correct()
            # The master before us may have had more, which it alone knew.
            if beyond := tables.offsets.limit(tables.store.max_offset):
                log.warning("progress beyond our log taken back queues=%d", beyond)
                tables.offsets.file.take_back()
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
            async with asyncio.TaskGroup() as group:
                for kind in KINDS:
                    if kind.followed:
                        group.create_task(self._follow(kind), name=f"follow {kind.name}")
                retry_ms = RETRY_MS
                while True:
                    self._woken.clear()
                    master = self._master()
                    if master is None or await self.round(master):
                        retry_ms = RETRY_MS
                        await self._due_again(master, TICK_MS)
                    else:
                        await self._due_again(master, retry_ms)
                        retry_ms = min(2 * retry_ms, TICK_MS)
        finally:
            await self._requests.close()

    async def _due_again(self, master: str | None, within_ms: int) -> None:
        """Until something may be due. A new master is asked at once: we do not count before (INV-43)."""
        until_ms = self._clock.monotonic_ms() + within_ms
        while self._master() == master and self._clock.monotonic_ms() < until_ms:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), FOLLOW_LOOK_MS / 1000)
                return

    async def _follow(self, kind: _Kind) -> None:
        """While a master of ours is followed: have each change told at once, and say that it is here."""
        while True:
            master = self._master()
            if master is None or master != self._source or kind.code not in self._stamps:
                await asyncio.sleep(FOLLOW_LOOK_MS / 1000)
            elif not await self.hear(kind, master):
                await asyncio.sleep(TICK_MS / 1000)

    async def hear(self, kind: _Kind, master: str) -> bool:
        """Ask for one table's next change and take it over; whether that could be done."""
        self._followed_ms[kind.code] = self._clock.monotonic_ms()
        try:
            async with self._turns[kind.code]:
                await self._copy(kind, master, hold=True)
            return True
        except (RemotingError, TableRefused, OSError, ValueError) as problem:
            self._followed_ms.pop(kind.code, None)
            self._failed(kind.name, master, problem)
            return False

    async def round(self, master: str) -> bool:
        """Copy from a master what is due; whether all of it could be copied."""
        if master != self._source:
            log.info("copying tables from master=%s before=%s", master, self._source)
            self._source = master
            self._stamps.clear()
            self._asked_ms.clear()
            self._waiting.clear()
            self._followed_ms.clear()
            self._starts.forget()
        sound = True
        began_ms = self._clock.monotonic_ms()
        for kind in KINDS:
            if not self._due(kind):
                continue
            try:
                async with self._turns[kind.code]:
                    await self._copy(kind, master)
            except ConnectFailed as problem:
                self._to_ask_again(kind, master, problem)
                return False  # the others would say the same
            except (RemotingError, TableRefused, OSError, ValueError) as problem:
                self._to_ask_again(kind, master, problem)
                sound = False
        # Right after its progress was read: what it does not have, it did not have a moment ago.
        if sound and self._asked_ms.get(RequestCode.GET_ALL_CONSUMER_OFFSET, -1) >= began_ms:
            sound = await self._tell(master)
        if sound:
            await self._learn_starts(master)
            self.rounds += 1
            self.synced_ms = self._clock.now_ms()
        return sound

    def _to_ask_again(self, kind: _Kind, master: str, problem: Exception) -> None:
        """With the next round: without its tables a replica does not count as one that has everything."""
        self._asked_ms.pop(kind.code, None)
        self._failed(kind.name, master, problem)

    def _due(self, kind: _Kind) -> bool:
        if (followed_ms := self._followed_ms.get(kind.code)) is not None:
            return self._clock.monotonic_ms() - followed_ms >= FOLLOW_MS_MAX
        if kind.code in self._stamps or kind.code in self._waiting:
            return True  # cheap: an unchanged table has no body
        asked_ms = self._asked_ms.get(kind.code)
        return asked_ms is None or self._clock.monotonic_ms() - asked_ms >= STOCK_MS

    async def _copy(self, kind: _Kind, master: str, *, hold: bool = False) -> None:
        found = self._waiting.pop(kind.code, None) or await self._read(kind, master, hold=hold)
        if found is None:
            return
        # Mostly on its way. If not it is kept: a later one would rest on more, and wait for ever.
        for _ in range(HELD_MS // HELD_LOOK_MS):
            if self._tables.holds(found.rests_on):
                break
            await asyncio.sleep(HELD_LOOK_MS / 1000)
        store = self._tables.store
        read = found.read
        if read.deleted is None or not any(store.burials.news(read.deleted, read.log_start)):
            self._take_if_due(kind, master, found)
            return
        with store.burials.doubting():  # the sync comes first, and not on the loop
            await asyncio.to_thread(store.burials.sync)
            self._take_if_due(kind, master, found)

    def _take_if_due(self, kind: _Kind, master: str, found: _Waiting) -> None:
        if self._master() != master:
            self._asked_ms.pop(kind.code, None)  # it may be the master again
            return  # somebody else is by now, or we are
        if not self._tables.holds(found.rests_on):
            self._waiting[kind.code] = found
            return
        file = self._tables.file(kind.code)
        changed_here = found.read.gone is not None and file.generation != found.generation
        if kind.code == RequestCode.GET_ALL_CONSUMER_OFFSET and self._ended:
            found = self._without_ended(found)
        self._take(kind, found)
        if changed_here:
            self._stamps.pop(kind.code, None)  # all of it is wanted next, and at once
            self._followed_ms.pop(kind.code, None)
            self._asked_ms.pop(kind.code, None)
            self._woken.set()
        elif found.stamp:
            self._stamps[kind.code] = (found.stamp, file.generation)

    def _without_ended(self, found: _Waiting) -> _Waiting:
        """Progress that was read before topics were deleted, without theirs: it would stay here, for
        the master names it no more, and count in their next lives. All of it is wanted next."""
        entries = {
            place: queues
            for place, queues in found.read.entries.items()
            if place[1] not in self._ended
        }
        return replace(found, read=replace(found.read, entries=entries), stamp="")

    async def _read(self, kind: _Kind, master: str, *, hold: bool) -> _Waiting | None:
        """The master's table and what it rests on; None when it is the one that we have."""
        self._asked_ms[kind.code] = self._clock.monotonic_ms()
        if kind.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            self._ended.clear()
        file = self._tables.file(kind.code)
        stamp, generation = self._stamps.get(kind.code, ("", 0))
        if file.generation != generation:
            stamp = ""  # changed here since: all of it is wanted
        wanted = {STAMP: stamp}
        if kind.followed:
            await self._saved(file)  # what the master hears that we have, a crash leaves us
            reader, incarnation = self._tables.reader()
            wanted |= {READER: str(reader), READER_LIFE: str(incarnation)}
        if hold:
            wanted[HOLD] = "true"
        log_end, generation = self._tables.store.end, file.generation
        answer = await self._ask(kind, master, wanted)
        fields = answer.ext or {}
        if hold and HOLD not in fields:
            raise TableRefused("it tells of no changes")  # a release of ours before it did
        if fields.get(UNCHANGED) == "true":
            return None
        read = await _parsed(kind, answer)
        total = fields.get(kind.total, "") if kind.total else ""
        if total.isdigit() and int(total) > len(read.entries) + len(read.skipped):
            read = await self._pages(kind, master, read, int(total))
        if (read.gone is not None) != (fields.get(CHANGES) == "true"):
            raise TableRefused("a table that says it is none, or the other way round")
        rests_on = 0
        if kind.code in PROGRESS:
            told = fields.get(RESTS_ON, "")
            rests_on = int(told) if told.isdigit() else await self._log_end(master)
        return _Waiting(read, fields.get(STAMP, ""), rests_on, log_end, generation)

    async def _log_end(self, master: str) -> int:
        """Where the log of a master ends that does not say on what its progress rests. Raises TableRefused."""
        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self._requests.request(master, command, ASK_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise TableRefused(f"it answered code {answer.code}: {answer.remark}")
        return read_log_end(answer.body or b"")

    async def _ask(self, kind: _Kind, master: str, ext: dict[str, str]) -> Command:
        timeout_ms = FOLLOW_TIMEOUT_MS if HOLD in ext else kind.timeout_ms
        answer = await self._requests.request(master, Command(kind.code, ext), timeout_ms)
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
            page = await _parsed(kind, await self._ask(kind, master, ext))
            if page.version != first.version:
                raise TableRefused("the table changed between two pages")
            entries.update(page.entries)
            skipped += page.skipped
            if len(entries) + len(skipped) == count:
                break
        raise TableRefused(f"{total} entries promised, {len(entries) + len(skipped)} found")

    async def _saved(self, file: SavedFile) -> None:
        """Raises OSError."""
        tables = self._tables
        along = [each.file for each in (tables.access, tables.locks) if each is not None]
        for each in (file, tables.deletions, *along):
            if each.unsaved:
                await each.saved()

    def _take(self, kind: _Kind, found: _Waiting) -> None:
        read = found.read
        if read.skipped:
            self._skipping.warning(
                log, "entries of the master's table left out table=%s count=%d first=%s",
                kind.name, len(read.skipped), read.skipped[0],
            )  # fmt: skip
        tables = self._tables
        if read.access is not None and tables.access is not None:
            tables.access.adopt(read.access)
        if read.locks is not None and tables.locks is not None:
            tables.locks.adopt(read.locks)
        match kind.code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                self._take_topics(read, found.log_end)
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                tables.offsets.adopt(read.entries, read.version)
            case RequestCode.GET_ALL_DELAY_OFFSET:
                tables.schedule.adopt(read.entries, read.version, found.rests_on)
            case _ if read.gone is not None:
                tables.groups.merge(read.entries, read.gone, read.forbidden, read.version)
            case _:
                gone = tables.groups.adopt(read.entries, read.forbidden, read.version)
                if gone:
                    log.info("groups deleted as on the master count=%d", len(gone))

    def _take_topics(self, read: Read, log_end: int) -> None:
        """A topic that the master deleted loses its queues here too, else its next life would begin
        behind the entries of this one. A master whose table is older than the copy lost its file:
        it deleted nothing on purpose, and the queues stay.
        """
        table = self._tables.topics
        older = _order(read.version) < _order(table.version)
        if read.gone is None:
            gone = table.adopt(read.entries, read.version)
        else:
            gone = list(read.gone)
            table.merge(read.entries, gone, read.version)
        if read.deleted is not None and not older:
            self._take_deletions(read.deleted, read.log_start)
        if not gone:
            return
        if older:
            log.warning("master's topics are older than our copy, queues stay lost=%d", len(gone))
            return
        log.info("topics deleted as on the master topics=%s", ",".join(gone[:20]))
        # Of a stock master's topic nobody knows at which offset it went. What we had when we asked
        # was there before; what comes later may be of a topic of the same name.
        below = log_end if read.deleted is None and read.gone is None else read.log_start
        self._ended.update(gone)
        for name in gone:
            self._tables.forget_topic(name, below)

    def _take_deletions(self, deleted: Mapping[str, int], log_start: int) -> None:
        """INV-43: the messages that are deleted there are deleted here."""
        buried, undone = self._tables.store.burials.follow(deleted, log_start)
        self._ended.update(buried)
        for name in buried:  # one that was made again meanwhile is not gone, its former progress is
            self._tables.offsets.forget_topic(name)
        if buried:
            log.info("messages of deleted topics deleted topics=%s", ",".join(buried[:20]))
        if undone:
            log.warning(
                "deletions that the master does not know taken back topics=%s",
                ",".join(undone[:20]),
            )

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


async def _parsed(kind: _Kind, answer: Command) -> Read:
    body = answer.body or b""
    if len(body) > BODY_BYTES_ON_LOOP_MAX:
        return await asyncio.to_thread(kind.read, bytes(body))
    return kind.read(body)


def _order(version: DataVersion) -> tuple[int, int, int]:
    """As RocketMQ compares versions."""
    return version.state_version, version.counter, version.timestamp
