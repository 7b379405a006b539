"""What one simulated broker derives from its log, and keeps: queues, progress of groups and of delay levels, cuts.

The tables and their rules are the broker's own (cluster.broker: OffsetTable, DelaySchedule, Cuts, Resting). Modelled
are the store below them and what the shells around them do: saving, a slave's copying, changes of role, pulls. Their
clocks run SCALE times faster than the world's, whose times are that much shorter than the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tandemmq.chaos.sim.slept import Reign
from tandemmq.cluster.broker.reading.members import (
    BROADCASTING,
    ConsumerMembers,
    GroupMembers,
    Peer,
)
from tandemmq.cluster.broker.sending.delay import FIRST_RUN_MS, DelayLevels, DelaySchedule
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.cuts import Cuts, ends_below
from tandemmq.cluster.broker.tables.lives import Lives
from tandemmq.cluster.broker.tables.metasync import TICK_MS as SYNC_MS
from tandemmq.cluster.broker.tables.offsets import OffsetTable, Place
from tandemmq.cluster.broker.tables.resting import SETTLE_MS, Resting
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.replication import replica as r
from tandemmq.replication.slave import SlaveState
from tandemmq.storage import ConsumeQueue, Draft, MessageStore, StoreNotWritable, Tombstones

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker
    from tandemmq.chaos.sim.delivery import Delivery
    from tandemmq.chaos.sim.world import Record, World

SCALE: Final = 10
TOPIC: Final = "T"
DELAYS: Final = "1s 3s"
SAVE_MS: Final = 5_000  # flushConsumerOffsetInterval
PULLED_MAX: Final = 4


def queue_of_level(level: int) -> int:
    """Of the schedule topic: queues of messages are 0 and above."""
    return -level


def topic_of(queue: int) -> tuple[str, int]:
    """Topic and queue id."""
    return (TOPIC, queue) if queue >= 0 else (names.SCHEDULE_TOPIC, -queue - 1)


class Clock:
    """A broker's two clocks, for its tables. The wall clock is right: who keeps delays is tested elsewhere."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def now_ms(self) -> int:
        return wall_ms(self._broker.world)

    def monotonic_ms(self) -> int:
        return self._broker.local_ms() * SCALE


def wall_ms(world: World) -> int:
    return world.now_us * SCALE // 1000


class File(SavedFile):
    """A file of the simulated disk, which keeps it through everything: each write is durable and whole."""

    def __init__(self, name: str, snapshot: Callable[[], Any], files: dict[str, Any]) -> None:
        super().__init__(Path(name), snapshot)
        self._files = files
        self._saving: tuple[int, Any, int] | None = None  # generation, content, the log's end then
        self._settling_ms = -1

    def load(self) -> dict[str, Any] | None:
        return self._files.get(self.path.name)

    def save_now(self) -> None:
        """As SavedFile.saved() begins."""
        if self._saving is None and self.unsaved:
            rests = self.rests
            content = self._snapshot()
            self._saving = self.generation, content, rests.end if rests is not None else 0

    def look(self, flushed: int, now_ms: int) -> None:
        """As SavedFile.saved() goes on: what was begun waits for its log."""
        if self._saving is None:
            return
        generation, content, end = self._saving
        if self.rests is not None:
            if flushed < end:
                return
            if self._settling_ms < 0:
                self._settling_ms = now_ms
            if not self.rests.settled(end):
                if now_ms - self._settling_ms >= SETTLE_MS:
                    self._saving, self._settling_ms = None, -1
                return
        self._saving, self._settling_ms = None, -1
        self._write(generation, content)

    def _write(self, generation: int, content: Any) -> None:
        if generation > self._written:
            self._files[self.path.name] = content
            self._written = generation


