"""MasterCore against what it may never do, whatever order slaves, sets and leases come in."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandemmq.replication import masterevents as m
from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.master import MasterCore, MasterState, Refusal

REPLICAS = st.integers(2, 4)
REIGNS = EpochHistory(
    (Epoch(1, 0), Epoch(2, 40), Epoch(3, 90))
)  # the log as it was taken over ends at 120


def writer(end: int) -> int:
    """Whose reign a log's last byte is of."""
    entry = REIGNS.at(end - 1) if end else None
    return entry.number if entry else 0


class MasterMachine(RuleBasedStateMachine):
    """Tracks by itself which slave reported what on a live connection, and which sets may be in force."""

    @initialize(mode=st.sampled_from(Mode))
    def begin(self, mode: Mode) -> None:
        self.mode = mode
        self.now_ms = 0
        self.core = MasterCore(
            replica=1, mode=mode, rules=StreamRules(), history=REIGNS, end=120, flushed=120,
            granted=frozenset({1}), number=1, lease_until_ms=1000,
        )  # fmt: skip
        self.connections: dict[int, int] = {}
        self.fresh: set[int] = set()  # connections without a report
        self.reported: dict[int, tuple[int, int]] = {}
        self.possible: set[frozenset[int]] = {frozenset({1})}
        self.number = 1
        self.next_connection = 1
        self.confirmed = self.acknowledged = 0

    def feed(self, event: m.Event) -> None:
        leased = self.now_ms < self.core.lease_until_ms or isinstance(event, m.LeaseRenewed)
        mode_waits = self.mode.waits_for_slaves
        for effect in self.core.step(event, self.now_ms):
            if isinstance(effect, m.Propose):
                assert effect.number == self.number
                self.possible.add(effect.members)
            elif isinstance(effect, m.Confirmed | m.Acknowledge):
                # INV-23: nobody who may be elected lacks it, or nobody is elected, or that is the lesser danger
                asked = mode_waits and any(len(members) > 1 for members in self.possible)
                assert leased or asked or self.mode is Mode.A0, "by its own word alone"
                end = effect.offset if isinstance(effect, m.Confirmed) else effect.end
                self.check_held(end)
                if isinstance(effect, m.Acknowledge):
                    assert effect.copies >= 1
                    self.acknowledged = end
            elif isinstance(effect, m.Drop):
                self.lose(effect.connection)

    def check_held(self, end: int) -> None:
        # INV-22
        own = self.core.flushed if self.mode.waits_for_disk else self.core.end
        assert end <= own
        if not self.mode.waits_for_slaves:
            return
        for members in self.possible:
            for member in members - {1}:
                received, flushed = self.reported[member]
                assert end <= (flushed if self.mode.waits_for_disk else received), (end, member)

    def lose(self, connection: int) -> None:
        for replica, known in list(self.connections.items()):
            if known == connection:
                del self.connections[replica]
                self.reported.pop(replica, None)

    @rule(size=st.integers(1, 100))
    def append(self, size: int) -> None:
        if self.core.refusal(self.now_ms) is None:
            self.feed(m.Appended(self.core.end + size))

    @rule(share=st.floats(0, 1))
    def flush(self, share: float) -> None:
        self.feed(m.Flushed(int(self.core.end * share)))

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        start = int(self.core.confirmed * share)
        if start > self.core.start:
            self.feed(m.Trimmed(start))

    @rule(replica=REPLICAS)
    def connect(self, replica: int) -> None:
        self.connections[replica] = self.next_connection
        self.reported.pop(replica, None)
        self.fresh.add(self.next_connection)
        self.feed(m.SlaveGreeted(self.next_connection, replica, replica * 10))
        self.next_connection += 1

    @rule(
        replica=REPLICAS, share=st.floats(0, 1), flushed=st.floats(0, 1), news=st.integers(-60, 60)
    )
    def report(self, replica: int, share: float, flushed: float, news: int) -> None:
        """With what the shell knows of our own log then: more than the core, or old news."""
        connection = self.connections.get(replica)
        if connection is None:
            return
        end = self.end_told_by_a_report(news)
        before = self.reported.get(replica, (0, 0))
        reached = max(end, self.core.end)
        received = max(before[0], int(reached * share))
        durable = max(before[1], int(received * flushed))
        self.reported[replica] = (received, durable)
        behind = connection in self.fresh and 0 < received < self.core.start
        self.fresh.discard(connection)
        report = m.SlaveReported(connection, received, durable, writer(received), reached, end)
        self.feed(report)
        assert self.core.end == reached
        assert (replica in self.connections) != behind, "only who is before our start is refused"

    def end_told_by_a_report(self, news: int) -> int:
        if news > 0 and self.core.refusal(self.now_ms) is not None:
            return 0  # nothing is appended then
        return max(0, self.core.end + news)

    @rule(replica=REPLICAS, stale=st.integers(0, 200))
    def lie(self, replica: int, stale: int) -> None:
        # INV-24
        connection = self.connections.get(replica)
        if connection is not None:
            end, confirmed = self.core.end, self.core.confirmed
            told = min(stale, end)
            self.feed(m.SlaveReported(connection, end + 1, 0, 1, end, told))
            assert replica not in self.core.slaves
            assert (self.core.end, self.core.confirmed) == (end, confirmed)

    @rule(replica=REPLICAS)
    def disconnect(self, replica: int) -> None:
        connection = self.connections.get(replica)
        if connection is not None:
            self.lose(connection)
            self.feed(m.SlaveLost(connection))

    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        """The controller took one of the proposals, whichever, and the news arrives."""
        members = data.draw(st.sampled_from(sorted(self.possible, key=sorted)))
        self.number += 1
        self.possible = {members}
        self.feed(m.SetLearned(members, self.number))

    @rule(members=st.frozensets(st.integers(1, 4)), age=st.integers(0, 3))
    def old_news(self, members: frozenset[int], age: int) -> None:
        granted = self.core.granted
        self.feed(m.SetLearned(members, self.number - age))
        assert self.core.granted == granted

    @rule(by_ms=st.integers(0, 900))
    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.feed(m.Tick())

    @rule(for_ms=st.integers(0, 2000))
    def renew(self, for_ms: int) -> None:
        self.feed(m.LeaseRenewed(self.now_ms + for_ms))

    @rule(successor=REPLICAS)
    def resign(self, successor: int) -> None:
        self.feed(m.Resign(successor))

    @invariant()
    def the_history_speaks_of_all_the_log_holds_and_of_no_more(self) -> None:
        core = self.core
        assert core.epoch == 3
        for offset in range(max(core.start - 1, 0), min(core.end, 130)):
            assert core.history.at(offset) == REIGNS.at(offset)
        assert len(core.history.entries) == 1 or core.history.entries[1].start >= core.start

    @invariant()
    def nothing_falls(self) -> None:
        # INV-21
        core = self.core
        assert self.confirmed <= core.confirmed <= core.end
        self.confirmed = core.confirmed
        assert 1 in core.union
        assert any(core.granted == members for members in self.possible) or len(self.possible) > 1
        if core.state is MasterState.RESIGNED:
            assert core.refusal(self.now_ms) is Refusal.CLOSED
            assert self.acknowledged == core.end or core.end == 0


TestMasterMachine = MasterMachine.TestCase
TestMasterMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
