"""What must hold: after every step across all replicas, and of the whole history at the end.

Kept incremental: each check looks only at what the step changed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.replication import masterevents as m
from tandemmq.replication.config import Mode
from tandemmq.replication.master import MasterState

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker
    from tandemmq.chaos.sim.world import Record, World


class Check(enum.StrEnum):
    """Each question that the simulator asks, by the name that a planted bug must be found by."""

    ALARM = "a replica alarms without cause"
    CHANGED = "confirmed bytes change"  # INV-27, INV-29
    CLONE = "a copy of a store is taken for a replica that lives"  # INV-38
    COPIES = "an acknowledgement claims copies that are not there"
    DELAYED = "a delayed message is never delivered"  # INV-41
    DELIVERED = "a message of the log never reaches a group"  # INV-42
    DELETED = "retention takes what is not confirmed"
    DIVERGED = "replicas differ after healing"
    EARLY = "a delayed message is delivered before its time"
    FENCED = "a controller that leads no more decides"  # INV-34
    FORGOTTEN = "a controller that lost records goes by what is left of them"
    FOREIGN = "a slave appends what no master wrote there"
    HALF = "half a record is confirmed"  # INV-21
    HISTORY = "a history does not fit its log"  # INV-20
    LEASE = "somebody is elected while a lease holds"  # INV-30
    LOST = "an acknowledged message is lost"
    MASTERS = "two masters acknowledge"  # INV-23, INV-28
    NOBODY = "no master, and no reason for it"
    POSITIONS = "positions do not fit the log"  # INV-3
    PROPOSED = "who is proposed lacks what is confirmed"  # INV-25
    QUEUES = "a queue offset is skipped or given out twice"  # INV-5
    RETURNED = "what was cut off comes back"  # INV-40
    STUCK = "a healed cluster does not come to rest"
    TAKEN = "two processes take up one reign"  # INV-28, INV-38
    UNHELD = "a member lacks what is acknowledged"  # INV-22
    WRITER = "the epoch file names another writer"  # INV-20


class Violation(Exception):
    """A promise or an invariant is broken. `check` and the text say which; the seed replays it."""

    def __init__(self, check: Check, text: str) -> None:
        super().__init__(f"{check.value}: {text}")
        self.check = check


@dataclass(frozen=True, slots=True)
class Acked:
    """An acknowledged record, in which mode, and who held it then.

    everywhere  whoever could have been elected then held it; False only where inSyncReplicas asks for fewer
    """

    record: Record
    mode: Mode
    holders: tuple[int, ...]
    at_us: int
    everywhere: bool = True


class Checks:
    """The judge of one run.

    canon     the confirmed log: nobody may ever confirm other bytes at these offsets, until a loss is declared
    destroyed per replica: (time, first offset lost, end before, flushed) of each power cut
    takers    epoch -> the process that prepared its log for it: host and number
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: list[Acked] = []
        self.canon: list[int] = []
        self.checked: dict[int, int] = {}
        self.consumed = 0
        self.delivered: dict[int, int] = {}
        self.destroyed: dict[int, list[tuple[int, int, int, int]]] = {}
        self.taken: set[int] = set()  # replicas whose store somebody took away
        self.takers: dict[int, tuple[int, int]] = {}
        self.last_epoch = 0
        self.lossy_seen = 0
        self.lossy_ends: list[int] = []

    # --- while it runs ---

    def acknowledged(self, broker: Broker, record: Record, effect: m.Acknowledge) -> None:
        world = self.world
        mode = broker.mode
        if effect.epoch < self.last_epoch:
            # a late word of the set may be all that was missing: _check_promise asks who reigns now
            if not mode.waits_for_slaves and not world.plan.rules.lease_policy.goes_on(mode):
                raise Violation(
                    Check.MASTERS,
                    f"epoch {effect.epoch} acknowledges after epoch {self.last_epoch}\n{world.describe()}",
                )
            world.mark("acknowledged in an epoch that is over")
        self.last_epoch = max(self.last_epoch, effect.epoch)
        beside_a_copy = world.brokers[broker.replica] is not broker
        if beside_a_copy and (not mode.waits_for_slaves or self._goes_on_alone(broker)):
            world.mark("acknowledged beside a copy that is the replica by now")
            return  # the danger that its lease policy prefers: decision 0004. The copy's election declares the loss
        holders = [
            each.replica
            for each in world.brokers.values()
            if self._holds(each, record, durable=mode.waits_for_disk)
            and (each is broker or each.replica != world.plan.learner)  # whose copy is no promise
        ]
        if not self._holds(broker, record, durable=mode.waits_for_disk):
            raise Violation(
                Check.COPIES, f"{record} acknowledged by a master that does not hold it"
            )
        everywhere = True
        if mode.waits_for_slaves:
            everywhere = self._check_promise(broker, record, effect, holders)
        if self._present(record) < effect.copies:
            raise Violation(
                Check.COPIES, f"{record}: {effect.copies} copies claimed, {holders} hold it"
            )
        self.acked.append(Acked(record, mode, tuple(holders), world.now_us, everywhere))

    def _goes_on_alone(self, broker: Broker) -> bool:
        """Whether it acknowledges by itself, without a lease, as it was told to (haLeasePolicy=available)."""
        core = broker.core
        assert core is not None and core.master is not None
        alone = core.master.granted == {broker.replica}
        leased = broker.local_ms() < core.master.lease_until_ms
        return alone and not leased and core.rules.lease_policy.goes_on(broker.mode)

    def _holds(self, broker: Broker, record: Record, *, durable: bool) -> bool:
        disk = broker.disk
        if (disk.flushed if durable else disk.end) < record.end:
            return False
        return disk.had(record.end - 1) == (record.number << 3) + record.size - 1

    def _present(self, record: Record) -> int:
        """Copies, those included that a power cut destroyed since their replica spoke of them."""
        return sum(
            self._holds(each, record, durable=False) or each.replica in self.destroyed
            for each in self.world.brokers.values()
        )

    def _check_promise(
        self, broker: Broker, record: Record, effect: m.Acknowledge, holders: list[int]
    ) -> bool:
        """Whoever the controller may elect now must hold what was just acknowledged: whether they do.

        With allAckInSyncStateSet=false as many copies as inSyncReplicas are enough.
        """
        world, rules = self.world, self.world.plan.rules
        decided = world.controller.durable
        if effect.copies < max(rules.copies_min, 1 if rules.all_in_set else rules.copies_wanted):
            raise Violation(Check.COPIES, f"{record} acknowledged with {effect.copies} copies")
        if decided is None or decided.epoch < effect.epoch:
            return True
        for member in decided.base:  # INV-23: also in the reigns after it
            if member in holders or member in decided.suspects or self._destroyed(member, record):
                continue
            # Until the record that lets a copy in its place is durable, the process before it is the member.
            named = self._process(member, decided.members[member].incarnation)
            if self._holds(named, record, durable=broker.mode.waits_for_disk):
                continue
            if not rules.all_in_set:
                world.mark("acknowledged by some of the set")
                return False
            raise Violation(
                Check.UNHELD,
                f"{record} acknowledged in {broker.mode.value}, member {member} of {decided.base} "
                f"does not hold it\n{world.describe()}",
            )
        return True

    def _destroyed(self, replica: int, record: Record) -> bool:
        """Whether a power cut took this record from this replica after it held it."""
        return self._cut_below(replica, record.end)

    def _in_window(self, replica: int, acked: Acked) -> bool:
        """Whether this replica lost power while it had this record, acknowledged, in its page cache only."""
        return any(
            at_us >= acked.at_us and flushed < acked.record.end <= before
            for at_us, _, before, flushed in self.destroyed.get(replica, ())
        )

    def appended(self, broker: Broker, offset: int, cells: list[int]) -> None:
        """A slave appends what some master wrote at exactly this place (INV-1 on every replica)."""
        records = self.world.records
        for position in (0, len(cells) - 1):
            cell = cells[position]
            if cell < 0:
                raise Violation(
                    Check.FOREIGN,
                    f"replica {broker.replica} is sent what was deleted at {offset + position}",
                )
            record = records[cell >> 3]
            if record.offset + (cell & 7) != offset + position:
                raise Violation(
                    Check.FOREIGN,
                    f"replica {broker.replica} appends {record} at {offset + position - (cell & 7)}",
                )

    def confirmed(self, broker: Broker, offset: int) -> None:
        """Same offset below a confirmed one: same bytes, for ever, on every replica."""
        cells, canon = broker.disk.cells, self.canon
        start = max(min(self.checked.get(broker.replica, 0), offset), broker.disk.start)
        known = min(offset, len(canon))
        if start < known and cells[start:known] != canon[start:known]:
            at = next(i for i in range(start, known) if cells[i] != canon[i])
            if self._forked(at) and not self._heard(broker):
                return  # a learner, say, that had more than who was elected: its log is cut when it follows
            if self.world.plan.mode.waits_for_slaves or not self._forked(at):
                raise Violation(
                    Check.CHANGED,
                    f"replica {broker.replica} confirms other bytes at {at} than were confirmed before\n"
                    + self.world.describe(),
                )
            del canon[at:]
        if offset > len(canon) >= broker.disk.start and self._heard(broker):
            canon.extend(cells[len(canon) : offset])
        self.checked[broker.replica] = offset

    def _heard(self, broker: Broker) -> bool:
        """Whether what it calls confirmed was told since the last declared loss; else it may show what is gone."""
        core = broker.core
        assert core is not None
        return core.master is not None or core.slave.confirmed_epoch >= self.lossy_seen

    def _forked(self, at: int) -> bool:
        """Whether a declared loss explains that history changed at this offset."""
        return any(end <= at for end in self.lossy_ends)

    def whole(self, broker: Broker, offset: int) -> None:
        """A master confirms whole records: half of one may be cut by the next master."""
        if broker.reigning and broker.disk.boundary(offset) != offset:
            raise Violation(
                Check.HALF, f"master {broker.replica} confirms {offset}, inside a record"
            )

    def read(self, broker: Broker, offset: int) -> None:
        """A consumer reads everything below `offset` here: what it saw may never change."""
        self.confirmed(broker, offset)
        self.consumed = max(self.consumed, offset)

    def truncated(self, broker: Broker, end: int) -> None:
        self.checked[broker.replica] = min(self.checked.get(broker.replica, 0), end)

    def power_lost(self, broker: Broker, end: int, before: int, flushed: int) -> None:
        if end > before:
            raise Violation(
                Check.RETURNED,
                f"power cut brought back [{before}, {end}) of replica {broker.replica}, which it had cut off",
            )
        self.truncated(broker, end)
        cuts = self.destroyed.setdefault(broker.replica, [])
        cuts.append((self.world.now_us, end, before, flushed))

    def reign_began(self, broker: Broker, epoch: int) -> None:
        """A declared loss: what was confirmed behind the point where the new master's log departs is gone."""
        core = broker.core
        assert core is not None
        if core.view.lossy_epoch > self.lossy_seen:
            self.lossy_seen = core.view.lossy_epoch
            cells, canon = broker.disk.cells, self.canon
            departs, start = min(len(cells), len(canon)), broker.disk.start
            if cells[start:departs] != canon[start:departs]:
                departs = next(at for at in range(start, departs) if cells[at] != canon[at])
            del canon[departs:]
            self.lossy_ends.append(departs)
            for replica in self.checked:
                self.checked[replica] = min(self.checked[replica], departs)

    def proposed(self, broker: Broker, proposal: m.Propose) -> None:
        """Who is proposed for the set holds what this master has confirmed (INV-25).

        That is the process which the proposal names. Another one, a copy of its store or the one that this was copied
        from, may be the replica by now: then the controller refuses, for the process is another.
        """
        core = broker.core
        if core is None or core.master is None or not core.mode.waits_for_slaves:
            return
        mode = (
            core.mode
        )  # its own: of a group that is changed in rolling order it may be another than the plan's
        confirmed = min(core.master.confirmed, broker.disk.end)
        named = dict(proposal.incarnations)
        for member in proposal.members - core.master.granted:
            disk = self._process(member, named.get(member, -1)).disk
            held = disk.flushed if mode.waits_for_disk else disk.end
            if held < confirmed and not self._cut_below(member, confirmed):
                raise Violation(
                    Check.PROPOSED,
                    f"replica {broker.replica} proposes {member}, which holds {held} of {confirmed}\n"
                    + self.world.describe(),
                )

    def _process(self, replica: int, incarnation: int) -> Broker:
        """The process of a replica, or of a copy of it, with this number; who is the replica where none has it."""
        for broker in self.world.hosts.values():
            if broker.replica == replica and broker.incarnation == incarnation:
                return broker
        return self.world.brokers[replica]

    def _cut_below(self, replica: int, end: int) -> bool:
        """Whether a power cut took bytes below `end` from this replica after it held them."""
        return any(first < end <= before for _, first, before, _ in self.destroyed.get(replica, ()))

    # --- retention ---

    def deleted(self, broker: Broker, start: int) -> None:
        """What goes is what was confirmed, but on a replica that has not heard of a loss yet."""
        cells, canon = broker.disk.cells, self.canon
        for at in range(broker.disk.start, start):
            if (at >= len(canon) or cells[at] != canon[at]) and not self._forked(at):
                raise Violation(
                    Check.DELETED,
                    f"replica {broker.replica} deletes what was not confirmed at {at}",
                )

    def needs_seeding(self, broker: Broker) -> bool:
        """Whether this replica and its master parted where one of them has no bytes any more.

        Else they have, or had, the byte before both logs' starts in common: no two appends make the same one, and
        whoever took it took all before it. Who was seeded from there on does not know whose that byte was.
        """
        core = broker.core
        assert core is not None
        mine, theirs = broker.disk, self.world.brokers[core.slave.master].disk
        first = max(mine.start, theirs.start)
        shared = 0 < first <= min(mine.end, theirs.end) and first not in (mine.begun, theirs.begun)
        return not shared or mine.had(first - 1) != theirs.had(first - 1)

    def went_back(self, broker: Broker, end: int, before: int) -> None:
        """Somebody took a store away: what lies above `end` is gone here, flushed as it was."""
        self.truncated(broker, end)
        cut = (self.world.now_us, end, before, end)
        self.destroyed.setdefault(broker.replica, []).append(cut)
        self.taken.add(broker.replica)

    def emptied(self, broker: Broker) -> None:
        """Its copies are gone, which excuses no loss: they had been durable."""
        self.truncated(broker, 0)
        end = broker.disk.end
        self.destroyed.setdefault(broker.replica, []).append((self.world.now_us, 0, end, end))

    def elected(self, epoch: int) -> None:
        """Nobody is elected while an older master may still acknowledge, however the clocks drift."""
        for broker in self.world.brokers.values():
            core = broker.core
            if core is None or core.master is None or core.epoch >= epoch:
                continue
            serving = core.master.state in (MasterState.SERVING, MasterState.DRAINING)
            if serving and broker.local_ms() < core.master.lease_until_ms:
                raise Violation(
                    Check.LEASE,
                    f"epoch {epoch} is given out while replica {broker.replica} holds the lease of {core.epoch}",
                )

    def prepares(self, broker: Broker, epoch: int) -> None:
        """An epoch is one process's, be there ever so many with a copy of its store: its entry will say whose bytes
        these are, in every history that has it."""
        process = broker.host, broker.incarnation
        first = self.takers.setdefault(epoch, process)
        if first != process:
            raise Violation(
                Check.TAKEN,
                f"process {process} of replica {broker.replica} takes up epoch {epoch}, which {first} did\n"
                + self.world.describe(),
            )

    def broker(self, broker: Broker) -> None:
        """One broker after one event."""
        core, disk = broker.core, broker.disk
        assert core is not None
        half = core.master or core.slave
        if not 0 <= half.confirmed <= half.end:
            raise Violation(Check.POSITIONS, f"confirmed {half.confirmed} of {half.end}")
        if core.master is None and half.end != disk.end and not broker.paused:
            raise Violation(
                Check.POSITIONS,
                f"replica {broker.replica} thinks it ends at {half.end}, it ends at {disk.end}",
            )
        entries = half.history.entries
        # A log without a byte may know of a reign that begins above: its first bytes were lost.
        known = not entries or entries[0].start <= half.start or half.start == half.end
        if half.start > disk.start or not known or (entries[1:] and entries[1].start < half.start):
            raise Violation(
                Check.HISTORY,
                f"replica {broker.replica} knows {entries} from {half.start}, it starts at {disk.start}",
            )
        if half.flushed > disk.flushed:
            raise Violation(
                Check.POSITIONS,
                f"replica {broker.replica} claims {half.flushed} flushed of {disk.flushed}",
            )

    # --- at the end ---

    def history(self) -> None:
        """Every acknowledged message is where its mode promises; the replicas are one log; no queue offset twice."""
        world = self.world
        master = world._master()
        assert master is not None
        cells = master.disk.log
        for broker in world.brokers.values():
            start = broker.disk.start
            if broker.disk.cells[start:] != cells[start:]:
                raise Violation(Check.DIVERGED, world.describe())
            self._check_history(broker)
        self._check_queues(cells)
        if world.delivery is not None:
            world.delivery.judge(cells)
        aside: set[int] = set()
        for broker in world.hosts.values():
            aside.update(cell for _, cut in broker.disk.set_aside for cell in cut)
            if world.brokers[broker.replica] is not broker:  # a copy is the replica by now
                aside.update(broker.disk.log)
        for acked in self.acked:
            record = acked.record
            last = (record.number << 3) + record.size - 1
            if record.end <= len(cells) and cells[record.end - 1] == last:
                continue
            if not self._loss_allowed(acked, last in aside):
                raise Violation(
                    Check.LOST,
                    f"{record} was acknowledged in {acked.mode.value} by {acked.holders} at {acked.at_us} us "
                    f"and is lost; power cuts {self.destroyed}\n{world.describe()}",
                )
            world.mark("acknowledged message lost within the promise")

    def _check_history(self, broker: Broker) -> None:
        """The epoch file says who wrote each byte."""
        records, history, start = self.world.records, broker.disk.history, broker.disk.start
        for offset, cell in enumerate(broker.disk.cells[start:], start):
            if cell & 7 == 0:
                writer = history.at(offset)
                if writer is None or writer.number != records[cell >> 3].epoch:
                    raise Violation(
                        Check.WRITER, f"{records[cell >> 3]} lies in the reign of {writer}"
                    )

    def _check_queues(self, cells: list[int]) -> None:
        following: dict[int, int] = {}
        for cell in cells:
            if cell & 7 == 0:
                record = self.world.records[cell >> 3]
                expected = following.get(record.queue, 0)
                if record.queue_offset != expected:
                    raise Violation(Check.QUEUES, f"{record}: queue offset {expected} was next")
                following[record.queue] = expected + 1

    def _loss_allowed(self, acked: Acked, set_aside: bool) -> bool:
        """What each mode's row of the promises allows (chaos.survival). A loss must also have been declared."""
        if not acked.everywhere:
            return True
        mode = acked.mode
        if set_aside and fate(mode, Fault.GONE) is Fate.LAG:
            return True
        if fate(mode, Fault.HOST) is Fate.WINDOW:  # one machine is enough: it acknowledged alone
            return any(self._destroyed(each, acked.record) for each in acked.holders)
        taken = self.taken.issuperset(acked.holders)  # no disk and no mode keeps that
        if self.world.mishaps.clones is not None and not self.taken.isdisjoint(acked.holders):
            # the others' were emptied, as an alarm had asked for, while that one had everything
            gone = all(self._destroyed(each, acked.record) for each in acked.holders)
            if gone and self.world.outcome.losses_declared > 0:
                return True
        if fate(mode, Fault.HOSTS) is Fate.WINDOW or taken:
            everybody = all(self._in_window(each, acked) for each in acked.holders)
            return everybody and self.world.outcome.losses_declared > 0
        return False
