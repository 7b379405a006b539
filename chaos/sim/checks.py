"""What must hold: after every step across all replicas, and of the whole history at the end.

Kept incremental: each check looks only at what the step changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replication import masterevents as m
from replication.config import Mode
from replication.master import MasterState

if TYPE_CHECKING:
    from chaos.sim.broker import Broker
    from chaos.sim.world import Record, World


class Violation(Exception):
    """A promise or an invariant is broken. The text says which; the seed replays it."""


@dataclass(frozen=True, slots=True)
class Acked:
    """An acknowledged record and who held it then, by the acknowledgement's own word."""

    record: Record
    holders: tuple[int, ...]
    at_us: int


class Checks:
    """The judge of one run.

    canon     the confirmed log: nobody may ever confirm other bytes at these offsets, until a loss is declared
    destroyed per replica: (time, first offset lost, end before, flushed) of each power cut
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: list[Acked] = []
        self.canon: list[int] = []
        self.checked: dict[int, int] = {}
        self.consumed = 0
        self.delivered: dict[int, int] = {}
        self.destroyed: dict[int, list[tuple[int, int, int, int]]] = {}
        self.last_epoch = 0
        self.lossy_seen = 0
        self.lossy_ends: list[int] = []
        self.confirmed_before: dict[int, tuple[int, int, int]] = {}

    # --- while it runs ---

    def acknowledged(self, broker: Broker, record: Record, effect: m.Acknowledge) -> None:
        world = self.world
        if effect.epoch < self.last_epoch:
            raise Violation(
                f"epoch {effect.epoch} acknowledges after epoch {self.last_epoch}: two masters\n{world.describe()}"
            )
        self.last_epoch = effect.epoch
        mode = world.plan.mode
        holders = [
            each.replica
            for each in world.brokers.values()
            if self._holds(each, record, durable=mode.waits_for_disk)
        ]
        if broker.replica not in holders:
            raise Violation(f"{record} acknowledged by a master that does not hold it")
        if mode.waits_for_slaves:
            self._check_promise(broker, record, effect, holders)
        if self._present(record) < effect.copies:
            raise Violation(f"{record}: {effect.copies} copies claimed, {holders} hold it")
        self.acked.append(Acked(record, tuple(holders), world.now_us))

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
    ) -> None:
        """Whoever the controller may elect now must hold what was just acknowledged."""
        world = self.world
        decided = world.controller.durable
        assert decided is not None
        if decided.epoch == effect.epoch:
            for member in decided.base:
                if member in holders or member in decided.suspects:
                    continue
                if self._destroyed(member, record):
                    continue
                raise Violation(
                    f"{record} acknowledged in {world.plan.mode.value}, member {member} of {decided.base} "
                    f"does not hold it\n{world.describe()}"
                )
        if effect.copies < world.plan.rules.copies_min:
            raise Violation(f"{record} acknowledged with {effect.copies} copies")

    def _destroyed(self, replica: int, record: Record) -> bool:
        """Whether a power cut took this record from this replica after it held it."""
        return any(
            first < record.end <= before for _, first, before, _ in self.destroyed.get(replica, ())
        )

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
                    f"replica {broker.replica} is sent what was deleted at {offset + position}"
                )
            record = records[cell >> 3]
            if record.offset + (cell & 7) != offset + position:
                raise Violation(
                    f"replica {broker.replica} appends {record} at {offset + position - (cell & 7)}"
                )

    def confirmed(self, broker: Broker, offset: int) -> None:
        """Same offset below a confirmed one: same bytes, for ever, on every replica."""
        cells, canon = broker.disk.cells, self.canon
        start = max(min(self.checked.get(broker.replica, 0), offset), broker.disk.start)
        known = min(offset, len(canon))
        if start < known and cells[start:known] != canon[start:known]:
            at = next(i for i in range(start, known) if cells[i] != canon[i])
            if self.world.plan.mode.waits_for_slaves or not self._forked(at):
                raise Violation(
                    f"replica {broker.replica} confirms other bytes at {at} than were confirmed before\n"
                    + self.world.describe()
                )
            del canon[at:]
        if offset > len(canon) >= broker.disk.start:
            canon.extend(cells[len(canon) : offset])
        self.checked[broker.replica] = offset

    def _forked(self, at: int) -> bool:
        """Whether a declared loss explains that history changed at this offset."""
        return any(end <= at for end in self.lossy_ends)

    def whole(self, broker: Broker, offset: int) -> None:
        """A master confirms whole records: half of one may be cut by the next master."""
        if broker.reigning and broker.disk.boundary(offset) != offset:
            raise Violation(f"master {broker.replica} confirms {offset}, inside a record")

    def read(self, broker: Broker, offset: int) -> None:
        """A consumer reads everything below `offset` here: what it saw may never change."""
        self.confirmed(broker, offset)
        self.consumed = max(self.consumed, offset)

    def truncated(self, broker: Broker, end: int) -> None:
        self.checked[broker.replica] = min(self.checked.get(broker.replica, 0), end)

    def power_lost(self, broker: Broker, end: int, before: int, flushed: int) -> None:
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

    # --- retention ---

    def deleted(self, broker: Broker, start: int) -> None:
        """What goes is what was confirmed, but on a replica that has not heard of a loss yet."""
        cells, canon = broker.disk.cells, self.canon
        for at in range(broker.disk.start, start):
            if (at >= len(canon) or cells[at] != canon[at]) and not self._forked(at):
                raise Violation(f"replica {broker.replica} deletes what was not confirmed at {at}")

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
                    f"epoch {epoch} is given out while replica {broker.replica} holds the lease of {core.epoch}"
                )

    def broker(self, broker: Broker) -> None:
        """One broker after one event."""
        core, disk = broker.core, broker.disk
        assert core is not None
        half = core.master or core.slave
        if not 0 <= half.confirmed <= half.end:
            raise Violation(f"confirmed {half.confirmed} of {half.end}")
        if core.master is None and half.end != disk.end and not broker.paused:
            raise Violation(
                f"replica {broker.replica} thinks it ends at {half.end}, it ends at {disk.end}"
            )
        entries = half.history.entries
        # A log without a byte may know of a reign that begins above: its first bytes were lost.
        known = not entries or entries[0].start <= half.start or half.start == half.end
        if half.start > disk.start or not known or (entries[1:] and entries[1].start < half.start):
            raise Violation(
                f"replica {broker.replica} knows {entries} from {half.start}, it starts at {disk.start}"
            )
        if half.flushed > disk.flushed:
            raise Violation(
                f"replica {broker.replica} claims {half.flushed} flushed of {disk.flushed}"
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
                raise Violation(f"replicas differ after healing\n{world.describe()}")
            self._check_history(broker)
        self._check_queues(cells)
        aside = {
            cell
            for broker in world.brokers.values()
            for _, cut in broker.disk.set_aside
            for cell in cut
        }
        for acked in self.acked:
            record = acked.record
            last = (record.number << 3) + record.size - 1
            if record.end <= len(cells) and cells[record.end - 1] == last:
                continue
            if not self._loss_allowed(acked, last in aside):
                raise Violation(
                    f"{record} was acknowledged in {world.plan.mode.value} by {acked.holders} at {acked.at_us} us "
                    f"and is lost; power cuts {self.destroyed}\n{world.describe()}"
                )
            world.mark("acknowledged message lost within the promise")

    def _check_history(self, broker: Broker) -> None:
        """The epoch file says who wrote each byte."""
        records, history, start = self.world.records, broker.disk.history, broker.disk.start
        for offset, cell in enumerate(broker.disk.cells[start:], start):
            if cell & 7 == 0:
                writer = history.at(offset)
                if writer is None or writer.number != records[cell >> 3].epoch:
                    raise Violation(f"{records[cell >> 3]} lies in the reign of {writer}")

    def _check_queues(self, cells: list[int]) -> None:
        following: dict[int, int] = {}
        for cell in cells:
            if cell & 7 == 0:
                record = self.world.records[cell >> 3]
                expected = following.get(record.queue, 0)
                if record.queue_offset != expected:
                    raise Violation(f"{record}: queue offset {expected} was next")
                following[record.queue] = expected + 1

    def _loss_allowed(self, acked: Acked, set_aside: bool) -> bool:
        """What each mode's row of the promises allows. A loss must also have been declared."""
        mode, record = self.world.plan.mode, acked.record
        if mode is Mode.S1:
            return False
        if mode is Mode.S0:
            everybody = all(self._in_window(each, acked) for each in acked.holders)
            return everybody and self.world.outcome.losses_declared > 0
        if set_aside:
            return True
        return mode is Mode.A0 and any(self._destroyed(each, record) for each in acked.holders)