@dataclass(slots=True)
class Queue:
    """One consume queue. entries: the records' numbers, from `base` on."""

    store: Store
    queue: int
    base: int
    entries: list[int] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return topic_of(self.queue)[0]

    @property
    def queue_id(self) -> int:
        return topic_of(self.queue)[1]

    @property
    def max_offset(self) -> int:
        return self.base + len(self.entries)

    @property
    def physical_end(self) -> int:
        return self.store.world.records[self.entries[-1]].end if self.entries else -1

    @property
    def min_offset(self) -> int:
        records, start = self.store.world.records, self.store.disk.start
        while self.entries and records[self.entries[0]].offset < start:
            del self.entries[0]
            self.base += 1
        return self.base

    def record(self, queue_offset: int) -> Record | None:
        """None where retention took it, or nothing is yet."""
        at = queue_offset - self.min_offset
        return self.store.world.records[self.entries[at]] if 0 <= at < len(self.entries) else None

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Log offset, size and, in the place of the tag code, when it is due."""
        record = self.record(queue_offset)
        if record is None:
            return None
        return record.offset, record.size, self.store.delivery.due_ms(record)


class Queues:
    """As storage's, by topic and queue id."""

    def __init__(self) -> None:
        self.by_number: dict[int, Queue] = {}

    def get(self, topic: str, queue_id: int) -> Queue | None:
        return self.by_number.get(queue_id if topic == TOPIC else -queue_id - 1)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.by_number.values())


class Store:
    """Of a MessageStore what the tables ask: the log's positions, and queues derived up to what is confirmed."""

    last_store_ms = 0  # asked for the words of a warning only

    def __init__(self, broker: Broker, delivery: Delivery) -> None:
        self.world = broker.world
        self.disk = broker.disk
        self.delivery = delivery
        self._broker = broker
        self.queues = Queues()
        self.tombstones = Tombstones(Path("sim"))  # no topic is deleted here
        for queue, following in broker.disk.queues.items():
            self.queues.by_number[queue] = Queue(self, queue, following)
        self._position = broker.disk.start

    @property
    def end(self) -> int:
        return self.disk.end

    @property
    def flushed(self) -> int:
        return self.disk.flushed

    @property
    def confirmed(self) -> int:
        confirmed = min(self._broker.visible(), self.disk.end)
        return min(confirmed, self.disk.flushed) if self._broker.mode.waits_for_disk else confirmed

    def dispatch(self) -> None:
        """Derive the queues of whole records that are confirmed."""
        cells, records, limit = self.disk.cells, self.world.records, self.confirmed
        at = max(self._position, self.disk.start)
        while at < limit:
            record = records[cells[at] >> 3]
            if record.end > limit:
                break
            queue = self.queues.by_number.get(record.queue)
            if queue is None:
                queue = self.queues.by_number[record.queue] = Queue(self, record.queue, 0)
            if not queue.entries:
                queue.base = record.queue_offset
            queue.entries.append(record.number)
            at = record.end
        self._position = at

    def cut(self, end: int) -> None:
        records = self.world.records
        for queue in self.queues:
            while queue.entries and records[queue.entries[-1]].end > end:
                queue.entries.pop()
        self._position = min(self._position, end)

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        return self.queues.get(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0


class Following(NamedTuple):
    """Of hastatus.Following what is asked."""

    streaming: bool


class Stand:
    """Of a Standing what the tables ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def role(self) -> Role:
        return Role.SYNC_MASTER if self._broker.accepts else Role.SLAVE

    @property
    def may_lack_the_end(self) -> bool:
        """As SlaveReads has it."""
        core = self._broker.core
        master = core.master if core is not None else None
        unsucceeded = master is not None and master.unsucceeded(self._broker.local_ms())
        return self.role is not Role.SLAVE and not unsucceeded

    @property
    def following(self) -> Following:
        core = self._broker.core
        streaming = core is not None and core.slave.state is SlaveState.STREAMING
        return Following(streaming and core is not None and core.role is r.ReplicaRole.FOLLOWING)


class Members:
    """Of ConsumerMembers what Cuts asks: which groups broadcast."""

    def group(self, name: str) -> GroupMembers | None:
        return GroupMembers(name, message_model=BROADCASTING) if name.startswith("B") else None


class Schedule(DelaySchedule):
    """Delivers into the simulated log."""

    tables: Tables

    def _deliver(self, level: int, queue_offset: int, physical: int) -> bool:
        self.tables.deliver(physical)
        return True


def _unasked(draft: Draft) -> None:
    raise AssertionError("what the simulated log gets comes by deliver()")


class Pulled(NamedTuple):
    """A pull's answer: moved, or some records (perhaps none), and where to go on.

    at_cut  moved because of a loss
    reign   for the judge: of the master that answers
    heard   for the judge: in which reign who answers was told what is confirmed
    known   for the judge: up to where a master believes any reader of the group; None at a slave
    """

    moved: bool
    next_offset: int
    records: tuple[int, ...] = ()
    at_cut: bool = False
    reign: Reign | None = None
    heard: int = 0
    known: int | None = None


class Told(NamedTuple):
    """A slave's copy of its master's progress, on its way into the tables. INV-41"""

    master: int
    offsets: dict[tuple[str, str], dict[int, int]]
    delays: dict[int, int]
    version: DataVersion
    rests_on: int


class Tables:
    """Those of one process; nothing of it outlives the process but what it wrote to the disk's files."""

    rests: type[Resting] = Resting
    make_cuts: type[Cuts] = Cuts
    make_schedule: type[Schedule] = Schedule
    saves_at_once = False  # a defect: what is saved rests on nothing

    def __init__(self, broker: Broker, delivery: Delivery) -> None:
        self.broker = broker
        self.world = broker.world
        self.delivery = delivery
        self.clock = Clock(broker)
        files = broker.disk.files
        self.store = Store(broker, delivery)
        self.standing = Stand(broker)
        store = cast(MessageStore, self.store)
        self.resting = self.rests(store, cast(Standing, self.standing), self._never)
        self.offsets = OffsetTable(Path("consumerOffset.json"), self.clock)
        self.offsets.file = File("consumerOffset.json", self.offsets.to_json, files)
        self.schedule = self.make_schedule(
            store, _unasked, DelayLevels(DELAYS), Path("delayOffset.json"), self.clock
        )
        self.schedule.tables = self
        self.schedule.file = File("delayOffset.json", self.schedule._file_tree, files)
        self.cuts = self.make_cuts(
            Path("queueCuts.json"), self.offsets, cast(ConsumerMembers, Members()),
            Lives(store, self.clock), self.clock,
        )  # fmt: skip
        self.cuts.file = File("queueCuts.json", self.cuts.to_json, files)
        if not self.saves_at_once:
            self.offsets.file.rests = self.schedule.file.rests = self.resting
        self._told: Told | None = None
        self._delivering_ms = -1
        self._save_ms = self._sync_ms = 0
        self._asking = False
        self.agreed = 0

    async def _never(self, end: int) -> None:
        raise AssertionError("files of the simulator wait for their log themselves")

    # --- as tandemmq.cluster.broker.broker.Broker has it ---

    def load(self) -> None:
        """The log was recovered and this process is a slave for now."""
        self.store.dispatch()
        self.offsets.load()
        self.schedule.load()
        self._follow_tables(Role.SLAVE)
        self.cuts.load()
        self.cuts.end()

    def prepare(self) -> None:
        """This replica was elected; what its log has above what is confirmed nobody may have been given."""
        self.agreed = self.store.confirmed

    def cut(self, end: int) -> None:
        """The log was cut."""
        self.store.cut(end)
        self.schedule.cut(end)
        if self.offsets.limit(self.store.max_offset):
            self.world.mark("progress beyond a cut taken back")
        for file in (self.schedule.file, self.offsets.file):
            file.take_back()

    def role_changed(self, *, serving: bool, may_have_lost: bool = False) -> None:
        """As TableSync.role_changed, Broker._role_changed and OnMaster, in this order."""
        role = Role.SYNC_MASTER if serving else Role.SLAVE
        self._told = None
        self._delivering_ms = -1
        self.store.dispatch()
        self._follow_tables(role)
        if role is Role.SLAVE:
            self.cuts.end()
            return
        self.schedule.correct()
        if self.offsets.limit(self.store.max_offset):
            self.offsets.file.take_back()
        if may_have_lost:
            self.lost()
        self.schedule._reign_began()
        self._delivering_ms = self.clock.monotonic_ms() + FIRST_RUN_MS

    def lost(self) -> None:
        """Readers may have been given more than is left. INV-42"""
        ends = ends_below(cast(Iterable[ConsumeQueue], self.store.queues), self.agreed)
        self.cuts.lose(ends, "the simulator")
        self.world.mark("readers beyond a cut looked for")
        core = self.broker.core
        assert core is not None
        of_messages = {queue: end for (topic, queue), end in ends.items() if topic == TOPIC}
        self.delivery.slept.lost(self.delivery.readers, core.epoch, of_messages)
        if not core.mode.waits_for_slaves and core.view.lossy_epoch == core.epoch:
            self.delivery.former.began(core.epoch, self.agreed)

    def _follow_tables(self, role: Role) -> None:
        if role is Role.SLAVE:
            self.offsets.start_following()
        else:
            self.offsets.stop_following()

    # --- jobs ---

    def tick(self) -> None:
        """Whatever is due. May append delivered messages."""
        now_ms = self.clock.monotonic_ms()
        self.store.dispatch()
        files = (self.offsets.file, self.schedule.file, self.cuts.file)
        for each in files:
            assert isinstance(each, File)
            each.look(self.store.flushed, now_ms)
        if now_ms >= self._save_ms:
            self._save_ms = now_ms + self.delivery.rng.randrange(SAVE_MS // 4, SAVE_MS)
            for each in files:
                assert isinstance(each, File)
                each.save_now()
                each.look(self.store.flushed, now_ms)
        if self.standing.role is Role.SLAVE:
            self._take_told()
            if now_ms >= self._sync_ms:
                self._sync_ms = now_ms + SYNC_MS
                self._ask_master()
        elif self._delivering_ms >= 0 and now_ms >= self._delivering_ms:
            end = self.store.end
            self.schedule.step()
            if self.store.end > end:
                self.broker.appended()

    def deliver(self, physical: int) -> None:
        """As DelaySchedule._deliver: one that cannot be read is passed over. Raises StoreNotWritable."""
        disk, records = self.broker.disk, self.world.records
        record = records[disk.cells[physical] >> 3]
        if record.end > self.store.confirmed:
            return
        if not self.broker.accepts or self.broker.full:
            raise StoreNotWritable("fenced, or full")
        self.delivery.copied(self.broker, record)

    # --- a slave copies its master's progress ---

    @property
    def _master(self) -> int:
        core = self.broker.core
        return core.view.master if core is not None and core.role is r.ReplicaRole.FOLLOWING else 0

    def _ask_master(self) -> None:
        master = self._master
        if not master or self._asking:
            return
        target, life = self.world.brokers[master], self.broker.incarnation

        def answered(told: Told | None) -> None:
            if self.broker.tables is not self or self.broker.incarnation != life:
                return
            self._asking = False
            if told is not None and self._master == told.master and self._told is None:
                self._told = told
                self._take_told()

        self._asking = True
        self.delivery.ask(self.broker, target, lambda there: there.tell(), answered)

    def tell(self) -> Told:
        """What a slave that asks is answered, whatever this broker is by now."""
        tree = self.offsets.shared_json()["offsetTable"]
        offsets = {}
        for key, queues in tree.items():
            topic, _, group = key.rpartition("@")
            offsets[group, topic] = {int(queue): offset for queue, offset in queues.items()}
        return Told(
            self.broker.replica, offsets, dict(self.schedule.offsets), self.schedule.version, self.resting.end
        )  # fmt: skip

    def _take_told(self) -> None:
        told = self._told
        if told is None or not self.resting.holds(told.rests_on):
            return
        self._told = None
        if self._master != told.master:
            return
        self.offsets.adopt(told.offsets, self.offsets.version)
        self.schedule.adopt(told.delays, told.version, told.rests_on)
        self.world.mark("progress copied by a slave")
        self._tell_ahead(told.master)

    def _tell_ahead(self, master: int) -> None:
        for place, offset in self.offsets.ahead.items():
            self.world.mark("progress committed at a slave")
            self._tell_one(self.world.brokers[master], place, offset)

    def _tell_one(self, master: Broker, place: Place, offset: int) -> None:
        group, _, queue_id = place
        peer = self.delivery.peer_of(self.broker.replica)

        def told(there: Tables) -> bool:
            return there.commit(group, queue_id, offset, peer, only_forward=True)

        def answered(taken: bool | None) -> None:
            if taken and self.broker.tables is self:
                self.offsets.acknowledged(place, offset)

        self.delivery.ask(self.broker, master, told, answered)

    # --- requests of consumers ---

    def pull(self, group: str, queue: int, offset: int, reader: Peer) -> Pulled:
        """As PullHandler answers."""
        self.store.dispatch()
        believed = self._believed(group, queue, reader)
        moved = None
        if self.cuts.active:
            moved = self.cuts.target(group, TOPIC, queue, offset, reader)
            if moved is not None:
                self.world.mark("reader moved to a cut")
        found = self._stored(queue, offset) if moved is None else Pulled(True, moved, at_cut=True)
        waits = not found.moved and not found.records
        if self.cuts.active and not (waits and self.standing.may_lack_the_end):
            self.cuts.gave(group, TOPIC, queue, found.next_offset, reader)
        core = self.broker.core
        if core is None:
            return found
        found = found._replace(
            heard=core.master.epoch if core.master else core.slave.confirmed_epoch
        )
        if self.standing.role is Role.SLAVE:
            return found
        cut = self.cuts._cut(TOPIC, queue)
        cut = offset if cut is None else cut
        return found._replace(known=max(believed, cut), reign=Reign(core.epoch, cut))

    def _believed(self, group: str, queue: int, reader: Peer) -> int:
        """How far this broker brought a group."""
        cuts = self.cuts
        return cuts._given.get((cuts._who(group, reader)[0], TOPIC, queue), 0)

    def _stored(self, number: int, offset: int) -> Pulled:
        queue = self.store.queues.by_number.get(number)
        slave = self.standing.role is Role.SLAVE
        elsewhere = Pulled(False, offset)
        lacks = slave or self.standing.may_lack_the_end
        if queue is None or not queue.max_offset:
            return elsewhere if lacks or not offset else Pulled(True, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        if offset < lowest:
            return elsewhere if slave else Pulled(True, lowest)
        if offset > highest:
            waits = lacks or offset <= self.broker.queue_offsets.get(number, 0)
            return elsewhere if waits else Pulled(True, highest)
        at = offset - lowest
        records = tuple(queue.entries[at : at + PULLED_MAX])
        return Pulled(False, offset + len(records), records)

    def query(self, group: str, queue: int) -> int:
        """A group's committed offset; a group that has none starts with the first message."""
        return max(0, self.offsets.query(group, TOPIC, queue))

    def commit(
        self, group: str, queue: int, offset: int, reader: Peer, *, only_forward: bool = False
    ) -> bool:
        """As OffsetHandlers takes it; the answer is a success all the same."""
        beyond = self.cuts.beyond
        if self.cuts.active and beyond(group, TOPIC, queue, offset, reader, kept=only_forward):
            self.world.mark("commit of before a loss not taken")
        elif not only_forward or self.offsets.committed(group, TOPIC, queue) < offset:
            self.offsets.commit(group, TOPIC, queue, offset)
        return True
